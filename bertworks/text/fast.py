"""A compiled tokenizer for large texts, with the same results as `normalize.py` and `vocabulary.py`.

A chunk of texts becomes one array of code points. A table says what the rules do with each code point. It is filled
from `Alphabet` when a code point first occurs, so it follows the Python rules and their Unicode version by
construction. An entry holds the number of the normalised character in the vocabulary's alphabet, or, for punctuation
and CJK, the final id. The pieces form a trie.

Cost: a few nanoseconds a character; compiling takes some seconds once per machine and is cached on disk.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numpy.typing import NDArray

from bertworks.text import normalize
from bertworks.text.normalize import Alphabet, Rules
from bertworks.text.tokenizer import NO_WORD, Truncation, kept_lengths
from bertworks.text.vocabulary import CONTINUATION, MAX_WORD_LENGTH, UNK

# The compiled loop: code points in, rows of tokens out.
# Everything that is compiled into `tokenize` must be in this file: numba recompiles its cache on disk when this file
# changes, but not when another one does.


# An entry says what the rules do with a code point: a kind in the high bits, and a value in the low 28 bits. Plain
# letters are kind 0, so their entry is just the number of the letter in the vocabulary's alphabet.
LETTER, SPACE, DROP, MARK, ALONE, SEQUENCE, SIGMA, UNKNOWN = range(8)
KIND_SHIFT = 28
_VALUE = (1 << KIND_SHIFT) - 1

# What a neighbouring character implies for a capital sigma, and the forms of the sigma.
UNCASED, LOOK_THROUGH, CASED, BOUNDARY, UNMET = range(5)
_INNER, _FINAL, _NOT_YET = range(3)

ID, START, END, WORD = range(4)  # the columns of a token: its id, its start and end in the text, the number of its word

BASE, CHECK, PIECE = range(3)  # the columns of a trie's slot, see `build_trie`
ROOT, ROOT_OF_CONTINUATIONS = 0, 1

if hasattr(os, "register_at_fork"):
    # A process forked while another thread compiles would wait forever for the compiler's lock, because only that
    # thread, which does not exist in the new process, could release it.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


class Tables(NamedTuple):
    """The lookup tables of the compiled loop."""

    entries: NDArray[np.int32]  # by code point: the result of the rules; UNKNOWN until it occurs
    neighbours: NDArray[np.uint8]  # by code point: what it implies for a sigma beside it; UNMET until it occurs
    sequences: NDArray[np.int32]  # (letter, combining class) of characters that become several; first σ and ς
    trie: NDArray[np.int32]
    unk_id: int


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba; if there is no writable cache folder, the result is not kept on disk."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into the caller: in a real call, reference counting of arrays would take half the time of the loop."""
    return numba.njit(inline="always")(function)


@inlined
def _sigma_form(points: Any, index: int, first: int, neighbours: Any) -> int:
    """Return the form of a sigma: final if a cased character comes before it and none after.

    A line end closes the text. If the next character is not in the tables yet, the form is not known yet. It must not
    be guessed: another thread may add that character before this loop reaches it.
    """
    before = UNCASED
    for position in range(index - 1, first - 1, -1):
        before = neighbours[points[position]]
        if before != LOOK_THROUGH:
            break
    position = index + 1
    while neighbours[points[position]] == LOOK_THROUGH:
        position += 1
    after = neighbours[points[position]]
    if after == UNMET:
        return _NOT_YET
    return _FINAL if before == CASED and after != CASED else _INNER


@inlined
def _put_combining(letters: Any, orders: Any, length: int, run_start: int, letter: int, order: int) -> None:
    """Insert a combining letter in canonical order into the run of combining letters at the end of the word."""
    position = length
    while position > run_start and orders[position - 1] > order:
        letters[position] = letters[position - 1]
        orders[position] = orders[position - 1]
        position -= 1
    letters[position] = letter
    orders[position] = order


