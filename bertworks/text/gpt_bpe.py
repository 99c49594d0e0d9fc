"""`GptTokenizer`: the pieces of GPT-1, byte-pair encoding of words whose last letter carries the mark `</w>`.

Words come from BERT's rules (GPT-1 took spaCy's, which need a model of their own). A word starts as its letters; the
pair of neighbours that was learned first is joined, the leftmost where it stands several times, until no pair is left
that was learned. A letter that is not in the vocabulary is an `<unk>`; so is a whole word of over 200 letters, which
keeps the time linear. Nothing is put around a text: the three special pieces at the end of the vocabulary are for
fine-tuning, and cannot be written in a text.
"""

import os
from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.text.by_words import IdsByWords, check_text, columns_by_words
from bertworks.text.detokenize import join_tokens
from bertworks.text.encoding import Encoding
from bertworks.text.normalize import Alphabet, Rules
from bertworks.text.vocabulary import check_pieces
from bertworks.text.wordpiece import MAX_WORD_LENGTH, Match

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

UNK, START, DELIMITER, CLASSIFY = "<unk>", "_start_", "_delimiter_", "_classify_"
FINE_TUNING_TOKENS = (START, DELIMITER, CLASSIFY)
END_OF_WORD = "</w>"
_NEVER = -1  # the rank of a pair that was not learned
_PLACE_BITS = 8  # hold any place in a word of 200 letters
_PLACE = (1 << _PLACE_BITS) - 1
Merges = Sequence[tuple[str, str]]


def letters_of(word: str) -> list[str]:
    """Return a word as the pieces to start from."""
    return [*word[:-1], word[-1] + END_OF_WORD]


class BytePairs:
    """Joins the letters of words by learned pairs, and remembers the words it joined last."""

    _MAX_REMEMBERED = 200_000

    def __init__(self, ids: Mapping[str, int], merges: Merges) -> None:
        self._ids, self._unk_id = ids, ids[UNK]
        self._ranks = {(ids[left], ids[right]): rank for rank, (left, right) in enumerate(merges)}
        self._wholes = [ids[left + right] for left, right in merges]
        self._remembered: dict[str, list[Match]] = {}

    def split(self, word: str) -> list[Match]:
        """Return the pieces of one normalised word."""
        matches = self._remembered.get(word)
        if matches is None:
            if len(word) > MAX_WORD_LENGTH:
                return [(self._unk_id, 0, len(word))]
            if len(self._remembered) >= self._MAX_REMEMBERED:
                self._remembered.clear()
            matches = self._remembered[word] = self._join(word)
        return matches

    def _join(self, word: str) -> list[Match]:
        """Join pairs, best first: in a heap by rank and place; a pair that is there no longer is passed over."""
        rank_of, wholes = self._ranks.get, self._wholes
        ids = [self._ids.get(letter, self._unk_id) for letter in letters_of(word)]
        ends, befores = list(range(1, len(ids) + 1)), list(range(-1, len(ids)))
        ranks = [*(rank_of(pair, _NEVER) for pair in pairwise(ids)), _NEVER]  # of the pair that begins at a place
        waiting = [rank << _PLACE_BITS | place for place, rank in enumerate(ranks) if rank != _NEVER]
        heapify(waiting)
        while waiting:
            best = heappop(waiting)
            rank, place = best >> _PLACE_BITS, best & _PLACE
            if ranks[place] != rank:
                continue
            joined = ends[place]
            ids[place], ends[place] = wholes[rank], ends[joined]
            ranks[place] = ranks[joined] = _NEVER
            befores[ends[place]] = place
            for left, right in ((befores[place], place), (place, ends[place])):
                if left >= 0 and right < len(ids):
                    rank = ranks[left] = rank_of((ids[left], ids[right]), _NEVER)
                    if rank != _NEVER:
                        heappush(waiting, rank << _PLACE_BITS | left)
        return _matches(ids, ends)


def _matches(ids: list[int], ends: list[int]) -> list[Match]:
    matches, place = [], 0
    while place < len(ids):
        matches.append((ids[place], place, ends[place]))
        place = ends[place]
    return matches


class GptTokenizer:
    """Splits text into the pieces of a vocabulary that was learned with `vocab --algorithm gpt-bpe`."""

    kind: Literal["gpt-bpe"] = "gpt-bpe"

    def __init__(self, pieces: Sequence[str], merges: Merges, rules: Rules | None = None) -> None:
        """Make a tokenizer from pieces in the order of their ids and merges in the order of learning."""
        self.pieces, self.merges, self.rules = list(pieces), list(merges), rules or Rules()
        check_pieces(self.pieces, "the vocabulary", unknown=UNK)
        self._ids = {piece: id for id, piece in enumerate(self.pieces) if piece}
        _check_merges(self.merges, self._ids)
        self._alphabet = Alphabet(self.rules)
        self._pairs = BytePairs(self._ids, self.merges)
        self._bulk = IdsByWords(self._pairs.split, self.rules)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "GptTokenizer":
        """Open what `save` wrote, or the tokenizer files of any `openai-gpt` folder in Hugging Face's form."""
        from bertworks.text.gpt_files import read_gpt_files

        return cls(*read_gpt_files(usable_path(folder)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write vocab.json, merges.txt, tokenizer.json and tokenizer_config.json, which transformers opens."""
        from bertworks.text.gpt_files import write_gpt_files

        write_gpt_files(Path(folder), self.pieces, self.merges, self.rules)

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}={value}" for name, value in self.rules._asdict().items())
        return f"GptTokenizer({len(self):,} pieces, {rules})"

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that must be in the vocabulary, such as "_start_"."""
        if piece not in self._ids:
            raise UserError(f"the vocabulary has no {piece!r}")
        return self._ids[piece]

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text as strings."""
        return self.encode(text).tokens

    def encode(self, text: str) -> Encoding:
        """Encode a text; nothing is added to it."""
        check_text(text)
        columns = columns_by_words(text, self._alphabet, self._pairs.split)
        return Encoding(columns, 0, len(columns.ids), self.pieces)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of many texts end to end, and how many each has: the ids of `encode`, faster."""
        return self._bulk.ids_of(texts)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids: pieces joined to words, and words set as in English and Korean print.

        The pieces for fine-tuning are left out unless `keep_special`; `<unk>` stands for text and stays.
        """
        words = [""]
        for piece in map(self._piece, ids):
            if piece == UNK or piece in FINE_TUNING_TOKENS:
                if piece == UNK or keep_special:
                    words += [piece, ""]
            elif piece.endswith(END_OF_WORD):
                words[-1] += piece.removesuffix(END_OF_WORD)
                words.append("")
            else:
                words[-1] += piece
        return join_tokens(words)

    def _piece(self, id: int) -> str:
        if not 0 <= id < len(self.pieces):
            raise UserError(f"id {id} is not in the vocabulary of {len(self.pieces)} pieces")
        return self.pieces[id]


def _check_merges(merges: Merges, ids: Mapping[str, int]) -> None:
    seen = set()
    for number, (left, right) in enumerate(merges, start=1):
        for piece in (left, right, left + right):
            if piece not in ids:
                raise UserError(f"merge {number}, {left!r} and {right!r}: {piece!r} is not in the vocabulary")
        if (left, right) in seen:
            raise UserError(f"merge {number}, {left!r} and {right!r}: it stands earlier already; remove one")
        seen.add((left, right))
