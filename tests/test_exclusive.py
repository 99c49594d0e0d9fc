"""F19: two runs never write into one folder, and a run that was killed stands in nobody's way."""

import fcntl
import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from patience import wait_until

from bertworks.errors import UserError
from bertworks.files import LOCK_NAME, exclusive

FORK = multiprocessing.get_context("fork")


def hold(folder, ready, children=0, child_seconds=0.0):
    with exclusive(folder):
        for _ in range(children):
            FORK.Process(target=time.sleep, args=(child_seconds,)).start()
        ready.touch()
        time.sleep(60)


@pytest.fixture
def holder(tmp_path):
    """Gives a function that starts a process which holds tmp_path/run; all are ended."""
    started = []
    (tmp_path / "run").mkdir()

    def start(**options):
        process = FORK.Process(target=hold, args=(tmp_path / "run", tmp_path / "ready"), kwargs=options)
        process.start()
        started.append(process)
        wait_until((tmp_path / "ready").exists)
        return process

    yield start
    for process in started:
        process.kill()
        process.join()


def test_a_second_run_is_refused_and_told_by_whom(holder, tmp_path):
    process = holder()
    name = f"process {process.pid} on {socket.gethostname()}"
    for _ in range(3):
        with (
            pytest.raises(UserError, match=rf"run is in use by {name}; wait until it ends"),
            exclusive(tmp_path / "run"),
        ):
            pytest.fail("it was entered")
    assert json.loads((tmp_path / "run" / LOCK_NAME).read_text())["pid"] == process.pid


def test_the_same_process_is_refused_too(tmp_path):
    with (
        exclusive(tmp_path),
        pytest.raises(UserError, match=f"in use by process {os.getpid()}"),
        exclusive(tmp_path),
    ):
        pytest.fail("it was entered")


@pytest.mark.parametrize("error", [None, RuntimeError, KeyboardInterrupt])
def test_it_is_free_again_behind_the_block_and_nothing_is_left(tmp_path, error):
    for _ in range(2):
        try:
            with exclusive(tmp_path):
                assert (tmp_path / LOCK_NAME).exists()
                if error:
                    raise error
        except (RuntimeError, KeyboardInterrupt):
            assert error
        assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_run_is_taken_over(holder, tmp_path):
    process = holder()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert (tmp_path / "run" / LOCK_NAME).exists()
    started = time.monotonic()
    with exclusive(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / LOCK_NAME).read_text())["pid"] == os.getpid()
    assert time.monotonic() - started < 1


def test_children_of_a_killed_run_are_waited_for(holder, tmp_path):
    """They have inherited the lock, and they end as soon as they notice."""
    process = holder(children=2, child_seconds=1.0)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with exclusive(tmp_path / "run"):
        pass


def test_children_that_do_not_end_are_not_waited_for_for_ever(holder, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.files._ORPHANS_END_S", 0.3)
    process = holder(children=1, child_seconds=3.0)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    with pytest.raises(UserError, match=f"in use by process {process.pid}"), exclusive(tmp_path / "run"):
        pytest.fail("it was entered")


@pytest.mark.parametrize(
    "content",
    ["", "{", "[1]", '{"pid": "x"}', '{"pid": 1, "host": "elsewhere"}', '{"pid": 99999999999999999999, "host": "a"}'],
)
def test_whatever_stands_in_a_file_that_nobody_holds_is_taken_over(tmp_path, content):
    (tmp_path / LOCK_NAME).write_text(content)
    with exclusive(tmp_path):
        assert json.loads((tmp_path / LOCK_NAME).read_text()) == {"pid": os.getpid(), "host": socket.gethostname()}


def test_a_block_that_ends_in_a_forked_child_leaves_the_lock(tmp_path):
    manager = exclusive(tmp_path)
    manager.__enter__()
    pid = os.fork()
    if pid == 0:
        manager.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(pid, 0)
    assert (tmp_path / LOCK_NAME).exists()
    with pytest.raises(UserError, match="in use by"), exclusive(tmp_path):
        pytest.fail("it was entered")
    manager.__exit__(None, None, None)


def test_a_file_that_its_holder_removes_at_that_moment_is_not_the_lock(tmp_path, monkeypatch):
    flock, calls = fcntl.flock, []

    def too_late(descriptor, operation):
        calls.append(descriptor)
        if len(calls) == 1:
            (tmp_path / LOCK_NAME).unlink()
        flock(descriptor, operation)

    monkeypatch.setattr("fcntl.flock", too_late)
    with exclusive(tmp_path):
        assert len(calls) == 2
        with pytest.raises(UserError, match="in use by"), exclusive(tmp_path):
            pytest.fail("it was entered")


SCRIPT = """
import os, sys, time
from pathlib import Path
from bertworks.errors import UserError
from bertworks.files import exclusive

folder, number = Path(sys.argv[1]), sys.argv[2]
for turn in range(60):
    try:
        with exclusive(folder):
            inside = folder / "inside"
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            inside.unlink()
            (folder / number).write_text(str(turn))
    except UserError:
        time.sleep(0.001)
"""


def test_many_that_come_and_go_are_never_inside_together(tmp_path):
    processes = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(tmp_path), str(number)], stderr=subprocess.PIPE)
        for number in range(4)
    ]
    for process in processes:
        assert process.communicate(timeout=60)[1] == b""
    assert any((tmp_path / str(number)).exists() for number in range(4))


def test_a_folder_that_is_not_there_or_not_ours_is_a_user_error(tmp_path):
    for folder in (tmp_path / "nowhere", tmp_path / "file"):
        (tmp_path / "file").touch()
        with pytest.raises(UserError, match=f"cannot lock {folder}"), exclusive(folder):
            pytest.fail("it was entered")


def test_where_files_cannot_be_locked_it_is_said_and_work_goes_on(tmp_path, monkeypatch, caplog):
    def refuse(descriptor, operation):
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", refuse)
    with exclusive(tmp_path):
        pass
    assert "cannot be locked here (No locks available)" in caplog.text
    assert list(tmp_path.iterdir()) == []
