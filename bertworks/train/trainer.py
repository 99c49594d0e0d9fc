"""The one training loop. `train` is the order of things; everything else here is a line of it, spelt out.

An update: take the rank's parts of the next global batch, add up their gradients, measure their norm, let the optimizer
step. Then log, evaluate, save. What is not finite changes no weight: the optimizer sees to that on the device, and the
loop stops, or goes on if told to, when it reads the norm. On a GPU it reads the norm of an update while the next one is
under way, for to wait for it would leave the device idle. All ranks have the same norm and the same clock, so all
decide alike.
"""

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.recipe import TrainSettings
from bertworks.train.distributed import Ranks
from bertworks.train.objectives import moved
from bertworks.train.optim import Optimizer

# The gradients of all ranks, added up while the backward pass still goes on.
#
# Weights are put into buckets from the last one to the first, as the backward pass comes to them. When the last of
# a batch's slices has given a bucket its gradients, their sum over all ranks is begun, and the next bucket is
# computed meanwhile. Which weights share a bucket is fixed by their order alone, and buckets are sent in one order:
# so each number is added up in the same order every time, also in a run that was resumed. torch's own wrapper sorts
# its buckets anew after a first step, which would cost that.
#
# That overlaps in fp32. A compiled step gives all gradients at its end, and in half precision those of the copies
# come to the weights last, as the copies were made first: there is nothing left then to go on meanwhile. Weights
# that are spread over ranks are none of this file's business: FSDP2 adds up their gradients, and overlaps in any
# case.


_BUCKET_NUMBERS = 1 << 24  # sent as one message: many small ones wait for each other, one large one overlaps nothing


class GradientSums:
    """Adds up the gradients of weights over ranks; `close` it in the end.

    Args:
        ranks: this one and the others.
        weights: those that may have gradients, in an order that is the same on all ranks.
    """

    def __init__(self, ranks: Ranks, weights: Sequence[Tensor]) -> None:
        self._ranks = ranks
        is_ours = ranks.world_size > 1 and not any(hasattr(weight, "full_tensor") for weight in weights)
        self._buckets = list(_buckets(reversed(weights))) if is_ours else []
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(self._buckets)
            for weight in bucket
        ]
        self._is_last_slice = False
        self._num_missing: list[int] = []
        self._sent: list[Callable[[], None]] = []
        self._own: list[Tensor] = []

    def begin(self) -> None:
        """Say that the next backward pass is the last of a batch."""
        self._num_missing = [len(bucket) for bucket in self._buckets]
        self._sent, self._own, self._is_last_slice = [], [], True

    def _take(self, number: int, _: Tensor) -> None:
        """Note that a weight of a bucket has its gradient, and send what is complete."""
        if not self._is_last_slice:
            return
        self._num_missing[number] -= 1
        while len(self._sent) < len(self._buckets) and self._num_missing[len(self._sent)] == 0:
            self._send(self._buckets[len(self._sent)])

    def _send(self, bucket: list[Tensor]) -> None:
        grads = {weight: weight.grad for weight in bucket if weight.grad is not None}
        flat = torch.cat([bucket[0].new_zeros(0), *(grad.reshape(-1) for grad in grads.values())])
        for weight, part in zip(grads, torch.split(flat, [weight.numel() for weight in grads]), strict=True):
            weight.grad = part.view_as(weight)  # the bucket is the gradient now: no copy back, no second one kept
        self._own.append(flat.sum())
        self._sent.append(self._ranks.add_up(flat))

    def finish(self, sums: Tensor) -> Tensor:
        """Wait until all gradients, and the batch's sums, are those of all ranks.

        Returns a number that is finite if this rank's own were.
        """
        self._is_last_slice = False
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket)
        own = torch.stack([sums.sum(), *self._own]).sum()
        for wait in [*self._sent, self._ranks.add_up(sums)]:
            wait()
        return own

    def close(self) -> None:
        """Listen to the weights no longer."""
        for hook in self._hooks:
            hook.remove()


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > _BUCKET_NUMBERS:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_log = logging.getLogger(__name__)


class Place(NamedTuple):
    """How far a run is; what a checkpoint remembers of it."""

    step: int = 0  # updates made or skipped
    tokens: int = 0
    data: Any = None  # the state of the data behind the last batch
    skipped: int = 0  # updates left out, because something was not finite
    seconds: float = 0.0  # of training, over all starts of a run that goes by the clock, else of this one

    def behind(self, num_tokens: int, data: Any) -> "Place":
        """Return the place behind one more batch."""
        return self._replace(step=self.step + 1, tokens=self.tokens + num_tokens, data=data)


class Part(NamedTuple):
    """A part of a batch, on the device, and what it counts for."""

    batch: Any
    counts: list[float]  # of each kind of prediction
    num_tokens: int
    seed: int | None = None  # of the device's generator, where dropout draws from it, whichever rank computes the part
    num_random: float | None = None  # pairs whose second text is from elsewhere; None: there are no pairs


