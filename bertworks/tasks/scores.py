"""Metrics of classes and numbers, as scikit-learn and scipy define them; shares of one, not percent.

Labels may be of any kind that can be told apart. Counts are exact integers and sums are rounded once (`fsum`), so
nothing depends on the order of examples. A class that was neither there nor ever predicted scores 0; a correlation with
a constant, or with what is not a number, is not defined and comes as NaN.
"""

import math
from collections import Counter
from collections.abc import Collection, Hashable, Sequence
from typing import NamedTuple, TypeVar

_Label = TypeVar("_Label", bound=Hashable)


class ClassScore(NamedTuple):
    """How well one class, or one type of entity, was found."""

    precision: float
    recall: float
    f1: float
    support: int


def class_score(num_right: int, num_predicted: int, num_gold: int) -> ClassScore:
    """Return the scores that follow from three counts."""
    total = num_predicted + num_gold
    return ClassScore(
        num_right / num_predicted if num_predicted else 0.0,
        num_right / num_gold if num_gold else 0.0,
        2 * num_right / total if total else 0.0,
        num_gold,
    )


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the share of predictions that are right."""
    return _mean([float(a == b) for a, b in zip(gold, predicted, strict=True)])


def f1(gold: Sequence[_Label], predicted: Sequence[_Label], positive: _Label) -> float:
    """Return the F1 of one class; 0 where it is neither there nor predicted."""
    return per_class(gold, predicted, [positive])[positive].f1


def f1_macro(gold: Sequence[_Label], predicted: Sequence[_Label]) -> float:
    """Return the mean F1 of the classes that are there or were predicted."""
    labels = list(dict.fromkeys([*gold, *predicted]))
    return _mean([score.f1 for score in per_class(gold, predicted, labels).values()])


def per_class(
    gold: Sequence[_Label], predicted: Sequence[_Label], labels: Sequence[_Label]
) -> dict[_Label, ClassScore]:
    """Return precision, recall, F1 and support of each class."""
    num_gold, num_predicted = Counter(gold), Counter(predicted)
    num_right = Counter(a for a, b in zip(gold, predicted, strict=True) if a == b)
    return {label: class_score(num_right[label], num_predicted[label], num_gold[label]) for label in labels}


def confusion(gold: Sequence[_Label], predicted: Sequence[_Label], labels: Sequence[_Label]) -> list[list[int]]:
    """Return how often each class (a row) was taken for each class (a column)."""
    counts = Counter(zip(gold, predicted, strict=True))
    return [[counts[true, guess] for guess in labels] for true in labels]


def matthews(gold: Sequence[_Label], predicted: Sequence[_Label]) -> float:
    """Return the correlation of two labellings, of any number of classes; 0 where one of them is constant."""
    num_gold, num_predicted, total = Counter(gold), Counter(predicted), len(gold)
    num_right = sum(a == b for a, b in zip(gold, predicted, strict=True))
    covariance = num_right * total - sum(count * num_predicted[label] for label, count in num_gold.items())
    gold_variance = total**2 - sum(count**2 for count in num_gold.values())
    predicted_variance = total**2 - sum(count**2 for count in num_predicted.values())
    spread = gold_variance * predicted_variance
    return covariance / math.sqrt(spread) if spread else 0.0


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the linear correlation of two series."""
    if not all(map(math.isfinite, (*gold, *predicted))):
        return math.nan
    x, y = _centred(gold), _centred(predicted)
    spread = math.sqrt(math.fsum(a * a for a in x) * math.fsum(b * b for b in y))
    if not spread:
        return math.nan
    return max(-1.0, min(1.0, math.fsum(a * b for a, b in zip(x, y, strict=True)) / spread))


def _centred(values: Sequence[float]) -> list[float]:
    """Subtract the mean; equal values give exact zeros, which their rounded mean would not."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the correlation of the ranks of two series; equal values share the mean of their ranks."""
    if not all(map(math.isfinite, (*gold, *predicted))):
        return math.nan  # which has no rank
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, start = [0.0] * len(values), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for place in order[start:end]:
                ranks[place] = (start + end - 1) / 2
            start = end
    return ranks


def labels_f1_micro(gold: Sequence[Collection[_Label]], predicted: Sequence[Collection[_Label]]) -> float:
    """Return the F1 of sets of labels, every label of every example counted alike."""
    num_right, num_predicted, num_gold = _set_counts(gold, predicted)
    return class_score(num_right.total(), num_predicted.total(), num_gold.total()).f1


def labels_f1_macro(
    gold: Sequence[Collection[_Label]], predicted: Sequence[Collection[_Label]], labels: Sequence[_Label]
) -> float:
    """Return the mean over labels of the F1 of each."""
    num_right, num_predicted, num_gold = _set_counts(gold, predicted)
    return _mean([class_score(num_right[label], num_predicted[label], num_gold[label]).f1 for label in labels])


def _set_counts(
    gold: Sequence[Collection[_Label]], predicted: Sequence[Collection[_Label]]
) -> tuple[Counter[_Label], Counter[_Label], Counter[_Label]]:
    right: Counter[_Label] = Counter()
    for a, b in zip(gold, predicted, strict=True):
        right.update(set(a) & set(b))
    in_predicted = Counter(label for labels in predicted for label in set(labels))
    return right, in_predicted, Counter(label for labels in gold for label in set(labels))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan
