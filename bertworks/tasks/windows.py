"""Texts longer than a model reads: cut into windows, and the predictions for windows put together again.

Tagging. The paper's NER reads "the maximal document context": the sentences of a document are concatenated, and a model
reads as much of them as it can at once. A sentence is split into pieces by itself, so its words give the same pieces
in any context. A unit (a word, or a character) is labelled by the first piece that starts in it, once, in one window.
If no piece starts in a unit but one extends into it (KLUE's characters), the unit continues that piece's label, B-
becoming I-; a unit without any piece (a control character) is O. Units are numbered over all examples, so that windows,
which may hold parts of several, need no examples. In training every piece is read once: windows are adjacent and of
similar size, because a short last one would have no context. In prediction every word should have as much context as
possible on both sides: windows are as long as the model reads and start a stride apart, and a word is labelled in the
window in which it is nearest to the middle. With a stride of half a window everything is read twice, and each word has
at least a quarter of a window on either side, but at the ends of a document.

Answers, as the original does it: [CLS] question [SEP] part of the context [SEP]. A question has at most 64 pieces, a
window at most 384 tokens, and windows start 128 pieces of the context apart until one reaches its end. A window that
does not hold the whole answer, and every window of a question that has none, points at [CLS]. Answers become pieces and
pieces become text by their character offsets in the context, so that nothing is searched for or aligned again. A piece
that is in several windows may start an answer only where it has most context: the smaller of what is on its left and on
its right counts, and a hundredth of the window's size.

Every pair of a start and an end in a window competes (the original looks at the 20 best starts and ends, which may miss
the best pair), if the answer has at most 30 pieces. The score of a pair is the sum of its two; that of "no answer" the
sum at [CLS], the lowest of all windows. `null_odds` is how far "no answer" is above the best answer; where it is above
a threshold, the question has none. The paper's tau is the threshold with the other sign.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import NamedTuple, get_args

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.tasks.conll import OUTSIDE
from bertworks.tasks.metrics import score_squad2
from bertworks.tasks.task import NOT_LOCATED, Context, Cut, Skipped, SpanExample, TagExample
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP

UNKNOWN = -1  # the target of a unit that has no tag
NO_UNIT = -1
NO_ANSWER = 0  # the position of [CLS]
ORIGINAL_CUT = Cut(max_length=384, doc_stride=128, max_query=64)  # the original code's
N_BEST = 20
MAX_ANSWER_LENGTH = 30
ODDS_WITHOUT_A_SPAN = 1e9  # of a context in which there is nothing to answer with; JSON has no infinity
_TAG_SPECIAL, _ANSWER_SPECIAL = 2, 3  # special tokens of a window
_Numbers = NDArray[np.int64]
_Scores = NDArray[np.float32]


class Pieces(NamedTuple):
    """A text's pieces without [CLS] and [SEP]; starts and ends never go back from one piece to the next."""

    ids: NDArray[np.int32]
    starts: _Numbers
    ends: _Numbers


def pieces_of(tokenizer: Tokenizer, texts: Sequence[str]) -> Iterator[Pieces]:
    """Yield the pieces of each text."""
    for encoding in tokenizer.encode_batch(texts):
        spans = np.array(encoding.offsets[1:-1], np.int64).reshape(-1, 2)
        yield Pieces(np.array(encoding.ids[1:-1], np.int32), spans[:, 0], spans[:, 1])


def side_by_side(num_pieces: int, room: int, sentence_starts: _Numbers, word_starts: _Numbers) -> _Numbers:
    """Return where windows of at most `room` pieces start, and where the last one ends.

    They are cut where sentences start, or words where a sentence is too long, or anywhere where a word is; both are
    ascending.
    """

    def nearest(positions: _Numbers, wish: float, first: int) -> int | None:
        """Return the position nearest to the wish that makes a window that is not empty and not too long."""
        after = int(np.searchsorted(positions, wish))
        both = positions[max(after - 1, 0) : after + 1].tolist()
        allowed = [position for position in both if first < position <= first + room]
        return min(allowed, key=lambda position: abs(position - wish), default=None)

    cuts = [0]
    while (left := num_pieces - cuts[-1]) > room:
        first, wish = cuts[-1], cuts[-1] + left / math.ceil(left / room)
        cuts.append(nearest(sentence_starts, wish, first) or nearest(word_starts, wish, first) or first + room)
    return np.array([*cuts, num_pieces], np.int64)


