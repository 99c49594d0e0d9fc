"""What a run tells while it goes, in one place: two logs, TensorBoard's events, and whatever a person looks at.

The loop calls in at `log_every` steps, after evaluations and after checkpoints; each call takes a fraction of a
millisecond (0.1 on a plain core), and two where a terminal is drawn on.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertworks.train.log import METRICS_FILE, TIMING_FILE, StepLog, read_log, training_seconds
from bertworks.train.loop import Place
from bertworks.train.meter import Meter
from bertworks.train.status import About, Status
from bertworks.train.tensorboard import EventFile
from bertworks.train.view import View, unseen


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
