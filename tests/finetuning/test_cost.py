"""Device minutes: over all starts of a run, told by its model, and no matter for what a checkpoint holds."""

import json
import os
import signal

import pytest
import torch
from patience import wait_until
from small_models import write_small_model
from toy_tasks import QUICK, SIZES, write_task

import bertworks as bw
from bertworks.files import verify_manifest
from bertworks.finetuning import report as cost
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.report import STARTS_FILE, Clock, device_minutes, device_name, state_cost

CPU = torch.device("cpu")


@pytest.fixture
def clock(monkeypatch):
    """Gives a function that sets the time in seconds."""
    now = [1000.0]
    monkeypatch.setattr(cost.time, "monotonic", lambda: now[0])

    def set_time(seconds):
        now[0] = seconds

    return set_time


def test_all_starts_count_also_those_that_were_killed(clock, tmp_path):
    first = Clock(tmp_path, CPU)
    clock(1060)
    first.note(5)
    clock(1090)
    first.note(9)  # and then it is killed
    second = Clock(tmp_path, CPU, num_devices=4)
    assert second.minutes == pytest.approx(1.5)
    clock(1120)
    assert second.minutes == pytest.approx(1.5 + 4 * 0.5)
    second.note(7)
    second.close()
    lines = [json.loads(line) for line in (tmp_path / STARTS_FILE).read_text().splitlines()]
    assert [(line["step"], line["start"]) for line in lines] == [(5, 1), (9, 1), (7, 2)]
    assert device_minutes(lines) == pytest.approx(3.5)


def test_a_line_that_a_kill_cut_off_is_no_matter(clock, tmp_path):
    (tmp_path / STARTS_FILE).write_text('{"step": 5, "start": 1, "seconds": 60.0, "devices": 1}\n{"step": 6, "sta')
    again = Clock(tmp_path, CPU)
    assert again.minutes == pytest.approx(1.0)
    again.note(6)
    assert [json.loads(line)["start"] for line in (tmp_path / STARTS_FILE).read_text().splitlines()] == [1, 2]


def test_another_rank_writes_nothing(tmp_path):
    Clock(tmp_path, CPU, 2, writes=False).note(3)
    assert not list(tmp_path.iterdir())


def test_devices_have_names():
    assert device_name(CPU, 1).startswith("cpu, ")
    assert device_name(CPU, 3).startswith("3 x cpu")


@pytest.fixture
def files(tmp_path):
    train, dev = write_task(tmp_path / "files", "classify")
    return {"model": write_small_model(tmp_path / "model", **SIZES), "train": train, "dev": dev, "device": "cpu"}


def test_the_model_of_a_run_tells_what_all_of_its_starts_cost(bertworks, files, tmp_path):
    run = tmp_path / "run"
    first = finetune("classify", out=run, overrides=QUICK, **files)
    told_first = bw.load(run).about["provenance"]["minutes"]
    again = finetune("classify", out=run, overrides=QUICK, resume=True, **files)
    assert again.minutes + 1e-3 > first.minutes > first.progress.seconds / 60 > 0
    told = bw.load(run).about["provenance"]
    assert first.progress.seconds / 60 - 1e-3 < told_first <= told["minutes"] < again.minutes + 1e-3
    assert told["device"] == device_name(CPU, 1)
    verify_manifest(run / "model")
    code, _, err = bertworks("evaluate", run, "--task", "classify", "--data", files["dev"])
    assert (code, "fine-tuning took 0." in err, "on cpu, " in err) == (0, True, True)


def test_a_killed_run_counts_and_its_best_model_tells_what_it_took_so_far(files, tmp_path):
    run = tmp_path / "run"
    child = os.fork()
    if not child:
        try:
            finetune("classify", out=run, overrides=[*QUICK, "train.epochs=10000"], **files)
        finally:
            os._exit(0)
    wait_until((run / "model").exists, limit_s=60.0)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    before = device_minutes(
        [json.loads(line) for line in (run / STARTS_FILE).read_text().splitlines() if line[-1:] == "}"]
    )
    assert before > 0
    assert "minutes" in json.loads((run / "model/bertworks.json").read_text())["provenance"]
    assert Clock(run, CPU).minutes >= before


def test_stating_the_cost_keeps_the_weights_and_the_folder_whole(files, tmp_path, monkeypatch):
    run = tmp_path / "run"
    finetune("classify", out=run, overrides=[*QUICK, "train.epochs=1"], **files)
    before = (run / "model/model.safetensors").read_bytes()

    def refuse(*_):
        raise OSError("no links here")

    monkeypatch.setattr(cost.os, "link", refuse)
    state_cost(run, {"minutes": 7.0, "device": "x"})
    assert json.loads((run / "model/bertworks.json").read_text())["provenance"]["minutes"] == 7.0
    assert (run / "model/model.safetensors").read_bytes() == before
    verify_manifest(run / "model")


def test_a_run_without_a_model_yet_has_none_to_tell(tmp_path):
    state_cost(tmp_path, {"minutes": 7.0})
    assert not list(tmp_path.iterdir())
