"""`bertworks serve --runner ray`: the same application in replicas on a Ray cluster, one port for all of them.

Each replica is a process with its own models and queues, on any node that has room; it takes requests when its models
are open and warm. In front of them is Ray Serve's proxy, which sends a request to the less busy of two replicas. So
keys, limits and error bodies are ours, and connections the proxy's: the limits of `connection.py` do not hold there.

A replica that dies, or whose /healthz says that it had better be started again, is replaced by Ray Serve; other
requests go to the replicas that are left. The models are opened once in a task before that, so that a mistake is told
as it is, not as a replica that cannot be started.
"""

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, redirect_stdout
from typing import Any

from bertworks.cluster import anywhere, cluster, compute_on_ray, gpus_of
from bertworks.config import from_overrides
from bertworks.errors import UserError, counted
from bertworks.serving.run import bind, say
from bertworks.serving.service import Service
from bertworks.serving.settings import Limits

_NAME = "bertworks"
_HEALTH_EVERY_S, _STATUS_EVERY_S, _LATE_S = 2.0, 1.0, 5.0
_FAILED = 70  # as sysexits.h: an internal error


class _Told(BaseException):
    """A signal has told the server to end."""


def serve_on_ray(
    host: str, port: int, options: dict[str, Any], replicas: int, when_ready: Callable[[int], None]
) -> int:
    """Serve on a Ray cluster until a signal ends it; returns the exit code.

    Args:
        host: the address at which the nodes of the cluster listen.
        port: of theirs; 0: any that is free on this machine.
        options: as of `serve_here`.
        replicas: how many.
        when_ready: called with the port when all replicas are ready.
    """
    try:
        # Ray writes what it does to standard output, which is only for results. It also takes signals, until we do.
        with redirect_stdout(sys.stderr), cluster() as is_ours, _signals():
            return _serve(host, port, options, replicas, when_ready, is_ours=is_ours)
    except _Told:
        return 0


def _serve(
    host: str, port: int, options: dict[str, Any], replicas: int, when_ready: Callable[[int], None], *, is_ours: bool
) -> int:
    limits = from_overrides(Limits, options["limits"], "--limits")
    options = options | {"sources": [anywhere(source) for source in options["sources"]]}
    try:
        from ray import serve
        from ray.serve.context import _get_global_client  # there is no public way to ask where Serve listens
    except ImportError as error:
        raise UserError('serving on Ray needs Ray Serve: pip install "bertworks[ray]"') from error
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    running = _get_global_client(raise_if_no_controller_running=False)
    if running is not None and (running.http_config.host, running.http_config.port) != (host, port):
        address = f"{running.http_config.host}, port {running.http_config.port}"
        raise UserError(
            f"Ray Serve runs on this cluster and listens at {address}, not at {host}, port {port}; give --host and "
            "--port so, or end it with `serve shutdown`"
        )
    if running is not None and _NAME in serve.status().applications:
        raise UserError("another `bertworks serve` serves on this cluster; end it first")
    if running is None and (port == 0 or is_ours):
        with closing(bind(host, port)) as listener:  # only to see that it is free
            port = listener.getsockname()[1]
    threads = options["threads"] or _share(replicas)
    if (needed := threads * replicas) > (cpus := sum(_cpus_of_nodes())):
        problem = f"{counted(replicas, 'replica')} with {threads} threads each need {needed} CPUs, and Ray has {cpus}"
        if is_ours:
            raise UserError(f"{problem}; choose fewer --workers or --threads")
        say(f"warning: {problem}; those without room wait for more nodes")
    options = options | {"threads": threads}
    gpus = gpus_of(options["device"], threads)
    for _ in compute_on_ray([options], _begin_opening, threads=threads, device=options["device"]):
        pass
    quiet = {"enable_access_log": False}
    try:
        if running is None:
            serve.start(http_options={"host": host, "port": port}, logging_config=quiet)
        deployment = serve.deployment(
            serve.ingress()(_replica()), name=_NAME, num_replicas=replicas,
            ray_actor_options={"num_cpus": threads, "num_gpus": gpus},
            # Beyond the queue of a replica it answers 429 itself; these only bound what waits in a proxy.
            max_ongoing_requests=limits.connections, max_queued_requests=limits.connections,
            backpressure_config={"status_code": 429, "retry_after_s": 1},
            graceful_shutdown_timeout_s=limits.drain, graceful_shutdown_wait_loop_s=0.1,
            health_check_period_s=_HEALTH_EVERY_S, health_check_timeout_s=limits.seconds, logging_config=quiet,
        )  # fmt: skip
        try:
            serve.run(deployment.bind(options), name=_NAME, route_prefix="/")
        except (RuntimeError, serve.exceptions.RayServeException) as error:
            raise UserError(f"Ray Serve cannot start the replicas: {str(error)[:500]}") from error
        when_ready(port)
        return _watch(serve, replicas)
    finally:
        _end(serve, limits.drain, everything=running is None and not is_ours)


