"""What the machine makes of a run: tokens per second and memory, read when a line of the log is due.

The speed is that of the steps since the line before. A mean over the whole run would hide what happens now, and after a
resume it would be wrong: a run's clock may begin anew where its count of tokens goes on.
"""

import mmap
import sys
import time
from pathlib import Path

import torch

from bertworks.train.loop import Place

_STATM = Path("/proc/self/statm")


class Meter:
    """Reads speed and memory.

    Args:
        place: where the run goes on from.
        device: where it trains.
        seconds_before: of training in earlier starts, where the place's clock has begun anew.
    """

    def __init__(self, place: Place, device: torch.device, seconds_before: float = 0.0) -> None:
        self._before, self._device, self._seconds_before = place, device, seconds_before

    def read(self, place: Place) -> dict[str, float]:
        """Return a line of timing: the clock, seconds of training, tokens per second since the last call, memory."""
        seconds, tokens = place.seconds - self._before.seconds, place.tokens - self._before.tokens
        self._before = place
        return {
            "time": round(time.time(), 3),
            "seconds": self._seconds_before + place.seconds,
            "tokens_per_second": tokens / max(seconds, 1e-9),
            "memory_bytes": used_memory(self._device),
        }


def used_memory(device: torch.device) -> int:
    """Return the bytes in use: on a GPU the most that tensors ever took, elsewhere what of the process is in memory."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        return int(_STATM.read_text().split()[1]) * mmap.PAGESIZE
    except OSError:  # not Linux: the most it ever was, which macOS counts in bytes and others in units of 1,024
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
