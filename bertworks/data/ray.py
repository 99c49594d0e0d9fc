"""Prepares data on a Ray cluster, with the same bytes as on one machine.

This process reads the corpus, cuts it into units and sends them to tasks on any node (`cluster.py`); a task writes its
shards itself. So the folder must be on storage that every node sees under the same path: each task checks for this
run's lock there before it writes. A unit whose worker or node was lost is made again; leftovers of the first attempt do
no harm.
"""

import os
import socket
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.cluster import compute_on_ray
from bertworks.errors import UserError
from bertworks.files import LOCK_NAME

if TYPE_CHECKING:
    from bertworks.data.prepare import Unit


def run_on_ray(
    units: "Iterable[Unit]",
    load: Callable[[Any], None],
    make: "Callable[[Unit, Any], Any]",
    job: Any,
    workers: int | None,
    use: Callable[[Any], object],
) -> None:
    """Make units in tasks of a Ray cluster; at most `workers` + 1 are pending (default: two for each of its CPUs)."""
    job = job._replace(folder=Path(os.path.abspath(job.folder)))
    lock = (job.folder / LOCK_NAME).read_bytes()
    begin = partial(_begin, load, make, job, lock)
    for result in compute_on_ray(units, begin, pending=workers, in_order=False):
        use(result)


def _begin(
    load: Callable[[Any], None], make: "Callable[[Unit, Any], Any]", job: Any, lock: bytes
) -> "Callable[[Unit], Any]":
    check_folder(job.folder, lock)
    load(job)

    def make_unit(unit: "Unit") -> Any:
        check_folder(job.folder, lock)
        return make(unit, job)

    return make_unit


def check_folder(folder: Path, lock: bytes) -> None:
    """Refuse a node that does not see the run's lock in the folder."""
    try:
        is_there = (folder / LOCK_NAME).read_bytes() == lock
    except OSError:
        is_there = False
    if not is_there:
        raise UserError(
            f"node {socket.gethostname()} does not see {folder}; with the runner ray it must be on storage that all "
            "nodes see"
        )
