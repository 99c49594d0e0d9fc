"""`bertworks finetune --grid`, `--restarts`: many runs of one task, the best of them, and a table of all.

Each run is a run folder as any other, OUT/<point>/seed-<seed>, until it has ended: then its result is written down in
`grid.json`, its model becomes OUT/model if it is the best so far, and of the folder only logs and settings are kept. So
a grid of any size takes the disk of one run and one model, and one that was killed goes on where it was, to the same
results. The files of the task are read once, and tokenized once; frozen features are computed once and are there until
all runs have ended.

With `restart_best` the points are searched with one seed, on a part of the examples if that is asked for, and only the
best is run with all seeds on all examples.
"""

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.config import check_overrides
from bertworks.errors import UserError
from bertworks.files import discard_folder
from bertworks.interop.locate import find_model
from bertworks.interop.sentence_folders import find_encoder
from bertworks.tasks.examples import Example, digest_of
from bertworks.tasks.kinds import kind_of
from bertworks.tasks.own import recorded_columns
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.task import DEV, TRAIN, Dataset
from bertworks.train.run_folder import Inputs, check_out, given_as, hold_run, write_inputs
from bertworks.train.view import print_note, training_view
from bertworks.train.warm_start import checksums
from bertworks.tuning.axes import points_of
from bertworks.tuning.encoded_once import encoded_once
from bertworks.tuning.finetune import Init, tune
from bertworks.tuning.frozen import FEATURES
from bertworks.tuning.grid_record import GRID_FILE, Record
from bertworks.tuning.grid_runs import GridRuns, Views
from bertworks.tuning.grid_table import grid_text
from bertworks.tuning.settings import without_effect
from bertworks.tuning.start import check_settings, examples_of, find_data, usual_for
from bertworks.tuning.task_start import AnyPath

_MOST_RESTARTS = 1_000
_log = logging.getLogger(__name__)


