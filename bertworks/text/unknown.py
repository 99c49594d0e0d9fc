"""How much of a text a vocabulary does not know: who took the wrong one should hear of it before counting on it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.text.gpt_bpe import UNK as GPT_UNK
from bertworks.text.vocabulary import UNK
from bertworks.text.words import UNK as WORD_UNK

# What is much, of each vocabulary's name for the unknown. Of the text of `mini`, in the vocabulary that was made of
# it, 0.015 % are [UNK]; a list of words is never complete.
_MUCH = {UNK: 0.05, GPT_UNK: 0.05, WORD_UNK: 0.2}


class UnknownCount:
    """Counts the tokens that a vocabulary, given by its pieces, does not know."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._name = next((name for name in _MUCH if name in pieces), "")
        self._id = pieces.index(self._name) if self._name else -1
        self._unknown = self._total = 0

    def add(self, ids: NDArray[Any]) -> None:
        """Count some more."""
        self._unknown += int(np.count_nonzero(ids == self._id))
        self._total += len(ids)

    def said(self) -> str:
        """Say how many are unknown, if they are many; "" where they are not, or nothing has such a name."""
        if not self._name or self._unknown <= _MUCH[self._name] * self._total:
            return ""
        return (
            f"{self._unknown / self._total:.1%} of the tokens are {self._name}; is the vocabulary one for this "
            "language? Hangul in parts (NFD), as Macs write it, must be composed"
        )


def much_unknown(pieces: Sequence[str], arrays: Iterable[NDArray[Any]]) -> str:
    """Say how many of some ids are unknown, if they are many."""
    count = UnknownCount(pieces)
    for ids in arrays:
        count.add(ids)
    return count.said()
