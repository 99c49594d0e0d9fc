"""A corpus cut into units of work: whole documents, about sixteen million bytes, the same cuts every time.

A unit becomes a shard by a function of its text alone, so it does not matter which process, or which machine, does it.
A document that fills several units by itself is cut at a line end: memory stays bounded whatever the corpus is.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNIT_BYTES = 1 << 24
_MAX_UNIT_BYTES = 4 * UNIT_BYTES
_DOCUMENT_END = b"\n\n"


class Unit(NamedTuple):
    """Some documents in UTF-8: lines, an empty one after each document."""

    number: int
    text: bytes
    num_duplicates: int  # documents that stood earlier in the corpus and were left out

    def documents(self) -> list[bytes]:
        """Return the documents, each as its lines joined by newlines."""
        return [document for document in self.text.removesuffix(_DOCUMENT_END).split(_DOCUMENT_END) if document]

    def digest(self) -> str:
        """Return a checksum of the text, by which an interrupted run knows that the corpus is still the same."""
        return hashlib.blake2b(self.text, digest_size=16).hexdigest()


def cut_units(blocks: Iterable[str], *, drop_duplicates: bool = False) -> Iterator[Unit]:
    """Cut blocks of lines, as `Corpus.blocks` gives them, into units."""
    seen: set[bytes] = set()
    for number, text in enumerate(_cut(blocks)):
        unit = Unit(number, text, 0)
        yield _without_duplicates(unit, seen) if drop_duplicates else unit


def _cut(blocks: Iterable[str]) -> Iterator[bytes]:
    gathered: list[bytes] = []
    size = 0
    for block in blocks:
        gathered.append(block.encode("utf-8"))
        size += len(gathered[-1])
        if size < UNIT_BYTES:
            continue
        text = b"".join(gathered)
        end = text.rfind(_DOCUMENT_END)
        if end < 0 and size < _MAX_UNIT_BYTES:
            continue
        end = end + len(_DOCUMENT_END) if end >= 0 else len(text)
        yield text[:end]
        gathered = [text[end:]]
        size = len(gathered[0])
    if size:
        yield b"".join(gathered)


def _without_duplicates(unit: Unit, seen: set[bytes]) -> Unit:
    """Keep the first of documents that are the same to the letter; 16 bytes of each are remembered."""
    kept = []
    documents = unit.documents()
    for document in documents:
        digest = hashlib.blake2b(document, digest_size=16).digest()
        if digest not in seen:
            seen.add(digest)
            kept.append(document + _DOCUMENT_END)
    return Unit(unit.number, b"".join(kept), len(documents) - len(kept))
