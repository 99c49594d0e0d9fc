"""Scores from sums over examples, the Multi-Bootstrap beside a slow and plain one, and answers known beforehand."""

import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from bertworks.reproduction.statistics import (
    Cell,
    bootstrap,
    form_of,
    majority_score,
    noise_of,
    score_of,
    stretched,
    sums_of,
    width_95,
)
from bertworks.tasks import find_task
from bertworks.tasks.metrics import measure


def labels_of(task, count, seed):
    rng = random.Random(seed)
    return [rng.choice(task.labels) for _ in range(count)]


@pytest.mark.parametrize(
    ("name", "metric"), [("mnli", "accuracy"), ("mrpc", "f1"), ("mrpc", "accuracy"), ("cola", "matthews")]
)
def test_scores_of_classes_are_those_of_the_metric(name, metric):
    task = find_task(name)
    gold, said = labels_of(task, 50, 1), labels_of(task, 50, 2)
    sums = with_count(task, metric, sums_of(task, metric, [], gold, said))
    assert score_of(form_of(task, metric), sums.sum(0)) == pytest.approx(100 * measure(task, gold, said)[metric])


def with_count(task, metric, sums):
    return np.concatenate([sums, np.ones((len(sums), 1))], axis=1) if form_of(task, metric) == "mean" else sums


@pytest.mark.parametrize("metric", ["spearman", "pearson"])
def test_scores_of_numbers_are_those_of_the_metric(metric):
    task = replace(find_task("stsb"), metrics=(metric,))
    rng = random.Random(0)
    gold = [rng.randrange(6) * 1.0 for _ in range(40)]  # with ties
    said = [value + rng.gauss(0, 2) for value in gold]
    sums = sums_of(task, metric, [], gold, said)
    assert score_of("correlation", sums.sum(0)) == pytest.approx(100 * measure(task, gold, said)[metric], rel=1e-4)


def test_scores_of_tags_are_those_of_the_metric():
    task, rng = find_task("conll2003"), random.Random(0)
    gold, said = ([[rng.choice(task.labels) for _ in range(7)] for _ in range(20)] for _ in range(2))
    sums = sums_of(task, "f1", [], gold, said)
    assert score_of("f1", sums.sum(0)) == pytest.approx(100 * measure(task, gold, said)["f1"])


def test_a_metric_without_a_value_is_0():
    assert score_of("f1", np.zeros(3)) == 0
    assert score_of("matthews", np.array([5, 0, 0, 0])) == 0
    assert score_of("perplexity", np.array([np.log(8.0), 1.0])) == pytest.approx(8)


def test_a_constant_answer_scores_what_its_metric_gives():
    gold = ["equivalent"] * 6 + ["not_equivalent"] * 4
    mrpc, said = find_task("mrpc"), ["equivalent"] * 10
    assert majority_score("mean", mrpc, gold, "equivalent") == 60
    assert majority_score("f1", mrpc, gold, "equivalent") == pytest.approx(100 * measure(mrpc, gold, said)["f1"])
    assert majority_score("mean", find_task("squad1"), [True] * 4, "") == 0
    assert majority_score("mean", find_task("squad2"), [True, False, False, False], "") == 75  # "no answer"


def cell(scores, models, examples=60, seed=0):
    """A cell whose runs are right in about as many cases as its scores by (seed, tuning) say."""
    rng = np.random.default_rng(seed)
    return Cell({key: (rng.random((examples, 1)) < p).astype(np.float32) for key, p in scores.items()}, models)


def plain_bootstrap(first, second, num_draws, seed):
    """The Multi-Bootstrap as one would explain it: seeds, within them seeds of fine-tuning, and examples."""
    rng, shared = random.Random(seed), first.models == second.models and first.seeds == second.seeds
    num_examples, found = len(next(iter(first.runs.values()))), []
    for _ in range(num_draws):
        examples = rng.choices(range(num_examples), k=num_examples)
        seeds = [rng.choices(first.seeds, k=len(first.seeds))]
        seeds.append(seeds[0] if shared else rng.choices(second.seeds, k=len(second.seeds)))
        means = []
        for one, chosen in zip((first, second), seeds, strict=True):
            scores = []
            for number in chosen:
                tunings = [key for key in one.runs if key[0] == number]
                for key in rng.choices(tunings, k=len(tunings)):
                    scores.append(100 * sum(float(one.runs[key][example, 0]) for example in examples) / num_examples)
            means.append(sum(scores) / len(scores))
        found.append(means[0] - means[1])
    return np.array(found)


@pytest.mark.parametrize("models", [("bert", "bert"), ("bert", "ltr")], ids=["shared seeds", "own seeds"])
def test_the_bootstrap_is_that_of_a_plain_program(models):
    first = cell({(0, 0): 0.9, (0, 1): 0.8, (1, 0): 0.6, (1, 1): 0.5, (2, 0): 0.7, (2, 1): 0.7}, models[0], seed=1)
    second = cell({(0, 0): 0.7, (0, 1): 0.75, (1, 0): 0.3, (1, 1): 0.4, (2, 0): 0.5, (2, 1): 0.6}, models[1], seed=2)
    fast = bootstrap("mean", first, second, num_draws=4_000, seed=3).differences
    slow = plain_bootstrap(first, second, 2_000, 4)
    assert fast.mean() == pytest.approx(slow.mean(), abs=0.8)
    assert fast.std() == pytest.approx(slow.std(), rel=0.06)
    assert np.quantile(fast, [0.025, 0.975]) == pytest.approx(np.quantile(slow, [0.025, 0.975]), abs=2.2)


