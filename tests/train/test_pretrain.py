"""The loop and a run folder: what is learnt, logged and saved, where a run stops, and how it goes on."""

import itertools
import json
import os
import shutil
import signal
from functools import partial

import pytest
import tiny_runs
import torch
from sweeps import IS_FULL
from tiny_runs import files_of, lines_of

import bertworks as bw
from bertworks.config import validate
from bertworks.errors import UserError
from bertworks.recipe import Recipe
from bertworks.train import pretrain as module
from bertworks.train.checkpoint import digest_with
from bertworks.train.log import LossWindow, Update
from bertworks.train.objectives import OBJECTIVES
from bertworks.train.pretrain import pretrain
from bertworks.train.trainer import Trainer


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory):
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("finished") / "run"
    outcome = pretrain(tiny_runs.recipe(), data=data, out=run, device="cpu")
    return run, outcome


def test_a_run_learns_logs_evaluates_and_leaves_a_model(finished):
    run, outcome = finished
    assert (outcome.reason, outcome.progress.step) == ("steps", 40)
    training = [line for line in lines_of(run) if "lr" in line]
    assert [line["step"] for line in training] == list(range(4, 41, 4))
    assert training[-1]["mlm_loss"] < training[0]["mlm_loss"]
    evaluations = [line for line in lines_of(run) if "holdout_mlm_accuracy" in line]
    assert [line["step"] for line in evaluations] == [10, 20, 30, 40]
    assert outcome.metrics["holdout_nsp_accuracy"] == evaluations[-1]["holdout_nsp_accuracy"]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-00000035", "step-00000040"]
    model = bw.load(run)
    assert len(model.fill("word1 [MASK] word3.", top_k=3)[0]) == 3
    assert model.about["provenance"]["steps"] == 40
    assert bw.load(run / "checkpoints/step-00000035").fill("[MASK]")


def test_the_same_recipe_gives_the_same_bytes(finished, data, tmp_path):
    """F16."""
    pretrain(tiny_runs.recipe(), data=data, out=tmp_path / "again", device="cpu")
    assert files_of(tmp_path / "again") == files_of(finished[0])


def test_a_run_in_two_parts_equals_a_run_in_one(finished, data, tmp_path):
    """P1: stopped at a step that is no multiple of anything, and with a larger max_steps given when it goes on."""
    settings = {"optim__schedule": "constant"}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    pretrain(tiny_runs.recipe(**settings), data=data, out=whole, device="cpu")
    told = []
    pretrain(tiny_runs.recipe(**settings, train__max_steps=17), data=data, out=parts, device="cpu", note=told.append)
    assert not told
    pretrain(tiny_runs.recipe(**settings), data=data, out=parts, device="cpu", resume=True, note=told.append)
    assert told == ["resuming from step 17"]
    found, expected = files_of(parts), files_of(whole)
    for name in expected.keys() - {"metrics.jsonl"}:  # its recipe says the limits of the last start
        assert found[name] == expected[name], name
    assert [line for line in lines_of(parts) if line["step"] != 17] == lines_of(whole)


