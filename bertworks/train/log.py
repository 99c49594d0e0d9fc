"""The progress of a run, and what it logs on the way: two JSON logs, TensorBoard events, and a view of the progress.

- `metrics.jsonl` has what the same training gives again; `timing.jsonl` what depends on the machine.
- The trainer calls in at `log_every` steps, after evaluations and after checkpoints. A call takes a fraction of a
  millisecond (0.1 on a plain core), and two where a terminal is drawn on.
- Losses are added up on the device until a line is due (`LossWindow`).
- The speed is that of the steps since the line before. A mean over the whole run would hide what happens now, and
  after a resume it would be wrong: a run's clock may start again where its count of tokens continues.
"""

import mmap
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.report.logs import METRICS_FILE, TIMING_FILE, StepLog, read_log, training_seconds
from bertworks.report.status import About, Status
from bertworks.report.tensorboard import EventFile
from bertworks.report.terminal import View, unseen

_STATM = Path("/proc/self/statm")


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
    own: Tensor  # finite if what this rank brought to it was
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
