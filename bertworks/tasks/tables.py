"""Files of rows with named columns: TSV, CSV, JSON lines, a JSON list, Parquet.

Tab-separated text has no quoting: a quotation mark is a character like any other, as GLUE's files want it, and a line
is a row. CSV has quoting, and a row may span lines. Lines may end as on old Macs, with "\r" alone. Values are strings
there, and what JSON and Parquet say elsewhere. A JSON object inside a record is opened one level (`labels.label`).
Every row knows its place.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertworks.errors import CorruptFile, UserError, shown_names
from bertworks.files import KIND_NAMES, name_kind, parse_json, usable_path
from bertworks.tasks.examples import Skipped
from bertworks.text import lines
from bertworks.text.corpus import check_names, csv_records, find_files, fitted, header_of, kind_of, tab_records
from bertworks.text.lines import BYTE_ORDER_MARK, STANDARD_INPUT, advice_on, check_growth, open_packed

# The lines of a labelled file, numbered, so that every message can say where.
#
# A line ends as in a corpus (`text/utf8.py`); a byte order mark at the start goes. Unlike in a corpus, where one
# bad byte among millions is replaced and counted, bytes that are not UTF-8 end the reading: a label may hang on
# them.


# Of tables that people have and that are not read here.
_OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers", ".arrow", ".feather", ".pkl", ".sqlite", ".db")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of a file, which may be packed with .gz, .bz2, .xz or .zst."""
    with open_packed(checked_file(path)) as file:
        kind_of(file)  # which refuses what is plainly not text
        yield from lines.numbered_lines(file.pieces(), path, decoded)


def file_kind(path: Path) -> str:
    """Return what a file holds, see `kind_of`."""
    with open_packed(checked_file(path)) as file:
        return kind_of(file)


def checked_file(path: Path) -> Path:
    """Return a path that is a readable file of a form that is read, or raise UserError."""
    if path == STANDARD_INPUT or usable_path(path).is_dir():
        raise UserError(f"{path} is not a file; name one, for it is read more than once")
    found = find_files([path])[0]
    if found.suffix.lower() in _OTHER_ENDINGS:
        raise UserError(f"{path}: {found.suffix} is not read; save it as .csv, .tsv, .jsonl, .json or .parquet")
    return found


def decoded(data: bytes, path: Path, line: int) -> str:
    """Decode whole lines, the first of which has the given number."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        byte = f"0x{data[error.start]:02x}"
        raise UserError(f"{path}:{line}: byte {byte} is not UTF-8; {advice_on(data)}") from error


# JSON of datasets, taken apart with a place in every message: `train.json: data[3].paragraphs[0].context`.


_MAX_FILE_BYTES = 2 << 30  # a parsed file takes some ten times its size, and it is parsed whole
_Value = TypeVar("_Value")


def read_json(path: Path) -> Any:
    """Return what a whole JSON file holds."""
    pieces, size = [], 0
    with open_packed(checked_file(path)) as file:
        kind_of(file)
        for piece in file.pieces():
            pieces.append(piece)
            size += len(piece)
            if size > _MAX_FILE_BYTES:
                raise UserError(f"{path} has more than {_MAX_FILE_BYTES >> 30} GiB of JSON; use JSON lines (.jsonl)")
    data = b"".join(pieces).removeprefix(BYTE_ORDER_MARK)
    return parse_json(decoded(data, path, 1), str(path), strict=True)


def is_json_object(path: Path) -> bool:
    """Tell from a JSON file's first bytes whether it holds an object, and not a list."""
    with open_packed(checked_file(path)) as file:
        return file.head().removeprefix(BYTE_ORDER_MARK).lstrip().startswith(b"{")


def member(record: Any, name: str, kind: type[_Value], where: str) -> _Value:
    """Return an object's value of the wanted kind, or raise UserError with the place."""
    if not isinstance(record, dict):
        raise UserError(f"{where}: {name_kind(record)} where an object with {name!r} is expected")
    if name not in record:
        raise UserError(f"{where}: no {name!r}; there are: {shown_names(record)}")
    return of_kind(record[name], kind, f"{where}.{name}")


def of_kind(value: Any, kind: type[_Value], where: str) -> _Value:
    """Return a value that is of the wanted kind."""
    if type(value) is not kind:
        raise UserError(f"{where}: {name_kind(value)} where {KIND_NAMES[kind]} is expected")
    return value


