"""F4, F5: a disk that is full, read-only, gone or forbidden costs the save, and nothing that was saved before."""

import errno
import os
import re
import resource
import shutil
import subprocess
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
from small_run import (
    assert_whole,
    at_each_call,
    exit_code_of,
    folder_of,
    leftovers_in,
    publish_model,
    save,
    steps_in,
    writer_of,
)

from bertworks.errors import UserError
from bertworks.models.kinds import read_model
from bertworks.train.checkpoint import latest_checkpoint
from bertworks.train.run_folder import hold_run

ROOM = r"it needs [\d,]+ bytes, [\d,]+ are free"
NOBODY = 65534


def refused(run, reason):
    """What a person reads when step 3 cannot be saved."""
    return rf"^cannot save {re.escape(str(folder_of(run, 3)))}: {reason} \({ROOM}\)$"


def assert_only_old_ones(run):
    assert steps_in(run) == [1, 2]
    assert_whole(run, 1)
    assert_whole(run, 2)
    assert leftovers_in(run) == []


@pytest.fixture
def run(tmp_path):
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 1)
    save(tmp_path / "run", 2)
    return tmp_path / "run"


def save_under_limits(run):
    largest = max(path.stat().st_size for path in folder_of(run, 2).iterdir())
    limits = [4096, *range(10_000, largest, (largest - 10_000) // 18), largest - 1]
    assert len(limits) >= 20
    for limit in limits:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
        with pytest.raises(UserError, match=refused(run, "File too large")):
            save(run, 3)
        assert_only_old_ones(run)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, resource.RLIM_INFINITY))
    save(run, 3)


@pytest.mark.fault("F4", trials=20)
def test_files_that_are_cut_short_at_20_limits_cost_no_checkpoint(run):
    """F4(a): the kernel takes a part of the bytes and then refuses with EFBIG; a byte more and it all fits."""
    assert exit_code_of(lambda: save_under_limits(run)) == 0
    assert_whole(run, 3)


def test_a_writer_that_meets_a_full_device_costs_no_checkpoint(run, monkeypatch):
    """F4(b): the kernel's own ENOSPC."""

    def write_to_full_device(folder):
        (folder / "config.json").write_text("{}")
        with open("/dev/full", "wb") as stream:
            stream.write(b"x" * 100_000)

    monkeypatch.setattr("small_run.writer_of", lambda step: writer_of(step)._replace(write=write_to_full_device))
    with pytest.raises(UserError, match=refused(run, "No space left on device")):
        save(run, 3)
    assert_only_old_ones(run)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
def test_a_refusal_of_any_call_of_a_save_leaves_whole_checkpoints(run, tmp_path, monkeypatch, code):
    """F4, F5: simulated, as root is refused nothing: one call fails, before each in turn."""
    twin = shutil.copytree(run, tmp_path / "twin", copy_function=os.link)
    for refused_call in refusable_calls(monkeypatch, lambda: save(twin, 3)):

        def refuse(number, name, path, refused_call=refused_call):
            if number == refused_call:
                raise OSError(code, os.strerror(code), path if isinstance(path, str) else None)

        with at_each_call(monkeypatch, refuse), pytest.raises(UserError, match=refused(run, os.strerror(code))):
            save(run, 3)
        assert_only_old_ones(run)
    save(run, 3)
    assert_whole(run, 3)


def refusable_calls(monkeypatch, work):
    """Numbers of the calls up to the rename that a save cannot do without: not those that tidy up, or find it done."""
    numbers, names = [], []

    def note(number, name, path):
        if "rename" not in names and name != "unlink" and not (name == "mkdir" and os.path.isdir(path)):
            numbers.append(number)
        names.append(name)

    with at_each_call(monkeypatch, note):
        work()
    assert len(numbers) > 20
    return numbers


def test_too_little_room_is_told_before_anything_is_written(run, monkeypatch):
    usage = namedtuple("usage", "total used free")
    needed = sum(parameter.nbytes for parameter in read_model(folder_of(run, 2)).net.parameters()) * 3
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 2 * needed - 1))
    message = f"it needs {needed:,} bytes, {2 * needed:,} should be free, and {2 * needed - 1:,} are"
    with pytest.raises(UserError, match=f"^cannot save .*step-00000003: {message}; free some or choose another disk"):
        save(run, 3)
    assert_only_old_ones(run)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 2 * needed))
    save(run, 3)


def test_a_run_folder_that_is_gone_is_not_made_anew(run):
    """F5: a disk that was unmounted leaves an empty place, which must not be filled."""
    shutil.rmtree(run)
    with pytest.raises(UserError, match=r"cannot save .*step-00000003: the run folder .*run: No such file"):
        save(run, 3)
    assert not run.exists()


def test_a_file_in_place_of_the_checkpoints_is_named(run):
    """F5."""
    shutil.rmtree(run / "checkpoints")
    (run / "checkpoints").write_text("mine")
    with pytest.raises(UserError, match=refused(run, "(File exists|Not a directory)")):
        save(run, 3)
    assert (run / "checkpoints").read_text() == "mine"


@pytest.fixture
def public_folder():
    """A folder that other users may enter, as pytest's own may not."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_folder_that_may_not_be_written_any_more_is_named(public_folder):
    """F5: a real loss of permission; root, whom nothing is refused, becomes another user in a child."""
    run = public_folder / "run"
    run.mkdir()
    save(run, 1)
    save(run, 2)
    if os.geteuid() == 0:
        for path in [run, *run.rglob("*")]:
            os.chown(path, NOBODY, NOBODY)

    def lose_permission():
        if os.geteuid() == 0:
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        save(run, 2)
        os.chmod(run / "checkpoints", 0o500)
        with pytest.raises(UserError, match=refused(run, "Permission denied")):
            save(run, 3)
        assert_only_old_ones(run)
        os.chmod(run / "checkpoints", 0o700)
        save(run, 3, keep=3)
        os.chmod(run, 0o500)
        with pytest.raises(UserError, match=rf"cannot save {run}/model: Permission denied"):
            publish_model(run, writer_of(3))
        with pytest.raises(UserError, match=rf"cannot lock {run}: Permission denied"), hold_run(run):
            pass

    assert exit_code_of(lose_permission) == 0
    assert latest_checkpoint(run).step == 3


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 2.9 MB, where the system lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2800k", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_disk_that_is_really_full_keeps_what_it_has(small_disk, monkeypatch):
    """F4(c): with the room checked beforehand, and filled up by another process after the check."""
    run = small_disk / "run"
    run.mkdir()
    save(run, 1)
    with pytest.raises(UserError, match=r"should be free, and [\d,]+ are"):
        save(run, 2)
    monkeypatch.setattr("bertworks.train.checkpoint.check_room", lambda *_: None)
    (small_disk / "other").write_bytes(bytes(400_000))
    with pytest.raises(UserError, match=rf"No space left on device \({ROOM}\)$"):
        save(run, 2)
    assert (steps_in(run), leftovers_in(run)) == ([1], [])
    assert_whole(run, 1)
