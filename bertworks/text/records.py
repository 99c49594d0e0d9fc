"""Documents out of records: JSON lines and Parquet.

Each record is one document, the text of one field; it may hold newlines, and its blank lines end nothing. A record
that cannot be read is an error with its place, since leaving it out quietly would hide that a corpus is not what one
thinks.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from bertworks.errors import CorruptFile, UserError
from bertworks.json_files import parse_json, without_surrogates
from bertworks.text.compressed import PIECE_BYTES, PackedFile, check_growth
from bertworks.text.utf8 import Utf8Decoder, checked_text, line_blocks, paragraphs

_MAX_RECORD_BYTES = 64 << 20
_MAX_KEYS_SHOWN = 12
# Rows of books can be megabytes each, and a dictionary page can repeat one of them for nothing.
_ROWS_AT_ONCE = 128
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


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
                yield paragraphs(_json_text(record, file.path, line, text_field, decoder))
            line += 1


def _json_text(record: bytes, path: Path, line: int, text_field: str, decoder: Utf8Decoder) -> str:
    written = decoder.decode(record, path, line)
    value = parse_json(written, str(path), line=line)
    if not isinstance(value, dict):
        raise UserError(f"{path}:{line}: a JSON {type(value).__name__} where a record {{...}} is expected")
    if text_field not in value:
        _raise_missing_field(f"{path}:{line}", text_field, list(value))
    text = value[text_field]
    if not isinstance(text, str):
        raise UserError(f"{path}:{line}: field {text_field!r} is a {type(text).__name__}, not a string")
    if b"\\u" in record and "\ufffd" in text and without_surrogates(written) != written:
        decoder.num_replaced += 1
    return text


def _raise_missing_field(where: str, text_field: str, fields: list[str]) -> NoReturn:
    shown = [repr(field[:40]) for field in fields[:_MAX_KEYS_SHOWN]] + ["..."] * (len(fields) > _MAX_KEYS_SHOWN)
    raise UserError(f"{where}: no field {text_field!r} to take the text from; there are: {', '.join(shown) or 'none'}")


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
