"""`bw.serve` and `bertworks serve`: from a list of models to a port that answers, and to an orderly end.

The port is bound first, so that a mistake in it is told at once and health is answered while models are opened.
SIGTERM or Ctrl-C: no new connections, /readyz says so, accepted requests are answered within the drain time, exit code
0; a second one ends at once. A model whose thread has failed ends the process with exit code 70, for whoever starts it
again.

With `workers` several processes accept connections from one port, each with its own models and queues. One that dies is
started again; they end with the process that started them, however that ends.
"""

import contextlib
import errno
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any

from bertworks.cluster import is_on_ray
from bertworks.config import from_overrides
from bertworks.errors import UserError, counted, printable
from bertworks.serving.settings import KEY_VARIABLE, METRICS_FOLDER, Limits, check_names, read_keys

_MOST_WORKERS = 256
_LATE_S, _TICK_S = 5.0, 0.05
_BACKLOG = 2_048
_LIBRARIES = ("fastapi", "uvicorn", "prometheus_client")  # of the extra `serve`
_LOCAL = ("127.0.0.1", "localhost", "::1")


def serve(
    models: str | Sequence[str],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    device: str = "auto",
    dtype: str | None = "auto",
    threads: int | None = None,
    workers: int = 1,
    runner: str = "local",
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
        threads: of the processor, for all models of a process; else all cores, shared by the processes.
        workers: how many processes to serve with, each with its own copy of the models.
        runner: where they run: `local`, or `ray` for replicas on a Ray cluster.
        api_key_file: a file with a key on each line, one of which callers must send; also BERTWORKS_API_KEY.
        limits: such as ["inputs=64", "seconds=10"]; see `Limits`.
        cors: origins whose pages may call the server from a browser.
        access_log: write a line of JSON for each request to standard error.

    Example:
        >>> bw.serve(["mini", "mini-ko"], port=8000)
    """
    if missing := [name for name in _LIBRARIES if find_spec(name) is None]:
        raise UserError(f'serving needs {" and ".join(missing)}: pip install "bertworks[serve]", in a clone ".[serve]"')
    sources = [models] if isinstance(models, str) else list(models)
    check_names(sources)
    from_overrides(Limits, limits, "--limits")
    if not 1 <= workers <= _MOST_WORKERS:
        raise UserError(f"{workers} workers are not possible; choose 1 to {_MOST_WORKERS}")
    keys = read_keys(api_key_file)
    begun = time.perf_counter()
    on_ray = is_on_ray(runner)
    if threads is None and workers > 1 and not on_ray:
        threads = max((os.cpu_count() or 1) // workers, 1)
    options = {
        "sources": sources, "device": device, "dtype": dtype, "threads": threads, "keys": keys, "limits": list(limits),
        "cors": list(cors), "access_log": access_log,
    }  # fmt: skip

    def warn() -> None:
        if host not in _LOCAL and not keys:
            say(
                f"warning: {host} can be reached by other machines, and no key is asked for; set {KEY_VARIABLE}, or "
                "give --api-key-file"
            )

    def ready(address: str, port: int, of: str) -> None:
        url = f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"
        names = ", ".join(check_names(sources))
        say(f"serving {names} at {url}{of} (ready in {time.perf_counter() - begun:.1f} s)")

    if on_ray:
        from bertworks.serving.ray import serve_on_ray

        warn()
        of = f" by {counted(workers, 'replica')} on Ray"
        if code := serve_on_ray(host, port, options, workers, lambda port: ready(host, port, of)):
            sys.exit(code)
        return
    with contextlib.closing(bind(host, port)) as listener:
        warn()
        address, port = listener.getsockname()[:2]
        when_ready = partial(ready, address, port, f" by {workers} processes" if workers > 1 else "")
        if workers > 1:
            code = Workers(listener, options, workers, when_ready).run()
        else:
            from bertworks.serving.app import serve_here

            code = serve_here(listener, options, when_ready)
    if code:
        sys.exit(code)


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


def say(text: str) -> None:
    """Write a line about the server, not about a request."""
    print(printable(text), file=sys.stderr, flush=True)


class Workers:
    """Processes that serve at one socket, and the one that looks after them.

    A process says on its standard output when it is ready, or what is wrong with its models. Its standard input is a
    pipe from its parent: when that ends, it drains and ends too.
    """

    def __init__(
        self, listener: socket.socket, options: dict[str, Any], count: int, when_ready: Callable[[], None]
    ) -> None:
        self._listener, self._options, self._count, self._when_ready = listener, options, count, when_ready
        self._running: dict[subprocess.Popen[bytes], dict[str, Any]] = {}
        self._num_told = 0

    def run(self) -> int:
        """Serve until a signal ends it; returns the exit code."""
        handlers = {number: signal.signal(number, self._told) for number in (signal.SIGINT, signal.SIGTERM)}
        folder = tempfile.mkdtemp(prefix="bertworks-metrics-")
        try:
            for _ in range(self._count):
                self._start(folder)
            return self._watch(folder)
        finally:
            for process in self._running:
                process.kill()
                process.wait()
            shutil.rmtree(folder, ignore_errors=True)
            for number, handler in handlers.items():
                signal.signal(number, handler)

    def _watch(self, folder: str) -> int:
        is_ready, told_at = False, 0.0
        drain_s = from_overrides(Limits, self._options["limits"], "--limits").drain + _LATE_S
        while self._running:
            if self._num_told and not told_at:
                told_at = time.monotonic()
                for process in self._running:
                    process.terminate()
            if self._num_told > 1 or (told_at and time.monotonic() - told_at > drain_s):
                return 128 + signal.SIGTERM
            for process, state in list(self._running.items()):
                if process.poll() is None:
                    continue
                del self._running[process]
                self._forget(process.pid, folder)
                if self._num_told:
                    continue
                state["said"].join(1.0)
                if not state.get("ready"):
                    raise UserError(str(state.get("error", f"a process ended with code {process.returncode}")))
                say(f"warning: process {process.pid} has ended with code {process.returncode} and is started again")
                self._start(folder)
            if not is_ready and all(state.get("ready") for state in self._running.values()):
                is_ready = True
                self._when_ready()
            time.sleep(_TICK_S)
        return 0

    def _start(self, folder: str) -> None:
        fd = self._listener.fileno()
        program = f"from bertworks.serving.run import work; work({fd})"
        process = subprocess.Popen(  # noqa: S603 -- ourselves; in a session of its own, as Ctrl-C is for the parent
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[fd],
            start_new_session=True, env=os.environ | {METRICS_FOLDER: folder},
        )  # fmt: skip
        assert process.stdin is not None
        process.stdin.write(json.dumps(self._options).encode() + b"\n")  # not as arguments, which others can see
        process.stdin.flush()
        state: dict[str, Any] = {}

        def listen() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                with contextlib.suppress(ValueError):
                    state.update(json.loads(line))

        state["said"] = threading.Thread(target=listen, daemon=True)
        state["said"].start()
        self._running[process] = state

    def _forget(self, pid: int, folder: str) -> None:
        from prometheus_client import multiprocess

        multiprocess.mark_process_dead(pid, folder)  # type: ignore[no-untyped-call]

    def _told(self, *_: Any) -> None:
        self._num_told += 1


def work(fd: int) -> None:
    """Serve as one of several processes, at the socket with this number; see `Workers`."""
    from bertworks.serving.app import serve_here

    options = json.loads(sys.stdin.readline())

    def end_with_parent() -> None:
        while sys.stdin.read(1):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        code = serve_here(socket.socket(fileno=fd), options, lambda: print('{"ready": true}', flush=True))
    except UserError as error:
        print(json.dumps({"error": str(error)}), flush=True)
        code = 2
    sys.stdout.flush()
    os._exit(code)  # threads that still compute are not waited for
