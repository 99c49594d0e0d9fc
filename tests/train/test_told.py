"""What a whole run leaves for people: its report, its events, lines on the error stream; and `bertworks report`."""

import itertools
import json
import os
import re
import signal
import threading

import numpy as np
import pytest
import tiny_runs
import torch

from bertworks.config import to_toml
from bertworks.data.loader import Loader, shape_for
from bertworks.errors import UserError
from bertworks.report.logs import training_seconds
from bertworks.report.page import read_samples
from bertworks.train import pretrain as module
from bertworks.train.pretrain import pretrain
from bertworks.train.trainer import Trainer


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    torch.set_num_threads(1)
    run, seen = tmp_path_factory.mktemp("told") / "run", []
    outcome = pretrain(
        tiny_runs.recipe(), data=data, out=run, device="cpu", view=lambda news, status: seen.append((news, status.step))
    )
    return run, outcome, seen


def test_a_run_leaves_a_report_with_its_last_figures(finished):
    run, outcome, _ = finished
    page = (run / "report.html").read_text()
    assert f"{outcome.metrics['holdout_mlm_accuracy']:.1%}" in page
    assert "after 40 steps" in page
    samples = read_samples(run)
    assert len(samples.samples) == 6
    assert 0.5 <= samples.next_majority <= 1
    assert samples.counts["holdout"]["tokens"] > 0


def test_the_number_of_parameters_is_that_of_the_network(finished, data):
    trainer = tiny_runs.trainer_of(tiny_runs.recipe(), data)
    num_parameters = sum(parameter.numel() for parameter in trainer.net.parameters())
    assert f"with {num_parameters:,} parameters" in (finished[0] / "report.html").read_text()


def test_events_are_written_and_the_view_is_told(finished):
    run, _, seen = finished
    (events,) = (run / "tensorboard").iterdir()
    for tag in (b"train/loss", b"holdout/nsp_accuracy", b"tokens_per_second"):
        assert tag in events.read_bytes()
    assert seen[0] == ("begin", 0)
    assert [step for news, step in seen if news == "train"] == list(range(4, 41, 4))
    assert len([news for news, _ in seen if news == "evaluate"]) == 4
    assert len([news for news, _ in seen if news == "save"]) == 6


def test_the_speed_is_that_of_the_last_steps_also_after_a_resume(data, tmp_path):
    run = tmp_path / "run"
    for steps in (20, 40):
        pretrain(tiny_runs.recipe(train__max_steps=steps), data=data, out=run, device="cpu", resume=True)
    timing = [json.loads(line) for line in (run / "timing.jsonl").read_text().splitlines()]
    last, first = (next(line for line in timing if line["step"] == step) for step in (20, 24))
    seconds = first["seconds"] - last["seconds"]
    assert first["tokens_per_second"] * seconds < 256 * 5  # four steps of 256 tokens, not all 24


def test_the_seconds_of_training_are_those_of_all_starts(data, tmp_path):
    """Also where a later start is slower up to its first line than the one before it was in all."""
    run = tmp_path / "run"
    for steps in (4, 8, 12):
        pretrain(tiny_runs.recipe(train__max_steps=steps), data=data, out=run, device="cpu", resume=True)
    seconds = [json.loads(line)["seconds"] for line in (run / "timing.jsonl").read_text().splitlines()]
    assert len(seconds) == 3
    assert seconds == sorted(seconds)
    assert training_seconds([{"seconds": one} for one in seconds]) == seconds[-1]


def test_a_run_in_another_thread_catches_no_signals_and_ends_well(data, tmp_path):
    ended = []
    options = {"data": data, "out": tmp_path / "run", "device": "cpu"}
    thread = threading.Thread(target=lambda: ended.append(pretrain(tiny_runs.recipe(train__max_steps=4), **options)))
    thread.start()
    thread.join()
    assert [outcome.reason for outcome in ended] == ["steps"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ("optim.warmup=40",),
            "the warm-up of 40 steps is as long as the run of 8, so the learning rate",
        ),
        (("train.max_tokens=512",), "train.max_tokens ends the run after some 2 steps, and the learning rate goes by"),
        (("data.short_share=0.5",), "data.short_share changes nothing: data.short_length is not set"),
        (("data.objective=ltr", "data.mask_rate=0.5"), "data.mask_rate changes nothing: objective ltr has no masks"),
        (("data.mask_rate=0.2", "optim.warmup=0.5"), ""),
        (("train.max_tokens=512", "optim.schedule=constant"), ""),
    ],
)
def test_what_changes_nothing_or_comes_to_no_end_is_told(data, tmp_path, overrides, words):
    (tmp_path / "a.toml").write_text(to_toml(tiny_runs.recipe(train__max_steps=8)))
    said = []
    pretrain(tmp_path / "a.toml", overrides=overrides, data=data, out=tmp_path / "run", device="cpu", note=said.append)
    assert [line[: len(words)] for line in said] == ([words] if words else [])


