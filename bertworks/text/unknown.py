"""How much of a text a vocabulary does not know: who took the wrong one should hear of it before training on it."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.text.vocabulary import UNK

_MUCH = 0.05  # of the text of `mini`, in the vocabulary that was made of it, 0.015 % are


def much_unknown(pieces: Sequence[str], arrays: Iterable[NDArray[Any]]) -> str:
    """Say how many of some ids are [UNK], if they are many; "" where they are not, or nothing is called that."""
    if UNK not in pieces:
        return ""
    unknown, total, id = 0, 0, pieces.index(UNK)
    for ids in arrays:
        unknown, total = unknown + int(np.count_nonzero(ids == id)), total + len(ids)
    if unknown <= _MUCH * total:
        return ""
    return f"{unknown / total:.1%} of the tokens are {UNK}; is the vocabulary one for this language?"
