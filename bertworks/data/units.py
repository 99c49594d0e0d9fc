"""A corpus cut into units of work: whole documents, about sixteen million bytes, the same cuts every time.

A unit becomes a shard by a function of its text alone, so it does not matter which process, or which machine, does it.
A unit ends at the first document end that fills it, so the cuts depend on the text and not on how it arrives. Only a
document that is larger than two units is cut, at a line end: memory stays bounded whatever the corpus is.
"""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bertworks.data.duplicates import DIGEST_BYTES, SeenDigests

UNIT_BYTES = 1 << 24
_MAX_UNITS = 2  # what a document may fill before it is cut: a process holds its text some five times over
_LINE_END = b"\n"
_DOCUMENT_END = b"\n\n"


class Unit(NamedTuple):
    """Some documents in UTF-8: lines, an empty one after each document."""

    number: int
    text: bytes
    num_duplicates: int  # documents that stood earlier in the corpus and were left out
    # Where the first document goes on with one that was cut: the key of that one's first piece, else nothing.
    goes_on_from: bytes = b""

    def documents(self) -> list[bytes]:
        """Return the documents, each as its lines joined by newlines."""
        return [document for document in self.text.rstrip(_LINE_END).split(_DOCUMENT_END) if document]

    def digest(self) -> str:
        """Return a checksum of the text, by which an interrupted run knows that the corpus is still the same."""
        return hashlib.blake2b(self.text, digest_size=16).hexdigest()


def split_key(document: bytes) -> bytes:
    """Return 8 bytes of a document by which its split is chosen."""
    return hashlib.blake2b(document, digest_size=8).digest()


def cut_units(blocks: Iterable[str], *, drop_duplicates: bool = False) -> Iterator[Unit]:
    """Cut blocks of lines, as `Corpus.blocks` gives them, into units."""
    seen = SeenDigests()
    goes_on_from = b""
    for number, text in enumerate(_cut(blocks)):
        unit = Unit(number, text, 0, goes_on_from)
        yield _without_duplicates(unit, seen) if drop_duplicates else unit
        is_cut = not text.endswith(_DOCUMENT_END)  # then the unit is one piece of one document
        goes_on_from = (goes_on_from or split_key(text.removesuffix(_LINE_END))) if is_cut else b""


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


def _without_duplicates(unit: Unit, seen: SeenDigests) -> Unit:
    """Keep the first of documents that are the same to the letter; a checksum of each is remembered."""
    documents = unit.documents()
    digests = [hashlib.blake2b(document, digest_size=DIGEST_BYTES).digest() for document in documents]
    is_new = seen.add(b"".join(digests))
    kept = [document + _DOCUMENT_END for document, new in zip(documents, is_new, strict=True) if new]
    goes_on_from = unit.goes_on_from if len(is_new) and is_new[0] else b""
    return Unit(unit.number, b"".join(kept), len(documents) - len(kept), goes_on_from)
