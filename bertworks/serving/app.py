"""The web application of a list of served models: its routes, and the layers around them.

**Where a route is added.** Routes live in routers, one file for each family: `routes.py` has our own. A new family is
a file beside it with `router = APIRouter(route_class=JsonRoute)` and functions that take `ServiceNeeded`; `ROUTERS`
here lists it. A route finds its model by `service.find(body.model, "fill")` and computes with `await served.run(read,
finish, texts=...)`, where `read` makes a reading of the model and `finish` the JSON of its result, both off the event
loop. Keys, limits, time-outs, error bodies, metrics and the log apply by themselves to every route.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence

from fastapi import APIRouter, FastAPI, Response
from starlette.middleware.cors import CORSMiddleware

from bertworks import __version__
from bertworks.errors import UserError
from bertworks.serving import routes
from bertworks.serving.batching import Refused
from bertworks.serving.http import App, Gate, add_error_bodies
from bertworks.serving.metrics import AccessLog, Metrics
from bertworks.serving.service import Service

ROUTERS: list[APIRouter] = [routes.router]
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
        service: its models, which are opened while it already answers /healthz.
        metrics: counts what it does.
        keys: that callers must send, one of them; none: everybody may call.
        cors: origins whose pages may call it from a browser, "*" for all.
        log: writes a line for each request.
        when_ready: called when all models are open and warm.
        when_failed: called when one cannot be opened.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async def open_models() -> None:
            try:
                await asyncio.to_thread(service.open)
                for served in service.models.values():
                    metrics.serves(served.name, served.about)
                await service.warm_up()
            except UserError as error:
                when_failed(error)
            except Exception as error:
                _log.exception("the models could not be opened")
                when_failed(UserError(f"the models could not be opened: {type(error).__name__}"))
            else:
                when_ready()

        opening = asyncio.create_task(open_models())
        yield
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