def _share(replicas: int) -> int:
    """Return how many CPUs each replica gets when they share all that the cluster has."""
    cpus = _cpus_of_nodes()
    return max(min(sum(cpus) // replicas, max(cpus)), 1)


def _cpus_of_nodes() -> list[int]:
    import ray

    return [int(node["Resources"].get("CPU", 0)) for node in ray.nodes() if node["Alive"]]


def _begin_opening() -> Callable[[dict[str, Any]], None]:
    def open_models(options: dict[str, Any]) -> None:
        from bertworks.serving.metrics import Metrics

        limits = from_overrides(Limits, options["limits"], "--limits")
        Service(options["sources"], limits, Metrics(), device=options["device"], dtype=options["dtype"]).open()

    return open_models


def _replica() -> type:
    """Return the class of a replica; as an inner one it travels to the nodes as it is."""

    class Replica:
        """A process of the cluster with models of its own."""

        async def __init__(self, options: dict[str, Any]) -> None:  # type: ignore[misc]
            import torch

            from bertworks.serving.app import open_models
            from bertworks.serving.metrics import Metrics

            torch.set_num_threads(options["threads"])
            self._options, self._metrics = options, Metrics()
            limits = from_overrides(Limits, options["limits"], "--limits")
            self._service = Service(
                options["sources"], limits, self._metrics, device=options["device"], dtype=options["dtype"]
            )
            await open_models(self._service, self._metrics)

        def __serve_build_asgi_app__(self) -> Any:
            from bertworks.serving.app import make_app
            from bertworks.serving.metrics import AccessLog

            log = AccessLog() if self._options["access_log"] else None
            keys, cors = self._options["keys"], self._options["cors"]
            return make_app(self._service, self._metrics, keys=keys, cors=cors, log=log)

        async def check_health(self) -> None:
            """Have Ray Serve replace a replica that computes no more."""
            await asyncio.sleep(0)
            if problem := self._service.problem():
                raise RuntimeError(problem)

    return Replica


@contextmanager
def _signals() -> Iterator[None]:
    """Have SIGTERM and Ctrl-C raise `_Told`, a second one end at once."""
    is_told = False

    def told(number: int, _: Any) -> None:
        nonlocal is_told
        if is_told:
            os._exit(128 + number)
        is_told = True
        raise _Told

    handlers = {number: signal.signal(number, told) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def _watch(serve: Any, replicas: int) -> int:
    """Look after the replicas, which Ray Serve starts again by itself; returns when there is nothing to look after."""
    before = replicas
    while True:
        time.sleep(_STATUS_EVERY_S)
        try:
            app = serve.status().applications.get(_NAME)
        except Exception as error:  # the cluster has gone
            say(f"the Ray cluster does not answer any more: {type(error).__name__}")
            return _FAILED
        if app is None:
            say("another program has ended the application in Ray Serve")
            return _FAILED
        now = app.deployments[_NAME].replica_states.get("RUNNING", 0)
        if now < before:
            say(f"warning: {counted(now, 'replica')} of {replicas} can answer; Ray Serve starts others")
        elif now > before:
            say(f"{counted(now, 'replica')} of {replicas} can answer")
        before = now


def _end(serve: Any, drain_s: float, *, everything: bool) -> None:
    """Have the replicas answer what they have accepted and end; with `everything` Ray Serve ends, too.

    On a cluster that was started here it ends with that.
    """
    until = time.monotonic() + drain_s + _LATE_S
    try:
        while _NAME in serve.status().applications and time.monotonic() < until:
            try:
                serve.delete(_NAME)
            except TimeoutError:  # it waits a minute; a drain may take longer
                continue
        if everything:
            serve.shutdown()
    except Exception as error:  # the cluster has gone, and the replicas with it
        say(f"Ray Serve could not be asked to end: {type(error).__name__}")