@inlined
def _match_pieces(letters: Any, length: int, trie: Any, unk_id: int, rows: Any, first_row: int) -> int:
    """Split a word into the longest pieces: write their ids and ends in the word, and return how many there are."""
    row, start, root = first_row, 0, ROOT
    while start < length and length <= MAX_WORD_LENGTH:
        node, id, end = root, 0, start
        for index in range(start, length):
            slot = trie[node, BASE] + letters[index]
            if trie[slot, CHECK] != node:
                break
            node = slot
            if trie[node, PIECE]:
                id, end = trie[node, PIECE], index + 1
        if not id:
            break
        rows[row, ID] = id - 1
        rows[row, END] = end
        row, start, root = row + 1, end, ROOT_OF_CONTINUATIONS
    if start == length:
        return row - first_row
    rows[first_row, ID] = unk_id
    rows[first_row, END] = length
    return 1


@inlined
def _finish_word(letters: Any, starts: Any, marks: Any, length: int, end: int, number: int,
                 trie: Any, unk_id: int, rows: Any, count: int) -> int:  # fmt: skip
    """Write the pieces of a finished word to the output; returns the new number of tokens."""
    first, last_row = 0, count + _match_pieces(letters, length, trie, unk_id, rows, count)
    while count < last_row:
        last = rows[count, END]
        rows[count, START] = starts[first]
        rows[count, END] = starts[last - 1] + 1 + marks[last - 1] if last < length else end
        rows[count, WORD] = number
        first = last
        count += 1
    return count


@compiled
def tokenize(
    points: Any, text_ends: Any, first_text: int, count: int, tables: Any, rows: Any, counts: Any
) -> tuple[int, int]:
    """Tokenize texts until all are done or one has an unknown code point; returns how far it got.

    That is the number of texts done and of their tokens. A text with an unknown code point is tokenized again by the
    next call. Each text in `points` ends with a line end, which also ends its last word.
    """
    entries, neighbours, sequences, trie, unk_id = tables
    letters = np.zeros(MAX_WORD_LENGTH, np.int32)
    orders = np.zeros(MAX_WORD_LENGTH, np.int32)  # combining classes; written only for letters that have one
    starts = np.zeros(MAX_WORD_LENGTH, np.int32)
    marks = np.zeros(MAX_WORD_LENGTH, np.int32)  # how many accents after a letter were taken off
    for text in range(first_text, len(text_ends)):
        first = text_ends[text - 1] if text else 0
        count_before, number = count, 0
        length, end, run_start, has_marks = 0, 0, 0, False  # of the current word
        for index in range(first, text_ends[text]):
            offset = index - first
            entry = entries[points[index]]
            if entry <= _VALUE:
                if length < MAX_WORD_LENGTH:
                    letters[length] = entry
                    starts[length] = offset
                length += 1
                end = offset + 1
                run_start = length
                continue
            kind, value = entry >> KIND_SHIFT, entry & _VALUE
            if kind == DROP:
                continue
            if kind == UNKNOWN:
                return text, count_before
            if kind == MARK:
                if value:
                    run_start = length
                if length and end == offset:
                    end += 1
                    marks[min(length, MAX_WORD_LENGTH) - 1] += 1
                    has_marks = True
                elif not length and count > count_before and rows[count - 1, END] == offset:
                    rows[count - 1, END] += 1
                continue
            if kind == SIGMA:
                form = _sigma_form(points, index, first, neighbours)
                if form == _NOT_YET:
                    return text, count_before
                value = form << 2 | 1  # the first two sequences are σ and ς
            if kind in (SEQUENCE, SIGMA):
                for part in range(value >> 2, (value >> 2) + (value & 3)):
                    order = sequences[part, 1]
                    if not order:
                        run_start = length
                    if length < MAX_WORD_LENGTH:
                        _put_combining(letters, orders, length, run_start, sequences[part, 0], order)
                        starts[length] = offset
                    length += 1
                    end = offset + 1
                    if not order:
                        run_start = length
                continue
            if length:
                count = _finish_word(letters, starts, marks, length, end, number, trie, unk_id, rows, count)
                number += 1
                length = run_start = 0
                if has_marks:
                    marks[:] = 0
                    has_marks = False
            if kind == ALONE:
                rows[count, ID] = value
                rows[count, START] = offset
                rows[count, END] = offset + 1
                rows[count, WORD] = number
                count += 1
                number += 1
        counts[text] = count - count_before
    return len(text_ends), count


# A vocabulary as a trie, in which compiled code finds the longest matching piece letter by letter.
# The trie is a double array: the child of a node for a letter is in slot `base[node] + letter`, and exists if `check`
# of that slot is the node. A step is one memory access. Nodes are stored level by level, so the frequently used ones
# near the root are close together: 30,522 pieces take about a megabyte, which stays in the cache of a core.


