"""A pseudo-terminal in place of the error stream, for tests of what is drawn there."""

import os
import pty
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

ERASE_LINE = "\x1b[2K"
LINE_UP = "\x1b[1A"
CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch, width: int = 100) -> Iterator[list[str]]:
    """Make the error stream a pseudo-terminal; what was written to it is in the list when the block ends."""
    master, slave = pty.openpty()
    chunks: list[bytes] = []
    written: list[str] = []

    def read() -> None:
        while chunk := read_some(master):
            chunks.append(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with open(slave, "w", encoding="utf-8") as stream, monkeypatch.context() as patches:
        patches.setattr(sys, "stderr", stream)
        for name, value in {"TERM": "xterm-256color", "COLUMNS": str(width)}.items():
            patches.setenv(name, value)
        for name in ("NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patches.delenv(name, raising=False)
        yield written
    reader.join(timeout=10)
    os.close(master)
    written.append(b"".join(chunks).decode())


def read_some(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how Linux says that the other end was closed
        return b""
