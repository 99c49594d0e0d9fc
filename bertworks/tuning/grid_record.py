"""What is known of a grid's runs, in one file: `grid.json`.

It is written anew after every run, so a grid that was killed goes on behind the last one that is in it. A run counts as
finished when it is in the file; its checkpoints are removed after that. What is said of points (mean, spread) is
computed from the runs, and is in the file for those who read it.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings, Stated, read_record
from bertworks.errors import CannotGoOn
from bertworks.files import atomic_write
from bertworks.interop.folder import read_json
from bertworks.train.digest import outcome_of

GRID_FILE = "grid.json"
_SAME = ("task", "metric", "examples", "data", "model", "init")  # in all runs of a grid; the rest is for people


class Result(Settings):
    """How a run ended.

    Attributes:
        point: its name.
        values: of the axes, as they are written.
        seed: of the run.
        is_search: whether it saw only as many examples as the search does.
        settings: those that are not the usual ones.
        score: the best on the dev set; None where the main metric is not defined, or the run failed.
        step: when that was reached.
        metrics: all that was measured then.
        minutes: of training.
        error: why it failed; "" where it did not.
    """

    point: str
    values: dict[str, str]
    seed: int
    is_search: bool
    settings: dict[str, dict[str, bool | int | float | str | None]]
    score: float | None = None
    step: int = 0
    metrics: dict[str, float] = Field(default_factory=dict)
    minutes: float = Field(default=0.0, ge=0, le=1e9)
    error: str = ""

    @property
    def rank(self) -> tuple[bool, float]:
        """What is compared for the best run: one that saw all examples is before any of the search."""
        return not self.is_search, -math.inf if self.score is None else self.score


class _File(Stated):
    """What is read of `grid.json`; the rest of it is computed from this, or compared as it is."""

    runs: dict[str, Result]
    search_examples: int = Field(ge=0, le=1 << 53)
    chosen: str | None
    model_of: str | None

    @field_validator("model_of")
    @classmethod
    def _model_is_of_a_run(cls, model_of: str | None, info: ValidationInfo) -> str | None:
        if model_of is not None and model_of not in info.data.get("runs", [model_of]):
            raise ValueError(f"{model_of[:60]!r} is none of the runs")
        return model_of


class Record:
    """The runs of a grid by their folders, and which of them the model is of.

    Args:
        out: the grid's folder.
        about: what all runs have in common; those of another model or other data are not gone on with.
        search_examples: how many examples runs of the search see; 0: all.
    """

    def __init__(self, out: Path, about: Mapping[str, Any], search_examples: int = 0) -> None:
        self.path, self.about, self.search_examples = out / GRID_FILE, dict(about), search_examples
        self.runs: dict[str, Result] = {}
        self.model_of: str | None = None
        self.chosen: str | None = None  # the point that was chosen to be run again
        if self.path.exists():
            self._read()

    def _read(self) -> None:
        content = read_json(self.path)
        for name in _SAME:
            if content.get(name) != self.about[name]:
                raise CannotGoOn(
                    f"{self.path.parent} has runs of another {name}; give the same to go on, or choose another --out"
                )
        known = read_record(_File, content, str(self.path))
        self.runs, self.model_of, self.chosen = dict(known.runs), known.model_of, known.chosen
        self.search_examples = self.search_examples or known.search_examples

    def finished(self, folder: str, settings: Mapping[str, Any]) -> Result | None:
        """Return how a run ended, if it did and did not fail; one with other settings is an error."""
        result = self.runs.get(folder)
        if result is None or result.error:
            return None
        if outcome_of(result.settings) != outcome_of(settings):
            raise CannotGoOn(
                f"{self.path.parent / folder} was run with other settings; give the same to go on, or choose another "
                "--out"
            )
        return result

    def best_run(self) -> Result | None:
        """Return the run that the model is of."""
        return self.runs[self.model_of] if self.model_of else None

    def save(self) -> dict[str, Any]:
        """Write the file; returns what it holds."""
        content = self.content()
        with atomic_write(self.path) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1, allow_nan=False)
            stream.write("\n")
        return content

    def content(self) -> dict[str, Any]:
        """Return all that is known, as JSON."""
        return {
            **self.about,
            "search_examples": self.search_examples,
            "points": self._points(),
            "chosen": self.chosen,
            "model_of": self.model_of,
            "minutes": round(sum(run.minutes for run in self.runs.values()), 4),
            "failed": sum(bool(run.error) for run in self.runs.values()),
            "runs": {folder: run.model_dump() for folder, run in self.runs.items()},
        }

    def _points(self) -> list[dict[str, Any]]:
        by_point: dict[tuple[bool, str], list[Result]] = {}
        for run in self.runs.values():
            by_point.setdefault((run.is_search, run.point), []).append(run)
        points = [_summary(runs) for runs in by_point.values()]
        for is_search in (True, False):
            same = [point for point in points if point["is_search"] == is_search]
            best = self.chosen or _best_name(same)
            for point in same:
                point["is_best"] = point["name"] == best
        return points


def _best_name(points: list[dict[str, Any]]) -> str | None:
    """Return the point with the highest mean, the first of equal ones."""
    measured = [point for point in points if point["mean"] is not None]
    return max(measured, key=lambda point: point["mean"])["name"] if measured else None


def _summary(runs: list[Result]) -> dict[str, Any]:
    """Return mean and spread over the seeds of a point; those that failed are counted, not averaged."""
    scores = [run.score for run in runs if run.score is not None]
    return {
        "name": runs[0].point,
        "values": runs[0].values,
        "is_search": runs[0].is_search,
        "seeds": [run.seed for run in runs],
        "scores": [run.score for run in runs],
        "mean": fmean(scores) if scores else None,
        "std": stdev(scores) if len(scores) > 1 else None,
        "min": min(scores, default=None),
        "max": max(scores, default=None),
        "minutes": round(sum(run.minutes for run in runs), 4),
        "failed": sum(bool(run.error) for run in runs),
    }
