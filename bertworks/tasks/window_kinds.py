"""Tagging and answering as kinds of task: their items are windows, one sequence each, and scores belong to tokens.

T tokens, B windows (a sequence each), L longest, K labels.

Tagging is cross-entropy over the labels at the first piece of each unit. Answering is cross-entropy over all tokens of
a window, the question's and [CLS] among them as in the original, once for the start and once for the end; the two are
averaged, and a window is right where both are.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.bert import Bert
from bertworks.nn.lm import Sums, sums_of
from bertworks.nn.packing import Packing
from bertworks.tasks.answer_windows import AnswerWindow, AnswerWindows, encode_answers
from bertworks.tasks.answers import Answered, choose_threshold, decode_answers, null_odds_of, predictions_of
from bertworks.tasks.cut import Cut
from bertworks.tasks.examples import Skipped, SpanExample, TagExample
from bertworks.tasks.items import Items, TaskBatch
from bertworks.tasks.measure import measure, measure_answers
from bertworks.tasks.tag_windows import UNKNOWN, TagWindow, TagWindows, decode_tags, encode_tags, unit_labels
from bertworks.tasks.task import Task
from bertworks.text.tokenizer import Tokenizer

_Rows = Sequence[NDArray[np.float32]]


def encode_tag_items(
    examples: Sequence[TagExample], tokenizer: Tokenizer, task: Task, cut: Cut, *, is_training: bool = False
) -> Items:
    """Make items of sentences and their tags."""
    encoded = encode_tags(
        tokenizer, examples, task.labels, max_length=cut.max_length, context=cut.context,
        is_training=is_training, stride=cut.stride,
    )  # fmt: skip
    return tag_items(encoded)


def tag_items(encoded: TagWindows) -> Items:
    """Lay windows out as items; a target is that of a token, and most tokens have none."""
    longest = max((len(window.ids) for window in encoded.windows), default=0)
    targets = np.full((len(encoded.windows), longest), UNKNOWN, np.int64)
    for row, window in zip(targets, encoded.windows, strict=True):
        row[window.places] = window.targets
    return _items(encoded.windows, targets, (targets != UNKNOWN).astype(np.float32), encoded)


def _items(
    windows: Sequence[TagWindow] | Sequence[AnswerWindow],
    targets: NDArray[np.int64],
    weights: NDArray[np.float32],
    source: TagWindows | AnswerWindows,
    left_out: Skipped | None = None,
) -> Items:
    bounds = np.cumsum([0, *(len(window.ids) for window in windows)])
    ids, segment_ids = (
        np.concatenate([np.zeros(0, np.int32), *(getattr(window, name) for window in windows)])
        for name in ("ids", "segment_ids")
    )
    numbers = np.arange(len(windows) + 1)
    return Items(ids, segment_ids.astype(np.uint8), bounds, numbers, targets, weights, source, left_out or Skipped())


def tag_scores(net: Bert, batch: TaskBatch) -> Tensor:
    """Return the scores of the labels at every token, [T, K]."""
    return net.scores("tag", net(batch.tokens)).float()


def tag_sums(scores_TK: Tensor, batch: TaskBatch) -> Sums:
    """Return the sums over the tokens that have a target."""
    positions_T, lengths_B = batch.tokens.position_ids, batch.tokens.packing.cumulative_lengths.diff().long()
    numbers_B = torch.arange(len(lengths_B), device=lengths_B.device)
    rows_T = numbers_B.repeat_interleave(lengths_B, output_size=len(positions_T))
    targets_T, weights_T = (column[rows_T, positions_T] for column in (batch.targets, batch.weights))
    return sums_of(scores_TK, targets_T.clamp(min=0), weights_T)


def token_rows(scores_TK: Tensor, batch: TaskBatch) -> list[NDArray[np.float32]]:
    """Return the scores of each window's tokens."""
    ends = batch.tokens.packing.cumulative_lengths[1:-1].tolist()
    return np.split(scores_TK.detach().cpu().numpy(), ends)


def decode_tag_rows(_: Sequence[TagExample], items: Items, rows: _Rows, task: Task) -> list[list[str]]:
    """Return the tags of each sentence."""
    windows: TagWindows = items.source
    labelled = ((number, row[windows.windows[number].places]) for number, row in enumerate(rows))
    return decode_tags(windows, unit_labels(windows, labelled), task.labels)


def measure_tag_sequences(
    task: Task, examples: Sequence[TagExample], tags: Sequence[Sequence[str]]
) -> dict[str, float]:
    """Measure entities."""
    return measure(task, [example.tags for example in examples], tags)


def encode_answer_items(
    examples: Sequence[SpanExample], tokenizer: Tokenizer, _: Task, cut: Cut, *, is_training: bool = False
) -> Items:
    """Make items of questions; in training those whose answer has no pieces are left out, and counted."""
    skipped = Skipped()
    encoded = encode_answers(tokenizer, examples, cut, is_training=is_training, skipped=skipped)
    return answer_items(encoded, skipped)


def answer_items(encoded: AnswerWindows, left_out: Skipped | None = None) -> Items:
    """Lay windows out as items; a target is the place of an answer's first and last token."""
    targets = np.array([(window.start, window.end) for window in encoded.windows], np.int64).reshape(-1, 2)
    return _items(encoded.windows, targets, np.ones(len(targets), np.float32), encoded, left_out)


def answer_scores(net: Bert, batch: TaskBatch) -> Tensor:
    """Return the scores of a start and an end at every token, [T, 2]."""
    return net.scores("span", net(batch.tokens)).float()


def answer_sums(scores_T2: Tensor, batch: TaskBatch) -> Sums:
    """Return the sums over windows."""
    scores_BL2, weights_B = by_sequence(scores_T2, batch.tokens.packing), batch.weights
    losses_B = F.cross_entropy(scores_BL2, batch.targets, reduction="none").mean(1)
    is_right_B = (scores_BL2.argmax(1) == batch.targets).all(1)
    return Sums((losses_B * weights_B).sum(), (is_right_B * weights_B).sum(), weights_B.sum())


def by_sequence(rows_TK: Tensor, packing: Packing) -> Tensor:
    """Lay the rows of each sequence beside each other, [B, L, K]; behind a sequence's end stands the lowest number.

    Not -inf, so that an empty sequence, whose weight is 0, has no NaN for a loss.
    """
    starts_B = packing.cumulative_lengths[:-1].long()
    places_L = torch.arange(packing.max_length, device=rows_TK.device)
    is_there_BL = places_L < packing.cumulative_lengths.diff()[:, None]
    places_BL = (starts_B[:, None] + places_L).clamp(max=len(rows_TK) - 1)
    return rows_TK[places_BL].masked_fill(~is_there_BL[..., None], torch.finfo(rows_TK.dtype).min)


def decode_answer_rows(examples: Sequence[SpanExample], items: Items, rows: _Rows, _: Task) -> list[Answered]:
    """Return what is answered to each question."""
    return decode_answers(examples, items.source, enumerate(rows))


def measure_answered(task: Task, examples: Sequence[SpanExample], answered: Sequence[Answered]) -> dict[str, Any]:
    """Measure; where questions may have no answer, with the task's threshold or with the best one for these.

    A model that has a threshold may also find no answer where there always is one.
    """
    if not task.has_impossible:
        return measure_answers(task, examples, predictions_of(examples, answered, task.threshold))
    predictions = predictions_of(examples, answered)
    threshold = choose_threshold(examples, answered) if task.threshold is None else task.threshold
    found = measure_answers(task, examples, predictions, null_odds_of(examples, answered), threshold)
    return found | {"threshold": threshold}
