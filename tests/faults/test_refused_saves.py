"""F4, F5: a run whose disk refuses a checkpoint stops with the older ones whole, or goes on if it is told to."""

import json
import logging
import os
import resource
import shutil
import subprocess
import tempfile
from collections import namedtuple
from pathlib import Path

import pytest
import tiny_runs
from small_models import write_small_model
from small_run import leftovers_in, steps_in
from tiny_runs import files_of, lines_of
from toy_tasks import SIZES, write_task
from whole_runs import command, forked, wait_for

import bertworks
from bertworks.config import to_toml
from bertworks.errors import CannotResume, UserError
from bertworks.finetuning.finetune import finetune
from bertworks.report.logs import StepLog
from bertworks.train.checkpoint import latest_checkpoint, read_checkpoint
from bertworks.train.pretrain import Pretraining, pretrain
from bertworks.train.run_folder import replace_model
from bertworks.train.trainer import Trainer

NOBODY = 65534
Usage = namedtuple("Usage", "total used free")
REFUSED = r"cannot save .*step-0000\d+: it needs [\d,]+ bytes, [\d,]+ should be free, and 5 are; free some"


@pytest.fixture
def undisturbed(data, tmp_path):
    run = tmp_path / "undisturbed"
    pretrain(tiny_runs.recipe(), data=data, out=run, device="cpu")
    return files_of(run)


def full_from(monkeypatch, first, last=10**9, free=5):
    """Make the disk full while a run is between two steps."""
    real, rate, now = shutil.disk_usage, Pretraining.learning_rate, [0]

    def rate_of(self, place):
        now[0] = place.step + 1
        return rate(self, place)

    monkeypatch.setattr(Pretraining, "learning_rate", rate_of)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free) if first <= now[0] <= last else real(path))


def test_a_refused_checkpoint_ends_a_run_and_costs_no_older_one(data, tmp_path, monkeypatch, undisturbed):
    full_from(monkeypatch, 20)
    with pytest.raises(UserError, match=REFUSED):
        pretrain(tiny_runs.recipe(), data=data, out=tmp_path / "run", device="cpu")
    assert steps_in(tmp_path / "run") == [7, 14]
    assert latest_checkpoint(tmp_path / "run").step == 14
    assert leftovers_in(tmp_path / "run") == []
    monkeypatch.undo()
    pretrain(tiny_runs.recipe(), data=data, out=tmp_path / "run", device="cpu", resume=True)
    assert files_of(tmp_path / "run") == undisturbed


def test_a_run_that_may_go_on_warns_with_the_room_and_saves_when_there_is_some(
    data, tmp_path, monkeypatch, caplog, undisturbed
):
    full_from(monkeypatch, 20, 30)
    run = tmp_path / "run"
    outcome = pretrain(tiny_runs.recipe(train__on_save_error="continue"), data=data, out=run, device="cpu")
    assert outcome.progress.step == 40
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(said) == 2  # of steps 21 and 28
    assert all("bytes, " in line and line.endswith("; the run continues") for line in said)
    found = files_of(run)
    assert found.keys() == undisturbed.keys()
    different = {name for name in found if found[name] != undisturbed[name]}
    assert different <= {"recipe.toml"}


@pytest.mark.parametrize(("room", "is_published"), [(5, False), (400_000, True)])
def test_in_the_end_the_model_is_tried_all_the_same_and_the_loss_is_told(
    data, tmp_path, monkeypatch, room, is_published
):
    """F4: there is room for a model, or not even that; either way a script learns that something is missing."""
    monkeypatch.setattr(Trainer, "model_bytes", lambda _: 100_000)
    full_from(monkeypatch, 30, free=room)
    run, settings = tmp_path / "run", tiny_runs.recipe(train__on_save_error="continue")
    said = (
        r"ended after step 40, but not all of it is saved: cannot save .*00040"
        if is_published
        else "cannot save .*model"
    )
    with pytest.raises(UserError, match=said):
        pretrain(settings, data=data, out=run, device="cpu")
    assert (run / "model").exists() == is_published
    assert steps_in(run) == [21, 28]
    assert len(lines_of(run)) == len([*range(4, 41, 4), *range(10, 41, 10)])


def test_the_exit_code_tells(data, tmp_path, monkeypatch):
    recipes = {name: tiny_runs.recipe(train__on_save_error=name) for name in ("stop", "continue")}
    full_from(monkeypatch, 38)
    for name, recipe in recipes.items():
        (tmp_path / f"{name}.toml").write_text(to_toml(recipe))
        options = ("--data", data, "--out", tmp_path / name, "--device", "cpu")
        assert command("pretrain", tmp_path / f"{name}.toml", *options, stderr=tmp_path / "err") == 2
        said = (tmp_path / "err").read_text().splitlines()
        assert said[-1].startswith("error: cannot save")
        assert "Traceback" not in "".join(said)


def test_no_line_of_the_log_is_lost_while_the_disk_takes_nothing(data, tmp_path, undisturbed):
    """F4(a): from step 12 to 30 no file may grow beyond 700 bytes; the kernel refuses with EFBIG."""
    run, limits = tmp_path / "run", resource.getrlimit(resource.RLIMIT_FSIZE)
    rate = Pretraining.learning_rate

    def rate_of(self, place):
        is_full = 12 <= place.step < 30
        resource.setrlimit(resource.RLIMIT_FSIZE, (700 if is_full else limits[0], limits[1]))
        return rate(self, place)

    def train_on_a_full_disk():
        Pretraining.learning_rate = rate_of
        pretrain(tiny_runs.recipe(train__on_save_error="continue"), data=data, out=run, device="cpu")

    assert wait_for(forked(train_on_a_full_disk)) == 0
    found = files_of(run)
    assert {name for name in undisturbed if found[name] != undisturbed[name]} <= {"recipe.toml"}


