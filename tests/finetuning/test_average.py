"""The mean of the weights that is measured and kept instead of them: which one it is, and that no kill changes it."""

import pytest
import torch
from small_models import write_small_model
from tiny_runs import files_of, kill_until_through, lines_of
from toy_tasks import QUICK, SIZES, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.finetune import finetune
from bertworks.inference.evaluate import measure_models
from bertworks.inference.predict import Ensemble

STEPS_PER_EPOCH = 6
AVERAGED = (*QUICK, "task.dropout=0.0", "optim.weight_decay=0.1", "train.epochs=2", "task.average=0.5")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    train, dev = write_task(folder, "classify")
    return {"model": write_small_model(folder / "model", **SIZES), "train": train, "dev": dev, "device": "cpu"}


def weights_at(run, step):
    return bw.load(run / f"checkpoints/step-{step:08d}").net.state_dict()


def slow_mean(run, reach, steps):
    """Of the weights behind every update, or every eighth of many, as a formula would have it."""
    mean, every = {}, 8 if reach >= 512 else 1
    for step in range(every, steps + 1, every):
        share = max(every / step, every / reach)
        for name, weight in weights_at(run, step).items():
            before = mean.get(name, torch.zeros_like(weight)).double()
            mean[name] = before + share * (weight.double() - before)
    return mean


@pytest.mark.parametrize("average", [0.1, 0.5, 4, 100])  # less than an update, three, more than there are, many
def test_the_model_that_is_kept_is_the_mean_of_the_weights_of_the_run(task, tmp_path, average):
    every = ("train.save_every=1", "train.keep=100")
    run = tmp_path / "run"
    outcome = finetune("classify", out=run, overrides=(*AVERAGED, *every, f"task.average={average}"), **task)
    expected = slow_mean(run, max(1.0, average * STEPS_PER_EPOCH), outcome.step)
    ours, last = bw.load(run).net.state_dict(), weights_at(run, outcome.step)
    for name, weight in ours.items():
        torch.testing.assert_close(weight.double(), expected[name], rtol=0, atol=1e-6, msg=name)
    differs = max((ours[name] - last[name]).abs().max() for name in ours)
    assert differs > 1e-3 if average * STEPS_PER_EPOCH > 1 else differs < 1e-6


def test_what_is_measured_is_the_model_that_is_kept(task, tmp_path):
    run = tmp_path / "run"
    outcome = finetune("classify", out=run, overrides=AVERAGED, **task)
    again = measure_models(Ensemble([bw.load(run, device="cpu")], ["run"]), "classify", task["dev"])
    assert again.metrics["loss"] == pytest.approx(outcome.metrics["loss"], abs=1e-5)
    assert again.metrics["accuracy"] == outcome.score


def test_training_itself_goes_on_with_the_weights(task, tmp_path):
    finetune("classify", out=tmp_path / "averaged", overrides=AVERAGED, **task)
    finetune("classify", out=tmp_path / "plain", overrides=(*AVERAGED, "task.average=0"), **task)
    name = "checkpoints/step-00000012/model.safetensors"
    assert files_of(tmp_path / "averaged")[name] == files_of(tmp_path / "plain")[name]
    losses = [
        [line["classify_loss"] for line in lines_of(tmp_path / run) if "lr" in line] for run in ("averaged", "plain")
    ]
    assert losses[0] == losses[1]


def test_a_cut_table_has_the_mean_of_the_whole_one(task, tmp_path, monkeypatch):
    finetune("classify", out=tmp_path / "cut", overrides=AVERAGED, **task)
    monkeypatch.setattr("bertworks.finetuning.session.TrainedRows", lambda *_: None)
    finetune("classify", out=tmp_path / "whole", overrides=AVERAGED, **task)
    ours, plain = (bw.load(tmp_path / name).net.state_dict() for name in ("cut", "whole"))
    for name, weight in plain.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=1e-6, msg=name)


@pytest.mark.parametrize("average", [0.5, 100])
def test_resume_is_bit_exact_after_sigkill(task, tmp_path, average):
    """F1: the mean is part of a run's state."""
    overrides = (*QUICK, f"task.average={average}")
    finetune("classify", out=tmp_path / "whole", overrides=overrides, **task)
    run = tmp_path / "killed"
    kill_until_through(lambda: finetune("classify", out=run, overrides=overrides, resume=True, **task), seed=0)
    assert files_of(run) == files_of(tmp_path / "whole")


def test_a_run_goes_on_with_the_same_mean_alone(task, tmp_path):
    finetune("classify", out=tmp_path / "run", overrides=(*AVERAGED, "train.max_steps=7"), **task)
    with pytest.raises(UserError, match="other settings"):
        finetune("classify", out=tmp_path / "run", overrides=(*AVERAGED, "task.average=1"), resume=True, **task)
