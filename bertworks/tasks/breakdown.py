"""A score taken apart: which class was taken for which, and how well each class, label or type of entity was found."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from bertworks.tasks.entity_scores import entity_scores
from bertworks.tasks.examples import Example, TagExample
from bertworks.tasks.scores import ClassScore, class_score, confusion, per_class
from bertworks.tasks.task import Task


class Breakdown(NamedTuple):
    """What is behind a score.

    Attributes:
        labels: of the classes, in the model's order; of entities their types.
        per_class: how well each was found.
        confusion: of classes how often each (a row) was taken for each (a column); of several labels for each
            [[rightly not given, falsely given], [missed, rightly given]]; of entities nothing, for they have ends too.
    """

    labels: list[str]
    per_class: dict[str, ClassScore]
    confusion: list[Any]

    def as_json(self) -> dict[str, Any]:
        """Return it as plain lists and objects."""
        told: dict[str, Any] = {"per_class": {label: score._asdict() for label, score in self.per_class.items()}}
        return told | ({"confusion": {"labels": self.labels, "counts": self.confusion}} if self.confusion else {})


def gold_of(examples: Sequence[Example]) -> list[Any]:
    """Return what is right of each example; None where its file does not say."""
    return [example.tags if isinstance(example, TagExample) else getattr(example, "label", "") for example in examples]


def break_down(task: Task, gold: Sequence[Any], predicted: Sequence[Any]) -> Breakdown | None:
    """Take a score apart; None where a task knows no classes.

    Args:
        task: what was asked.
        gold: the labels, sets of labels or sequences of tags of the examples.
        predicted: the same of the model.
    """
    labels = list(task.labels)
    if task.kind == "classify":
        return Breakdown(labels, per_class(gold, predicted, labels), confusion(gold, predicted, labels))
    if task.kind == "multilabel":
        return _of_label_sets(labels, gold, predicted)
    if task.kind == "tag":
        by_type = entity_scores(gold, predicted).by_type
        return Breakdown(list(by_type), by_type, [])
    return None


def _of_label_sets(
    labels: list[str], gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]
) -> Breakdown:
    counts = {label: Counter[tuple[bool, bool]]() for label in labels}
    for right, guessed in zip(gold, predicted, strict=True):
        for label in labels:
            counts[label][label in right, label in guessed] += 1
    matrices = [[[of[is_right, is_said] for is_said in (False, True)] for is_right in (False, True)]
                for of in counts.values()]  # fmt: skip
    scores = {
        label: class_score(found, false + found, missed + found)
        for label, ((_, false), (missed, found)) in zip(labels, matrices, strict=True)
    }
    return Breakdown(labels, scores, matrices)


def most_confused(breakdown: Breakdown, most: int) -> list[tuple[str, str, int]]:
    """Return (right class, what it was taken for, how often) of the commonest mistakes, the commonest first."""
    labels = breakdown.labels
    found = [
        (labels[right], labels[guess], count)
        for right, row in enumerate(breakdown.confusion)
        for guess, count in enumerate(row)
        if count and right != guess
    ]
    return sorted(found, key=lambda mistake: -mistake[2])[:most]
