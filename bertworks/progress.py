"""What a person sees while something long runs: one bar with a name, a share done, the time left and some counts.

Work is told to a `Progress`; the bar is drawn on a terminal and goes away when it is finished. Elsewhere, as in a
notebook or a log file, work that takes long gets a line now and then.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from bertworks.errors import printable

_BAR_WIDTH = 16
_LINE_EVERY_S = 30.0  # where there is no terminal


class Progress(Protocol):
    """Is told how far the work is."""

    def __call__(self, stage: str, done: float, total: float | None, detail: str = "") -> None:
        """Say that `done` of `total` (None: unknown) units of a stage are finished; `detail` has counts and speeds."""


def silent(stage: str, done: float, total: float | None, detail: str = "") -> None:
    """Show nothing."""


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[Progress]:
    """Give a Progress for the error stream: a bar on a terminal, a line now and then elsewhere, nothing if quiet."""
    if quiet or not sys.stderr.isatty():
        yield silent if quiet else _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    columns = (
        # Without markup: a file of the name "[red]" is no colour, and one of the name "[/]" no mistake.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR_WIDTH),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        # On a narrow terminal the end of the counts goes, rather than the bar becoming two lines that flicker.
        TextColumn("{task.fields[detail]}", markup=False, table_column=Column(no_wrap=True, overflow="ellipsis")),
    )
    with RichProgress(*columns, console=Console(stderr=True), transient=True) as bars:

        def show(stage: str, done: float, total: float | None, detail: str = "") -> None:
            stage, detail = printable(stage), printable(detail)
            if stage not in [task.description for task in bars.tasks]:
                for finished in bars.task_ids:
                    bars.remove_task(finished)
                bars.add_task(stage, total=total, detail=detail)
            bars.update(bars.task_ids[0], completed=done, total=total, detail=detail)

        yield show


def _lines() -> Progress:
    """Return a Progress that writes a line when there was none for long."""
    last = time.monotonic()

    def write(stage: str, done: float, total: float | None, detail: str = "") -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            with suppress(BrokenPipeError):  # that nobody reads it is no reason to end the work
                print(printable(f"{stage}{share}{f', {detail}' * bool(detail)}"), file=sys.stderr, flush=True)

    return write
