"""The compiled loop: code points in, rows of tokens out.

Everything that is compiled into `tokenize` stands in this file, because numba renews what it keeps on disk when this
file changes and not when another does.
"""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numba
import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numpy.typing import NDArray

from bertworks.text.wordpiece import MAX_WORD_LENGTH

# An entry says what the rules make of a code point: a kind, and below it a value of 28 bits. Plain letters are kind 0,
# so that their entry is just the number of the letter in the vocabulary's alphabet.
LETTER, SPACE, DROP, MARK, ALONE, SEQUENCE, SIGMA, UNKNOWN = range(8)
KIND_SHIFT = 28
_VALUE = (1 << KIND_SHIFT) - 1

# What a neighbour says about a capital sigma, and the sigma's form.
UNCASED, LOOK_THROUGH, CASED, BOUNDARY, UNMET = range(5)
_INNER, _FINAL, _NOT_YET = range(3)

ID, START, END, WORD = range(4)  # the columns of a token: its id, where it stands in its text, the number of its word

BASE, CHECK, PIECE = range(3)  # the columns of a trie's slot, see trie.py
ROOT, ROOT_OF_CONTINUATIONS = 0, 1

if hasattr(os, "register_at_fork"):
    # A process forked while another thread compiles would wait for ever for a lock that nobody in it holds.
    os.register_at_fork(
        before=global_compiler_lock.acquire,
        after_in_parent=global_compiler_lock.release,
        after_in_child=global_compiler_lock.release,
    )


class Tables(NamedTuple):
    """What the compiled loop looks things up in."""

    entries: NDArray[np.int32]  # by code point: what the rules make of it; UNKNOWN until it is met
    neighbours: NDArray[np.uint8]  # by code point: what it says about a sigma beside it; UNMET until it is met
    sequences: NDArray[np.int32]  # (letter, combining class) of characters that become several; the first are σ and ς
    trie: NDArray[np.int32]
    unk_id: int


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile with numba; without a place to write, the result is not kept on disk."""
    try:
        return numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        return numba.njit(nogil=True)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile into the caller: a call would count references to its arrays, half the cost of the whole loop."""
    return numba.njit(inline="always")(function)


@inlined
def _sigma_form(points: Any, index: int, first: int, neighbours: Any) -> int:
    """Return the form of a sigma: final where a cased character stands before it and none after.

    A line end closes the text. Behind an unmet character the form is not to be told yet, and not to be guessed: by the
    time the loop comes there, another thread may have filled in the character.
    """
    before = UNCASED
    for place in range(index - 1, first - 1, -1):
        before = neighbours[points[place]]
        if before != LOOK_THROUGH:
            break
    place = index + 1
    while neighbours[points[place]] == LOOK_THROUGH:
        place += 1
    after = neighbours[points[place]]
    if after == UNMET:
        return _NOT_YET
    return _FINAL if before == CASED and after != CASED else _INNER


@inlined
def _put_combining(letters: Any, orders: Any, length: int, run_start: int, letter: int, order: int) -> None:
    """Insert a combining letter where canonical order has it in the run at the end of the word."""
    position = length
    while position > run_start and orders[position - 1] > order:
        letters[position] = letters[position - 1]
        orders[position] = orders[position - 1]
        position -= 1
    letters[position] = letter
    orders[position] = order


@inlined
def _match_pieces(letters: Any, length: int, trie: Any, unk_id: int, rows: Any, first_row: int) -> int:
    """Split a word into the longest pieces: their ids, and as END where they end in the word; returns how many."""
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
    """Tokenize texts until all are done or one has an unknown code point; returns how far it came.

    That is the texts done and their tokens; the text at fault is begun again in the next call. Each text in `points`
    ends with a line end, which also ends its last word.
    """
    entries, neighbours, sequences, trie, unk_id = tables
    letters = np.zeros(MAX_WORD_LENGTH, np.int32)
    orders = np.zeros(MAX_WORD_LENGTH, np.int32)  # combining classes; written only for letters that have one
    starts = np.zeros(MAX_WORD_LENGTH, np.int32)
    marks = np.zeros(MAX_WORD_LENGTH, np.int32)  # how many accents behind a letter were taken off
    for text in range(first_text, len(text_ends)):
        first = text_ends[text - 1] if text else 0
        count_before, number = count, 0
        length, end, run_start, has_marks = 0, 0, 0, False  # of the word under way
        for index in range(first, text_ends[text]):
            place = index - first
            entry = entries[points[index]]
            if entry <= _VALUE:
                if length < MAX_WORD_LENGTH:
                    letters[length] = entry
                    starts[length] = place
                length += 1
                end = place + 1
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
                if length and end == place:
                    end += 1
                    marks[min(length, MAX_WORD_LENGTH) - 1] += 1
                    has_marks = True
                elif not length and count > count_before and rows[count - 1, END] == place:
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
                        starts[length] = place
                    length += 1
                    end = place + 1
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
                rows[count, START] = place
                rows[count, END] = place + 1
                rows[count, WORD] = number
                count += 1
                number += 1
        counts[text] = count - count_before
    return len(text_ends), count
