"""What a server measures of itself, for Prometheus at /metrics, and the access log.

Labels are names that the server knows: its routes, its models, statuses and methods of HTTP. So no caller can add to
them. With several processes on one port each keeps its numbers in files that all can read, in a folder that the parent
makes; whoever is asked adds them up.

The log is one JSON object a line on standard error, without texts, keys or anything else of what was sent but method
and route. It is written by a thread, and lines are dropped when nobody takes them: a full pipe must not stop a server.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from bertworks.serving.batching import Work
from bertworks.serving.settings import METRICS_FOLDER

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048)
_TOKENS = (16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 16_384, 65_536)
_MOST_LINES = 10_000


class Metrics:
    """The counters of a process."""

    def __init__(self) -> None:
        registry = CollectorRegistry()
        self._registry = registry
        both = ["route", "model"]
        self._requests = Counter(
            "bertworks_requests", "Requests that were answered.", [*both, "status"], registry=registry
        )
        self._seconds = Histogram(
            "bertworks_request_seconds", "From the headers to the answer.", both, buckets=_SECONDS, registry=registry
        )
        self._tokens = Counter("bertworks_tokens", "Tokens that were computed.", ["model"], registry=registry)
        self._batches = Histogram(
            "bertworks_batch_sequences", "Sequences of a batch.", ["model"], buckets=_SIZES, registry=registry
        )
        self._batch_tokens = Histogram(
            "bertworks_batch_tokens", "Tokens of a batch.", ["model"], buckets=_TOKENS, registry=registry
        )
        self._compute = Histogram(
            "bertworks_compute_seconds", "Of a batch.", ["model"], buckets=_SECONDS, registry=registry
        )
        self._skipped = Counter(
            "bertworks_skipped", "Requests whose client left before they were computed.", ["model"], registry=registry
        )
        self._queue = Gauge(
            "bertworks_queue_length", "Requests that wait.", ["model"], registry=registry,
            multiprocess_mode="livesum",
        )  # fmt: skip
        self._model = Gauge(
            "bertworks_model_info", "1 for each model that is served.", ["model", "kind", "dtype", "device"],
            registry=registry, multiprocess_mode="max",
        )  # fmt: skip

    def answered(self, route: str, status: int, seconds: float, work: Work) -> None:
        """Count a request."""
        self._requests.labels(route, work.model, status).inc()
        self._seconds.labels(route, work.model).observe(seconds)

    def computed(self, model: str, sequences: int, tokens: int, seconds: float) -> None:
        """Count a batch."""
        self._tokens.labels(model).inc(tokens)
        self._batches.labels(model).observe(sequences)
        self._batch_tokens.labels(model).observe(tokens)
        self._compute.labels(model).observe(seconds)

    def skipped(self, model: str) -> None:
        """Count a request whose client has left."""
        self._skipped.labels(model).inc()

    def queued(self, model: str, length: int) -> None:
        """Note how many requests wait."""
        self._queue.labels(model).set(length)

    def serves(self, model: str, about: dict[str, Any]) -> None:
        """Have a model in the metrics from its start."""
        self._model.labels(model, about["kind"], about["dtype"], about["device"]).set(1)
        self._skipped.labels(model)
        self._queue.labels(model).set(0)

    def text(self) -> bytes:
        """Return everything in Prometheus's text format."""
        registry = self._registry
        if METRICS_FOLDER in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


class AccessLog:
    """Lines of JSON on standard error."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str] = queue.Queue(_MOST_LINES)
        threading.Thread(target=self._write, name="access log", daemon=True).start()

    def write(self, **facts: Any) -> None:
        """Write a line, or drop it where too many wait."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{time.time() % 1 * 1000:03.0f}Z"
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(json.dumps({"time": stamp} | facts))

    def flush(self, most_s: float = 1.0) -> None:
        """Wait until all lines are written, but not for long."""
        until = time.monotonic() + most_s
        while not self._lines.empty() and time.monotonic() < until:
            time.sleep(0.01)

    def _write(self) -> None:
        while True:
            lines = [self._lines.get()]
            while not self._lines.empty() and len(lines) < 100:
                lines.append(self._lines.get())
            try:
                sys.stderr.write("\n".join(lines) + "\n")
                sys.stderr.flush()
            except (OSError, ValueError):  # closed; there is nobody to tell
                pass
