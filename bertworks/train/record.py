"""What a run tells while it goes, in one place: two logs, TensorBoard's events, and whatever a person looks at.

The loop calls in at `log_every` steps, after evaluations and after checkpoints; each call takes a fraction of a
millisecond (0.1 on a plain core), and two where a terminal is drawn on.
"""

import mmap
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertworks.report.logs import METRICS_FILE, TIMING_FILE, StepLog, read_log, training_seconds
from bertworks.report.status import About, Status
from bertworks.report.tensorboard import EventFile
from bertworks.report.terminal import View, unseen
from bertworks.train.trainer import Place

# What the machine makes of a run: tokens per second and memory, read when a line of the log is due.
#
# The speed is that of the steps since the line before. A mean over the whole run would hide what happens now, and
# after a resume it would be wrong: a run's clock may begin anew where its count of tokens goes on.


_STATM = Path("/proc/self/statm")


class Meter:
    """Reads speed and memory.

    Args:
        place: where the run goes on from.
        device: where it trains.
        seconds_before: of training in earlier starts, where the place's clock has begun anew.
    """

    def __init__(self, place: Place, device: torch.device, seconds_before: float = 0.0) -> None:
        self._before, self._device, self._seconds_before = place, device, seconds_before

    def read(self, place: Place) -> dict[str, float]:
        """Return a line of timing: the clock, seconds of training, tokens per second since the last call, memory."""
        seconds, tokens = place.seconds - self._before.seconds, place.tokens - self._before.tokens
        self._before = place
        return {
            "time": round(time.time(), 3),
            "seconds": self._seconds_before + place.seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "memory_bytes": used_memory(self._device),
        }


def used_memory(device: torch.device) -> int:
    """Return the bytes in use: on a GPU the most that tensors ever took, elsewhere what of the process is in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # not Linux: the most it ever was, which macOS counts in bytes and others in units of 1,024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


class Record:
    """Writes down and shows one start of a run; `close` it in the end.

    Args:
        run: the run folder.
        place: where this start goes on from.
        about: what is trained, for the view.
        device: where, for its memory.
        view: what a person sees.
        is_new: whether the run begins here; else it goes on, and what the logs say up to the place is kept.
    """

    def __init__(
        self, run: Path, place: Place, about: About, device: torch.device, view: View = unseen, *, is_new: bool = True
    ) -> None:
        last_step = None if is_new else place.step
        self._metrics = StepLog(run / METRICS_FILE, last_step)
        self._timing = StepLog(run / TIMING_FILE, last_step)
        self._events = EventFile(run)
        before = 0.0 if place.seconds else training_seconds(read_log(run / TIMING_FILE))
        self._meter = Meter(place, device, before)
        self._mfu_per_speed = (
            about.flops_per_token / about.peak_flops if about.flops_per_token and about.peak_flops else None
        )
        self._status = Status(about, place, read_log(run / METRICS_FILE))
        self._view = view
        view("begin", self._status)

    def train(self, place: Place, values: Mapping[str, Any]) -> None:
        """Tell what was gathered since the last time."""
        timing = self._meter.read(place)
        if self._mfu_per_speed is not None:
            timing["mfu"] = timing["tokens_per_second"] * self._mfu_per_speed
        self._metrics.append(place.step, values)
        self._timing.append(place.step, timing)
        self._events.append(place.step, {**values, **timing})
        self._status.train(place, {**values, **timing})
        self._view("train", self._status)

    def evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Tell the figures of documents kept aside."""
        self._metrics.append(step, values)
        self._events.append(step, values)
        self._status.evaluate(step, values)
        self._view("evaluate", self._status)

    def save(self, step: int) -> None:
        """Tell that there is a checkpoint."""
        self._status.save(step)
        self._view("save", self._status)

    def sync(self) -> None:
        """Have the logs on disk; to be called before a checkpoint is saved, which counts on them."""
        self._metrics.sync()
        self._timing.sync()

    def close(self) -> None:
        """Write nothing more."""
        for log in (self._metrics, self._timing, self._events):
            log.close()
