"""What a run costs: the minutes for which it holds its devices, over all of its starts.

A checkpoint must not depend on the clock, for a run that goes on ends with the same bytes. So time is kept beside it:
`starts.jsonl` has a line whenever the logs have one, with the seconds of the present start so far. Work that a kill
undid was paid for all the same, and counts.
"""

import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.files import atomic_write
from bertworks.interop.about import read_about
from bertworks.interop.folder import OWN_FILE
from bertworks.train.log import StepLog, read_log
from bertworks.train.run_folder import MODEL, ModelWriter, publish_model

if TYPE_CHECKING:
    import torch

STARTS_FILE = "starts.jsonl"


class Clock:
    """Counts the device minutes of a run from now on, and those of its earlier starts.

    Args:
        run: the run folder; it is written to only when the first line is due, and by then held.
        device: where it runs.
        num_devices: that are held.
        writes: whether this process writes them down; one of several ranks does.
    """

    def __init__(self, run: Path, device: "torch.device", num_devices: int = 1, *, writes: bool = True) -> None:
        self._path, self._device, self._num_devices, self._writes = run / STARTS_FILE, device, num_devices, writes
        earlier = read_starts(run)
        self._earlier = device_minutes(earlier)
        self._start = 1 + max((line["start"] for line in earlier), default=0)
        self._log: StepLog | None = None
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        """All of them so far."""
        return self._earlier + (time.monotonic() - self._began) * self._num_devices / 60

    def cost(self) -> dict[str, Any]:
        """Return what a model folder says of it."""
        return {"minutes": round(self.minutes, 3), "device": device_name(self._device, self._num_devices)}

    def note(self, step: int) -> None:
        """Write down what the present start has taken so far."""
        if not self._writes:
            return
        self._log = self._log or StepLog(self._path, sys.maxsize)
        seconds = round(time.monotonic() - self._began, 3)
        self._log.append(step, {"start": self._start, "seconds": seconds, "devices": self._num_devices})

    def close(self) -> None:
        """Write nothing more."""
        if self._log:
            self._log.close()


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Return the lines of `starts.jsonl`."""
    return read_log(run / STARTS_FILE, ("start", "seconds", "devices"))


def device_minutes(lines: Sequence[dict[str, Any]]) -> float:
    """Return the minutes that the lines of `starts.jsonl` tell: of each start the last."""
    by_start = {line["start"]: float(line["seconds"] * line["devices"]) for line in lines}
    return sum(by_start.values()) / 60


def state_cost(run: Path, cost: Mapping[str, Any]) -> None:
    """Have the model of a run say what the run has cost; nothing where none has been published yet.

    A model folder is whole at any instant, so this is a new one; its files are links to those of the old, of which only
    the manifest is replaced.
    """
    model = run / MODEL
    if not (model / OWN_FILE).is_file():
        return

    def write(folder: Path) -> None:
        for path in model.iterdir():
            if path.name != OWN_FILE:
                _link_or_copy(path, folder / path.name)
        about = read_about(model)
        about["provenance"] = {**(about.get("provenance") or {}), **cost}
        with atomic_write(folder / OWN_FILE) as stream:
            json.dump(about, stream, ensure_ascii=False, indent=2)

    publish_model(run, ModelWriter(write, num_bytes=1 << 20))


def _link_or_copy(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:  # not all systems have links
        shutil.copyfile(path, target)


def device_name(device: "torch.device", num_devices: int) -> str:
    """Name the devices of a run for a person."""
    import torch  # here, for a report needs only the minutes

    if device.type == "cpu":
        threads = torch.get_num_threads()
        name = f"cpu, {threads} thread{'s' * (threads > 1)}"
    else:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{num_devices} x {name}" if num_devices > 1 else name
