"""The runs of a grid, one after the other: made, or gone on with, written down, and cleared of what nobody needs.

The order in which a run ends is what makes a grid safe to kill: its model is published if it is the best so far, then
its result is written down, then its checkpoints and its model are removed. A kill before the second step finds the run
whole, and the next start ends it again; one after it finds a result, and removes the rest.
"""

import gc
import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from signal import SIGINT
from typing import Any, NamedTuple, Protocol

import torch

from bertworks.errors import CannotGoOn, UserError
from bertworks.files import MANIFEST_NAME, atomic_write, discard_folder, remove_leftovers, safe_join
from bertworks.train.run_folder import CHECKPOINTS, MODEL, ModelWriter, publish_model
from bertworks.train.view import View
from bertworks.tuning.axes import Point
from bertworks.tuning.cost import device_minutes, read_starts
from bertworks.tuning.grid_progress import GridProgress, titled
from bertworks.tuning.grid_record import Record, Result
from bertworks.tuning.grid_table import grid_markdown
from bertworks.tuning.session import Finetuned
from bertworks.tuning.settings import FinetuneSettings

TABLE_FILE = "grid.md"
Note = Callable[[str], None]
Views = Callable[[], AbstractContextManager[View]]
_SEARCH = "search"
_log = logging.getLogger(__name__)


class Start(Protocol):
    """Makes a run, or goes on with it."""

    def __call__(self, settings: FinetuneSettings, *, run: Path, view: View, note: Note) -> Finetuned:
        """Fine-tune into a folder."""


class Trial(NamedTuple):
    """A run that is to be made; 0 examples at most: as many as the point's settings let it see."""

    point: Point
    seed: int
    max_examples: int = 0

    @property
    def folder(self) -> str:
        """Where it lies below the grid's folder."""
        return f"{_SEARCH}/" * bool(self.max_examples) + f"{self.point.name}/seed-{self.seed}"

    @property
    def settings(self) -> FinetuneSettings:
        """The point's, with what is the trial's own."""
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
        """Return how many examples it goes through in all."""
        settings = self.settings
        return settings.train.epochs * min(settings.task.max_examples or num_examples, num_examples)

    def result(self, **found: Any) -> Result:
        """Return how it ended."""
        return Result(
            point=self.point.name,
            values=self.point.values,
            seed=self.seed,
            is_search=bool(self.max_examples),
            settings=self.changed(),
            **found,
        )


class GridRuns:
    """One start of a grid.

    Args:
        out: the grid's folder, held by this process.
        record: of the runs there are.
        start: makes one run, or goes on with it.
        views, note: for a person.
    """

    def __init__(self, out: Path, record: Record, start: Start, views: Views, note: Note) -> None:
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
        # Which point it will be is not known yet: one as long as the mean of them.
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

    def _go_through(self, trials: Sequence[Trial], progress: GridProgress) -> int:
        """Make the runs that are not finished yet; returns a signal that asked for an end, or 0."""
        for trial in trials:
            work = trial.work(self._num_examples)
            if self.record.finished(trial.folder, trial.changed()):
                _clear(self._folder(trial))
                progress.pass_over(work)
                continue
            started = time.monotonic()
            try:
                result, signal = self._run(trial, progress.title(trial.folder, self.record))
            except KeyboardInterrupt:  # between two runs, where the loop does not catch it
                return SIGINT
            if signal:
                return signal
            self._keep(trial, result)
            progress.end(trial.folder, result, self.record, work, time.monotonic() - started)
        self.write()
        return 0

    def _folder(self, trial: Trial) -> Path:
        return safe_join(self.out, trial.folder)

    def _run(self, trial: Trial, title: str) -> tuple[Result, int]:
        """Make a run, or go on with it; what its settings bring about ends this run alone."""
        folder = self._folder(trial)
        try:
            with self._views() as view:
                ended = self._start(trial.settings, run=folder, view=titled(view, title), note=self._note)
        except CannotGoOn:  # no run could
            raise
        except (UserError, torch.OutOfMemoryError) as error:
            return trial.result(minutes=device_minutes(read_starts(folder)), error=str(error)), 0
        finally:
            _free_memory()
        score = ended.metrics.get(ended.metric)
        return trial.result(score=score, step=ended.step, metrics=ended.metrics, minutes=ended.minutes), ended.signal

    def _keep(self, trial: Trial, result: Result) -> None:
        """Publish a run's model if it is the best, write its result down and remove what is not needed any more."""
        folder, best = self._folder(trial), self.record.best_run()
        if not result.error and (best is None or result.rank > best.rank):
            publish_model(self.out, _copier(folder / MODEL))
            self.record.model_of = trial.folder
        self.record.runs[trial.folder] = result
        self.write()
        _clear(folder)

    def write(self) -> dict[str, Any]:
        """Write what is known, as JSON and as a table; returns it."""
        content = self.record.save()
        with atomic_write(self.out / TABLE_FILE) as stream:
            stream.write(grid_markdown(content))
        return content


def _copier(model: Path) -> ModelWriter:
    def write(folder: Path) -> None:
        shutil.copytree(model, folder, symlinks=True, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST_NAME))

    return ModelWriter(write, sum(path.stat().st_size for path in model.rglob("*") if path.is_file()))


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
    """Have the device's memory back: a run's parts refer to each other, so only the collector lets go of them."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
