"""One task of `compact.py`: which files, which runs, what is kept of them.

The search is that of Google's compact models as far as time allows: rates 3e-4, 1e-4, 5e-5, 3e-5 with batches of 16 and
32, 4 epochs, one seed, at most 10,000 examples; the best point is run with three seeds on all examples. One axis is
ours: every layer at the same rate, or each at 0.6 of the one above, which small train sets want (docs/log.md). What
large ones want 10,000 examples cannot tell, so it is set: the same rate, and a running mean of the weights. The best
run's model is measured once more on the test set where its gold is at hand. It was chosen on dev alone.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bertworks as bw
from bertworks.errors import UserError
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.registry import find_task
from bertworks.tasks.task import DEV, TEST, open_dataset

_GOLD = "test-gold"
_SQUAD_NOTE = "train: where an answer stands was found by search, 10.8 % of them stand at several places"
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
        plan: of the search and the seeds.
        notes: what is not as it should be.
    """

    overrides: tuple[str, ...]
    plan: bw.GridPlan
    notes: tuple[str, ...] = ()

    def changed(self, overrides: Sequence[str]) -> "Search":
        """Return the same with settings over its own, which is noted; the last that is said of one counts."""
        notes = (*self.notes, f"with {' '.join(overrides)}") if overrides else self.notes
        return self._replace(overrides=(*self.overrides, *overrides), notes=notes)

    def with_seeds(self, number: int) -> "Search":
        """Return the same with another number of seeds at the best setting, which is noted."""
        return self._replace(plan=self.plan._replace(restarts=number), notes=(*self.notes, f"seeds: {number}"))

    def of(self, work: Work) -> "Search":
        """Return the same for a work: where examples are many, some of it is set."""
        return self._replace(overrides=(*self.overrides, *_LARGE)) if work.is_large else self


_LARGE = ("task.layer_decay=1", "task.average=0.25")
# Every checkpoint of `small` is a third of a gigabyte; a run that is asked to end writes one all the same.
FULL = Search(
    (
        "optim.lr=3e-4,1e-4,5e-5,3e-5",
        "train.batch_size=16,32",
        "task.layer_decay=1,0.6",
        "train.epochs=4",
        "train.save_every=5000",
    ),
    bw.GridPlan(restarts=3, restart_best=True, search_examples=10_000),
)
QUICK = Search(
    ("optim.lr=3e-4,1e-4", "train.batch_size=16", "train.epochs=1", "task.max_examples=100"),
    bw.GridPlan(restarts=2, restart_best=True, search_examples=50),
    ("tried out on 100 examples",),
)


def measure(name: str, model: str, data: Path, folder: Path, init: str, search: Search) -> dict[str, Any] | None:
    """Make all runs of a task in folder/name, or go on with them; None where a signal ended them.

    Args:
        name: of the work.
        model: the pre-trained one.
        data: the folder with the tasks' own files.
        folder: of all works with the same start.
        init: whether the model's weights are taken.
        search: which runs.
    """
    work = WORKS[name]
    start = source_model(folder, work.source) if work.source else model
    outcome = bw.finetune_grid(
        **_files(work, data), model=start, out=folder / name, overrides=search.overrides, plan=search.plan,
        init="model" if work.source else init, resume=True, note=lambda text: print(text, flush=True),
    )  # fmt: skip
    if outcome.signal:
        return None
    if outcome.is_failed:
        raise UserError(
            f"{name}: all runs failed, the last with: {list(outcome.results['runs'].values())[-1]['error']}"
        )
    found = summary(outcome.results, search.plan.restarts) | {"task": work.task, "overrides": list(search.overrides)}
    found["notes"] += [*[work.note] * bool(work.note), *search.notes]
    return found | {"test": _test(work, data, folder / name)}


def source_model(folder: Path, source: str) -> str:
    """Return the grid folder of a work that is through; one that is under way has not its best model yet."""
    if not result_path(folder, source).exists():
        raise UserError(
            f"{folder} has no finished runs of {source} to start from; measure it first, with the same --out"
        )
    return str(folder / source)


def result_path(folder: Path, name: str) -> Path:
    """Return where the result of a work is put beside its runs."""
    return folder / f"{name}.json"


def _files(work: Work, data: Path) -> dict[str, Any]:
    if not work.is_dev_train:
        return {"task": work.task, "data": data}
    task = find_task(work.task)
    (path,) = open_dataset(task, data).files(DEV).paths
    columns = Columns(text="sentence1", pair="sentence2", label=("gold_label",))
    return {"task": task.kind, "train": path, "columns": columns}


def summary(grid: Mapping[str, Any], num_seeds: int) -> dict[str, Any]:
    """Return what is kept of a grid: the point that was chosen, its seeds, and what all of it took."""
    runs = [run for run in grid["runs"].values() if run["point"] == grid["chosen"] and not run["is_search"]]
    seeds = sorted((run for run in runs if not run["error"]), key=lambda run: run["seed"])
    if len(seeds) < num_seeds:
        raise UserError(f"{len(seeds)} of {num_seeds} runs at the best setting came to their end; run the task again")
    scores = [run["score"] for run in seeds if run["score"] is not None]
    return {
        "metric": grid["metric"],
        "setting": seeds[0]["values"],
        "seeds": {str(run["seed"]): run["metrics"] for run in seeds},
        "median": statistics.median(scores) if scores else None,
        "min": min(scores, default=None),
        "max": max(scores, default=None),
        "medians": _medians([run["metrics"] for run in seeds]),
        "examples": grid["examples"],
        "search": {
            "examples": grid["search_examples"] or grid["examples"],
            "scores": {run["point"]: run["score"] for run in grid["runs"].values() if run["seed"] == seeds[0]["seed"]
                       and run["is_search"] == bool(grid["search_examples"])},
        },
        "minutes": grid["minutes"],
        "failed_runs": grid["failed"],
        "notes": list(grid["notes"]),
    }  # fmt: skip


def _medians(seeds: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every metric that all seeds have."""
    names = [name for name in seeds[0] if all(name in metrics for metrics in seeds)]
    return {name: statistics.median(metrics[name] for metrics in seeds) for name in names}


def _test(work: Work, data: Path, model: Path) -> dict[str, Any] | None:
    """Measure the best run on the test set, if its gold is there."""
    if not work.test or work.test not in open_dataset(find_task(work.task), data).found:
        return None
    from bertworks.ensemble import Ensemble
    from bertworks.measuring import measure_models

    measured = measure_models(Ensemble([bw.load(model)], [str(model)]), work.task, data, work.test)
    defined = {name: value for name, value in measured.metrics.items() if math.isfinite(value)}
    return {"split": work.test, "examples": len(measured.examples), "metrics": defined}
