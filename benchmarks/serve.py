"""How soon `bertworks serve` is ready, and what it adds to the time that a model itself needs for a sentence.

Usage: benchmarks/serve.py [--model MODEL] [--requests N] [--json FILE]. One client, one connection, fp32, one sentence
of some 20 tokens. What is added is the difference of two medians: of a request, from its first byte to its answer's
last, and of `model.embed` (and `model.fill`) of the same sentence in a process of its own, with one thread, as the
server computes a batch this small.
"""

import http.client
import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from measuring import parser, report

TEXT = "The committee met on Tuesday to discuss the new [MASK] and the old one, which nobody had liked very much."


def started(model: str, port: int) -> tuple[subprocess.Popen[bytes], float, float]:
    """Start a server; returns it, and the seconds until it answers anything and until it is ready."""
    begun, answers = time.perf_counter(), None
    process = subprocess.Popen(
        [sys.executable, "-m", "bertworks", "serve", model, "--port", str(port), "--dtype", "float32"],
        stderr=subprocess.DEVNULL,
    )
    while time.perf_counter() - begun < 60:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/readyz")
            status = connection.getresponse().status
            answers = answers or time.perf_counter() - begun
            if status == 200:
                return process, answers, time.perf_counter() - begun
        except OSError:
            pass
        time.sleep(0.005)
    raise SystemExit("the server did not become ready")


def of_requests(port: int, path: str, body: dict[str, object], count: int) -> list[float]:
    """Return the milliseconds of each request on one connection."""
    connection, data = http.client.HTTPConnection("127.0.0.1", port), json.dumps(body).encode()
    found = []
    for _ in range(count):
        begun = time.perf_counter()
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        answer.read()
        found.append(1000 * (time.perf_counter() - begun))
        assert answer.status == 200
    return found[count // 10 :]


def of_calls(model: str, count: int) -> dict[str, float]:
    """Return the median milliseconds of the methods in a process of their own."""
    program = (
        "import json, statistics, sys, time, torch, bertworks as bw\n"
        "torch.set_num_threads(1)\n"
        "model, text, count = bw.load(sys.argv[1], dtype='float32'), sys.argv[2], int(sys.argv[3])\n"
        "def spent(call):\n"
        "    found = []\n"
        "    for _ in range(count):\n"
        "        begun = time.perf_counter(); call(); found.append(1000 * (time.perf_counter() - begun))\n"
        "    return statistics.median(found[count // 10:])\n"
        "print(json.dumps({'embed': spent(lambda: model.embed([text])), 'fill': spent(lambda: model.fill([text]))}))"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program, model, TEXT, str(count)], check=True, capture_output=True, text=True
    )
    return dict(json.loads(ended.stdout))


def main() -> None:
    """Measure, print and write."""
    given = parser(__doc__)
    given.add_argument("--model", default="mini")
    given.add_argument("--requests", type=int, default=1_000)
    given.add_argument("--port", type=int, default=8_790)
    given.add_argument("--starts", type=int, default=5)
    options = given.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles modules when it installs them
    process, _, _ = started(options.model, options.port)
    process.terminate()
    process.wait()
    starts = []
    for number in range(options.starts):
        process, answers, ready = started(options.model, options.port)
        starts.append((answers, ready))
        if number < options.starts - 1:
            process.terminate()
            process.wait()
    try:
        embed = of_requests(
            options.port, "/v1/embeddings", {"input": TEXT, "encoding_format": "base64"}, options.requests
        )
        fill = of_requests(options.port, "/v1/fill", {"input": TEXT}, options.requests)
        tokens = of_requests(options.port, "/v1/tokenize", {"input": TEXT}, options.requests)
    finally:
        process.terminate()
        process.wait()
    alone = of_calls(options.model, options.requests)
    median = {name: statistics.median(found) for name, found in (("embed", embed), ("fill", fill))}
    results: dict[str, Any] = {
        "from the start to /readyz, median, s": statistics.median(ready for _, ready in starts),
        "from the start to the first answer of any kind, median, s": statistics.median(first for first, _ in starts),
    }
    for name, milliseconds in median.items():
        results[f"a request for {name}, median, ms"] = milliseconds
        results[f"{name} in Python with one thread, median, ms"] = alone[name]
        results[f"added to {name}, ms"] = milliseconds - alone[name]
    results["a request for tokens, median, ms"] = statistics.median(tokens)
    report(results, options.json)


if __name__ == "__main__":
    main()
