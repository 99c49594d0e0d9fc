"""The status of a run: its progress, last figures and speed, and when it will finish."""

import math
import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from bertworks.recipe import TrainSettings

if TYPE_CHECKING:
    from bertworks.train.log import Progress


_RECENT = 10  # lines of the log, over which the speed is measured
_PACE = 100  # lines over which the time left is estimated: longer, to include evaluations and saves
_MOST_POINTS = 512
_HELD_OUT = ("holdout_", "dev_")  # how the names of figures begin that are not of training


class About(NamedTuple):
    """What does not change during a run."""

    title: str  # names the run
    settings: TrainSettings  # when to stop
    kinds: tuple[str, ...]  # of predictions, as mlm and nsp
    flops_per_token: float | None = None  # of training, forward and backward; None: not known
    peak_flops: float | None = None  # of all devices together, a second; None: not known
    metrics: tuple[str, ...] = ()  # of a task, by their names in the log of the dev set; none in pre-training


class Status:
    """What is known of a run; it gets every line of the log.

    Args:
        about: what is trained.
        progress: where this start of the run resumes.
        history: the lines of metrics that there are already.
    """

    def __init__(self, about: About, progress: "Progress", history: Iterable[Mapping[str, Any]] = ()) -> None:
        self.about = about
        self.step, self.tokens, self.seconds = progress.step, progress.tokens, progress.seconds
        self.values: dict[str, Any] = {}  # the last line of training and timing
        self.holdout: dict[str, Any] = {}  # the last held-out figures, without that word
        self.losses = Trace()
        self.saved_step: int | None = progress.step or None  # of the last checkpoint; None: there is none yet
        self._started = time.monotonic()
        self._recent = deque([(progress.seconds, progress.tokens)], maxlen=_RECENT + 1)
        self._pace = deque([(self._started, self.share)], maxlen=_PACE + 1)
        for line in history:
            self.take_in(line["step"], line)

    def train(self, progress: "Progress", values: Mapping[str, Any]) -> None:
        """Take in a line of training and timing."""
        self.step, self.tokens, self.seconds = progress.step, progress.tokens, progress.seconds
        self._recent.append((progress.seconds, progress.tokens))
        self._pace.append((time.monotonic(), self.share))
        self.take_in(progress.step, values)

    def evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Take in the figures of an evaluation."""
        self.step = step
        self.take_in(step, values)

    def save(self, step: int) -> None:
        """Note a checkpoint."""
        self.step = self.saved_step = step

    def take_in(self, step: int, values: Mapping[str, Any]) -> None:
        """Take in a line of metrics, whatever it is of."""
        holdout = {
            name.removeprefix(prefix): value
            for prefix in _HELD_OUT
            for name, value in values.items()
            if name.startswith(prefix)
        }
        if holdout:
            self.holdout = holdout
            return
        self.values = {**values}
        loss = values.get("loss")
        if loss is not None and math.isfinite(loss):
            self.losses.add(step, loss)

    @property
    def shares(self) -> dict[str, float]:
        """How much of each limit is used up."""
        limits = self.about.settings
        used = {"steps": self.step / limits.max_steps}
        if limits.max_tokens is not None:
            used["tokens"] = self.tokens / limits.max_tokens
        if limits.max_minutes is not None:
            used["minutes"] = self.seconds / 60 / limits.max_minutes
        return used

    @property
    def share(self) -> float:
        """How much of the run is done, by the limit that it will meet first."""
        return min(1.0, max(self.shares.values()))

    @property
    def elapsed_s(self) -> float:
        """Seconds since this start of the run, evaluations and saves included."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Seconds until it has finished at the pace of the last lines; None: not known yet."""
        (first, share_then), (last, share_now) = self._pace[0], self._pace[-1]
        if share_now <= share_then:
            return None
        return (1 - self.share) * (last - first) / (share_now - share_then)

    @property
    def tokens_per_second(self) -> float | None:
        """The speed over the last lines; None: not known yet."""
        (first, tokens_then), (last, tokens_now) = self._recent[0], self._recent[-1]
        return (tokens_now - tokens_then) / (last - first) if last > first else None

    @property
    def model_flops_utilisation(self) -> float | None:
        """The share of the devices' arithmetic that the model's own needs take (MFU); None: not known."""
        about, speed = self.about, self.tokens_per_second
        if not about.flops_per_token or not about.peak_flops or not speed:
            return None
        return speed * about.flops_per_token / about.peak_flops


class Trace:
    """A curve of any length in bounded memory: whenever it is full, neighbours become their mean."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._waiting: list[tuple[float, float]] = []
        self._per_point = 1

    def add(self, x: float, y: float) -> None:
        """Take in the next point."""
        self._waiting.append((x, y))
        if len(self._waiting) < self._per_point:
            return

        def mean(points: list[tuple[float, float]]) -> tuple[float, float]:
            return sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points)

        self.points.append(mean(self._waiting))
        self._waiting = []
        if len(self.points) == _MOST_POINTS:
            self.points = [mean(self.points[index : index + 2]) for index in range(0, _MOST_POINTS, 2)]
            self._per_point *= 2
