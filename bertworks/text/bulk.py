"""The same tokens as `normalize.py` and `wordpiece.py`, compiled: for corpora instead of sentences.

A chunk of texts becomes one array of code points. What the rules make of a code point is looked up in a table, which
is filled from `Alphabet` when a code point is first met, so it follows the Python rules and their Unicode version by
construction. An entry holds the number of the normalised character in the vocabulary's own alphabet, or for
punctuation and CJK the finished id. The pieces form a trie (`trie.py`).

Cost: a few nanoseconds a character; compiling takes some seconds once per machine and is cached on disk.
"""

import threading
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.text import kernel, normalize
from bertworks.text.normalize import Alphabet, Rules
from bertworks.text.trie import build_trie
from bertworks.text.vocabulary import CONTINUATION, UNK

_TABLES_LOCK = threading.Lock()  # one thread at a time adds to the tables, while others may read them
_UNKNOWN = kernel.UNKNOWN << kernel.KIND_SHIFT
_NUM_POINTS = 0x110000
_MAX_SEQUENCES = 1 << 16  # all Hangul syllables take 33,516, all other characters a few hundred
_MAX_LETTERS = 3  # one character of input becomes at most three (a Hangul syllable)
_KINDS = {
    normalize.SPACE: kernel.SPACE,
    normalize.DROP: kernel.DROP,
    normalize.MARK: kernel.MARK,
    normalize.ALONE: kernel.ALONE,
    normalize.SIGMA: kernel.SIGMA,
    normalize.LETTERS: kernel.LETTER,
}
_NEIGHBOURS = {
    normalize.UNCASED: kernel.UNCASED,
    normalize.LOOK_THROUGH: kernel.LOOK_THROUGH,
    normalize.CASED: kernel.CASED,
    normalize.BOUNDARY: kernel.BOUNDARY,
}


class Tokens(NamedTuple):
    """The tokens of several texts end to end, without [CLS] and [SEP]; text i has the next `counts[i]` rows."""

    rows: NDArray[np.int32]  # [tokens, 4]: ID, START, END, WORD
    counts: NDArray[np.int64]


class BulkTokenizer:
    """Tokenizes many texts at once for one vocabulary and one set of rules."""

    def __init__(self, pieces: Sequence[str], rules: Rules) -> None:
        self._alphabet = Alphabet(rules)
        self._ids = {piece: id for id, piece in enumerate(pieces) if piece}
        self._unk_id = self._ids[UNK]
        letters = Counter("".join(self._ids))
        # 0 is a letter in no piece. Frequent letters get low numbers, which makes the trie dense.
        self._codes = {letter: code for code, (letter, _) in enumerate(letters.most_common(), start=1)}
        # One Python int per id: lists of ids are then filled with pointers, which is faster than making new ints, and
        # an array of them is nothing that the garbage collector visits.
        self.shared_ints = np.array(range(len(pieces)), dtype=object)
        self._num_sequences = 0
        self._tables = kernel.Tables(
            entries=np.full(_NUM_POINTS, _UNKNOWN, np.int32),
            neighbours=np.full(_NUM_POINTS, kernel.UNMET, np.uint8),
            sequences=np.zeros((_MAX_SEQUENCES, 2), np.int32),
            trie=self._build_trie(),
            unk_id=self._unk_id,
        )
        self._add_sequence("σ", ())
        self._add_sequence("ς", ())

    def tokenize(self, texts: Sequence[str]) -> Tokens:
        """Return the tokens of every text."""
        points = np.frombuffer(("\n".join(texts) + "\n").encode("utf-32-le", "surrogatepass"), np.int32)
        text_ends = np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)) + 1)  # a line end closes each
        rows = np.empty((_MAX_LETTERS * len(points), 4), np.int32)
        counts = np.zeros(len(texts), np.int64)
        num_texts = num_tokens = 0
        while num_texts < len(texts):
            num_texts, num_tokens = kernel.tokenize(
                points, text_ends, num_texts, num_tokens, self._tables, rows, counts
            )
            if num_texts < len(texts):
                self._look_up(points)
        return Tokens(rows[:num_tokens].copy(), counts)

    def _build_trie(self) -> NDArray[np.int32]:
        firsts = [(piece, id) for piece, id in self._ids.items()]
        rests = [(piece[2:], id) for piece, id in self._ids.items() if piece[:2] == CONTINUATION and piece[2:]]
        letters = np.array([self._codes[c] for piece, _ in firsts + rests for c in piece], np.int64)
        lengths = np.array([len(piece) for piece, _ in firsts + rests], np.int64)
        ids = np.array([id for _, id in firsts + rests], np.int64)
        return build_trie(letters, lengths, ids, len(firsts), len(self._codes) + 1)  # type: ignore[no-any-return]

    def _look_up(self, points: NDArray[np.int32]) -> None:
        """Fill the tables for the code points that are met for the first time."""
        entries, neighbours = self._tables.entries, self._tables.neighbours
        with _TABLES_LOCK:
            for point in np.unique(points[entries[points] == _UNKNOWN]).tolist():
                character = self._alphabet.classify(chr(point))
                neighbours[point] = _NEIGHBOURS[character.beside_sigma]
                entries[point] = self._entry(character)

    def _entry(self, character: normalize.Character) -> int:
        kind, letters = _KINDS[character.kind], character.letters
        value = 0
        if kind == kernel.MARK:
            value = int(character.stops_reordering)
        elif kind == kernel.ALONE:
            value = self._ids.get(letters, self._unk_id)
        elif kind == kernel.LETTER and (len(letters) > 1 or character.orders):
            kind, value = kernel.SEQUENCE, self._add_sequence(letters, character.orders)
        elif kind == kernel.LETTER:
            value = self._codes.get(letters, 0)
        return kind << kernel.KIND_SHIFT | value

    def _add_sequence(self, letters: str, orders: tuple[int, ...]) -> int:
        """Store the letters of one character; their place and number share the entry's value."""
        assert len(letters) <= _MAX_LETTERS
        first = self._num_sequences
        for letter, order in zip(letters, (0,) * (len(letters) - len(orders)) + orders, strict=True):
            self._tables.sequences[self._num_sequences] = self._codes.get(letter, 0), order
            self._num_sequences += 1
        return first << 2 | len(letters)