def overlapping(num_pieces: int, room: int, stride: int) -> _Numbers:
    """Return where windows of `room` pieces start; the last one ends with the document."""
    last = max(num_pieces - room, 0)
    return np.append(np.arange(0, last, stride), last)


def most_central(positions: _Numbers, starts: _Numbers, room: int) -> _Numbers:
    """Return for each piece the window whose middle is nearest, so that the piece has most context on both sides."""
    return np.searchsorted(starts[1:] + starts[:-1] + room - 1, 2 * positions)


class TagWindow(NamedTuple):
    """What a model reads at once, and which of its tokens label a unit."""

    ids: NDArray[np.int32]  # [CLS] and [SEP] included
    positions: _Numbers  # of the labelling tokens in `ids`
    units: _Numbers  # what each labels
    targets: _Numbers  # the number of its right label, or UNKNOWN

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """A document is one segment."""
        return np.zeros_like(self.ids)


class TagWindows(NamedTuple):
    """The windows of some examples, and the numbers that lead back from units to examples."""

    windows: list[TagWindow]
    bounds: _Numbers  # example i has the units from bounds[i] to bounds[i + 1]
    labelled_by: _Numbers  # for each unit the one whose piece labels it, mostly itself; NO_UNIT: none does


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
    """Cut examples into windows.

    Args:
        tokenizer: the model's.
        examples: sentences, those of a document one after the other.
        labels: in the order of the model's outputs; without them targets are unknown.
        max_length: the most tokens of a window, [CLS] and [SEP] included.
        context: whether a sentence is read with its document, or alone.
        is_training: adjacent windows, every piece once; otherwise overlapping ones.
        stride: how far apart overlapping windows start; half a window without it.
    """
    room = max_length - _TAG_SPECIAL
    if room < 1:
        raise UserError(f"max_length={max_length} is too small: [CLS] and [SEP] alone take {_TAG_SPECIAL}")
    if context not in get_args(Context):
        raise UserError(f"context={str(context)[:40]!r} is not known; choose {' or '.join(get_args(Context))}")
    stride = max(room // 2, 1) if stride is None else stride
    if not 1 <= stride <= room:
        raise UserError(f"stride={stride} is not possible; windows of max_length {max_length} allow 1 to {room}")
    bounds = np.cumsum([0, *(len(example.spans) for example in examples)])
    targets = _tag_targets(examples, labels, int(bounds[-1]))
    labelled_by = np.full(bounds[-1], NO_UNIT, np.int64)
    special = np.array([tokenizer.id_of(CLS), tokenizer.id_of(SEP)], np.int32)
    windows = []
    numbered = enumerate(pieces_of(tokenizer, [example.text for example in examples]))
    for _, document in groupby(numbered, lambda one: examples[one[0]].document if context == "document" else one[0]):
        # Its sentences end to end: their pieces, where each starts, and which pieces label which units.
        ids, starts, positions, units = list[NDArray[np.int32]](), [0], list[_Numbers](), list[_Numbers]()
        for number, sentence in document:
            labelling, own, sources = _labelling(sentence, examples[number].spans)
            begin, end = bounds[number], bounds[number + 1]
            labelled_by[begin:end] = np.where(sources == NO_UNIT, NO_UNIT, sources + begin)
            ids.append(sentence.ids)
            positions.append(labelling + starts[-1])
            units.append(own + begin)
            starts.append(starts[-1] + len(sentence.ids))
        ids_T, positions_U, units_U = np.concatenate(ids), np.concatenate(positions), np.concatenate(units)
        if is_training:
            cuts = side_by_side(len(ids_T), room, np.array(starts[:-1]), positions_U)
            firsts, lasts, parts = cuts[:-1], cuts[1:], np.searchsorted(positions_U, cuts)
        else:
            firsts = overlapping(len(ids_T), room, stride)
            lasts = np.minimum(firsts + room, len(ids_T))
            parts = np.searchsorted(most_central(positions_U, firsts, room), np.arange(len(firsts) + 1))
        for number, (first, last) in enumerate(zip(firsts.tolist(), lasts.tolist(), strict=True)):
            part = slice(parts[number], parts[number + 1])
            if part.start < part.stop:  # where no unit is labelled there is nothing to compute
                window_ids = np.concatenate([special[:1], ids_T[first:last], special[1:]])
                window_units = units_U[part]
                windows.append(
                    TagWindow(window_ids, positions_U[part] - first + 1, window_units, targets[window_units])
                )
    return TagWindows(windows, bounds, labelled_by)


def _tag_targets(examples: Iterable[TagExample], labels: Sequence[str], num_units: int) -> _Numbers:
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


def unit_labels(
    encoded: TagWindows, logits: Iterable[tuple[int, NDArray[np.float32]]]
) -> tuple[_Numbers, NDArray[np.float32]]:
    """Return the number of the best label of each unit that a piece of its own labels, and how likely it is.

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
    return numbers, scores


def decode_tags(encoded: TagWindows, numbers: _Numbers, labels: Sequence[str]) -> list[list[str]]:
    """Return a tag for each unit of each example, by the numbers of their labels, in the order of the examples."""
    tags = []
    for unit, source in enumerate(encoded.labelled_by.tolist()):
        if source == NO_UNIT:
            tags.append(OUTSIDE)
        else:
            tag = labels[numbers[source]]
            prefix, dash, kind = tag.partition("-")
            continues = source != unit and dash and len(prefix) == 1
            tags.append(f"I-{kind}" if continues else tag)
    return [tags[first:last] for first, last in zip(encoded.bounds[:-1], encoded.bounds[1:], strict=True)]


class AnswerWindow(NamedTuple):
    """What a model reads at once."""

    ids: NDArray[np.int32]
    context_start: int  # of the context's first piece in `ids`
    question: int  # the number of its example
    first_piece: int  # of the context, that the window starts with
    may_start: NDArray[np.bool_]  # for each piece of the context here: has no other window more context for it
    start: int = NO_ANSWER  # the answer's first token in `ids`
    end: int = NO_ANSWER  # its last

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """0 for [CLS], the question and [SEP]; 1 for the context and [SEP]."""
        return (np.arange(len(self.ids)) >= self.context_start).astype(np.int32)


class AnswerWindows(NamedTuple):
    """The windows of some questions, and the pieces of each question's context."""

    windows: list[AnswerWindow]
    contexts: list[Pieces]


def encode_answers(
    tokenizer: Tokenizer,
    examples: Sequence[SpanExample],
    cut: Cut = ORIGINAL_CUT,
    *,
    is_training: bool = False,
    skipped: Skipped | None = None,
) -> AnswerWindows:
    """Cut questions and their contexts into windows; every question has one or more of them.

    Args:
        tokenizer: the model's.
        examples: the questions; a context that several share is split into pieces once.
        cut: how contexts and questions are cut.
        is_training: leave questions out whose answer has no pieces (it is not in the context, or white space).
        skipped: counts them.
    """
    if cut.max_length < _ANSWER_SPECIAL + 2:
        least = _ANSWER_SPECIAL + 2
        raise UserError(f"max_length={cut.max_length} is too small for a question and a context; {least} or more")
    if cut.doc_stride < 1 or cut.max_query < 1:
        raise UserError(f"doc_stride={cut.doc_stride} and max_query={cut.max_query} must be 1 or more")
    numbers: dict[str, int] = {}
    context_of = [numbers.setdefault(example.context, len(numbers)) for example in examples]
    split = list(pieces_of(tokenizer, list(numbers)))
    contexts = [split[number] for number in context_of]
    # A model that reads little keeps half of its window for the context.
    longest = min(cut.max_query, (cut.max_length - _ANSWER_SPECIAL) // 2)
    questions = pieces_of(tokenizer, [example.question for example in examples])
    special = np.array([tokenizer.id_of(CLS), tokenizer.id_of(SEP)], np.int32)
    windows: list[AnswerWindow] = []
    for number, (example, question) in enumerate(zip(examples, questions, strict=True)):
        answer = answer_pieces(example, contexts[number])
        if is_training and answer is None and not example.is_impossible:
            if skipped is not None:
                skipped.add("questions whose answer has no pieces", f"question {example.id[:40]}")
            continue
        head = np.concatenate([special[:1], question.ids[:longest], special[1:]])
        context = contexts[number]
        cuts = context_cuts(len(context.ids), cut.max_length - len(head) - 1, cut.doc_stride)
        best = most_context(len(context.ids), cuts)
        for which, (first, last) in enumerate(cuts):
            ids = np.concatenate([head, context.ids[first:last], head[-1:]])
            start = end = NO_ANSWER
            if answer is not None and first <= answer[0] and answer[1] < last:
                start, end = (piece - first + len(head) for piece in answer)
            windows.append(AnswerWindow(ids, len(head), number, first, best[first:last] == which, start, end))
    return AnswerWindows(windows, contexts)


def answer_pieces(example: SpanExample, context: Pieces) -> tuple[int, int] | None:
    """Return the first and last piece of the first answer that the context has; None where there is none."""
    for answer in example.answers:
        if answer.start != NOT_LOCATED and not example.is_impossible:
            first = int(np.searchsorted(context.ends, answer.start, "right"))
            last = int(np.searchsorted(context.starts, answer.start + len(answer.text))) - 1
            if first <= last:
                return first, last
    return None


def context_cuts(num_pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the first piece of each window, and the one after its last; an empty context has one empty window."""
    cuts = [(0, min(room, num_pieces))]
    while cuts[-1][1] < num_pieces:
        first = cuts[-1][0] + min(room, stride)
        cuts.append((first, min(first + room, num_pieces)))
    return cuts


def most_context(num_pieces: int, cuts: Sequence[tuple[int, int]]) -> NDArray[np.int64]:
    """Return the window in which each piece has most context, the earlier one where two have as much."""
    window_of, scores = np.zeros(num_pieces, np.int64), np.full(num_pieces, -1.0)
    for window, (first, last) in enumerate(cuts):
        left = np.arange(last - first)
        score = np.minimum(left, left[::-1]) + 0.01 * (last - first)
        is_better = score > scores[first:last]
        window_of[first:last][is_better] = window
        scores[first:last][is_better] = score[is_better]
    return window_of


class Guess(NamedTuple):
    """A possible answer: `context[start:end]`, and the sum of its start and end scores."""

    text: str
    start: int
    end: int
    score: float


class Answered(NamedTuple):
    """The guesses at one question, best first and no text twice, and the score of there being no answer."""

    guesses: list[Guess]
    null_score: float

    @property
    def null_odds(self) -> float:
        """By how much "no answer" scores above the best guess."""
        return self.null_score - self.guesses[0].score if self.guesses else ODDS_WITHOUT_A_SPAN

    def is_none(self, threshold: float | None) -> bool:
        """Tell whether there is no answer: nothing to guess, or by the threshold, if there is one."""
        return not self.guesses or (threshold is not None and self.null_odds > threshold)

    def probabilities(self, *, with_null: bool) -> list[float]:
        """Return the share of each guess among all of them; where it may win, that of "no answer" is the last."""
        scores = np.array([guess.score for guess in self.guesses] + [self.null_score] * with_null)
        shares = np.exp(scores - scores.max(initial=-np.inf))
        return (shares / shares.sum()).tolist()  # type: ignore[no-any-return]


def best_pairs(
    starts_C: _Scores, ends_C: _Scores, may_start_C: NDArray[np.bool_], n_best: int, max_pieces: int
) -> list[tuple[float, int, int]]:
    """Return (score, first piece, last piece) of the best pairs, best first, and the earlier of two that are equal."""
    if not len(starts_C):
        return []
    width = min(max_pieces, len(ends_C))
    padded = np.append(ends_C, np.full(width - 1, -np.inf, np.float32))
    begin = np.where(may_start_C, starts_C, -np.inf)
    scores = (begin[:, None] + sliding_window_view(padded, width)).ravel()
    worst = np.partition(scores, -n_best)[-n_best] if len(scores) > n_best else -np.inf
    indices = np.flatnonzero((scores >= worst) & (scores > -np.inf))
    indices = indices[np.argsort(-scores[indices], kind="stable")][:n_best]
    return [(float(scores[index]), int(index // width), int(index // width + index % width)) for index in indices]


def decode_answers(
    examples: Sequence[SpanExample],
    encoded: AnswerWindows,
    logits: Iterable[tuple[int, _Scores]],
    *,
    n_best: int = N_BEST,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> list[Answered]:
    """Return the answers to each question, in the order of the questions.

    Args:
        examples: the questions, as they were encoded.
        encoded: their windows.
        logits: (number of a window, [tokens, 2] start and end scores) for every window, in any order.
        n_best: how many guesses to give.
        max_answer_length: in pieces.
    """
    pairs: list[list[tuple[float, int, int]]] = [[] for _ in examples]
    null_scores = np.full(len(examples), np.inf)
    for number, scores in logits:
        window = encoded.windows[number]
        null_scores[window.question] = min(null_scores[window.question], scores[NO_ANSWER].sum())
        first, last = window.context_start, window.context_start + len(window.may_start)
        starts_C, ends_C = scores[first:last].T
        found = best_pairs(starts_C, ends_C, window.may_start, n_best, max_answer_length)
        begin = window.first_piece
        pairs[window.question] += [(score, begin + start, begin + end) for score, start, end in found]
    answered = []
    for example, pieces, found, null_score in zip(examples, encoded.contexts, pairs, null_scores.tolist(), strict=True):
        by_text: dict[str, Guess] = {}
        for score, first, last in sorted(found, key=lambda pair: (-pair[0], pair[1], pair[2])):
            start, end = int(pieces.starts[first]), int(pieces.ends[last])
            text = example.context[start:end]
            by_text.setdefault(text, Guess(text, start, end, score))
            if len(by_text) == n_best:
                break
        answered.append(Answered(list(by_text.values()), null_score))
    return answered


def predictions_of(
    examples: Sequence[SpanExample], answered: Sequence[Answered], threshold: float | None = None
) -> dict[str, str]:
    """Return the best guess for each question by its id; "" where there is none, or no answer by the threshold."""
    pairs = zip(examples, answered, strict=True)
    return {example.id: "" if one.is_none(threshold) else one.guesses[0].text for example, one in pairs}


def null_odds_of(examples: Sequence[SpanExample], answered: Sequence[Answered]) -> dict[str, float]:
    """Return each question's odds of having no answer by its id."""
    return {example.id: one.null_odds for example, one in zip(examples, answered, strict=True)}


def choose_threshold(examples: Sequence[SpanExample], answered: Sequence[Answered]) -> float:
    """Return the `null_odds` above which "no answer" gives the best F1 on these questions, to keep with the model.

    The official script finds it, but gives 0 where it is best to answer nothing at all. It gives the odds of the last
    question that is answered, where rounding could decide; the middle between those and the next odds is safe.
    """
    odds = null_odds_of(examples, answered)
    best = score_squad2(examples, predictions_of(examples, answered), odds)
    of_silence = 100 * sum(not example.answers for example in examples) / len(examples)
    if best["best_f1"] <= of_silence:
        return min(odds.values()) - 1.0
    last = best["best_f1_thresh"]
    return (last + min((value for value in odds.values() if value > last), default=last + 2.0)) / 2