@pytest.mark.parametrize("trial", range(3 if IS_FULL else 1))
def test_resume_is_bit_exact_after_sigkill(finished, data, tmp_path, trial):
    """F1: killed at random instants until it is through, some of them inside a save."""
    run, options = tmp_path / "run", {"data": data, "device": "cpu", "resume": True}
    work = partial(pretrain, tiny_runs.recipe(), out=run, **options)
    tiny_runs.kill_until_through(work, trial)
    assert files_of(run) == files_of(finished[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_signal_ends_a_run_between_two_steps_and_it_goes_on_exactly(finished, data, tmp_path, number, monkeypatch):
    """F3."""
    run, report = tmp_path / "run", Trainer.report

    def report_then_signal(self, progress, *gathered):
        report(self, progress, *gathered)
        if progress.step == 12:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(Trainer, "report", report_then_signal)
    outcome = pretrain(tiny_runs.recipe(), data=data, out=run, device="cpu")
    assert (outcome.reason, outcome.progress.step, outcome.signal) == ("signal", 12, number)
    assert (run / "checkpoints/step-00000012").is_dir()
    assert not (run / "model").exists()
    monkeypatch.undo()
    pretrain(tiny_runs.recipe(), data=data, out=run, device="cpu", resume=True)
    assert files_of(run) == files_of(finished[0])


def test_where_steps_take_long_a_run_is_saved_by_the_clock(finished, data, tmp_path):
    """Every step takes longer than a billionth of a minute; from each of them the run goes on exactly."""
    run = tmp_path / "run"
    settings = {"train__save_minutes": 1e-9, "train__keep": 100}
    pretrain(tiny_runs.recipe(**settings), data=data, out=run, device="cpu")
    names = [f"step-{step:08}" for step in range(1, 41)]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == names
    for name in names[17:]:
        shutil.rmtree(run / "checkpoints" / name)
    shutil.rmtree(run / "model")
    pretrain(tiny_runs.recipe(), data=data, out=run, device="cpu", resume=True)
    assert files_of(run) == files_of(finished[0])


def test_a_finished_run_that_is_resumed_does_nothing(finished, data):
    before = files_of(finished[0])
    outcome = pretrain(tiny_runs.recipe(), data=data, out=finished[0], device="cpu", resume=True)
    assert outcome.reason == "steps"
    assert files_of(finished[0]) == before


def test_lower_limits_that_a_run_is_past_leave_its_recipe_alone(finished, data):
    before = files_of(finished[0])
    pretrain(tiny_runs.recipe(train__max_steps=10), data=data, out=finished[0], device="cpu", resume=True)
    assert files_of(finished[0]) == before


@pytest.mark.parametrize("save_every", [7, 8])  # its end is no multiple of it, and is one
def test_checkpoints_that_a_kill_has_left_are_deleted_at_the_end(data, tmp_path, save_every):
    run = tmp_path / "run"
    settings = {"train__save_every": save_every}
    pretrain(tiny_runs.recipe(train__keep=100, **settings), data=data, out=run, device="cpu")
    assert len(list((run / "checkpoints").iterdir())) > 2
    pretrain(tiny_runs.recipe(**settings), data=data, out=run, device="cpu", resume=True)
    left = [f"step-{step:08}" for step in (40 - (40 % save_every or save_every), 40)]
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == left


def test_a_folder_that_is_not_empty_is_refused_without_resume(finished, data):
    with pytest.raises(UserError, match="--resume"):
        pretrain(tiny_runs.recipe(), data=data, out=finished[0], device="cpu")


@pytest.mark.parametrize("resume", [False, True])
def test_a_folder_with_files_of_others_is_not_trained_in(data, tmp_path, resume):
    (tmp_path / "thesis.txt").write_text("of mine")
    with pytest.raises(UserError, match=r"holds no run, but thesis.txt; choose another --out"):
        pretrain(tiny_runs.recipe(), data=data, out=tmp_path, device="cpu", resume=resume)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_recipe_that_says_nothing_of_training_may_go_on_with_another_limit():
    nothing, limit = (validate(Recipe, values, "a test") for values in ({}, {"train": {"max_steps": 500}}))
    assert digest_with(nothing, {}) == digest_with(limit, {})
    assert digest_with(nothing, {}) != digest_with(validate(Recipe, {"train": {"seed": 5}}, "a test"), {})


@pytest.mark.parametrize("changes", [{"optim__lr": 1e-3}, {"data__mask_rate": 0.2}, {"train__seed": 5}])
def test_other_settings_cannot_go_on_with_a_run(finished, data, changes):
    ((key, value),) = changes.items()
    named = rf"{key.replace('__', '.')} was \S+, not {value}"
    with pytest.raises(UserError, match=rf"with other settings or data \({named}\); use the same"):
        pretrain(tiny_runs.recipe(**changes), data=data, out=finished[0], device="cpu", resume=True)


@pytest.mark.parametrize(
    ("limit", "reason"), [({"train__max_tokens": 1_000}, "tokens"), ({"train__max_minutes": 1e-9}, "minutes")]
)
def test_tokens_and_minutes_are_limits_too(data, tmp_path, limit, reason):
    outcome = pretrain(tiny_runs.recipe(**limit), data=data, out=tmp_path / "run", device="cpu")
    assert outcome.reason == reason
    assert outcome.progress.step < 40


def test_a_batch_in_slices_has_the_gradient_of_the_whole(data):
    """N5: the sums of all parts over the counts of all parts, whichever way it is cut."""
    changes = {"train__slices": 4, "model__dropout": 0.0, "train__batch_size": 16}
    trainer = tiny_runs.trainer_of(tiny_runs.recipe(**changes), data)
    parts, _ = next(trainer.task.batches(module.Progress()))
    sums = [trainer.model.inner.objective(trainer.net, part.batch) for part in parts]
    total = sum(
        sum(of_part[kind].loss for of_part in sums) / sum(of_part[kind].total for of_part in sums)
        for kind in ("mlm", "nsp")
    )
    weight = trainer.net.blocks[0].qkv.weight
    (expected,) = torch.autograd.grad(total, weight)
    counts = torch.tensor([sum(column) for column in zip(*(part.counts for part in parts), strict=True)])
    for part in parts:
        trainer.model(part.batch, counts)[0].backward()
    torch.testing.assert_close(weight.grad, expected, atol=1e-6, rtol=1e-5)


def break_loss(monkeypatch, step, value):
    """Make the loss of one step not finite."""
    calls, objective = [], OBJECTIVES["mlm+nsp"]

    def broken(net, batch):
        if net.training:
            calls.append(1)
        sums = objective(net, batch)
        if net.training and len(calls) == step:
            sums["mlm"] = sums["mlm"]._replace(loss=sums["mlm"].loss * value)
        return sums

    monkeypatch.setitem(OBJECTIVES, "mlm+nsp", broken)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_stops_the_run_and_changes_no_weight(data, tmp_path, monkeypatch, value):
    """F11, P6."""
    run = tmp_path / "run"
    pretrain(
        tiny_runs.recipe(train__max_steps=9, optim__schedule="constant"), data=data, out=tmp_path / "nine", device="cpu"
    )
    break_loss(monkeypatch, 10, value)
    with pytest.raises(UserError, match=r"step 10: .*No weight was changed"):
        pretrain(tiny_runs.recipe(optim__schedule="constant"), data=data, out=run, device="cpu")
    name = "checkpoints/step-00000009/model.safetensors"
    assert (run / name).read_bytes() == (tmp_path / "nine" / name).read_bytes()
    monkeypatch.undo()
    outcome = pretrain(tiny_runs.recipe(optim__schedule="constant"), data=data, out=run, device="cpu", resume=True)
    assert outcome.progress.step == 40


def test_on_a_gpu_the_state_from_before_the_batch_is_kept_until_its_norm_is_read(data, tmp_path, monkeypatch):
    """F11: the loop reads it one update later, as on a GPU; that update must not have been made."""

    def add_late(self, update):
        known, self._unread = self._unread, update
        return self._take_in(known)

    changes = {"optim__schedule": "constant", "train__save_every": 1_000}
    monkeypatch.setattr(LossWindow, "add", add_late)
    pretrain(tiny_runs.recipe(**changes, train__max_steps=9), data=data, out=tmp_path / "nine", device="cpu")
    break_loss(monkeypatch, 10, float("nan"))
    with pytest.raises(UserError, match=r"step 10: .*No weight was changed"):
        pretrain(tiny_runs.recipe(**changes), data=data, out=tmp_path / "run", device="cpu")
    found, expected = (tmp_path / run / "checkpoints/step-00000009" for run in ("run", "nine"))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (found / name).read_bytes() == (expected / name).read_bytes()
    # Random numbers and all; but for the end, which the shorter run has measured.
    states = [json.loads((folder / "state.json").read_text()) | {"metrics": {}} for folder in (found, expected)]
    assert states[0] == states[1]


def test_such_updates_are_passed_over_where_that_is_asked_for(data, tmp_path, monkeypatch, caplog):
    break_loss(monkeypatch, 10, float("nan"))
    settings = {"train__on_nonfinite": "skip", "train__max_steps": 14}
    outcome = pretrain(tiny_runs.recipe(**settings), data=data, out=tmp_path / "run", device="cpu")
    assert (outcome.progress.step, outcome.progress.skipped) == (14, 1)
    assert "step 10" in caplog.text


def test_a_huge_learning_rate_trips_and_a_small_one_does_not(data, tmp_path):
    """F12."""
    huge = {"optim__lr": 100.0, "optim__weight_decay": 1.0, "optim__warmup": 0, "optim__clip": 0.0}
    with pytest.raises(UserError, match="not finite"):
        pretrain(tiny_runs.recipe(**huge, train__max_steps=100), data=data, out=tmp_path / "huge", device="cpu")
    small = pretrain(tiny_runs.recipe(optim__lr=1e-4), data=data, out=tmp_path / "small", device="cpu")
    assert small.reason == "steps"


def update(place, sums, norm):
    return Update(place, sums, norm, own=torch.zeros(()), rng=torch.get_rng_state())


def test_a_window_goes_on_from_its_state():
    first, second = LossWindow(), LossWindow()
    place = module.Progress()
    updates = [(torch.rand(2, 3), torch.rand(())) for _ in range(5)]
    for sums, norm in updates[:2]:
        first.add(update(place, sums, norm))
        second.add(update(place, sums, norm))
    second = LossWindow(json.loads(json.dumps(second.state())))
    for sums, norm in updates[2:]:
        first.add(update(place, sums, norm))
        second.add(update(place, sums, norm))
    assert first.take() == second.take()
    assert first.take() == {"sums": [], "norm": 0.0}


@pytest.mark.parametrize("objective", ["mlm", "ltr", "rtl"])
def test_every_objective_learns_and_its_model_opens(data, tmp_path, objective):
    run = tmp_path / "run"
    outcome = pretrain(
        tiny_runs.recipe(data__objective=objective, train__max_steps=60), data=data, out=run, device="cpu"
    )
    kind = "mlm" if objective == "mlm" else "lm"
    losses = [line[f"{kind}_loss"] for line in lines_of(run) if "lr" in line]
    assert losses[-1] < losses[0] - 0.1
    assert 0 <= outcome.metrics[f"holdout_{kind}_accuracy"] <= 1
    direction = {"mlm": "both", "ltr": "left_to_right", "rtl": "right_to_left"}[objective]
    assert bw.load(run).net.config.direction == direction


@pytest.mark.parametrize("objective", ["ltr", "rtl"])
@pytest.mark.parametrize("rows", [7, 10_000])
def test_language_models_guess_the_neighbours_inside_each_text(data, monkeypatch, objective, rows):
    monkeypatch.setattr("bertworks.nn.bert._SCORES_AT_ONCE", rows * 46)
    changes = {"data__objective": objective, "model__dropout": 0.0}
    trainer = tiny_runs.trainer_of(tiny_runs.recipe(**changes), data)
    (part,), _ = next(trainer.task.batches(module.Progress()))
    sums = trainer.model.inner.objective(trainer.net, part.batch)["lm"]
    tokens, expected, count = part.batch.tokens, 0.0, 0
    hidden = trainer.net(tokens)
    logits = trainer.net.heads["mlm"](hidden, trainer.net.embeddings.token.weight).log_softmax(-1)
    starts = tokens.packing.cumulative_lengths[: len(part.batch.next_labels) + 1].tolist()
    for first, end in itertools.pairwise(starts):
        for place in range(first, end - 1):
            guesser, guessed = (place, place + 1) if objective == "ltr" else (place + 1, place)
            expected -= logits[guesser, tokens.token_ids[guessed]].item()
            count += 1
    assert sums.loss.item() == pytest.approx(expected, rel=1e-4)
    assert (sums.total.item(), part.counts) == (count, [count])
    sums.loss.backward()
    assert trainer.net.heads["mlm"].dense.weight.grad.abs().sum() > 0


class OnDevice:
    """A norm as on a GPU, where it is read one update later."""

    is_cuda = True

    def __init__(self, value):
        self.value = torch.tensor(value)

    def isfinite(self):
        return self.value.isfinite()

    def __float__(self):
        return float(self.value)


def test_on_a_gpu_an_update_is_read_one_later_and_before_a_save():
    window, places = LossWindow(), [module.Progress(step=step) for step in range(3)]
    sums = torch.ones(2, 3)
    assert window.add(update(places[0], sums, OnDevice(1.0))) is None
    assert window.state()["sums"] == []
    assert window.add(update(places[1], sums, OnDevice(float("nan")))) is None
    assert window.state()["sums"] == sums.tolist()
    assert window.add(update(places[2], sums, OnDevice(2.0))).before == places[1]
    assert window.settle() is None
    assert window.state() == {"sums": (2 * sums).tolist(), "norm": 2.0}
    assert window.settle() is None


def test_the_end_is_measured_once_however_often_a_run_is_resumed(data, tmp_path):
    """The last evaluation stands before the last checkpoint, so that whoever goes on has it already."""
    run, uneven = tmp_path / "run", {"train__max_steps": 14, "train__eval_every": 10}
    outcome = pretrain(tiny_runs.recipe(**uneven), data=data, out=run, device="cpu")
    before = files_of(run)
    assert [line["step"] for line in lines_of(run) if "holdout_loss" in line] == [10, 14]
    again = pretrain(tiny_runs.recipe(**uneven), data=data, out=run, device="cpu", resume=True)
    assert again.metrics == outcome.metrics
    assert files_of(run) == before
