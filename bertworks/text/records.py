"""Documents out of records: JSON lines, other JSON, CSV and tab-separated text, Parquet.

Each record is one document, the text of one field; it may hold newlines, and its blank lines end nothing. A record
that cannot be read is an error with its place, since leaving it out quietly would hide that a corpus is not what one
thinks. Tables are taken apart here for corpora and for the files of tasks alike.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, NoReturn

from bertworks.errors import CorruptFile, UserError, shown_names
from bertworks.json_files import parse_json, without_surrogates
from bertworks.text.compressed import PIECE_BYTES, PackedFile, check_growth
from bertworks.text.utf8 import Utf8Decoder, checked_text, line_blocks, paragraphs

_MAX_RECORD_BYTES = 64 << 20
# Rows of books can be megabytes each, and a dictionary page can repeat one of them for nothing.
_ROWS_AT_ONCE = 128
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_WHITE_SPACE = re.compile(r"[\s\ufeff]*")
_DELIMITERS = (",", ";", "\t")
_SEPARATOR_LINE = re.compile(r'"?sep=(.)"?', re.IGNORECASE)  # Excel's own, for which Excel asks
_LINE_BREAKS = re.compile(r"\s*[\r\n]+\s*")
_MAX_HEADER_LINES = 100


def json_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder) -> Iterator[list[str]]:
    """Yield each JSON line's text as a list of paragraphs."""
    line = 1
    for block in line_blocks(checked_text(file.pieces(), file.path), _MAX_RECORD_BYTES):
        records = block.split(b"\n")
        if records.pop():
            raise UserError(f"{file.path}:{line}: a record of more than {_MAX_RECORD_BYTES >> 20} MiB; split it")
        if line == 1:
            records[0] = records[0].removeprefix(_BYTE_ORDER_MARK)
        for record in records:
            if record and not record.isspace():
                written = decoder.decode(record, file.path, line)
                yield paragraphs(_record_text(written, str(file.path), line, text_field, decoder))
            line += 1


def _record_text(written: str, where: str, line: int, text_field: str, decoder: Utf8Decoder) -> str:
    value = parse_json(written, where, line=line)
    if not isinstance(value, dict):
        raise UserError(f"{where}:{line}: a JSON {type(value).__name__} where a record {{...}} is expected")
    if text_field not in value:
        _raise_missing_field(f"{where}:{line}", text_field, list(value))
    text = value[text_field]
    if not isinstance(text, str):
        raise UserError(f"{where}:{line}: field {text_field!r} is a {type(text).__name__}, not a string")
    if "\ufffd" in text and "\\u" in written and without_surrogates(written) != written:
        decoder.num_replaced += 1
    return text


def json_value_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder) -> Iterator[list[str]]:
    """Yield the texts of the records, or strings, of a JSON list, or of records one after the other.

    They may go over several lines. Memory is that of the largest record.
    """
    find_end = json.JSONDecoder().raw_decode
    text, line, wanted, number, in_list, is_between, is_closed = "", 1, 0, 0, False, False, False
    next_line = 1
    for block in chain(line_blocks(checked_text(file.pieces(), file.path), PIECE_BYTES), [b""]):
        text += decoder.decode(block, file.path, next_line)
        next_line += block.count(b"\n")
        if block and len(text) < wanted:
            continue  # a record that is not whole; parsing it again for each block would take the square of its size
        place, problem = 0, ""
        while not problem:
            start = _WHITE_SPACE.match(text, place).end()  # type: ignore[union-attr]  # it matches nothing, too
            line += text.count("\n", place, start)
            place, sign = start, text[start : start + 1]
            if not sign:
                break
            if number == 0 and not in_list and sign == "[":
                in_list, place = True, start + 1
            elif is_closed or (in_list and is_between and sign not in ",]"):
                expected = "after the end of the list" if is_closed else "where ',' or ']' is expected"
                raise UserError(f"{file.path}:{line}: not JSON: {sign!r} {expected}")
            elif in_list and sign in ",]":
                is_between, is_closed, place = False, sign == "]", start + 1
            else:
                try:
                    _, place = find_end(text, start)
                except (ValueError, RecursionError) as error:
                    problem = f"{file.path}:{line}: not JSON: {getattr(error, 'msg', error)}"
                    break
                written = text[start:place]
                if in_list and sign == '"':  # a list of texts
                    written = f"{{{json.dumps(text_field)}: {written}}}"
                yield paragraphs(_record_text(written, str(file.path), line, text_field, decoder))
                line += text.count("\n", start, place)
                number, is_between = number + 1, True
        text, wanted = text[place:], 2 * (len(text) - place) if problem else 0
        if problem and (not block or len(text) > _MAX_RECORD_BYTES):
            raise UserError(problem)
    if in_list and not is_closed:
        raise CorruptFile(f"{file.path} ends before its JSON list does: it is cut off")


def _raise_missing_field(where: str, text_field: str, fields: Sequence[str]) -> NoReturn:
    advice = "; name it with --text-field" if fields else ""
    raise UserError(f"{where}: no field {text_field!r} to take the text from; there are: {shown_names(fields)}{advice}")


def table_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder, *, is_quoted: bool) -> Iterator[list[str]]:
    """Yield each row's text, out of the column of this name, as a list of paragraphs; `is_quoted` says CSV."""
    records = (csv_records if is_quoted else tab_records)(_decoded_lines(file, decoder), file.path)
    header = header_of(records, file.path)
    if text_field not in header:
        _raise_missing_field(str(file.path), text_field, header)
    column = header.index(text_field)
    for number, cells in records:
        yield paragraphs(fitted(cells, header, f"{file.path}:{number}")[column])


