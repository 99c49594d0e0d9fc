"""Prefetching of batches: in a thread, or in worker processes if one core is too slow.

- A thread is usually enough: batches are filled by compiled code without the GIL, and one core makes more tokens than a
  GPU needs. Without processes there is nothing that could die separately. Each batch comes with the state after it, so
  batches that were prefetched but not used are not counted.
- With processes, worker w of N fills the batches w, w + N, ... It plans the others' batches too, as ranks do for other
  ranks, so the sequence is the same for any number of workers. Planning is a quarter of the work at length 128 and a
  tenth at 512; this part does not get faster with more workers.
- Each worker has a ring of slots in shared memory. The memory is anonymous, so it cannot be left behind after a crash.
  The worker fills a slot in place and sends the state; the consumer copies the slot into new arrays, which belong to
  the caller (in under a tenth of the time of filling it), and frees the slot. Nothing is pickled.
- If any worker is killed, the consumer's next batch raises an error. Workers end with the iterator, with the program,
  and when the consumer is killed.
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
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from bertworks.data.loader import Loader, NewArray, Packed, State
from bertworks.errors import CorruptFile, UserError
from bertworks.processes import process_context, start_process

Item = TypeVar("Item")
Batch = tuple[list[Packed], State]
# A worker: its process, the pipe to it, and the slots of its ring.
Worker = tuple[BaseProcess, Connection, list[list[Packed]]]
_CHECK_S = 0.2  # how often the thread checks whether its items are still needed
_ERRORS: dict[str, type[Exception]] = {"CorruptFile": CorruptFile, "UserError": UserError}
_FREE = b""  # the consumer's message that a slot is free


def prefetch_batches(items: Iterator[Item], depth: int = 4) -> Iterator[Item]:
    """Yield the same items in the same order, prefetching up to `depth` of them; an error is raised at its position."""
    ready: queue.Queue[tuple[Any, bool]] = queue.Queue(depth)  # (item, False), or at the end (error or None, True)
    is_wanted = threading.Event()
    is_wanted.set()

    def put(item: Any, is_last: bool) -> bool:
        while is_wanted.is_set():
            with contextlib.suppress(queue.Full):
                ready.put((item, is_last), timeout=_CHECK_S)
                return True
        return False

    def make_ahead() -> None:
        try:
            if all(put(item, False) for item in items):
                put(None, True)
        except BaseException as error:  # any error is passed on to the consumer
            put(error, True)

    threading.Thread(target=make_ahead, name="prefetch", daemon=True).start()
    try:
        while not (got := ready.get())[1]:
            yield got[0]
        if got[0]:
            raise got[0]
    finally:
        is_wanted.clear()


def batches(
    loader: Loader, state: State | None = None, *, workers: int = 0, prefetch: int = 4, pin: bool = False
) -> Iterator[Batch]:
    """Yield `loader.batches(state)` with prefetching; the batches are the same for any number of workers.

    Args:
        loader: this rank's loader.
        state: where to resume; the start if not given.
        workers: the number of processes that make batches; 0: a thread makes them.
        prefetch: how many batches the thread, or each worker, prefetches.
        pin: put the arrays into pinned memory, from which copies to a GPU are asynchronous; no effect without CUDA.
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
    workers: list[Worker] = []

    def end() -> None:
        for process, _, _ in workers:
            process.kill()
        for process, connection, _ in workers:
            process.join()
            connection.close()

    # If a program ends while the iterator still exists, Python would wait forever for the processes.
    atexit.register(end)
    try:
        for number in range(num_workers):
            workers.append(_start(loader, state, number, num_workers, depth))
        for number in itertools.count():
            worker = workers[number % num_workers]
            _, connection, slots = worker
            state_after = _wait_for_state(worker, workers)
            slices = []
            for packed in slots[number // num_workers % depth]:
                slices.append(new_slice())
                for array, its_copy in zip(packed, slices[-1], strict=True):
                    np.copyto(its_copy, array)
            with contextlib.suppress(OSError):  # if the worker has just died, the next batch raises the error
                connection.send_bytes(_FREE)
            yield slices, state_after
    finally:
        end()
        atexit.unregister(end)


def _start(loader: Loader, state: State | None, number: int, num_workers: int, depth: int) -> Worker:
    context = process_context()
    num_bytes = sum(array.nbytes for array in loader.new_slice())
    memory = context.RawArray("b", depth * loader.num_slices * num_bytes)
    ours, theirs = context.Pipe()
    name = f"loader worker {number}"
    process = start_process(name, _work, loader, state, number, num_workers, memory, depth, theirs)
    theirs.close()
    return process, ours, slots_in(memory, loader, depth)


def slots_in(memory: Any, loader: Loader, depth: int) -> list[list[Packed]]:
    """Place the micro-batches of every slot in shared memory."""
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
    def free_slices() -> Iterator[Packed]:
        """Yield the micro-batches of slot after slot, endlessly; after the first round, wait until a slot is free."""
        slots = slots_in(memory, loader, depth)
        for slot in slots:
            yield from slot
        for slot in itertools.cycle(slots):
            connection.recv_bytes()
            yield from slot

    slices = free_slices()
    try:
        for _, state_after in loader.batches(state, first=number, step=num_workers, new_slice=lambda: next(slices)):
            connection.send_bytes(json.dumps(state_after).encode())
    except Exception as error:
        text = str(error) if type(error).__name__ in _ERRORS else traceback.format_exc()
        connection.send_bytes(json.dumps({"error": type(error).__name__, "text": text}).encode())
    # Do not exit, which would look like a killed worker: the consumer may still use batches before it reads the error.
    threading.Event().wait()


def _wait_for_state(worker: Worker, workers: list[Worker]) -> State:
    process, connection, _ = worker
    processes = {each.sentinel: each for each, _, _ in workers}
    died = [processes[ready] for ready in wait([connection, *processes]) if ready in processes]
    message: Any = None
    if not died:
        try:
            message = json.loads(connection.recv_bytes())
        except (EOFError, OSError):
            died = [process]
    if died:
        died[0].join(timeout=1)
        raise UserError(
            f"{died[0].name} (process {died[0].pid}) was killed, exit code {died[0].exitcode}, most likely because "
            "memory ran out; use fewer loader workers, or close other programs, and resume from the last checkpoint"
        )
    if isinstance(message, dict):
        raise _ERRORS.get(message["error"], RuntimeError)(message["text"])
    return State(*message)


def _new_array(pin: bool) -> NewArray:
    if not pin:
        return np.empty
    import torch

    if not torch.cuda.is_available():
        return np.empty

    def pinned(length: int, dtype: type[np.generic]) -> NDArray[Any]:
        # Each array is a separate block of pinned memory, so that torch knows by its address when a copy is done.
        kind = getattr(torch, np.dtype(dtype).name)
        array: NDArray[Any] = torch.empty(length, dtype=kind, pin_memory=True).numpy()
        return array

    return pinned
