"""Batches made ahead: in a thread, or in worker processes where one core makes too few.

Worker w of N fills the batches w, w + N, ... It walks over the plans of the others, as ranks do with the slices of
other ranks, so the sequence is the same for any number of workers, and nobody tells anybody where the data is. Planning
is a quarter of the work at a length of 128 and a tenth at 512; that share does not get faster with more workers.

Each worker has a ring of slots in shared memory, which lies under no name and so cannot be left behind. It fills a slot
in place and sends the state; the consumer copies the slot into arrays that are the caller's own for good (under a tenth
of the time of filling it) and sends the slot back. Nothing is pickled on the way. A worker that was killed is an error
at the consumer's next batch, whichever worker's turn it is. Workers end with the iterator, with the program, and when
the consumer is killed.
"""

import atexit
import contextlib
import itertools
import json
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.data.loader import Loader, NewArray, Packed, State
from bertworks.errors import CorruptFile, UserError
from bertworks.processes import process_context, start_process

# Batches made ahead of time in a thread, so that whoever trains never waits for one.
#
# Filling a batch is compiled code that lets other threads run, and one core makes more tokens than a GPU takes:
# there is no need of worker processes, and so nothing that could die alone. The state comes with its batch: what
# was made ahead and not used is no part of it.


Item = TypeVar("Item")
_CHECK_S = 0.2  # how often the thread looks whether anybody still wants its items


