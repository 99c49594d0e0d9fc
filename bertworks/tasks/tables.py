"""Files of rows with named columns: TSV, CSV, JSON lines, a JSON list, Parquet.

Tab-separated text has no quoting: a quotation mark is a character like any other, as GLUE's files want it, and a line
is a row. CSV has quoting, and a row may span lines. Lines may end as on old Macs, with "\\r" alone. Values are strings
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
from typing import Any, NamedTuple

from bertworks.errors import CorruptFile, UserError, shown_names
from bertworks.json_files import name_kind, parse_json
from bertworks.tasks.examples import Skipped
from bertworks.tasks.json_values import of_kind, read_json
from bertworks.tasks.lines import checked_file, file_kind, numbered_lines
from bertworks.text.compressed import check_growth, open_packed
from bertworks.text.records import check_names, csv_records, fitted, header_of, tab_records

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
        return self.values[column]

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
        for batch in table.iter_batches(_ROWS_AT_ONCE, use_threads=False):
            bytes_out += batch.nbytes
            check_growth(path, size, bytes_out)
            for record in batch.to_pylist():
                number += 1
                yield _record_row(record, f"{path}: row {number}")
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CorruptFile(f"{path} is not an intact Parquet file: {reason}") from error


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".csv": _csv_rows,
    ".jsonl": _json_line_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
