"""The runs of a task for `compact.py`: a search in parts, one for each learning rate, then a seed at a time.

Each part and each seed is a grid of its own, in a folder of its own: so each can be a process. Where settings leave one
point there is nothing to search. The models are measured once more on the test set where its gold is at hand; the one
that counts is chosen on dev alone.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from compact_task import WORKS, Search, Work, chosen, points_for

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.settings import Point
from bertworks.tasks import find_task
from bertworks.tasks.task import DEV, Columns, open_dataset

_SEARCH = "search"


class Place(NamedTuple):
    """What a work's runs start from, and where they are put.

    Attributes:
        name: of the work.
        model: the one to start from.
        data: the folder with the tasks' own files.
        folder: of all works with the same start.
        init: model, or random where its weights are not taken.
    """

    name: str
    model: str
    data: Path
    folder: Path
    init: str

    def grid(self, runs: str, overrides: Sequence[str]) -> dict[str, Any] | None:
        """Make runs, or go on with them; None where a signal ended them."""
        work = WORKS[self.name]
        outcome = bw.search(
            **_files(work, self.data), out=self.folder / self.path_of(runs), overrides=overrides, model=self.model,
            init="model" if work.source else self.init, resume=True, note=lambda text: print(text, flush=True),
        )  # fmt: skip
        return None if outcome.signal else outcome.results

    def path_of(self, runs: str) -> str:
        """Return where runs lie below the folder: those from another work's model apart for each such model."""
        start = f"from-{Path(self.model).name}/" if WORKS[self.name].source else ""
        return f"{self.name}/{start}{runs}"


def place_of(name: str, model: str, data: Path, folder: Path, init: str, num_seeds: int) -> Place:
    """Return the place of a work, which may start from the best model that another work has left."""
    source = WORKS[name].source
    return Place(name, source_model(folder, source, num_seeds) if source else model, data, folder, init)


def parts_of(name: str, search: Search) -> list[str]:
    """Return the parts of a work, those of its search first."""
    return [*_search_parts(name, search), *map(seed_part, range(search.seeds))]


def _search_parts(name: str, search: Search) -> list[str]:
    return [f"{_SEARCH}-{number}" for number in range(len(search.searches(name)))]


def is_search(part: str) -> bool:
    """Tell whether a part is one of the search."""
    return part.startswith(_SEARCH)


def run_part(place: Place, search: Search, part: str) -> dict[str, Any] | None:
    """Make the runs of a part; None where a signal ended them."""
    number = int(part.rpartition("-")[2])
    return run_search(place, search, number) if is_search(part) else run_seed(place, search, number)


def run_search(place: Place, search: Search, number: int) -> dict[str, Any] | None:
    """Run every point of a part of the search with one seed on some of the examples."""
    overrides = search.searches(place.name)[number]
    grid = place.grid(f"{_SEARCH}-{number}", overrides)
    return None if grid is None else asked_for(grid, points_for(place.name, overrides))


