"""From the bytes of files to lines of text: decompressed, checked to be UTF-8, and of bounded length.

- A line ends at "\n" and nowhere else; a "\r" before it is removed. Only if the first 64 KiB contain "\r" and no "\n",
  as on old Macs, "\r" ends lines. A byte-order mark at the start is removed.
- Bytes that are not UTF-8 become U+FFFD and are counted; in strict mode they are an error. No byte of a longer UTF-8
  sequence is a newline, so each block of whole lines can be decoded separately.
- A line of a corpus has at most 2^20 characters: longer ones are cut, at white space if there is any, so that memory is
  bounded for every file.
- gzip, bzip2, xz and zstandard are decompressed while they are read. Each may consist of several streams in a row, as
  written by Wikipedia's multistream dumps and parallel compressors. A damaged file is a `CorruptFile`, never a shorter
  text.
- A hostile file does little harm: output comes in pieces of at most 1 MiB. A stream that needs more than 256 MiB of
  working memory is refused. So is a file that decompresses to more than 64 MiB and more than a hundred times its size
  (prose shrinks three- to fivefold).
"""

import bz2
import contextlib
import importlib.util
import lzma
import re
import sys
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

from bertworks.errors import CorruptFile, UserError

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
MAX_LINE_LENGTH = 1 << 20
MAX_RECORD_BYTES = 64 << 20  # of a line that cannot be cut
_SNIFF_BYTES = 1 << 16
_MIN_BAD_CHARACTERS = 16
_MAX_BAD_SHARE = 0.3
_MAX_BYTES_PER_CHARACTER = 4
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
        self.num_replaced += sum(part.decode(errors="ignore").encode() != part for part in data.split(b"\n"))
        return data.decode(errors="replace")


def iconv(encoding: str) -> str:
    """Return the command that converts a file to UTF-8."""
    return f"iconv -f {encoding} -t UTF-8 IN > OUT"


def advice_on(data: bytes) -> str:
    """Return advice on text that is not UTF-8: fix it if most of it is, else convert it from the likely encoding."""
    text = data.decode(errors="replace")
    num_bad = text.count("\ufffd")
    if sum(not char.isascii() for char in text) > 2 * num_bad:
        return "most of the file is, so fix the bytes that are not"
    korean = data.decode("euc-kr", errors="replace")  # a subset of cp949 that Western text does not look like
    encoding = "cp949" if len(_HANGUL.findall(korean)) > korean.count("\ufffd") else "latin1"
    return f"convert the file, perhaps with `{iconv(encoding)}`"


def decoded(data: bytes, path: Path, line: int) -> str:
    """Decode bytes of whole lines, the first of which is the given line of the file; bad bytes are an error."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line += data.count(b"\n", 0, error.start)
        byte = f"0x{data[error.start]:02x}"
        raise UserError(f"{path}:{line}: byte {byte} is not UTF-8; {advice_on(data)}") from error


def checked_text(pieces: Iterator[bytes], path: Path) -> Iterator[bytes]:
    """Pass pieces on after checking that the first 64 KiB are text.

    A byte-order mark is removed, and the line ends of old Macs become "\\n".
    """
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
    is_old_macs = b"\r" in start[:-1] and b"\n" not in start  # after the last byte there may be a "\n"
    whole = chain([head.removeprefix(BYTE_ORDER_MARK)], pieces)
    yield from (piece.replace(b"\r", b"\n") for piece in whole) if is_old_macs else whole


def line_blocks(pieces: Iterator[bytes], max_line_bytes: int) -> Iterator[bytes]:
    """Regroup bytes so that each block ends with a newline; one is added at the end of the file if it is missing.

    A line of max_line_bytes or more comes in several blocks, cut between characters; only the last of them ends with a
    newline.
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
    """Return the last position in data at which decoding can start again."""
    for back in range(1, min(_MAX_BYTES_PER_CHARACTER, len(data)) + 1):
        if data[-back] & 0b1100_0000 != 0b1000_0000:
            return len(data) - back if data[-back] >= 0b1100_0000 else len(data)
    return len(data)  # the fourth continuation byte in a row belongs to no character


def numbered_lines(
    pieces: Iterator[bytes], path: Path, decode: Callable[[bytes, Path, int], str]
) -> Iterator[tuple[int, str]]:
    """Yield (number from 1, line) of text whose lines must not be cut; `decode` takes bytes, path and line."""
    number = 1
    for block in line_blocks(checked_text(pieces, path), MAX_RECORD_BYTES):
        if not block.endswith(b"\n"):
            raise UserError(f"{path}:{number}: a line of more than {MAX_RECORD_BYTES >> 20} MiB; split it")
        for line in decode(block, path, number)[:-1].split("\n"):
            yield number, line.removesuffix("\r")
            number += 1


