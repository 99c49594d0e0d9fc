"""Predictions and features on a Ray cluster have the bytes of the local command, whatever happens to a worker.

What needs Ray itself is run by `make test-ray`.
"""

import contextlib
import os
import signal
import threading
import time

import pytest
import torch
from small_models import WORDS, write_small_model

from bertworks.inference import predict
from bertworks.inference import ray as on_ray

NUM_ROWS, ROWS_AT_ONCE = 200, 8
NUM_CHUNKS = NUM_ROWS // ROWS_AT_ONCE


@pytest.fixture(autouse=True)
def _one_thread():
    """As each worker has; with more threads the last digits of scores may be others."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model(tmp_path):
    return write_small_model(
        tmp_path / "model", {"classify": 3}, labels=["good", "bad", "neither"], max_position_embeddings=40
    )


@pytest.fixture
def rows(tmp_path, monkeypatch):
    monkeypatch.setattr(predict, "EXAMPLES_AT_ONCE", ROWS_AT_ONCE)
    path = tmp_path / "rows.csv"
    texts = [
        " ".join(WORDS[(number * 7 + place) % 12] for place in range(1 + number % 9)) for number in range(NUM_ROWS)
    ]
    path.write_text("key,text\n" + "".join(f"k{number},{text}\n" for number, text in enumerate(texts)))
    return path


@pytest.fixture(scope="module")
def two_workers():
    """A Ray of this machine with two CPUs."""
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    yield ray
    ray.shutdown()


def slowly(marks):
    """Compute chunks slowly, and leave a mark for each; as an inner function this travels to workers as it is."""

    def begin(*arguments):
        from bertworks.inference.ray import _begin_predicting  # there it is the real one

        compute = _begin_predicting(*arguments)

        def slow(some):
            (marks / f"{some[0].id}-{os.getpid()}").touch()
            time.sleep(0.1)
            found = compute(some)
            (marks / f"{some[0].id}-done").touch()
            return found

        return slow

    return begin


def kill_one(marks, killed):
    """Kill a worker in the middle of a chunk, when some are done."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        begun = {path.name.split("-")[0]: path.name.split("-")[1] for path in marks.glob("*-[0-9]*")}
        done = {path.name.split("-")[0] for path in marks.glob("*-done")}
        for first in begun.keys() - done:
            if len(done) > 4:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(begun[first]), signal.SIGKILL)
                    killed.append((first, begun[first]))
                    return
        time.sleep(0.01)


# A mistake is told before any work


@pytest.mark.parametrize("command", ["predict", "features"])
def test_without_ray_it_is_said_what_to_install(bertworks, model, rows, tmp_path, monkeypatch, command):
    monkeypatch.setattr("bertworks.cluster.importlib.util.find_spec", lambda name: None)
    out = tmp_path / "out.jsonl"
    code, _, said = bertworks(command, model, rows, "--out", out, "--runner", "ray")
    assert (code, said) == (2, 'error: the runner ray needs Ray: pip install "bertworks[ray]"\n')
    code, _, said = bertworks(command, model, rows, "--out", out, "--runner", "spark")
    assert (code, said) == (2, "error: the runner 'spark' is not known; choose local or ray\n")
    assert not out.exists()


# With Ray


