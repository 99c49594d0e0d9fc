"""What a model does for each kind of task: how examples become items, what is learnt of them, what scores mean.

An item is what a batch counts: a text or a pair of texts, a choice with a sequence for each ending, a window of a long
text (`windows.py`). Items are columns of numbers, not objects: all token ids of a split end to end, so that 400,000
pairs take 100 MB. A batch is packed, so that padding never meets a weight matrix.

A kind is a handful of functions, and all that training, evaluation and prediction know of a task. Tagging is
cross-entropy over the labels at the first piece of each unit. Answering is cross-entropy over all tokens of a window,
[CLS] and the question included as in the original, once for the start and once for the end; the two are averaged, and
a window is right if both are.

Shapes: B items, S sequences, T tokens, L tokens of the longest sequence, K labels.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError
from bertworks.nn.attention import Packing, Tokens, pack_arrays
from bertworks.nn.bert import Bert, Sums, sums_of
from bertworks.tasks.metrics import measure, measure_answers
from bertworks.tasks.task import ChoiceExample, Cut, Skipped, SpanExample, TagExample, Task, TextExample
from bertworks.tasks.windows import (
    UNKNOWN,
    Answered,
    AnswerWindow,
    AnswerWindows,
    TagWindow,
    TagWindows,
    choose_threshold,
    decode_answers,
    decode_tags,
    encode_answers,
    encode_tags,
    null_odds_of,
    predictions_of,
    unit_labels,
)
from bertworks.text.tokenizer import Encoding, Tokenizer

LIKELY = 0.5  # from this probability on a text has a label, where it may have several
_LEAST_STEP = 32
_Rows = Sequence[NDArray[np.float32]]


@dataclass(frozen=True)
class Items:
    """N items with S sequences of tokens together."""

    ids: NDArray[np.int32]
    segment_ids: NDArray[np.uint8]
    bounds: NDArray[np.int64]  # [S + 1]: where sequences begin and end
    firsts: NDArray[np.int64]  # [N + 1]: the first sequence of each item, and after the last
    targets: NDArray[Any]  # [N, ...]: what is to be learnt; any value where it is not known
    weights: NDArray[np.float32]  # [N, ...]: how much each target counts
    source: Any = None  # the windows that items were made of, where texts are cut into windows
    left_out: Skipped = field(default_factory=Skipped)  # examples from which nothing can be learnt

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return how many tokens each item has."""
        return np.diff(self.bounds[self.firsts])

    def digest(self) -> str:
        """Return a checksum of all of it."""
        found = hashlib.sha256()
        for column in (self.ids, self.segment_ids, self.bounds, self.firsts, self.targets, self.weights):
            found.update(f"{column.dtype} {column.shape}".encode())
            found.update(np.ascontiguousarray(column).data)
        return found.hexdigest()


class TaskBatch(NamedTuple):
    """Some items on a device: B of them with S sequences."""

    tokens: Tokens
    counts: Tensor  # [B]: how many sequences each item has
    most: int  # the largest of them
    targets: Tensor  # [B, ...]
    weights: Tensor  # [B, ...]


class BatchLayout(NamedTuple):
    """How a batch is laid out for a network.

    Attributes:
        device: where the batch goes.
        flash: whether attention takes cumulative lengths.
        rows: the row of the embedding table for each id, where the table holds only the ids of the train set.
        merge_similar: whether attention computes sequences of similar lengths together, see `pack_lengths`.
        filled: the longest sequence there is, where batches are padded to few sizes by an item of weight 0; else 0.
    """

    device: torch.device
    flash: bool = False
    rows: NDArray[np.int32] | None = None
    filled: int = 0
    merge_similar: bool = False


def make_items(encodings: Sequence[Encoding], targets: NDArray[Any], counts: Sequence[int] | None = None) -> Items:
    """Make items of encodings, end to end; each item has one sequence, or as many as `counts` says."""
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids, segment_ids = np.empty(bounds[-1], np.int32), np.empty(bounds[-1], np.uint8)
    for number, encoding in enumerate(encodings):
        own = slice(bounds[number], bounds[number + 1])
        ids[own], segment_ids[own] = encoding.ids, encoding.segment_ids
    per_item = np.ones(len(encodings), np.int64) if counts is None else np.asarray(counts, np.int64)
    firsts = np.concatenate([[0], np.cumsum(per_item)])
    return Items(ids, segment_ids, bounds, firsts, targets, np.ones(targets.shape, np.float32))


