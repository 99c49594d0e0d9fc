"""N9: metrics against slow references, against scikit-learn and scipy, and against stored results of both."""

import gzip
import json
import math
from pathlib import Path

import pytest
import score_references as slow
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from bertworks.errors import UserError
from bertworks.tasks import TASKS
from bertworks.tasks import metrics as scores
from bertworks.tasks.metrics import measure
from bertworks.tasks.task import Task

VECTORS = Path(__file__).parents[1] / "golden" / "metrics" / "glue_vectors.json.gz"
LABELLINGS = st.integers(2, 4).flatmap(
    lambda n: st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), min_size=1, max_size=40)
)
SERIES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=2, max_size=30)
TOLERANCE = 1e-9


def with_references(name):
    return pytest.importorskip(name, reason=f"NO COMPARISON WITH {name}: it is not installed")


def test_all_stored_vectors_give_the_stored_results():
    """59 labellings and series, measured by scikit-learn and scipy."""
    metrics = {
        "accuracy": scores.accuracy,
        "f1_micro": scores.accuracy,
        "f1_macro": scores.f1_macro,
        "f1": lambda gold, predicted: scores.f1(gold, predicted, 1),
        "matthews": scores.matthews,
        "pearson": scores.pearson,
        "spearman": scores.spearman,
    }
    vectors = json.loads(gzip.decompress(VECTORS.read_bytes()))
    assert len(vectors) == 59
    for vector in vectors:
        for name in metrics.keys() & vector["metrics"].keys():
            result, expected = metrics[name](vector["labels"], vector["predictions"]), vector["metrics"][name]
            where = f"{vector['name']} {name}"
            assert math.isnan(result) if expected is None else abs(result - expected) < TOLERANCE, where


@given(LABELLINGS)
def test_classes_are_scored_as_their_definitions_say(pairs):
    gold, predicted = map(list, zip(*pairs, strict=True))
    labels = sorted(set(gold) | set(predicted))
    assert scores.accuracy(gold, predicted) == pytest.approx(sum(a == b for a, b in pairs) / len(pairs), abs=TOLERANCE)
    assert scores.matthews(gold, predicted) == pytest.approx(slow.matthews(gold, predicted), abs=TOLERANCE)
    each = [slow.f1(gold, predicted, label) for label in labels]
    assert [score.f1 for score in scores.per_class(gold, predicted, labels).values()] == pytest.approx(
        each, abs=TOLERANCE
    )
    assert scores.f1_macro(gold, predicted) == pytest.approx(sum(each) / len(each), abs=TOLERANCE)


@given(SERIES)
def test_correlations_are_as_their_definitions_say(pairs):
    gold, predicted = map(list, zip(*pairs, strict=True))
    if len(set(gold)) == 1 or len(set(predicted)) == 1:
        assert math.isnan(scores.pearson(gold, predicted))
        assert math.isnan(scores.spearman(gold, predicted))
        return
    assert scores.pearson(gold, predicted) == pytest.approx(slow.pearson(gold, predicted), abs=TOLERANCE)
    expected = slow.pearson(slow.ranks(gold), slow.ranks(predicted))
    assert scores.spearman(gold, predicted) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.filterwarnings("ignore:A single label was found")
@settings(deadline=None, max_examples=60)
@given(LABELLINGS)
def test_classes_are_scored_as_scikit_learn_does(pairs):
    sklearn = with_references("sklearn.metrics")
    gold, predicted = map(list, zip(*pairs, strict=True))
    labels = list(range(5))
    assert scores.matthews(gold, predicted) == pytest.approx(sklearn.matthews_corrcoef(gold, predicted), abs=TOLERANCE)
    assert (
        scores.confusion(gold, predicted, labels) == sklearn.confusion_matrix(gold, predicted, labels=labels).tolist()
    )
    columns = sklearn.precision_recall_fscore_support(gold, predicted, labels=labels, zero_division=0)
    for score, *expected in zip(scores.per_class(gold, predicted, labels).values(), *columns, strict=True):
        assert score == pytest.approx(expected, abs=TOLERANCE)


