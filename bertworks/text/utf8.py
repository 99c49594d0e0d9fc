"""Bytes into lines of text.

A line ends at "\\n" and nowhere else; a "\\r" before it goes. Only where the first 64 KiB have "\\r" and no "\\n", as
on old Macs, "\\r" ends lines. No byte of a longer UTF-8 sequence is a newline, so each block of whole lines decodes on
its own. A line is at most 2^20 characters: longer ones are cut, at white space where there is any, so that memory is
bounded whatever the file. Bytes that are not UTF-8 become U+FFFD and are counted, or stop the reading in strict mode.
"""

import re
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from bertworks.errors import UserError

MAX_LINE_LENGTH = 1 << 20
_SNIFF_BYTES = 1 << 16
_MIN_BAD_CHARACTERS = 16
_MAX_BAD_SHARE = 0.3
_MAX_BYTES_PER_CHARACTER = 4
_BYTE_ORDER_MARK = "\ufeff"
_HANGUL = re.compile("[가-힣]")


class Utf8Decoder:
    """Decodes UTF-8 and counts the lines in which something had to be replaced."""

    def __init__(self, *, strict: bool = False) -> None:
        self.num_replaced = 0
        self._strict = strict

    def decode(self, data: bytes, path: Path, line: int) -> str:
        """Decode bytes of whole lines, the first of which is the given line of the file."""
        try:
            return data.decode()
        except UnicodeDecodeError as error:
            if self._strict:
                line += data.count(b"\n", 0, error.start)
                raise UserError(
                    f"{path}:{line}: byte 0x{data[error.start]:02x} is not UTF-8; convert the file or read it "
                    "without strict mode, which replaces such bytes"
                ) from error
        self.num_replaced += sum(not _is_utf8(part) for part in data.split(b"\n"))
        return data.decode(errors="replace")


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def iconv(encoding: str) -> str:
    """Return the command that makes UTF-8 of a file."""
    return f"iconv -f {encoding} -t UTF-8 IN > OUT"


def advice_on(data: bytes) -> str:
    """Say what to do with text that is not UTF-8: mend it where most of it is, else convert it as is likeliest."""
    text = data.decode(errors="replace")
    num_bad = text.count("\ufffd")
    if sum(not char.isascii() for char in text) > 2 * num_bad:
        return "mend what is not, for most of it is"
    korean = data.decode("euc-kr", errors="replace")  # the part of cp949 that no Western text is taken for
    encoding = "cp949" if len(_HANGUL.findall(korean)) > korean.count("\ufffd") else "latin1"
    return f"convert the file, perhaps with `{iconv(encoding)}`"


