"""Servers with real sockets for tests: in this process with a thread of its own, or `bertworks serve` as a process."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading

from bertworks.config import from_overrides
from bertworks.serving.app import Server
from bertworks.serving.metrics import Metrics
from bertworks.serving.run import bind
from bertworks.serving.service import Service
from bertworks.serving.settings import Limits


class Running:
    """A server that answers."""

    def __init__(self, server, service, port, thread):
        self.server, self.service, self.port, self.thread = server, service, port, thread

    def ask(self, path, body=None, *, method=None, headers=None, key=None):
        """(status, the body's value, headers) of a request; a body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with contextlib.closing(connection):
            sent = {"Content-Type": "application/json"} if body is not None else {}
            if key is not None:
                sent["Authorization"] = f"Bearer {key}"
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method or ("GET" if body is None else "POST"), path, data, sent | (headers or {}))
            answer = connection.getresponse()
            text = answer.read()
        is_json = answer.headers["content-type"] == "application/json" and text
        return answer.status, json.loads(text) if is_json else text, answer.headers

    def results(self, path, **body):
        status, answer, _ = self.ask(path, body)
        assert status == 200, answer
        return answer["results"]

    def send(self, data, *, wait_s=5.0):
        """What comes back for bytes, until the server closes or nothing comes for a while."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait_s) as connection:
            with contextlib.suppress(ConnectionError):
                connection.sendall(data)
            return received(connection)


def received(connection, most=1 << 24):
    """All bytes until the end, a reset or silence."""
    found = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while len(found) < most and (part := connection.recv(65_536)):
            found += part
    return found


@contextlib.contextmanager
def running(*folders, limits=(), keys=(), cors=(), log=None, waits=True):
    """A server of these model folders; with `waits` from when it is ready."""
    service = Service(
        list(map(str, folders)), from_overrides(Limits, limits, "limits"), metrics := Metrics(), device="cpu",
        dtype="float32",
    )  # fmt: skip
    is_ready = threading.Event()
    with contextlib.closing(bind("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        server = Server(service, metrics, keys=keys, cors=cors, log=log, when_ready=is_ready.set)
        thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
        thread.start()
        try:
            while waits and not is_ready.wait(0.01):
                assert thread.is_alive(), server.failure
            yield Running(server, service, port, thread)
        finally:
            server.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


class Process:
    """A server of its own process."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bertworks", "serve", *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE, text=True, env=os.environ | environment,
        )  # fmt: skip
        self.lines = []
        while "serving" not in (line := self.process.stderr.readline()):
            assert line, self.lines
            self.lines.append(line)
        self.lines.append(line)
        self.port = int(line.partition("://")[2].partition(":")[2].split()[0])

    def ask(self, path, body=None, **headers):
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as connection:
            connection.request("POST" if body else "GET", path, body, {"Content-Type": "application/json"} | headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        _, rest = self.process.communicate(timeout=60)
        return self.process.returncode, rest


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as stream:
        return [int(number) for number in stream.read().split()]
