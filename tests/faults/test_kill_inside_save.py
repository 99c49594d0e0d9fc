"""F2: a process that dies at any point of a save costs nothing but that save.

Kills are `os._exit(9)` in a forked child before each call that changes the disk: every file, sync, rename and deletion.
"""

import os
import shutil
import signal
import time

import pytest
from small_run import (
    FILES,
    assert_is_of,
    assert_whole,
    at_each_call,
    calls_of,
    exit_code_of,
    folder_of,
    leftovers_in,
    publish_model,
    save,
    steps_in,
    writer_of,
)
from sweeps import some_of

from bertworks.files import verify_manifest
from bertworks.models.kinds import read_model
from bertworks.train.checkpoint import latest_checkpoint
from bertworks.train.run_folder import hold_run


def start(run, *steps):
    run.mkdir()
    for step in steps:
        save(run, step)
    return run


def killed_before(monkeypatch, call, work):
    """Do some work in a child that dies before its call of that number."""

    def die(number, *_):
        if number == call:
            os._exit(9)

    def work_and_die():
        with at_each_call(monkeypatch, die):
            work()

    return exit_code_of(work_and_die)


@pytest.fixture
def twin(tmp_path):
    """Gives a function that makes runs with checkpoints of steps 1 and 2; links, as nothing writes into them."""
    template = start(tmp_path / "template", 1, 2)

    def make(name):
        return shutil.copytree(template, tmp_path / name, copy_function=os.link)

    return make


def test_a_save_has_the_points_at_which_f2_kills(twin, monkeypatch):
    """The kills below are before each of these calls and so at the eight points of F2 too."""
    run = twin("run")
    calls = calls_of(monkeypatch, lambda: save(run, 3))
    assert any(name == "mkdir" and ".tmp-step-00000003" in path for name, path in calls)
    files = [path.split("/")[-1].removeprefix(".tmp-")[:-33] for name, path in calls if name == "replace"]
    assert set(files[:-1]) == FILES
    assert files[-1] == "manifest.json"
    named, set_aside = [path for name, path in calls if name == "rename"]
    assert ".tmp-step-00000003" in named
    assert set_aside.endswith("/step-00000001")
    assert calls[-1][0] == "rmdir"


def test_a_kill_before_any_call_of_a_save_leaves_whole_checkpoints(twin, monkeypatch, record_property):
    """F2, P3: at every point; then the next start clears up and the save comes out as if nothing had happened."""
    reference = twin("reference")
    num_calls = len(calls_of(monkeypatch, lambda: save(reference, 3)))
    manifest = (folder_of(reference, 3) / "manifest.json").read_bytes()
    found = []
    calls = some_of(range(1, num_calls + 1))
    record_property("trials", len(calls))
    for call in calls:
        run = twin(f"run{call}")
        assert killed_before(monkeypatch, call, lambda run=run: save(run, 3)) == 9
        found.append(assert_nothing_lost(run))
        with hold_run(run):
            assert leftovers_in(run) == []
            save(run, 3)
        assert steps_in(run) == [2, 3]
        assert (folder_of(run, 3) / "manifest.json").read_bytes() == manifest
    assert found == sorted(found)
    assert set(found) == {2, 3}


def synced_and_renamed(monkeypatch, work):
    """What some work syncs (by its place on disk) and renames (by the name it takes away), in order."""
    events = []

    def note(_, name, what):
        if name == "fsync":
            events.append(os.fstat(what).st_ino)
        elif name == "rename":
            events.append(os.path.basename(what))

    with at_each_call(monkeypatch, note):
        work()
    return events


def test_a_power_cut_finds_every_file_on_disk_before_its_name_and_the_name_before_a_deletion(twin, monkeypatch):
    """P3: the order of syncs and renames; no disk keeps to it that is not told."""
    run = twin("run")
    events = synced_and_renamed(monkeypatch, lambda: save(run, 3))
    named = next(place for place, event in enumerate(events) if str(event).startswith(".tmp-step-00000003"))
    files = [folder_of(run, 3), *folder_of(run, 3).iterdir()]
    assert {path.stat().st_ino for path in files} <= set(events[:named])
    assert run.stat().st_ino in events[:named]
    assert events[named + 1 :] == [(run / "checkpoints").stat().st_ino, "step-00000001"]


def test_a_power_cut_finds_a_published_model_on_disk_before_its_name(twin, monkeypatch):
    run = twin("run")
    publish_model(run, writer_of(1))
    events = synced_and_renamed(monkeypatch, lambda: publish_model(run, writer_of(2)))
    parent = run.stat().st_ino
    assert events[-4:] == [parent, "model", ".next-model", parent]
    assert {path.stat().st_ino for path in (run / "model").iterdir()} <= set(events[:-4])


def assert_nothing_lost(run):
    latest = latest_checkpoint(run)
    assert_is_of(latest, latest.step)
    assert_whole(run, 2)
    if latest.step == 2:
        assert_whole(run, 1)
    return latest.step


def test_what_was_half_deleted_when_the_run_died_is_deleted_at_the_next_start(twin, monkeypatch):
    reference, run = twin("reference"), twin("run")
    last_call = len(calls_of(monkeypatch, lambda: save(reference, 3)))
    assert killed_before(monkeypatch, last_call, lambda: save(run, 3)) == 9
    assert steps_in(run) == [2, 3]
    assert len(leftovers_in(run)) == 1
    with hold_run(run):
        assert leftovers_in(run) == []


def test_a_first_save_that_was_killed_is_no_checkpoint_and_no_error(tmp_path, monkeypatch):
    run = start(tmp_path / "run")
    assert killed_before(monkeypatch, 5, lambda: save(run, 1)) == 9
    assert leftovers_in(run) != []
    assert latest_checkpoint(run) is None
    with hold_run(run):
        assert leftovers_in(run) == []


def published_step(run):
    verify_manifest(run / "model")
    return read_model(run / "model").about["step"]


def test_a_kill_before_any_call_of_publishing_leaves_the_old_model_or_the_new(tmp_path, monkeypatch):
    """Between two renames neither has the name; the next start puts the new one there."""
    reference = start(tmp_path / "reference")
    publish_model(reference, writer_of(1))
    num_calls = len(calls_of(monkeypatch, lambda: publish_model(reference, writer_of(2))))
    found = []
    for call in some_of(range(1, num_calls + 1)):
        run = start(tmp_path / f"run{call}")
        publish_model(run, writer_of(1))
        assert killed_before(monkeypatch, call, lambda run=run: publish_model(run, writer_of(2))) == 9
        with hold_run(run):
            found.append(published_step(run))
        assert sorted(path.name for path in run.iterdir()) == ["model"]
        with hold_run(run):
            publish_model(run, writer_of(3))
        assert published_step(run) == 3
    assert found == sorted(found)
    assert set(found) == {1, 2}


@pytest.mark.parametrize("signal_after_s", [0.0, 0.005, 0.013, 0.031, 0.07])
def test_sigkill_at_any_time_leaves_the_newest_checkpoint_whole(tmp_path, signal_after_s):
    """P3: no hooks at all; a child saves without end and the system kills it."""
    run = start(tmp_path / "run", 1)
    pid = os.fork()
    if pid == 0:
        for step in range(2, 10_000):
            save(run, step)
        os._exit(0)
    time.sleep(signal_after_s)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    latest = latest_checkpoint(run)
    assert latest.step == max(steps_in(run))
    assert_is_of(latest, latest.step)
