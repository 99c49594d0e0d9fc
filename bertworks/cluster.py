"""Work on a Ray cluster: pieces of it computed in tasks on any node, and made again where a worker or a node is lost.

The cluster is the one that RAY_ADDRESS names, or one that runs on this machine; otherwise one is started here and
ended with the work. All nodes must have the same versions of bertworks and Unicode, because results would differ
otherwise.
"""

import importlib.util
import logging
import os
import socket
import sys
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any, TypeVar

from bertworks import __version__
from bertworks.errors import UserError

Piece = TypeVar("Piece")
Result = TypeVar("Result")
RUNNERS = ("local", "ray")
_MAX_RETRIES = 3  # of a piece whose worker was lost; limited, because a piece may crash every worker
_ANSWER_S = 10.0
_CANCEL_S = 30.0


def is_on_ray(runner: str) -> bool:
    """Tell whether a runner is Ray; raises UserError if it is not known or Ray is not installed."""
    if runner not in RUNNERS:
        raise UserError(f"the runner {runner[:40]!r} is not known; choose {' or '.join(RUNNERS)}")
    if runner == "ray" and importlib.util.find_spec("ray") is None:
        raise UserError('the runner ray needs Ray: pip install "bertworks[ray]"')
    return runner == "ray"


def compute_on_ray(
    pieces: Iterable[Piece],
    begin: Callable[[], Callable[[Piece], Result]],
    *,
    threads: int = 1,
    device: str = "cpu",
    pending: int | None = None,
    in_order: bool = True,
) -> Iterator[Result]:
    """Yield the result of each piece; closing the iterator cancels what is not done.

    Args:
        pieces: taken as there is room for them.
        begin: called once in each worker process; returns what makes the result of a piece.
        threads: CPUs that a task takes.
        device: cuda: a task takes a GPU; auto: if the cluster has any.
        pending: how many pieces are on their way at once; by default two for each task that the cluster has room for.
        in_order: results come in the order of the pieces; otherwise as they are done.
    """
    import ray

    # Ray reports lost workers on standard output, which is only for results.
    with redirect_stdout(sys.stderr), cluster():
        takes = {"CPU": threads, "GPU": gpus_of(device, threads)}
        room = min(int(ray.cluster_resources().get(kind, 1)) // count for kind, count in takes.items() if count)
        most = pending or 2 * max(room, 1)
        # With max_calls=0 a worker stays, with its model, also after a task that had a GPU.
        task = ray.remote(max_retries=_MAX_RETRIES, num_cpus=threads, num_gpus=takes["GPU"], max_calls=0)(
            _compute_on_node
        )
        shared = ray.put((os.urandom(8).hex(), begin, versions(), socket.gethostname()))
        waiting: deque[Any] = deque()
        try:
            for piece in pieces:
                waiting.append(task.remote(piece, shared))
                if len(waiting) > most:
                    yield _next_result(waiting, in_order)
            while waiting:
                yield _next_result(waiting, in_order)
        except BaseException:
            for reference in waiting:
                ray.cancel(reference, force=True)
            # They must have stopped, for example to write into a folder that is no longer locked.
            if waiting:
                ray.wait(list(waiting), num_returns=len(waiting), timeout=_CANCEL_S)
            raise


def _next_result(waiting: deque[Any], in_order: bool) -> Any:
    import ray

    done = waiting[0]
    if not in_order:
        (done,), _ = ray.wait(list(waiting), num_returns=1)
    waiting.remove(done)
    try:
        return ray.get(done)
    except ray.exceptions.RayTaskError as error:
        raise (error.cause if isinstance(error.cause, UserError) else error) from None
    except ray.exceptions.RayError as error:
        raise UserError(f"the Ray cluster lost a piece of work {_MAX_RETRIES + 1} times: {str(error)[:300]}") from error


_begun: dict[str, Callable[[Any], Any]] = {}  # in a worker: what makes results, of the run that it works for


def _compute_on_node(piece: Any, shared: Any) -> Any:
    run_id, begin, needed, asker = shared
    check_versions(needed)
    try:
        if run_id not in _begun:
            _begun.clear()  # what another run has in memory
            _begun[run_id] = begin()
        return _begun[run_id](piece)
    except UserError as error:
        node = socket.gethostname()
        raise (error if node == asker else UserError(f"on node {node}: {error}")) from error


def gpus_of(device: str, threads: int) -> int:
    """Return how many GPUs work takes; work that no node has room for is refused, as it would wait forever."""
    import ray

    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    cpus = max(int(node.get("CPU", 0)) for node in nodes)
    if 0 < cpus < threads:  # of a cluster that starts nodes when they are needed there may be none yet
        raise UserError(f"{threads} threads: no node of the Ray cluster has so many CPUs; choose at most {cpus}")
    has_gpus = any(node.get("GPU", 0) >= 1 for node in nodes)
    if device == "cuda" and not has_gpus:
        raise UserError("no node of the Ray cluster has a GPU; choose --device cpu")
    return int(has_gpus and device in ("auto", "cuda"))


def anywhere(source: str) -> str:
    """Return a model's name, or its path as a worker finds it, whose working directory is another."""
    return os.path.abspath(source) if os.path.exists(source) else source


def versions() -> tuple[str, str]:
    """Return the versions of bertworks and of Unicode, on which results depend."""
    return __version__, unicodedata.unidata_version


def check_versions(needed: tuple[str, str]) -> None:
    """Refuse a node with other versions than those of whoever asked for the work."""
    if versions() != needed:
        found = "bertworks {} with Unicode {}".format(*versions())
        wanted = "{} with {}".format(*needed)
        raise UserError(
            f"{found} is on node {socket.gethostname()}, and {wanted} where the command runs; install the same"
        )


@contextmanager
def cluster() -> Iterator[bool]:
    """Connect to a cluster, unless the caller has already done so; yields whether it was started here."""
    import ray

    if ray.is_initialized():
        yield False
        return
    # By default Ray reports every cluster that it starts to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        host, _, port = address.rpartition(":")
        if host and "/" not in host and port.isdecimal():
            # Check that a server listens there; Ray itself would try silently for minutes.
            socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
        options: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        is_new = False
        try:
            ray.init(address="auto", **options)
        except ConnectionError:
            if address:
                raise
            ray.init(address="local", include_dashboard=False, **options)
            is_new = True
    except (OSError, RuntimeError, ValueError) as error:
        where = f"at {address}, the value of RAY_ADDRESS" if address else "on this machine"
        hint = "; if it asks for a token, set RAY_AUTH_MODE=token here too" if address else ""
        raise UserError(f"no Ray cluster can be reached {where}: {str(error)[:300]}{hint}") from error
    try:
        yield is_new
    finally:
        ray.shutdown()