def join_items(some: Sequence[tuple[Items, Sequence[int]]]) -> Items:
    """Return some of the items of several requests as items of their own, of one kind and without a source."""
    columns: list[list[NDArray[Any]]] = [[], [], [], []]
    # Targets of tags are as wide as the longest window.
    width = max((items.targets.shape[1] for items, _ in some if items.targets.ndim > 1), default=0)
    targets, weights = list[NDArray[Any]](), list[NDArray[Any]]()
    for items, numbers in some:
        chosen = np.asarray(numbers, np.int64)
        counts = items.firsts[chosen + 1] - items.firsts[chosen]
        sequences = _ranges(items.firsts[chosen], counts)
        lengths = items.bounds[sequences + 1] - items.bounds[sequences]
        places = _ranges(items.bounds[sequences], lengths)
        found: tuple[NDArray[Any], ...] = (items.ids[places], items.segment_ids[places], lengths, counts)
        for column, added in zip(columns, found, strict=True):
            column.append(added)
        padding = [(0, 0), (0, width - items.targets.shape[1])] if width else [(0, 0)]
        targets.append(np.pad(items.targets[chosen], padding))
        weights.append(np.pad(items.weights[chosen], padding[: items.weights.ndim]))
    ids, segment_ids, lengths, counts = (np.concatenate(column) for column in columns)
    bounds, firsts = (np.concatenate([[0], np.cumsum(column)]) for column in (lengths, counts))
    return Items(ids, segment_ids, bounds, firsts, np.concatenate(targets), np.concatenate(weights))


def to_batch(items: Items, numbers: Sequence[int] | NDArray[np.int64], layout: BatchLayout) -> TaskBatch:
    """Return the items with these numbers as a batch on the device."""
    chosen = np.asarray(numbers, np.int64)
    counts = items.firsts[chosen + 1] - items.firsts[chosen]
    sequences = _ranges(items.firsts[chosen], counts)
    lengths = items.bounds[sequences + 1] - items.bounds[sequences]
    positions = _ranges(items.bounds[sequences], lengths)
    columns: list[NDArray[Any]] = [
        items.ids[positions],
        items.segment_ids[positions],
        items.targets[chosen],
        items.weights[chosen],
    ]
    if layout.filled:
        fill = filling(int(lengths.sum()), layout.filled)
        columns = [
            np.concatenate([column, np.zeros_like(column, shape=(count, *column.shape[1:]))])
            for column, count in zip(columns, (fill, fill, 1, 1), strict=True)
        ]
        columns[0][-fill:] = columns[0][0]  # a token of which the table has a row
        lengths, counts = np.append(lengths, fill), np.append(counts, 1)
    ids, segment_ids, targets, weights = columns
    ids = ids if layout.rows is None else layout.rows[ids]
    tokens = pack_arrays(
        ids, segment_ids, lengths, layout.device, flash=layout.flash, merge_similar=layout.merge_similar
    )
    if layout.filled:
        tokens = tokens._replace(packing=tokens.packing._replace(max_length=layout.filled))
    others = [torch.from_numpy(column).to(layout.device) for column in (targets, weights)]
    return TaskBatch(tokens, torch.from_numpy(counts).to(layout.device), int(counts.max()), *others)


