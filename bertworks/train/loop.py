"""The one training loop. `train` is the order of things; everything else here is a line of it, spelt out.

An update: take the rank's parts of the next global batch, add up their gradients, measure their norm, let the optimizer
step. Then log, evaluate, save. What is not finite changes no weight: the optimizer sees to that on the device, and the
loop stops, or goes on if told to, when it reads the norm. On a GPU it reads the norm of an update while the next one is
under way, for to wait for it would leave the device idle.
"""

import logging
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.train.optim import Optimizer
from bertworks.train.settings import TrainSettings

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """How far a run is; what a checkpoint remembers of it."""

    step: int = 0  # updates made or skipped
    tokens: int = 0
    data: Any = None  # the state of the data behind the last batch
    skipped: int = 0  # updates left out, because something was not finite
    seconds: float = 0.0  # of training, over all starts of the run

    def behind(self, parts: "list[Part]", data: Any) -> "Place":
        """Return the place behind one more batch."""
        num_tokens = sum(part.num_tokens for part in parts)
        return self._replace(step=self.step + 1, tokens=self.tokens + num_tokens, data=data)


class Part(NamedTuple):
    """A part of a batch, on the device, and what it counts for."""

    batch: Any
    counts: Tensor  # of each kind of prediction
    num_tokens: int


class Job(NamedTuple):
    """What the loop works with."""

    trainee: Callable[[Any, Tensor], tuple[Tensor, Tensor]]
    optimizer: Optimizer
    batches: Iterator[tuple[list[Part], Any]]  # the parts of each batch and the state of the data behind it
    learning_rate: Callable[[Place], float]
    settings: TrainSettings
    report: Callable[[Place, Mapping[str, Any]], None]
    evaluate: Callable[[Place], None]
    save: Callable[[Place, "Window"], None]


class Stop(NamedTuple):
    """Where a run ended, and why."""

    place: Place
    reason: str  # steps, tokens, minutes, signal
    signal: int = 0


def train(job: Job, place: Place, window: "Window") -> Stop:
    """Train from a place on until a limit or a signal says stop; the last state is saved."""
    settings = job.settings
    with caught_signals() as signals:
        while not (reason := _stop_reason(settings, place, signals)):
            started = time.monotonic()
            parts, data = next(job.batches)
            sums = accumulate(job.trainee, parts)
            norm = job.optimizer.gradient_norm()
            rate = job.learning_rate(place)
            job.optimizer.step(rate, norm)
            job.optimizer.clear_gradients()
            before, place = place, place.behind(parts, data)
            if bad := window.add(before, sums, norm):
                place = _not_finite(bad, place, job, window)
            place = place._replace(seconds=place.seconds + time.monotonic() - started)
            if place.step % settings.log_every == 0:
                job.report(place, window.take() | {"lr": rate})
            if place.step % settings.eval_every == 0:
                job.evaluate(place)
            if place.step % settings.save_every == 0:
                job.save(place, window)
        if place.step % settings.save_every:
            job.save(place, window)
        return Stop(place, reason, signals[0] if signals else 0)


def accumulate(trainee: Callable[[Any, Tensor], tuple[Tensor, Tensor]], parts: list[Part]) -> Tensor:
    """Add up the gradients of a batch's parts; returns its sums [kinds, (loss, correct, count)]."""
    counts = torch.stack([part.counts for part in parts]).sum(0)
    sums = None
    for part in parts:
        loss, of_part = trainee(part.batch, counts)
        loss.backward()  # type: ignore[no-untyped-call]
        sums = of_part if sums is None else sums + of_part
    assert sums is not None, "a batch has at least one part"
    return sums


def _stop_reason(settings: TrainSettings, place: Place, signals: list[int]) -> str:
    if signals:
        return "signal"
    if place.step >= settings.max_steps:
        return "steps"
    if settings.max_tokens is not None and place.tokens >= settings.max_tokens:
        return "tokens"
    if settings.max_minutes is not None and place.seconds >= 60 * settings.max_minutes:
        return "minutes"
    return ""


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Note signals that ask for an end, so that a run ends between two updates; a second one ends it at once."""
    caught: list[int] = []

    def note(number: int, _: Any) -> None:
        if caught:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        caught.append(number)

    previous = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class Window:
    """What was gathered since the last log line, on the device.

    It is part of a run's state: a line of the log must not depend on whether the run was interrupted before it.

    Args:
        state: what `state` returned, to go on from there.
        device: where to keep it.
    """

    def __init__(self, state: Mapping[str, Any] | None = None, device: torch.device | str = "cpu") -> None:
        self._sums: Tensor | None = None
        self._norm: Tensor | None = None
        self._unread: Update | None = None
        if state and state["sums"]:
            self._sums = torch.tensor(state["sums"], dtype=torch.float32, device=device)
            self._norm = torch.tensor(state["norm"], dtype=torch.float32, device=device)

    def add(self, before: Place, sums: Tensor, norm: Tensor) -> "Update | None":
        """Take in an update; returns one that was not finite: this, or on a GPU the one before."""
        known, self._unread = self._unread, Update(before, sums, norm)
        if not norm.is_cuda:
            known, self._unread = self._unread, None
        return self._take_in(known)

    def settle(self) -> "Update | None":
        """Read what has not been read yet; returns it if it was not finite."""
        known, self._unread = self._unread, None
        return self._take_in(known)

    def _take_in(self, update: "Update | None") -> "Update | None":
        if update is None:
            return None
        if not bool(update.norm.isfinite()):
            return update
        self._sums = update.sums if self._sums is None else self._sums + update.sums
        self._norm = update.norm
        return None

    def take(self) -> dict[str, Any]:
        """Return what was gathered, sums [kinds, (loss, correct, count)] and the last norm, and begin anew."""
        state = self.state()
        self._sums = self._norm = None
        return state

    def state(self) -> dict[str, Any]:
        """Return what was gathered, as JSON."""
        if self._sums is None or self._norm is None:
            return {"sums": [], "norm": 0.0}
        return {"sums": self._sums.tolist(), "norm": float(self._norm)}


class Update(NamedTuple):
    """An update that was made: from where, with which sums and norm."""

    before: Place
    sums: Tensor
    norm: Tensor


def _not_finite(update: Update, place: Place, job: Job, window: Window) -> Place:
    """Stop, or go on if that is allowed. No weight was changed."""
    place = place._replace(skipped=place.skipped + 1)
    losses = ", ".join(f"{loss:g}" for loss in update.sums[:, 0].tolist())
    what = f"step {update.before.step + 1}: losses {losses}, gradient norm {float(update.norm):g}"
    if job.settings.on_nonfinite == "skip" and place.skipped <= job.settings.max_skips:
        _log.warning("%s; the update is skipped, %d so far", what, place.skipped)
        return place
    if not update.norm.is_cuda:
        # From before the batch, so that whoever resumes meets it again. On a GPU a later update has been made by now.
        job.save(update.before, window)
    raise UserError(
        f"not finite at {what}, in the batch behind {update.before.data}. No weight was changed by it; lower optim.lr, "
        "or pass over such batches with train.on_nonfinite=skip"
    )
