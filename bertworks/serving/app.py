"""The web application of a list of served models, with its routes and the layers around them, and its server.

**Where a route is added.** Routes live in routers, one file for each family: `routes.py` has our own, `page.py` the
page, `clients.py` and `pipelines.py` what other servers' clients call. A new family is a file beside them with
`router = APIRouter(route_class=JsonRoute)` and functions that take `ServiceNeeded`; `ROUTERS` here lists it. A route
finds its model by `service.find(body.model, "fill")` and computes with `await served.run(read, finish, texts)`, where
`read(model, texts)` makes a reading and `finish` the JSON of its result, both off the event loop. Keys, limits,
time-outs, error bodies, metrics and the log apply by themselves to every route.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn
from fastapi import APIRouter, FastAPI, Response
from starlette.middleware.cors import CORSMiddleware

from bertworks import __version__
from bertworks.config import from_overrides
from bertworks.errors import UserError
from bertworks.serving import clients, page, pipelines, routes
from bertworks.serving.batching import Refused
from bertworks.serving.connection import Connection
from bertworks.serving.http import App, Gate, add_error_bodies
from bertworks.serving.metrics import AccessLog, Metrics
from bertworks.serving.service import Service
from bertworks.serving.settings import Limits

_FAILED = 70  # as sysexits.h: an internal error
_KEEP_ALIVE_S = 75
ROUTERS: list[APIRouter] = [routes.router, clients.router, pipelines.router, page.router]
_log = logging.getLogger(__name__)


def make_app(
    service: Service,
    metrics: Metrics,
    *,
    keys: Sequence[str] = (),
    cors: Sequence[str] = (),
    log: AccessLog | None = None,
    when_ready: Callable[[], None] = lambda: None,
    when_failed: Callable[[UserError], None] = lambda _: None,
) -> App:
    """Return the application.

    Args:
        service: its models, which are opened, if they are not, while it already answers /healthz.
        metrics: counts what it does.
        keys: that callers must send, one of them; none: everybody may call.
        cors: origins whose pages may call it from a browser, "*" for all.
        log: writes a line for each request.
        when_ready: called when all models are open and warm.
        when_failed: called when one cannot be opened.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def open_and_say() -> None:
            try:
                await open_models(service, metrics)
            except UserError as error:
                when_failed(error)
            except Exception as error:
                _log.exception("the models could not be opened")
                when_failed(UserError(f"the models could not be opened: {type(error).__name__}"))
            else:
                when_ready()

        opening = None if service.is_ready else asyncio.create_task(open_and_say())
        yield
        if opening is not None:
            opening.cancel()

    app = FastAPI(
        title="bertworks", version=__version__, lifespan=lifespan, docs_url=None, redoc_url=None,
        description="BERT models that fill masks, classify, tag, answer, embed and show what they see.",
    )  # fmt: skip
    app.state.service = service
    add_error_bodies(app)
    for router in ROUTERS:
        app.include_router(router)

    @app.get("/healthz", tags=["operation"])
    async def healthz() -> dict[str, str]:
        """Say that the process is alive; 503 when it had better be started again."""
        if problem := service.problem():
            raise Refused(503, problem)
        return {"status": "ok"}

    @app.get("/readyz", tags=["operation"])
    async def readyz() -> dict[str, str]:
        """Say that requests are welcome: the models are open and warm, and the server is not about to end."""
        if service.is_draining or not service.is_ready:
            raise Refused(503, "the server ends" if service.is_draining else "the models are still being opened")
        return {"status": "ready"}

    @app.get("/metrics", tags=["operation"], response_class=Response)
    async def prometheus() -> Response:
        """Give the metrics in Prometheus's text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    gate: App = Gate(app, service.limits, keys, metrics, log, lambda: service.is_draining)
    if cors:
        exposed = ["Server-Timing", "X-Request-Id", "X-Tokens", "Retry-After"]
        gate = CORSMiddleware(
            gate, allow_origins=list(cors), allow_methods=["*"], allow_headers=["*"], expose_headers=exposed
        )
    return gate


async def open_models(service: Service, metrics: Metrics) -> None:
    """Open all models and warm them up."""
    await asyncio.to_thread(service.open)
    for served in service.models.values():
        metrics.serves(served.name, served.about)
    await service.warm_up()


def serve_here(listener: socket.socket, options: dict[str, Any], when_ready: Callable[[], None]) -> int:
    """Serve in this process; returns its exit code.

    Args:
        listener: the socket.
        options: sources, device, dtype, threads, keys, limits, cors and access_log, as plain values.
        when_ready: called when the models are open and warm.
    """
    if options["threads"] is not None:
        import torch

        torch.set_num_threads(options["threads"])
    metrics = Metrics()
    service = Service(
        options["sources"], from_overrides(Limits, options["limits"], "--limits"), metrics, device=options["device"],
        dtype=options["dtype"],
    )  # fmt: skip
    log = AccessLog() if options["access_log"] else None
    server = Server(service, metrics, keys=options["keys"], cors=options["cors"], log=log, when_ready=when_ready)
    server.run([listener])
    if log:
        log.flush()
    if server.failure:
        raise server.failure
    return 0 if server.was_told else _FAILED


class Server(uvicorn.Server):
    """uvicorn's server, with our application, our connections and our way to end.

    Attributes:
        was_told: whether a signal has told it to end.
        failure: why its models could not be opened.
    """

    def __init__(
        self, service: Service, metrics: Metrics, *, keys: Sequence[str] = (), cors: Sequence[str] = (),
        log: AccessLog | None = None, when_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._service, self.was_told = service, False
        self.failure: UserError | None = None
        app = make_app(
            service, metrics, keys=keys, cors=cors, log=log, when_ready=when_ready, when_failed=self._has_failed
        )
        http: Any = partial(Connection, service.limits)
        super().__init__(
            uvicorn.Config(
                app, http=http, ws="none", lifespan="on", loop="asyncio", log_config=None, access_log=False,
                proxy_headers=False, server_header=False, timeout_keep_alive=_KEEP_ALIVE_S,
                timeout_graceful_shutdown=service.limits.drain,
            )
        )  # fmt: skip
        logging.getLogger("uvicorn").setLevel(logging.ERROR)

    def _has_failed(self, error: UserError) -> None:
        self.failure = error
        self.should_exit = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Have SIGTERM and Ctrl-C end the server in good order, a second one at once."""
        is_main = threading.current_thread() is threading.main_thread()  # of a test it is not
        numbers = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        handlers = {number: signal.signal(number, self._told) for number in numbers}
        try:
            yield
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _told(self, number: int, _: Any) -> None:
        if self.was_told:
            os._exit(128 + number)
        self.was_told = self._service.is_draining = self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Also end where a model can compute no more."""
        if any(one.batcher.is_dead for one in self._service.models.values()):
            return True
        return await super().on_tick(counter)