class Job(NamedTuple):
    """What the loop works with."""

    compute: Callable[[Any, Tensor], Tensor]  # adds the gradients of a part to the weights', and returns its sums
    optimizer: Optimizer
    ranks: Ranks
    batches: Iterator[tuple[list[Part], Any]]  # the rank's parts of each batch and the state of the data behind it
    learning_rate: Callable[[Place], float]
    settings: TrainSettings
    report: Callable[[Place, Mapping[str, Any]], None]
    evaluates_at: Callable[[Place], bool]
    evaluate: Callable[[Place], None]
    save: Callable[[Place, "Window"], None]
    is_enough: Callable[[], bool] = lambda: False  # whether the evaluations say that more is of no use


class Stop(NamedTuple):
    """Where a run ended, and why."""

    place: Place
    reason: str  # steps, tokens, minutes, early, signal
    signal: int = 0


def train(job: Job, place: Place, window: "Window") -> Stop:
    """Train from a place on until a limit or a signal says stop; the last state is saved."""
    settings = job.settings
    norm: Tensor | float = 0.0
    saved = Place(seconds=place.seconds)  # in this start: one before may have been killed while it deleted old ones
    with caught_signals() as signals, closing(GradientSums(job.ranks, job.optimizer.weights())) as gradients:
        while not (reason := _stop_reason(job, place, signals)):
            if place.seconds - saved.seconds >= 60 * settings.save_minutes:
                saved = place = _saved(job, place, window)
            started, random = time.monotonic(), torch.get_rng_state()
            parts, data = next(job.batches)
            num_tokens, num_random, *counts = job.ranks.total(_counts(parts))
            pairs = None if parts[0].num_random is None else num_random
            sums = accumulate(job.compute, parts, counts, before_last=gradients.begin)
            own = gradients.finish(sums)
            # Not finite either where only a loss is not, as when a sum overflows.
            norm = job.optimizer.gradient_norm() + 0 * sums[:, 0].sum() + _nothing_or_nan(norm, settings)
            rate = job.learning_rate(place)
            job.optimizer.step(rate, norm)
            job.optimizer.clear_gradients()
            before, place = place, place.behind(int(num_tokens), data)
            if bad := window.add(Update(before, sums, norm, own, random, pairs)):
                place = _not_finite(bad, place, job, window)
            place = place._replace(seconds=job.ranks.greatest(place.seconds + time.monotonic() - started))
            is_measured = job.evaluates_at(place) or is_through(settings, place)
            if place.step % settings.log_every == 0:
                job.report(place, window.take() | {"lr": rate})
            elif is_measured and place.step < settings.log_every:  # else a short run would tell no loss at all
                place = _settled(job, place, window)
                job.report(place, window.state() | {"lr": rate})
            # The end is measured before it is saved: a run that is resumed there has its last figures already.
            if is_measured:
                job.evaluate(place)
            if place.step % settings.save_every == 0:
                saved = place = _saved(job, place, window)
        if place.step != saved.step:
            place = _saved(job, place, window)
        return Stop(place, reason, signals[0] if signals else 0)


def _saved(job: Job, place: Place, window: "Window") -> Place:
    """Save, after reading the last update's norm: a checkpoint must not be ahead of what is known."""
    place = _settled(job, place, window)
    job.save(place, window)
    return place


def _settled(job: Job, place: Place, window: "Window") -> Place:
    """Read the last update's norm, which on a GPU is read late."""
    bad = window.settle()
    return _not_finite(bad, place, job, window) if bad else place


def _counts(parts: list[Part]) -> list[float]:
    """Return the number of tokens, of pairs with a random text and of each kind of prediction."""
    counts = [[part.num_tokens, part.num_random or 0.0, *part.counts] for part in parts]
    return [sum(column) for column in zip(*counts, strict=True)]


def accumulate(
    compute: Callable[[Any, Tensor], Tensor],
    parts: list[Part],
    counts: list[float],
    before_last: Callable[[], None] = lambda: None,
) -> Tensor:
    """Add up the gradients of a rank's parts; returns their sums [kinds, (loss, correct, count)].

    `counts` are those of the whole batch, over all ranks; `before_last` is called when the last part has its turn.
    """
    sums, on_device = None, moved(torch.tensor(counts), parts[0].batch.tokens.token_ids.device)
    for number, part in enumerate(parts, 1):
        if number == len(parts):
            before_last()
        if part.seed is not None:
            torch.default_generator.manual_seed(part.seed)
            if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                torch.cuda.manual_seed(part.seed)
        of_part = compute(part.batch, on_device)
        sums = of_part if sums is None else sums + of_part
    assert sums is not None, "a batch has at least one part"
    return sums


