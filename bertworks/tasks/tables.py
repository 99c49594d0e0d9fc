"""Files of rows with named columns: TSV, CSV, JSON lines, a JSON list, Parquet; and the texts and labels in them.

Tab-separated text has no quoting: a quotation mark is a character like any other, as in GLUE's files, and a line is a
row. CSV has quoting, and a row may span lines. Lines may end with "\\r" alone, as on old Macs. Values of text files are
strings; JSON and Parquet have types. A JSON object inside a record is opened one level (`labels.label`).

Every line, value and row records its position, so that every message can name it: `train.json: data[3].context`. In a
corpus a bad byte among millions is replaced and counted; here bytes that are not UTF-8 are an error, because a label
may depend on them.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from bertworks.errors import CorruptFile, UserError, shown_names
from bertworks.files import KIND_NAMES, name_kind, parse_json, usable_path
from bertworks.tasks.task import Skipped, TextExample
from bertworks.text import lines
from bertworks.text.corpus import check_names, csv_records, find_files, fitted, header_of, kind_of, tab_records
from bertworks.text.lines import BYTE_ORDER_MARK, STANDARD_INPUT, check_growth, decoded, open_packed

JSON_KINDS = (".jsonl", ".json")
RECORD_KINDS = (*JSON_KINDS, ".parquet")  # whose rows are records, not lines below a header
# What a spreadsheet takes for a formula, also after apostrophes; in some languages full-width signs begin one, too.
FORMULA = re.compile(r"'*\s*[=+\-@＝＋－＠]|'*[\t\r\n]")
# How a table begins that we wrote for a spreadsheet: as Excel's own files do, and with all names of columns in quotes.
_SAFE_START = re.compile(rb'\xef\xbb\xbf"([^"]|"")*"([,\t]"([^"]|"")*")*\r\n')
# Of tables that people have and that are not read here.
_OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers", ".arrow", ".feather", ".pkl", ".sqlite", ".db")
_MAX_FILE_BYTES = 2 << 30  # a file is parsed as a whole, which takes about ten times its size
_ROWS_AT_ONCE = 1024
MISSING_NUMBER = "-1"  # what Hugging Face's datasets write where labels are numbers from 0 and there is none
_MAX_LABELS_SHOWN = 20
_MAX_SCORE = 3.4e38  # what float32 holds, in which a network learns
_Value = TypeVar("_Value")


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of a file, which may be packed with .gz, .bz2, .xz or .zst."""
    file_kind(path)  # refuses what is clearly not text
    yield from _text_lines(checked_file(path), path)


def _text_lines(found: Path, path: Path) -> Iterator[tuple[int, str]]:
    with open_packed(found) as file:
        yield from lines.numbered_lines(file.pieces(), path, decoded)


def file_kind(path: Path) -> str:
    """Return what a file holds, see `kind_of`."""
    with open_packed(checked_file(path)) as file:
        return kind_of(file)


def checked_file(path: Path) -> Path:
    """Return a path that is a readable file of a form that is read, or raise UserError."""
    if path == STANDARD_INPUT or usable_path(path).is_dir():
        raise UserError(f"{path} is not a file; give one, because it is read more than once")
    found = find_files([path])[0]
    if found.suffix.lower() in _OTHER_ENDINGS:
        raise UserError(f"{path}: {found.suffix} is not read; save it as .csv, .tsv, .jsonl, .json or .parquet")
    return found


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
    """Return an object's value of the wanted kind, or raise UserError with where it stands."""
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


