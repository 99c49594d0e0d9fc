"""`bw.serve` and `bertworks serve`: from a list of models to a port that answers, and to an orderly end.

The port is bound first, so that a mistake in it is told at once and health is answered while models are opened.
SIGTERM or Ctrl-C: no new connections, /readyz says so, accepted requests are answered within the drain time, exit code
0; a second one ends at once. A model whose thread has failed ends the process with exit code 70, for whoever starts it
again.
"""

import contextlib
import errno
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import uvicorn

from bertworks.config import from_overrides
from bertworks.errors import UserError, printable
from bertworks.serving.app import make_app
from bertworks.serving.batching import Limits
from bertworks.serving.connection import Connection
from bertworks.serving.http import KEY_VARIABLE, read_keys
from bertworks.serving.metrics import AccessLog, Metrics
from bertworks.serving.service import Service, check_names

_FAILED = 70  # as sysexits.h: an internal error
_BACKLOG = 2_048
_KEEP_ALIVE_S = 75
_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    models: str | Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    dtype: str | None = "auto",
    threads: int | None = None,
    api_key_file: str | None = None,
    limits: Sequence[str] = (),
    cors: Sequence[str] = (),
    access_log: bool = True,
) -> None:
    """Serve models over HTTP until a signal ends it; see docs/serving.md.

    Args:
        models: folders or names, as `bw.load` takes them; each is served by the name of its folder.
        host: the address to listen at; others than this machine's own can be reached by others.
        port: 0: any that is free.
        device: auto, cpu, cuda or mps.
        dtype: auto, float32, bfloat16 or int8.
        threads: of the processor, for all models together.
        api_key_file: a file with a key on each line, one of which callers must send; also BERTWORKS_API_KEY.
        limits: such as ["inputs=64", "seconds=10"]; see `Limits`.
        cors: origins whose pages may call the server from a browser.
        access_log: write a line of JSON for each request to standard error.

    Example:
        >>> bw.serve(["mini", "mini-ko"], port=8000)
    """
    sources = [models] if isinstance(models, str) else list(models)
    check_names(sources)
    chosen = from_overrides(Limits, limits, "--limits")
    keys = read_keys(api_key_file)
    if threads is not None:
        import torch

        torch.set_num_threads(threads)
    begun = time.perf_counter()
    metrics = Metrics()
    service = Service(sources, chosen, metrics, device=device, dtype=dtype)
    with contextlib.closing(bind(host, port)) as listener:
        if host not in _LOCAL and not keys:
            _say(
                f"warning: {host} can be reached by other machines, and no key is asked for; set {KEY_VARIABLE}, or "
                "give --api-key-file"
            )
        address, port = listener.getsockname()[:2]
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"

        def ready() -> None:
            _say(f"serving {', '.join(service.models)} at {url} (ready in {time.perf_counter() - begun:.1f} s)")

        log = AccessLog() if access_log else None
        server = Server(service, metrics, keys=keys, cors=cors, log=log, when_ready=ready)
        server.run([listener])
    if log:
        log.flush()
    if server.failure:
        raise server.failure
    if not server.was_told:
        sys.exit(_FAILED)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens at an address."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, protocol, _, address = found[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise UserError(f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', error)}") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except (OSError, OverflowError) as error:
        listener.close()
        advice = "; another program has the port: choose another with --port" if _is_taken(error) else ""
        raise UserError(
            f"cannot listen at {host}, port {port}: {getattr(error, 'strerror', None) or error}{advice}"
        ) from error
    listener.setblocking(False)
    return listener


def _is_taken(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno == errno.EADDRINUSE


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


def _say(text: str) -> None:
    print(printable(text), file=sys.stderr, flush=True)
