"""Work in several processes on one machine: bounded, interruptible, and with an error a person understands.

Processes are forked where that is sound: they start at once, and a caller's script needs no main guard. Ctrl-C reaches
this process alone, which ends the others; without that each of them would print where it was. When this process is
killed, the others notice and end too, instead of waiting for work for ever.
"""

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from bertworks.errors import UserError

Result = TypeVar("Result")
_FOR_THE_PARENT = (signal.SIGTERM, signal.SIGUSR1)


def num_workers(asked: int | None) -> int:
    """Return how many processes to use: as asked, or one for each core."""
    if asked is not None and asked < 1:
        raise UserError(f"{asked} worker processes are not possible; choose 1 or more, or none to have one a core")
    return asked or os.cpu_count() or 1


def start_process(name: str, work: Callable[..., None], *arguments: Any) -> BaseProcess:
    """Start a process of its own that ends with this one; signals to the whole group are left to this process."""
    make: Callable[..., BaseProcess] = process_context().Process  # type: ignore[attr-defined]
    process = make(target=_begin_alone, args=(work, *arguments), name=name, daemon=True)
    with _blocked(signal.SIGINT, *_FOR_THE_PARENT):
        process.start()
    return process


def _begin_alone(work: Callable[..., None], *arguments: Any) -> None:
    # A run that is told to end saves first, and for that its workers must still be there.
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
            pool.submit(_nothing)
        yield pool
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, most likely because memory ran out; "
            f"lower --workers, now {workers}, or close other programs"
        ) from error
    except BaseException:
        # Whatever they are at, nobody waits for it any more.
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


def _nothing() -> None:
    pass


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
    threading.Thread(target=_end_with_parent, daemon=True).start()
    if prepare:
        prepare(*arguments)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def process_context() -> multiprocessing.context.BaseContext:
    """Return the way in which processes are started here."""
    return multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
