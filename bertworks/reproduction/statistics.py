"""What is kept of a measured model, example by example, and the bootstrap that judges differences by it.

Every metric of the paper is a function of sums over examples: an accuracy of how many are right, an F1 of three counts,
a correlation of six. So a measurement is an array [examples, K] of what each example adds, a few kilobytes on disk, and
a score on any resampled dev set is one product of matrices. Of held-out text the examples are batches of some thousand
tokens, with loss and count.

The bootstrap is that of MultiBERTs (Sellam et al. 2022, "Multi-Bootstrap"): it resamples the seeds of pre-training, the
seeds of fine-tuning within each, and the examples, which all rows share. Rows that start from the same pre-trained
models (LTR with and without a BiLSTM) get the same resampled seeds of pre-training.

Resampling three seeds spreads too little: of three values the draws have two thirds of the variance, and nothing tells
them that the variance itself is known only roughly. A nominal 95 % then covers some 80 %. So the draws are stretched
about their mean until seeds and examples together reach as far as Student's t says (`stretched`).
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.tasks.metrics import entities, measure_answers
from bertworks.tasks.task import SpanExample, Task
from bertworks.tasks.windows import null_odds_of, predictions_of

Form = Literal["mean", "f1", "matthews", "correlation", "perplexity"]
Floats = NDArray[np.float64]
NUM_DRAWS = 1_000
_AT_ONCE = 200  # draws; their weights take 16 MB for 10,000 examples
_PERCENT = 100.0
_FEWEST_REPEATED = 2
_WIDTH_95 = 1.959964  # standard deviations
_FEW = (1 / 5, 1 / 4, 1 / 3, 1 / 2, 1.0), (2.571, 2.776, 3.182, 4.303, 12.706)  # Student's t by 1 / freedom


def form_of(task: Task, metric: str) -> Form:
    """Return how a task's metric follows from sums over examples."""
    if task.kind == "regress":
        return "correlation"
    if metric == "matthews":
        return "matthews"
    return "f1" if metric == "f1" and task.kind in ("tag", "classify") else "mean"


def sums_of(
    task: Task, metric: str, examples: Sequence[Any], gold: Sequence[Any], predicted: Sequence[Any]
) -> NDArray[np.float32]:
    """Return what each example adds to a metric, [examples, K].

    Args:
        task: the task, with the threshold by which questions count as not answered.
        metric: one of the task's.
        examples: those that were measured.
        gold: their labels, as `gold_of` gives them.
        predicted: what the model predicted, as `decode` gives it.
    """
    form = form_of(task, metric)
    if task.kind == "answer":
        return np.array(list(_of_answers(task, metric, examples, predicted)), np.float32)[:, None]
    if task.kind == "tag":
        found = [(set(entities(right)), set(entities(guess))) for right, guess in zip(gold, predicted, strict=True)]
        return np.array([(len(a & b), len(b), len(a)) for a, b in found], np.float32)
    if form == "correlation":
        # Spearman's is Pearson's of ranks; resampled dev sets keep the ranks of the whole one.
        x, y = (_ranks(values) if metric == "spearman" else np.array(values, float) for values in (gold, predicted))
        x, y = x - x.mean(), y - y.mean()  # which changes no correlation, and keeps float32 exact enough
        return np.stack([np.ones_like(x), x, y, x * x, y * y, x * y], axis=1).astype(np.float32)
    if form == "mean":
        return np.array([a == b for a, b in zip(gold, predicted, strict=True)], np.float32)[:, None]
    positive = task.positive or task.labels[-1]
    is_gold, is_said = (np.array([one == positive for one in labels]) for labels in (gold, predicted))
    if form == "f1":
        return np.stack([is_gold & is_said, is_said, is_gold], axis=1).astype(np.float32)
    counted = [is_gold & is_said, ~is_gold & ~is_said, ~is_gold & is_said, is_gold & ~is_said]
    return np.stack(counted, axis=1).astype(np.float32)


def _of_answers(task: Task, metric: str, examples: Sequence[SpanExample], predicted: Sequence[Any]) -> Iterator[float]:
    """Yield the share of each question: its F1 or whether it is exact, by the official scripts."""
    answers = predictions_of(examples, predicted)
    odds = null_odds_of(examples, predicted) if task.has_impossible else None
    for example in examples:
        some = None if odds is None else {example.id: odds[example.id]}
        threshold = 0.0 if task.threshold is None else task.threshold
        yield measure_answers(task, [example], answers, some, threshold)[metric] / _PERCENT


