"""The file of claims agrees with the paper's numbers; verdicts, and how many seeds would decide."""

import numpy as np
import pytest
from scipy import stats

from bertworks.reproduction.claims import counts_of, headline, judge, read_claims, seeds_needed, verdict_of
from bertworks.reproduction.statistics import Cell
from bertworks.reproduction.tables import TABLES

CLAIMS = read_claims()


def test_every_size_is_the_difference_of_the_papers_numbers():
    compared = 0
    for claim in CLAIMS:
        table = TABLES[claim.table]
        assert {claim.row, claim.against} <= {row.id for row in table.rows}, claim
        for column, size in claim.sizes.items():
            ours, theirs = (table.paper_of(row, column) for row in (claim.row, claim.against))
            if ours is not None and theirs is not None:
                assert size == pytest.approx(ours - theirs), claim
                compared += 1
            else:
                assert claim.table in ("systems", "figure5") or not claim.sized, claim
    assert compared > 70


def test_the_systems_are_as_far_apart_as_in_the_papers_tables():
    sizes = {(claim.against, column): size for claim in CLAIMS if claim.table == "systems"
             for column, size in claim.sizes.items()}  # fmt: skip
    table1 = TABLES["table1"]
    for against, column in sizes:
        if column in {one.id for one in table1.columns}:
            difference = table1.paper_of("base", column) - table1.paper_of(against, column)
            assert sizes[against, column] == pytest.approx(difference)


def test_every_claim_has_a_direction():
    assert all(size or claim.margin for claim in CLAIMS for size in claim.sizes.values())


@pytest.mark.parametrize(
    ("effect", "noise", "interval", "paper", "margin", "verdict"),
    [
        (5.0, 1.0, (2.0, 8.0), 3.0, None, "agrees"),
        (-5.0, 1.0, (-8.0, -2.0), -3.0, None, "agrees"),
        (5.0, 1.0, (2.0, 8.0), -3.0, None, "disagrees"),
        (5.0, 2.6, (2.0, 8.0), 3.0, None, "undecided"),  # not beyond twice the noise
        (5.0, 1.0, (-0.1, 10.0), 3.0, None, "undecided"),  # 0 is in the interval
        (5.0, None, (2.0, 8.0), 3.0, None, "undecided"),  # a single seed
        (0.2, 0.1, (-0.9, 0.9), 0.1, 1.0, "agrees"),
        (0.2, 0.1, (-0.9, 1.1), 0.1, 1.0, "undecided"),
        (2.0, 0.1, (1.5, 2.5), 0.1, 1.0, "disagrees"),
    ],
)
def test_verdicts(effect, noise, interval, paper, margin, verdict):
    assert verdict_of(effect, noise, interval, paper, margin) == verdict


@pytest.mark.parametrize("is_paired", [True, False])
def test_the_seeds_that_are_needed_would_decide(is_paired):
    effect, variance, of_examples = 2.0, 9.0, 0.2
    needed = seeds_needed(effect, variance, of_examples, is_paired=is_paired)
    for count, decides in ((needed, True), (needed - 1, False)):
        noise = np.sqrt(variance / count)
        half = np.hypot(stats.t.ppf(0.975, (count - 1) * (1 if is_paired else 2)) * noise, 1.96 * np.sqrt(of_examples))
        assert (verdict_of(effect, noise, (effect - half, effect + half), 1.0) == "agrees") == decides
    assert seeds_needed(effect, variance, of_examples, more_than=needed + 4) == needed + 5
    assert seeds_needed(effect, variance, 5.0) is None  # the dev set alone spreads it further
    assert seeds_needed(0.0, 1.0, 0.0) is None
    assert seeds_needed(1.0, 100.0, 0.0) == 401  # for the interval 387 would do, but twice the noise is 1.0 at 400
    assert seeds_needed(0.1, 9.0, 0.0) is None  # over 3,000: more than the command takes
    assert seeds_needed(0.2, 1.0, 0.01, margin=1.0) == 8


def cells_of(first, second):
    """Cells of 200 examples; each share of right ones is a seed."""
    cells = {}
    for row, shares in (("ltr", first), ("no-nsp", second)):
        runs = {}
        for seed, share in enumerate(shares):
            rng = np.random.default_rng([seed, row == "ltr"])
            runs[seed, 0] = (rng.permutation(200)[:, None] < 200 * share).astype(np.float32)
        cells[row, "mrpc"] = Cell(runs, row)
    return cells


def judged(first, second):
    claim = next(one for one in CLAIMS if one.table == "table5" and one.row == "ltr" and one.against == "no-nsp")
    return judge(claim, "mrpc", cells_of(first, second), "mean", why_missing=lambda row, column: f"no {row} {column}")


def test_a_large_difference_agrees_or_disagrees_by_its_sign():
    found = judged((0.5, 0.52, 0.51), (0.8, 0.79, 0.82))
    assert found["verdict"] == "agrees"
    assert found["paper"] == -9.0
    assert found["ours"] == pytest.approx(-29.33, abs=0.01)
    assert found["low"] < -29.33 < found["high"] < 0
    assert found["probability"] == 1
    assert judged((0.8, 0.79, 0.82), (0.5, 0.52, 0.51))["verdict"] == "disagrees"


def test_a_difference_within_the_noise_says_how_many_seeds_it_takes():
    found = judged((0.4, 0.6, 0.5), (0.45, 0.75, 0.6))
    assert found["verdict"] == "undecided"
    assert 0.7 < found["probability"] < 1
    assert found["num_seeds"] == 3
    assert found["seeds_needed"] > 3
    assert found["why"] == "the effect is within the noise of seeds"
    two = judged((0.5, 0.52), (0.8, 0.79))
    assert (two["verdict"], two["why"]) == ("undecided", "fewer than 3 seeds: their noise is not known")
    alone = judged((0.4,), (0.6,))
    assert (alone["verdict"], alone["noise"], alone["seeds_needed"]) == ("undecided", None, 3)


def test_a_claim_without_measurements_is_not_testable_and_says_why():
    claim = next(one for one in CLAIMS if one.table == "table5")
    found = judge(claim, "qnli", {}, "mean", why_missing=lambda row, column: f"no {row} {column}")
    assert (found["verdict"], found["why"]) == ("not testable here", "no no-nsp qnli")


def test_the_headline_counts():
    verdicts = ["agrees"] * 11 + ["undecided"] * 3 + ["not testable here"]
    counts = counts_of([{"verdict": verdict} for verdict in verdicts])
    assert headline(counts) == "11 of 14 directions agree, 0 contradict, 3 undecided; 1 more not testable here"
    one = counts_of([{"verdict": "agrees"}])
    assert headline(one) == "1 of 1 direction agrees, 0 contradict, 0 undecided"