class GridOutcome(NamedTuple):
    """What came of a grid; as text it is a table.

    Attributes:
        results: what `grid.json` holds: points with mean and spread, runs, the best, minutes.
        signal: that ended it before it was through, if one did.
    """

    results: dict[str, Any]
    signal: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether there were runs and not one came to its end."""
        return bool(self.results["runs"]) and self.results["failed"] == len(self.results["runs"])

    def __str__(self) -> str:
        return grid_text(self.results)


class GridPlan(NamedTuple):
    """Which runs are made.

    Attributes:
        grid: whether batch size, rate and epochs that are not said take the paper's ranges, and lists are axes.
        restarts: how many seeds each point is run with, from `train.seed` on.
        restart_best: run each point with one seed first, and only the best with all of them.
        search_examples: with `restart_best`, how many examples the first runs see; 0: all.
    """

    grid: bool = True
    restarts: int = 1
    restart_best: bool = False
    search_examples: int = 0

    def check(self) -> None:
        """Raise UserError for what does not go together."""
        if not 1 <= self.restarts <= _MOST_RESTARTS:
            raise UserError(f"--restarts {self.restarts} is not possible; choose 1 to {_MOST_RESTARTS:,}")
        if self.restart_best and not self.grid:
            raise UserError("--restart-best is for a search over settings; give --grid too")
        if self.search_examples < 0 or (self.search_examples and not self.restart_best):
            raise UserError(
                f"--search-examples {self.search_examples}: so many examples a search sees before its best point is "
                "run on all of them; give a number above 0, with --grid and --restart-best"
            )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError("a grid is run by one process; start it without torchrun")


_PAPERS_GRID = GridPlan()


def finetune_grid(
    task: str,
    *,
    model: AnyPath,
    out: AnyPath,
    data: AnyPath | None = None,
    train: AnyPath | None = None,
    dev: AnyPath | None = None,
    columns: Columns | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
    plan: GridPlan = _PAPERS_GRID,
    init: Init = "model",
    beside: AnyPath | None = None,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
    views: Views | None = None,
    note: Callable[[str], None] | None = None,
) -> GridOutcome:
    """Fine-tune a model with many settings or seeds and keep the best.

    Args:
        task: a benchmark's name, or a kind of task on your own files.
        model: a model folder, a run folder, or a name in the local cache.
        out: the grid's folder; new or empty unless `resume`.
        data: the folder with a benchmark's files.
        train: your own file to learn from.
        dev: your own file to measure on.
        columns: of your own files.
        overrides: `section.key=value`, or `section.key=value,value,...` for an axis.
        plan: which runs are made; every point of the paper's ranges with one seed if it is not said.
        init: whether the model's weights are taken, or only its sizes and vocabulary.
        beside: a second BERT that reads the same texts.
        resume: go on; runs that are finished are not made again, those that failed are.
        device: where to train.
        quiet: show nothing; else how it goes is shown on the error stream.
        views: gives what shows a person how a run goes, instead.
        note: is told what a person wants to know, and how each run ended.
    """
    plan.check()
    views, note = views or partial(training_view, quiet=quiet), note or (_log.info if quiet else print_note)
    folder = Path(out)
    check_out(folder, GRID_FILE, resume=resume)
    check_overrides(overrides)
    if init not in ("model", "random"):
        raise UserError(f"init {str(init)[:40]!r} is not known; choose model or random")
    sources = [source for source in (model, beside) if source is not None]
    folders = [find_encoder(find_model(source)) for source in sources]
    weights = [item for source in folders for item in sorted(checksums(source).items())]
    dataset = find_data(task, data, {TRAIN: train, DEV: dev}, note, columns)
    for line in without_effect(dataset.task, overrides):
        note(line)
    usual = usual_for(model, folder, dataset.task, overrides, note, is_grid=plan.grid)
    points = points_of(dataset.task, [*usual, *overrides], is_grid=plan.grid)
    check_settings(folders, [point.settings for point in points], is_random=init == "random")
    dataset, examples = _read(dataset, note)
    about = _about(dataset, examples, {"model": digest_of(weights), "init": init})
    limit = plan.search_examples if plan.search_examples < about["examples"] else 0
    start = partial(
        tune, in_memory(dataset, examples), model=model, is_random=init == "random", beside=beside, device=device,
        kind=encoded_once(kind_of(dataset.task)), cache=folder / FEATURES,
    )  # fmt: skip
    with hold_run(folder):
        runs = GridRuns(folder, Record(folder, about, limit), start, views, _told_once(note))
        runs.write()  # so that the folder tells what it is
        inputs = Inputs(
            command="grid", task=task, model=given_as(model), beside=given_as(beside), data=given_as(data),
            train=given_as(train), dev=given_as(dev), columns=recorded_columns(task, columns), init=init, device=device,
            overrides=list(overrides), plan=plan._asdict(),
        )  # fmt: skip
        write_inputs(folder, inputs)
        if plan.restart_best:
            signal = runs.run_best(points, plan.restarts, limit)
        else:
            signal = runs.run_all(points, plan.restarts)
        if not signal and (folder / FEATURES).exists():
            discard_folder(folder / FEATURES)
        return GridOutcome(runs.write(), signal)


def _read(dataset: Dataset, note: Callable[[str], None]) -> tuple[Dataset, dict[str, list[Example]]]:
    """Return the examples of all splits, and the dataset with what was said of them among its notes."""
    notes: list[str] = []

    def noted(text: str) -> None:
        notes.append(text)
        note(text)

    examples = {split: examples_of(dataset, split, noted) for split in (TRAIN, DEV)}
    return replace(dataset, notes=(*dataset.notes, *notes)), examples


def in_memory(dataset: Dataset, examples: dict[str, list[Example]]) -> Dataset:
    """Return a dataset whose splits are these examples, read already."""

    def kept(some: list[Example], *_: Any) -> Iterator[Example]:
        return iter(some)

    found = {split: dataset.found[split]._replace(read=partial(kept, some)) for split, some in examples.items()}
    return replace(dataset, found=found, chosen={})


def _about(dataset: Dataset, examples: dict[str, list[Example]], start: dict[str, str]) -> dict[str, Any]:
    """Return what all runs of a grid have in common."""
    return {
        "task": dataset.task.name,
        "title": dataset.task.title,
        "metric": dataset.task.metrics[0],
        "examples": len(examples[TRAIN]),
        "data": digest_of(example for some in examples.values() for example in some),
        **start,
        "notes": list(dataset.notes),
    }


def _told_once(note: Callable[[str], None]) -> Callable[[str], None]:
    """Return a note that says nothing twice: what is said of files and the model is the same in every run."""
    told: set[str] = set()

    def tell(text: str) -> None:
        if text not in told:
            told.add(text)
            note(text)

    return tell
