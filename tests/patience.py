"""Waiting for what other processes and threads do."""

import time
from pathlib import Path


def wait_until(condition, limit_s=20.0):
    """Wait for something that comes at once where a machine is not busy."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "it did not come to pass"
        time.sleep(0.01)


def is_alive(pid):
    """A process that ended but that nobody waited for yet is a zombie, which is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