class _Ended(Generic[Item]):
    """The last thing in the queue: the items are at an end, or making one failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch_batches(items: Iterator[Item], depth: int = 4) -> Iterator[Item]:
    """Give the same items in the same order, up to `depth` of them made ahead; an error comes where it arose."""
    ready: queue.Queue[Item | _Ended[Item]] = queue.Queue(depth)
    is_wanted = threading.Event()
    is_wanted.set()
    threading.Thread(target=_make_ahead, args=(items, ready, is_wanted), name="prefetch", daemon=True).start()
    try:
        while not isinstance(item := ready.get(), _Ended):
            yield item
        if item.error:
            raise item.error
    finally:
        is_wanted.clear()


def _make_ahead(items: Iterator[Item], ready: "queue.Queue[Item | _Ended[Item]]", is_wanted: threading.Event) -> None:
    try:
        for item in items:
            if not _put(item, ready, is_wanted):
                return
        _put(_Ended(None), ready, is_wanted)
    except BaseException as error:  # whatever it is, it belongs to the one who waits for the item
        _put(_Ended(error), ready, is_wanted)


def _put(item: Item | _Ended[Item], ready: "queue.Queue[Item | _Ended[Item]]", is_wanted: threading.Event) -> bool:
    while is_wanted.is_set():
        try:
            ready.put(item, timeout=_CHECK_S)
        except queue.Full:
            continue
        return True
    return False


_ERRORS: dict[str, type[Exception]] = {"CorruptFile": CorruptFile, "UserError": UserError}
_FREE = b""  # what the consumer sends: one more slot may be filled

Batch = tuple[list[Packed], State]


class _Worker(NamedTuple):
    process: BaseProcess
    connection: Connection
    slots: list[list[Packed]]


def batches(
    loader: Loader, state: State | None = None, *, workers: int = 0, prefetch: int = 4, pin: bool = False
) -> Iterator[Batch]:
    """Give `loader.batches(state)`, made ahead: the same batches for any number of workers.

    Args:
        loader: of this rank.
        state: where to go on; the start if not given.
        workers: processes that make batches; 0: a thread of this one.
        prefetch: how many batches the thread, or each worker, makes ahead.
        pin: put the arrays into pinned memory, from which a GPU copies on its own; of no effect without CUDA.
    """
    if workers < 0 or prefetch < 1:
        raise UserError(f"workers={workers}, prefetch={prefetch}: workers must be 0 or more, prefetch 1 or more")
    new_slice = partial(loader.new_slice, _new_array(pin))
    if workers == 0:
        return prefetch_batches(loader.batches(state, new_slice=new_slice), prefetch)
    return _from_workers(loader, state, workers, prefetch, new_slice)


def _from_workers(
    loader: Loader, state: State | None, num_workers: int, depth: int, new_slice: Callable[[], Packed]
) -> Iterator[Batch]:
    with _started(loader, state, num_workers, depth) as workers:
        for number in itertools.count():
            worker = workers[number % num_workers]
            state_behind = _wait_for_state(worker, workers)
            slot = worker.slots[number // num_workers % depth]
            slices = [_copied(packed, new_slice()) for packed in slot]
            with contextlib.suppress(OSError):  # a worker that just died is found out at the next batch
                worker.connection.send_bytes(_FREE)
            yield slices, state_behind


@contextlib.contextmanager
def _started(loader: Loader, state: State | None, num_workers: int, depth: int) -> Iterator[list[_Worker]]:
    workers: list[_Worker] = []
    end = partial(_end, workers)
    # A program may end with the iterator still in its hands, and Python then waits for processes that do not end.
    atexit.register(end)
    try:
        for number in range(num_workers):
            workers.append(_start(loader, state, number, num_workers, depth))
        yield workers
    finally:
        end()
        atexit.unregister(end)


def _start(loader: Loader, state: State | None, number: int, num_workers: int, depth: int) -> _Worker:
    context = process_context()
    num_bytes = sum(array.nbytes for array in loader.new_slice())
    memory = context.RawArray("b", depth * loader.num_slices * num_bytes)
    ours, theirs = context.Pipe()
    name = f"loader worker {number}"
    process = start_process(name, _work, loader, state, number, num_workers, memory, depth, theirs)
    theirs.close()
    return _Worker(process, ours, _slots(loader, memory, depth))


def _slots(loader: Loader, memory: Any, depth: int) -> list[list[Packed]]:
    """Lay the slices of every slot into shared memory."""
    used = 0

    def new_array(length: int, dtype: type[np.generic]) -> NDArray[Any]:
        nonlocal used
        array = np.frombuffer(memory, dtype, length, used)
        used += array.nbytes
        return array

    return [[loader.new_slice(new_array) for _ in range(loader.num_slices)] for _ in range(depth)]


def _work(
    loader: Loader, state: State | None, number: int, num_workers: int, memory: Any, depth: int, connection: Connection
) -> None:
    slots = _slots(loader, memory, depth)
    slices = _free_slices(slots, connection)
    try:
        for _, state_behind in loader.batches(state, first=number, step=num_workers, new_slice=lambda: next(slices)):
            connection.send_bytes(json.dumps(state_behind).encode())
    except Exception as error:
        text = str(error) if type(error).__name__ in _ERRORS else traceback.format_exc()
        connection.send_bytes(json.dumps({"error": type(error).__name__, "text": text}).encode())
    # Not to be taken for a worker that was killed: the consumer may have batches to use before it meets the error.
    threading.Event().wait()


def _free_slices(slots: list[list[Packed]], connection: Connection) -> Iterator[Packed]:
    """Give the slices of slot after slot, without end; from the second round on, each when the consumer is done."""
    for slot in slots:
        yield from slot
    for slot in itertools.cycle(slots):
        connection.recv_bytes()
        yield from slot


def _wait_for_state(worker: _Worker, workers: list[_Worker]) -> State:
    processes = {each.process.sentinel: each.process for each in workers}
    ready = wait([worker.connection, *processes])
    for sentinel in ready:
        if sentinel in processes:
            _raise_death(processes[sentinel])
    try:
        message = json.loads(worker.connection.recv_bytes())
    except (EOFError, OSError):
        _raise_death(worker.process)
    if isinstance(message, dict):
        raise _ERRORS.get(message["error"], RuntimeError)(message["text"])
    return State(*message)


def _raise_death(process: BaseProcess) -> NoReturn:
    process.join(timeout=1)
    raise UserError(
        f"{process.name} (process {process.pid}) was killed, exit code {process.exitcode}, most likely because memory "
        "ran out; use fewer loader workers, or close other programs, and go on from the last checkpoint"
    )


def _copied(source: Packed, target: Packed) -> Packed:
    for array, its_copy in zip(source, target, strict=True):
        np.copyto(its_copy, array)
    return target


def _end(workers: list[_Worker]) -> None:
    for worker in workers:
        worker.process.kill()
    for worker in workers:
        worker.process.join()
        worker.connection.close()


def _new_array(pin: bool) -> NewArray:
    if not pin:
        return np.empty
    import torch

    if not torch.cuda.is_available():
        return np.empty

    def pinned(length: int, dtype: type[np.generic]) -> NDArray[Any]:
        # An array has its block of pinned memory to itself: torch then knows by its address when a copy is done.
        kind = getattr(torch, np.dtype(dtype).name)
        array: NDArray[Any] = torch.empty(length, dtype=kind, pin_memory=True).numpy()
        return array

    return pinned
