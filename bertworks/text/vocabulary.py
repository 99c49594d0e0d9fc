"""A vocabulary file: one piece a line, its id the number of the line, read as google-research/bert reads it.

White space around a piece is stripped, so CRLF files work; a byte-order mark is removed. A blank line keeps its id and
matches nothing (the original Chinese vocabulary has one); blank lines at the end of the file are not counted. What
would give wrong ids without a word is refused with its line number: a piece that stands twice, a missing [UNK], bytes
that are not UTF-8, and lines so long that the file is no vocabulary.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from bertworks.errors import UserError

PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_TOKENS = (PAD, UNK, CLS, SEP, MASK)
CONTINUATION = "##"

_MAX_PIECE_LENGTH = 1_000
_MAX_FILE_BYTES = 1 << 28


def read_vocabulary(path: str | os.PathLike[str], *, unknown: str = UNK) -> list[str]:
    """Return the pieces of a vocabulary file in the order of their ids, or raise UserError with the faulty line."""
    path = Path(path)
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes: too large for a vocabulary")
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the vocabulary {path}: {reason}") from error
    try:
        pieces = [line.strip() for line in content.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        number = error.object.count(b"\n", 0, error.start) + 1
        raise UserError(f"{path}:{number}: not UTF-8 ({error.reason}); a vocabulary is plain text") from error
    while pieces and not pieces[-1]:
        pieces.pop()
    check_pieces(pieces, str(path), unknown=unknown)
    return pieces


def check_pieces(pieces: Sequence[str], where: str, *, unknown: str = UNK) -> None:
    """Raise UserError unless every piece is a short text that stands once, and the unknown one is among them."""
    if not pieces:
        raise UserError(f"{where} is empty; a vocabulary has one piece a line")
    if max(map(len, pieces)) > _MAX_PIECE_LENGTH or any("\0" in piece for piece in pieces):
        for number, piece in enumerate(pieces, start=1):
            if len(piece) > _MAX_PIECE_LENGTH or "\0" in piece:
                what = "a NUL character" if "\0" in piece else f"{len(piece):,} characters"
                raise UserError(f"{where}:{number}: a line with {what}; a vocabulary has one short piece a line")
    if len(set(pieces)) < len(pieces):
        first_line: dict[str, int] = {}
        for number, piece in enumerate(pieces, start=1):
            if piece and first_line.setdefault(piece, number) != number:
                raise UserError(f"{where}:{number}: {piece!r} is on line {first_line[piece]} already; remove one")
    if unknown not in pieces:
        raise UserError(f"{where} has no {unknown} line; words with unknown characters need it")


def write_vocabulary(path: str | os.PathLike[str], pieces: Iterable[str]) -> None:
    """Write pieces one a line; the file appears whole or not at all."""
    from bertworks.files import atomic_write

    with atomic_write(path, "wb") as stream:
        for number, piece in enumerate(pieces):
            try:
                if piece != piece.strip() or "\n" in piece or "\0" in piece:
                    raise ValueError("it has white space or NUL in a place where reading takes it for something else")
                stream.write(piece.encode() + b"\n")
            except ValueError as error:
                raise UserError(f"piece {number}, {piece!r}, cannot stand in a vocabulary file: {error}") from error
