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
        # One Python int per id: a list of ids then costs a pointer each, which is faster to fill than to make new ints.
        self.shared_ints = np.array(range(len(pieces)), dtype=object)
        self._num_sequences = 0
        self._tables = kernel.Tables(
            entries=np.full(_NUM_POINTS, _UNKNOWN, np.int32),
            neighbours=np.zeros(_NUM_POINTS, np.uint8),
            sequences=np.zeros((_MAX_SEQUENCES, 2), np.int32),
            sigma=np.array([self._codes.get("σ", 0), self._codes.get("ς", 0)], np.int32),
            trie=self._build_trie(),
            unk_id=self._unk_id,
        )

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
                neighbours[point] = self._neighbour(chr(point))
                entries[point] = self._entry(chr(point))

    def _entry(self, char: str) -> int:
        kind, letters, stops_reordering = self._alphabet.classify(char)
        if kind is normalize.SPACE:
            return kernel.SPACE << kernel.KIND_SHIFT
        if kind is normalize.DROP:
            return kernel.DROP << kernel.KIND_SHIFT
        if kind is normalize.MARK:
            return kernel.MARK << kernel.KIND_SHIFT | stops_reordering
        if char == normalize.SIGMA and self._alphabet.rules.lowercase:
            return kernel.SIGMA << kernel.KIND_SHIFT
        if len(letters) == 1 and (kind is normalize.ALONE or letters[0].is_punctuation):
            return kernel.ALONE << kernel.KIND_SHIFT | self._ids.get(letters[0].text, self._unk_id)
        assert kind is normalize.LETTERS
        assert len(letters) <= _MAX_LETTERS
        if len(letters) == 1 and not letters[0].order:
            return kernel.LETTER << kernel.KIND_SHIFT | self._codes.get(letters[0].text, 0)
        return kernel.SEQUENCE << kernel.KIND_SHIFT | self._add_sequence(letters)

    def _add_sequence(self, letters: Sequence[normalize.Letter]) -> int:
        """Store the letters of one character; their place and number share the entry's value."""
        first = self._num_sequences
        for letter in letters:
            if letter.is_punctuation:
                entry = kernel.ALONE << kernel.KIND_SHIFT | self._ids.get(letter.text, self._unk_id)
            else:
                entry = kernel.LETTER << kernel.KIND_SHIFT | self._codes.get(letter.text, 0)
            self._tables.sequences[self._num_sequences] = entry, letter.order
            self._num_sequences += 1
        return first << 2 | len(letters)

    def _neighbour(self, char: str) -> int:
        kind = self._alphabet[char].kind
        if kind is normalize.SPACE or kind is normalize.ALONE:
            return kernel.BOUNDARY
        if kind is normalize.DROP or normalize.is_case_ignorable(char):
            return kernel.LOOK_THROUGH
        return kernel.CASED if normalize.is_cased(char) else kernel.UNCASED
