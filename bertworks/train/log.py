"""What a run writes down step by step: one JSON object a line, append-only.

`metrics.jsonl` holds values that the same training gives again (losses, accuracies, learning rates); what depends on
the machine's mood (seconds, tokens per second, memory) goes to `timing.jsonl`. A run that goes on from a checkpoint
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

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write
from bertworks.json_files import parse_json

METRICS_FILE, TIMING_FILE = "metrics.jsonl", "timing.jsonl"
_LARGEST_STEP, _LARGEST = 1 << 53, 1e100  # sums and squares of such numbers are numbers still
_LONGEST_LINE = 1 << 20
_log = logging.getLogger(__name__)


class StepLog:
    """Appends lines to a file, after dropping those of steps that are to be made again; `close` it in the end.

    Args:
        path: the file; made if it is not there.
        last_step: the step of the checkpoint that the run goes on from; None for a run from the start.
    """

    def __init__(self, path: Path, last_step: int | None) -> None:
        self.path = path
        truncate_to(path, -1 if last_step is None else last_step)
        with _refusals_named(path):
            self._stream: IO[bytes] = open(path, "ab")  # noqa: SIM115 -- it stays open as long as the run

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write a line that another process can read at once; a value that is not finite becomes null."""
        assert "step" not in values, "the step is said once"
        finite = {name: _or_null(value) for name, value in values.items()}
        with _refusals_named(self.path):
            self._stream.write(json.dumps({"step": step, **finite}, allow_nan=False).encode() + b"\n")
            self._stream.flush()

    def sync(self) -> None:
        """Have the lines on disk; to be called before a checkpoint is saved, which counts on them."""
        with _refusals_named(self.path):
            self._stream.flush()  # of lines that a full disk had no room for
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Write nothing more."""
        with _refusals_named(self.path):
            self._stream.close()


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


@contextlib.contextmanager
def _refusals_named(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}") from error


def truncate_to(path: Path, step: int) -> None:
    """Keep the lines of steps up to one, as they are, and drop the others and what is no line of ours."""
    if not path.exists():
        return
    with atomic_write(path, "wb") as stream:
        stream.writelines(line for line, record in _lines(path) if record["step"] <= step)


def read_log(path: Path, needed: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return the records of a log, also of one that is being written; none if there is no file yet.

    A record has a step, and other numbers or None by their names; those without one of the `needed` are left out.
    """
    records = [record for _, record in _lines(path)] if path.exists() else []
    return [record for record in records if all(record.get(name) is not None for name in needed)]


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Give the whole lines of a log with what they say."""
    try:
        with open(path, "rb") as stream:
            for number, line in enumerate(iter(lambda: stream.readline(_LONGEST_LINE), b""), 1):
                record = _parse(line, path, number)
                if record is not None:
                    yield line, record
                elif line.endswith(b"\n"):
                    _log.warning("%s:%d is not a line of a log; passed over", path, number)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _parse(line: bytes, path: Path, number: int) -> dict[str, Any] | None:
    """Return what a line says; None if it is cut off or not of a log: a step, and names of numbers or null."""
    try:
        record = parse_json(line, str(path), line=number, strict=True)
    except CorruptFile:
        return None
    is_record = line.endswith(b"\n") and isinstance(record, dict) and type(record.get("step")) is int
    is_record = is_record and 0 <= record["step"] <= _LARGEST_STEP
    return record if is_record and all(map(_is_number_or_null, record.values())) else None


def _is_number_or_null(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= _LARGEST)


def training_seconds(timing: Sequence[Mapping[str, Any]]) -> float:
    """Return the seconds of training that lines of timing tell of; in old ones each start began at 0."""
    seconds = [line["seconds"] for line in timing if isinstance(line.get("seconds"), int | float)]
    ends = [now for now, then in itertools.pairwise(seconds) if then < now]
    return sum(ends) + (seconds[-1] if seconds else 0.0)
