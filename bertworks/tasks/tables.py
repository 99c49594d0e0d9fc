"""Files of rows with named columns: TSV, CSV, JSON lines, a JSON list, Parquet.

Tab-separated text has no quoting: a quotation mark is a character like any other, as GLUE's files want it, and a line
is a row. CSV has quoting, and a row may span lines. Lines may end as on old Macs, with "\\r" alone. Values are strings
there, and what JSON and Parquet say elsewhere. A JSON object inside a record is opened one level (`labels.label`).
Every row knows its place.
"""

import csv
import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import CorruptFile, UserError
from bertworks.json_files import name_kind, parse_json
from bertworks.tasks.examples import Skipped
from bertworks.tasks.json_values import of_kind, read_json, shown_names
from bertworks.tasks.lines import MAX_LINE_BYTES, checked_file, numbered_lines
from bertworks.text.compressed import check_growth
from bertworks.text.sources import COMPRESSIONS

JSON_ENDINGS = (".jsonl", ".ndjson", ".json")
RECORD_ENDINGS = (*JSON_ENDINGS, ".parquet")  # whose rows are records, not lines below a header
_ROWS_AT_ONCE = 1024
_DELIMITERS = (",", ";", "\t")


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
    if ending(path) not in JSON_ENDINGS:
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
        path: the file; its ending says what it is, and an unknown one means tab-separated.
        header: the columns of a text file that does not name them in its first line; a row may have more than these.
        short_rows: where rows with a wrong number of columns are counted; they are an error without it.
    """
    read = _READERS.get(ending(path))
    return read(path) if read else _table(path, _tab_records(path), header, short_rows)


def ending(path: Path) -> str:
    """Return a file's ending without its packing: ".tsv" of "train.tsv.gz"."""
    name = path.name.lower()
    packing = next((packing for packing in COMPRESSIONS if name.endswith(packing)), "")
    return Path(name.removesuffix(packing)).suffix


def _tab_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    return ((number, line.split("\t")) for number, line in _table_lines(path) if line)


def _table_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a text file; a carriage return ends them too where the first has one inside."""
    ends_alone = False
    for number, line in numbered_lines(path):
        ends_alone = "\r" in line if number == 1 else ends_alone
        yield from enumerate(line.split("\r"), number) if ends_alone else [(number, line)]


def _csv_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(MAX_LINE_BYTES)  # for the whole process, but nobody counts on the 128 kB that it has else
    lines = (f"{line}\n" for _, line in _table_lines(path))
    first = next(lines, "")
    delimiter = max(_DELIMITERS, key=first.count)
    reader = csv.reader(chain([first], lines), delimiter=delimiter, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}:{number}: not CSV: {error}; inside quotes a quote is written twice") from error
        if record is None:
            return
        if record:
            yield number, record


def _table(
    path: Path, records: Iterator[tuple[int, list[str]]], header: Sequence[str] | None, short_rows: Skipped | None
) -> Iterator[Row]:
    is_named = header is None
    if header is None:
        header = _checked_header(path, next(records, (1, []))[1])
    for number, cells in records:
        if len(cells) == len(header) or (not is_named and len(cells) > len(header)):
            yield Row(dict(zip(header, cells, strict=False)), f"{path}:{number}")
        elif short_rows is not None:
            short_rows.add("rows with a wrong number of columns", f"{path}:{number}")
        else:
            columns = shown_names(dict.fromkeys(header))
            raise UserError(f"{path}:{number}: {len(cells)} columns where {len(header)} are expected: {columns}")


def _checked_header(path: Path, header: list[str]) -> list[str]:
    if not any(header):
        raise UserError(f"{path} has no first line that names its columns")
    _check_names(header, f"{path}:1")
    return header


def _check_names(names: Sequence[str], where: str) -> None:
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: {count} columns are named {name[:40]!r}; give each a name of its own")


def _csv_rows(path: Path) -> Iterator[Row]:
    return _table(path, _csv_records(path), None, None)


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
        _check_names(table.schema_arrow.names, str(path))
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
    ".ndjson": _json_line_rows,
    ".json": _json_rows,
    ".parquet": _parquet_rows,
}
