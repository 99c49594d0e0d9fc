"""Several ranks as forked children, which need not import torch again; each as torchrun would start it."""

import faulthandler
import os
import signal
import socket
import sys
import time
import traceback
from typing import NamedTuple

from bertworks.errors import UserError


class Ended(NamedTuple):
    """How a rank ended: its exit code (negative: the signal), what it said on stderr, and when."""

    code: int
    said: str
    seconds: float


def run_ranks(world_size, work, folder, *, hanging=(), timeout_s=100.0):
    """Have each rank do `work(rank)`; returns how they ended, in their order.

    Ranks that are known to hang are killed when all others have ended, and whoever is there at last; what such a rank
    said ends with where it was.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = time.monotonic()
    children = [_start(rank, world_size, port, work, folder, timeout_s) for rank in range(world_size)]
    codes, seconds = {}, {}
    while len(codes) < world_size:
        for rank, child in enumerate(children):
            if rank in codes:
                continue
            found, status = os.waitpid(child, os.WNOHANG)
            if found:
                codes[rank], seconds[rank] = os.waitstatus_to_exitcode(status), time.monotonic() - started
            elif {*codes, *hanging} == {*range(world_size)} or time.monotonic() - started > timeout_s:
                os.kill(child, signal.SIGKILL)
        time.sleep(0.01)
    return [Ended(codes[rank], _said(folder, rank).read_text(), seconds[rank]) for rank in range(world_size)]


def _said(folder, rank):
    return folder / f"rank-{rank}.txt"


def _start(rank, world_size, port, work, folder, timeout_s):
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size)}
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        stream = os.open(_said(folder, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(stream, 1)
        os.dup2(stream, 2)
        sys.stderr = os.fdopen(2, "w", buffering=1)
        faulthandler.dump_traceback_later(0.9 * timeout_s)
        code = _exit_code(rank, work)
    finally:
        os._exit(code)


def _exit_code(rank, work):
    """Do the work and return what the command line would exit with."""
    try:
        work(rank)
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    return 0
