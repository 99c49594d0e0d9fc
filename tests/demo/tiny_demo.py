"""The demo in miniature: a tiny recipe, one glance at speeds, shipped models that lie elsewhere, no network."""

import contextlib
import io
import socket

import pytest

from bertworks.demo import stages as vocabulary
from bertworks.demo.run import run_demo
from bertworks.models import folder as shipped_models

TINY = (
    "vocab.size=500", "model.preset=1x32x2", "train.max_steps=6", "train.batch_size=4", "train.log_every=1",
    "train.eval_every=2", "train.save_every=6",
)  # fmt: skip


def refuse(*_, **__):
    raise AssertionError("the demo asked for the network")


@contextlib.contextmanager
def in_miniature(shipped):
    """Have shipped models lie elsewhere, measure speeds at one glance, and let nobody use the network."""
    with pytest.MonkeyPatch.context() as patches:
        patches.setattr(shipped_models, "SHIPPED_FOLDER", shipped)
        patches.setattr(vocabulary, "_COPIES", 1)
        patches.setattr(vocabulary, "_ROUNDS", 1)
        patches.setattr(socket.socket, "connect", refuse)
        patches.setattr(socket, "getaddrinfo", refuse)
        yield patches


def shown(*overrides, out):
    """Run the demo in this process and return what it writes to standard output, which is no terminal."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        run_demo([*TINY, *overrides], out=str(out), quiet=True)
    return written.getvalue()
