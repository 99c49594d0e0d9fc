"""What a text becomes: ids with the tokens, offsets, segments and word numbers behind them.

An `Encoding` is a window on columns that many texts share, and `Encodings` makes these windows when they are asked for:
a million texts of which only the ids are read cost their ids, not a million objects for the garbage collector to visit.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple, Protocol, overload

from bertworks.errors import UserError

Truncation = Literal["longest_first", "only_second"] | None
TRUNCATIONS = ("longest_first", "only_second", None)
NO_WORD = -1  # the word number of [CLS] and [SEP]


class Columns(Protocol):
    """A column per property and a row per token: lists from the plain way, arrays from the compiled one."""

    @property
    def ids(self) -> Any:
        """The number of each token in the vocabulary."""

    @property
    def segment_ids(self) -> Any:
        """0 for the first text, 1 for the second."""

    @property
    def starts(self) -> Any:
        """Where each token begins in its text."""

    @property
    def ends(self) -> Any:
        """Where each token ends in its text."""

    @property
    def word_ids(self) -> Any:
        """The number of the word each token is part of, NO_WORD for [CLS] and [SEP]."""


class ListColumns(NamedTuple):
    """Columns to append to."""

    ids: list[int]
    segment_ids: list[int]
    starts: list[int]
    ends: list[int]
    word_ids: list[int]


class Encoding:
    """One encoded text, or pair of texts."""

    __slots__ = ("_columns", "_first", "_last", "_pieces")

    def __init__(self, columns: Columns, first: int, last: int, pieces: Sequence[str]) -> None:
        self._columns, self._first, self._last, self._pieces = columns, first, last, pieces

    def __len__(self) -> int:
        return self._last - self._first

    def __repr__(self) -> str:
        return f"Encoding(tokens={self.tokens!r})"

    @property
    def ids(self) -> list[int]:
        """The number of each token in the vocabulary."""
        return self._read(self._columns.ids)

    @property
    def segment_ids(self) -> list[int]:
        """0 for the first text, 1 for the second."""
        return self._read(self._columns.segment_ids)

    @property
    def tokens(self) -> list[str]:
        """The pieces as text, `##` marking those that continue a word."""
        return [self._pieces[id] for id in self.ids]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token stands: `text[start:end]` of the text it comes from; (0, 0) for [CLS] and [SEP]."""
        return list(zip(self._read(self._columns.starts), self._read(self._columns.ends), strict=True))

    @property
    def word_ids(self) -> list[int | None]:
        """The number of the word each token is part of, counted from 0 in each text; None for [CLS] and [SEP]."""
        return [None if number == NO_WORD else number for number in self._read(self._columns.word_ids)]

    def cut(self, length: int) -> "Encoding":
        """Return the first tokens, at most so many."""
        return Encoding(self._columns, self._first, min(self._last, self._first + length), self._pieces)

    def _read(self, column: Any) -> list[int]:
        rows = column[self._first : self._last]
        return rows if isinstance(rows, list) else rows.tolist()


class Encodings(Sequence[Encoding]):
    """The encodings of many texts, in their order; reads like a list."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._chunks: list[tuple[Columns, list[int]]] = []  # with the rows at which texts begin and end
        self._first_texts = [0]  # of each chunk, and the number of all texts

    def add(self, columns: Columns, bounds: list[int]) -> None:
        """Append the texts of which each takes the rows from one bound to the next."""
        self._chunks.append((columns, bounds))
        self._first_texts.append(len(self) + len(bounds) - 1)

    def __len__(self) -> int:
        return self._first_texts[-1]

    def __iter__(self) -> Iterator[Encoding]:
        for columns, bounds in self._chunks:
            for first, last in itertools.pairwise(bounds):
                yield Encoding(columns, first, last, self._pieces)

    @overload
    def __getitem__(self, index: int) -> Encoding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Encoding]: ...
    def __getitem__(self, index: int | slice) -> Encoding | list[Encoding]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        chunk = bisect_right(self._first_texts, number) - 1
        columns, bounds = self._chunks[chunk]
        place = number - self._first_texts[chunk]
        return Encoding(columns, bounds[place], bounds[place + 1], self._pieces)


def kept_lengths(
    first: int, second: int | None, max_length: int | None, truncation: Truncation
) -> tuple[int, int | None]:
    """Return how many tokens of each text stay, so that with [CLS] and [SEP] there are at most `max_length`.

    `longest_first` takes from the end of the longer text, of the second where they are equal, as the original does.
    """
    if max_length is None:
        return first, second
    num_special = 2 if second is None else 3
    room = max_length - num_special
    if first + (second or 0) <= room:
        return first, second
    if truncation is None:
        total = first + (second or 0) + num_special
        raise UserError(
            f"{total} tokens with [CLS] and [SEP], but max_length is {max_length}; "
            'shorten the text or pass truncation="longest_first"'
        )
    if truncation == "longest_first":
        if second is None:
            return room, None
        half = room // 2
        return min(first, max(room - half, room - second)), min(second, max(half, room - first))
    if second is None or first > room:
        what = "there is no second text" if second is None else f"the first text alone has {first} tokens"
        raise UserError(f"truncation='only_second' cannot reach max_length {max_length}: {what}")
    return first, room - first


def check_truncation(max_length: int | None, truncation: Truncation, *, has_pair: bool) -> None:
    """Refuse settings under which no text could be encoded."""
    if truncation not in TRUNCATIONS:
        raise UserError(f"truncation={truncation!r} is not known; use 'longest_first', 'only_second' or None")
    smallest = 3 if has_pair else 2
    if max_length is not None and max_length < smallest:
        raise UserError(f"max_length={max_length} is too small: [CLS] and [SEP] alone take {smallest}")
