"""From start and end scores of windows to answers: text, place, score, and how much likelier there is none.

Every pair of a start and an end in a window competes (the original looks at the 20 best starts and ends, which may miss
the best pair), if the start's window is the one with most context for it and the answer has at most 30 pieces. The
score of a pair is the sum of its two; that of "no answer" the sum at [CLS], the lowest of all windows. `null_odds` is
how far "no answer" is above the best answer; where it is above a threshold, the question has none. The paper's tau is
the threshold with the other sign.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.tasks.examples import NOT_LOCATED, Cut, Skipped, SpanExample
from bertworks.tasks.metrics import score_squad2
from bertworks.tasks.tagging import Pieces, pieces_of
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP

# Questions about a text as windows that a model can read: [CLS] question [SEP] part of the context [SEP].
#
# As the original does it: a question has at most 64 pieces, a window at most 384 tokens, and windows start 128
# pieces of the context apart until one reaches its end. A window that does not hold the whole answer, and every
# window of a question that has none, points at [CLS]. Answers become pieces and pieces become text by their places
# in the characters of the context, so that nothing is searched for or aligned again.
#
# A piece that is in several windows may start an answer only where it has most context: the smaller of what is on
# its left and on its right counts, and a hundredth of the window's size.


NO_ANSWER = 0  # the place of [CLS]
ORIGINAL_CUT = Cut(max_length=384, doc_stride=128, max_query=64)  # the original code's
_NUM_SPECIAL = 3


class AnswerWindow(NamedTuple):
    """What a model reads at once."""

    ids: NDArray[np.int32]
    context_place: int  # of the context's first piece in `ids`
    question: int  # the number of its example
    first_piece: int  # of the context, that the window starts with
    may_start: NDArray[np.bool_]  # for each piece of the context here: has no other window more context for it
    start: int = NO_ANSWER  # the answer's first token in `ids`
    end: int = NO_ANSWER  # its last

    @property
    def segment_ids(self) -> NDArray[np.int32]:
        """0 for [CLS], the question and [SEP]; 1 for the context and [SEP]."""
        return (np.arange(len(self.ids)) >= self.context_place).astype(np.int32)


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
    """Lay questions and their contexts into windows; every question has one or more of them.

    Args:
        tokenizer: the model's.
        examples: the questions; a context that several share is split into pieces once.
        cut: how contexts and questions are cut.
        is_training: leave questions out whose answer has no pieces (it is not in the context, or white space).
        skipped: counts them.
    """
    _check(cut)
    numbers: dict[str, int] = {}
    places = [numbers.setdefault(example.context, len(numbers)) for example in examples]
    split = list(pieces_of(tokenizer, list(numbers)))
    contexts = [split[place] for place in places]
    # A model that reads little keeps half of its window for the context.
    longest = min(cut.max_query, (cut.max_length - _NUM_SPECIAL) // 2)
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
        windows += _windows(number, head, contexts[number], answer, cut)
    return AnswerWindows(windows, contexts)


def _check(cut: Cut) -> None:
    if cut.max_length < _NUM_SPECIAL + 2:
        raise UserError(
            f"max_length={cut.max_length} is too small for a question and a context; {_NUM_SPECIAL + 2} or more"
        )
    if cut.doc_stride < 1 or cut.max_query < 1:
        raise UserError(f"doc_stride={cut.doc_stride} and max_query={cut.max_query} must be 1 or more")


def answer_pieces(example: SpanExample, context: Pieces) -> tuple[int, int] | None:
    """Return the first and last piece of the first answer that the context has; None where there is none."""
    for answer in example.answers:
        if answer.start != NOT_LOCATED and not example.is_impossible:
            first = int(np.searchsorted(context.ends, answer.start, "right"))
            last = int(np.searchsorted(context.starts, answer.start + len(answer.text))) - 1
            if first <= last:
                return first, last
    return None


def _windows(
    number: int, head: NDArray[np.int32], context: Pieces, answer: tuple[int, int] | None, cut: Cut
) -> list[AnswerWindow]:
    cuts = context_cuts(len(context.ids), cut.max_length - len(head) - 1, cut.doc_stride)
    best = most_context(len(context.ids), cuts)
    windows = []
    for place, (first, last) in enumerate(cuts):
        ids = np.concatenate([head, context.ids[first:last], head[-1:]])
        window = AnswerWindow(ids, len(head), number, first, best[first:last] == place)
        if answer is not None and first <= answer[0] and answer[1] < last:
            start, end = (piece - first + len(head) for piece in answer)
            window = window._replace(start=start, end=end)
        windows.append(window)
    return windows


def context_cuts(num_pieces: int, room: int, stride: int) -> list[tuple[int, int]]:
    """Return the first piece of each window, and the one behind its last; an empty context has one empty window."""
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


N_BEST = 20
MAX_ANSWER_LENGTH = 30
ODDS_WITHOUT_A_SPAN = 1e9  # of a context in which there is nothing to answer with; JSON has no infinity
_Scores = NDArray[np.float32]


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
    behind = np.append(ends_C, np.full(width - 1, -np.inf, np.float32))
    begin = np.where(may_start_C, starts_C, -np.inf)
    scores = (begin[:, None] + sliding_window_view(behind, width)).ravel()
    worst = np.partition(scores, -n_best)[-n_best] if len(scores) > n_best else -np.inf
    places = np.flatnonzero((scores >= worst) & (scores > -np.inf))
    places = places[np.argsort(-scores[places], kind="stable")][:n_best]
    return [(float(scores[place]), int(place // width), int(place // width + place % width)) for place in places]


def decode_answers(
    examples: Sequence[SpanExample],
    encoded: AnswerWindows,
    logits: Iterable[tuple[int, _Scores]],
    *,
    n_best: int = N_BEST,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> list[Answered]:
    """Return what is answered to each question, in the order of the questions.

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
        pairs[window.question] += _pairs_in(window, scores, n_best, max_answer_length)
    return [
        Answered(_guesses(example.context, encoded, number, n_best, found), float(null_scores[number]))
        for number, (example, found) in enumerate(zip(examples, pairs, strict=True))
    ]


