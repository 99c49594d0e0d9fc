"""A client's connection: uvicorn's protocol over h11, with the limits that it lacks.

- Headers must be whole within some seconds of the first byte, or of the connection, and a body may not come in a
  million chunks; addresses, headers and their number are bounded.
- A client that takes its answer a byte at a time is cut off.
- There are at most so many connections.
- An answer that is given before the whole request has come can be read by the client: the connection is closed late.

Whatever is no proper HTTP is answered with an error in the form of this server, and closed.
"""

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from bertworks.serving.http import error_body
from bertworks.serving.settings import Limits

_MOST_HEADERS, _MOST_HEADER_BYTES, _MOST_TARGET_BYTES = 100, 16_384, 8_192
_FREE_PARTS, _BYTES_PER_PART = 1_000, 64  # a body may come in a thousand chunks, and then in larger ones
_LEAST_TAKEN = 65_536  # bytes of an answer that a client takes within `slow_seconds`, or all of it
_LINGER_S = 1.0


class _Wire(h11.Connection):
    """h11's side of a connection, which also refuses headers that are too large or too many, and bodies in crumbs."""

    problem: h11.RemoteProtocolError | None = None
    _num_parts = _num_bytes = 0

    def next_event(self) -> Any:
        """Return the next event; remembers what was wrong."""
        try:
            event = super().next_event()
            if isinstance(event, h11.Data):
                self._num_parts, self._num_bytes = self._num_parts + 1, self._num_bytes + len(event.data)
                if self._num_parts > _FREE_PARTS + self._num_bytes // _BYTES_PER_PART:
                    raise h11.RemoteProtocolError("the body comes in too small chunks", error_status_hint=400)
            elif isinstance(event, h11.Request):
                self._num_parts = self._num_bytes = 0
                if event.http_version not in (b"1.0", b"1.1"):
                    raise h11.RemoteProtocolError("only HTTP/1.1 and 1.0 are spoken here", error_status_hint=505)
                if len(event.target) > _MOST_TARGET_BYTES:
                    raise h11.RemoteProtocolError("the address is too long", error_status_hint=414)
                size = sum(len(name) + len(value) for name, value in event.headers)
                if size > _MOST_HEADER_BYTES or len(event.headers) > _MOST_HEADERS:
                    raise h11.RemoteProtocolError("the headers are too large", error_status_hint=431)
        except h11.RemoteProtocolError as error:
            self.problem = error
            raise
        return event


class _Transport:
    """A connection's transport, which is closed only after a client that still sends has had time to read the answer.

    Otherwise the system would tell the client that the connection is broken, and the answer would be lost. What comes
    after the answer is thrown away.
    """

    def __init__(self, transport: asyncio.Transport, wire: h11.Connection, most_bytes: int) -> None:
        self._transport, self._wire, self._left = transport, wire, most_bytes
        self.is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Tell whether nothing more can be said."""
        return self.is_lingering or self._transport.is_closing()

    def close(self) -> None:
        """Close, or begin to."""
        if self.is_closing() or self._wire.their_state not in (h11.SEND_BODY, h11.ERROR):
            self._transport.close()
            return
        self.is_lingering = True
        self._transport.resume_reading()
        self._transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_S, self._transport.abort)

    def discard(self, data: bytes) -> None:
        """Throw away what comes late."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()


class Connection(H11Protocol):
    """A connection of a client.

    Args:
        limits: of the server.
        options: what uvicorn gives its protocols.
    """

    def __init__(self, limits: Limits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self.conn = self._wire = _Wire(h11.SERVER, _MOST_HEADER_BYTES)
        self._header_timer: asyncio.TimerHandle | None = None
        self._write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin with a connection, or refuse it where there are too many."""
        transport.set_write_buffer_limits(high=0)  # so that a client that takes nothing is noticed at once
        self._client = _Transport(transport, self._wire, self._limits.body)
        super().connection_made(self._client)  # type: ignore[arg-type]
        if len(self.connections) > self._limits.connections:
            self._end(503, "there are too many connections (limit `connections`)")
        else:
            self._header_timer = self.loop.call_later(self._limits.slow_seconds, self._headers_are_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        for timer in (self._header_timer, self._write_timer):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what has come."""
        if self._client.is_lingering:
            self._client.discard(data)
            return
        super().data_received(data)
        self._watch_headers()

    def on_response_complete(self) -> None:
        """Go on to the next request, which may have come already."""
        super().on_response_complete()
        if self._wire.trailing_data[0]:
            self._watch_headers()

    def _watch_headers(self) -> None:
        if self._wire.their_state is not h11.IDLE:
            if self._header_timer is not None:
                self._header_timer.cancel()
                self._header_timer = None
        elif self._header_timer is None and not self._client.is_closing():
            self._header_timer = self.loop.call_later(self._limits.slow_seconds, self._headers_are_late)

    def _headers_are_late(self) -> None:
        self._header_timer = None
        self._end(408, f"no request came within {self._limits.slow_seconds} s")

    def pause_writing(self) -> None:
        """Begin to watch whether the client takes its answer."""
        super().pause_writing()
        self._watch_writing(self._client.get_write_buffer_size())

    def resume_writing(self) -> None:
        """Stop watching: the client has taken everything."""
        super().resume_writing()
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _watch_writing(self, before: int) -> None:
        def check() -> None:
            now = self._client.get_write_buffer_size()
            if now > before - _LEAST_TAKEN:
                self._client.abort()
            else:
                self._watch_writing(now)

        self._write_timer = self.loop.call_later(self._limits.slow_seconds, check)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no proper request."""
        problem = self._wire.problem
        status = problem.error_status_hint if problem is not None else 400
        self._end(status, f"this is not a proper HTTP request: {problem or msg}")

    def _end(self, status: int, message: str) -> None:
        """Answer with an error, if nothing has been answered yet, and close."""
        if self._wire.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self._client.is_closing():
            body, reason = error_body(status, message), STATUS_PHRASES[status].decode()
            head = f"HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
            self._client.write(f"{head}connection: close\r\n\r\n".encode() + body)
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the application still says goes nowhere
            self.cycle.message_event.set()
        self._client.close()
