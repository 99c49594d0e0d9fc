"""A run's scalars for TensorBoard: `RUN/tensorboard/events.out.tfevents.*`, written without the tensorboard package.

An event file is a row of records: the length of an event, its checksum, the event, its checksum. An event is a protobuf
message with a time, a step and some named numbers. The logs stay the truth: at every start the file is written anew
from them, under a later name, and the one before it emptied. So steps that a run makes again after a kill are in it
once; a TensorBoard that is open meanwhile is told to forget them (by the START of a session), and reads on in the new
file. A million steps logged every ten take 28 MB and 5 seconds to write anew; a line costs 30 microseconds.

Times are the clock's, as TensorBoard wants them, so this folder is no part of what a run gives again to the bit. Nor is
it worth a run: where it cannot be written that is told once, and training goes on.
"""

import logging
import os
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from bertworks.models.protobuf import bytes_field, crc32c, fixed32_field, fixed64_field, masked, varint_field
from bertworks.report.logs import METRICS_FILE, TIMING_FILE, read_log

FOLDER = "tensorboard"
_FILE_PREFIX = "events.out.tfevents."
_FILE_VERSION = b"brain.Event:2"
_SESSION_START = 1
_LARGEST = 3.4e38  # what a float of four bytes holds
_NO_SCALARS = ("step", "time", "seconds")
_log = logging.getLogger(__name__)


class EventFile:
    """The events of a run, with what its logs hold already; `close` it in the end.

    Args:
        run: the run folder, whose logs have been cut to the checkpoint that the run goes on from.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._stream: IO[bytes] | None = None
        try:
            self._open(run)
        except OSError as error:
            self._give_up(error)

    def _open(self, run: Path) -> None:
        self._folder.mkdir(exist_ok=True)
        # TensorBoard reads on in the file whose name sorts behind the one it is in.
        path = self._folder / f"{_FILE_PREFIX}{time.time():017.6f}.bertworks"
        self._stream = open(path, "wb")  # noqa: SIM115 -- it stays open as long as the run
        self._stream.write(_begin() + b"".join(_logged(run)))
        self._stream.flush()
        for other in self._folder.glob(_FILE_PREFIX + "*"):
            if other != path:
                _clear(other)

    def append(self, step: int, values: Mapping[str, Any]) -> None:
        """Write the scalars of a step, to be seen by whoever watches the file."""
        if self._stream is None:
            return
        try:
            self._stream.write(_scalars(step, values, time.time()))
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        """Write nothing more."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s cannot be written (%s); the run goes on without it", self._folder, error.strerror)
        self._stream = None


def _clear(path: Path) -> None:
    """Empty a file, or remove one that was emptied before: a TensorBoard that is reading it looks for it once more."""
    if path.stat().st_size:
        os.truncate(path, 0)
    else:
        path.unlink()


def tag_of(name: str) -> str | None:
    """Return what TensorBoard calls a value of the logs; None for what is no curve."""
    if name in _NO_SCALARS:
        return None
    where, _, figure = name.partition("_")
    if where in ("holdout", "dev"):
        return f"{where}/{figure}"
    return f"train/{name}" if name.endswith(("loss", "accuracy")) else name


def _begin() -> bytes:
    now = time.time()
    start = bytes_field(7, varint_field(1, _SESSION_START))
    return _record(_event(now, 0, bytes_field(3, _FILE_VERSION))) + _record(_event(now, 0, start))


def _logged(run: Path) -> list[bytes]:
    """Return the records of all that the logs hold, in the order of steps, each with the time that it had."""
    timing = read_log(run / TIMING_FILE)
    times = {line["step"]: line["time"] for line in timing if isinstance(line.get("time"), int | float)}
    lines = sorted([*read_log(run / METRICS_FILE), *timing], key=lambda line: line["step"])
    now = next(iter(times.values()), time.time())
    records = []
    for line in lines:
        now = times.get(line["step"], now)
        records.append(_scalars(line["step"], line, now))
    return records


def _scalars(step: int, values: Mapping[str, Any], wall_time: float) -> bytes:
    """Return a record with the values that are numbers, or nothing where none is."""
    found = [
        bytes_field(1, tag + fixed32_field(2, _bits("<f", value)))
        for name, value in values.items()
        # The comparison is false for a NaN too, as it should be.
        if (tag := _tag_field(name)) and isinstance(value, int | float) and abs(value) <= _LARGEST
    ]
    return _record(_event(wall_time, step, bytes_field(5, b"".join(found)))) if found else b""


@cache
def _tag_field(name: str) -> bytes:
    tag = tag_of(name)
    return bytes_field(1, tag.encode()) if tag else b""


def _event(wall_time: float, step: int, what: bytes) -> bytes:
    return fixed64_field(1, _bits("<d", wall_time)) + varint_field(2, step) + what


def _bits(format: str, value: float) -> int:
    return int.from_bytes(struct.pack(format, value), "little")


def _record(event: bytes) -> bytes:
    length = struct.pack("<Q", len(event))
    checksums = (struct.pack("<I", masked(crc32c(part))) for part in (length, event))
    return length + next(checksums) + event + next(checksums)
