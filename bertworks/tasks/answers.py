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

from bertworks.tasks.answer_windows import NO_ANSWER, AnswerWindow, AnswerWindows
from bertworks.tasks.examples import SpanExample
from bertworks.tasks.squad_scores import score_squad2

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
