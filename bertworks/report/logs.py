"""The logs of a run, append-only files with one JSON object per line; and the status that is computed from them.

`metrics.jsonl` has reproducible values (losses, accuracies, learning rates); values that depend on the machine's load
(seconds, tokens per second, memory) are in `timing.jsonl`. A run that resumes from a checkpoint drops the lines of
later steps, because it will write them again, and an incomplete line that a kill may have left. So the final metrics of
a killed run are byte for byte those of a run that was never killed.
"""

import contextlib
import itertools
import json
import logging
import math
import os
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from bertworks.errors import CorruptFile, UserError, counted
from bertworks.files import atomic_write, parse_json
from bertworks.models.folder import CONFIG_FILE, read_json
from bertworks.models.weights import WEIGHTS_FILE, read_header
from bertworks.recipe import TrainSettings

# A run folder.
RECIPE_FILE = "recipe.toml"
CHECKPOINTS, MODEL = "checkpoints", "model"
METRICS_FILE, TIMING_FILE = "metrics.jsonl", "timing.jsonl"

KINDS = {"mlm": "MLM", "nsp": "NSP", "lm": "LM", "bilm": "biLM"}  # of predictions, and their display names
IN_PERCENT = "answer"  # the kind of task whose metrics are already percentages
_LARGEST_STEP, _LARGEST = 1 << 53, 1e100  # sums and squares of such numbers are still finite
_LONGEST_LINE = 1 << 20
_BAD_LINES_NAMED = 3
_log = logging.getLogger(__name__)

Line = Mapping[str, Any]


class StepLog:
    """Appends lines to a file, after dropping those of steps that will be run again; must be closed at the end.

    Args:
        path: the file; created if it does not exist.
        last_step: the step of the checkpoint that the run resumes from; None for a run from the start.
    """

    def __init__(self, path: Path, last_step: int | None) -> None:
        self.path = path
        truncate_to(path, -1 if last_step is None else last_step)
        with _refusals_named(path):
            self._stream: IO[bytes] = open(path, "ab")  # noqa: SIM115 -- it stays open as long as the run

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write a line, which other processes can read at once; a value that is not finite becomes null."""
        assert "step" not in values, "the step is given once"
        line = {"step": step} | {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with _refusals_named(self.path):
            self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._stream.flush()

    def sync(self) -> None:
        """Sync the lines to disk; to be called before a checkpoint is saved, because resuming needs them."""
        with _refusals_named(self.path):
            self._stream.flush()  # lines that a full disk could not take before
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file."""
        with _refusals_named(self.path):
            self._stream.close()


@contextlib.contextmanager
def _refusals_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def truncate_to(path: Path, step: int) -> None:
    """Keep the lines up to a step unchanged; drop later ones and lines that are not log records."""
    if path.exists():
        with atomic_write(path, "wb") as stream:
            stream.writelines(line for line, record in _lines(path) if record["step"] <= step)


