"""The logs of a run: one JSON object per step and line, append-only.

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
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from bertworks.errors import CorruptFile, UserError, counted
from bertworks.files import atomic_write, parse_json
from bertworks.models.folder import CONFIG_FILE, read_json
from bertworks.models.weights import WEIGHTS_FILE, read_header

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
