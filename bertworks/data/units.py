"""A corpus cut into units of work: whole documents, about sixteen million bytes, the same cuts every time.

A unit becomes a shard by a function of its text alone, so it does not matter which process, or which machine, does it.
A unit ends at the first document end that fills it, so the cuts depend on the text and not on how it arrives. Only a
document that is larger than two units is cut, at a line end: memory stays bounded whatever the corpus is.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

UNIT_BYTES = 1 << 24
_MAX_UNITS = 2  # what a document may fill before it is cut: a process holds its text some five times over
_LINE_END = b"\n"
_DOCUMENT_END = b"\n\n"


class Unit(NamedTuple):
    """Some documents in UTF-8: lines, an empty one after each document."""

    number: int
    text: bytes
    num_duplicates: int  # documents that stood earlier in the corpus and were left out

    def documents(self) -> list[bytes]:
        """Return the documents, each as its lines joined by newlines."""
        return [document for document in self.text.rstrip(_LINE_END).split(_DOCUMENT_END) if document]

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
    text = bytearray()
    for block in blocks:
        text += block.encode("utf-8")
        while end := _unit_end(text):
            yield bytes(text[:end])
            del text[:end]
    if text:
        yield bytes(text)


def _unit_end(text: bytearray) -> int:
    """Return where the first unit of the text ends, or 0 if that depends on what is still to come."""
    most = _MAX_UNITS * UNIT_BYTES
    # One more than `most`: a document end that stands across the limit must not be taken for a line end.
    end = text.find(_DOCUMENT_END, max(0, UNIT_BYTES - len(_DOCUMENT_END)), most + 1)
    if end >= 0:
        return end + len(_DOCUMENT_END)
    if len(text) <= most:
        return 0
    end = text.rfind(_DOCUMENT_END, 0, most)
    if end >= 0:
        return end + len(_DOCUMENT_END)
    end = text.rfind(_LINE_END, 0, most)
    assert end >= 0, "a corpus has no line of that length"
    return end + len(_LINE_END)


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