def read_log(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a log, even while it is being written; an empty list if there is no file yet.

    A record has a step, and other values by name, numbers or None; records that lack one of the `needed` are left out.
    """
    records = [record for _, record in _lines(path)] if path.exists() else []
    return [record for record in records if all(record.get(name) is not None for name in needed)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the complete lines of a log with their records: a step, and other values, numbers or null."""
    num_bad = 0
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), 1):
                if not line.endswith(b"\n"):  # incomplete
                    continue
                try:
                    record = parse_json(line, str(path), line=number, strict=True)
                except CorruptFile:
                    record = None
                is_record = isinstance(record, dict) and type(record.get("step")) is int
                if (
                    is_record
                    and 0 <= record["step"] <= _LARGEST_STEP
                    and all(
                        value is None or (type(value) in (int, float) and abs(value) <= _LARGEST)
                        for value in record.values()
                    )
                ):
                    yield line, record
                else:
                    num_bad += 1
                    if num_bad <= _BAD_LINES_NAMED:
                        _log.warning("%s:%d is not a line of a log; skipped", path, number)
        if num_bad > _BAD_LINES_NAMED:
            _log.warning("%s: skipped %s", path, counted(num_bad - _BAD_LINES_NAMED, "more such line"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def training_lines(metrics: Sequence[Line]) -> list[Line]:
    """Return the lines of metrics from training, not those from evaluations."""
    return [line for line in metrics if line.get("lr") is not None and line.get("tokens") is not None]


def points_of(lines: Sequence[Line], name: str) -> list[tuple[float, float]]:
    """Return the points (step, value) of a value in the logs; values that were not finite are left out."""
    return [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]


def training_seconds(timing: Sequence[Line]) -> float:
    """Return the seconds of training from the lines of timing; in old logs the seconds restart at 0 on resume."""
    seconds = [line["seconds"] for line in timing if isinstance(line.get("seconds"), int | float)]
    ends = [now for now, then in itertools.pairwise(seconds) if then < now]
    return float(sum(ends) + (seconds[-1] if seconds else 0.0))


def duration(seconds: float) -> str:
    """Return a time as text."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:,} h {rest // 60:02} min" if hours else f"{rest // 60} min {rest % 60:02} s"


def newest_model(folder: Path) -> tuple[Mapping[str, Any] | None, int | None]:
    """Return the configuration and the number of parameters of a run's final model or last checkpoint."""
    checkpoints = sorted((folder / CHECKPOINTS).glob("step-*"), key=lambda path: (len(path.name), path.name))
    for model in (folder / MODEL, *reversed(checkpoints)):
        if (model / CONFIG_FILE).is_file() and (model / WEIGHTS_FILE).is_file():
            shapes = (entry.shape for entry in read_header(model / WEIGHTS_FILE).values())
            return read_json(model / CONFIG_FILE), sum(math.prod(shape) for shape in shapes)
    return None, None


if TYPE_CHECKING:
    from bertworks.train.log import Progress


_RECENT = 10  # the speed is measured over this many lines of the log
_PACE = 100  # the time left is estimated over this many lines, more, to include evaluations and saves
_MOST_POINTS = 512
_HELD_OUT = ("holdout_", "dev_")  # prefixes of the names of metrics that are not from training


class About(NamedTuple):
    """Facts that do not change during a run."""

    title: str  # the name of the run
    settings: TrainSettings  # when to stop
    kinds: tuple[str, ...]  # of predictions, as mlm and nsp
    flops_per_token: float | None = None  # in training, forward and backward; None: unknown
    peak_flops: float | None = None  # of all devices together, per second; None: unknown
    metrics: tuple[str, ...] = ()  # of a task, by their names in the log for the dev set; none in pre-training


class Status:
    """The status of a run, computed from every line of its log.

    Args:
        about: what is trained.
        progress: the progress from which the run starts or resumes.
        history: the existing lines of metrics.
    """

    def __init__(self, about: About, progress: "Progress", history: Iterable[Mapping[str, Any]] = ()) -> None:
        self.about = about
        self.step, self.tokens, self.seconds = progress.step, progress.tokens, progress.seconds
        self.values: dict[str, Any] = {}  # the last line of training and timing
        self.holdout: dict[str, Any] = {}  # the last held-out metrics, without the prefix of their names
        self.losses = Trace()
        self.saved_step: int | None = progress.step or None  # the step of the last checkpoint; None: there is none yet
        self._started = time.monotonic()
        self._recent = deque([(progress.seconds, progress.tokens)], maxlen=_RECENT + 1)
        self._pace = deque([(self._started, self.share)], maxlen=_PACE + 1)
        for line in history:
            self.take_in(line["step"], line)

    def train(self, progress: "Progress", values: Mapping[str, Any]) -> None:
        """Record a line of training and timing."""
        self.step, self.tokens, self.seconds = progress.step, progress.tokens, progress.seconds
        self._recent.append((progress.seconds, progress.tokens))
        self._pace.append((time.monotonic(), self.share))
        self.take_in(progress.step, values)

    def evaluate(self, step: int, values: Mapping[str, Any]) -> None:
        """Record the metrics of an evaluation."""
        self.step = step
        self.take_in(step, values)

    def save(self, step: int) -> None:
        """Record a checkpoint."""
        self.step = self.saved_step = step

    def take_in(self, step: int, values: Mapping[str, Any]) -> None:
        """Record a line of metrics, of training or of an evaluation."""
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
        """For each limit of the run, the share that is used up."""
        limits = self.about.settings
        used = {"steps": self.step / limits.max_steps}
        if limits.max_tokens is not None:
            used["tokens"] = self.tokens / limits.max_tokens
        if limits.max_minutes is not None:
            used["minutes"] = self.seconds / 60 / limits.max_minutes
        return used

    @property
    def share(self) -> float:
        """The share of the run that is done, by the limit that it will reach first."""
        return min(1.0, max(self.shares.values()))

    @property
    def elapsed_s(self) -> float:
        """Seconds since the run was started or resumed, including evaluations and saves."""
        return time.monotonic() - self._started

    @property
    def seconds_left(self) -> float | None:
        """Estimated seconds until the end, at the speed of the last lines; None: not known yet."""
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
        """Model FLOPs utilisation (MFU): the model's operations per second as a share of the peak; None: unknown."""
        about, speed = self.about, self.tokens_per_second
        if not about.flops_per_token or not about.peak_flops or not speed:
            return None
        return speed * about.flops_per_token / about.peak_flops


class Trace:
    """A curve of any length in bounded memory: when it is full, each two neighbours are replaced by their mean."""

    def __init__(self) -> None:
        self.points: list[tuple[float, float]] = []
        self._waiting: list[tuple[float, float]] = []
        self._per_point = 1

    def add(self, x: float, y: float) -> None:
        """Add the next point."""
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
