"""From a function that splits a word to the tokens of whole texts: one text with offsets, or many texts as ids alone.

Words do not reach over white space, so the ids of a part between white space depend on that part alone. `IdsByWords`
works each part out once and remembers it: ordinary text then costs a look into a dict for each of its words. What it
remembers is bounded, and what is long is not remembered.
"""

import itertools
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from bertworks.errors import UserError
from bertworks.text.encoding import NO_WORD, ListColumns, Truncation, kept_lengths
from bertworks.text.normalize import Alphabet, Rules, split_spaces, split_words, words_of
from bertworks.text.wordpiece import Match

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Split = Callable[[str], list[Match]]

_MAX_REMEMBERED = 1 << 19  # parts; about 100 MB
_MAX_REMEMBERED_IDS = 1 << 23
_LONGEST_REMEMBERED = 64  # characters


def columns_by_words(text: str, alphabet: Alphabet, split: Split, *, segment_id: int = 0) -> ListColumns:
    """Return the tokens of a text with their places in it."""
    columns = ids, segment_ids, starts, ends, word_ids = ListColumns([], [], [], [], [])
    for number, (word, letter_starts, letter_ends) in enumerate(split_words(text, alphabet)):
        for id, start, end in split(word):
            ids.append(id)
            starts.append(letter_starts[start])
            ends.append(letter_ends[end - 1])
            word_ids.append(number)
    segment_ids.extend([segment_id] * len(ids))
    return columns


def pair_columns(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    columns_of: Callable[[str, int], ListColumns],
    signs: tuple[int, int],
    max_length: int | None,
    truncation: Truncation,
) -> tuple[ListColumns, list[int]]:
    """Return texts, or pairs of them, end to end, and the rows at which each begins and ends.

    A second text of which no token is left gets no sign either, as in the original's run_classifier.py.

    Args:
        texts: the first text of each pair.
        pairs: the second ones.
        columns_of: gives the tokens of a text, given its segment.
        signs: the ids that stand before a text, and behind every text.
        max_length: of a pair with its signs.
        truncation: what to shorten.
    """
    begin, end = signs
    columns, bounds = ListColumns([], [], [], [], []), [0]
    for text, pair in zip(texts, pairs or itertools.repeat(None, len(texts)), strict=True):
        first = columns_of(text, 0)
        second = None if pair is None else columns_of(pair, 1)
        kept = kept_lengths(len(first.ids), (second and len(second.ids)) or None, max_length, truncation)
        _add_sign(columns, begin, 0)
        for part, length, segment_id in zip((first, second), kept, (0, 1), strict=True):
            if part is not None and (length or not segment_id):
                for column, added in zip(columns, part, strict=True):
                    column.extend(added[:length])
                _add_sign(columns, end, segment_id)
        bounds.append(len(columns.ids))
    return columns, bounds


def _add_sign(columns: ListColumns, id: int, segment_id: int) -> None:
    for column, value in zip(columns, (id, segment_id, 0, 0, NO_WORD), strict=True):
        column.append(value)


def check_text(text: object) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise UserError(f"a text must be a str, not {type(text).__name__}: {str(text)[:40]!r}")


class IdsByWords:
    """Gives the ids of many texts at once, for one way of splitting words."""

    def __init__(self, split: Split, rules: Rules) -> None:
        self._split, self._alphabet = split, Alphabet(rules)
        self._parts = _Parts(self._work_out)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of all texts end to end, and how many each text has."""
        import numpy as np

        if len(self._parts) > _MAX_REMEMBERED or len(self._parts.ids) > _MAX_REMEMBERED_IDS:
            self._parts = _Parts(self._work_out)
        numbers: list[int] = []
        text_ends = [0]
        for text in texts:
            numbers.extend(map(self._parts.__getitem__, split_spaces(text)))
            text_ends.append(len(numbers))
        parts = np.array(numbers, np.int64)
        bounds = np.array(self._parts.bounds, np.int64)
        lengths = bounds[parts + 1] - bounds[parts]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(ends[-1]) + np.repeat(bounds[parts] - ends[:-1], lengths)
        return np.frombuffer(self._parts.ids, np.int32)[places], np.diff(ends[text_ends])

    def _work_out(self, part: str) -> list[int]:
        return [id for word in words_of(part, self._alphabet) for id, _, _ in self._split(word)]


class _Parts(dict[str, int]):
    """By part: its number. The ids of part i are `ids[bounds[i] : bounds[i + 1]]`."""

    def __init__(self, work_out: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._work_out = work_out
        self.ids, self.bounds = array("i"), array("q", [0])

    def __missing__(self, part: str) -> int:
        number = len(self.bounds) - 1
        self.ids.extend(self._work_out(part))
        self.bounds.append(len(self.ids))
        if len(part) <= _LONGEST_REMEMBERED:
            self[part] = number
        return number
