"""The pieces of texts as arrays, each with its place in the text: what windows are cut from."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.text.tokenizer import Tokenizer


class Pieces(NamedTuple):
    """A text's pieces without [CLS] and [SEP]; starts and ends never go back from one piece to the next."""

    ids: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def pieces_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Pieces]:
    """Yield the pieces of each text."""
    for encoding in tokenizer.encode_batch(texts):
        spans = np.array(encoding.offsets[1:-1], np.int64).reshape(-1, 2)
        yield Pieces(np.array(encoding.ids[1:-1], np.int32), spans[:, 0], spans[:, 1])
