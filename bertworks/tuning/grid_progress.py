"""How far a grid is, for a person: which run of how many, the best so far, and how long the rest will take.

Runs differ in length, so the time left goes by work, which is epochs times examples, at the pace of the runs that this
start has made.
"""

import math
from collections.abc import Callable

from bertworks.train.panel import clock
from bertworks.train.status import Status
from bertworks.train.view import News, View
from bertworks.tuning.grid_record import Record, Result


class GridProgress:
    """Counts runs and work.

    Args:
        num_runs: of the whole grid.
        work: of all of them.
        note: is told how each run ended.
    """

    def __init__(self, num_runs: int, work: float, note: Callable[[str], None]) -> None:
        self.num_runs, self.work_left, self._note = num_runs, work, note
        self.num_done = 0
        self._work_done = self._seconds = 0.0

    def pass_over(self, work: float) -> None:
        """Count a run that an earlier start has made."""
        self.num_done += 1
        self.work_left -= work

    def end(self, folder: str, result: Result, record: Record, work: float, seconds: float) -> None:
        """Count a run that has ended, and say how."""
        self.pass_over(work)
        self._work_done += work
        self._seconds += seconds
        told = f"failed: {result.error}" if result.error else _figures(result, record)
        self._note(f"run {self.num_done} of {self.num_runs}, {folder}: {told}{self._rest(record)}")

    def title(self, folder: str, record: Record) -> str:
        """Return what stands above the figures of a run that begins."""
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


def _figures(result: Result, record: Record) -> str:
    score = math.nan if result.score is None else result.score
    return f"{record.about['metric']} {score:.4f} at step {result.step:,}, {result.minutes:.2f} minutes"


def titled(view: View, title: str) -> View:
    """Return a view that shows a run under another title."""

    def show(news: News, status: Status) -> None:
        status.about = status.about._replace(title=title)
        view(news, status)

    return show
