"""What every request goes through before a route sees it, and what goes wrong on the way.

Two layers, above the connection (`connection.py`):

- `Gate` is ASGI middleware: it asks for the key, refuses what is too large or compressed, reads the body within its
  time, gives a request its id and its time, stops working for a client that has left, and writes metrics and the log.
- `JsonRoute` is a route of FastAPI that reads JSON strictly: `APIRouter(route_class=JsonRoute)`.

Every error is JSON: {"error": {"message", "type", "status", "id"}}, as OpenAI's clients read it, or in the form
of the clients that ask at this path (`error_body`). Statuses: 400 not JSON or a wrong field, 401 no key, 404 no such
route or model, 408 too slow, 413 too large, 415 not JSON or compressed, 422 what the model cannot do or a limit, 429
the queue is full (Retry-After), 431 headers too large, 500 our fault, 503 not ready or about to end, 504 out of time.
"""

import asyncio
import hashlib
import hmac
import json
import logging
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping, Sequence
from pathlib import Path
from typing import Any

import pydantic_core
from fastapi import FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as AnyHTTPException

from bertworks.errors import UserError, printable, shortened, shown
from bertworks.serving.batching import WORK, ErrorForm, Refused, Work
from bertworks.serving.metrics import AccessLog, Metrics
from bertworks.serving.settings import Limits

OPEN_ROUTES = ("/healthz", "/readyz")  # which need no key
_NOT_LOGGED = (*OPEN_ROUTES, "/metrics")  # which are asked every few seconds, and counted
_TYPES = {400: "bad_request", 401: "no_key", 404: "not_found", 405: "bad_method", 408: "too_slow", 413: "too_large",
          415: "bad_media_type", 422: "not_possible", 429: "overloaded", 431: "too_large", 414: "too_large",
          500: "server_error", 503: "unavailable", 504: "out_of_time"}  # fmt: skip
_PART, _SMALL = 1 << 18, 4_096  # bytes of an answer that are sent at once; that are always accepted
_TEXT_PATHS = {"", "embed", "embed_all", "info", "models", "predict", "rerank", "similarity", "tokenize"}
_MOST_KEYS = 10_000  # of an object in a body
_MOST_PROBLEMS = 5
_EXPECTED = {"string_type": "should be text", "list_type": "should be a list", "int_type": "should be a whole number",
             "bool_type": "should be true or false", "float_type": "should be a number",
             "model_attributes_type": "should be a JSON object", "dict_type": "should be a JSON object"}  # fmt: skip
_BYTES_PER_S = 50_000  # that a client sends or takes at least, after its first seconds
_log = logging.getLogger(__name__)
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


def error_form(path: str) -> ErrorForm:
    """Return the form in which the clients that ask at a path read errors."""
    first, _, rest = path.strip("/").partition("/")
    if first in _TEXT_PATHS:
        return "text"
    return "message" if rest == "rerank" else "object"


def error_body(status: int, message: str, request_id: str = "", form: ErrorForm = "object") -> bytes:
    """Return the body of an error: an object at "error" as OpenAI has it, beside it "message" as Cohere, or a text."""
    message, kind = printable(shortened(message, 1_500)), _TYPES.get(status, "error")
    rest = {"status": status} | ({"id": request_id} if request_id else {})
    if form == "text":  # of text-embeddings-inference and Hugging Face
        return json.dumps({"error": message, "error_type": kind} | rest).encode()
    body = {"error": {"message": message, "type": kind} | rest}
    return json.dumps(body | ({"message": message} if form == "message" else {})).encode()


def read_json(body: bytes) -> Any:
    """Return the value of a body; anything but one value of strict JSON in UTF-8 is a 400 that says where."""
    try:
        value = pydantic_core.from_json(body, allow_inf_nan=False, cache_strings=False)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    if isinstance(value, dict) and len(value) > _MOST_KEYS:
        raise HTTPException(400, f"the body has {len(value):,} fields; at most {_MOST_KEYS:,}")
    return value


class _JsonRequest(Request):
    async def json(self) -> Any:
        """Return the body's value."""
        return read_json(await self.body())


class JsonRoute(APIRoute):
    """A route whose body is strict JSON, and is said to be."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return what answers a request."""
        answer = super().get_route_handler()

        async def handle(request: Request) -> Response:
            if self.body_field is not None:
                kind = request.headers.get("content-type", "none").partition(";")[0].strip().lower()
                if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
                    raise HTTPException(
                        415, f"the body is {kind[:60]!r}; send JSON with the header Content-Type: application/json"
                    )
            return await answer(_JsonRequest(request.scope, request.receive))

        return handle


