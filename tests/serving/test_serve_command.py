"""`bertworks serve` as a process: ready, asked, told to end; several processes at one port."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from servers import Process, children_of
from small_models import write_small_model

from bertworks.serving.run import bind

BODY = json.dumps({"input": "the cat"})


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("models") / "small")


@pytest.fixture
def started():
    with contextlib.ExitStack() as stack:

        def start(*arguments, **environment):
            server = Process(*arguments, **environment)
            stack.callback(server.process.wait)
            stack.callback(server.process.kill)
            return server

        yield start


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until(is_so, most_s=60.0):
    end = time.monotonic() + most_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_h17_the_log_says_who_asked_for_what_and_not_the_text(folder, started):
    """H17, H18: the access log, and the end by Ctrl-C; with a key nobody is warned of an address."""
    server = started(folder, "--dtype", "float32", "--host", "0.0.0.0", BERTWORKS_API_KEY="secret")
    assert not any("warning" in line for line in server.lines)
    assert server.ask("/v1/embeddings", BODY)[0] == 401
    assert server.ask("/v1/embeddings", BODY, Authorization="secret")[0] == 200
    assert server.ask("/the cat".replace(" ", "%20"), BODY, Authorization="secret")[0] == 404
    code, rest = server.end(signal.SIGINT)
    lines = [json.loads(line) for line in rest.splitlines()]
    assert (code, [line["status"] for line in lines]) == (0, [401, 200, 404])
    assert {"id", "time", "method", "ms", "model", "tokens"} <= lines[0].keys()
    assert (lines[1]["route"], lines[1]["tokens"], lines[2]["route"]) == ("/v1/embeddings", 4, "other")
    assert "cat" not in rest
    assert "secret" not in rest
    assert str(folder.parent) not in rest


def test_h18_the_address_is_this_machines_own_and_others_are_warned_of(folder, started):
    """H18"""
    server = started("--host", "0.0.0.0", folder, "--no-access-log")
    assert any("can be reached by other machines" in line for line in server.lines)
    assert server.ask("/v1/embeddings", BODY)[0] == 200
    server.end()


def test_processes_share_a_port_are_started_again_and_leave_nothing(folder, started):
    server = started(folder, "--workers", 2, "--no-access-log")
    assert "http://127.0.0.1:" in server.lines[-1]
    first = children_of(server.process.pid)
    assert len(first) == 2
    assert all(server.ask("/v1/embeddings", BODY)[0] == 200 for _ in range(8))
    total = 'bertworks_requests_total{model="small",route="/v1/embeddings",status="200"} 8.0'
    until(lambda: total in server.ask("/metrics")[1])  # of both processes
    os.kill(first[0], signal.SIGKILL)
    until(lambda: len(new := set(children_of(server.process.pid)) - {first[0]}) == 2 and first[1] in new)
    until(lambda: server.ask("/readyz")[0] == 200)
    assert server.ask("/v1/embeddings", BODY)[0] == 200
    every = children_of(server.process.pid)
    _, rest = server.end(signal.SIGKILL)
    assert "started again" in rest
    until(lambda: not any(map(is_alive, every)))


def test_a_taken_port_and_a_wrong_model_are_said_at_once(folder, bertworks):
    with contextlib.closing(bind("127.0.0.1", 0)) as taken:
        code, _, message = bertworks("serve", folder, "--port", taken.getsockname()[1])
    assert (code, "choose another with --port" in message) == (2, True)
    (folder.parent / "empty").mkdir()
    code, _, message = bertworks("serve", folder.parent / "empty", "--port", 0)
    assert code == 2
    assert message.startswith("error: ")


@pytest.mark.nightly
def test_processes_that_cannot_open_a_model_say_it_once(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-m", "bertworks", "serve", str(tmp_path), "--workers", "2", "--port", "0"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert ended.stderr.count("\n") <= 2


def test_without_the_extra_serving_says_what_to_install():
    program = (
        "import sys; sys.modules['fastapi'] = sys.modules['uvicorn'] = None; sys.argv[1:] = ['serve', 'mini']; "
        "from bertworks.cli import main; main()"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    told = 'error: serving needs fastapi and uvicorn: pip install "bertworks[serve]", in a clone ".[serve]"\n'
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", told)
