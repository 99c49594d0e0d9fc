"""A corpus in which every token is another piece, numbered through: an instance shows where each token came from.

Token n of the corpus is the piece q{n} where it starts a word and ##z{n} where it goes on with one; its id is n plus
the number of special tokens. As GPT-1's tokens, every token is a letter of its own, the last of a word with its mark;
as ELMo's, a word of its own.
"""

import random
from bisect import bisect_right
from typing import NamedTuple

import numpy as np
import pytest

from bertworks import Tokenizer
from bertworks.config import DataSettings
from bertworks.data import prepare as units
from bertworks.data.loader import Loader, shape_for
from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset
from bertworks.text.corpus import Corpus
from bertworks.text.elmo_words import SPECIAL_WORDS, WordTokenizer
from bertworks.text.gpt import END_OF_WORD, UNK, GptTokenizer
from bertworks.text.normalize import Rules
from bertworks.text.vocabulary import SPECIAL_TOKENS

NUM_SPECIAL = len(SPECIAL_TOKENS)


class Numbered(NamedTuple):
    dataset: Dataset
    tokenizer: Tokenizer
    documents: list[list[int]]  # where the sentences of each start, and its end, in tokens
    continues: set[int]  # ids

    document_ends: list[int]
    shard_ends: list[int]

    @property
    def num_tokens(self):
        return self.document_ends[-1]

    def document_of(self, token):
        return bisect_right(self.document_ends, token)

    def shard_of(self, token):
        return bisect_right(self.shard_ends, token)


class OfKind(NamedTuple):
    """Data of another kind than BERT's: token n of the corpus has the id n plus the number of special ones."""

    dataset: Dataset
    num_special: int
    document_ends: list[int]


def write_corpus(folder, documents, *, num_shards=1, continuation_rate=0.3, seed=0):
    """Prepare documents of sentence lengths, in about as many shards."""
    rng = random.Random(seed)
    pieces, starts, lines = list(SPECIAL_TOKENS), [], []
    number = 0
    for lengths in documents:
        starts.append([number])
        for length in lengths:
            line = ""
            for token in range(length):
                goes_on = token > 0 and rng.random() < continuation_rate
                line += f"z{number}" if goes_on else f" q{number}"
                pieces.append(f"##z{number}" if goes_on else f"q{number}")
                number += 1
            lines.append(line.strip())
            starts[-1].append(number)
        lines.append("")
    tokenizer = Tokenizer(pieces)
    dataset = _prepared(folder, "\n".join(lines), tokenizer, num_shards)
    shards = [shard.tokens for shard in dataset.shards("train")]
    assert np.array_equal(np.concatenate(shards), np.arange(number) + NUM_SPECIAL)
    assert len(shards) == num_shards
    continues = {id for id, piece in enumerate(pieces) if piece.startswith("##")}
    shard_ends = np.cumsum([len(tokens) for tokens in shards]).tolist()
    return Numbered(dataset, tokenizer, starts, continues, [ends[-1] for ends in starts], shard_ends)


def write_corpus_of(kind, folder, documents, *, num_shards=1, seed=0):
    """Prepare documents of sentence lengths as tokens of GPT-1 or ELMo; returns the data and the documents' ends."""
    rng = random.Random(seed)
    pieces, lines, ends = [UNK] if kind == "gpt-bpe" else list(SPECIAL_WORDS), [], []
    num_special, number = len(pieces), 0
    for lengths in documents:
        for length in lengths:
            tokens = range(number, number + length)
            number += length
            if kind == "words":
                lines.append(" ".join(f"w{token}" for token in tokens))
                pieces += lines[-1].split()
            else:
                line = "".join(chr(0x20000 + token) + " " * (rng.random() < 0.7) for token in tokens).strip()
                lines.append(line)
                pieces += [piece for word in line.split() for piece in (*word[:-1], word[-1] + END_OF_WORD)]
        lines.append("")
        ends.append(number)
    rules = Rules(False, False, False)
    tokenizer = WordTokenizer(pieces, rules) if kind == "words" else GptTokenizer(pieces, [], rules)
    dataset = _prepared(folder, "\n".join(lines), tokenizer, num_shards)
    tokens = np.concatenate([shard.tokens for shard in dataset.shards("train")])
    assert np.array_equal(tokens, np.arange(number) + num_special)
    assert len(dataset.shards("train")) == num_shards
    return OfKind(dataset, num_special, ends)


def _prepared(folder, text, tokenizer, num_shards):
    (folder / "corpus.txt").write_text(text, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        if num_shards > 1:
            patch.setattr(units, "UNIT_BYTES", len(text.encode()) // num_shards)
        prepare(Corpus([folder / "corpus.txt"]), tokenizer, folder / "out", lines_are_sentences=True, workers=1)
    return Dataset(folder / "out")


def ordinary_lengths(num_documents, *, num_sentences=24, seed=0):
    """Sentence lengths as in ordinary text; some documents have one sentence, and some sentences are very long."""
    rng = random.Random(seed)

    def sentence():
        return rng.randint(60, 90) if rng.random() < 0.03 else 1 + min(int(rng.expovariate(1 / 9)), 40)

    return [[sentence() for _ in range(rng.randint(1, num_sentences))] for _ in range(num_documents)]


def make_loader(numbered, *, tokens=256, slices=1, seed=7, rank=0, world_size=1, **settings):
    data_settings = DataSettings(**{"max_length": 32} | settings)
    shape = shape_for(data_settings, tokens=tokens, slices=slices)
    return Loader(numbered.dataset, data_settings, shape, seed=seed, rank=rank, world_size=world_size)


def epoch_of(loader, epoch=0, state=None):
    """The slices of one epoch; the loader must have one slice a batch."""
    found = []
    for (packed,), state_behind in loader.batches(state):
        if state_behind.epoch > epoch:
            return found
        if state_behind.epoch == epoch:
            found.append(packed)
    return found


class Unpacked(NamedTuple):
    """One instance of a batch; its arrays as plain lists."""

    ids: list[int]  # after masking
    original: list[int]
    segments: list[int]
    positions: list[int]
    masked: list[int]  # positions
    label: int

    def parts(self):
        """The pieces of A and B before masking."""
        num_first = self.segments.index(1) if 1 in self.segments else len(self.segments)
        return self.original[1 : num_first - 1], self.original[num_first:-1]


def unpacked(packed):
    """Take a slice apart, by its arrays alone."""
    original = packed.token_ids.copy()
    is_real = packed.masked_weights > 0
    original[packed.masked_positions[is_real]] = packed.masked_ids[is_real]
    masked = packed.masked_positions[is_real]
    starts = packed.cumulative_lengths
    instances = []
    for sequence in range(len(packed.next_labels)):
        first, end = starts[sequence], starts[sequence + 1]
        if first < end:
            part = slice(first, end)
            arrays = (packed.token_ids, original, packed.segment_ids, packed.position_ids)
            own = masked[(masked >= first) & (masked < end)] - first
            instances.append(
                Unpacked(*(array[part].tolist() for array in arrays), own.tolist(), int(packed.next_labels[sequence]))
            )
    return instances


def instances_of(slices):
    return [instance for packed in slices for instance in unpacked(packed)]