class Row(NamedTuple):
    """The values of a row by column, and its position in the file."""

    values: Mapping[str, Any]
    where: str  # for messages: file and line
    num_own: int | None = None  # how many of the first values are columns; the others are of opened objects

    @property
    def own_names(self) -> list[str]:
        """The names of the columns, without those of objects inside of them that were opened."""
        return list(self.values)[: self.num_own]

    def text(self, column: str) -> str:
        """Return a value that must be there and be text."""
        return of_kind(self.value(column), str, f"{self.where}: column {column!r}")

    def text_or_nothing(self, column: str) -> str:
        """Return a value that must be there and be text, or null, which is "" like an empty cell."""
        return "" if self.value(column) is None else self.text(column)

    def value(self, column: str) -> Any:
        """Return a value that must be there."""
        if column not in self.values:
            raise UserError(f"{self.where}: no column {column!r}; there are: {shown_names(self.values)}")
        value = self.values[column]
        if isinstance(value, bytes) or (isinstance(value, list) and any(isinstance(one, bytes) for one in value)):
            raise UserError(f"{self.where}: column {column!r} is binary, and not UTF-8 text")
        return value

    def word(self, column: str) -> str:
        """Return a value that must be there, as a word: 1, 1.0 and true are "1", "1" and "true", and null is ""."""
        value = self.value(column)
        if isinstance(value, list | dict):
            raise UserError(f"{self.where}: column {column!r}: {name_kind(value)} where one value is expected")
        return word_of(value)

    def label(self, column: str) -> str:
        """Return a value as a label, see `label_word`."""
        return label_word(self.word(column))


def label_word(word: str) -> str:
    """Compose the letters of a label (NFC), so that labels that look the same are equal, also from a Mac."""
    return unicodedata.normalize("NFC", word)


def column_names(path: Path) -> tuple[list[str], set[str]]:
    """Return all names of a file's columns, and those that are in every row; JSON's records may differ in them."""
    if file_kind(path) not in JSON_KINDS:
        names = [name for row in islice(rows(path), 1) for name in row.values]
        return names, set(names)
    counts, num_rows = Counter[str](), 0
    for row in rows(path):
        counts.update(row.values.keys())
        num_rows += 1
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
    if kind == ".parquet":
        yield from _parquet_rows(path)
    elif kind == ".jsonl":
        for number, line in _text_lines(checked_file(path), path):
            if line and not line.isspace():
                yield _record_row(parse_json(line, str(path), line=number, strict=True), f"{path}:{number}")
    elif kind == ".json":
        records = read_json(path)
        if not isinstance(records, list):
            raise UserError(f"{path}: {name_kind(records)} where a list of records is expected")
        for number, record in enumerate(records):
            yield _record_row(record, f"{path}: [{number}]")
    elif kind == ".csv":
        yield from _table(path, csv_records(_text_lines(checked_file(path), path), path), is_csv=True)
    else:
        yield from _table(path, tab_records(_text_lines(checked_file(path), path), path), header, short_rows)


def _table(
    path: Path,
    records: Iterator[tuple[int, list[str]]],
    header: Sequence[str] | None = None,
    short_rows: Skipped | None = None,
    *,
    is_csv: bool = False,
) -> Iterator[Row]:
    is_named = header is None
    with open_packed(checked_file(path)) as file:
        if _SAFE_START.match(next(file.pieces(), b"")):
            records = _without_apostrophes(records, has_quotes=not is_csv)
    if header is None:
        header = header_of(records, path)
    for number, cells in records:
        where = f"{path}:{number}"
        if len(cells) == len(header) or (not is_named and len(cells) > len(header)):
            yield Row(dict(zip(header, cells, strict=False)), where)
        elif short_rows is not None:
            short_rows.add("rows with a wrong number of columns", where)
        else:
            yield Row(dict(zip(header, fitted(cells, header, where), strict=True)), where)


def _without_apostrophes(
    records: Iterator[tuple[int, list[str]]], *, has_quotes: bool
) -> Iterator[tuple[int, list[str]]]:
    """Remove what `--csv-safe` adds to a table: apostrophes before formulas, quotes around names of columns."""
    for index, (number, cells) in enumerate(records):
        if has_quotes and index == 0:
            cells = [cell[1:-1].replace('""', '"') for cell in cells]
        yield number, [cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell for cell in cells]


