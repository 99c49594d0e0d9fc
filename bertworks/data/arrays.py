"""A unit of text into the arrays of its shards: sentences, token ids, and where each sentence and document starts.

A sentence without tokens leaves nothing, nor does a document without tokens; such documents are counted. Nothing else
is dropped unless an option asks for it. Memory is bounded by the unit: text goes through the compiled tokenizer, which
needs some fifty bytes for each of it, half a million characters at a time.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.data.shards import SPLITS, token_type
from bertworks.data.units import Unit, split_key
from bertworks.text.kinds import AnyTokenizer
from bertworks.text.sentences import split_sentences

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