def filling(num_tokens: int, longest: int) -> int:
    """Return how many tokens to pad a batch with, at least one, so that batches have few sizes and waste little.

    Sizes are multiples of a power of two that is about a sixteenth of the size; the padding is one sequence.
    """
    step = min(max(num_tokens // 16, _LEAST_STEP), longest)
    step = 1 << (step.bit_length() - 1)
    return step - num_tokens % step


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return `length` numbers counted up from each start, end to end."""
    ends = np.cumsum(lengths)
    found: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    return found


def encode_texts(
    examples: Sequence[TextExample], tokenizer: Tokenizer, task: Task, cut: Cut,
    *, is_training: bool = False,  # noqa: ARG001 -- only windows differ in training
) -> Items:  # fmt: skip
    """Make items of texts or pairs; an unknown label becomes an arbitrary target."""
    firsts = [example.first for example in examples]
    seconds = [example.second or "" for example in examples] if task.is_pair else None
    labels = [example.label for example in examples]
    targets: NDArray[Any]
    if task.kind == "regress":
        targets = np.array([0.0 if label is None else label for label in labels], np.float32)
    elif task.kind == "multilabel":
        sets = [label if isinstance(label, tuple) else () for label in labels]
        targets = np.array([[label in own for label in task.labels] for own in sets], np.float32)
    else:
        number_of = {label: number for number, label in enumerate(task.labels)}
        targets = np.array([0 if label is None else number_of[str(label)] for label in labels], np.int64)
    return make_items(tokenizer.encode_batch(firsts, seconds, cut.max_length), targets)


def encode_choices(
    examples: Sequence[ChoiceExample], tokenizer: Tokenizer, _: Task, cut: Cut,
    *, is_training: bool = False,  # noqa: ARG001 -- as above
) -> Items:  # fmt: skip
    """Make items of choices, with a sequence for each ending."""
    contexts = [example.context for example in examples for _ in example.endings]
    endings = [ending for example in examples for ending in example.endings]
    targets = np.array([0 if example.label is None else example.label for example in examples], np.int64)
    counts = [len(example.endings) for example in examples]
    return make_items(tokenizer.encode_batch(contexts, endings, cut.max_length), targets, counts=counts)


def weigh_classes(items: Items, task: Task) -> Items:
    """Weigh items so that all classes in them count the same; the mean weight is 1."""
    counts = Counter(items.targets.tolist())
    by_class = np.zeros(len(task.labels), np.float32)
    for number, count in counts.items():
        by_class[number] = len(items) / (len(counts) * count)
    return replace(items, weights=by_class[items.targets])


def weigh_labels(items: Items, _: Task) -> Items:
    """Weigh each label that an example has by the ratio of examples without it to examples with it."""
    num_having = (items.targets > 0).sum(0)
    by_label = np.where(num_having > 0, (len(items) - num_having) / np.maximum(num_having, 1), 1.0).astype(np.float32)
    return replace(items, weights=np.where(items.targets > 0, by_label, 1.0).astype(np.float32))


def refuse_weights(_: Items, task: Task) -> Items:
    """Refuse to weigh the items of a kind that has no classes."""
    raise UserError(f"task.class_weights: a task of kind {task.kind} has no weights of classes; leave it out")


def pooled_scores(net: Bert, batch: TaskBatch, head: str = "classify") -> Tensor:
    """Return what a head makes of each sequence, [S, K]."""
    return net.scores(head, net.pooled_of(batch.tokens)).float()


def choice_scores(net: Bert, batch: TaskBatch) -> Tensor:
    """Score every ending, [B, most endings]; -inf where there is none."""
    scores_S = pooled_scores(net, batch, "choose").squeeze(1)
    places_BC = torch.arange(batch.most, device=scores_S.device)[None, :]
    ends_B1 = batch.counts.cumsum(0)[:, None]
    is_there_BC = places_BC < batch.counts[:, None]
    numbers_BC = torch.where(is_there_BC, ends_B1 - batch.counts[:, None] + places_BC, 0)
    return torch.where(is_there_BC, scores_S[numbers_BC], -torch.inf)


def class_sums(scores_BK: Tensor, batch: TaskBatch) -> Sums:
    """Return the cross-entropy of classes or endings."""
    return sums_of(scores_BK, batch.targets, batch.weights)


def squared_sums(scores_B1: Tensor, batch: TaskBatch) -> Sums:
    """Return squared errors; there is no right or wrong to count."""
    losses_B = (scores_B1.squeeze(1) - batch.targets).square()
    return Sums((losses_B * batch.weights).sum(), torch.zeros_like(batch.weights[:0].sum()), batch.weights.sum())


def label_sums(scores_BK: Tensor, batch: TaskBatch) -> Sums:
    """Return the binary cross-entropy of each label."""
    losses_BK = F.binary_cross_entropy_with_logits(scores_BK, batch.targets, reduction="none")
    right_BK = (scores_BK.detach() >= 0) == (batch.targets > 0)
    weights = batch.weights
    return Sums((losses_BK * weights).sum(), (right_BK * weights).sum(), weights.sum())


def decode_classes(_: Sequence[Any], __: Items, rows: _Rows, task: Task) -> list[str]:
    """Return the most likely label of each text."""
    return [task.labels[int(row.argmax())] for row in rows]


def decode_scores(_: Sequence[Any], __: Items, rows: _Rows, task: Task) -> list[float]:
    """Return the score of each text, inside the task's range."""
    low, high = task.score_range or (-np.inf, np.inf)
    return [float(np.clip(row[0], low, high)) for row in rows]


def decode_labels(_: Sequence[Any], __: Items, rows: _Rows, task: Task) -> list[tuple[str, ...]]:
    """Return the labels of each text that are likely."""
    limit = np.log(LIKELY / (1 - LIKELY))
    return [tuple(label for label, score in zip(task.labels, row, strict=True) if score >= limit) for row in rows]


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
    """Make items of windows; a target is that of a token, and most tokens have none."""
    longest = max((len(window.ids) for window in encoded.windows), default=0)
    targets = np.full((len(encoded.windows), longest), UNKNOWN, np.int64)
    for row, window in zip(targets, encoded.windows, strict=True):
        row[window.positions] = window.targets
    return window_items(encoded, targets, (targets != UNKNOWN).astype(np.float32))


def window_items(
    encoded: TagWindows | AnswerWindows,
    targets: NDArray[np.int64],
    weights: NDArray[np.float32],
    left_out: Skipped | None = None,
) -> Items:
    """Make items of windows, one sequence each."""
    windows: Sequence[TagWindow | AnswerWindow] = encoded.windows
    bounds = np.cumsum([0, *(len(window.ids) for window in windows)])
    ids = np.concatenate([np.zeros(0, np.int32), *(window.ids for window in windows)])
    segment_ids = np.concatenate([np.zeros(0, np.int32), *(window.segment_ids for window in windows)])
    firsts = np.arange(len(windows) + 1)
    left_out = left_out or Skipped()
    return Items(ids, segment_ids.astype(np.uint8), bounds, firsts, targets, weights, encoded, left_out)


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
    labelled = ((number, row[windows.windows[number].positions]) for number, row in enumerate(rows))
    numbers, _scores = unit_labels(windows, labelled)
    return decode_tags(windows, numbers, task.labels)


def encode_answer_items(
    examples: Sequence[SpanExample], tokenizer: Tokenizer, _: Task, cut: Cut, *, is_training: bool = False
) -> Items:
    """Make items of questions; in training those whose answer has no pieces are left out, and counted."""
    skipped = Skipped()
    return answer_items(encode_answers(tokenizer, examples, cut, is_training=is_training, skipped=skipped), skipped)


def answer_items(encoded: AnswerWindows, left_out: Skipped | None = None) -> Items:
    """Make items of windows; a target is the position of an answer's first and last token."""
    targets = np.array([(window.start, window.end) for window in encoded.windows], np.int64).reshape(-1, 2)
    return window_items(encoded, targets, np.ones(len(targets), np.float32), left_out)


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
    """Return the rows of each sequence in the padded layout, [B, L, K]; after a sequence's end is the lowest number.

    Not -inf, so that an empty sequence, whose weight is 0, has no NaN for a loss.
    """
    starts_B = packing.cumulative_lengths[:-1].long()
    places_L = torch.arange(packing.max_length, device=rows_TK.device)
    is_there_BL = places_L < packing.cumulative_lengths.diff()[:, None]
    places_BL = (starts_B[:, None] + places_L).clamp(max=len(rows_TK) - 1)
    return rows_TK[places_BL].masked_fill(~is_there_BL[..., None], torch.finfo(rows_TK.dtype).min)


def measure_answered(task: Task, examples: Sequence[SpanExample], answered: Sequence[Answered]) -> dict[str, Any]:
    """Measure; where questions may have no answer, with the task's threshold or with the best one for these.

    Without such questions a threshold applies, too: a model that has one may find no answer.
    """
    if not task.has_impossible:
        return measure_answers(task, examples, predictions_of(examples, answered, task.threshold))
    predictions = predictions_of(examples, answered)
    threshold = choose_threshold(examples, answered) if task.threshold is None else task.threshold
    found = measure_answers(task, examples, predictions, null_odds_of(examples, answered), threshold)
    return found | {"threshold": threshold}


class TaskHead(NamedTuple):
    """What a model does for a kind of task.

    Attributes:
        head: its name, see `make_head`.
        num_outputs: of the head.
        encode: makes items of (examples, tokenizer, task, cut), with `is_training=True` those to learn from; examples
            without a label get an arbitrary target.
        weigh: weighs items so that rare labels count as much as frequent ones.
        scores: the network's scores for a batch.
        sums: the loss of those scores; "correct" is 0 where nothing is counted.
        rows: the scores of each item, as arrays on the CPU.
        decode: predictions for all examples of a split, in their order, of the rows of all its items.
        measure: the task's metrics for predictions, the main one first.
    """

    head: str
    num_outputs: Callable[[Task], int]
    encode: Callable[..., Items]
    weigh: Callable[[Items, Task], Items]
    scores: Callable[[Any, TaskBatch], Tensor]
    sums: Callable[[Tensor, TaskBatch], Sums]
    rows: Callable[[Tensor, TaskBatch], list[NDArray[np.float32]]]
    decode: Callable[[Sequence[Any], Items, Sequence[NDArray[np.float32]], Task], list[Any]]
    measure: Callable[[Task, Sequence[Any], Sequence[Any]], dict[str, float]]


def kind_of(task: Task) -> TaskHead:
    """Return what a model does for a task."""
    return KINDS[task.kind]


_CLASSIFY = TaskHead(
    head="classify",
    num_outputs=lambda task: len(task.labels),
    encode=encode_texts,
    weigh=weigh_classes,
    scores=pooled_scores,
    sums=class_sums,
    rows=lambda scores, _: list(scores.detach().cpu().numpy()),
    decode=decode_classes,
    measure=lambda task, examples, predicted: measure(task, [one.label for one in examples], predicted),
)
KINDS: dict[str, TaskHead] = {
    "classify": _CLASSIFY,
    "regress": _CLASSIFY._replace(
        num_outputs=lambda _: 1, weigh=refuse_weights, sums=squared_sums, decode=decode_scores
    ),
    "multilabel": _CLASSIFY._replace(weigh=weigh_labels, sums=label_sums, decode=decode_labels),
    "choose": _CLASSIFY._replace(
        head="choose",
        num_outputs=lambda _: 1,
        encode=encode_choices,
        weigh=refuse_weights,
        scores=choice_scores,
        decode=lambda _, __, rows, ___: [int(row.argmax()) for row in rows],
    ),
    "tag": TaskHead(
        head="tag",
        num_outputs=lambda task: len(task.labels),
        encode=encode_tag_items,
        weigh=refuse_weights,
        scores=lambda net, batch: net.scores("tag", net(batch.tokens)).float(),
        sums=tag_sums,
        rows=token_rows,
        decode=decode_tag_rows,
        measure=lambda task, examples, tags: measure(task, [example.tags for example in examples], tags),
    ),
    "answer": TaskHead(
        head="span",
        num_outputs=lambda _: 2,
        encode=encode_answer_items,
        weigh=refuse_weights,
        scores=answer_scores,
        sums=answer_sums,
        rows=token_rows,
        decode=lambda examples, items, rows, _: decode_answers(examples, items.source, enumerate(rows)),
        measure=measure_answered,
    ),
}
