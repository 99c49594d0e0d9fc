"""The paper's statements about differences, from `claims.toml`, and a verdict on each from measurements.

- A claim is about two rows of a table: first minus second, in the points of the paper, task by task. Each task is one
  direction, with a verdict of its own.
- An effect counts when it is beyond twice the noise of seeds, and the 95 % interval of the bootstrap, over seeds and
  examples, excludes 0. Then it agrees or disagrees with the paper's sign; else it is undecided.
- With fewer than three seeds nothing is decided, because the noise is not known then.
- A claim of no difference has a `margin`: it agrees when the interval lies within it, and disagrees when outside.
- For an undecided one the number of seeds that would decide it is computed, as if the effect stayed as it is. Where the
  dev set alone makes the interval too wide, no number of seeds does. Nor is one named beyond `MOST_SEEDS`.
"""

import math
import tomllib
import zlib
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from typing import Any, Literal

import numpy as np
from pydantic import Field

from bertworks.config import Settings, validate
from bertworks.reproduction.statistics import NUM_DRAWS, Cell, Form, bootstrap, noise_of, stretched, width_95

Verdict = Literal["agrees", "disagrees", "undecided", "not testable here"]
VERDICTS: tuple[Verdict, ...] = ("agrees", "disagrees", "undecided", "not testable here")
BEYOND = 2.0  # times the noise of seeds
FEWEST_SEEDS = 3  # of two the spread says next to nothing
MOST_SEEDS = 1_000  # that the command takes, and as many processes
_NEVER = "no practical number of seeds decides it: the effect is too small for them, or for the dev set"


class Claim(Settings):
    """A statement of the paper.

    Attributes:
        table: the command's name of the table.
        says: the statement.
        where: in the paper.
        row, against: the rows of the difference.
        sizes: the paper's difference row - against by column, in points.
        sized: whether the paper gives those numbers; else they have its sign alone.
        margin: where the paper says that there is no difference to speak of: how large one would contradict it.
    """

    table: str
    says: str
    where: str
    row: str
    against: str
    sizes: dict[str, float] = Field(min_length=1)
    sized: bool = True
    margin: float | None = Field(default=None, gt=0)


def read_claims() -> list[Claim]:
    """Return all claims, in the order of their file."""
    text = resources.files("bertworks.reproduction").joinpath("claims.toml").read_text(encoding="utf-8")
    return [validate(Claim, values, "claims.toml") for values in tomllib.loads(text)["claim"]]


