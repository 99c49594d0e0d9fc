"""A run's scalars for TensorBoard: `RUN/tensorboard/events.out.tfevents.*`, written without the tensorboard package.

An event file is a row of records: the length of an event, its checksum, the event, its checksum. An event is a protobuf
message with a time, a step and some named numbers. The logs stay the truth: at every start the file is rewritten
from them, under a later name, and the one before it emptied. So steps that a run makes again after a kill are in it
once; a TensorBoard that is open meanwhile forgets them (by the START of a session), and continues with the new file. A
million steps logged every ten take 28 MB and 5 seconds to rewrite; a line costs 30 microseconds. The tensorboard
package would bring protobuf, grpc and werkzeug for this, and has no way to empty a file that is being read.

Times are the clock's, as TensorBoard wants them, so this folder is not part of what a run gives again to the bit. A
run does not end because of it: where it cannot be written, one warning is logged, and training continues.
"""

import logging
import os
import struct
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

from bertworks.models.tf_bundle import bytes_field, crc32c, fixed32_field, fixed64_field, masked, varint_field
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
        run: the run folder, whose logs have been cut to the checkpoint that the run resumes from.
    """

    def __init__(self, run: Path) -> None:
        self._folder = run / FOLDER
        self._stream: IO[bytes] | None = None
        try:
            self._folder.mkdir(exist_ok=True)
            # TensorBoard continues with the file whose name sorts after the one it is in.
            path = self._folder / f"{_FILE_PREFIX}{time.time():017.6f}.bertworks"
            self._stream = open(path, "wb")  # noqa: SIM115 -- it stays open as long as the run
            self._stream.write(b"".join(_logged(run)))
            self._stream.flush()
            for other in self._folder.glob(_FILE_PREFIX + "*"):
                if other == path:
                    continue
                if other.stat().st_size:  # a TensorBoard that is reading it looks for it once more
                    os.truncate(other, 0)
                else:
                    other.unlink()
        except OSError as error:
            self._give_up(error)

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
        """Stop recording."""
        stream, self._stream = self._stream, None
        if stream is not None:
            try:
                stream.close()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        _log.warning("%s cannot be written (%s); the run continues without it", self._folder, error.strerror)
        self._stream = None


def tag_of(name: str) -> str | None:
    """Return what TensorBoard calls a value of the logs; None for what is no curve."""
    if name in _NO_SCALARS:
        return None
    where, _, figure = name.partition("_")
    if where in ("holdout", "dev"):
        return f"{where}/{figure}"
    return f"train/{name}" if name.endswith(("loss", "accuracy")) else name


def _logged(run: Path) -> list[bytes]:
    """Return the records of a new file: its start, and all that the logs hold, by step, each with its own time."""
    timing = read_log(run / TIMING_FILE)
    times = {line["step"]: line["time"] for line in timing if isinstance(line.get("time"), int | float)}
    now = time.time()
    records = [
        _record(now, 0, bytes_field(3, _FILE_VERSION)),
        _record(now, 0, bytes_field(7, varint_field(1, _SESSION_START))),
    ]
    now = next(iter(times.values()), time.time())
    for line in sorted([*read_log(run / METRICS_FILE), *timing], key=lambda line: line["step"]):
        now = times.get(line["step"], now)
        records.append(_scalars(line["step"], line, now))
    return records


def _scalars(step: int, values: Mapping[str, Any], wall_time: float) -> bytes:
    """Return a record with the values that are numbers, or nothing where none is."""
    found = [
        bytes_field(1, tag + fixed32_field(2, int.from_bytes(struct.pack("<f", value), "little")))
        for name, value in values.items()
        # The comparison is false for a NaN too, as it should be.
        if (tag := _tag_field(name)) and isinstance(value, int | float) and abs(value) <= _LARGEST
    ]
    return _record(wall_time, step, bytes_field(5, b"".join(found))) if found else b""


@cache
def _tag_field(name: str) -> bytes:
    tag = tag_of(name)
    return bytes_field(1, tag.encode()) if tag else b""


def _record(wall_time: float, step: int, what: bytes) -> bytes:
    """Return an event with its length and the checksums of both."""
    time_bits = int.from_bytes(struct.pack("<d", wall_time), "little")
    event = fixed64_field(1, time_bits) + varint_field(2, step) + what
    length = struct.pack("<Q", len(event))
    checksums = (struct.pack("<I", masked(crc32c(part))) for part in (length, event))
    return length + next(checksums) + event + next(checksums)