_FREE = -1
_MAX_TRIED = 256  # slots tried for a node before later searches start further on


@compiled
def build_trie(letters: Any, lengths: Any, ids: Any, num_firsts: int, num_letters: int) -> Any:
    """Build a trie from concatenated pieces of letter numbers; pieces from `num_firsts` on are continuations."""
    parents, by_letter, ends = _grow_nodes(letters, lengths, ids, num_firsts)
    first_child, children = _list_children(parents)
    trie = np.full((2 * len(parents) + 2 * num_letters, 3), _FREE, np.int32)
    trie[:, PIECE] = 0
    slot_of = np.zeros(len(parents), np.int64)
    slot_of[1] = ROOT_OF_CONTINUATIONS
    trie[:2, CHECK] = -2  # taken, but not the child of any node
    queue = np.zeros(len(parents), np.int64)
    queue[1], queued, first_free, first_tried = 1, 2, 2, 2
    for turn in range(len(parents)):
        node = queue[turn]
        slot = slot_of[node]
        trie[slot, PIECE] = ends[node]
        own = children[first_child[node] : first_child[node + 1]]
        if len(own) == 0:
            trie[slot, BASE] = 0
            continue
        while trie[first_free, CHECK] != _FREE:
            first_free += 1
        first_tried = max(first_tried, first_free)
        base, num_tried = _find_base(trie, by_letter[own], first_free if len(own) == 1 else first_tried)
        if num_tried > _MAX_TRIED:
            first_tried += num_tried  # else every node with many children would search there again: quadratic time
        if base + num_letters >= len(trie):
            trie = _lengthened(trie, base + 2 * num_letters)
        trie[slot, BASE] = base
        for child in own:
            slot_of[child] = base + by_letter[child]
            trie[slot_of[child], CHECK] = slot
            queue[queued] = child
            queued += 1
    return trie


@compiled
def _grow_nodes(letters: Any, lengths: Any, ids: Any, num_firsts: int) -> Any:
    """Insert every piece into a plain trie; returns each node's parent, letter, and (id + 1) of the piece it ends."""
    parents = np.zeros(len(letters) + 2, np.int64)
    by_letter = np.zeros(len(letters) + 2, np.int64)
    ends = np.zeros(len(letters) + 2, np.int32)
    child_of = {(np.int64(0), np.int64(0)): np.int64(0)}
    num_nodes, position = 2, 0
    for piece in range(len(ids)):
        node = np.int64(ROOT if piece < num_firsts else ROOT_OF_CONTINUATIONS)
        for _ in range(lengths[piece]):
            key = (node, letters[position])
            position += 1
            if key not in child_of:
                child_of[key] = np.int64(num_nodes)
                parents[num_nodes], by_letter[num_nodes] = key
                num_nodes += 1
            node = child_of[key]
        ends[node] = ids[piece] + 1
    return parents[:num_nodes], by_letter[:num_nodes], ends[:num_nodes]


@compiled
def _list_children(parents: Any) -> Any:
    """Group nodes by parent: the children of node n are `children[first_child[n]:first_child[n + 1]]`."""
    first_child = np.zeros(len(parents) + 1, np.int64)
    for node in range(2, len(parents)):
        first_child[parents[node] + 1] += 1
    first_child = np.cumsum(first_child)
    children = np.zeros(len(parents), np.int64)
    filled = first_child.copy()
    for node in range(2, len(parents)):
        children[filled[parents[node]]] = node
        filled[parents[node]] += 1
    return first_child, children


@compiled
def _find_base(trie: Any, letters: Any, first_slot: int) -> tuple[int, int]:
    """Return the lowest base at which the slots of all letters are free, and how many bases were tried before.

    The search begins at `first_slot`; all slots after the end of the trie are free.
    """
    lowest = letters.min()
    slot = max(first_slot, lowest)
    num_tried = 0
    while True:
        base = slot - lowest
        fits = True
        for letter in letters:
            if base + letter < len(trie) and trie[base + letter, CHECK] != _FREE:
                fits = False
                break
        if fits:
            return base, num_tried
        slot += 1
        num_tried += 1


