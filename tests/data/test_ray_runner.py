"""Shards made on a Ray cluster are those made on one machine, byte for byte, whatever happens to a worker.

What needs Ray itself is run by `make test-ray`.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from bertworks import Tokenizer
from bertworks.cluster import check_versions, versions
from bertworks.data import prepare as units
from bertworks.data.prepare import Options, prepare
from bertworks.data.ray import check_folder
from bertworks.errors import UserError
from bertworks.files import LOCK_NAME, exclusive
from bertworks.text.corpus import Corpus
from bertworks.text.vocabulary import SPECIAL_TOKENS

LETTERS = "abcdefghij0123456789"
NUM_UNITS = 24
UNIT_BYTES = 2_000


@pytest.fixture
def tokenizer():
    return Tokenizer([*SPECIAL_TOKENS, *LETTERS, *(f"##{letter}" for letter in LETTERS), "."])


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.setattr(units, "UNIT_BYTES", UNIT_BYTES)
    path = tmp_path / "corpus.txt"
    document = "{0} cab bad {0}. face {0} jade.\nhide {0}.\n\n"
    text = ""
    while len(text) < NUM_UNITS * UNIT_BYTES:
        text += document.format(len(text))
    path.write_text(text)
    return path


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def run(corpus, tokenizer, out, **more):
    options = Options(holdout=0.2, drop_duplicates=True)
    return prepare(Corpus([corpus]), tokenizer, out, **options._asdict(), **more)


# A node looks where it is before it writes


def test_a_node_that_does_not_see_the_folder_is_a_user_error(tmp_path):
    (tmp_path / "other").mkdir()
    with exclusive(tmp_path):
        lock = (tmp_path / LOCK_NAME).read_bytes()
        check_folder(tmp_path, lock)
        (tmp_path / "other" / LOCK_NAME).write_text("of another run")
        for folder in (tmp_path / "nowhere", tmp_path / "other"):
            with pytest.raises(UserError, match=f"does not see {folder}; .* on storage that all nodes see"):
                check_folder(folder, lock)


def test_a_node_with_another_version_is_a_user_error():
    check_versions(versions())
    with pytest.raises(UserError, match=r"is on node .*, and 99\.1 with .* where the command runs; install the same"):
        check_versions(("99.1", versions()[1]))


# With Ray. What is made on this machine is made in another process: one in which Ray has run is not to be forked.

SCRIPT = """
import sys
from bertworks.data import prepare as units
from bertworks.data.prepare import Options, prepare
from bertworks.text.corpus import Corpus
from bertworks.text.tokenizer import Tokenizer

corpus, vocabulary, out, unit_bytes = sys.argv[1:]
units.UNIT_BYTES = int(unit_bytes)
options = Options(holdout=0.2, drop_duplicates=True)
prepare(Corpus([corpus]), Tokenizer.from_folder(vocabulary), out, **options._asdict(), workers=2)
"""


def run_locally(corpus, tokenizer, out):
    vocabulary = out.with_name(f"{out.name}-vocabulary")
    tokenizer.save(vocabulary)
    arguments = [str(argument) for argument in (corpus, vocabulary, out, UNIT_BYTES)]
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], check=True, timeout=60)
    return contents(out)


@pytest.fixture
def two_workers():
    """A Ray of this machine with two CPUs."""
    ray = pytest.importorskip("ray")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init(address="local", num_cpus=2, logging_level="ERROR", log_to_driver=False, include_dashboard=False)
    yield ray
    ray.shutdown()


def slowly(marks):
    """Do what is done with a unit, but slowly; as an inner function this travels to the workers as it is."""

    def slow(unit, job):
        from bertworks.data.prepare import make_shard  # there it is the real one

        (marks / f"{unit.number}-{os.getpid()}").touch()
        time.sleep(0.2)
        return make_shard(unit, job)

    return slow


def kill_one(marks, out, killed):
    """Kill a worker in the middle of a unit, when some are done."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        at_work = [path.name.split("-") for path in marks.iterdir()]
        for number, pid in at_work:
            if len(at_work) > 6 and not (out / f"unit-{int(number):05d}.json").exists():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
                    killed.append((number, pid))
                    return
        time.sleep(0.01)