@pytest.mark.ray
@pytest.mark.parametrize("ending", ["jsonl", "csv"])
def test_a_killed_worker_s_rows_are_made_again_and_the_bytes_are_the_same(
    bertworks, model, rows, tmp_path, two_workers, monkeypatch, ending
):
    marks, killed = tmp_path / "marks", []
    marks.mkdir()
    local, out = tmp_path / f"local.{ending}", tmp_path / f"ray.{ending}"
    expected = bertworks("predict", model, rows, "--out", local, "--dtype", "float32")
    monkeypatch.setattr(on_ray, "_begin_predicting", slowly(marks))
    killer = threading.Thread(target=kill_one, args=(marks, killed), daemon=True)
    killer.start()
    found = bertworks("predict", model, rows, "--out", out, "--dtype", "float32", "--runner", "ray")
    killer.join()
    by_us = [line for line in found[2].splitlines() if "(raylet)" not in line]  # which says that a worker was lost
    assert (*found[:2], by_us) == (0, "", expected[2].replace(str(local), str(out)).splitlines())
    ((first, pid),) = killed
    pids = {path.name.split("-")[1] for path in marks.glob(f"{first}-[0-9]*")}
    every = {path.name.split("-")[1] for path in marks.glob("*-[0-9]*")}
    print(f"rows from {first}: worker {pid} was killed, {pids - {pid}} made them again; {len(every)} workers in all")
    assert len(pids) == 2
    assert len(every) >= 3
    assert len(list(marks.glob("*-done"))) == NUM_CHUNKS
    assert out.read_bytes() == local.read_bytes()
    assert len(out.read_text().splitlines()) == NUM_ROWS + (ending == "csv")


@pytest.mark.ray
@pytest.mark.parametrize("ending", ["safetensors", "jsonl"])
def test_features_have_the_same_bytes(bertworks, rows, tmp_path, two_workers, monkeypatch, ending):
    monkeypatch.setattr("bertworks.inference.features._TEXTS_AT_ONCE", 16)
    model, texts = write_small_model(tmp_path / "plain"), tmp_path / "texts.txt"
    texts.write_text("".join(line.partition(",")[2] + "\n" for line in rows.read_text().splitlines()[1:]))
    local, out = tmp_path / f"local.{ending}", tmp_path / f"ray.{ending}"
    options = ["--layers", "-1,0", "--per", "word", "--dtype", "float32"]
    expected = bertworks("features", model, texts, "--out", local, *options)
    found = bertworks("features", model, texts, "--out", out, *options, "--runner", "ray")
    assert found == (0, "", expected[2].replace(str(local), str(out)))
    assert out.read_bytes() == local.read_bytes()


@pytest.mark.ray
def test_progress_is_that_of_the_rows_that_are_written(model, rows, tmp_path, two_workers):
    seen = []
    ensemble = predict.open_models(model, device="cpu")
    count, _ = predict.write_predictions(
        ensemble, rows, tmp_path / "out.jsonl", progress=lambda *shown: seen.append(shown),
        compute=on_ray.compute_on_cluster("cpu", None),
    )  # fmt: skip
    shown = [done for stage, done, total, *_ in seen if (stage, total) == ("predicting", NUM_ROWS)]
    assert count == NUM_ROWS
    assert shown == list(range(ROWS_AT_ONCE, NUM_ROWS + 1, ROWS_AT_ONCE))


@pytest.mark.ray
def test_what_no_node_has_room_for_is_a_user_error(bertworks, model, rows, tmp_path, two_workers):
    out = tmp_path / "out.jsonl"
    code, _, said = bertworks("predict", model, rows, "--out", out, "--runner", "ray", "--threads", "3")
    assert (code, said.splitlines()[-1]) == (
        2, "error: 3 threads: no node of the Ray cluster has so many CPUs; choose at most 2",
    )  # fmt: skip
    code, _, said = bertworks("predict", model, rows, "--out", out, "--runner", "ray", "--device", "cuda")
    assert (code, said.splitlines()[-1]) == (2, "error: no node of the Ray cluster has a GPU; choose --device cpu")
    assert not out.exists()


@pytest.mark.ray
def test_mistakes_in_a_worker_are_told_as_they_are(bertworks, model, rows, tmp_path, two_workers, monkeypatch):
    def begin(*arguments):
        def fail(some):
            from bertworks.errors import UserError

            raise UserError(f"row {some[0].id} is no row")

        return fail

    monkeypatch.setattr(on_ray, "_begin_predicting", begin)
    out = tmp_path / "out.jsonl"
    code, _, said = bertworks("predict", model, rows, "--out", out, "--runner", "ray")
    assert (code, said.splitlines()[-1]) == (2, "error: row 0 is no row")
    assert not out.exists()
