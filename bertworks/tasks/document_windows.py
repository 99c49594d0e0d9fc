"""Where to cut a document that is longer than a model reads: once for training, overlapping for prediction.

Training reads every piece once. Windows lie side by side and are of like size, for a short rest would have no context;
they end where sentences end, or words where a sentence is too long, or anywhere where a word is.

Prediction wants as much text as there is on both sides of every word. Windows are as long as the model reads and start
a stride apart; a word is labelled in the window in whose middle it is, so only words near a document's ends stand near
a window's. With a stride of half a window everything is read twice, and each word has a quarter of a window beside it.
"""

import math

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]


def side_by_side(num_pieces: int, room: int, sentence_starts: Places, word_starts: Places) -> Places:
    """Return where windows of at most `room` pieces start, and where the last one ends.

    Args:
        num_pieces: of the document.
        room: the most pieces of a window.
        sentence_starts: where it is best to cut, ascending.
        word_starts: where it is second best.
    """
    cuts = [0]
    while (left := num_pieces - cuts[-1]) > room:
        wish = cuts[-1] + left / math.ceil(left / room)
        cuts.append(
            _nearest(sentence_starts, wish, cuts[-1], room) or _nearest(word_starts, wish, cuts[-1], room)
            or cuts[-1] + room
        )  # fmt: skip
    return np.array([*cuts, num_pieces], np.int64)


def _nearest(places: Places, wish: float, first: int, room: int) -> int | None:
    """Return the place nearest to the wish that makes a window that is not empty and not too long."""
    after = int(np.searchsorted(places, wish))
    allowed = [int(place) for place in places[max(after - 1, 0) : after + 1] if first < place <= first + room]
    return min(allowed, key=lambda place: abs(place - wish), default=None)


def overlapping(num_pieces: int, room: int, stride: int) -> Places:
    """Return where windows of `room` pieces start; the last one ends with the document."""
    last = max(num_pieces - room, 0)
    return np.append(np.arange(0, last, stride), last)


def most_central(places: Places, starts: Places, room: int) -> Places:
    """Return for each place the window that has most text on the side where it has less: the nearest middle."""
    return np.searchsorted(starts[1:] + starts[:-1] + room - 1, 2 * places)