def _pairs_in(window: AnswerWindow, scores: _Scores, n_best: int, max_pieces: int) -> list[tuple[float, int, int]]:
    """Return a window's best pairs in pieces of the whole context."""
    first, last = window.context_place, window.context_place + len(window.may_start)
    starts_C, ends_C = scores[first:last].T
    return [
        (score, start + window.first_piece, end + window.first_piece)
        for score, start, end in best_pairs(starts_C, ends_C, window.may_start, n_best, max_pieces)
    ]


def _guesses(
    context: str, encoded: AnswerWindows, number: int, n_best: int, pairs: list[tuple[float, int, int]]
) -> list[Guess]:
    pieces = encoded.contexts[number]
    by_text: dict[str, Guess] = {}
    for score, first, last in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        start, end = int(pieces.starts[first]), int(pieces.ends[last])
        by_text.setdefault(context[start:end], Guess(context[start:end], start, end, score))
        if len(by_text) == n_best:
            break
    return list(by_text.values())


def predictions_of(
    examples: Sequence[SpanExample], answered: Sequence[Answered], threshold: float | None = None
) -> dict[str, str]:
    """Return the best guess at each question by its id, "" where there is none, or by the threshold no answer."""
    pairs = zip(examples, answered, strict=True)
    return {example.id: "" if one.is_none(threshold) else one.guesses[0].text for example, one in pairs}


def null_odds_of(examples: Sequence[SpanExample], answered: Sequence[Answered]) -> dict[str, float]:
    """Return each question's odds of having no answer by its id."""
    return {example.id: one.null_odds for example, one in zip(examples, answered, strict=True)}


def choose_threshold(examples: Sequence[SpanExample], answered: Sequence[Answered]) -> float:
    """Return the `null_odds` above which "no answer" gives the best F1 on these questions, to keep with the model.

    The official script finds it, but says 0 where it is best to answer nothing at all. It names the odds of the last
    question that is answered, where a rounding would decide; in the middle between those and the next nothing does.
    """
    odds = null_odds_of(examples, answered)
    best = score_squad2(examples, predictions_of(examples, answered), odds)
    of_silence = 100 * sum(not example.answers for example in examples) / len(examples)
    if best["best_f1"] <= of_silence:
        return min(odds.values()) - 1.0
    last = best["best_f1_thresh"]
    return (last + min((value for value in odds.values() if value > last), default=last + 2.0)) / 2