@pytest.mark.ray
def test_a_killed_worker_s_unit_is_made_again_and_the_bytes_are_the_same(
    corpus, tokenizer, tmp_path, two_workers, monkeypatch, capsys
):
    marks, out, killed = tmp_path / "marks", tmp_path / "ray", []
    marks.mkdir()
    expected = run_locally(corpus, tokenizer, tmp_path / "local")
    monkeypatch.setattr(units, "make_shard", slowly(marks))
    killer = threading.Thread(target=kill_one, args=(marks, out, killed), daemon=True)
    killer.start()
    run(corpus, tokenizer, out, workers=2, runner="ray")
    killer.join()
    assert capsys.readouterr().out == ""
    ((number, pid),) = killed
    pids = {path.name.split("-")[1] for path in marks.glob(f"{number}-*")}
    print(f"unit {number}: worker {pid} was killed, {pids - {pid}} made it again; {len(contents(out))} files alike")
    assert len(pids) == 2
    assert len({path.name.split("-")[1] for path in marks.iterdir()}) >= 3
    assert contents(out) == expected
    assert len([name for name in contents(out) if name.endswith("tokens.npy")]) > NUM_UNITS


@pytest.mark.ray
def test_a_cluster_is_started_and_ended_where_there_is_none(corpus, tokenizer, tmp_path, monkeypatch, capfd):
    ray = pytest.importorskip("ray")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run(corpus, tokenizer, tmp_path / "ray", runner="ray", workers=2)
    assert not ray.is_initialized()
    assert contents(tmp_path / "ray") == run_locally(corpus, tokenizer, tmp_path / "local")
    assert capfd.readouterr() == ("", "")


@pytest.mark.ray
def test_two_runs_on_one_cluster_each_have_their_tokenizer(corpus, tokenizer, tmp_path, two_workers):
    other = Tokenizer(tokenizer.pieces[::-1])
    for number, each in enumerate((tokenizer, other)):
        run(corpus, each, tmp_path / f"ray{number}", runner="ray")
        expected = run_locally(corpus, each, tmp_path / f"local{number}")
        assert contents(tmp_path / f"ray{number}") == expected
    assert two_workers.is_initialized()


@pytest.mark.ray
def test_an_interrupted_run_goes_on_with_another_runner(corpus, tokenizer, tmp_path, two_workers):
    with pytest.raises(StoppedError):
        run(corpus, tokenizer, tmp_path / "begun", runner="ray", progress=stop_after(6))
    made = {path.name for path in (tmp_path / "begun").glob("unit-*.json")}
    assert 3 < len(made) < NUM_UNITS
    expected = run_locally(corpus, tokenizer, tmp_path / "local")
    assert run_locally(corpus, tokenizer, tmp_path / "begun") == expected


class StoppedError(Exception):
    """Stands for an interruption."""


def stop_after(count):
    turns = iter(range(count))

    def progress(*shown):
        if next(turns, None) is None:
            raise StoppedError

    return progress


@pytest.mark.ray
def test_errors_of_tasks_are_raised_as_they_are(corpus, tokenizer, tmp_path, two_workers, monkeypatch):
    def full(unit, job):
        from bertworks.errors import UserError

        raise UserError(f"cannot write unit {unit.number}: the disk is full")

    monkeypatch.setattr(units, "make_shard", full)
    with pytest.raises(UserError, match=r"^cannot write unit \d+: the disk is full$"):
        run(corpus, tokenizer, tmp_path / "data", runner="ray")
    assert not (tmp_path / "data").exists()


@pytest.mark.ray
def test_a_unit_that_kills_every_worker_ends_the_run(corpus, tokenizer, tmp_path, two_workers, monkeypatch):
    def die(unit, job):
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(units, "make_shard", die)
    with pytest.raises(UserError, match="the Ray cluster lost a piece of work 4 times"):
        run(corpus, tokenizer, tmp_path / "data", runner="ray")


@pytest.mark.ray
def test_a_cluster_that_cannot_be_reached_is_a_user_error(corpus, tokenizer, tmp_path, monkeypatch):
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UserError, match=r"no Ray cluster can be reached at 127\.0\.0\.1:1, the value of RAY_ADDRESS"):
        run(corpus, tokenizer, tmp_path / "data", runner="ray")
    assert not (tmp_path / "data").exists()