def judge(
    claim: Claim,
    column: str,
    cells: Mapping[tuple[str, str], Cell],
    form: Form,
    *,
    why_missing: Callable[[str, str], str],
    lower_is_better: bool = False,
    num_draws: int = NUM_DRAWS,
) -> dict[str, Any]:
    """Return the verdict on a claim in a column, and what it rests on, as JSON.

    Args:
        claim: the claim.
        column: one of its columns.
        cells: measurements by row and column.
        form: of the column's metric.
        why_missing: says why a row has no measurements in a column.
        lower_is_better: whether the smaller score is the better one (perplexity), for readers.
        num_draws: of the bootstrap.
    """
    size = claim.sizes[column]
    found: dict[str, Any] = {
        "says": claim.says, "where": claim.where, "row": claim.row, "against": claim.against, "column": column,
        "paper": size, "sized": claim.sized, "margin": claim.margin, "lower_is_better": lower_is_better,
    }  # fmt: skip
    missing = [row for row in (claim.row, claim.against) if (row, column) not in cells]
    if missing:
        return found | {"verdict": "not testable here", "why": why_missing(missing[0], column)}
    first, second = cells[claim.row, column], cells[claim.against, column]
    ours = [float(np.mean(list(cell.scores(form).values()))) for cell in (first, second)]
    noise = noise_of(form, first, second)
    name = f"{claim.table}/{claim.row}/{claim.against}/{column}"
    drawn = bootstrap(form, first, second, num_draws=num_draws, seed=zlib.crc32(name.encode()))
    differences = stretched(drawn, noise)
    low, high = (float(value) for value in np.quantile(differences, [0.025, 0.975]))
    effect, seed_error = ours[0] - ours[1], noise.value
    found |= {
        "ours": round(effect, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "noise": None if seed_error is None else round(seed_error, 4),
        "num_seeds": noise.num_seeds,
        "noise_is_of_tuning": noise.is_of_tuning,
    }
    if claim.margin is None:
        found["probability"] = round(float(_share(differences, math.copysign(1, size))), 4)
    else:
        found["probability"] = round(float(np.mean(np.abs(differences) <= claim.margin)), 4)
    is_known = seed_error is not None and noise.num_seeds >= FEWEST_SEEDS
    verdict = verdict_of(effect, seed_error if is_known else None, (low, high), size, claim.margin)
    found["verdict"] = verdict
    if verdict == "undecided" and not is_known:
        found |= {"why": f"fewer than {FEWEST_SEEDS} seeds: their noise is not known", "seeds_needed": FEWEST_SEEDS}
    elif verdict == "undecided":
        assert seed_error is not None
        found["seeds_needed"] = needed = seeds_needed(
            effect, noise.num_seeds * seed_error**2, float(np.var(drawn.of_examples)), claim.margin,
            is_paired=noise.is_paired, more_than=noise.num_seeds,
        )  # fmt: skip
        includes = f"what is beyond {claim.margin:g}" if claim.margin is not None else "0"
        is_noise = claim.margin is None and abs(effect) <= BEYOND * seed_error
        why = "the effect is within the noise of seeds" if is_noise else f"the 95 % interval includes {includes}"
        found["why"] = why if needed else _NEVER
    return found


def _share(differences: Any, sign: float) -> float:
    """Return the share of draws with a sign; a draw of 0 counts half."""
    signed = sign * np.asarray(differences)
    return float(np.mean((signed > 0) + 0.5 * (signed == 0)))


def verdict_of(
    effect: float, noise: float | None, interval: tuple[float, float], paper: float, margin: float | None = None
) -> Verdict:
    """Return the verdict on a difference; None as the noise: no seed was repeated, and nothing is decided."""
    low, high = interval
    if noise is None:
        return "undecided"
    if margin is not None:
        if -margin <= low and high <= margin:
            return "agrees"
        return "disagrees" if low > margin or high < -margin else "undecided"
    if abs(effect) <= BEYOND * noise or low <= 0 <= high:
        return "undecided"
    return "agrees" if effect * paper > 0 else "disagrees"


def seeds_needed(
    effect: float,
    variance: float,
    of_examples: float,
    margin: float | None = None,
    *,
    is_paired: bool = False,
    more_than: int = FEWEST_SEEDS - 1,
) -> int | None:
    """Return how many seeds would decide a difference if it stayed as it is; None: no number up to `MOST_SEEDS`.

    Args:
        effect: the difference.
        variance: of the difference of one pair of seeds.
        of_examples: the variance of the difference by the choice of examples, which seeds do not lower.
        margin: of a claim of no difference.
        is_paired: whether both rows start from the same models; else each has its own spread.
        more_than: the number of seeds that there are.
    """
    distance = abs(effect) if margin is None else abs(margin - abs(effect))
    for count in range(more_than + 1, MOST_SEEDS + 1):
        error = math.sqrt(variance / count)
        freedom = (count - 1) * (1 if is_paired else 2)
        is_beyond = margin is not None or distance > BEYOND * error
        if is_beyond and distance > math.hypot(width_95(freedom) * error, width_95(math.inf) * math.sqrt(of_examples)):
            return count
    return None


def counts_of(judged: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many directions have each verdict."""
    return {verdict: sum(one["verdict"] == verdict for one in judged) for verdict in VERDICTS}


def headline(counts: Mapping[str, int]) -> str:
    """Say in a line how many directions agree."""
    total = sum(counts.values()) - counts["not testable here"]
    untestable = counts["not testable here"]
    more = f"; {untestable} more not testable here" if untestable else ""
    noun = "direction" if total == 1 else "directions"
    agree = "agrees" if counts["agrees"] == 1 else "agree"
    contradict = "contradicts" if counts["disagrees"] == 1 else "contradict"
    return (
        f"{counts['agrees']} of {total} {noun} {agree}, {counts['disagrees']} {contradict}, "
        f"{counts['undecided']} undecided{more}"
    )