@settings(deadline=None, max_examples=60)
@given(SERIES, st.floats(1e-6, 1e6), st.floats(-1e6, 1e6))
def test_correlations_are_those_of_scipy_at_any_scale(pairs, scale, shift):
    stats = with_references("scipy.stats")
    gold = [a for a, _ in pairs]
    predicted = [b * scale + shift for _, b in pairs]
    assume(len(set(gold)) > 1)
    assume(len(set(predicted)) == len({b for _, b in pairs}) > 1)
    assume(scale > abs(shift) * 1e-6)  # beyond that scipy's own rounding is what one would compare with
    assert scores.pearson(gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted)[0], abs=TOLERANCE)
    assert scores.spearman(gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted)[0], abs=TOLERANCE)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3))), min_size=1, max_size=20))
def test_sets_of_labels_are_scored_as_scikit_learn_does(pairs):
    sklearn = with_references("sklearn.metrics")
    gold, predicted = map(list, zip(*pairs, strict=True))
    indicators = [[[int(label in one) for label in range(4)] for one in sets] for sets in (gold, predicted)]
    micro = sklearn.f1_score(*indicators, average="micro", zero_division=0)
    macro = sklearn.f1_score(*indicators, average="macro", zero_division=0)
    assert scores.labels_f1_micro(gold, predicted) == pytest.approx(micro, abs=TOLERANCE)
    assert scores.labels_f1_macro(gold, predicted, range(4)) == pytest.approx(macro, abs=TOLERANCE)


def test_labels_may_be_words_and_a_class_that_nobody_has_scores_nothing():
    gold, predicted = ["a", "b", "a"], ["a", "a", "a"]
    assert scores.per_class(gold, predicted, ["a", "b", "c"])["c"] == (0.0, 0.0, 0.0, 0)
    assert scores.f1(gold, predicted, "b") == 0
    assert scores.confusion(gold, predicted, ["a", "b"]) == [[2, 0], [1, 0]]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_a_number_correlates_with_nothing(bad):
    assert math.isnan(scores.pearson([1.0, 2.0, 3.0], [1.0, bad, 3.0]))
    assert math.isnan(scores.spearman([1.0, 2.0, 3.0], [1.0, bad, 3.0]))


def test_a_constant_whose_mean_rounds_to_another_number_is_still_constant():
    constant = [0.9391670189485866] * 10
    assert math.fsum(constant) / 10 != constant[0]
    assert math.isnan(scores.pearson(constant, list(range(10))))
    assert math.isnan(scores.pearson(list(range(10)), constant))


def test_one_example_has_an_accuracy_and_no_correlation():
    assert scores.accuracy(["a"], ["a"]) == 1
    assert scores.matthews(["a"], ["a"]) == 0
    assert math.isnan(scores.pearson([1.0], [2.0]))


def test_a_task_is_measured_by_its_metrics_the_main_one_first():
    gold, predicted = ["equivalent", "not_equivalent", "equivalent"], ["equivalent", "equivalent", "not_equivalent"]
    assert measure(TASKS["mrpc"], gold, predicted) == {"f1": 0.5, "accuracy": pytest.approx(1 / 3)}
    assert list(measure(TASKS["cola"], ["acceptable"] * 2, ["acceptable"] * 2)) == ["matthews", "accuracy"]
    assert measure(TASKS["stsb"], [1.0, 2.0, 4.0], [2.0, 4.0, 8.0]) == {
        "spearman": pytest.approx(1),
        "pearson": pytest.approx(1),
    }
    assert measure(TASKS["swag"], [0, 3], [0, 1]) == {"accuracy": 0.5}
    found = measure(TASKS["conll2003"], [["B-PER", "I-PER", "O"]], [["B-PER", "I-PER", "B-LOC"]])
    assert found == {"f1": pytest.approx(2 / 3), "precision": 0.5, "recall": 1.0}


def test_several_labels_are_measured_whatever_their_order():
    task = Task(
        name="own", title="own", kind="multilabel", splits={}, metrics=("f1", "f1_macro", "accuracy"), labels=("a", "b")
    )
    result = measure(task, [("a", "b"), ()], [("b", "a"), ("a",)])
    assert result == {"f1": 0.8, "f1_macro": pytest.approx((2 / 3 + 1) / 2), "accuracy": 0.5}


def test_every_task_that_is_not_about_answers_can_be_measured():
    for task in TASKS.values():
        if task.kind != "answer":
            gold = {"regress": [1.0, 2.0], "choose": [0, 1], "tag": [["O"], ["O"]]}.get(
                task.kind, list(task.labels[:2])
            )
            assert list(measure(task, gold, gold)) == list(task.metrics)


def test_nothing_to_measure_is_an_error():
    with pytest.raises(UserError, match="no examples"):
        measure(TASKS["cola"], [], [])
