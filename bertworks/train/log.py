"""The progress of a run, and what it logs on the way: two JSON logs, TensorBoard events, and a view of the progress.

- `metrics.jsonl` has what a repeated run reproduces exactly; `timing.jsonl` what depends on the machine.
- The trainer calls in at `log_every` steps, after evaluations and after checkpoints. A call takes a fraction of a
  millisecond (0.1 on a plain core), and two where a terminal is drawn on.
- Losses are added up on the device until a line is due (`LossWindow`).
- The speed is that of the steps since the line before. A mean over the whole run would hide what happens now, and
  after a resume it would be wrong: a run's clock may start again where its count of tokens continues.
- `tensorboard/` is written without the tensorboard package, which would bring protobuf, grpc and werkzeug, and has no
  way to empty a file that is being read. An event file is a row of records: the length of an event, its checksum, the
  event, its checksum. An event is a protobuf message with a time, a step and some named numbers.
- The JSON logs stay the truth: at every start the event file is rewritten from them, under a later name, and the one
  before it emptied. So steps that a run makes again after a kill are in it once; a TensorBoard that is open meanwhile
  forgets them (by the START of a session), and continues with the new file. A million steps logged every ten take 28 MB
  and 5 seconds to rewrite; a line costs 30 microseconds.
- Events carry the time of day, as TensorBoard expects, so event files of repeated runs differ. A run does not end
  because of them: if they cannot be written, one warning is logged, and training continues.
"""

import logging
import mmap
import os
import struct
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from bertworks.models.tf_bundle import bytes_field, crc32c, fixed32_field, fixed64_field, masked, varint_field
from bertworks.report.logs import METRICS_FILE, TIMING_FILE, About, Status, StepLog, read_log, training_seconds
from bertworks.report.terminal import View, unseen

_STATM = Path("/proc/self/statm")
_EVENTS_FOLDER = "tensorboard"
_FILE_PREFIX = "events.out.tfevents."
_FILE_VERSION = b"brain.Event:2"
_SESSION_START = 1
_LARGEST = 3.4e38  # what a float of four bytes holds
_NO_SCALARS = ("step", "time", "seconds")
_log = logging.getLogger(__name__)


class Progress(NamedTuple):
    """The progress of a run, which checkpoints record."""

    step: int = 0  # updates made or skipped
    tokens: int = 0
    data: Any = None  # the state of the data after the last batch
    skipped: int = 0  # updates left out because something was not finite
    seconds: float = 0.0  # of training, over all starts of a run that goes by the clock, else of this one


class Update(NamedTuple):
    """An update that was made, whose norm may not have been read yet."""

    before: Progress
    sums: Tensor
    norm: Tensor
    own: Tensor  # finite if this rank's own part was
    rng: Tensor  # the state of the CPU's random numbers before it
    num_random: float | None = None  # as in its micro-batches, together


class LossWindow:
    """The losses since the last log line, added up on the device.

    It is part of a run's state: a line of the log must not depend on whether the run was interrupted before it.

    Args:
        state: what `state` returned, to resume from.
        device: where to keep the sums.
    """

    def __init__(self, state: Mapping[str, Any] | None = None, device: torch.device | str = "cpu") -> None:
        self._sums: Tensor | None = None
        self._norm: Tensor | None = None
        self._num_random: float | None = None
        self._unread: Update | None = None
        if state and state["sums"]:
            self._sums = torch.tensor(state["sums"], dtype=torch.float32, device=device)
            self._norm = torch.tensor(state["norm"], dtype=torch.float32, device=device)
            self._num_random = state.get("num_random")  # in checkpoints of earlier versions it is not known

    def add(self, update: Update) -> Update | None:
        """Take in an update; returns one that was not finite: this one, or on a GPU the one before."""
        known, self._unread = self._unread, update
        if not update.norm.is_cuda:
            known, self._unread = self._unread, None
        return self._take_in(known)

    def settle(self) -> Update | None:
        """Read what has not been read yet; returns it if it was not finite."""
        known, self._unread = self._unread, None
        return self._take_in(known)

    def _take_in(self, update: Update | None) -> Update | None:
        if update is None:
            return None
        if not bool(update.norm.isfinite()):
            return update
        if self._sums is None:
            self._num_random = update.num_random
        elif self._num_random is not None and update.num_random is not None:
            self._num_random += update.num_random
        self._sums = update.sums if self._sums is None else self._sums + update.sums
        self._norm = update.norm
        return None

    def take(self) -> dict[str, Any]:
        """Return what was gathered, sums [kinds, (loss, correct, count)] and the last norm, and start again."""
        state = self.state()
        self._sums = self._norm = self._num_random = None
        return state

    def state(self) -> dict[str, Any]:
        """Return what was gathered, as JSON."""
        if self._sums is None or self._norm is None:
            return {"sums": [], "norm": 0.0}
        pairs = {} if self._num_random is None else {"num_random": self._num_random}
        return {"sums": self._sums.tolist(), "norm": float(self._norm), **pairs}


