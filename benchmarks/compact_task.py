"""One task of `compact.py`: which files, which runs, what is kept of them.

The search is that of Google's compact models as far as time allows: rates 3e-4, 1e-4, 5e-5, 3e-5 with batches of 16 and
32, 4 epochs, one seed, at most 10,000 examples; the best point is run with three seeds on all examples. One axis is
ours: every layer at the same rate, or each at 0.6 of the one above, which small train sets want (docs/log.md). What
large ones want 10,000 examples cannot tell, so it is set: the same rate, and a running mean of the weights. The models
are measured once more on the test set where its gold is at hand; the one that counts is chosen on dev alone.

The search and each seed are grids of their own, in folders of their own: so each can be a process.
"""

import json
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bertworks as bw
from bertworks.errors import UserError
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.registry import find_task
from bertworks.tasks.task import DEV, TEST, open_dataset
from bertworks.tuning.axes import Point, points_of

_GOLD = "test-gold"
_SQUAD_NOTE = "train: where an answer stands was found by search, 10.8 % of them stand at several places"
_QNLI_NOTE = "started from the best SQuAD 1.1 run's model, chosen on SQuAD's dev set, whose paragraphs QNLI's has too"
_SWAG_NOTE = "derived from novels, not SWAG"
_CODAH_NOTE = "fold 0 of 5"
_NSMC_NOTE = "split rebuilt, not the official one"
_KORNLI_NOTE = "train: KorNLI's dev set, as its train set cannot be had"
_WNLI_NOTE = (
    "the paper leaves it out: 65 of the first sentences of dev's 71 pairs are in train too; the larger class has 56.3"
)


class Work(NamedTuple):
    """A task to measure.

    Attributes:
        task: as `finetune` calls it.
        test: a split whose gold labels are there; "" where there is none.
        source: the work whose best model it starts from; "" for the model itself.
        is_large: whether it has so many examples that the search sees only a part of them.
        is_dev_train: whether there is only a dev set, from which it learns; a tenth of it is split off.
        note: what must be said beside its scores, besides what its files say.
    """

    task: str
    test: str = ""
    source: str = ""
    is_large: bool = False
    is_dev_train: bool = False
    note: str = ""


# The longest first: so none of them is alone at the end.
ENGLISH = {
    "squad2": Work("squad2", is_large=True, note=_SQUAD_NOTE),
    "squad1": Work("squad1", is_large=True, note=_SQUAD_NOTE),
    "snli": Work("snli", TEST, is_large=True),
    "qnli": Work("qnli", is_large=True),
    "qnli-from-squad1": Work("qnli", source="squad1", is_large=True, note=_QNLI_NOTE),
    "swag-like": Work("swag-like", is_large=True, note=_SWAG_NOTE),
    "sst2": Work("sst2", is_large=True),
    "conll2003": Work("conll2003", TEST),
    "qqp": Work("qqp", is_large=True),
    "cola": Work("cola"),
    "stsb": Work("stsb", _GOLD),
    "mrpc": Work("mrpc", _GOLD),
    "codah": Work("codah", TEST, note=_CODAH_NOTE),
    "rte": Work("rte"),
    "rte-from-snli": Work("rte", source="snli", note="started from the best SNLI run's model"),
    "wnli": Work("wnli", note=_WNLI_NOTE),
}
KOREAN = {
    "nsmc": Work("nsmc", TEST, is_large=True, note=_NSMC_NOTE),
    "korsts": Work("korsts", TEST),
    "kornli": Work("kornli", TEST, is_dev_train=True, note=_KORNLI_NOTE),
}
WORKS = ENGLISH | KOREAN


class Search(NamedTuple):
    """Which runs are made.

    Attributes:
        overrides: settings, several values being an axis.
        examples: how many the search sees at most.
        seeds: how many runs the best point has on all examples.
        notes: what is not as it should be.
    """

    overrides: tuple[str, ...]
    examples: int
    seeds: int
    notes: tuple[str, ...] = ()

    def changed(self, overrides: Sequence[str]) -> "Search":
        """Return the same with settings over its own, which is noted; the last that is said of one counts."""
        notes = (*self.notes, f"with {' '.join(overrides)}") if overrides else self.notes
        return self._replace(overrides=(*self.overrides, *overrides), notes=notes)

    def with_seeds(self, number: int) -> "Search":
        """Return the same with another number of seeds at the best setting, which is noted."""
        return self._replace(seeds=number, notes=(*self.notes, f"seeds: {number}"))

    def of(self, work: Work) -> "Search":
        """Return the same for a work: where examples are many, some of it is set."""
        return self._replace(overrides=(*self.overrides, *LARGE)) if work.is_large else self

    def on_some(self) -> tuple[str, ...]:
        """Return the settings with which points are compared: those of its own may want fewer examples still."""
        return *self.overrides, f"task.max_examples={min(self.examples, self.most_examples())}"

    def most_examples(self) -> int:
        """Return how many examples any run may see."""
        given = [text.partition("=")[2] for text in self.overrides if text.startswith("task.max_examples=")]
        if not all(map(str.isdecimal, given)):
            raise UserError(f"task.max_examples={given[-1]}: give one number, it is no axis here")
        return int(given[-1] if given else 0) or sys.maxsize  # 0: all of them


