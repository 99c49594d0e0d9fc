"""The lines of a labelled file, numbered, so that every message can say where.

A line ends as in a corpus (`text/utf8.py`); a byte order mark at the start goes. Unlike in a corpus, where one bad
byte among millions is replaced and counted, bytes that are not UTF-8 end the reading: a label may hang on them.
"""

from collections.abc import Iterator
from pathlib import Path

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.text.compressed import STANDARD_INPUT, open_packed
from bertworks.text.sources import find_files, kind_of
from bertworks.text.utf8 import advice_on, checked_text, line_blocks

MAX_LINE_BYTES = 64 << 20
# Of tables that people have and that are not read here.
_OTHER_ENDINGS = (".xlsx", ".xls", ".xlsm", ".ods", ".numbers", ".arrow", ".feather", ".pkl", ".sqlite", ".db")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def numbered_lines(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of a file, which may be packed with .gz, .bz2, .xz or .zst."""
    number = 1
    with open_packed(checked_file(path)) as file:
        kind_of(file)  # which refuses what is plainly not text
        for block in line_blocks(checked_text(file.pieces(), path), MAX_LINE_BYTES):
            if not block.endswith(b"\n"):
                raise UserError(f"{path}:{number}: a line of more than {MAX_LINE_BYTES >> 20} MiB; split it")
            text = decoded(block.removeprefix(_BYTE_ORDER_MARK) if number == 1 else block, path, number)
            for line in text[:-1].split("\n"):
                yield number, line.removesuffix("\r")
                number += 1


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