def add_error_bodies(app: FastAPI) -> None:
    """Have all that a route may raise answered in the form of this server."""

    async def refused(_: Request, error: Exception) -> Response:
        headers: dict[str, str] = {}
        if isinstance(error, Refused):
            status, message = error.status, error.message
            if error.retry_after is not None:
                headers["retry-after"] = str(error.retry_after)
        elif isinstance(error, UserError):
            status, message = 422, str(error)
        elif isinstance(error, RequestValidationError):
            status, message = 400, _problems(error.errors())
        elif isinstance(error, AnyHTTPException):
            status, message, headers = error.status_code, str(error.detail), dict(error.headers or {})
        else:
            status, message = 500, "the server has failed at this request; its log says more under this id"
        work = WORK.get() or Work()
        return Response(error_body(status, message, work.id, work.form), status, headers, "application/json")

    for kind in (Refused, UserError, RequestValidationError, AnyHTTPException, Exception):
        app.add_exception_handler(kind, refused)


def _problems(errors: Sequence[Any]) -> str:
    """Say what is wrong with the fields of a body; of a field of several types what is nearest to right."""
    by_field: dict[str, list[Any]] = {}
    for error in errors:
        path = [part for part in error["loc"] if part != "body"]
        by_field.setdefault(str(path[0]) if path else "", []).append(error)
    found = []
    for field, some in list(by_field.items())[:_MOST_PROBLEMS]:
        depth = max(len(error["loc"]) for error in some)
        nearest = [error for error in some if len(error["loc"]) == depth]
        if nearest[0]["type"] == "extra_forbidden":
            found.append(f"{shown(nearest[0]['loc'][-1])} is no field of this request")
            continue
        if nearest[0]["type"] == "missing":
            part = nearest[0]["loc"][-1]
            where = f"{field}: " if part != field else ""
            found.append(f"{where}{shown(part)} is missing" if field else "the body is missing; send JSON")
            continue
        places = [str(part) for part in nearest[0]["loc"] if isinstance(part, int)]
        where = ".".join([shortened(field, 60), *places]) if field else "the body"
        kinds = " or ".join(dict.fromkeys(_EXPECTED.get(error["type"], str(error["msg"])) for error in nearest))
        found.append(f"{where}: {kinds}")
    return "; ".join(found)