class RunLog:
    """Writes the logs of one start of a run and shows them; `close` it in the end.

    Args:
        run: the run folder.
        progress: where this start begins.
        about: what is trained, for the view.
        device: where it trains, to measure memory.
        view: shows the progress.
        is_new: whether the run begins here; if it is resumed, what the logs say up to `progress` is kept.
    """

    def __init__(
        self, run: Path, progress: Progress, about: About, device: torch.device, view: View = unseen, *, is_new: bool
    ) -> None:
        last_step = None if is_new else progress.step
        self._metrics = StepLog(run / METRICS_FILE, last_step)
        self._timing = StepLog(run / TIMING_FILE, last_step)
        self._events = EventFile(run)
        # Seconds of training in earlier starts, where the clock of this one starts at 0.
        self._seconds_before = 0.0 if progress.seconds else training_seconds(read_log(run / TIMING_FILE))
        self._last, self._about, self._device, self._view = progress, about, device, view
        self._status = Status(about, progress, read_log(run / METRICS_FILE))
        view("begin", self._status)

    def train(self, progress: Progress, values: Mapping[str, Any]) -> None:
        """Log the losses and gradients since the line before, and the machine's speed and memory."""
        speed = (progress.tokens - self._last.tokens) / max(progress.seconds - self._last.seconds, 1e-9)
        self._last = progress
        timing = {
            "time": round(time.time(), 3),
            "seconds": self._seconds_before + progress.seconds,
            "tokens_per_second": speed,
            "memory_bytes": used_memory(self._device),
        }
        if self._about.flops_per_token and self._about.peak_flops:
            timing["mfu"] = speed * (self._about.flops_per_token / self._about.peak_flops)
        self._metrics.append(progress.step, values)
        self._timing.append(progress.step, timing)
        self._events.append(progress.step, {**values, **timing})
        self._status.train(progress, {**values, **timing})
        self._view("train", self._status)

    def evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Log the figures of held-out data."""
        self._metrics.append(step, values)
        self._events.append(step, values)
        self._status.evaluate(step, values)
        self._view("evaluate", self._status)

    def save(self, step: int) -> None:
        """Show that there is a checkpoint."""
        self._status.save(step)
        self._view("save", self._status)

    def sync(self) -> None:
        """Have the logs on disk; called before a checkpoint is saved, which counts on them."""
        self._metrics.sync()
        self._timing.sync()

    def close(self) -> None:
        """Close the files."""
        for log in (self._metrics, self._timing, self._events):
            log.close()


def used_memory(device: torch.device) -> int:
    """Return the bytes in use: on a GPU the most that tensors ever took, elsewhere what of the process is in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # not Linux: the most it ever was, which macOS counts in bytes and others in units of 1,024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class EventFile:
    """The events of a run, with what its logs hold already; `close` it in the end.

    Args:
        run: the run folder, whose logs have been cut to the checkpoint that the run resumes from.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / _EVENTS_FOLDER
        self._stream: IO[bytes] | None = None
        try:
            self._folder.mkdir(exist_ok=True)
            # TensorBoard continues with the file whose name sorts after the one it is in.
            path = self._folder / f"{_FILE_PREFIX}{time.time():017.6f}.bertworks"
            self._stream = open(path, "wb")  # noqa: SIM115 -- it stays open as long as the run
            self._stream.write(b"".join(_logged(run)))
            self._stream.flush()
            for other in self._folder.glob(_FILE_PREFIX + "*"):
                if other == path:
                    continue
                if other.stat().st_size:  # a TensorBoard that is reading it looks for it once more
                    os.truncate(other, 0)
                else:
                    other.unlink()
        except OSError as error:
            self._give_up(error)

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the scalars of a step, where TensorBoard sees them at once."""
        if self._stream is None:
            return
        try:
            self._stream.write(_scalars(step, values, time.time()))
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Stop recording."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s cannot be written (%s); the run continues without it", self._folder, error.strerror)
        self._stream = None


def tag_of(name: str) -> str | None:
    """Return what TensorBoard calls a value of the logs; None for what is no curve."""
    if name in _NO_SCALARS:
        return None
    where, _, figure = name.partition("_")
    if where in ("holdout", "dev"):
        return f"{where}/{figure}"
    return f"train/{name}" if name.endswith(("loss", "accuracy")) else name


def _logged(run: Path) -> list[bytes]:
    """Return the records of a new file: its start, and all that the logs hold, by step, each with its own time."""
    timing = read_log(run / TIMING_FILE)
    times = {line["step"]: line["time"] for line in timing if isinstance(line.get("time"), int | float)}
    now = time.time()
    records = [
        _record(now, 0, bytes_field(3, _FILE_VERSION)),
        _record(now, 0, bytes_field(7, varint_field(1, _SESSION_START))),
    ]
    now = next(iter(times.values()), time.time())
    for line in sorted([*read_log(run / METRICS_FILE), *timing], key=lambda line: line["step"]):
        now = times.get(line["step"], now)
        records.append(_scalars(line["step"], line, now))
    return records


def _scalars(step: int, values: Mapping[str, Any], wall_time: float) -> bytes:
    """Return a record with the values that are numbers, or nothing where none is."""
    found = [
        bytes_field(1, tag + fixed32_field(2, int.from_bytes(struct.pack("<f", value), "little")))
        for name, value in values.items()
        # The comparison is false for a NaN too, as it should be.
        if (tag := _tag_field(name)) and isinstance(value, int | float) and abs(value) <= _LARGEST
    ]
    return _record(wall_time, step, bytes_field(5, b"".join(found))) if found else b""


@cache
def _tag_field(name: str) -> bytes:
    tag = tag_of(name)
    return bytes_field(1, tag.encode()) if tag else b""


def _record(wall_time: float, step: int, what: bytes) -> bytes:
    """Return an event with its length and the checksums of both."""
    time_bits = int.from_bytes(struct.pack("<d", wall_time), "little")
    event = fixed64_field(1, time_bits) + varint_field(2, step) + what
    length = struct.pack("<Q", len(event))
    checksums = (struct.pack("<I", masked(crc32c(part))) for part in (length, event))
    return length + next(checksums) + event + next(checksums)