def _decoded_lines(file: PackedFile, decoder: Utf8Decoder) -> Iterator[tuple[int, str]]:
    number = 1
    for block in line_blocks(checked_text(file.pieces(), file.path), _MAX_RECORD_BYTES):
        if not block.endswith(b"\n"):
            raise UserError(f"{file.path}:{number}: a line of more than {_MAX_RECORD_BYTES >> 20} MiB; split it")
        text = decoder.decode(block.removeprefix(_BYTE_ORDER_MARK) if number == 1 else block, file.path, number)
        for line in text[:-1].split("\n"):
            yield number, line.removesuffix("\r")
            number += 1


def tab_records(lines: Iterator[tuple[int, str]], _: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbered rows of tab-separated text, which has no quoting."""
    return ((number, line.split("\t")) for number, line in _all_lines(lines) if line)


def csv_records(lines: Iterator[tuple[int, str]], path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the numbered rows of CSV, separated by what separates the names of the columns."""
    csv.field_size_limit(_MAX_RECORD_BYTES)  # for the whole process, but nobody counts on the 128 kB that it has else
    texts: Iterator[str] = (f"{line}\n" for _, line in _all_lines(lines))
    first, num_before, delimiter = next(texts, ""), 0, ""
    if found := _SEPARATOR_LINE.fullmatch(first.strip()):
        first, num_before, delimiter = next(texts, ""), 1, found[1]
    header = [first]
    for line in islice(texts, _MAX_HEADER_LINES):
        if "".join(header).count('"') % 2 == 0:
            texts = chain([line], texts)
            break
        header.append(line)
    names = re.sub(r'"[^"]*"', "", "".join(header))  # a separator inside a name separates nothing
    reader = csv.reader(chain(header, texts), delimiter=delimiter or max(_DELIMITERS, key=names.count), strict=True)
    while True:
        number = num_before + reader.line_num + 1
        try:
            record = next(reader, None)
        except csv.Error as error:
            raise UserError(f"{path}:{number}: not CSV: {error}; inside quotes a quote is written twice") from error
        if record is None:
            return
        if record:
            yield number, record


def _all_lines(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield numbered lines; a carriage return ends them too where the first has one inside."""
    ends_alone = False
    for number, line in lines:
        ends_alone = "\r" in line if number == 1 else ends_alone
        yield from enumerate(line.split("\r"), number) if ends_alone else [(number, line)]


def header_of(records: Iterator[tuple[int, list[str]]], path: Path) -> list[str]:
    """Return the names of a table's columns: its first row, without the empty columns that spreadsheets add."""
    header = [_LINE_BREAKS.sub(" ", name) for name in next(records, (1, []))[1]]
    while header and not header[-1].strip():
        header.pop()
    if not any(header):
        raise UserError(f"{path} has no first line that names its columns")
    check_names(header, f"{path}:1")
    return header


def check_names(names: Sequence[str], where: str) -> None:
    """Refuse columns of which several have the same name."""
    name, count = Counter(names).most_common(1)[0] if names else ("", 0)
    if count > 1:
        raise UserError(f"{where}: {count} columns are named {name[:40]!r}; give each a name of its own")


def fitted(cells: list[str], header: Sequence[str], where: str) -> list[str]:
    """Return a row's cells, as many as there are columns: empty ones after the last column go."""
    if len(cells) != len(header) and (len(cells) < len(header) or any(map(str.strip, cells[len(header) :]))):
        columns = shown_names(header)
        raise UserError(f"{where}: {len(cells)} columns where {len(header)} are expected: {columns}")
    return cells[: len(header)]


def parquet_documents(file: PackedFile, text_field: str, decoder: Utf8Decoder) -> Iterator[list[str]]:
    """Yield each row's text as a list of paragraphs; a row without text is left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    num_rows, bytes_out, size = 0, 0, file.path.stat().st_size
    try:
        table = pq.ParquetFile(file.path, buffer_size=PIECE_BYTES)
        _check_column(table, text_field, file.path)
        for batch in table.iter_batches(_ROWS_AT_ONCE, columns=[text_field], use_threads=False):
            bytes_out += batch.nbytes
            check_growth(file.path, size, bytes_out)
            for row, text in enumerate(_column_bytes(batch.column(0)), start=num_rows + 1):
                if text is not None:
                    yield paragraphs(decoder.decode(text, file.path, row))
            num_rows += batch.num_rows
            file.bytes_read = size * num_rows // table.metadata.num_rows
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise CorruptFile(f"{file.path} is not an intact Parquet file: {reason}") from error


def _check_column(table: Any, text_field: str, path: Path) -> None:
    """Make sure that the text field is there, holds strings, and says no absurd size before it is unpacked."""
    import pyarrow as pa

    schema = table.schema_arrow
    if text_field not in schema.names:
        _raise_missing_field(str(path), text_field, schema.names)
    kind = schema.field(text_field).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise UserError(f"{path}: column {text_field!r} is of type {kind}, not string")
    # Not the column's own size: asking pyarrow for a column of damaged metadata aborts the process.
    sizes = [table.metadata.row_group(index).total_byte_size for index in range(table.num_row_groups)]
    check_growth(path, path.stat().st_size, sum(sizes))


def _column_bytes(column: Any) -> list[bytes | None]:
    """Return the values as bytes: a Parquet string need not be UTF-8, and pyarrow would stop at one that is not."""
    import pyarrow as pa

    plain = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
    values: list[bytes | None] = plain.cast(pa.large_binary()).to_pylist()
    return values