def text_lines(pieces: Iterator[bytes], path: Path, decoder: Utf8Decoder) -> Iterator[str]:
    """Yield blocks of whole lines; each line ends with a newline and none is too long."""
    tail, inside_long_line, line = "", False, 1
    for block in line_blocks(checked_text(pieces, path), MAX_LINE_LENGTH):
        text = decoder.decode(block, path, line)
        line += block.count(b"\n")
        text = tail + text if tail else text
        if tail or b"\r" in block:
            text = text.replace("\r\n", "\n")
        if not text.endswith("\n"):
            segments, tail = cut_line(text, is_whole=False)
            inside_long_line = inside_long_line or bool(segments)
            yield "".join(f"{segment}\n" for segment in segments)
            continue
        tail = ""
        if inside_long_line:
            first, _, text = text.partition("\n")
            yield "".join(f"{segment}\n" for segment in cut_line(first)[0])
            inside_long_line = False
        if len(text) > MAX_LINE_LENGTH:
            lines = text[:-1].split("\n")
            if max(map(len, lines)) > MAX_LINE_LENGTH:
                # A blank line stays blank: it ends a document.
                text = "".join(f"{segment}\n" for line in lines for segment in cut_line(line)[0] or [""])
        yield text


def paragraphs(text: str) -> list[str]:
    """Return the lines of a document that are not blank; lines that are too long are cut."""
    lines = [line for line in text.replace("\r\n", "\n").removesuffix("\r").split("\n") if line and not line.isspace()]
    if len(text) <= MAX_LINE_LENGTH:
        return lines
    return [segment for line in lines for segment in cut_line(line)[0]]


def cut_line(line: str, *, is_whole: bool = True) -> tuple[list[str], str]:
    """Cut a line into segments that are not blank and at most MAX_LINE_LENGTH characters.

    Returns the segments and, if the end of the line is still to come, the rest, which belongs to the next segment.
    """
    segments = []
    # An unfinished line may still turn out to end with "\r\n", whose "\r" does not count.
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


STANDARD_INPUT = Path("-")
PIECE_BYTES = 1 << 20
MAX_GROWTH = 100
GROWTH_FREE_BYTES = 64 << 20
MAX_MEMORY_BYTES = 256 << 20
_PACKED_READ_BYTES = 1 << 16
# Four bytes of zstandard can expand to 128 KiB, and its decoder has no output limit: steps of 256 bytes bound a step's
# output at 8 MiB. Plain text decompresses at 580 MB/s in such steps, and at 870 MB/s in steps of 4 KiB.
_ZSTD_STEP_BYTES = 1 << 8