def _nothing_or_nan(last_norm: Tensor | float, settings: TrainSettings) -> Tensor | float:
    """Return 0, or NaN where a run is to stop for its last norm: then no update is made until the loop has read it.

    So what is saved then is the state before the batch, also on a GPU, where the loop reads the norm one update later.
    """
    return 0.0 if settings.on_nonfinite == "skip" else 0.0 * last_norm


def _stop_reason(job: Job, place: Place, signals: list[int]) -> str:
    """Return why to stop, or nothing; a signal to one rank is one to all."""
    told = {"early": job.is_enough(), "signal": job.ranks.greatest(len(signals)) > 0}
    job.ranks.met()
    reached = _reached(job.settings, place) | told
    return ["", *(reason for reason, is_reached in reached.items() if is_reached)][-1]


def is_through(settings: TrainSettings, place: Place) -> bool:
    """Tell whether a run has reached one of its limits."""
    return any(_reached(settings, place).values())


def _reached(settings: TrainSettings, place: Place) -> dict[str, bool]:
    """Return which limits a run has reached."""
    return {
        "steps": place.step >= settings.max_steps,
        "tokens": settings.max_tokens is not None and place.tokens >= settings.max_tokens,
        "minutes": settings.max_minutes is not None and place.seconds >= 60 * settings.max_minutes,
    }


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Note signals that ask for an end, so that a run ends between two updates; a second one ends it at once.

    Only the main thread may ask for them; a run in another one ends as its process does.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

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
        self._num_random: float | None = None
        self._unread: Update | None = None
        if state and state["sums"]:
            self._sums = torch.tensor(state["sums"], dtype=torch.float32, device=device)
            self._norm = torch.tensor(state["norm"], dtype=torch.float32, device=device)
            self._num_random = state.get("num_random")  # in checkpoints of earlier versions it is not known

    def add(self, update: "Update") -> "Update | None":
        """Take in an update; returns one that was not finite: this, or on a GPU the one before."""
        known, self._unread = self._unread, update
        if not update.norm.is_cuda:
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
        if self._sums is None:
            self._num_random = update.num_random
        elif self._num_random is not None and update.num_random is not None:
            self._num_random += update.num_random
        self._sums = update.sums if self._sums is None else self._sums + update.sums
        self._norm = update.norm
        return None

    def take(self) -> dict[str, Any]:
        """Return what was gathered, sums [kinds, (loss, correct, count)] and the last norm, and begin anew."""
        state = self.state()
        self._sums = self._norm = self._num_random = None
        return state

    def state(self) -> dict[str, Any]:
        """Return what was gathered, as JSON."""
        if self._sums is None or self._norm is None:
            return {"sums": [], "norm": 0.0}
        pairs = {} if self._num_random is None else {"num_random": self._num_random}
        return {"sums": self._sums.tolist(), "norm": float(self._norm), **pairs}


class Update(NamedTuple):
    """An update that was made: from where, with which sums and norm."""

    before: Place
    sums: Tensor
    norm: Tensor
    own: Tensor  # finite, if what this rank brought to it was
    random: Tensor  # the state of the CPU's random numbers before it
    num_random: float | None = None  # as in its parts, together


def _not_finite(update: Update, place: Place, job: Job, window: Window) -> Place:
    """Stop, or go on if that is allowed. No weight was changed."""
    place = place._replace(skipped=place.skipped + 1)
    losses = ", ".join(f"{loss:g}" for loss in update.sums[:, 0].tolist())
    where = f"step {update.before.step + 1}{_culprits(update, job.ranks)}"
    what = f"{where}: losses {losses}, gradient norm {float(update.norm):g}"
    if job.settings.on_nonfinite == "skip" and place.skipped <= job.settings.max_skips:
        if job.ranks.is_first:
            _log.warning("%s; the update is skipped, %d so far", what, place.skipped)
        return place
    if job.settings.on_nonfinite == "stop" or not update.norm.is_cuda:
        # From before the batch, dropout included, so that whoever resumes meets it again.
        torch.set_rng_state(update.random)
        job.save(update.before, window)
    if not job.ranks.is_first:
        raise UserError(f"rank {job.ranks.rank} stops too: not finite at {where}")
    batch = "the first batch" if update.before.data is None else f"the batch behind {update.before.data}"
    raise UserError(
        f"not finite at {what}, in {batch}. No weight was changed by it; --resume meets "
        "it again. Lower optim.lr, or pass over such batches with train.on_nonfinite=skip"
    )


def _culprits(update: Update, ranks: Ranks) -> str:
    """Say on which of several ranks it was; FSDP2 does not show a rank's own gradients, only its losses."""
    if ranks.world_size == 1:
        return ""
    own = ranks.gathered(update.own.reshape(1).cpu())
    found = [str(rank) for rank, number in enumerate(own) if not number.isfinite()]
    return f" on rank {' and '.join(found)}" if found else " on a rank whose losses are finite"
