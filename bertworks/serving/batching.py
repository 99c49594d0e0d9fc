"""Requests of many callers computed together: one queue and one thread for each model.

A request goes through four steps, none of which blocks the event loop:

1. A reader thread makes sequences of tokens of its texts (`inference/readings.py`). A mistake in it ends it here.
2. It waits in the model's queue.
3. The model's thread takes from the queue whatever is there, up to a number of tokens, and computes it. It never waits
   for more: while it computes, others arrive, so batches grow with the load by themselves. Each request gets a share of
   a batch, so a single sentence does not wait until a list of a thousand is done.
4. A finishing thread makes the answer of what was computed.

Sequences are packed, so an answer does not depend on what is computed beside it. A request whose client has left is
skipped. The queue is bounded by requests and by tokens; beyond that a request is refused at once, with the time after
which it is worth another try.
"""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

import torch

from bertworks.errors import UserError, counted
from bertworks.inference.model import Model
from bertworks.inference.readings import Reading, compute
from bertworks.serving.settings import Limits

_log = logging.getLogger(__name__)
_LEAST_SHARE = 512  # tokens of a batch that a request gets, however many others wait
_TOKENS_AT_ONCE, _TOKENS_AT_ONCE_ON_DEVICE = 2_048, 65_536  # as in nn/attention.py: more do not go faster
_SMALL_OPERATIONS = 4e8  # which one thread does in a few milliseconds
_LONGEST_RETRY_S = 60
_COMPUTING = threading.Lock()  # of all models of this process: their threads would only take each other's cores
Answer = TypeVar("Answer")
ErrorForm = Literal["object", "message", "text"]


class Refused(Exception):  # noqa: N818 -- not an error of the program
    """A request that is answered with a status and a message; the message is for the caller."""

    def __init__(self, status: int, message: str, *, retry_after: int | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.retry_after = status, message, retry_after


@dataclass
class Work:
    """A request's id, and what it has cost so far, for its headers, the metrics and the access log.

    Attributes:
        form: in which its client reads errors; see `error_body`.
    """

    id: str = ""
    form: ErrorForm = "object"
    model: str = ""
    inputs: int = 0
    tokens: int = 0
    read_s: float = 0.0
    queue_s: float = 0.0
    compute_s: float = 0.0
    status: int = 0  # of the answer, once it is sent
    held: int = 0  # bytes of its body and its answer


WORK: ContextVar[Work | None] = ContextVar("work", default=None)  # of the request that is answered


class Watch(Protocol):
    """Hears of what a batcher does; the metrics are one."""

    def computed(self, model: str, sequences: int, tokens: int, seconds: float) -> None:
        """A batch was computed."""

    def skipped(self, model: str) -> None:
        """A request was left out, because its client had left."""

    def queued(self, model: str, length: int) -> None:
        """So many requests wait now."""


class _Job:
    """A request on its way through the steps."""

    def __init__(self, read: Callable[[Model], Reading[Any]], finish: Callable[[Any], Any]) -> None:
        self.read, self.finish = read, finish
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.is_gone = False  # nobody waits for the answer any more
        self.is_waiting = True  # holds a place in the queue
        self.reading: Reading[Any] = Reading(("",), [], [], list)
        self.rows: list[Any] = []
        self.num_taken = self.num_done = self.tokens_left = 0
        self.work = Work()
        self.since = time.perf_counter()

    def lap(self) -> float:
        """Return the seconds since the last step."""
        before, self.since = self.since, time.perf_counter()
        return self.since - before

    def end(self, result: Any, error: BaseException | None = None) -> None:
        """Give the result, or an error, to the event loop."""

        def put() -> None:
            if not self.future.done():
                self.future.set_result(result) if error is None else self.future.set_exception(error)

        try:
            self.loop.call_soon_threadsafe(put)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            self.is_gone = True


@dataclass
class Readers:
    """The threads that read texts and make answers, shared by all models of a process."""

    reading: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "reading"))
    finishing: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, "finishing"))