def checked_text(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Pass pieces on after making sure by the first 64 KiB that they are text; an old Mac's line ends become ours."""
    head = b""
    for piece in pieces:
        head += piece
        if len(head) >= _SNIFF_BYTES:
            break
    start = head[:_SNIFF_BYTES]
    if start.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError(f"{path} is UTF-16; convert it to UTF-8 first (`{iconv('UTF-16')}`)")
    if b"\0" in start:
        raise UserError(
            f"{path} is not text: it has NUL bytes; it must be UTF-8 text (convert UTF-16 with `{iconv('UTF-16')}`)"
        )
    text = start.decode(errors="replace")
    num_bad = text.count("\ufffd") - start.count("\ufffd".encode())
    if num_bad >= _MIN_BAD_CHARACTERS and num_bad > _MAX_BAD_SHARE * len(text):
        raise UserError(
            f"{path} is not UTF-8 text: {num_bad:,} of its first {len(text):,} characters are not; {advice_on(start)}"
        )
    is_old_macs = b"\r" in start[:-1] and b"\n" not in start  # behind the last byte there may be a "\n"
    whole = chain([head], pieces)
    yield from (piece.replace(b"\r", b"\n") for piece in whole) if is_old_macs else whole


def line_blocks(pieces: Iterator[bytes], max_line_bytes: int) -> Iterator[bytes]:
    """Regroup bytes so that each block ends with a newline, be it added at the end of the file.

    A line of max_line_bytes or more comes in several blocks, cut between characters: all but the last of them have no
    newline at their end.
    """
    waiting: list[bytes] = []
    num_waiting, ended = 0, True
    for piece in pieces:
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join((*waiting, piece[:cut]))
            waiting, num_waiting, ended = [piece[cut:]], len(piece) - cut, True
        else:
            waiting.append(piece)
            num_waiting += len(piece)
        if num_waiting >= max_line_bytes:
            line = b"".join(waiting)
            cut = _character_boundary(line)
            yield line[:cut]
            waiting, num_waiting, ended = [line[cut:]], len(line) - cut, False
    if num_waiting or not ended:
        yield b"".join((*waiting, b"\n"))


def _character_boundary(data: bytes) -> int:
    """Return the last place in data where decoding may start anew."""
    for back in range(1, min(_MAX_BYTES_PER_CHARACTER, len(data)) + 1):
        if data[-back] & 0b1100_0000 != 0b1000_0000:
            return len(data) - back if data[-back] >= 0b1100_0000 else len(data)
    return len(data)  # the fourth continuation byte in a row belongs to no character


def text_lines(pieces: Iterator[bytes], path: Path, decoder: Utf8Decoder) -> Iterator[str]:
    """Yield blocks of whole lines, each line ended by a newline and none too long."""
    tail, inside_long_line, at_start, line = "", False, True, 1
    for block in line_blocks(checked_text(pieces, path), MAX_LINE_LENGTH):
        text = decoder.decode(block, path, line)
        if at_start:
            text, at_start = text.removeprefix(_BYTE_ORDER_MARK), not text
        line += block.count(b"\n")
        text = tail + text if tail else text
        if tail or b"\r" in block:
            text = text.replace("\r\n", "\n")
        if not text.endswith("\n"):
            segments, tail = cut_line(text, is_whole=False)
            inside_long_line = inside_long_line or bool(segments)
            yield _joined(segments)
            continue
        tail = ""
        if inside_long_line:
            first, _, text = text.partition("\n")
            yield _joined(cut_line(first)[0])
            inside_long_line = False
        yield text if len(text) <= MAX_LINE_LENGTH else _with_lines_cut(text)


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _with_lines_cut(text: str) -> str:
    lines = text.split("\n")
    lines.pop()
    if max(map(len, lines)) <= MAX_LINE_LENGTH:
        return text
    # A blank line stays one: it ends a document.
    return _joined([segment for line in lines for segment in cut_line(line)[0] or [""]])


def paragraphs(text: str) -> list[str]:
    """Return the lines of one document's text that are not blank, none too long."""
    lines = [line for line in text.replace("\r\n", "\n").removesuffix("\r").split("\n") if line and not line.isspace()]
    if len(text) <= MAX_LINE_LENGTH:
        return lines
    return [segment for line in lines for segment in cut_line(line)[0]]


def cut_line(line: str, *, is_whole: bool = True) -> tuple[list[str], str]:
    """Cut a line into segments that are not blank and at most MAX_LINE_LENGTH characters.

    Returns the segments and, for a line whose end is still to come, the rest that may grow into the next one.
    """
    segments = []
    # An unfinished line may yet turn out to end with "\r\n", whose "\r" does not count.
    while len(line) > MAX_LINE_LENGTH + (not is_whole):
        head = line[:MAX_LINE_LENGTH]
        words = head.rsplit(None, 1)
        if len(words) == 2:
            segments.append(words[0])
            line = line[len(head.rstrip()) - len(words[1]) :]
        elif words and not head[0].isspace():
            segments.append(head)
            line = line[MAX_LINE_LENGTH:]
        else:
            line = line[len(head) - len(head.lstrip()) :]
    if not is_whole:
        return segments, line
    return (segments, "") if not line or line.isspace() else ([*segments, line], "")