@compiled
def _lengthened(trie: Any, num_slots: int) -> Any:
    longer = np.full((max(num_slots, len(trie) * 5 // 4), 3), _FREE, np.int32)
    longer[:, PIECE] = 0
    longer[: len(trie)] = trie
    return longer


_TABLES_LOCK = threading.Lock()  # one thread at a time adds to the tables, while others may read them
_UNKNOWN = UNKNOWN << KIND_SHIFT
_NUM_POINTS = 0x110000
_MAX_SEQUENCES = 1 << 16  # all Hangul syllables take 33,516, all other characters a few hundred
_MAX_LETTERS = 3  # one character of input becomes at most three (a Hangul syllable)
_KINDS = {
    normalize.SPACE: SPACE,
    normalize.DROP: DROP,
    normalize.MARK: MARK,
    normalize.ALONE: ALONE,
    normalize.SIGMA: SIGMA,
    normalize.LETTERS: LETTER,
}
_NEIGHBOURS = {
    normalize.UNCASED: UNCASED,
    normalize.LOOK_THROUGH: LOOK_THROUGH,
    normalize.CASED: CASED,
    normalize.BOUNDARY: BOUNDARY,
}


# The tokens of several texts end to end, without [CLS] and [SEP]: rows of ID, START, END and WORD, and how many rows
# each text has.
Tokens = tuple[NDArray[np.int32], NDArray[np.int64]]


class BulkTokenizer:
    """Tokenizes many texts at once for one vocabulary and one set of rules."""

    def __init__(self, pieces: Sequence[str], rules: Rules) -> None:
        self._alphabet = Alphabet(rules)
        self._ids = {piece: id for id, piece in enumerate(pieces) if piece}
        self._unk_id = self._ids[UNK]
        letters = Counter("".join(self._ids))
        # Code 0 is for letters that are in no piece. Frequent letters get low numbers, which makes the trie dense.
        self._codes = {letter: code for code, (letter, _) in enumerate(letters.most_common(), start=1)}
        # One Python int per id: lists of ids are filled with pointers to them, which is faster than making new ints,
        # and the garbage collector does not visit an array of them.
        self.shared_ints = np.array(range(len(pieces)), dtype=object)
        self._num_sequences = 0
        self._tables = Tables(
            entries=np.full(_NUM_POINTS, _UNKNOWN, np.int32),
            neighbours=np.full(_NUM_POINTS, UNMET, np.uint8),
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
            num_texts, num_tokens = tokenize(points, text_ends, num_texts, num_tokens, self._tables, rows, counts)
            if num_texts < len(texts):
                self._look_up(points)
        return rows[:num_tokens].copy(), counts

    def encode(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        special_ids: tuple[int, int],
        max_length: int | None,
        truncation: Truncation,
    ) -> "AssembledColumns":
        """Return texts, or pairs of them, as model inputs; `special_ids` are the ids of [CLS] and [SEP]."""
        parts = [self.tokenize(texts)] + ([self.tokenize(pairs)] if pairs is not None else [])
        return AssembledColumns(parts, max_length, truncation, special_ids, self.shared_ints)

    def _build_trie(self) -> NDArray[np.int32]:
        firsts = [(piece, id) for piece, id in self._ids.items()]
        rests = [(piece[2:], id) for piece, id in self._ids.items() if piece[:2] == CONTINUATION and piece[2:]]
        letters = np.array([self._codes[c] for piece, _ in firsts + rests for c in piece], np.int64)
        lengths = np.array([len(piece) for piece, _ in firsts + rests], np.int64)
        ids = np.array([id for _, id in firsts + rests], np.int64)
        return build_trie(letters, lengths, ids, len(firsts), len(self._codes) + 1)  # type: ignore[no-any-return]

    def _look_up(self, points: NDArray[np.int32]) -> None:
        """Fill the tables for code points that occur for the first time."""
        entries, neighbours = self._tables.entries, self._tables.neighbours
        with _TABLES_LOCK:
            for point in np.unique(points[entries[points] == _UNKNOWN]).tolist():
                character = self._alphabet.classify(chr(point))
                neighbours[point] = _NEIGHBOURS[character.beside_sigma]
                entries[point] = self._entry(character)

    def _entry(self, character: normalize.Character) -> int:
        kind, letters = _KINDS[character.kind], character.letters
        value = 0
        if kind == MARK:
            value = int(character.stops_reordering)
        elif kind == ALONE:
            value = self._ids.get(letters, self._unk_id)
        elif kind == LETTER and (len(letters) > 1 or character.orders):
            kind, value = SEQUENCE, self._add_sequence(letters, character.orders)
        elif kind == LETTER:
            value = self._codes.get(letters, 0)
        return kind << KIND_SHIFT | value

    def _add_sequence(self, letters: str, orders: tuple[int, ...]) -> int:
        """Store the letters of one character; returns a value that encodes their index and their number."""
        assert len(letters) <= _MAX_LETTERS
        first = self._num_sequences
        for letter, order in zip(letters, (0,) * (len(letters) - len(orders)) + orders, strict=True):
            self._tables.sequences[self._num_sequences] = self._codes.get(letter, 0), order
            self._num_sequences += 1
        return first << 2 | len(letters)


# [CLS] and [SEP] around the tokens of many texts at once, and truncation: the compiled end of `encode_batch`.
# The ids are computed at once, the other columns when they are first read.


class AssembledColumns:
    """The columns of texts, or of pairs of texts, as concatenated model inputs."""

    def __init__(
        self,
        parts: Sequence[Tokens],
        max_length: int | None,
        truncation: Truncation,
        special_ids: tuple[int, int],
        shared_ints: NDArray[np.object_],
    ) -> None:
        self._parts = parts
        self._kept = np.stack([counts for _, counts in parts])
        if max_length is not None:
            firsts = self._kept[0].tolist()
            seconds = self._kept[1].tolist() if len(parts) == 2 else [0] * len(firsts)
            lengths = zip(firsts, seconds, strict=True)
            kept = [kept_lengths(first, second or None, max_length, truncation) for first, second in lengths]
            self._kept = (
                np.array([(first, second or 0)[: len(parts)] for first, second in kept]).reshape(-1, len(parts)).T
            )
        self._with_signs = self._kept + 1  # a [SEP] after each, but not after a second text without tokens
        self._with_signs[1:] -= self._kept[1:] == 0
        ends = np.cumsum(self._with_signs.sum(axis=0) + 1)
        self._starts = np.concatenate([[0], ends[:-1]])
        self.bounds: list[int] = [0, *ends.tolist()]
        self.ids = shared_ints[self._concatenate(ID, *special_ids)]

    @cached_property
    def segment_ids(self) -> NDArray[np.int64]:
        """0 for the first text, 1 for the second."""
        lengths = self._with_signs.copy()
        lengths[0] += 1  # [CLS]
        return np.repeat(np.tile(np.arange(len(lengths)), lengths.shape[1]), lengths.T.ravel())

    @cached_property
    def starts(self) -> NDArray[np.int32]:
        """Where each token begins in its text."""
        return self._concatenate(START, 0, 0)

    @cached_property
    def ends(self) -> NDArray[np.int32]:
        """Where each token ends in its text."""
        return self._concatenate(END, 0, 0)

    @cached_property
    def word_ids(self) -> NDArray[np.int32]:
        """The number of the word each token is part of, NO_WORD for [CLS] and [SEP]."""
        return self._concatenate(WORD, NO_WORD, NO_WORD)

    def _concatenate(self, column: int, of_cls: int, of_sep: int) -> NDArray[np.int32]:
        values = np.empty(self.bounds[-1], np.int32)
        values[self._starts] = of_cls
        positions = self._starts + 1
        for (rows, counts), kept, lengths in zip(self._parts, self._kept, self._with_signs, strict=True):
            _copy_column(rows, column, counts, kept, lengths, positions, of_sep, values)
            positions = positions + lengths
        return values


@compiled
def _copy_column(
    rows: Any, column: int, counts: Any, kept: Any, lengths: Any, positions: Any, of_sep: int, values: Any
) -> None:
    """Copy one column of the kept tokens of each text to its position, and the value for [SEP] if one follows."""
    first = 0
    for text in range(len(counts)):
        for row in range(kept[text]):
            values[positions[text] + row] = rows[first + row, column]
        if lengths[text] > kept[text]:
            values[positions[text] + kept[text]] = of_sep
        first += counts[text]
