"""Tagging: from sentences to windows with a label for each unit, and back; with the document around them.

The paper's NER reads "the maximal document context": the sentences of a document are laid end to end, and a model reads
as much of them as it can at once (`document_windows.py`). A sentence is split into pieces by itself, so its words give
the same pieces in any context. A unit (a word, or a character) is labelled by the first piece that starts in it, once,
in one window. A unit in which none starts but into which one reaches (KLUE's characters) goes on with that piece's
label, B- becoming I-; one without any (a control character) is O.

Units are counted over all examples, so that windows, which may hold parts of many, need not know of examples.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.tasks.conll import OUTSIDE
from bertworks.tasks.examples import Context, TagExample
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP

# Where to cut a document that is longer than a model reads: once for training, overlapping for prediction.
#
# Training reads every piece once. Windows lie side by side and are of like size, for a short rest would have no
# context; they end where sentences end, or words where a sentence is too long, or anywhere where a word is.
#
# Prediction wants as much text as there is on both sides of every word. Windows are as long as the model reads and
# start a stride apart; a word is labelled in the window in whose middle it is, so only words near a document's ends
# stand near a window's. With a stride of half a window everything is read twice, and each word has a quarter of a
# window beside it.


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


# The pieces of texts as arrays, each with its place in the text: what windows are cut from.


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


UNKNOWN = -1  # the target of a unit that has no tag
NO_UNIT = -1
_NUM_SPECIAL = 2
_Numbers = NDArray[np.int64]


class TagWindow(NamedTuple):
    """What a model reads at once, and which of its tokens label a unit."""

    ids: NDArray[np.int32]  # [CLS] and [SEP] included
    places: _Numbers  # of the labelling tokens in `ids`
    units: _Numbers  # what each labels
    targets: _Numbers  # the number of its right label, or UNKNOWN

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """A document is one segment."""
        return np.zeros_like(self.ids)


class TagWindows(NamedTuple):
    """The windows of some examples, and what is needed to come back to them."""

    windows: list[TagWindow]
    bounds: _Numbers  # example i has the units from bounds[i] to bounds[i + 1]
    labelled_by: _Numbers  # for each unit the one whose piece labels it, mostly itself; NO_UNIT: none does


class _Document(NamedTuple):
    """Sentences end to end."""

    ids: NDArray[np.int32]
    sentence_starts: _Numbers
    places: _Numbers  # of the pieces that label a unit
    units: _Numbers


def encode_tags(
    tokenizer: Tokenizer,
    examples: Sequence[TagExample],
    labels: Sequence[str] = (),
    *,
    max_length: int,
    context: Context = "document",
    is_training: bool = False,
    stride: int | None = None,
) -> TagWindows:
    """Lay examples into windows.

    Args:
        tokenizer: the model's.
        examples: sentences, those of a document one after the other.
        labels: in the order of the model's outputs; without them targets are unknown.
        max_length: the most tokens of a window, [CLS] and [SEP] included.
        context: whether a sentence is read with its document, or alone.
        is_training: side by side, every piece once; otherwise overlapping.
        stride: how far apart overlapping windows start; half a window without it.
    """
    room = max_length - _NUM_SPECIAL
    if room < 1:
        raise UserError(f"max_length={max_length} is too small: [CLS] and [SEP] alone take {_NUM_SPECIAL}")
    if context not in get_args(Context):
        raise UserError(f"context={str(context)[:40]!r} is not known; choose {' or '.join(get_args(Context))}")
    stride = max(room // 2, 1) if stride is None else stride
    if not 1 <= stride <= room:
        raise UserError(f"stride={stride} is not possible; windows of max_length {max_length} allow 1 to {room}")
    bounds = np.cumsum([0, *(len(example.spans) for example in examples)])
    targets = _targets(examples, labels, int(bounds[-1]))
    labelled_by = np.full(bounds[-1], NO_UNIT, np.int64)
    ends = np.array([tokenizer.id_of(CLS), tokenizer.id_of(SEP)], np.int32)
    windows = []
    for document in _documents(tokenizer, examples, bounds, labelled_by, context):
        for first, last, labelled in _cut(document, room, None if is_training else stride):
            ids = np.concatenate([ends[:1], document.ids[first:last], ends[1:]])
            units = document.units[labelled]
            windows.append(TagWindow(ids, document.places[labelled] - first + 1, units, targets[units]))
    return TagWindows(windows, bounds, labelled_by)


def _targets(examples: Iterable[TagExample], labels: Sequence[str], num_units: int) -> _Numbers:
    numbers = {label: number for number, label in enumerate(labels)}
    if not numbers:
        return np.full(num_units, UNKNOWN, np.int64)
    found: list[int] = []
    for example in examples:
        if example.tags is None:
            found += [UNKNOWN] * len(example.spans)
            continue
        try:
            found += [numbers[tag] for tag in example.tags]
        except KeyError as error:
            raise UserError(
                f"sentence {example.id[:40]}: {error} is not a label here; allowed: {', '.join(labels)}"
            ) from error
    return np.array(found, np.int64)


def _documents(
    tokenizer: Tokenizer,
    examples: Sequence[TagExample],
    bounds: _Numbers,
    labelled_by: _Numbers,
    context: Context,
) -> Iterator[_Document]:
    """Yield documents one by one, and note in `labelled_by` what labels each unit."""
    pieces = pieces_of(tokenizer, [example.text for example in examples])
    numbered = zip(range(len(examples)), pieces, strict=True)
    for _, sentences in groupby(numbered, lambda one: examples[one[0]].document if context == "document" else one[0]):
        ids, starts, places, units = list[NDArray[np.int32]](), [0], list[_Numbers](), list[_Numbers]()
        for number, sentence in sentences:
            firsts, own, sources = _labelling(sentence, examples[number].spans)
            begin, end = bounds[number], bounds[number + 1]
            labelled_by[begin:end] = np.where(sources == NO_UNIT, NO_UNIT, sources + begin)
            ids.append(sentence.ids)
            places.append(firsts + starts[-1])
            units.append(own + begin)
            starts.append(starts[-1] + len(sentence.ids))
        yield _Document(np.concatenate(ids), np.array(starts[:-1]), np.concatenate(places), np.concatenate(units))


def _labelling(pieces: Pieces, spans: Sequence[tuple[int, int]]) -> tuple[_Numbers, _Numbers, _Numbers]:
    """Return the pieces that label a unit, these units, and for every unit the one that it takes its label from."""
    starts, ends = np.array(spans, np.int64).reshape(-1, 2).T
    unit_of = np.searchsorted(starts, pieces.starts, "right") - 1
    if len(starts):
        unit_of[pieces.starts >= ends[unit_of]] = NO_UNIT
    units, firsts = np.unique(unit_of, return_index=True)
    units, firsts = units[units != NO_UNIT], firsts[units != NO_UNIT]
    sources = np.full(len(starts), NO_UNIT, np.int64)
    before = np.searchsorted(pieces.starts, starts) - 1  # the last piece that starts before the unit
    reached = (before >= 0) & (np.append(pieces.ends, 0)[before] > starts)
    sources[reached] = unit_of[before[reached]]
    sources[units] = units
    return firsts, units, sources


def _cut(document: _Document, room: int, stride: int | None) -> Iterator[tuple[int, int, slice]]:
    """Yield each window's first piece, the one behind its last, and which units it labels."""
    num_pieces = len(document.ids)
    if stride is None:
        cuts = side_by_side(num_pieces, room, document.sentence_starts, document.places)
        starts, ends = cuts[:-1], cuts[1:]
        bounds = np.searchsorted(document.places, cuts)
    else:
        starts = overlapping(num_pieces, room, stride)
        ends = np.minimum(starts + room, num_pieces)
        chosen = most_central(document.places, starts, room)
        bounds = np.searchsorted(chosen, np.arange(len(starts) + 1))
    for number, (first, last) in enumerate(zip(starts.tolist(), ends.tolist(), strict=True)):
        if bounds[number] < bounds[number + 1]:  # where no unit is labelled there is nothing to compute
            yield first, last, slice(bounds[number], bounds[number + 1])