LARGE = ("task.layer_decay=1", "task.average=0.25")
# Every checkpoint of `small` is a third of a gigabyte; a run that is asked to end writes one all the same.
FULL = Search(
    (
        "optim.lr=3e-4,1e-4,5e-5,3e-5",
        "train.batch_size=16,32",
        "task.layer_decay=1,0.6",
        "train.epochs=4",
        "train.save_every=5000",
    ),
    examples=10_000,
    seeds=3,
)
QUICK = Search(
    ("optim.lr=3e-4,1e-4", "train.batch_size=16", "train.epochs=1", "task.max_examples=100"),
    examples=50,
    seeds=2,
    notes=("tried out on 100 examples",),
)


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
        outcome = bw.finetune_grid(
            **_files(work, self.data), out=self.folder / self.path_of(runs), overrides=overrides, model=self.model,
            init="model" if work.source else self.init, resume=True, note=lambda text: print(text, flush=True),
        )  # fmt: skip
        if outcome.signal:
            return None
        if outcome.is_failed:
            error = list(outcome.results["runs"].values())[-1]["error"]
            raise UserError(f"{self.name}, {runs}: all runs failed, the last with: {error}")
        return outcome.results

    def path_of(self, runs: str) -> str:
        """Return where runs lie below the folder: those from another work's model apart for each such model."""
        start = f"from-{Path(self.model).name}/" if WORKS[self.name].source else ""
        return f"{self.name}/{start}{runs}"


def place_of(name: str, model: str, data: Path, folder: Path, init: str, num_seeds: int) -> Place:
    """Return the place of a work, which may start from the best model that another work has left."""
    source = WORKS[name].source
    return Place(name, source_model(folder, source, num_seeds) if source else model, data, folder, init)


SEARCH = "search"


def run_search(place: Place, search: Search) -> dict[str, Any] | None:
    """Run every point with one seed on some of the examples; None where a signal ended it."""
    overrides = search.on_some()
    grid = place.grid(SEARCH, overrides)
    return (
        None
        if grid is None
        else best_point(grid, points_of(find_task(WORKS[place.name].task), overrides, is_grid=True))
    )


def best_point(grid: Mapping[str, Any], points: Sequence[Point]) -> dict[str, Any]:
    """Return the best of the points that are asked for: a grid that is gone on with may have others besides."""
    names = {point.name for point in points}
    asked_for = [run for run in grid["runs"].values() if run["point"] in names]
    runs = [run for run in asked_for if run["score"] is not None]
    if not runs:
        raise UserError("no run of the search has a score")
    best = max(runs, key=lambda run: run["score"])
    return {
        "point": best["point"],
        "values": best["values"],
        "scores": {run["point"]: run["score"] for run in runs},
        "minutes": round(sum(run["minutes"] for run in asked_for), 4),
        "examples": min(grid["examples"], points[0].settings.task.max_examples),
        "failed": sum(bool(run["error"]) for run in asked_for),
    }


def run_seed(place: Place, search: Search, seed: int) -> dict[str, Any] | None:
    """Run the point that was chosen on all examples; None where a signal ended it."""
    path = result_path(place.folder, place.name, SEARCH)
    if not path.exists():
        raise UserError(f"{place.name}: its search has no result; see its log")
    searched = json.loads(path.read_text(encoding="utf-8"))
    runs = f"{searched['point']}-{seed_part(seed)}"  # another point is another folder, and another model
    settings = (*search.overrides, *chosen(search.overrides, searched["values"]), f"train.seed={seed}")
    grid = place.grid(runs, settings)
    if grid is None:
        return None
    (run,) = grid["runs"].values()
    found = {name: run[name] for name in ("score", "metrics", "minutes", "seed")} | {"metric": grid["metric"]}
    return found | {
        "model": place.path_of(runs), "examples": min(grid["examples"], search.most_examples()),
        "notes": [note.replace(f"{place.data}/", "") for note in grid["notes"]],
        "test": _test(WORKS[place.name], place.data, place.folder / place.path_of(runs)),
    }  # fmt: skip


def chosen(overrides: Sequence[str], values: Mapping[str, str]) -> list[str]:
    """Return the settings of a point: what the axes, which are named by their last word, have there."""
    keys = dict.fromkeys(text.partition("=")[0] for text in overrides)
    return [f"{key}={values[name]}" for key in keys if (name := key.rpartition(".")[2]) in values]


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
    from bertworks.ensemble import Ensemble
    from bertworks.measuring import measure_models

    measured = measure_models(Ensemble([bw.load(model)], [str(model)]), work.task, data, work.test)
    defined = {name: value for name, value in measured.metrics.items() if math.isfinite(value)}
    return {"split": work.test, "examples": len(measured.examples), "metrics": defined}
