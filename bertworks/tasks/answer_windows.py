"""Questions about a text as windows that a model can read: [CLS] question [SEP] part of the context [SEP].

As the original does it: a question has at most 64 pieces, a window at most 384 tokens, and windows start 128 pieces of
the context apart until one reaches its end. A window that does not hold the whole answer, and every window of a
question that has none, points at [CLS]. Answers become pieces and pieces become text by their places in the characters
of the context, so that nothing is searched for or aligned again.

A piece that is in several windows may start an answer only where it has most context: the smaller of what is on its
left and on its right counts, and a hundredth of the window's size.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.tasks.cut import Cut
from bertworks.tasks.examples import NOT_LOCATED, Skipped, SpanExample
from bertworks.tasks.pieces import Pieces, pieces_of
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP

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