# The first bytes of compressed data, and the file endings that go with them. Text begins with none of these.
_SIGNATURES = (
    (b"\x1f\x8b\x08", ".gz"),
    (b"BZh", ".bz2"),
    (b"\xfd7zXZ\0", ".xz"),
    (b"\x28\xb5\x2f\xfd", ".zst"),
)
COMPRESSIONS = tuple(ending for _, ending in _SIGNATURES)
_BZIP2_BLOCKS = (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")  # of data, or the end of an empty stream
_SIGNATURE_BYTES = 10


class _GzipDecoder:
    """Decompresses a gzip member; has the interface of the decoders of bz2 and lzma."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


class _ZstdDecoder:
    """Decompresses a zstandard frame; has the same interface."""

    def __init__(self) -> None:
        import zstandard

        self._error = zstandard.ZstdError
        self._inner = zstandard.ZstdDecompressor(max_window_size=MAX_MEMORY_BYTES).decompressobj()
        self._waiting = b""

    @property
    def eof(self) -> bool:
        return bool(self._inner.eof)

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return bytes(self._inner.unused_data) + self._waiting

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        waiting, position, size = self._waiting + data, 0, 0
        output: list[bytes] = []
        try:
            while position < len(waiting) and size < max_length and not self.eof:
                output.append(self._inner.decompress(waiting[position : position + _ZSTD_STEP_BYTES]))
                position += _ZSTD_STEP_BYTES
                size += len(output[-1])
        except self._error as error:
            raise OSError(str(error)) from error
        self._waiting = waiting[position:]
        return b"".join(output)


_DECODERS: dict[str, Callable[[], Any]] = {
    ".gz": _GzipDecoder,
    ".bz2": bz2.BZ2Decompressor,
    ".xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_MEMORY_BYTES),
    ".zst": _ZstdDecoder,
}


class PackedFile:
    """An open file that yields its decompressed bytes in pieces; `bytes_read` counts the bytes read from the disk.

    The compression is found from the first bytes, else from the name.
    """

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.bytes_read = 0
        self._stream = stream
        self._start = b""  # bytes that were read but not used yet
        self._start = self._read(_SIGNATURE_BYTES)
        found = next((ending for signature, ending in _SIGNATURES if self._start.startswith(signature)), "")
        if found == ".bz2" and not self._start[4:].startswith(_BZIP2_BLOCKS):
            found = ""
        self.compression = found or ending_of_packing(path.name)
        if self.compression == ".zst":
            check_installed(path, "zstandard")
        self._head: list[bytes] = []
        self._rest = self._unpacked() if self.compression else iter(lambda: self._read(PIECE_BYTES), b"")

    def head(self) -> bytes:
        """Return about the first mebibyte of the decompressed bytes, or all of them; `pieces` yields them again."""
        while sum(map(len, self._head)) < PIECE_BYTES and (piece := next(self._rest, b"")):
            self._head.append(piece)
        return b"".join(self._head)

    def pieces(self) -> Iterator[bytes]:
        """Yield the decompressed bytes up to the end of the file."""
        while self._head:
            yield self._head.pop(0)
        yield from self._rest

    def _read(self, num_bytes: int) -> bytes:
        """Read from the disk, starting with the bytes that the constructor has already read."""
        start, self._start = self._start[:num_bytes], self._start[num_bytes:]
        if len(start) == num_bytes:
            return start
        try:
            data = self._stream.read(num_bytes - len(start))
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}") from error
        self.bytes_read += len(data)
        return start + data

    def _unpacked(self) -> Iterator[bytes]:
        new_decoder = _DECODERS[self.compression]
        decoder, waiting, bytes_out = new_decoder(), self._read(_PACKED_READ_BYTES), 0
        if not waiting:
            raise CorruptFile(f"{self.path} is empty; a {self.compression} file never is")
        while waiting or not decoder.needs_input:
            try:
                piece = decoder.decompress(waiting, PIECE_BYTES)
            except (zlib.error, lzma.LZMAError, OSError) as error:
                if "memory" in str(error).lower():
                    limit = f"{MAX_MEMORY_BYTES >> 20} MiB"
                    raise UserError(f"{self.path} needs more than {limit} of memory; unpack it first") from error
                raise CorruptFile(f"{self.path} is not an intact {self.compression} file: {error}") from error
            bytes_out += len(piece)
            check_growth(self.path, self.bytes_read, bytes_out)
            yield from (piece[start : start + PIECE_BYTES] for start in range(0, len(piece), PIECE_BYTES))
            waiting = b""
            if decoder.eof:
                waiting, decoder = decoder.unused_data, new_decoder()
                # Compressors may pad streams with zero bytes.
                while not (waiting := waiting.lstrip(b"\0")) and (more := self._read(_PACKED_READ_BYTES)):
                    waiting = more
            elif decoder.needs_input and not (waiting := self._read(_PACKED_READ_BYTES)):
                raise CorruptFile(f"{self.path} ends before its last {self.compression} stream does: it is cut off")


def ending_of_packing(name: str) -> str:
    """Return the ending of a file's name that means a compression, or ""."""
    return next((ending for ending in COMPRESSIONS if name.lower().endswith(ending)), "")


def check_installed(path: Path, module: str) -> None:
    """Raise UserError if the package that reads a file is missing."""
    if importlib.util.find_spec(module) is None:
        raise UserError(f'reading {path} needs {module}: pip install "bertworks[data]"')


@contextlib.contextmanager
def open_packed(path: Path) -> Iterator[PackedFile]:
    """Open a file, or standard input for `-`, to read it in decompressed pieces."""
    if path == STANDARD_INPUT:
        yield PackedFile(path, sys.stdin.buffer)
        return
    try:
        file = path.open("rb", buffering=0)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    with file:
        yield PackedFile(path, file)


def check_growth(path: Path, bytes_in: int, bytes_out: int) -> None:
    """Raise UserError if a file decompresses to so much more than its own size that it looks like a bomb."""
    if bytes_out > GROWTH_FREE_BYTES and bytes_out > MAX_GROWTH * bytes_in:
        raise UserError(
            f"{path} unpacks to more than {MAX_GROWTH} times its size ({bytes_in:,} bytes gave {bytes_out:,} so far), "
            "which is not normal for text; if you trust it, unpack it first"
        )
