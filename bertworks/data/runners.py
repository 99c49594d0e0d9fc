"""Where units of a corpus become shards: in processes of this machine, or in those of a Ray cluster.

A runner takes units one by one, as they are read, and keeps a bounded number of them under way. What is done with a
unit is a function of the unit and the job alone, so every runner gives the same bytes.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any, Protocol

from bertworks.data.units import Unit
from bertworks.errors import UserError
from bertworks.processes import num_workers, wait_for, worker_pool

RUNNERS = ("local", "ray")


class Runner(Protocol):
    """Makes all units."""

    def __call__(
        self,
        units: Iterable[Unit],
        load: Callable[[Any], None],
        make: Callable[[Unit, Any], Any],
        job: Any,
        workers: int | None,
        use: Callable[[Any], object],
    ) -> None:
        """Call `load(job)` once in every process, `make(unit, job)` for every unit, and `use` on what that returns."""


def runner_named(name: str) -> Runner:
    """Return a runner."""
    if name == "local":
        return run_local
    if name == "ray":
        from bertworks.data.ray_runner import check_installed, run_on_ray

        check_installed()
        return run_on_ray
    raise UserError(f"the runner {name!r} is not known; choose {' or '.join(RUNNERS)}")


def run_local(
    units: Iterable[Unit],
    load: Callable[[Any], None],
    make: Callable[[Unit, Any], Any],
    job: Any,
    workers: int | None,
    use: Callable[[Any], object],
) -> None:
    """Make units in processes of this machine, as many as there are cores if not said."""
    num_processes = num_workers(workers)
    with worker_pool(num_processes, load, job) as pool:
        pending: set[Future[Any]] = set()
        for unit in units:
            pending.add(pool.submit(make, unit, job))
            # Units that wait take memory: one more than can be worked on keeps every process busy.
            pending = wait_for(pending, num_processes, use)
        wait_for(pending, 0, use)
