"""`bertworks serve --runner ray`: the same answers by replicas on Ray, one of which is killed under load.

What needs Ray itself is run by `make test-ray`; it starts a Ray of this machine, which must have two cores.
"""

import http.client
import json
import os
import signal
import threading
import time

import numpy as np
import pytest
from servers import Process, children_of
from small_models import write_small_model

import bertworks as bw

KEY = {"Authorization": "Bearer secret"}
NUM_CLIENTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture(scope="module")
def server(folder):
    pytest.importorskip("ray")
    options = ["--runner", "ray", "--workers", "2", "--dtype", "float32", "--limits", "inputs=3000,drain=20"]
    found = Process(folder, *options, BERTWORKS_API_KEY="secret", RAY_USAGE_STATS_ENABLED="0")
    found.warnings = []
    threading.Thread(target=lambda: found.warnings.extend(found.process.stderr), daemon=True).start()
    yield found
    if found.process.poll() is None:
        found.process.terminate()
        found.process.wait(60)


def replicas_of(pid):
    """Return the processes of the replicas that a server has started."""
    found = set()
    for child in children_of(pid):
        try:
            with open(f"/proc/{child}/cmdline") as stream:
                is_replica = "ServeReplica:bertworks" in stream.read()
            found |= {child} if is_replica else replicas_of(child)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def seconds_of(pid):
    with open(f"/proc/{pid}/stat") as stream:
        return sum(map(int, stream.read().rpartition(")")[2].split()[11:13])) / os.sysconf("SC_CLK_TCK")


class Load:
    """Clients that ask one thing after another; notes (when it was sent, when answered, the status or the error)."""

    def __init__(self, port):
        self.port, self.is_over, self.asked = port, False, []
        self.threads = [threading.Thread(target=self.ask, daemon=True) for _ in range(NUM_CLIENTS)]
        for thread in self.threads:
            thread.start()

    def ask(self):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        body = json.dumps({"input": ["the cat sat", "a big dog ran far away"]})
        while not self.is_over:
            sent = time.monotonic()
            try:
                connection.request("POST", "/v1/embeddings", body, {"Content-Type": "application/json"} | KEY)
                answer = connection.getresponse()
                answer.read()
                outcome = answer.status
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                outcome = repr(error)
            self.asked.append((sent, time.monotonic(), outcome))

    def end(self):
        self.is_over = True
        for thread in self.threads:
            thread.join(60)
        return self.asked


def wait_until(is_so, most_s=90.0):
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


# Without Ray


def test_mistakes_with_the_runner_are_told_in_a_line(bertworks, folder, monkeypatch):
    code, _, said = bertworks("serve", folder, "--runner", "spark")
    assert (code, said) == (2, "error: the runner 'spark' is not known; choose local or ray\n")
    monkeypatch.setattr("bertworks.cluster.importlib.util.find_spec", lambda name: None)
    code, _, said = bertworks("serve", folder, "--runner", "ray")
    assert (code, said) == (2, 'error: the runner ray needs Ray: pip install "bertworks[ray]"\n')


# With Ray


@pytest.mark.ray
def test_the_answers_keys_and_limits_are_those_of_one_process(server, folder):
    assert len(replicas_of(server.process.pid)) == 2
    assert server.ask("/readyz") == (200, '{"status":"ready"}')
    assert server.ask("/healthz") == (200, '{"status":"ok"}')
    assert server.ask("/v1/models")[0] == 401
    status, body = server.ask("/v1/models", **KEY)
    assert (status, json.loads(body)["data"][0]["id"]) == (200, "small")
    assert server.ask("/", **KEY)[1].startswith("<!DOCTYPE html>")
    texts = ["the cat sat", "a big dog ran far away", "the mat."]
    status, body = server.ask("/v1/embeddings", json.dumps({"input": texts, "encoding_format": "float"}), **KEY)
    vectors = [one["embedding"] for one in json.loads(body)["data"]]
    expected = bw.load(folder, device="cpu", dtype="float32").embed(texts)
    assert np.abs(np.array(vectors) - expected).max() < 1e-5
    status, body = server.ask("/v1/fill", '{"input": "the cat"}', **KEY)
    assert status == 422
    assert "no [MASK]" in json.loads(body)["error"]["message"]
    status, body = server.ask("/v1/embeddings", json.dumps({"input": ["a"] * 3_001}), **KEY)
    assert status == 422
    assert "limit `inputs`" in json.loads(body)["error"]["message"]
    assert server.ask("/v1/fill", "no JSON", **KEY)[0] == 400
    assert 'bertworks_requests_total{model="small"' in server.ask("/metrics", **KEY)[1]


@pytest.mark.ray
def test_a_killed_replica_fails_only_what_it_computes_and_comes_back(server):
    before = replicas_of(server.process.pid)
    load = Load(server.port)
    time.sleep(2)
    victim = min(before)
    killed = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: len(now := replicas_of(server.process.pid)) == 2 and victim not in now)
    (new,) = replicas_of(server.process.pid) - before
    wait_until(lambda: any("2 replicas of 2 can answer" in line for line in server.warnings))
    back = time.monotonic()
    started_s = seconds_of(new)
    wait_until(lambda: seconds_of(new) > started_s + 0.3)  # it answers, too
    asked = load.end()
    failed = [(sent - killed, answered - killed, outcome) for sent, answered, outcome in asked if outcome != 200]
    print(
        f"{len(asked):,} requests, {len(failed)} failed, of {NUM_CLIENTS} clients; two replicas again after "
        f"{back - killed:.1f} s; failed: {failed}"
    )
    assert all(sent < 0 < answered for sent, answered, _ in failed)  # in flight when it was killed
    assert len(failed) <= NUM_CLIENTS
    assert sum(sent > killed for sent, _, _ in asked) > 100
    assert any("1 replica of 2 can answer; Ray Serve starts others" in line for line in server.warnings)


@pytest.mark.ray
def test_what_is_accepted_is_answered_before_the_end(server):
    body, statuses = json.dumps({"input": ["a big dog ran far away"] * 2_500}), []
    threads = [
        threading.Thread(target=lambda: statuses.append(server.ask("/v1/embeddings", body, **KEY)[0])) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    num_answered = len(statuses)
    server.process.terminate()
    for thread in threads:
        thread.join(60)
    assert server.process.wait(60) == 0
    print(f"{num_answered} of {len(statuses)} were answered before the signal")
    assert num_answered < len(statuses)
    assert statuses == [200] * len(threads)


@pytest.mark.ray
def test_mistakes_on_the_cluster_are_told_in_a_line(bertworks, folder):
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    try:
        for options, expected in (
            ([folder.parent / "nothing"], "error: no model"),
            ([folder, "--threads", "3"], "error: 3 threads: no node of the Ray cluster has so many CPUs"),
            ([folder, "--device", "cuda"], "error: no node of the Ray cluster has a GPU"),
        ):
            code, out, said = bertworks("serve", *options, "--runner", "ray", "--port", "0")
            assert (code, out) == (2, "")
            assert said.splitlines()[-1].startswith(expected)
    finally:
        ray.shutdown()