def test_minutes_that_end_a_run_before_its_schedule_are_told(data, tmp_path):
    said, settings = [], tiny_runs.recipe(train__max_steps=100_000, train__max_minutes=0.001)
    outcome = pretrain(settings, data=data, out=tmp_path / "run", device="cpu", note=said.append)
    assert outcome.reason == "minutes"
    assert f"train.max_minutes ends the run after some {outcome.progress.step:,} steps" in said[-1]
    assert said[-1].endswith(f"set train.max_steps={outcome.progress.step}, or optim.clock=true")


def test_a_run_that_is_stopped_has_a_report_too(data, tmp_path, monkeypatch):
    report = Trainer.report

    def report_then_signal(self, progress, *gathered):
        report(self, progress, *gathered)
        if progress.step == 12:
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(Trainer, "report", report_then_signal)
    outcome = pretrain(tiny_runs.recipe(), data=data, out=tmp_path / "run", device="cpu")
    assert outcome.reason == "signal"
    assert "after 12 of at most 40 steps" in (tmp_path / "run/report.html").read_text()


def test_a_report_that_cannot_be_written_fails_no_run(data, tmp_path, monkeypatch, caplog):
    def refuse(_):
        raise UserError("cannot write it: no room")

    monkeypatch.setattr(module, "write_report", refuse)
    outcome = pretrain(tiny_runs.recipe(train__max_steps=4), data=data, out=tmp_path / "run", device="cpu")
    assert outcome.reason == "steps"
    assert "no report of the run: cannot write it: no room" in caplog.text


@pytest.mark.parametrize("objective", ["mlm", "ltr", "rtl"])
def test_every_objective_has_a_report(data, tmp_path, objective):
    run = tmp_path / "run"
    pretrain(tiny_runs.recipe(data__objective=objective, train__max_steps=8), data=data, out=run, device="cpu")
    page = (run / "report.html").read_text()
    assert "Predictions" in page
    assert ("LM accuracy, held out" if objective != "mlm" else "MLM accuracy, held out") in page


def test_the_command_writes_the_same_report_again_or_elsewhere(finished, bertworks, tmp_path):
    run = finished[0]
    before = (run / "report.html").read_bytes()
    (run / "report.html").unlink()
    code, out, err = bertworks("report", run)
    assert (code, out) == (0, "")
    assert err == f"report: {run / 'report.html'}  (open it in a browser)\n"
    assert (run / "report.html").read_bytes() == before
    assert bertworks("report", run, "--out", tmp_path / "other.html")[0] == 0
    assert (tmp_path / "other.html").read_bytes() == before


def test_a_folder_that_is_no_run_is_told_in_a_line(bertworks, tmp_path):
    code, _, err = bertworks("report", tmp_path)
    assert (code, err.count("\n")) == (2, 1)
    assert "not a run folder" in err


TINY = (
    "model.preset=1x32x2", "model.max_positions=64", "data.max_length=32", "optim.lr=3e-3", "optim.warmup=5",
    "train.max_steps=12", "train.batch_size=8", "train.log_every=2", "train.save_every=5", "train.eval_every=6",
)  # fmt: skip


@pytest.mark.parametrize(("options", "num_lines"), [((), 4), (("--quiet",), 0), (("--json",), 0)])
def test_every_evaluation_is_a_line_on_the_error_stream(bertworks, data, tmp_path, options, num_lines):
    command = ("pretrain", "tiny-cpu", *TINY, "--data", data, "--out", tmp_path / "run", "--device", "cpu")
    code, out, err = bertworks(*command, *options)
    assert (code, len(err.splitlines())) == (0, num_lines)
    assert len(out.splitlines()) == (0 if options == ("--quiet",) else 1)
    if num_lines:
        assert err.splitlines()[1].startswith("12 of 12 steps: loss ")
        assert "held out: loss " in err
        run = tmp_path / "run"
        assert err.splitlines()[-2] == f"report: {run}/report.html  (open it in a browser)"
        assert err.splitlines()[-1].startswith(f"next: bertworks finetune classify --model {run} --train")


