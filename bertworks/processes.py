"""Worker processes on one machine: bounded, interruptible, with clear errors; and progress bars for long work.

Processes are forked on Linux: they start at once, and a caller's script needs no main guard. Ctrl-C reaches only this
process, which ends the others; otherwise each of them would print a traceback. When this process is killed, the others
notice and end too, instead of waiting for work forever.

Long work calls a `ProgressCallback` regularly. On a terminal it shows a bar that disappears at the end; elsewhere, as
in a notebook or a log file, it prints a line every half minute. A notebook's kernel gives its `!commands` a terminal
whose output is shown as it comes: what is erased there would stay on the page, drawing after drawing.
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
from typing import Any, Protocol, TextIO, TypeVar

from bertworks.errors import UserError, printable

Result = TypeVar("Result")
Text = TypeVar("Text", str, bytes)
_FOR_THE_PARENT = (signal.SIGTERM, signal.SIGUSR1)
_BAR_WIDTH = 16
_LINE_EVERY_S = 30.0  # if there is no terminal


def num_workers(given: int | None) -> int:
    """Return how many processes to use: the given number, or one per core."""
    if given is not None and given < 1:
        raise UserError(
            f"{given} worker processes are not possible; choose 1 or more, or leave it out to use one per core"
        )
    return given or os.cpu_count() or 1


def in_batches(texts: Iterable[Text], length: int) -> Iterator[list[Text]]:
    """Group texts into batches of about this total length: fewer pieces of work if texts are small, bounded memory."""
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
    """Start a process that ends with this one and ignores signals to the process group, which this process handles."""
    make: Callable[..., BaseProcess] = process_context().Process  # type: ignore[attr-defined]
    process = make(target=_begin_alone, args=(work, *arguments), name=name, daemon=True)
    with _blocked(signal.SIGINT, *_FOR_THE_PARENT):
        process.start()
    return process


def _begin_alone(work: Callable[..., None], *arguments: Any) -> None:
    # A run that is signalled to end saves first, and needs its workers for that.
    for number in _FOR_THE_PARENT:
        signal.signal(number, signal.SIG_IGN)
    _begin(work, *arguments)


@contextmanager
def worker_pool(
    workers: int, prepare: Callable[..., None] | None = None, *arguments: Any
) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of processes, each of which has called `prepare`; if one dies, a UserError is raised, not a hang."""
    pool = ProcessPoolExecutor(workers, process_context(), _begin, (prepare, *arguments))
    try:
        with _blocked(signal.SIGINT):
            pool.submit(os.getpid)  # any work will do: it starts the processes
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely because memory ran out; "
            f"lower --workers, now {workers}, or close other programs"
        ) from error
    except BaseException:
        # Nobody needs their results any more.
        for process in list((pool._processes or {}).values()):
            process.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)


@contextmanager
def _blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals while processes start, and so in them too: none may arrive before the process ignores it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def wait_for(
    pending: set[Future[Result]], most: int, use: Callable[[Result], object] | None = None
) -> set[Future[Result]]:
    """Wait until at most `most` futures are pending, and pass results to `use`; errors in a process are raised here."""
    while len(pending) > most:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            result = future.result()
            if use:
                use(result)
    return pending


def _begin(prepare: Callable[..., None] | None, *arguments: Any) -> None:
    # Do not collect inherited objects here: a destructor that joins a thread of the parent would crash.
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
    """Return the multiprocessing context: fork on Linux, spawn elsewhere."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")


class ProgressCallback(Protocol):
    """A function that is called with the progress of some work."""

    def __call__(self, stage: str, done: float, total: float | None, detail: str = "") -> None:
        """Show that `done` of `total` units of a stage (None: unknown) are finished; `detail` has counts and speeds."""


def silent(stage: str, done: float, total: float | None, detail: str = "") -> None:
    """Show nothing."""


def can_redraw(stream: TextIO) -> bool:
    """Tell whether what is written to a stream can be erased: a terminal, but not that of a notebook's `!command`."""
    environment = os.environ  # as jupyter_client and ipykernel set it
    is_kernels = "JPY_PARENT_PID" in environment or (
        environment.get("TERM") == "xterm-color" and environment.get("GIT_PAGER") == "cat"
    )
    return stream.isatty() and not is_kernels


def notebook_shell() -> Any:
    """Return IPython's shell where this process is the kernel of a notebook, else None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return shell if hasattr(shell, "kernel") else None


def notes() -> TextIO:
    """Return the stream for lines about the work: standard error, which notebooks paint red; there standard output."""
    return sys.stdout if notebook_shell() else sys.stderr


@contextmanager
def progress_bar(*, quiet: bool = False) -> Iterator[ProgressCallback]:
    """Yield a callback that writes to standard error: a bar on a terminal, elsewhere a line from time to time."""
    if quiet or not can_redraw(sys.stderr):
        yield silent if quiet else _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress
    from rich.table import Column

    columns = (
        # Without markup: a file named "[red]" must not change the colour, and one named "[/]" must not fail.
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=_BAR_WIDTH),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("left"),
        # On a narrow terminal the end of the counts is cut; otherwise the bar would take two lines and flicker.
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
    """Return a ProgressCallback that writes a line if the last one was long ago."""
    last = time.monotonic()

    def write(stage: str, done: float, total: float | None, detail: str = "") -> None:
        nonlocal last
        if time.monotonic() - last >= _LINE_EVERY_S:
            last = time.monotonic()
            share = f" {done / total:.0%}" if total else ""
            with suppress(BrokenPipeError):  # the work goes on even if nobody reads this
                print(printable(f"{stage}{share}{f', {detail}' * bool(detail)}"), file=notes(), flush=True)

    return write