class Batcher:
    """The queue of a model and the thread that computes for it.

    Attributes:
        busy_since: when the batch that is computed now was begun, by `time.monotonic`; None: none is.
        is_dead: whether the thread has ended by itself, so that nothing will be computed any more.
    """

    def __init__(self, name: str, model: Model, limits: Limits, readers: Readers, watch: Watch) -> None:
        self.name, self.model, self._limits, self._readers, self._watch = name, model, limits, readers, watch
        # A multiplication and an addition for each weight of the layers; embeddings are only looked up.
        self._operations_per_token = 2 * 12 * model.num_layers * model.width**2
        self._budget = _TOKENS_AT_ONCE if model.device.type == "cpu" else _TOKENS_AT_ONCE_ON_DEVICE
        self._changed = threading.Condition()
        self._queue: deque[_Job] = deque()
        self._taken: list[_Job] = []
        self._num_waiting = self._num_tokens = 0
        self._tokens_per_s = 10_000.0  # a first guess, which the first batches correct
        self.busy_since: float | None = None
        self.is_dead = False
        threading.Thread(target=self._work, name=f"model {name}", daemon=True).start()

    @property
    def queue_length(self) -> int:
        """How many requests wait."""
        return self._num_waiting

    async def run(
        self, read: Callable[[Model], Reading[Any]], finish: Callable[[Any], Answer], inputs: int = 1
    ) -> Answer:
        """Return what `finish` makes of the answer to a reading; both are called in threads.

        Args:
            read: makes the reading of the model, and raises UserError where a caller made a mistake.
            finish: makes the answer of the reading's result, such as its JSON.
            inputs: how many texts it is about, for the metrics.
        """
        if self.is_dead:
            raise self._failed()
        job = _Job(read, finish)
        with self._changed:
            if self._num_waiting >= self._limits.queue:
                raise self._full(f"{counted(self._num_waiting, 'request')} wait")
            self._num_waiting += 1
        self._watch.queued(self.name, self._num_waiting)
        self._readers.reading.submit(self._read, job)
        try:
            return await job.future  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            job.is_gone = True
            self._leave_queue(job)
            raise
        finally:
            if work := WORK.get():
                work.model, work.inputs, work.tokens = self.name, work.inputs + inputs, work.tokens + job.work.tokens
                work.read_s += job.work.read_s
                work.queue_s += job.work.queue_s
                work.compute_s += job.work.compute_s

    def too_many_tokens(self, count: int) -> UserError:
        """Return the error about a request with too many tokens."""
        most = self._limits.tokens
        return UserError(f"the request has {count:,} tokens; at most {most:,} (limit `tokens`): send less at once")

    def _failed(self) -> Refused:
        return Refused(503, f"the model {self.name} has failed; its server has to be started again")

    def _full(self, what: str) -> Refused:
        wait_s = min(math.ceil(self._num_tokens / max(self._tokens_per_s, 1.0)) or 1, _LONGEST_RETRY_S)
        return Refused(429, f"the queue of the model {self.name} is full: {what}; try again later", retry_after=wait_s)

    def _leave_queue(self, job: _Job) -> None:
        with self._changed:
            self._num_waiting -= job.is_waiting
            job.is_waiting = False
            self._num_tokens -= job.tokens_left
            job.tokens_left = 0

    def _read(self, job: _Job) -> None:
        if job.is_gone:
            self._watch.skipped(self.name)
            return
        try:
            reading = job.read(self.model)
            if (tokens := sum(reading.lengths)) > self._limits.tokens:
                raise self.too_many_tokens(tokens)
            job.reading, job.rows, job.work.tokens = reading, [None] * len(reading.units), tokens
            job.work.read_s = job.lap()
            with self._changed:
                if self._num_tokens and self._num_tokens + tokens > self._limits.queued_tokens:
                    raise self._full(f"{self._num_tokens:,} tokens wait")
                if self.is_dead:
                    raise self._failed()
                if reading.units and not job.is_gone:
                    job.tokens_left = tokens
                    self._num_tokens += tokens
                    self._queue.append(job)
                    self._changed.notify()
                    return
        except BaseException as error:  # whatever it is, its caller hears of it
            self._leave_queue(job)
            job.end(None, error)
            return
        self._leave_queue(job)
        self._finish(job)

    # What the model's thread does.

    def _work(self) -> None:
        try:
            while True:
                with self._changed:
                    while not (taken := self._take()):
                        self._changed.wait()
                self._taken = [job for job, _ in taken]
                self._compute(taken)
        except BaseException as error:  # nothing more will be computed, and nobody is to wait for it
            self.is_dead = True
            _log.error("the thread of the model %s has ended: %s", self.name, type(error).__name__)
            with self._changed:
                waiting, self._queue = [*self._taken, *self._queue], deque()
            for job in waiting:
                self._leave_queue(job)
                job.end(None, self._failed())
            raise

    def _take(self) -> list[tuple[_Job, range]]:
        """Take units from the queue, at most a batch, of each request about the same number of tokens."""
        taken: list[tuple[_Job, range]] = []
        room, share = self._budget, max(self._budget // max(len(self._queue), 1), _LEAST_SHARE)
        for _ in range(len(self._queue)):
            job = self._queue.popleft()
            if job.is_gone:
                self._watch.skipped(self.name)
                continue
            lengths, first, size = job.reading.lengths, job.num_taken, 0
            last = first
            while last < len(lengths) and (
                (size + lengths[last] <= min(share, room)) or (last == first and (not taken or lengths[last] <= room))
            ):
                size += lengths[last]
                last += 1
            if last == first:  # its next unit is larger than what is left of this batch: it begins the next one
                self._queue.appendleft(job)
                break
            if first == 0:
                job.work.queue_s = job.lap()
            taken.append((job, range(first, last)))
            room -= size
            job.num_taken = last
            self._num_tokens -= size
            job.tokens_left -= size
            if last < len(lengths):
                self._queue.append(job)
            else:
                self._num_waiting -= job.is_waiting
                job.is_waiting = False
            if room <= 0:
                break
        return taken

    def _compute(self, taken: list[tuple[_Job, range]]) -> None:
        by_key: dict[Any, list[tuple[_Job, range]]] = {}
        for job, numbers in taken:
            by_key.setdefault(job.reading.key, []).append((job, numbers))
        for key, parts in by_key.items():
            units = [job.reading.units[number] for job, numbers in parts for number in numbers]
            tokens = sum(job.reading.lengths[number] for job, numbers in parts for number in numbers)
            try:
                with _COMPUTING:
                    self.busy_since, begun = time.monotonic(), time.perf_counter()
                    with self._threads(tokens):
                        rows = iter(compute(self.model, key, units))
            except Exception as error:
                if len(parts) == 1:
                    self._fail(parts[0][0], error)
                else:  # the one that fails is to fail alone
                    for part in parts:
                        self._compute([part])
                continue
            finally:
                self.busy_since = None
            seconds = time.perf_counter() - begun
            self._tokens_per_s += 0.1 * (tokens / max(seconds, 1e-6) - self._tokens_per_s)
            for job, numbers in parts:
                for number in numbers:
                    job.rows[number] = next(rows)
                job.num_done += len(numbers)
                job.work.compute_s += seconds
                if job.num_done == len(job.rows):
                    self._readers.finishing.submit(self._finish, job)
            self._watch.computed(self.name, len(units), tokens, seconds)
            self._watch.queued(self.name, self._num_waiting)

    @contextlib.contextmanager
    def _threads(self, num_tokens: int) -> Iterator[None]:
        """Compute a small batch with one thread.

        A second thread would save less than it costs: OpenMP's threads spin for some milliseconds after each operation,
        on the cores that the event loop and the client need to go on.
        """
        total = torch.get_num_threads()
        if total == 1 or self._operations_per_token * num_tokens > _SMALL_OPERATIONS:
            yield
            return
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(total)

    def _fail(self, job: _Job, error: Exception) -> None:
        with self._changed:
            if job in self._queue:
                self._queue.remove(job)
        self._leave_queue(job)
        job.end(None, error)

    def _finish(self, job: _Job) -> None:
        if job.is_gone:
            return
        try:
            job.end(job.finish(job.reading.answer(job.rows)))
        except BaseException as error:
            job.end(None, error)
