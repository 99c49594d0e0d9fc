"""Whole runs in forked children: torch is imported once, and each child is a process that can be killed.

The parent never trains, for a child of a process with torch's threads would wait for threads that it has not.
"""

import os
import signal
import sys
import time
import traceback

import tiny_runs

from bertworks.train.pretrain import pretrain

# The reliability plan's tiny model; batches so small that a good part of the time is spent saving.
CHANGES = {
    "model__preset": "2x64x2",
    "data__max_length": 64,
    "train__batch_size": 2,
    "train__max_steps": 200,
    "train__save_every": 7,
    "train__log_every": 5,
    "train__eval_every": 50,
}


def recipe(**changes):
    return tiny_runs.recipe(**{**CHANGES, **changes})


def forked(work):
    """Start some work in a child; its exit code is 0 if it comes to its end, 1 if it raises."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)  # whatever happens: a child that went on would be a second pytest


def wait_for(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def train(run, data):
    """Train in a child, to the end."""
    child = forked(lambda: pretrain(recipe(), data=data, out=run, device="cpu", resume=True))
    assert wait_for(child) == 0


def killed_after(seconds, run, data):
    """Train in a child that is killed after some time; returns how long it took if it was through before, else None."""
    started = time.monotonic()
    child = forked(lambda: pretrain(recipe(), data=data, out=run, device="cpu", resume=True))
    while (taken := time.monotonic() - started) < seconds:
        if os.waitpid(child, os.WNOHANG) != (0, 0):
            return taken
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return None if wait_for(child) == -signal.SIGKILL else seconds


def command(*arguments, stderr=None):
    """Run `bertworks` in a child; returns its exit code."""
    from bertworks import cli

    def work():
        sys.argv = ["bertworks", *map(str, arguments)]
        for stream, path in ((1, None), (2, stderr)):
            os.dup2(os.open(path or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), stream)
        sys.stdout, sys.stderr = (os.fdopen(stream, "w", buffering=1, closefd=False) for stream in (1, 2))
        cli.main()

    return wait_for(forked(work))
