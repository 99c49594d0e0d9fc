"""Prepares data on a Ray cluster, with the same bytes as on one machine.

This process reads the corpus, cuts it into units and sends them to tasks on any node; a task writes its shards itself.
So the folder must be on storage that every node sees under the same path: each task checks for this run's lock there
before it writes. All nodes must have the same versions of bertworks and Unicode, because otherwise the shards of a run
would differ. A unit whose worker or node was lost is made again; leftovers of the first attempt do no harm.

The cluster is the one that RAY_ADDRESS names, or one that runs on this machine; otherwise one is started here for the
run.
"""

import importlib.util
import logging
import os
import socket
import sys
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks import __version__
from bertworks.errors import UserError
from bertworks.files import LOCK_NAME

if TYPE_CHECKING:
    from bertworks.data.prepare import Unit

_MAX_RETRIES = 3  # of a unit whose worker was lost; limited, because a unit may crash every worker
_ANSWER_S = 10.0
_CANCEL_S = 30.0


def check_installed() -> None:
    """Raise UserError if Ray is not installed."""
    if importlib.util.find_spec("ray") is None:
        raise UserError('the runner ray needs Ray: pip install "bertworks[ray]"')


def run_on_ray(
    units: "Iterable[Unit]",
    load: Callable[[Any], None],
    make: "Callable[[Unit, Any], Any]",
    job: Any,
    workers: int | None,
    use: Callable[[Any], object],
) -> None:
    """Make units in tasks of a Ray cluster; at most `workers` + 1 are pending (default: one more than its CPUs)."""
    import ray

    job = job._replace(folder=Path(os.path.abspath(job.folder)))
    # Ray reports lost workers on standard output, which is only for results.
    with redirect_stdout(sys.stderr), _cluster():
        run_id, lock = os.urandom(8).hex(), (job.folder / LOCK_NAME).read_bytes()
        shared = ray.put((load, make, job, run_id, lock, versions()))
        task = ray.remote(max_retries=_MAX_RETRIES, num_cpus=1)(_make_on_node)
        most = workers or int(ray.cluster_resources().get("CPU", 1))
        pending: list[Any] = []
        try:
            for unit in units:
                pending.append(task.remote(unit, shared))
                pending = _wait_for(pending, most, use)
            _wait_for(pending, 0, use)
        except BaseException:
            for reference in pending:
                ray.cancel(reference, force=True)
            # They must have stopped writing before the folder's lock is released.
            if pending:
                ray.wait(pending, num_returns=len(pending), timeout=_CANCEL_S)
            raise


def _wait_for(pending: list[Any], most: int, use: Callable[[Any], object]) -> list[Any]:
    import ray

    while len(pending) > most:
        (done,), pending = ray.wait(pending, num_returns=1)
        try:
            result = ray.get(done)
        except ray.exceptions.RayTaskError as error:
            raise (error.cause if isinstance(error.cause, UserError) else error) from None
        except ray.exceptions.RayError as error:
            raise UserError(f"the Ray cluster lost a unit {_MAX_RETRIES + 1} times: {str(error)[:300]}") from error
        use(result)
    return pending


_loaded: list[str] = []  # in a worker: the run whose tokenizer is loaded


def _make_on_node(unit: "Unit", shared: Any) -> Any:
    load, make, job, run_id, lock, needed = shared
    check_node(job.folder, lock, needed)
    if _loaded != [run_id]:
        load(job)
        _loaded[:] = [run_id]
    return make(unit, job)


def check_node(folder: Path, lock: bytes, needed: tuple[str, str]) -> None:
    """Refuse a node with other versions than the run's, or one that does not see the run's lock in the folder."""
    node = socket.gethostname()
    if versions() != needed:
        raise UserError(
            "bertworks {} with Unicode {} is on node {}, and {} with {} here; install the same on all".format(
                *versions(), node, *needed
            )
        )
    try:
        is_there = (folder / LOCK_NAME).read_bytes() == lock
    except OSError:
        is_there = False
    if not is_there:
        raise UserError(
            f"node {node} does not see {folder}; with the runner ray it must be on storage that all nodes see"
        )


def versions() -> tuple[str, str]:
    """Return the versions of bertworks and of Unicode, on which the bytes of shards depend."""
    return __version__, unicodedata.unidata_version


@contextmanager
def _cluster() -> Iterator[None]:
    """Connect to a cluster, unless the caller has already done so."""
    import ray

    if ray.is_initialized():
        yield
        return
    # By default Ray reports every cluster that it starts to its developers.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    address = os.environ.get("RAY_ADDRESS", "")
    try:
        host, _, port = address.rpartition(":")
        if host and "/" not in host and port.isdecimal():
            # Check that a server listens there; Ray itself would try silently for minutes.
            socket.create_connection((host, int(port)), timeout=_ANSWER_S).close()
        ray.init(logging_level=logging.ERROR, log_to_driver=False, include_dashboard=False)
    except (OSError, RuntimeError, ValueError) as error:
        where = f"at {address}, the value of RAY_ADDRESS," if address else "on this machine"
        raise UserError(f"no Ray cluster can be reached {where}: {str(error)[:300]}") from error
    try:
        yield
    finally:
        ray.shutdown()
