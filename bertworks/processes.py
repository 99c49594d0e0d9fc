"""Work in several processes on one machine: bounded, interruptible, with clear errors; and the bar of long work.

Processes are forked where that is sound: they start at once, and a caller's script needs no main guard. Ctrl-C reaches
this process alone, which ends the others; without that each of them would print a traceback. When this process is
killed, the others notice and end too, instead of waiting for work forever.

Long work calls a `ProgressCallback` now and then: on a terminal it shows a bar that disappears at the end; elsewhere,
as in a notebook or a log file, it prints a line every half a minute.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.process import BaseProcess
from typing import Any, Protocol, TypeVar

from bertworks.errors import UserError, printable

Result = TypeVar("Result")
Text = TypeVar("Text", str, bytes)
_FOR_THE_PARENT = (signal.SIGTERM, signal.SIGUSR1)
_BAR_WIDTH = 16
_LINE_EVERY_S = 30.0  # where there is no terminal


def num_workers(given: int | None) -> int:
    """Return how many processes to use: as given, or one for each core."""
    if given is not None and given < 1:
        raise UserError(f"{given} worker processes are not possible; choose 1 or more, or none to have one per core")
    return given or os.cpu_count() or 1


def in_batches(texts: Iterable[Text], length: int) -> Iterator[list[Text]]:
    """Group texts to about this length in all: one piece of work for many small ones, little memory for large ones."""
    batch: list[Text] = []
    gathered = 0
    for text in texts:
        batch.append(text)
        gathered += len(text)
        if gathered >= length:
            yield batch
            batch, gathered = [], 0
    if batch:
        yield batch


def start_process(name: str, work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process of its own that ends with this one; signals to the whole group are left to this process."""
    make: Callable[..., BaseProcess] = process_context().Process  # type: ignore[attr-defined]
    process = make(target=_begin_alone, args=(work, *arguments), name=name, daemon=True)
    with _blocked(signal.SIGINT, *_FOR_THE_PARENT):
        process.start()
    return process


def _begin_alone(work: Callable[..., None], *arguments: Any) -> None:
    # A run that gets a signal to end saves first, and for that its workers must still be there.
    for number in _FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    _begin(work, *arguments)


@contextmanager
def worker_pool(
    workers: int, prepare: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Give a pool of processes, in each of which `prepare` was called; one that dies is a UserError, never a hang."""
    pool = ProcessPoolExecutor(workers, process_context(), _begin, (prepare, *arguments))
    try:
        with _blocked(signal.SIGINT):
            pool.submit(os.getpid)  # any work: it starts the processes
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely because memory ran out; "
            f"lower --workers, now {workers}, or close other programs"
        ) from error
    except BaseException:
        # Nobody waits for their work any more.
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Start processes with signals blocked, which they inherit: none must reach one before it knows to ignore it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for(
    pending: set[Future[Result]], most: int, use: Callable[[Result], object] | None = None
) -> set[Future[Result]]:
    """Wait until at most so many are under way, and give results to `use`; an error in a process is raised here."""
    while len(pending) > most:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            if use:
                use(result)
    return pending


def _begin(prepare: Callable[..., None] | None, *arguments: Any) -> None:
    # What was inherited is not to be cleared up here: a destructor that joins a thread of the parent would crash.
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()
    if prepare:
        prepare(*arguments)


def process_context() -> multiprocessing.context.BaseContext:
    """Return the way in which processes are started here."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


class ProgressCallback(Protocol):
    """A function that is called with how far the work is."""

    def __call__(self, stage: str, done: float, total: float | None, detail: str = "") -> None:
        """Show that `done` of `total` (None: unknown) units of a stage are finished; `detail` has counts and speeds."""


def silent(stage: str, done: float, total: float | None, detail: str = "") -> None:
    """Show nothing."""


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[ProgressCallback]:
    """Give a callback that writes to the error stream: a bar on a terminal, now and then a line elsewhere."""
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


def _lines() -> ProgressCallback:
    """Return a ProgressCallback that writes a line when there was none for long."""
    last = time.monotonic()

    def write(stage: str, done: float, total: float | None, detail: str = "") -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            with suppress(BrokenPipeError):  # that nobody reads it is no reason to end the work
                print(printable(f"{stage}{share}{f', {detail}' * bool(detail)}"), file=sys.stderr, flush=True)

    return write