@pytest.mark.parametrize(("rank", "lines"), [("0", 1), ("1", 0)])
def test_of_several_ranks_one_prints_the_result(bertworks, data, tmp_path, monkeypatch, rank, lines):
    monkeypatch.setenv("RANK", rank)
    (tmp_path / "a.toml").write_text(to_toml(tiny_runs.recipe(train__max_steps=4)))
    code, out, _ = bertworks("pretrain", tmp_path / "a.toml", "--data", data, "--out", tmp_path / "run", "--json")
    assert (code, len(out.splitlines())) == (0, lines)


def test_a_run_that_ends_before_its_first_line_logs_its_loss_and_goes_on_as_if_it_had_not(data, tmp_path):
    short = tiny_runs.recipe(train__max_steps=3)
    pretrain(short, data=data, out=tmp_path / "run", device="cpu")
    (line,) = [line for line in tiny_runs.lines_of(tmp_path / "run") if "lr" in line]
    assert line["step"] == 3
    assert line["loss"] > 0
    constant = tiny_runs.recipe(train__max_steps=3, optim__schedule="constant")
    pretrain(constant, data=data, out=tmp_path / "longer", device="cpu")
    longer = tiny_runs.recipe(train__max_steps=8, optim__schedule="constant")
    pretrain(longer, data=data, out=tmp_path / "whole", device="cpu")
    pretrain(longer, data=data, out=tmp_path / "longer", device="cpu", resume=True)
    lines = {out: [line for line in tiny_runs.lines_of(tmp_path / out) if "lr" in line] for out in ("longer", "whole")}
    assert lines["longer"][1:] == lines["whole"]


def larger_classes(data, recipe, steps):
    """The share of the larger kind of pair in the batches of some steps, counted from the loader's own arrays."""
    shape = shape_for(recipe.data, tokens=recipe.batch_tokens(recipe.data.max_length))
    loader = Loader(module.Dataset(data), recipe.data, shape, seed=recipe.train.seed)
    pairs = [packed for (packed,), _ in itertools.islice(loader.batches(), steps)]
    labels = np.concatenate([packed.next_labels[packed.next_weights > 0] for packed in pairs])
    return max(labels.mean(), 1 - labels.mean())


def test_beside_the_accuracy_of_pairs_stands_what_a_constant_answer_scores(finished, data, tmp_path, bertworks):
    """In training, held out, in the report and in what is printed; also where a run is resumed between two lines."""
    run, outcome, _ = finished
    lines = tiny_runs.lines_of(run)
    training = [line for line in lines if "lr" in line]
    assert training[0]["nsp_larger_class"] == pytest.approx(larger_classes(data, tiny_runs.recipe(), 4))
    held_out = outcome.metrics["holdout_nsp_larger_class"]
    assert 0.5 <= held_out <= 1
    assert held_out == pytest.approx(read_samples(run).next_majority)
    assert f"larger class {held_out:.1%}" in (run / "report.html").read_text()
    resumed = tmp_path / "resumed"
    for steps in (6, 40):
        recipe = tiny_runs.recipe(train__max_steps=steps, optim__schedule="constant")
        pretrain(recipe, data=data, out=resumed, device="cpu", resume=steps == 40, quiet=True)
    whole = tmp_path / "whole"
    pretrain(recipe, data=data, out=whole, device="cpu", quiet=True)
    # The end of the shorter run was measured.
    assert [line for line in tiny_runs.lines_of(resumed) if line["step"] != 6] == tiny_runs.lines_of(whole)
    command = ("pretrain", "tiny-cpu", *TINY, "--data", data, "--out", tmp_path / "run", "--device", "cpu")
    _, out, err = bertworks(*command)
    assert re.search(r"NSP \d+\.\d% \(larger class \d+\.\d%\) right", out)
    assert re.search(r"NSP \d+\.\d% \(larger class \d+\.\d%\); held out: .*, NSP .* \(larger class .*%\);", err)
    masks = tiny_runs.recipe(data__objective="mlm", train__max_steps=8)
    pretrain(masks, data=data, out=tmp_path / "masks", device="cpu", quiet=True)
    assert "larger" not in (tmp_path / "masks/metrics.jsonl").read_text()
