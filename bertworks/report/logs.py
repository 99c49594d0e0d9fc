"""The logs of a run, one JSON object per step and line, append-only; and the status that is computed from them.

`metrics.jsonl` holds values that the same training gives again (losses, accuracies, learning rates); what depends on
the machine's load (seconds, tokens per second, memory) goes to `timing.jsonl`. A run that resumes from a checkpoint
drops the lines of later steps, which it is about to write again, and the half line that a kill may have left; so the
metrics of a killed run end up byte for byte those of a run that was never killed.
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

KINDS = {"mlm": "MLM", "nsp": "NSP", "lm": "LM", "bilm": "biLM"}  # of predictions, and their names for people
IN_PERCENT = "answer"  # the kind of task whose metrics are percent already
_LARGEST_STEP, _LARGEST = 1 << 53, 1e100  # sums and squares of such numbers are numbers still
_LONGEST_LINE = 1 << 20
_BAD_LINES_NAMED = 3
_log = logging.getLogger(__name__)

Line = Mapping[str, Any]


class StepLog:
    """Appends lines to a file, after dropping those of steps that are to be made again; `close` it in the end.

    Args:
        path: the file; made if it is not there.
        last_step: the step of the checkpoint that the run resumes from; None for a run from the start.
    """

    def __init__(self, path: Path, last_step: int | None) -> None:
        self.path = path
        truncate_to(path, -1 if last_step is None else last_step)
        with _refusals_named(path):
            self._stream: IO[bytes] = open(path, "ab")  # noqa: SIM115 -- it stays open as long as the run

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write a line that another process can read at once; a value that is not finite becomes null."""
        assert "step" not in values, "the step is given once"
        line = {"step": step} | {
            name: None if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
        }
        with _refusals_named(self.path):
            self._stream.write(json.dumps(line, allow_nan=False).encode() + b"\n")
            self._stream.flush()

    def sync(self) -> None:
        """Have the lines on disk; to be called before a checkpoint is saved, which counts on them."""
        with _refusals_named(self.path):
            self._stream.flush()  # of lines that a full disk had no room for
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Stop recording."""
        with _refusals_named(self.path):
            self._stream.close()


@contextlib.contextmanager
def _refusals_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def truncate_to(path: Path, step: int) -> None:
    """Keep the lines of steps up to one, as they are, and drop the others and what is no line of ours."""
    if path.exists():
        with atomic_write(path, "wb") as stream:
            stream.writelines(line for line, record in _lines(path) if record["step"] <= step)


def read_log(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a log, also of one that is being written; none if there is no file yet.

    A record has a step, and other numbers or None by their names; those without one of the `needed` are left out.
    """
    records = [record for _, record in _lines(path)] if path.exists() else []
    return [record for record in records if all(record.get(name) is not None for name in needed)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Yield the whole lines of a log with what they hold: a step, and names of numbers or null."""
    num_bad = 0
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), 1):
                if not line.endswith(b"\n"):  # cut off
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
    """Return the lines of metrics that are of training, and not of an evaluation."""
    return [line for line in metrics if line.get("lr") is not None and line.get("tokens") is not None]


def points_of(lines: Sequence[Line], name: str) -> list[tuple[float, float]]:
    """Return a value of the logs by step, as far as it was finite."""
    return [(line["step"], line[name]) for line in lines if isinstance(line.get(name), int | float)]


def training_seconds(timing: Sequence[Line]) -> float:
    """Return the seconds of training according to the lines of timing; in old ones each start began at 0."""
    seconds = [line["seconds"] for line in timing if isinstance(line.get("seconds"), int | float)]
    ends = [now for now, then in itertools.pairwise(seconds) if then < now]
    return float(sum(ends) + (seconds[-1] if seconds else 0.0))


def duration(seconds: float) -> str:
    """Return a time as text."""
    hours, rest = divmod(round(seconds), 3600)
    return f"{hours:,} h {rest // 60:02} min" if hours else f"{rest // 60} min {rest % 60:02} s"


def newest_model(folder: Path) -> tuple[Mapping[str, Any] | None, int | None]:
    """Return the configuration and the number of parameters of a run's model, or of its last checkpoint."""
    checkpoints = sorted((folder / CHECKPOINTS).glob("step-*"), key=lambda path: (len(path.name), path.name))
    for model in (folder / MODEL, *reversed(checkpoints)):
        if (model / CONFIG_FILE).is_file() and (model / WEIGHTS_FILE).is_file():
            shapes = (entry.shape for entry in read_header(model / WEIGHTS_FILE).values())
            return read_json(model / CONFIG_FILE), sum(math.prod(shape) for shape in shapes)
    return None, None


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