class Gate:
    """The middleware around all routes."""

    def __init__(
        self, app: App, limits: Limits, keys: Sequence[str], metrics: Metrics, log: AccessLog | None,
        is_draining: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._app, self._limits, self._metrics, self._log = app, limits, metrics, log
        self._digests = [hashlib.sha256(key.encode()).digest() for key in keys]
        self._is_draining = is_draining
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        work = Work(id=uuid.uuid4().hex[:16], form=error_form(scope["path"]))
        WORK.set(work)
        start: MutableMapping[str, Any] | None = None

        async def answer(message: MutableMapping[str, Any]) -> None:
            nonlocal start
            if message["type"] == "http.response.start":
                start = message
                return
            body = message.get("body", b"")
            if start is not None:
                if not self._hold(work, len(body)):
                    start = None
                    await _refuse(answer, 503, "too many large answers are on their way (limit `held`)")
                    return
                work.status = start["status"]
                start["headers"] = [*start.get("headers", []), *_facts(work, started)]
                if self._is_draining():
                    start["headers"].append((b"connection", b"close"))
                await send(start)
                start = None
            # In parts, so that what a slow client has not taken is held, and counted, here.
            for at in range(0, len(body), _PART):
                part = {"type": "http.response.body", "body": body[at : at + _PART], "more_body": True}
                if at + _PART < len(body):
                    await send(part)
            rest = body[(len(body) - 1) // _PART * _PART :] if body else b""
            await send({**message, "body": rest})

        try:
            await self._within(scope, receive, answer)
        except _ClientLeft:
            work.status = 499
        except asyncio.CancelledError:
            work.status = work.status or 503
            raise
        except Exception as error:
            _log_failure(work.id, error)
            if not work.status:
                await _refuse(answer, 500, "the server has failed at this request; its log says more under this id")
        finally:
            self._held -= work.held
            status = work.status
            seconds = time.perf_counter() - started
            route = getattr(scope.get("route"), "path_format", "other")
            self._metrics.answered(route, status, seconds, work)
            if self._log and route not in _NOT_LOGGED:
                self._log.write(
                    id=work.id, method=shortened(scope["method"], 10), route=route, status=status,
                    ms=round(1000 * seconds, 2), model=work.model, inputs=work.inputs, tokens=work.tokens,
                    client=(scope.get("client") or [""])[0],
                )  # fmt: skip

    async def _within(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request within its time, or refuse it."""
        headers = _headers(scope)
        if problem := self._problem(scope, headers):
            await _refuse(send, *problem)
            return
        body = b""
        try:
            if b"content-length" in headers or b"transfer-encoding" in headers:
                body = await self._body(receive)
        except _Problem as found:
            await _refuse(send, found.status, found.message, close=True)
            return
        try:
            async with asyncio.timeout(self._limits.seconds):
                await self._while_there(scope, body, receive, send)
        except TimeoutError:
            if _work().status:  # its answer is on the way, to a client that takes it slowly
                raise _ClientLeft from None
            await _refuse(send, 504, f"no answer within {self._limits.seconds} s (limit `seconds`)")

    def _problem(self, scope: Scope, headers: dict[bytes, list[bytes]]) -> tuple[int, str] | None:
        """Return the status and the message for a request that is refused by its headers alone."""
        is_page = scope["path"] == "/" and scope["method"] in ("GET", "HEAD")  # which asks for the key by itself
        if self._digests and not is_page and scope["path"] not in OPEN_ROUTES and not self._has_key(headers):
            return 401, "this server needs a key: send it as the header Authorization: Bearer KEY"
        encoding = b",".join(headers.get(b"content-encoding", [])).strip().lower()
        if encoding not in (b"", b"identity"):
            return 415, "bodies are taken as they are; send this one without Content-Encoding"
        if b"transfer-encoding" in headers and b"content-length" in headers:
            return 400, "a body has a Content-Length or a Transfer-Encoding, not both"
        lengths = headers.get(b"content-length", [])
        if any(int(length) > self._limits.body for length in lengths):
            return 413, f"the body has more than {self._limits.body:,} bytes (limit `body`)"
        return None

    def _has_key(self, headers: dict[bytes, list[bytes]]) -> bool:
        given = headers.get(b"authorization", [])
        if len(given) != 1:
            return False
        kind, _, rest = given[0].strip().partition(b" ")
        key = rest.strip() if kind.lower() == b"bearer" and rest else given[0].strip()
        digest, has_key = hashlib.sha256(key).digest(), False
        for one in self._digests:  # all of them, so that the time says nothing
            has_key |= hmac.compare_digest(digest, one)
        return has_key

    async def _body(self, receive: Receive) -> bytes:
        """Read the body, which has so many seconds at first, and then some for what has come."""
        body = bytearray()
        begun = time.monotonic()
        while True:
            left_s = self._limits.slow_seconds + len(body) / _BYTES_PER_S - (time.monotonic() - begun)
            try:
                async with asyncio.timeout(left_s):
                    message = await receive()
            except TimeoutError:
                raise _Problem(408, f"the body did not come within {self._limits.slow_seconds} s") from None
            if message["type"] == "http.disconnect":
                raise _ClientLeft
            part = message.get("body", b"")
            if not self._hold(_work(), len(part)):
                raise _Problem(429, "the server holds too many bodies at once (limit `held`); try again later")
            body += part
            if len(body) > self._limits.body:
                raise _Problem(413, f"the body has more than {self._limits.body:,} bytes (limit `body`)")
            if not message.get("more_body"):
                return bytes(body)

    def _hold(self, work: Work, size: int) -> bool:
        """Count bytes of bodies and large answers that are in memory; tells whether there is room for them."""
        if self._held + size > self._limits.held and size > _SMALL:
            return False
        self._held += size
        work.held += size
        return True

    async def _while_there(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        """Answer a request, but stop when its client leaves."""
        task = asyncio.current_task()
        assert task is not None
        is_over = has_left = False

        async def watch() -> None:
            nonlocal has_left
            while (await receive())["type"] != "http.disconnect":
                pass
            if not is_over:
                has_left = True
                task.cancel()

        messages = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def replay() -> MutableMapping[str, Any]:
            if (message := next(messages, None)) is not None:
                return message
            await asyncio.Future()  # the watch hears of a client that leaves
            raise AssertionError

        watching = asyncio.ensure_future(watch())
        try:
            await self._app(scope, replay, send)
        except asyncio.CancelledError:
            if has_left and not task.uncancel():
                raise _ClientLeft from None
            raise
        finally:
            is_over = True
            watching.cancel()


class _Problem(Exception):  # noqa: N818
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


class _ClientLeft(Exception):  # noqa: N818
    pass


def _headers(scope: Scope) -> dict[bytes, list[bytes]]:
    found: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        found.setdefault(name.lower(), []).append(value)
    return found


def _facts(work: Work, started: float) -> list[tuple[bytes, bytes]]:
    """Return the headers that say what an answer has cost, in milliseconds and tokens."""
    parts = {"read": work.read_s, "queue": work.queue_s, "compute": work.compute_s}
    parts["total"] = time.perf_counter() - started
    if not work.tokens:
        parts = {"total": parts["total"]}
    timing = ", ".join(f"{name};dur={1000 * seconds:.2f}" for name, seconds in parts.items())
    found = [(b"x-request-id", work.id.encode()), (b"server-timing", timing.encode())]
    return [*found, (b"x-tokens", str(work.tokens).encode())] if work.tokens else found


def _work() -> Work:
    work = WORK.get()
    assert work is not None, "a request has one"
    return work


async def _refuse(send: Send, status: int, message: str, *, close: bool = False) -> None:
    work = WORK.get() or Work()
    body = error_body(status, message, work.id, work.form)
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if status == 429:
        headers.append((b"retry-after", b"1"))
    if close or status in (400, 401, 413, 415):  # the body was not read
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _log_failure(request_id: str, error: Exception) -> None:
    """Log where a request failed and with what kind of error; its message may have the text in it."""
    frames = traceback.extract_tb(error.__traceback__)[-8:]
    places = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in frames]
    _log.error("%s", json.dumps({"id": request_id, "failed": type(error).__name__, "at": places}))