def test_shared_seeds_make_a_difference_more_certain():
    scores = {(0, 0): 0.9, (1, 0): 0.5, (2, 0): 0.7}
    worse = {key: p - 0.1 for key, p in scores.items()}
    apart, together = (
        bootstrap("mean", cell(scores, "bert", 2_000), cell(worse, other, 2_000, 1)).differences.std()
        for other in ("ltr", "bert")
    )
    assert together < 0.4 * apart


def test_the_interval_of_one_seed_is_that_of_a_binomial():
    right = np.zeros((400, 1), np.float32)
    right[:300] = 1
    one, nothing = Cell({(0, 0): right}, "a"), Cell({(0, 0): np.zeros_like(right)}, "b")
    drawn = bootstrap("mean", one, nothing, num_draws=4_000)
    expected = 100 * np.sqrt(0.75 * 0.25 / 400)
    assert drawn.differences.mean() == pytest.approx(75, abs=0.3)
    assert drawn.differences.std() == pytest.approx(expected, rel=0.05)
    assert drawn.of_examples.std() == pytest.approx(expected, rel=0.05)


def test_a_difference_of_the_same_runs_is_0_with_shared_examples():
    one = cell({(0, 0): 0.5}, "bert")
    drawn = bootstrap("mean", one, one)
    assert not drawn.differences.any()


def test_the_noise_of_seeds_is_the_standard_error_of_the_difference():
    def runs(shares, models):
        cells = {}
        for seed, share in enumerate(shares):
            sums = np.zeros((100, 1), np.float32)
            sums[: round(100 * share)] = 1
            cells[seed, 0] = sums
        return Cell(cells, models)

    first, second = runs((0.7, 0.8, 0.9), "bert"), runs((0.6, 0.7, 0.8), "ltr")
    noise = noise_of("mean", first, second)
    assert noise.value == pytest.approx(np.sqrt(2 * 100 / 3))  # two rows of variance 100, three seeds each
    assert noise[1:] == (3, pytest.approx(4), False, False)
    paired = noise_of("mean", first, second._replace(models="bert"))
    assert paired.value == pytest.approx(0, abs=1e-6)  # every seed differs by 10 points
    assert paired[1:] == (3, 2, False, True)
    # One pre-trained model says nothing of other seeds, however often it is fine-tuned; a given one has no others.
    tuned = Cell({(0, 0): first.runs[0, 0], (0, 1): first.runs[2, 0]}, "bert")
    assert noise_of("mean", tuned, second).value is None
    given = noise_of("mean", tuned._replace(is_given=True), second)
    assert given.is_of_tuning
    assert given.num_seeds == 2
    assert given.value == pytest.approx(np.sqrt(200 / 2 + 100 / 3))


@pytest.mark.parametrize("freedom", [1, 2, 2.4, 3, 3.7, 4, 4.9, 5, 7.5, 30, 10**6])
def test_an_interval_is_as_wide_as_students_t(freedom):
    assert width_95(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=0.02)


@pytest.mark.parametrize("is_paired", [True, False], ids=["shared models", "own models"])
def test_95_percent_intervals_of_three_seeds_have_no_difference_in_them_about_as_often(is_paired):
    """Two rows that differ by chance alone: their seeds have a spread, and so does the choice of 300 examples."""
    rng, plain, found, trials = np.random.default_rng(0), 0, 0, 300
    for trial in range(trials):
        hardness, cells = rng.random(300), []
        for models in ("a", "a" if is_paired else "b"):
            shares = 0.7 + 0.05 * rng.standard_normal(3)
            runs = {(seed, 0): (hardness < share).astype(np.float32)[:, None] for seed, share in enumerate(shares)}
            cells.append(Cell(runs, models))
        drawn = bootstrap("mean", *cells, num_draws=200, seed=trial)
        for number, draws in enumerate((drawn.differences, stretched(drawn, noise_of("mean", *cells)))):
            low, high = np.quantile(draws, [0.025, 0.975])
            found += number * (low <= 0 <= high)
            plain += (1 - number) * (low <= 0 <= high)
    assert plain < 0.9 * trials  # why it is not left as it is
    assert 0.92 * trials < found < trials


def test_a_perplexity_is_of_all_batches_and_varies_by_them():
    hardness = np.random.default_rng(0).uniform(0.5, 1.5, 50)
    better, worse = (
        Cell({(0, 0): np.stack([1_000 * loss * hardness, np.full(50, 1_000.0)], axis=1)}, name)
        for name, loss in (("a", 2.0), ("b", 2.5))
    )
    expected = [np.exp(loss * hardness.mean()) for loss in (2.0, 2.5)]
    assert better.scores("perplexity")[0, 0] == pytest.approx(expected[0], rel=1e-5)
    drawn = bootstrap("perplexity", better, worse, num_draws=2_000)
    assert drawn.differences.mean() == pytest.approx(expected[0] - expected[1], rel=0.02)
    of_mean = hardness.std() / np.sqrt(50)  # by the rule of small errors
    assert drawn.of_examples.std() == pytest.approx((2.5 * expected[1] - 2.0 * expected[0]) * of_mean, rel=0.1)


def test_the_same_seed_gives_the_same_draws():
    one, other = cell({(0, 0): 0.5, (1, 0): 0.6}, "a"), cell({(0, 0): 0.4, (1, 0): 0.5}, "b", seed=5)
    first, second = (bootstrap("mean", one, other, seed=9).differences for _ in range(2))
    assert (first == second).all()
