"""`bertworks search`: many runs of one task with other settings or seeds, the best of them, and a table of all.

- Each run is an ordinary run folder, OUT/<point>/seed-<seed>, until it ends. Then its model becomes OUT/model if it is
  the best so far, its result is written to `grid.json`, and only its logs and settings are kept. So a grid of any size
  needs the disk space of one run and one model.
- This order makes a search safe to kill, and a resumed one gives the same results. Until its result is written a run is
  whole, so the next start can finish it again; afterwards the next start removes what is left of it.
- With `restart_best` every point is run with one seed, optionally on a part of the examples, and only the best point is
  run with all seeds on all examples.
- The files of the task are read once, and tokenized once for each way of cutting them: nothing else that runs differ in
  changes the items. They are kept until the grid ends; those of 400,000 pairs take 100 MB. Frozen features are computed
  once, too.
"""

import gc
import json
import logging
import math
import os
import shutil
import textwrap
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from signal import SIGINT
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import FileRecord, Settings, check_overrides, read_record
from bertworks.errors import CannotResume, UserError, counted
from bertworks.files import MANIFEST_NAME, atomic_write, discard_folder, remove_leftovers, safe_join
from bertworks.finetuning.finetune import Init, check_settings, find_data, tune, usual_for
from bertworks.finetuning.network import CACHE_FOLDER, AnyPath
from bertworks.finetuning.report import device_minutes, read_starts
from bertworks.finetuning.session import Finetuned
from bertworks.finetuning.settings import FinetuneSettings, Point, points_of, without_effect
from bertworks.models.folder import find_encoder, find_model, read_json
from bertworks.report.logs import CHECKPOINTS, MODEL, Status
from bertworks.report.terminal import News, View, clock, print_note, training_view
from bertworks.tasks.heads import Items, TaskHead, kind_of
from bertworks.tasks.own_files import recorded_columns
from bertworks.tasks.task import DEV, TRAIN, Columns, Cut, Dataset, Example, Task, digest_of, examples_of
from bertworks.text.elmo_words import SpelledTokenizer
from bertworks.train.checkpoint import outcome_of
from bertworks.train.run_folder import Inputs, check_out, given_as, hold_run, replace_model, write_inputs
from bertworks.train.warm_start import checksums

GRID_FILE, TABLE_FILE = "grid.json", "grid.md"
_MOST_RESTARTS = 1_000
_SAME = ("task", "metric", "examples", "data", "model", "init")  # must be equal to resume; the rest is for readers
_WIDTH = 100  # of a table on a terminal
Note = Callable[[str], None]
Views = Callable[[], AbstractContextManager[View]]
Row = Sequence[str]
_log = logging.getLogger(__name__)


class GridPlan(NamedTuple):
    """Which runs are made.

    Attributes:
        grid: whether batch size, rate and epochs that are not given take the paper's ranges, and lists are axes.
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
                f"--search-examples {self.search_examples} is not possible: it is the number of examples of the first "
                "runs, before the best point is run on all; give a number above 0, with --grid and --restart-best"
            )
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise UserError("a grid is run by one process; start it without torchrun")


class GridOutcome(NamedTuple):
    """The outcome of a grid; as text it is a table.

    Attributes:
        results: what `grid.json` holds: points with mean and spread, runs, the best, minutes.
        signal: the signal that ended it early, or 0.
    """

    results: dict[str, Any]
    signal: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether there were runs and all of them failed."""
        return bool(self.results["runs"]) and self.results["failed"] == len(self.results["runs"])

    def __str__(self) -> str:
        return grid_text(self.results)


_PAPERS_GRID = GridPlan()


