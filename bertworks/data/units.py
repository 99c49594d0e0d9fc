"""A corpus cut into units of work: whole documents, about sixteen million bytes, the same cuts every time.

A unit becomes a shard by a function of its text alone, so it does not matter which process, or which machine, does it.
A unit ends at the first document end that fills it, so the cuts depend on the text and not on how it arrives. Only a
document that is larger than two units is cut, at a line end: memory stays bounded whatever the corpus is.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.data.shards import SPLITS, token_type
from bertworks.text.fast import compiled
from bertworks.text.kinds import AnyTokenizer
from bertworks.text.sentences import split_sentences

# Which documents were seen before, in about twenty bytes for each: 16 of its checksum, and some room.
#
# Sixteen tables with open addressing, by the checksum's last bits: they grow one after another, so what growing
# needs for a moment is a sixteenth of the whole. A Python set of the same checksums takes some hundred bytes for
# each.


_NUM_TABLES = 16
_FIRST_ROWS = 1 << 10
_FULL = 0.9  # then it takes some five steps to find a free row
_GROWTH = 1.5
DIGEST_BYTES = 16


class SeenDigests:
    """A set of checksums of 16 bytes."""

    def __init__(self) -> None:
        self._tables = [np.zeros((_FIRST_ROWS, 2), np.uint64) for _ in range(_NUM_TABLES)]
        self._counts = [0] * _NUM_TABLES

    def add(self, digests: bytes) -> NDArray[np.bool_]:
        """Add checksums, end to end, and tell of each in turn whether it is there for the first time."""
        rows = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        is_new = np.zeros(len(rows), np.bool_)
        numbers = rows[:, 1] % np.uint64(_NUM_TABLES)
        for number in range(_NUM_TABLES):
            own = np.flatnonzero(numbers == number)
            self._make_room(number, len(own))
            is_new[own] = _insert(self._tables[number], rows[own])
            self._counts[number] += int(is_new[own].sum())
        return is_new

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(table.nbytes for table in self._tables)

    def _make_room(self, number: int, more: int) -> None:
        table, needed = self._tables[number], self._counts[number] + more
        if needed <= len(table) * _FULL:
            return
        # By what is needed, not by what is there: a unit may have many documents, most of them seen before.
        larger = np.zeros((max(int(needed / _FULL) + 1, int(len(table) * _GROWTH)), 2), np.uint64)
        _insert(larger, table[table.any(axis=1)])
        self._tables[number] = larger


@compiled
def _insert(table: Any, digests: Any) -> Any:
    """Put checksums where there is a free row from their place on; tells which were not there. Zeros are free rows."""
    is_new = np.zeros(len(digests), np.bool_)
    for index in range(len(digests)):
        first, second = digests[index, 0], digests[index, 1]
        if first == 0 and second == 0:
            second = np.uint64(_NUM_TABLES)
        row = np.int64(first % np.uint64(len(table)))
        while (table[row, 0] != first or table[row, 1] != second) and (table[row, 0] != 0 or table[row, 1] != 0):
            row = (row + 1) % len(table)
        is_new[index] = table[row, 0] == 0 and table[row, 1] == 0
        table[row, 0], table[row, 1] = first, second
    return is_new


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


# A unit of text into the arrays of its shards: sentences, token ids, and where each sentence and document starts.
#
# A sentence without tokens leaves nothing, nor does a document without tokens; such documents are counted. Nothing
# else is dropped unless an option asks for it. Memory is bounded by the unit: text goes through the compiled
# tokenizer, which needs some fifty bytes for each of it, half a million characters at a time.


_TOKENIZED_AT_ONCE = 1 << 19
_SENTENCE_END = re.compile(r"[.!?…。！？:;,][\"'”’)\]」』》]*$")
_MAX_HEADING_WORDS = 12
_Text = TypeVar("_Text", str, bytes)


class Options(NamedTuple):
    """What is done with the text besides tokenizing it; by default nothing is dropped or kept aside."""

    holdout: float = 0.0
    lines_are_sentences: bool = False
    drop_headings: bool = False
    drop_duplicates: bool = False
    min_tokens: int = 0


class ShardArrays(NamedTuple):
    """What a unit becomes."""

    by_split: dict[str, dict[str, NDArray[Any]]]
    num_empty: int  # documents without a token
    num_too_short: int  # other documents with fewer tokens than asked for


class _Gathered(NamedTuple):
    ids: list[NDArray[Any]]
    sentence_lengths: list[NDArray[np.int64]]
    document_lengths: list[int]  # in sentences


def make_arrays(unit: Unit, tokenizer: AnyTokenizer, options: Options, vocab_size: int) -> ShardArrays:
    """Turn the text of a unit into tokens, sentence offsets and document offsets, by split."""
    gathered = {split: _Gathered([], [], []) for split in SPLITS}
    num_empty = num_too_short = 0
    first_piece_key = unit.goes_on_from
    for documents in _batches(unit.documents()):
        for document, ids, lengths in _tokenize(documents, tokenizer, options, vocab_size):
            key, first_piece_key = first_piece_key or split_key(document), b""
            if not len(ids):
                num_empty += 1
            elif len(ids) < options.min_tokens:
                num_too_short += 1
            else:
                split = gathered[SPLITS[is_held_out(key, options.holdout)]]
                split.ids.append(ids)
                split.sentence_lengths.append(lengths)
                split.document_lengths.append(len(lengths))
    arrays = {split: _to_arrays(gathered[split], vocab_size) for split in SPLITS}
    return ShardArrays(arrays, num_empty, num_too_short)


def _tokenize(
    documents: list[bytes], tokenizer: AnyTokenizer, options: Options, vocab_size: int
) -> Iterator[tuple[bytes, NDArray[Any], NDArray[np.int64]]]:
    """Yield each document with its ids and the lengths of its sentences, those without tokens left out."""
    sentences = [list(split_document(document.decode("utf-8"), options)) for document in documents]
    tokens = [tokenizer.ids_of(batch) for batch in _batches(sentence for each in sentences for sentence in each)]
    # The type first: the ids of BERT's tokenizer are a column of a table, eight times as much as they alone.
    ids = _joined([batch_ids.astype(token_type(vocab_size)) for batch_ids, _ in tokens])
    lengths = _joined([counts for _, counts in tokens])
    first_sentence = first_token = 0
    for document, its_sentences in zip(documents, sentences, strict=True):
        its_lengths = lengths[first_sentence : first_sentence + len(its_sentences)]
        num_tokens = int(its_lengths.sum())
        yield document, ids[first_token : first_token + num_tokens], its_lengths[its_lengths > 0]
        first_sentence += len(its_sentences)
        first_token += num_tokens


def _batches(texts: Iterable[_Text]) -> Iterator[list[_Text]]:
    """Group texts for tokenizing: one call of compiled code for many small ones, little memory for large ones."""
    batch: list[_Text] = []
    size = 0
    for text in texts:
        batch.append(text)
        size += len(text)
        if size >= _TOKENIZED_AT_ONCE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def split_document(document: str, options: Options) -> Iterator[str]:
    """Give the sentences of a document."""
    for line in document.split("\n"):
        if options.drop_headings and is_heading(line):
            continue
        if options.lines_are_sentences:
            yield line
        else:
            yield from split_sentences(line)


def is_heading(line: str) -> bool:
    """Tell whether a line looks like a heading: few words, and no mark at its end that closes a sentence."""
    return not _SENTENCE_END.search(line.rstrip()) and len(line.split()) <= _MAX_HEADING_WORDS


def is_held_out(key: bytes, share: float) -> bool:
    """Choose documents by their text, so that the choice does not depend on where or how often one stands.

    The pieces of a document that was cut follow the first: what was trained on must not be next to what is held out.
    """
    return int.from_bytes(key, "big") < share * 2**64


def _to_arrays(gathered: _Gathered, vocab_size: int) -> dict[str, NDArray[Any]]:
    return {
        "tokens": _joined(gathered.ids).astype(token_type(vocab_size), copy=False),
        "sentences": _offsets(_joined(gathered.sentence_lengths)),
        "documents": _offsets(np.array(gathered.document_lengths, np.int64)),
    }


def _offsets(lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    offsets = np.zeros(len(lengths) + 1, np.uint64)
    np.cumsum(lengths, out=offsets[1:].view(np.int64))
    return offsets


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)