JSON_KINDS = (".jsonl", ".json")
RECORD_KINDS = (*JSON_KINDS, ".parquet")  # whose rows are records, not lines below a header
_ROWS_AT_ONCE = 1024


# What a spreadsheet takes for a formula, also after apostrophes; in some languages full-width signs begin one, too.
FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠]|'*[\t\r\n]")
_SAFE_START = re.compile(rb'\xef\xbb\xbf"([^"]|"")*"([,\t]"([^"]|"")*")*\r\n')


class Row(NamedTuple):
    """The values of a row by column, and its place."""

    values: Mapping[str, Any]
    place: str
    num_own: int | None = None  # how many of the first values are columns, and not of an opened object

    @property
    def own_names(self) -> list[str]:
        """The names of the columns, without those of objects inside of them that were opened."""
        return list(self.values)[: self.num_own]

    def text(self, column: str) -> str:
        """Return a value that must be there and be text."""
        return of_kind(self.value(column), str, f"{self.place}: column {column!r}")

    def text_or_nothing(self, column: str) -> str:
        """Return a value that must be there and be text, or null, which is "" like an empty cell."""
        return "" if self.value(column) is None else self.text(column)

    def value(self, column: str) -> Any:
        """Return a value that must be there."""
        if column not in self.values:
            raise UserError(f"{self.place}: no column {column!r}; there are: {shown_names(self.values)}")
        value = self.values[column]
        if isinstance(value, bytes) or (isinstance(value, list) and any(isinstance(one, bytes) for one in value)):
            raise UserError(f"{self.place}: column {column!r} is binary, and not UTF-8 text")
        return value

    def word(self, column: str) -> str:
        """Return a value that must be there, as a word: 1, 1.0 and true are "1", "1" and "true", and nothing is ""."""
        value = self.value(column)
        if isinstance(value, list | dict):
            raise UserError(f"{self.place}: column {column!r}: {name_kind(value)} where one value is expected")
        return word_of(value)

    def label(self, column: str) -> str:
        """Return a value as a label, see `label_word`."""
        return label_word(self.word(column))


def label_word(word: str) -> str:
    """Compose the letters of a label: what looks the same is the same, whether or not it was written on a Mac."""
    return unicodedata.normalize("NFC", word)


def column_names(path: Path) -> tuple[list[str], set[str]]:
    """Return all names of a file's columns, and those that are in every row; JSON's records may differ in them."""
    if file_kind(path) not in JSON_KINDS:
        names = [name for row in islice(rows(path), 1) for name in row.values]
        return names, set(names)
    counts, num_rows = Counter[str](), 0
    for num_rows, row in enumerate(rows(path), 1):  # noqa: B007 -- the last one
        counts.update(row.values.keys())
    return list(counts), {name for name, count in counts.items() if count == num_rows}