def asked_for(grid: Mapping[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    """Return the runs that are asked for: a grid that is gone on with may have others besides."""
    names, kept = {point.name for point in points}, ("point", "values", "score", "minutes", "error")
    runs = [{key: run[key] for key in kept} for run in grid["runs"].values() if run["point"] in names]
    return {"runs": runs, "examples": min(grid["examples"], points[0].settings.task.max_examples)}


def read_search(folder: Path, name: str, search: Search) -> dict[str, Any]:
    """Return what all parts of a search have found; the point that there is where nothing is searched."""
    parts = [result_path(folder, name, part) for part in _search_parts(name, search)]
    if not all(path.exists() for path in parts):
        raise UserError(f"{name}: a part of its search has no result; see its log")
    if not parts:
        (point,) = points_for(name, search.overrides)
        return {"point": point.name, "values": point.values, "scores": {}, "minutes": 0.0, "examples": 0, "failed": 0}
    return best_point([json.loads(path.read_text(encoding="utf-8")) for path in parts])


def best_point(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the best point of a search, and what all of them scored."""
    runs = [run for part in parts for run in part["runs"]]
    scored = [run for run in runs if run["score"] is not None]
    if not scored:
        raise UserError(f"no run of the search has a score; the last: {runs[-1]['error'] or 'not defined'}")
    best = max(scored, key=_rank)
    return {
        "point": best["point"],
        "values": best["values"],
        "scores": {run["point"]: run["score"] for run in scored},
        "minutes": round(sum(run["minutes"] for run in runs), 4),
        "examples": parts[0]["examples"],
        "failed": sum(bool(run["error"]) for run in runs),
    }


def run_seed(place: Place, search: Search, seed: int) -> dict[str, Any] | None:
    """Run the point that was chosen on all examples; None where a signal ended it."""
    searched = read_search(place.folder, place.name, search)
    runs = f"{searched['point']}-{seed_part(seed)}"  # another point is another folder, and another model
    settings = (*search.overrides, *chosen(search.overrides, searched["values"]), f"train.seed={seed}")
    grid = place.grid(runs, settings)
    if grid is None:
        return None
    (run,) = grid["runs"].values()
    if run["error"]:
        raise UserError(f"{place.name}, {runs}: {run['error']}")
    found = {name: run[name] for name in ("score", "metrics", "minutes", "seed")} | {"metric": grid["metric"]}
    return found | {
        "model": place.path_of(runs), "examples": min(grid["examples"], search.most_examples()),
        "notes": [note.replace(f"{place.data}/", "") for note in grid["notes"]],
        "test": _test(WORKS[place.name], place.data, place.folder / place.path_of(runs)),
    }  # fmt: skip


def seed_part(seed: int) -> str:
    """Return what the run with a seed is called."""
    return f"seed-{seed}"


def source_model(folder: Path, source: str, num_seeds: int) -> str:
    """Return the folder of a work's best model by dev; one that is under way has not its best model yet."""
    paths = [result_path(folder, source, seed_part(seed)) for seed in range(num_seeds)]
    if not all(path.exists() for path in paths):
        raise UserError(
            f"{folder} has no finished runs of {source} to start from; measure it first, with the same --out"
        )
    best = max((json.loads(path.read_text(encoding="utf-8")) for path in paths), key=_rank)
    return str(folder / best["model"])


def result_path(folder: Path, name: str, part: str) -> Path:
    """Return where the result of a part is put beside its runs."""
    return folder / f"{name}.{part}.json"


def _files(work: Work, data: Path) -> dict[str, Any]:
    if not work.is_dev_train:
        return {"task": work.task, "data": data}
    task = find_task(work.task)
    (path,) = open_dataset(task, data).files(DEV).paths
    columns = Columns(text="sentence1", pair="sentence2", label=("gold_label",))
    return {"task": task.kind, "train": path, "columns": columns}


def summary(
    name: str, search: Search, searched: Mapping[str, Any], seeds: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return what is kept of a work: the point that was chosen, its seeds, and what all of it took."""
    work, scores = WORKS[name], [run["score"] for run in seeds if run["score"] is not None]
    best = max(seeds, key=_rank)
    return {
        "metric": best["metric"],
        "setting": dict(searched["values"]),
        "seeds": {str(run["seed"]): run["metrics"] for run in seeds},
        "median": statistics.median(scores) if scores else None,
        "min": min(scores, default=None),
        "max": max(scores, default=None),
        "medians": _medians([run["metrics"] for run in seeds]),
        "examples": best["examples"],
        "search": {"examples": searched["examples"], "scores": dict(searched["scores"])},
        "minutes": round(searched["minutes"] + sum(run["minutes"] for run in seeds), 4),
        "failed_runs": searched["failed"],
        "notes": [*best["notes"], *[work.note] * bool(work.note), *search.notes],
        "task": work.task,
        "overrides": list(search.overrides),
        "test": best["test"],
    }


def _rank(run: Mapping[str, Any]) -> float:
    return -math.inf if run["score"] is None else float(run["score"])


def _medians(seeds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the median of every metric that all seeds have."""
    names = [name for name in seeds[0] if all(name in metrics for metrics in seeds)]
    return {name: statistics.median(metrics[name] for metrics in seeds) for name in names}


def _test(work: Work, data: Path, model: Path) -> dict[str, Any] | None:
    """Measure a model on the test set, if its gold is there."""
    if not work.test or work.test not in open_dataset(find_task(work.task), data).found:
        return None
    from bertworks.inference.evaluate import measure_models
    from bertworks.inference.predict import Ensemble

    measured = measure_models(Ensemble([bw.load(model)], [str(model)]), work.task, data, work.test)
    defined = {name: value for name, value in measured.metrics.items() if math.isfinite(value)}
    return {"split": work.test, "examples": len(measured.examples), "metrics": defined}