def _record_row(record: Any, where: str) -> Row:
    if not isinstance(record, dict):
        raise UserError(f"{where}: {name_kind(record)} where a record {{...}} is expected")
    values = dict(record)
    for name, value in record.items():
        if isinstance(value, dict):
            values |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
    return Row(values, where, len(record))


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
                where = f"{path}: row {number}"
                for column, value in record.items():
                    if is_binary[column]:
                        record[column] = _as_text(value)
                    elif column in names_of:
                        record[column] = _named(value, names_of[column], f"{where}: column {column!r}")
                yield _record_row(record, where)
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CorruptFile(f"{path} is not an intact Parquet file: {reason}") from error


def _as_text(value: Any) -> Any:
    """Decode bytes that are UTF-8, in a list too; others stay, and are refused where they are used."""
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


class TextColumns(NamedTuple):
    """The columns of a table of texts or pairs, with a label or a score: most benchmarks are this.

    Args:
        first: the column of the text, or of the first of two.
        second: the column of the second text.
        label: the column of the label or score; None where the file has none (a test set).
        words: each label by the word that the file writes for it; None for a score.
        id: the column that names an example; without one it is the row's number, from 0.
        header: the columns of a file that does not name them.
        no_label: words that stand for no label at all; such rows are left out of every split.
        allows_broken_rows: rows with a wrong number of columns are counted and left out.
        score_range: the lowest and the highest score there is.
    """

    first: str
    second: str | None = None
    label: str | None = "label"
    words: Mapping[str, str] | None = None
    id: str | None = None
    header: Sequence[str] | None = None
    no_label: frozenset[str] = frozenset()
    allows_broken_rows: bool = False
    score_range: tuple[float, float] = (-math.inf, math.inf)


def read_texts(paths: Sequence[Path], skipped: Skipped, columns: TextColumns) -> Iterator[TextExample]:
    """Yield the examples of some files, one after the other."""
    number = 0
    for path in paths:
        for row in rows(path, columns.header, skipped if columns.allows_broken_rows else None):
            example = example_of(row, number, columns)
            if columns.label is not None and example.label is None:
                is_score = columns.words is None
                skipped.add("rows without a label" if is_score else why_missing(row.word(columns.label)), row.where)
            else:
                yield example
            number += 1


def why_missing(word: str) -> str:
    """Return the reason under which a row is counted whose label is read as no label."""
    return f"rows with the label {word}, read as no label" if word == MISSING_NUMBER else "rows without a label"


def example_of(row: Row, number: int, columns: TextColumns) -> TextExample:
    """Return the example that a row holds."""
    second = None if columns.second is None else row.text_or_nothing(columns.second)
    label: str | float | None = None
    if columns.label is not None:
        value = row.value(columns.label)
        # A NaN in Parquet is a wrong score, as in text, not a missing one.
        is_nan = columns.words is None and isinstance(value, float) and math.isnan(value)
        word = "nan" if is_nan else row.label(columns.label)
        if word not in columns.no_label:
            label = score_of(word, row, columns) if columns.words is None else label_of(word, row, columns.words)
    name = str(number) if columns.id is None else row.word(columns.id)
    return TextExample(name, row.text_or_nothing(columns.first), second, label)


def label_of(word: str, row: Row, words: Mapping[str, str]) -> str:
    """Return the label that a file's word stands for."""
    if word not in words:
        shown = ", ".join([*list(words)[:_MAX_LABELS_SHOWN], *["..."] * (len(words) > _MAX_LABELS_SHOWN)])
        raise UserError(f"{row.where}: {word[:60]!r} is not a label here; allowed: {shown}")
    return words[word]


def score_of(word: str, row: Row, columns: TextColumns) -> float:
    """Return a score as a number inside its range; NaN, infinity and what float32 does not hold are none."""
    low, high = columns.score_range
    try:
        score = float(word)
    except ValueError:
        score = math.nan
    if not (abs(score) <= _MAX_SCORE and low <= score <= high):
        allowed = f" from {low:g} to {high:g}" if math.isfinite(high) else ""
        raise UserError(f"{row.where}: {word[:60]!r} is not a score; it must be a number{allowed}")
    return score