def test_a_log_that_cannot_be_finished_is_told_in_the_end(data, tmp_path, monkeypatch):
    """F4: after all else has been saved."""

    def refuse(self):
        raise UserError(f"cannot write {self.path}: No space left on device")

    monkeypatch.setattr(StepLog, "close", refuse)
    settings = tiny_runs.recipe(train__on_save_error="continue", train__max_steps=3)
    with pytest.raises(UserError, match=r"ended after step 3, but not .* saved: cannot write .*metrics\.jsonl"):
        pretrain(settings, data=data, out=tmp_path / "run", device="cpu")
    assert (tmp_path / "run/model").exists()
    assert steps_in(tmp_path / "run") == [3]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, where the system lets us have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.faults
@pytest.mark.fault("F4", trials=2)
@pytest.mark.parametrize("on_save_error", ["stop", "continue"])
def test_a_disk_that_another_process_fills_up(data, small_disk, tmp_path, monkeypatch, on_save_error, undisturbed):
    """F4(c): really full, to the last byte, behind the check for room; then there is room again."""
    monkeypatch.setattr("bertworks.train.checkpoint.check_room", lambda *_: None)
    monkeypatch.setattr("bertworks.train.run_folder.check_room", lambda *_: None)
    rate, other = Pretraining.learning_rate, small_disk / "other"

    def rate_of(self, place):
        if place.step == 12:
            fill(other)
        elif place.step == 30:
            other.unlink()
        return rate(self, place)

    monkeypatch.setattr(Pretraining, "learning_rate", rate_of)
    run, settings = small_disk / "run", tiny_runs.recipe(train__on_save_error=on_save_error)
    if on_save_error == "stop":
        with pytest.raises(UserError, match="No space left on device"):
            pretrain(settings, data=data, out=run, device="cpu")
        assert steps_in(run) == [7]
        read_checkpoint(run / "checkpoints/step-00000007")
        assert leftovers_in(run) == []
        other.unlink()
        monkeypatch.setattr(Pretraining, "learning_rate", rate)
    pretrain(settings, data=data, out=run, device="cpu", resume=True)
    found = files_of(run)
    assert {name for name in undisturbed if found[name] != undisturbed[name]} <= {"recipe.toml"}


def fill(path):
    with open(path, "wb", buffering=0) as stream:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while stream.write(bytes(size)):
                    pass
            except OSError:
                continue


@pytest.mark.parametrize("on_save_error", ["stop", "continue"])
def test_permission_that_is_lost_in_the_middle_of_a_run(data, on_save_error):
    """F5: chmod 0500 after step 20; root, whom nothing is refused, becomes another user in a child."""
    package = Path(bertworks.__file__).parent
    if os.geteuid() == 0 and not all(folder.stat().st_mode & 0o001 for folder in (package, *package.parents)):
        pytest.skip(f"{package} lies in a folder that only root enters; the child would not find its pages there")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chmod(folder, 0o777)
        copied, run = shutil.copytree(data, folder / "data"), folder / "run"
        for path in (copied, *copied.rglob("*")):
            path.chmod(0o755)
        rate = Pretraining.learning_rate

        def rate_of(self, place):
            if place.step == 20:
                os.chmod(run / "checkpoints", 0o500)
            return rate(self, place)

        def train_as_nobody():
            if os.geteuid() == 0:
                os.setgid(NOBODY)
                os.setuid(NOBODY)
            Pretraining.learning_rate = rate_of
            settings = tiny_runs.recipe(train__on_save_error=on_save_error)
            with pytest.raises(UserError) as caught:
                pretrain(settings, data=copied, out=run, device="cpu")
            (folder / "said").write_text(str(caught.value))

        assert wait_for(forked(train_as_nobody)) == 0
        said = (folder / "said").read_text()
        assert (
            f"cannot save {run}/checkpoints/step-000000{'21' if on_save_error == 'stop' else '40'}: Permission" in said
        )
        assert latest_checkpoint(run).step == 14
        assert (run / "model").exists() == (on_save_error == "continue")
        assert all(json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines())


def test_a_best_model_that_the_disk_refused_is_told_and_is_not_taken_for_the_one_on_the_disk(tmp_path, monkeypatch):
    """F4: in fine-tuning, where the model of a run is that of an evaluation, which may have ended long ago."""
    train, dev = write_task(tmp_path, "classify", num_train=64)
    model, real, steps = write_small_model(tmp_path / "model", **SIZES), replace_model, []

    def replace(run, num_bytes):
        steps.append(len(steps))
        if len(steps) > 1:
            raise CannotResume(f"cannot save {run / 'model'}: no room")
        return real(run, num_bytes)

    monkeypatch.setattr("bertworks.finetuning.session.replace_model", replace)
    settings = ("task.max_length=16", "train.batch_size=16", "train.epochs=5", "optim.lr=3e-3", "train.save_every=4")
    given = {"model": model, "train": train, "dev": dev, "out": tmp_path / "run", "device": "cpu"}
    with pytest.raises(UserError, match=r"ended after step 20, but not all of it is saved: cannot save .*model"):
        finetune("classify", overrides=[*settings, "train.on_save_error=continue"], **given)
    assert len(steps) > 1
    published = json.loads((tmp_path / "run/model/bertworks.json").read_text())
    best = latest_checkpoint(tmp_path / "run").state["memory"]["best"]
    assert best["step"] == published["provenance"]["steps"] == 4
    assert best["metrics"]["accuracy"] == published["metrics"]["dev_accuracy"]
