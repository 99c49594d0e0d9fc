"""[CLS] and [SEP] around the tokens of many texts at once, and truncation: the compiled end of `encode_batch`.

The ids are laid out at once, the other columns when somebody first reads one of them.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.text.bulk import Tokens
from bertworks.text.encoding import NO_WORD, Truncation, kept_lengths
from bertworks.text.kernel import END, ID, START, WORD, compiled


class AssembledColumns:
    """The columns of texts, or of pairs of texts, as model inputs laid end to end."""

    def __init__(
        self,
        parts: Sequence[Tokens],
        max_length: int | None,
        truncation: Truncation,
        special_ids: tuple[int, int],
        shared_ints: NDArray[np.object_],
    ) -> None:
        self._parts = parts
        self._kept = np.stack([part.counts for part in parts])
        if max_length is not None:
            seconds = parts[1].counts.tolist() if len(parts) == 2 else [0] * self._kept.shape[1]
            lengths = zip(parts[0].counts.tolist(), seconds, strict=True)
            kept = [kept_lengths(first, second or None, max_length, truncation) for first, second in lengths]
            self._kept = (
                np.array([(first, second or 0)[: len(parts)] for first, second in kept]).reshape(-1, len(parts)).T
            )
        self._with_signs = self._kept + 1  # a [SEP] after each, but not after a second text without tokens
        self._with_signs[1:] -= self._kept[1:] == 0
        ends = np.cumsum(self._with_signs.sum(axis=0) + 1)
        self._starts = np.concatenate([[0], ends[:-1]])
        self.bounds: list[int] = [0, *ends.tolist()]
        self.ids = shared_ints[self._lay_out(ID, *special_ids)]

    @cached_property
    def segment_ids(self) -> NDArray[np.int64]:
        """0 for the first text, 1 for the second."""
        lengths = self._with_signs.copy()
        lengths[0] += 1  # [CLS]
        return np.repeat(np.tile(np.arange(len(lengths)), lengths.shape[1]), lengths.T.ravel())

    @cached_property
    def starts(self) -> NDArray[np.int32]:
        """Where each token begins in its text."""
        return self._lay_out(START, 0, 0)

    @cached_property
    def ends(self) -> NDArray[np.int32]:
        """Where each token ends in its text."""
        return self._lay_out(END, 0, 0)

    @cached_property
    def word_ids(self) -> NDArray[np.int32]:
        """The number of the word each token is part of, NO_WORD for [CLS] and [SEP]."""
        return self._lay_out(WORD, NO_WORD, NO_WORD)

    def _lay_out(self, column: int, of_cls: int, of_sep: int) -> NDArray[np.int32]:
        laid_out = np.empty(self.bounds[-1], np.int32)
        laid_out[self._starts] = of_cls
        places = self._starts + 1
        for part, kept, lengths in zip(self._parts, self._kept, self._with_signs, strict=True):
            _copy_column(part.rows, column, part.counts, kept, lengths, places, of_sep, laid_out)
            places = places + lengths
        return laid_out


@compiled
def _copy_column(
    rows: Any, column: int, counts: Any, kept: Any, lengths: Any, places: Any, of_sep: int, laid_out: Any
) -> None:
    """Copy one column of the kept tokens of each text to its place, and the value for [SEP] if one follows."""
    first = 0
    for text in range(len(counts)):
        for row in range(kept[text]):
            laid_out[places[text] + row] = rows[first + row, column]
        if lengths[text] > kept[text]:
            laid_out[places[text] + kept[text]] = of_sep
        first += counts[text]