class UnitLabels(NamedTuple):
    """What a model says of each unit that a piece of its own labels."""

    numbers: _Numbers  # of its best label
    scores: NDArray[np.float32]  # how likely that is


def unit_labels(encoded: TagWindows, logits: Iterable[tuple[int, NDArray[np.float32]]]) -> UnitLabels:
    """Choose the best label of each unit.

    Args:
        encoded: the windows.
        logits: (number of a window, [labelled tokens, labels]) for every window, in any order.
    """
    num_units = int(encoded.bounds[-1])
    numbers, scores = np.zeros(num_units, np.int64), np.zeros(num_units, np.float32)
    for window, rows in logits:
        best = rows.argmax(-1)
        units = encoded.windows[window].units
        numbers[units] = best
        scores[units] = 1 / np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)
    return UnitLabels(numbers, scores)


def decode_tags(encoded: TagWindows, found: UnitLabels, labels: Sequence[str]) -> list[list[str]]:
    """Return a tag for each unit of each example, in the order of the examples."""
    numbers, labelled_by = found.numbers.tolist(), encoded.labelled_by.tolist()
    tags = []
    for unit, source in enumerate(labelled_by):
        if source == NO_UNIT:
            tags.append(OUTSIDE)
        else:
            tags.append(labels[numbers[source]] if source == unit else _going_on(labels[numbers[source]]))
    return [tags[first:last] for first, last in zip(encoded.bounds[:-1], encoded.bounds[1:], strict=True)]


def _going_on(tag: str) -> str:
    prefix, dash, kind = tag.partition("-")
    return f"I-{kind}" if dash and len(prefix) == 1 else tag
