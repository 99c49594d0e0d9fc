"""What a model does for each kind of task: how examples become items, what is learnt of them, what scores mean.

A kind is a handful of functions; training, evaluation and prediction know nothing else of it. B items, S sequences, K
labels, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError
from bertworks.nn.bert import Bert
from bertworks.nn.lm import Sums, sums_of
from bertworks.tasks import window_kinds
from bertworks.tasks.cut import Cut
from bertworks.tasks.examples import ChoiceExample, Example, TextExample
from bertworks.tasks.items import Items, TaskBatch, make_items
from bertworks.tasks.measure import measure
from bertworks.tasks.splits import class_weights, positive_weights
from bertworks.tasks.task import Task
from bertworks.text.tokenizer import Tokenizer

_LIKELY = 0.5  # from this probability on an example has a label


class Kind(NamedTuple):
    """What is particular to a kind of task.

    Attributes:
        head: its name, see `make_head`.
        num_outputs: of the head.
        encode: makes items of (examples, tokenizer, task, cut), with `is_training=True` those to learn from; examples
            without a label get any target.
        weigh: weighs items so that rare labels count as much as frequent ones.
        scores: what the network says of a batch.
        sums: the loss of those scores; "correct" is 0 where nothing is counted.
        rows: the scores of each item, to be kept.
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


def kind_of(task: Task) -> Kind:
    """Return what a task's kind is about."""
    return KINDS[task.kind]


def _encode_texts(
    examples: Sequence[TextExample],
    tokenizer: Tokenizer,
    task: Task,
    cut: Cut,
    *,
    is_training: bool = False,  # noqa: ARG001 -- only what is cut into windows is cut in another way
) -> Items:
    firsts = [example.first for example in examples]
    seconds = [example.second or "" for example in examples] if task.is_pair else None
    encodings = tokenizer.encode_batch(firsts, seconds, cut.max_length)
    return make_items(encodings, _TARGETS[task.kind](examples, task))


def _class_targets(examples: Sequence[TextExample], task: Task) -> NDArray[np.int64]:
    places = {label: place for place, label in enumerate(task.labels)}
    return np.array([0 if example.label is None else places[str(example.label)] for example in examples], np.int64)


def _score_targets(examples: Sequence[TextExample], _: Task) -> NDArray[np.float32]:
    return np.array([0.0 if example.label is None else example.label for example in examples], np.float32)


def _label_sets(examples: Sequence[TextExample], task: Task) -> NDArray[np.float32]:
    return np.array([[label in _labels(example) for label in task.labels] for example in examples], np.float32)


def _labels(example: TextExample) -> tuple[str, ...]:
    return example.label if isinstance(example.label, tuple) else ()


_TARGETS: dict[str, Callable[[Sequence[TextExample], Task], NDArray[Any]]] = {
    "classify": _class_targets,
    "regress": _score_targets,
    "multilabel": _label_sets,
}


def _encode_choices(
    examples: Sequence[ChoiceExample],
    tokenizer: Tokenizer,
    _: Task,
    cut: Cut,
    *,
    is_training: bool = False,  # noqa: ARG001 -- as above
) -> Items:
    counts = [len(example.endings) for example in examples]
    contexts = [example.context for example in examples for _ in example.endings]
    endings = [ending for example in examples for ending in example.endings]
    encodings = tokenizer.encode_batch(contexts, endings, cut.max_length)
    targets = np.array([0 if example.label is None else example.label for example in examples], np.int64)
    return make_items(encodings, targets, counts=counts)


def _weigh_classes(items: Items, task: Task) -> Items:
    by_class = class_weights([task.labels[target] for target in items.targets], task.labels)
    return replace(items, weights=np.array(by_class, np.float32)[items.targets])


def _weigh_labels(items: Items, task: Task) -> Items:
    sets = [[task.labels[place] for place in np.flatnonzero(row)] for row in items.targets]
    by_label = np.array(positive_weights(sets, task.labels), np.float32)
    return replace(items, weights=np.where(items.targets > 0, by_label, 1.0).astype(np.float32))


def _refuse_weights(_: Items, task: Task) -> Items:
    raise UserError(f"task.class_weights: a task of kind {task.kind} has no weights of classes; leave it out")


def _pooled_scores(net: Bert, batch: TaskBatch, head: str = "classify") -> Tensor:
    return net.scores(head, net.pooled_of(batch.tokens)).float()


