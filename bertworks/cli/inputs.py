"""Texts that a person gives: as arguments, on standard input or in a file, a text on each line; all of it UTF-8."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from bertworks.errors import UserError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def lines_of(texts: list[str], *, refuse_blank: bool = False) -> Iterator[str]:
    """Give the texts of a command, or the lines of standard input, at least one, where they are `-`.

    With `refuse_blank` a text that is typed alone must have something in it.
    """
    if texts == ["-"]:
        return _decoded(sys.stdin.buffer, "standard input")
    if "-" in texts:
        raise UserError("- reads all texts from standard input; give it alone")
    if refuse_blank and len(texts) == 1 and not texts[0].strip():
        raise UserError("the text is empty; give one with a word in it")
    return map(check_utf8, texts)


def file_lines(path: Path) -> list[str]:
    """Return the lines of a file, at least one."""
    try:
        with open(path, "rb") as stream:
            return list(_decoded(stream, str(path)))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def file_text(path: Path) -> str:
    """Return all of a file, with its line breaks as they are, so that places in it are places in the file."""
    try:
        return path.read_bytes().removeprefix(_BYTE_ORDER_MARK).decode("utf-8")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, byte {error.start:,}: not UTF-8 ({error.reason})") from error


def _decoded(stream: IO[bytes], what: str) -> Iterator[str]:
    """Give the lines of a stream, which end at line breaks and at no other sign."""
    number = 0
    for number, line in enumerate(stream, 1):
        start = _BYTE_ORDER_MARK if number == 1 else b""
        try:
            yield line.removeprefix(start).removesuffix(b"\n").removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"{what}, line {number}: not UTF-8 ({error.reason})") from error
    if number == 0:
        raise UserError(f"no text in {what}; it has one on each line")


def check_utf8(text: str) -> str:
    """Refuse an argument that is not UTF-8: Python passes it on, and fails when it is to be printed."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"the text {ascii(text)[:60]} is not UTF-8") from None
    return text