def search(
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
    note: Note | None = None,
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
        plan: which runs are made; by default every point of the paper's ranges with one seed.
        init: whether the model's weights are taken, or only its sizes and vocabulary.
        beside: a second BERT that reads the same texts.
        resume: runs that are finished are not made again, those that failed are.
        device: where to train.
        quiet: show nothing; otherwise progress is shown on the error stream.
        views: returns a view of a run's progress, instead of the default display.
        note: is called with remarks, and with how each run ended.

    Example:
        >>> found = bw.search(
        ...     "classify", model="mini", train="reviews.csv", dev="reviews.csv", out="searched",
        ...     overrides=["optim.lr=1e-5,5e-4", "train.epochs=1", "train.batch_size=8"], quiet=True,
        ... )
        >>> found.results["metric"], len(found.results["runs"])
        ('accuracy', 2)
        >>> bw.load("searched").labels  # of the best run
        ['bad', 'good']
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
    notes = list(dataset.notes)

    def noted(text: str) -> None:
        notes.append(text)
        note(text)

    examples = {split: examples_of(dataset, split, noted) for split in (TRAIN, DEV)}
    dataset = replace(dataset, notes=tuple(notes))
    about = {
        "task": dataset.task.name,
        "title": dataset.task.title,
        "metric": dataset.task.metrics[0],
        "examples": len(examples[TRAIN]),
        "data": digest_of(example for some in examples.values() for example in some),
        "model": digest_of(weights),
        "init": init,
        "notes": notes,
    }
    seen = set[str]()

    def note_once(text: str) -> None:  # notes on files and the model are the same in every run
        if text not in seen:
            seen.add(text)
            note(text)

    limit = plan.search_examples if plan.search_examples < len(examples[TRAIN]) else 0
    start = partial(
        tune, in_memory(dataset, examples), model=model, is_random=init == "random", beside=beside, device=device,
        kind=encoded_once(kind_of(dataset.task)), cache=folder / CACHE_FOLDER,
    )  # fmt: skip
    with hold_run(folder):
        runs = GridRuns(folder, Record(folder, about, limit), start, views, note_once)
        runs.write()  # marks the folder as a grid's
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
        if not signal and (folder / CACHE_FOLDER).exists():
            discard_folder(folder / CACHE_FOLDER)
        return GridOutcome(runs.write(), signal)


def in_memory(dataset: Dataset, examples: dict[str, list[Example]]) -> Dataset:
    """Return a dataset whose splits are these examples, read already."""

    def kept(some: list[Example], *_: Any) -> Iterator[Example]:
        return iter(some)

    found = {split: dataset.found[split]._replace(read=partial(kept, some)) for split, some in examples.items()}
    return replace(dataset, found=found, chosen={})


def encoded_once(kind: TaskHead) -> TaskHead:
    """Return a kind that makes the items of one task's examples for one model, and those of each cut once.

    The number of examples identifies them: a part of a train set of a given size is always the same. A model that
    spells words numbers them as they come, starting again in every run. Where items are reused, the words are numbered
    again in the same order, so that the items keep their meaning.
    """
    kept: dict[tuple[Any, ...], tuple[Items, list[str]]] = {}

    def encode(
        examples: Sequence[Example], tokenizer: Any, task: Task, cut: Cut, *, is_training: bool = False
    ) -> Items:
        met = tokenizer.met if isinstance(tokenizer, SpelledTokenizer) else None
        key = (is_training, len(examples), cut, met.digest() if met else "")
        if key not in kept:
            items = kind.encode(examples, tokenizer, task, cut, is_training=is_training)
            kept[key] = items, list(met.words) if met else []
        items, words = kept[key]
        if met:
            for word in words[len(met) :]:
                met.id_of(word)
        return items

    return kind._replace(encode=encode)


class Trial(NamedTuple):
    """A run to be made; with `max_examples` 0 it sees as many examples as the point's settings allow."""

    point: Point
    seed: int
    max_examples: int = 0

    @property
    def folder(self) -> str:
        """Its name below the grid's folder."""
        return "search/" * bool(self.max_examples) + f"{self.point.name}/seed-{self.seed}"

    @property
    def settings(self) -> FinetuneSettings:
        """The point's settings, with the trial's own seed and number of examples."""
        task, train = self.point.settings.task, self.point.settings.train
        update: dict[str, Any] = {"train": train.model_copy(update={"seed": self.seed})}
        if self.max_examples:
            most = min(self.max_examples, task.max_examples or self.max_examples)
            update["task"] = task.model_copy(update={"max_examples": most})
        return self.point.settings.model_copy(update=update)

    def changed(self) -> dict[str, Any]:
        """Return the settings that are not the usual ones, as JSON."""
        return self.settings.model_dump(mode="json", exclude_defaults=True)

    def work(self, num_examples: int) -> float:
        """Return how many examples it trains on, each epoch counted."""
        settings = self.settings
        return settings.train.epochs * min(settings.task.max_examples or num_examples, num_examples)


class GridRuns:
    """One start of a grid.

    Args:
        out: the grid's folder, held by this process.
        record: of the runs there are.
        start: makes one run, or resumes it: `start(settings, run=folder, view=view, note=note)`.
        views, note: for output.
    """

    def __init__(self, out: Path, record: "Record", start: Callable[..., Finetuned], views: Views, note: Note) -> None:
        self.out, self.record, self._start, self._views, self._note = out, record, start, views, note
        self._num_examples: int = record.about["examples"]

    def run_all(self, points: Sequence[Point], restarts: int) -> int:
        """Run every point with every seed, all points with the first one first; returns a signal that ended it."""
        trials = [Trial(point, point.settings.train.seed + number) for number in range(restarts) for point in points]
        self.record.chosen = None  # of a search before
        return self._go_through(trials, GridProgress(len(trials), self._work(trials), self._note))

    def run_best(self, points: Sequence[Point], restarts: int, search_examples: int) -> int:
        """Run every point with one seed, and the best of them with all seeds; returns a signal that ended it."""
        search = [Trial(point, point.settings.train.seed, search_examples) for point in points]
        num_more = restarts if search_examples else restarts - 1
        # Which point is best is not known yet: its work is estimated by the mean of all points.
        one_more = self._work([trial._replace(max_examples=0) for trial in search]) / len(search)
        progress = GridProgress(len(search) + num_more, self._work(search) + num_more * one_more, self._note)
        if signal := self._go_through(search, progress):
            return signal
        found = [trial for trial in search if self.record.runs[trial.folder].score is not None]
        if not found:
            return 0
        best = max(found, key=lambda trial: self.record.runs[trial.folder].rank).point
        self.record.chosen = best.name
        trials = [Trial(best, best.settings.train.seed + number) for number in range(restarts)]
        again = [trial for trial in trials if trial not in search]
        progress.work_left = self._work(again)
        return self._go_through(again, progress)

    def _work(self, trials: Sequence[Trial]) -> float:
        return sum(trial.work(self._num_examples) for trial in trials)

    def _go_through(self, trials: Sequence[Trial], progress: "GridProgress") -> int:
        """Make the runs that are not finished yet; returns the signal that stopped them, or 0."""
        for trial in trials:
            work = trial.work(self._num_examples)
            folder = safe_join(self.out, trial.folder)
            if self.record.finished(trial.folder, trial.changed()):
                _clear(folder)
                progress.pass_over(work)
                continue
            started = time.monotonic()
            try:
                result, signal = self._run(trial, folder, progress.title(trial.folder, self.record))
            except KeyboardInterrupt:  # between two runs, where the loop does not catch it
                return SIGINT
            if signal:
                return signal
            best = self.record.best_run()
            if not result.error and (best is None or result.rank > best.rank):
                num_bytes = sum(path.stat().st_size for path in (folder / MODEL).rglob("*") if path.is_file())
                without_manifest = shutil.ignore_patterns(MANIFEST_NAME)
                with replace_model(self.out, num_bytes) as new:
                    shutil.copytree(folder / MODEL, new, symlinks=True, dirs_exist_ok=True, ignore=without_manifest)
                self.record.model_of = trial.folder
            self.record.runs[trial.folder] = result
            self.write()
            _clear(folder)
            progress.end(trial.folder, result, self.record, work, time.monotonic() - started)
        self.write()
        return 0

    def _run(self, trial: Trial, folder: Path, title: str) -> tuple["Result", int]:
        """Make a run, or resume it; an error caused by its settings ends only this run."""
        facts: dict[str, Any] = {
            "point": trial.point.name,
            "values": trial.point.values,
            "seed": trial.seed,
            "is_search": bool(trial.max_examples),
            "settings": trial.changed(),
        }
        try:
            with self._views() as view:

                def titled(news: News, status: Status) -> None:
                    status.about = status.about._replace(title=title)
                    view(news, status)

                ended = self._start(trial.settings, run=folder, view=titled, note=self._note)
        except CannotResume:  # the other runs could not either
            raise
        except (UserError, torch.OutOfMemoryError) as error:
            return Result(**facts, minutes=device_minutes(read_starts(folder)), error=str(error)), 0
        finally:
            _free_memory()
        score = ended.metrics.get(ended.metric)
        result = Result(**facts, score=score, step=ended.step, metrics=ended.metrics, minutes=ended.minutes)
        return result, ended.signal

    def write(self) -> dict[str, Any]:
        """Write what is known, as JSON and as a table; returns it."""
        content = self.record.save()
        with atomic_write(self.out / TABLE_FILE) as stream:
            stream.write(grid_markdown(content))
        return content


def _clear(run: Path) -> None:
    """Keep only logs and settings of a run."""
    try:
        for name in (CHECKPOINTS, MODEL):
            if (run / name).exists():
                discard_folder(run / name)
        remove_leftovers(run)
    except OSError as error:
        _log.warning("cannot clear %s: %s", run, error.strerror)


def _free_memory() -> None:
    """Free the device's memory: a run's parts refer to each other, so only the garbage collector frees them."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


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
        """The key by which runs are compared: one on all examples ranks above any run of the search."""
        return not self.is_search, -math.inf if self.score is None else self.score


class _File(FileRecord):
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
    """What is known of a grid's runs, by their folders: `grid.json`, rewritten after every run.

    A run counts as finished when it is in the file. Mean and spread of points are computed from the runs, and are in
    the file for those who read it.

    Args:
        out: the grid's folder.
        about: what all runs have in common; those of another model or other data are not resumed.
        search_examples: how many examples runs of the search see; 0: all.
    """

    def __init__(self, out: Path, about: Mapping[str, Any], search_examples: int = 0) -> None:
        self.path, self.about, self.search_examples = out / GRID_FILE, dict(about), search_examples
        self.runs: dict[str, Result] = {}
        self.model_of: str | None = None
        self.chosen: str | None = None  # the point that was chosen to be run again
        if not self.path.exists():
            return
        content = read_json(self.path)
        for name in _SAME:
            if content.get(name) != self.about[name]:
                raise CannotResume(
                    f"{self.path.parent} has runs of another {name}; use the same to resume, or choose another --out"
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
            raise CannotResume(
                f"{self.path.parent / folder} was run with other settings; use the same ones to resume, or "
                "choose another --out"
            )
        return result

    def best_run(self) -> Result | None:
        """Return the run that the model is from."""
        return self.runs[self.model_of] if self.model_of else None

    def save(self) -> dict[str, Any]:
        """Write the file; returns what it holds."""
        content = self.content()
        with atomic_write(self.path) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1, allow_nan=False)
            stream.write("\n")
        return content

    def content(self) -> dict[str, Any]:
        """Return all that is known, as JSON; of points the mean and spread over those seeds that did not fail."""
        by_point: dict[tuple[bool, str], list[Result]] = {}
        for run in self.runs.values():
            by_point.setdefault((run.is_search, run.point), []).append(run)
        points: list[dict[str, Any]] = []
        for (is_search, name), runs in by_point.items():
            scores = [run.score for run in runs if run.score is not None]
            points.append(
                {
                    "name": name,
                    "values": runs[0].values,
                    "is_search": is_search,
                    "seeds": [run.seed for run in runs],
                    "scores": [run.score for run in runs],
                    "mean": fmean(scores) if scores else None,
                    "std": stdev(scores) if len(scores) > 1 else None,
                    "min": min(scores, default=None),
                    "max": max(scores, default=None),
                    "minutes": round(sum(run.minutes for run in runs), 4),
                    "failed": sum(bool(run.error) for run in runs),
                }
            )
        for is_search in (True, False):
            same = [point for point in points if point["is_search"] == is_search]
            measured = [point for point in same if point["mean"] is not None]
            highest = max(measured, key=lambda point: point["mean"], default={"name": None})
            for point in same:
                point["is_best"] = point["name"] == (self.chosen or highest["name"])
        return {
            **self.about,
            "search_examples": self.search_examples,
            "points": points,
            "chosen": self.chosen,
            "model_of": self.model_of,
            "minutes": round(sum(run.minutes for run in self.runs.values()), 4),
            "failed": sum(bool(run.error) for run in self.runs.values()),
            "runs": {folder: run.model_dump() for folder, run in self.runs.items()},
        }


class GridProgress:
    """Which run of how many it is, the best so far, and how long the rest will take.

    Runs differ in length, so the time left goes by work, which is epochs times examples, at the pace of the runs that
    this start has made.

    Args:
        num_runs: of the whole grid.
        work: of all of them.
        note: is called with how each run ended.
    """

    def __init__(self, num_runs: int, work: float, note: Note) -> None:
        self.num_runs, self.work_left, self._note = num_runs, work, note
        self.num_done = 0
        self._work_done = self._seconds = 0.0

    def pass_over(self, work: float) -> None:
        """Count a run that an earlier start has made."""
        self.num_done += 1
        self.work_left -= work

    def end(self, folder: str, result: Result, record: Record, work: float, seconds: float) -> None:
        """Count a run that has ended, and report how."""
        self.pass_over(work)
        self._work_done += work
        self._seconds += seconds
        score = math.nan if result.score is None else result.score
        ended = f"{record.about['metric']} {score:.4f} at step {result.step:,}, {result.minutes:.2f} minutes"
        ended = f"failed: {result.error}" if result.error else ended
        self._note(f"run {self.num_done} of {self.num_runs}, {folder}: {ended}{self._rest(record)}")

    def title(self, folder: str, record: Record) -> str:
        """Return the heading of a run that starts."""
        return f"run {self.num_done + 1} of {self.num_runs}, {folder}{self._rest(record)}"

    def _rest(self, record: Record) -> str:
        best, left = record.best_run(), self.seconds_left
        parts = [f"best so far {best.score:.4f}"] if best and best.score is not None else []
        parts += [f"about {clock(left)} left"] if left and self.num_done < self.num_runs else []
        return "".join(f"; {part}" for part in parts)

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the last run has ended; None: not known yet."""
        return self.work_left * self._seconds / self._work_done if self._work_done else None


def grid_text(results: Mapping[str, Any]) -> str:
    """Write what grid.json holds for a terminal, at most 100 columns wide.

        batch_size  lr    seeds  mean    std     min..max        minutes
        16          5e-5  3      0.8913  0.0041  0.8870..0.8952  4.13
    *   16          3e-5  3      0.8990  0.0012  0.8979..0.9002  4.20
    """
    heading, tables, failures, closing = _grid_parts(results)
    lines = [heading]
    for title, rows in tables:
        lines += ["", *([title] if title else []), *aligned(rows)]
    return "\n".join([*lines, "", *map(_cut, failures), *(line for text in closing for line in wrapped(text))])


def grid_markdown(results: Mapping[str, Any]) -> str:
    """Write what grid.json holds as markdown."""
    heading, tables, failures, closing = _grid_parts(results)
    lines = [f"# {heading}"]
    for title, rows in tables:
        lines += ["", *([title, ""] if title else []), *markdown_rows(rows)]
    for line in (*failures, *closing):
        lines += ["", line]
    return "\n".join(lines) + "\n"


def _grid_parts(results: Mapping[str, Any]) -> tuple[str, list[tuple[str, list[Row]]], list[str], list[str]]:
    """Return the heading, tables with their titles, the runs that failed, and the lines below the tables."""
    points, runs, metric, best = (results[name] for name in ("points", "runs", "metric", "model_of"))
    searched, full = ([point for point in points if point["is_search"] == which] for which in (True, False))
    seen = f"Search, on {results['search_examples']:,} of {counted(results['examples'], 'example')}:"
    titled = [(seen, searched), ("At the best of these:", full)] if searched else [("", full)]
    tables: list[tuple[str, list[Row]]] = []
    for title, some in titled:
        names = list(dict.fromkeys(name for point in some for name in point["values"]))
        rows: list[Row] = [["", *names, "seeds", "mean", "std", "min..max", "minutes"]]
        for point in some:
            count, failed = len(point["seeds"]), point["failed"]
            rows.append(
                [
                    "*" if point["is_best"] else "",
                    *(point["values"].get(name, "") for name in names),
                    f"{count - failed} of {count}" if failed else str(count),
                    "failed" if failed == count else shown(point["mean"]),
                    shown(point["std"]),
                    "–" if point["mean"] is None else f"{point['min']:.4f}..{point['max']:.4f}",
                    f"{point['minutes']:.2f}",
                ]
            )
        tables += [(title, rows)] if some or not searched else []
    failures = [" ".join(f"{folder} failed: {run['error']}".split()) for folder, run in runs.items() if run["error"]]
    closing = []
    if best:
        score = shown(runs[best]["score"])
        closing.append(f"model/ is from the best run, {best}: {metric} {score}; * marks the best point")
    failed = f", {results['failed']} of them failed" if results["failed"] else ""
    closing.append(f"{counted(len(runs), 'run')}{failed}, {results['minutes']:.2f} minutes of training in all")
    return f"{results['title']}, {metric} on the dev set", tables, failures, closing


def shown(value: float | None, digits: int = 4) -> str:
    """Write a score, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def aligned(rows: Sequence[Row]) -> list[str]:
    """Write rows in columns, two spaces between them; what is wider than a terminal is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _cut("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()) for row in rows
    ]


def markdown_rows(rows: Sequence[Row]) -> list[str]:
    """Write rows as a table in markdown, the first as its head."""
    head, *others = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *others]


def wrapped(text: str) -> list[str]:
    """Break a text into lines of a terminal."""
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."
