"""Every table at scale tiny, side by side in processes that are killed, too: some minutes, `make test-reproduce`."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from small_benchmarks import write_all, write_mrpc, write_text

import bertworks as bw
from bertworks.reproduction.jobs import RESULTS, WORK
from bertworks.reproduction.tables import TABLES

pytestmark = pytest.mark.reproduce
QUICK = ["pretrain.train.max_steps=10", "pretrain.train.eval_every=10", "finetune.train.epochs=1"]
GIVEN = {"table1", "table2", "table3", "table4"}  # in which GPT-1 and ELMo have to be given


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("all") / "data")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return tmp_path_factory.mktemp("all") / "out"


@pytest.mark.parametrize("name", TABLES)
def test_every_table_is_measured_in_every_cell(name, data, out):
    results = bw.reproduce(name, data=data, out=out, overrides=QUICK, seeds=1, jobs=2, quiet=True)
    assert results["failed"] == []
    table = TABLES[name]
    for row in results["rows"]:
        own = next((one for one in table.rows if one.id == row["id"]), None)
        if own is None or not own.model or (name in GIVEN and own.model in ("gpt", "elmo")):
            continue
        measured = [column.id for column in table.columns if column.id != "like"]  # it has no files here
        assert list(row["ours"]) == measured, row["id"]
        assert row["commands"]
    assert all(one["verdict"] in ("undecided", "not testable here") for one in results["claims"])  # of one seed
    assert (out / name / f"{name}.html").is_file()
    assert f'id="{name}"' in (out / "index.html").read_text()


def results_of(out):
    """All results without what time and machine they took."""
    found = {}
    for path in sorted((out / RESULTS).rglob("*.json")):
        content = json.loads(path.read_text())
        for name in ("minutes", "commands", "device"):
            content.pop(name, None)
        found[path.relative_to(out).as_posix()] = content
    found |= {path.relative_to(out).as_posix(): path.read_bytes() for path in (out / RESULTS).rglob("*.safetensors")}
    return found


def test_killed_workers_are_resumed_and_the_results_are_the_same(tmp_path):
    write_text(tmp_path / "data")
    write_mrpc(tmp_path / "data")
    command = [sys.executable, "-m", "bertworks", "reproduce", "table5", "--data", str(tmp_path / "data"), "--seeds",
               "1", "--yes", "--quiet", *QUICK]  # fmt: skip
    subprocess.run([*command, "--out", str(tmp_path / "straight")], check=True)
    killed = [*command, "--out", str(tmp_path / "killed"), "--jobs", "2"]
    for seconds in (12, 18):
        process = subprocess.Popen(killed, start_new_session=True)
        time.sleep(seconds)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    subprocess.run(killed, check=True)
    assert results_of(tmp_path / "killed") == results_of(tmp_path / "straight")


def test_a_signal_ends_the_workers_and_the_same_command_resumes(tmp_path):
    write_text(tmp_path / "data")
    write_mrpc(tmp_path / "data")
    command = [sys.executable, "-m", "bertworks", "reproduce", "table5", "--data", str(tmp_path / "data"), "--seeds",
               "1", "--yes", "--out", str(tmp_path / "out"), "--jobs", "2", *QUICK]  # fmt: skip
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("2 of "):
            break
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 143
    assert "resumes" in process.stderr.read()
    before = set(results_of(tmp_path / "out"))
    assert before
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "Table 5" in done.stdout
    assert before < set(results_of(tmp_path / "out"))
    assert not list((tmp_path / "out" / WORK).rglob("*.error.json"))