def _choice_scores(net: Bert, batch: TaskBatch) -> Tensor:
    """Score every ending, [B, most endings]; -inf where there is none."""
    scores_S = _pooled_scores(net, batch, "choose").squeeze(1)
    places_BC = torch.arange(batch.most, device=scores_S.device)[None, :]
    ends_B1 = batch.counts.cumsum(0)[:, None]
    is_there_BC = places_BC < batch.counts[:, None]
    numbers_BC = torch.where(is_there_BC, ends_B1 - batch.counts[:, None] + places_BC, 0)
    return torch.where(is_there_BC, scores_S[numbers_BC], -torch.inf)


def _class_sums(scores_BK: Tensor, batch: TaskBatch) -> Sums:
    return sums_of(scores_BK, batch.targets, batch.weights)


def _score_sums(scores_B1: Tensor, batch: TaskBatch) -> Sums:
    """Squared errors; there is no right or wrong to count."""
    losses_B = (scores_B1.squeeze(1) - batch.targets).square()
    return Sums((losses_B * batch.weights).sum(), torch.zeros_like(batch.weights[:0].sum()), batch.weights.sum())


def _label_sums(scores_BK: Tensor, batch: TaskBatch) -> Sums:
    losses_BK = F.binary_cross_entropy_with_logits(scores_BK, batch.targets, reduction="none")
    right_BK = (scores_BK.detach() >= 0) == (batch.targets > 0)
    weights = batch.weights
    return Sums((losses_BK * weights).sum(), (right_BK * weights).sum(), weights.sum())


def _rows(scores: Tensor, _: TaskBatch) -> list[NDArray[np.float32]]:
    return list(scores.detach().cpu().numpy())


def _decode_class(_: Sequence[Any], __: Items, rows: Sequence[NDArray[np.float32]], task: Task) -> list[str]:
    return [task.labels[int(row.argmax())] for row in rows]


def _decode_score(_: Sequence[Any], __: Items, rows: Sequence[NDArray[np.float32]], task: Task) -> list[float]:
    low, high = task.score_range or (-np.inf, np.inf)
    return [float(np.clip(row[0], low, high)) for row in rows]


def _decode_labels(
    _: Sequence[Any], __: Items, rows: Sequence[NDArray[np.float32]], task: Task
) -> list[tuple[str, ...]]:
    limit = np.log(_LIKELY / (1 - _LIKELY))
    return [tuple(label for label, score in zip(task.labels, row, strict=True) if score >= limit) for row in rows]


def _decode_choice(_: Sequence[Any], __: Items, rows: Sequence[NDArray[np.float32]], ___: Task) -> list[int]:
    return [int(row.argmax()) for row in rows]


def _measure(task: Task, examples: Sequence[Example], predicted: Sequence[Any]) -> dict[str, float]:
    return measure(task, [example.label for example in examples], predicted)  # type: ignore[union-attr]


_CLASSIFY = Kind(
    head="classify",
    num_outputs=lambda task: len(task.labels),
    encode=_encode_texts,
    weigh=_weigh_classes,
    scores=_pooled_scores,
    sums=_class_sums,
    rows=_rows,
    decode=_decode_class,
    measure=_measure,
)
KINDS: dict[str, Kind] = {
    "classify": _CLASSIFY,
    "regress": _CLASSIFY._replace(
        num_outputs=lambda _: 1, weigh=_refuse_weights, sums=_score_sums, decode=_decode_score
    ),
    "multilabel": _CLASSIFY._replace(weigh=_weigh_labels, sums=_label_sums, decode=_decode_labels),
    "choose": _CLASSIFY._replace(
        head="choose",
        num_outputs=lambda _: 1,
        encode=_encode_choices,
        weigh=_refuse_weights,
        scores=_choice_scores,
        decode=_decode_choice,
    ),
    "tag": Kind(
        head="tag",
        num_outputs=lambda task: len(task.labels),
        encode=window_kinds.encode_tag_items,
        weigh=_refuse_weights,
        scores=window_kinds.tag_scores,
        sums=window_kinds.tag_sums,
        rows=window_kinds.token_rows,
        decode=window_kinds.decode_tag_rows,
        measure=window_kinds.measure_tag_sequences,
    ),
    "answer": Kind(
        head="span",
        num_outputs=lambda _: 2,
        encode=window_kinds.encode_answer_items,
        weigh=_refuse_weights,
        scores=window_kinds.answer_scores,
        sums=window_kinds.answer_sums,
        rows=window_kinds.token_rows,
        decode=window_kinds.decode_answer_rows,
        measure=window_kinds.measure_answered,
    ),
}