def _ranks(values: Sequence[float]) -> Floats:
    """Return ranks, of equal values their mean."""
    _, inverse, counts = np.unique(np.array(values, float), return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    ranks: Floats = (ends - (counts + 1) / 2)[inverse]
    return ranks


def score_of(form: Form, sums: NDArray[Any]) -> Floats:
    """Return scores in percent (a perplexity as it is) of sums [..., K] over examples; a mean has sum and count."""
    total = np.asarray(sums, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        if form == "perplexity":
            return np.exp(np.minimum(total[..., 0] / total[..., -1], 700.0))
        if form == "mean":
            found = total[..., 0] / total[..., -1]
        elif form == "f1":
            found = 2 * total[..., 0] / (total[..., 1] + total[..., 2])
        elif form == "matthews":
            tp, tn, fp, fn = np.moveaxis(total[..., :4], -1, 0)
            spread = np.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
            found = np.where(spread > 0, (tp * tn - fp * fn) / spread, 0.0)
        else:
            n, x, y, xx, yy, xy = np.moveaxis(total[..., :6], -1, 0)
            spread = np.sqrt(np.maximum(xx - x * x / n, 0) * np.maximum(yy - y * y / n, 0))
            found = np.where(spread > 0, (xy - x * y / n) / spread, 0.0)
    return np.asarray(_PERCENT * np.nan_to_num(found), np.float64)


def majority_score(form: Form, task: Task, gold: Sequence[Any], positive: str) -> float:
    """Return what a constant answer scores, in percent: the better of the usual ones.

    Args:
        form: of the metric.
        task: the task.
        gold: the labels; of questions whether each has an answer.
        positive: the label that F1 is of.
    """
    if form == "mean" and task.kind in ("classify", "choose"):
        return float(_PERCENT * Counter(gold).most_common(1)[0][1] / len(gold))
    if task.kind == "answer" and task.has_impossible:  # always "no answer"
        return float(_PERCENT * (1 - sum(gold) / len(gold)))
    if form == "f1" and task.kind == "classify":  # always "yes"
        share = sum(one == positive for one in gold) / len(gold)
        return float(_PERCENT * 2 * share / (1 + share))
    return 0.0


class Cell(NamedTuple):
    """A row's measurements in a column.

    Attributes:
        runs: by pre-training seed and fine-tuning seed what each example adds, [examples, K].
        models: what identifies its pre-trained models, by which rows share them.
        is_given: whether there is one model, which was not pre-trained here, so only fine-tuning has seeds.
    """

    runs: dict[tuple[int, int], NDArray[Any]]
    models: str
    is_given: bool = False

    @property
    def seeds(self) -> list[int]:
        """The seeds of pre-training."""
        return sorted({seed for seed, _ in self.runs})

    def scores(self, form: Form) -> dict[tuple[int, int], float]:
        """Return the score of each run."""
        return {key: float(score_of(form, _with_count(form, sums).sum(0))) for key, sums in self.runs.items()}


def _with_count(form: Form, sums: NDArray[Any]) -> NDArray[Any]:
    """Give means a second column, the number of examples, so that a score needs sums alone."""
    if form != "mean":
        return sums
    return np.concatenate([sums, np.ones_like(sums[:, :1])], axis=1)


class Noise(NamedTuple):
    """How much a difference varies by seeds alone.

    Attributes:
        value: the standard error of the mean difference; None where no seed was repeated.
        num_seeds: of pre-training, or of a given model of fine-tuning; the fewest of both rows.
        freedom: degrees of freedom of the standard error (Welch).
        is_of_tuning: whether a row is of a given model, of which only fine-tuning was repeated.
        is_paired: whether both rows start from the same pre-trained models.
    """

    value: float | None
    num_seeds: int
    freedom: float
    is_of_tuning: bool
    is_paired: bool


def noise_of(form: Form, first: Cell, second: Cell) -> Noise:
    """Return the noise of the difference of two cells' means, from the spread of their seeds' means."""
    means = [_by_seed(form, cell) for cell in (first, second)]
    if _are_paired(first, second) and not first.is_given:
        samples = [[means[0][seed] - means[1][seed] for seed in first.seeds]]
    else:
        samples = [
            list((cell.scores(form) if cell.is_given else its).values())
            for cell, its in zip((first, second), means, strict=True)
        ]
    num_seeds, is_of_tuning = min(map(len, samples)), first.is_given or second.is_given
    if num_seeds < _FEWEST_REPEATED:
        return Noise(None, num_seeds, 0.0, is_of_tuning, len(samples) == 1)
    parts = [float(np.var(values, ddof=1)) / len(values) for values in samples]
    shares = sum(part**2 / (len(values) - 1) for part, values in zip(parts, samples, strict=True))
    freedom = sum(parts) ** 2 / shares if shares else float(num_seeds - 1)
    return Noise(math.sqrt(sum(parts)), num_seeds, freedom, is_of_tuning, len(samples) == 1)


def _are_paired(first: Cell, second: Cell) -> bool:
    return first.models == second.models and first.seeds == second.seeds


def width_95(freedom: float) -> float:
    """Return how many standard errors a 95 % interval reaches to either side: Student's t, 1.96 for many seeds."""
    if freedom < 1 / _FEW[0][0]:
        return float(np.interp(1 / freedom, *_FEW))
    z = _WIDTH_95  # the expansion of Cornish and Fisher
    terms = ((z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384)
    return z + sum(term / freedom**power for power, term in enumerate(terms, 1))


def _by_seed(form: Form, cell: Cell) -> dict[int, float]:
    scores = cell.scores(form)
    return {seed: float(np.mean([score for (its, _), score in scores.items() if its == seed])) for seed in cell.seeds}


class Resampled(NamedTuple):
    """Bootstrap draws of the difference of two cells, in points: of everything, and of the examples alone."""

    differences: Floats
    of_examples: Floats


def bootstrap(form: Form, first: Cell, second: Cell, *, num_draws: int = NUM_DRAWS, seed: int = 0) -> Resampled:
    """Draw the difference first - second many times, with seeds and examples resampled with replacement.

    A score of a draw is the mean over its runs of the metric on its examples.
    """
    rng = np.random.default_rng(seed)
    num_examples = len(next(iter(first.runs.values())))
    assert all(len(sums) == num_examples for cell in (first, second) for sums in cell.runs.values())
    columns, slices, start = [], [], 0
    for cell in (first, second):
        stacked = np.concatenate([_with_count(form, sums) for sums in cell.runs.values()], axis=1, dtype=np.float32)
        columns.append(stacked)
        slices.append(slice(start, start := start + stacked.shape[1]))
    together = np.concatenate(columns, axis=1)
    is_shared = _are_paired(first, second)
    all_draws, only_examples = [], []
    for begin in range(0, num_draws, _AT_ONCE):
        count = min(_AT_ONCE, num_draws - begin)
        chosen = rng.integers(num_examples, size=(count, num_examples))
        offsets = num_examples * np.arange(count)[:, None]
        weights = np.bincount((chosen + offsets).ravel(), minlength=count * num_examples).reshape(count, num_examples)
        sums = weights.astype(np.float32) @ together
        uniform = rng.random((count, len(first.seeds)))
        means, fixed = [], []
        for number, (cell, part) in enumerate(zip((first, second), slices, strict=True)):
            scores = score_of(form, sums[:, part].reshape(count, len(cell.runs), -1))
            if number and not is_shared:
                uniform = rng.random((count, len(cell.seeds)))
            means.append(_mean_of_seeds(scores, cell, uniform, rng))
            fixed.append(scores.mean(1))
        all_draws.append(means[0] - means[1])
        only_examples.append(fixed[0] - fixed[1])
    return Resampled(np.concatenate(all_draws), np.concatenate(only_examples))


def stretched(drawn: Resampled, noise: Noise) -> Floats:
    """Return the draws, stretched about their mean so that few seeds count as few."""
    spread = float(drawn.differences.std())
    if noise.value is None or spread == 0:
        return drawn.differences
    reach = math.hypot(width_95(noise.freedom) * noise.value, _WIDTH_95 * float(drawn.of_examples.std()))
    middle = drawn.differences.mean()
    return np.asarray(middle + (drawn.differences - middle) * max(1.0, reach / (_WIDTH_95 * spread)), np.float64)


def _mean_of_seeds(scores: Floats, cell: Cell, uniform: Floats, rng: np.random.Generator) -> Floats:
    """Return the mean score of every draw over resampled seeds: of pre-training by `uniform`, of fine-tuning anew."""
    by_seed = [[n for n, (its, _) in enumerate(cell.runs) if its == seed] for seed in cell.seeds]
    counts = np.array([len(numbers) for numbers in by_seed])
    table = np.array([numbers + [0] * (counts.max() - len(numbers)) for numbers in by_seed])
    seeds = (uniform * len(by_seed)).astype(int)  # [draws, seeds]
    picks = rng.random((*seeds.shape, counts.max()))
    runs = table[seeds[..., None], (picks * counts[seeds][..., None]).astype(int)]  # [draws, seeds, tunings]
    rows = np.arange(len(scores))[:, None, None]
    return np.asarray(scores[rows, runs].mean((1, 2)), np.float64)
