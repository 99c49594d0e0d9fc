"""Scores by class: the numbers of scikit-learn, and sums that must agree with the whole."""

import random

import pytest

from bertworks.tasks.metrics import break_down, most_confused
from bertworks.tasks.task import Task

metrics = pytest.importorskip("sklearn.metrics", reason="scores by class are UNTESTED: scikit-learn is not installed")


def task_of(kind, labels=()):
    return Task(name=kind, title=kind, kind=kind, splits={}, metrics=(), labels=tuple(labels))


def guessed(labels, count, seed=0):
    rng = random.Random(seed)
    gold = [rng.choice(labels[:-1]) for _ in range(count)]  # the last is never there
    return gold, [label if rng.random() < 0.6 else rng.choice(labels) for label in gold]


def test_classes_are_those_of_scikit_learn():
    labels = ["여", "b", "a", "남"]
    gold, predicted = guessed(labels, 200)
    found = break_down(task_of("classify", labels), gold, predicted)
    assert found.confusion == metrics.confusion_matrix(gold, predicted, labels=labels).tolist()
    columns = metrics.precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0.0)
    for number, label in enumerate(labels):
        assert list(found.per_class[label]) == pytest.approx([float(column[number]) for column in columns])


def test_several_labels_are_those_of_scikit_learn():
    labels, rng = ["x", "y", "z"], random.Random(1)
    gold, predicted = ([tuple(one for one in labels if rng.random() < 0.4) for _ in range(90)] for _ in range(2))
    found = break_down(task_of("multilabel", labels), gold, predicted)
    matrices = [[[label in one for label in labels] for one in rows] for rows in (gold, predicted)]
    assert found.confusion == metrics.multilabel_confusion_matrix(*matrices).tolist()
    columns = metrics.precision_recall_fscore_support(*matrices, zero_division=0.0)
    for number, label in enumerate(labels):
        assert list(found.per_class[label]) == pytest.approx([float(column[number]) for column in columns])


def test_entities_are_counted_by_their_type():
    gold = [("B-PER", "I-PER", "O"), ("B-LOC", "O")]
    predicted = [("B-PER", "I-PER", "B-LOC"), ("O", "O")]
    found = break_down(task_of("tag", ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]), gold, predicted)
    assert found.per_class["PER"] == (1.0, 1.0, 1.0, 1)
    assert found.per_class["LOC"] == (0.0, 0.0, 0.0, 1)
    assert "confusion" not in found.as_json()


@pytest.mark.parametrize("kind", ["regress", "choose"])
def test_a_task_without_classes_has_none(kind):
    assert break_down(task_of(kind), [1, 2], [1, 2]) is None


def test_the_commonest_mistakes_come_first_and_what_is_right_is_none():
    gold = ["a"] * 5 + ["b"] * 4
    predicted = ["a", "a", "b", "b", "b", "a", "b", "b", "b"]
    found = break_down(task_of("classify", ["a", "b", "c"]), gold, predicted)
    assert most_confused(found, 5) == [("a", "b", 3), ("b", "a", 1)]
    assert most_confused(found, 1) == [("a", "b", 3)]


def test_of_very_many_classes_the_commonest_mistakes_stand_for_the_matrix():
    labels = [f"c{number}" for number in range(201)]
    found = break_down(task_of("classify", labels), ["c1", "c1", "c2", "c3"], ["c9", "c9", "c2", "c4"])
    assert found.as_json()["commonest_mistakes"] == [["c1", "c9", 2], ["c3", "c4", 1]]
    assert "confusion" not in found.as_json()
    assert most_confused(found, 1) == [("c1", "c9", 2)]