def word_of(value: Any) -> str:
    """Write a single value as a word."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return str(int(value) if isinstance(value, float) and value.is_integer() else value).strip()


def rows(path: Path, header: Sequence[str] | None = None, short_rows: Skipped | None = None) -> Iterator[Row]:
    """Yield the rows of a file.

    Args:
        path: the file; text of which neither the content nor the ending says what it is, is tab-separated.
        header: the columns of a text file that does not name them in its first line; a row may have more than these.
        short_rows: where rows with a wrong number of columns are counted; they are an error without it.
    """
    kind = file_kind(path)
    if kind == ".xml":
        raise UserError(f"{path} is a Wikipedia dump, where rows with columns are expected")
    read = _READERS.get(kind)
    yield from read(path) if read else _table(path, tab_records(numbered_lines(path), path), header, short_rows)


def _is_csv_safe(path: Path) -> bool:
    """Tell whether a table was written for a spreadsheet by us, with an apostrophe before what begins like a formula.

    It begins as Excel's own files do, and has the names of all columns in quotes, as hardly anybody else's.
    """
    with open_packed(checked_file(path)) as file:
        return _SAFE_START.match(next(file.pieces(), b"")) is not None


def _as_before(records: Iterator[tuple[int, list[str]]], *, is_quoted: bool) -> Iterator[tuple[int, list[str]]]:
    """Take the apostrophes off such a table, and the quotes around the names of columns where they are there still."""
    for place, (number, cells) in enumerate(records):
        if is_quoted and place == 0:
            cells = [cell[1:-1].replace('""', '"') for cell in cells]
        yield number, [cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell for cell in cells]


def _table(
    path: Path, records: Iterator[tuple[int, list[str]]], header: Sequence[str] | None, short_rows: Skipped | None
) -> Iterator[Row]:
    is_named = header is None
    if _is_csv_safe(path):
        records = _as_before(records, is_quoted=file_kind(path) != ".csv")
    if header is None:
        header = header_of(records, path)
    for number, cells in records:
        place = f"{path}:{number}"
        if len(cells) == len(header) or (not is_named and len(cells) > len(header)):
            yield Row(dict(zip(header, cells, strict=False)), place)
        elif short_rows is not None:
            short_rows.add("rows with a wrong number of columns", place)
        else:
            yield Row(dict(zip(header, fitted(cells, header, place), strict=True)), place)


def _csv_rows(path: Path) -> Iterator[Row]:
    return _table(path, csv_records(numbered_lines(path), path), None, None)


def _json_line_rows(path: Path) -> Iterator[Row]:
    for number, line in numbered_lines(path):
        if line and not line.isspace():
            yield _record_row(parse_json(line, str(path), line=number, strict=True), f"{path}:{number}")


def _json_rows(path: Path) -> Iterator[Row]:
    records = read_json(path)
    if not isinstance(records, list):
        raise UserError(f"{path}: {name_kind(records)} where a list of records is expected")
    for number, record in enumerate(records):
        yield _record_row(record, f"{path}: [{number}]")


def _record_row(record: Any, place: str) -> Row:
    if not isinstance(record, dict):
        raise UserError(f"{place}: {name_kind(record)} where a record {{...}} is expected")
    values = dict(record)
    for name, value in record.items():
        if isinstance(value, dict):
            values |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
    return Row(values, place, len(record))


def _parquet_rows(path: Path) -> Iterator[Row]:
    checked_file(path)
    import pyarrow as pa
    import pyarrow.parquet as pq

    size, bytes_out, number = path.stat().st_size, 0, 0
    try:
        table = pq.ParquetFile(path)
        sizes = [table.metadata.row_group(group).total_byte_size for group in range(table.num_row_groups)]
        check_growth(path, size, sum(sizes))
        check_names(table.schema_arrow.names, str(path))
        names_of = _class_names(table.schema_arrow.metadata or {}, path)
        is_binary = {field.name: "binary" in str(field.type) for field in table.schema_arrow}
        for batch in table.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            bytes_out += batch.nbytes
            check_growth(path, size, bytes_out)
            for record in batch.to_pylist():
                number += 1
                place = f"{path}: row {number}"
                for column, value in record.items():
                    if is_binary[column]:
                        record[column] = _as_text(value)
                    elif column in names_of:
                        record[column] = _named(value, names_of[column], f"{place}: column {column!r}")
                yield _record_row(record, place)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CorruptFile(f"{path} is not an intact Parquet file: {reason}") from error


def _as_text(value: Any) -> Any:
    """Decode bytes that are UTF-8, in a list too; others stay, and are refused where they are asked for."""
    if isinstance(value, list):
        return [_as_text(one) for one in value]
    try:
        return value.decode() if isinstance(value, bytes) else value
    except UnicodeDecodeError:
        return value


def _class_names(metadata: Mapping[bytes, bytes], path: Path) -> dict[str, list[str]]:
    """Return the names of classes that Hugging Face's datasets keep beside columns of their numbers."""
    try:
        found = parse_json(metadata.get(b"huggingface", b"{}"), str(path))
    except CorruptFile:  # the columns can be read without it
        return {}
    for key in ("info", "features"):
        found = found.get(key) if isinstance(found, dict) else None
    named = {}
    for column, feature in found.items() if isinstance(found, dict) else ():
        if isinstance(feature, dict) and "feature" in feature:  # a list of classes
            feature = feature["feature"]
        names = feature.get("names") if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" else None
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            named[column] = names
    return named


def _named(value: Any, names: Sequence[str], where: str) -> Any:
    """Return the names of numbers of classes; -1 is null, which stands for no label."""
    if isinstance(value, list):
        return [_named(one, names, where) for one in value]
    if type(value) is not int:
        return value
    if not -1 <= value < len(names):
        raise UserError(f"{where}: {value} is not the number of a class; the file names {len(names)} of them")
    return names[value] if value >= 0 else None


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_line_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
