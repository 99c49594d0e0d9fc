"""A score taken apart: which class was taken for which, and how well each class, label or type of entity was found."""

from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from bertworks.tasks.entity_scores import entity_scores
from bertworks.tasks.examples import Example, TagExample
from bertworks.tasks.scores import ClassScore, class_score, confusion, per_class
from bertworks.tasks.task import Task

_MOST_IN_A_MATRIX = 200  # classes: the matrix of 9,000 would have 81 million numbers, of which few are not 0
_MOST_COMMON = 100


class Breakdown(NamedTuple):
    """What is behind a score.

    Attributes:
        labels: of the classes, in the model's order; of entities their types.
        per_class: how well each was found.
        confusion: of classes how often each (a row) was taken for each (a column); of several labels for each
            [[rightly not given, falsely given], [missed, rightly given]]; of entities nothing, for they have ends too;
            of more than 200 classes nothing.
        commonest: of so many classes instead the commonest mistakes: (right class, what it was taken for, how often).
    """

    labels: list[str]
    per_class: dict[str, ClassScore]
    confusion: list[Any]
    commonest: Sequence[tuple[str, str, int]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain lists and objects."""
        told: dict[str, Any] = {"per_class": {label: score._asdict() for label, score in self.per_class.items()}}
        if self.commonest:
            told["commonest_mistakes"] = [list(mistake) for mistake in self.commonest]
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
    if task.kind == "classify" and len(labels) > _MOST_IN_A_MATRIX:
        mistakes = Counter((right, said) for right, said in zip(gold, predicted, strict=True) if right != said)
        commonest = [(right, said, count) for (right, said), count in mistakes.most_common(_MOST_COMMON)]
        return Breakdown(labels, per_class(gold, predicted, labels), [], commonest)
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
    # By the labels that are given, not by all there are of each example: there may be thousands.
    in_gold, in_said, in_both = (
        Counter(label for labels_of in sets for label in set(labels_of))
        for sets in (gold, predicted, [set(a) & set(b) for a, b in zip(gold, predicted, strict=True)])
    )
    matrices = [
        [[len(gold) - in_gold[label] - in_said[label] + in_both[label], in_said[label] - in_both[label]],
         [in_gold[label] - in_both[label], in_both[label]]]
        for label in labels
    ]  # fmt: skip
    scores = {
        label: class_score(found, false + found, missed + found)
        for label, ((_, false), (missed, found)) in zip(labels, matrices, strict=True)
    }
    return Breakdown(labels, scores, matrices)


def most_confused(breakdown: Breakdown, most: int) -> list[tuple[str, str, int]]:
    """Return (right class, what it was taken for, how often) of the commonest mistakes, the commonest first."""
    if breakdown.commonest:
        return list(breakdown.commonest[:most])
    labels = breakdown.labels
    found = [
        (labels[right], labels[guess], count)
        for right, row in enumerate(breakdown.confusion)
        for guess, count in enumerate(row)
        if count and right != guess
    ]
    return sorted(found, key=lambda mistake: -mistake[2])[:most]
