"""A run's record: both logs, the events and the view hear the same, and a run that goes on continues them."""

import json
import os
import time
from contextlib import closing

import pytest
import torch

from bertworks.recipe import TrainSettings
from bertworks.report.logs import About
from bertworks.train import log as module
from bertworks.train.log import Progress, RunLog, used_memory

CPU = torch.device("cpu")
START = Progress()
ABOUT = About("run", TrainSettings(max_steps=100), ("mlm",))


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(run, steps, start=START, seen=None):
    """RunLog steps of 50 tokens and half a second; evaluate and save at every fourth."""

    def view(news, status):
        if seen is not None:
            seen.append((news, status.step, status.holdout.get("loss"), status.saved_step))

    with closing(RunLog(run, start, ABOUT, CPU, view, is_new=start == START)) as log:
        for step in steps:
            seconds = start.seconds + 0.5 * (step - start.step)
            log.train(Progress(step=step, tokens=50 * step, seconds=seconds), {"loss": 1 / step, "lr": 0.1})
            if step % 4 == 0:
                log.evaluate(step, {"holdout_loss": 2 / step})
                log.sync()
                log.save(step)


def test_metrics_hold_what_comes_again_and_timing_what_does_not(tmp_path):
    before = time.time()
    recorded(tmp_path, range(1, 5))
    assert lines_of(tmp_path / "metrics.jsonl") == [
        *({"step": step, "loss": 1 / step, "lr": 0.1} for step in range(1, 5)),
        {"step": 4, "holdout_loss": 0.5},
    ]
    timing = lines_of(tmp_path / "timing.jsonl")
    assert [(line["step"], line["seconds"], line["tokens_per_second"]) for line in timing] == [
        (step, 0.5 * step, 100.0) for step in range(1, 5)
    ]
    assert all(before - 0.001 <= line["time"] <= time.time() + 0.001 for line in timing)
    assert all(line["memory_bytes"] > 10_000_000 for line in timing)
    (events,) = (tmp_path / "tensorboard").iterdir()
    for tag in (b"train/loss", b"lr", b"tokens_per_second", b"holdout/loss"):
        assert tag in events.read_bytes()


def test_the_view_hears_all_news_with_the_status_behind_it(tmp_path):
    seen = []
    recorded(tmp_path, range(3, 5), seen=seen)
    assert seen == [
        ("begin", 0, None, None),
        ("train", 3, None, None),
        ("train", 4, None, None),
        ("evaluate", 4, 0.5, None),
        ("save", 4, 0.5, 4),
    ]


def test_a_run_that_goes_on_drops_what_it_will_make_again(tmp_path):
    """P1: and its metrics end up as those of a run that was never stopped."""
    for name, end in (("whole", 9), ("parts", 7)):
        (tmp_path / name).mkdir()
        recorded(tmp_path / name, range(1, end))
    seen = []
    recorded(tmp_path / "parts", range(5, 9), Progress(step=4, tokens=200), seen)
    whole, parts = (tmp_path / name / "metrics.jsonl" for name in ("whole", "parts"))
    assert parts.read_bytes() == whole.read_bytes()
    assert seen[0] == ("begin", 4, 0.5, 4)


def test_a_checkpoint_can_count_on_both_logs(tmp_path, monkeypatch):
    synced = []
    with closing(RunLog(tmp_path, Progress(), ABOUT, CPU, is_new=True)) as log:
        monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
        log.sync()
    assert sorted(synced) == sorted((tmp_path / name).stat().st_ino for name in ("metrics.jsonl", "timing.jsonl"))


def test_the_speed_is_that_since_the_line_before_also_after_a_resume(tmp_path):
    start = Progress(step=100, tokens=1_000_000, seconds=0.0)
    with closing(RunLog(tmp_path, start, ABOUT, CPU, is_new=False)) as log:
        for tokens, seconds in ((1_000_500, 5.0), (1_002_500, 10.0), (1_002_600, 10.0)):
            log.train(Progress(step=101, tokens=tokens, seconds=seconds), {"loss": 1.0})
    speeds = [line["tokens_per_second"] for line in lines_of(tmp_path / "timing.jsonl")]
    assert speeds[:2] == [pytest.approx(100), pytest.approx(400)]
    assert speeds[2] > 0


def test_memory_on_a_cpu_is_what_the_process_holds():
    before = used_memory(CPU)
    held = torch.ones(25_000_000)
    assert 50e6 < used_memory(CPU) - before < 200e6
    assert held.sum() == 25_000_000


def test_memory_on_a_gpu_is_the_most_that_tensors_took(monkeypatch):
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 123)
    assert used_memory(torch.device("cuda")) == 123


def test_where_there_is_no_proc_the_most_that_it_ever_held_is_told(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "_STATM", tmp_path / "nowhere")
    assert used_memory(CPU) > 10_000_000


def test_a_line_costs_the_loop_a_fraction_of_a_millisecond(tmp_path):
    with closing(RunLog(tmp_path, Progress(), ABOUT, CPU, is_new=True)) as log:
        for step in range(20):
            log.train(Progress(step=step), {"loss": 1.0})
        started = time.perf_counter()
        for step in range(20, 220):
            log.train(Progress(step=step), {"loss": 1.0, "mlm_accuracy": 0.5, "grad_norm": 1.0, "lr": 1e-4})
        assert (time.perf_counter() - started) / 200 < 0.005


def test_where_the_peak_is_known_the_timing_says_which_share_of_it_is_reached(tmp_path):
    about = ABOUT._replace(flops_per_token=6e6, peak_flops=1e9)
    with closing(RunLog(tmp_path, START, about, CPU, is_new=True)) as log:
        log.train(Progress(step=1, tokens=50, seconds=0.5), {"loss": 1.0})
    (line,) = lines_of(tmp_path / "timing.jsonl")
    assert line["mfu"] == pytest.approx(100 * 6e6 / 1e9)
    assert "mfu" not in (tmp_path / "metrics.jsonl").read_text()
    (events,) = (tmp_path / "tensorboard").iterdir()
    assert b"mfu" in events.read_bytes()
