"""F19: a run folder has one owner, who finds it tidy."""

import os
import signal
import time
from contextlib import nullcontext

import pytest
from small_run import assert_is_of, leftovers_in, publish_model, save, writer_of

from bertworks.errors import UserError
from bertworks.models.kinds import read_model
from bertworks.train.checkpoint import latest_checkpoint
from bertworks.train.run_folder import hold_run

TEMPORARY = ".tmp-x-" + "0" * 32


def hold_for_ever(run):
    pid = os.fork()
    if pid == 0:
        with hold_run(run):
            save(run, 1)
            (run / "ready").touch()
            time.sleep(60)
        os._exit(0)
    while not (run / "ready").exists():
        time.sleep(0.01)
    return pid


def test_a_second_trainer_is_refused_and_takes_over_when_the_first_is_dead(tmp_path):
    """F19: refused with process and host; what the first is writing is not touched; a kill frees the folder."""
    run = tmp_path / "run"
    run.mkdir()
    pid = hold_for_ever(run)
    try:
        (run / "checkpoints" / TEMPORARY).mkdir()
        with (
            pytest.raises(UserError, match=rf"run is in use by process {pid} on .*; wait until it ends"),
            hold_run(run),
        ):
            pass
        assert (run / "checkpoints" / TEMPORARY).exists()
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    with hold_run(run):
        assert leftovers_in(run) == []
        save(run, 2)
        assert_is_of(latest_checkpoint(run), 2)


def test_a_run_folder_is_made_with_those_above_it(tmp_path):
    with hold_run(tmp_path / "deep" / "run"):
        assert (tmp_path / "deep" / "run").is_dir()
    assert os.listdir(tmp_path / "deep" / "run") == []


def test_a_file_in_place_of_the_run_folder_is_a_user_error(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UserError, match=r"cannot make the run folder .*run: File exists"), hold_run(tmp_path / "run"):
        pass


def test_only_leftovers_of_ours_are_removed(tmp_path):
    (tmp_path / "checkpoints" / TEMPORARY).mkdir(parents=True)
    (tmp_path / "checkpoints" / TEMPORARY / "model.safetensors").write_bytes(b"half")
    (tmp_path / TEMPORARY).write_text("half a report")
    (tmp_path / f"{TEMPORARY[:-1]}1").symlink_to(tmp_path)
    for mine in (".tmp-mine", "tmp", ".hidden"):
        (tmp_path / mine).write_text("mine")
    with hold_run(tmp_path):
        pass
    assert sorted(os.listdir(tmp_path)) == [".hidden", ".tmp-mine", "checkpoints", "tmp"]
    assert os.listdir(tmp_path / "checkpoints") == []


def test_leftovers_that_cannot_be_removed_are_a_user_error(tmp_path, monkeypatch):
    (tmp_path / TEMPORARY).write_text("half")

    real = os.unlink

    def refuse(path):
        if path.name == TEMPORARY:
            raise PermissionError(13, "Permission denied", str(path))
        real(path)

    monkeypatch.setattr(os, "unlink", refuse)
    message = "cannot clear up what a killed run left in .*Permission denied"
    with pytest.raises(UserError, match=message), hold_run(tmp_path):
        pass


def test_a_model_that_was_complete_but_not_in_place_is_put_there(tmp_path, monkeypatch):
    """By the next start, and by the next call."""
    publish_model(tmp_path, writer_of(1))
    real = os.rename

    def refuse_the_last(source, target):
        if target == tmp_path / "model":
            raise OSError(5, "Input/output error", str(source))
        real(source, target)

    for step, following in ((2, None), (3, 4)):
        with monkeypatch.context() as patch:
            patch.setattr(os, "rename", refuse_the_last)
            with pytest.raises(UserError, match=r"cannot save .*model: Input/output error"):
                publish_model(tmp_path, writer_of(step))
        assert not (tmp_path / "model").exists()
        with hold_run(tmp_path) if following is None else nullcontext():
            if following is not None:
                publish_model(tmp_path, writer_of(following))
        assert read_model(tmp_path / "model").about["step"] == (following or step)
    assert leftovers_in(tmp_path) == []
