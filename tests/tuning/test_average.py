"""Averaged weights: the mean that is promised, in the model that is kept; training itself does not notice."""

from types import SimpleNamespace

import pytest
import torch
from small_models import PIECES, write_small_model
from tiny_runs import files_of
from torch import nn
from toy_tasks import QUICK, SIZES, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.train.optim import Optimizer
from bertworks.train.settings import OptimSettings
from bertworks.tuning.average import Average
from bertworks.tuning.finetune import finetune
from bertworks.tuning.session import Session
from bertworks.tuning.settings import FinetuneSettings
from bertworks.tuning.trained_rows import TABLE

FINITE, NOT_FINITE = torch.tensor(1.0), torch.tensor(float("nan"))
SETTINGS = (*QUICK, "task.dropout=0.0", "optim.weight_decay=0.1", "train.epochs=3")
LAST = "checkpoints/step-00000018"


@pytest.fixture
def task(tmp_path):
    model = write_small_model(tmp_path / "model", **SIZES)
    train, dev = write_task(tmp_path, "classify")
    return {"model": model, "train": train, "dev": dev, "device": "cpu"}


@pytest.fixture
def optimizer():
    return Optimizer(nn.Linear(3, 2), OptimSettings())


def change(optimizer, generator):
    """Put other numbers into all weights, as an update would."""
    with torch.no_grad():
        for weight in optimizer.weights():
            weight.copy_(torch.randn(weight.shape, generator=generator))
        optimizer.idle.mul_(0.9)


def values(optimizer):
    return [tensor.detach().clone().double() for tensor in (*optimizer.weights(), optimizer.idle)]


@pytest.mark.parametrize("num_updates", [0.5, 1, 4.0, 1e9])
def test_the_mean_is_of_all_weights_at_first_and_then_of_the_last(optimizer, num_updates):
    generator = torch.Generator().manual_seed(1)
    expected, average = values(optimizer), Average(optimizer, num_updates)
    for step in range(12):
        change(optimizer, generator)
        average.follow(step, FINITE)
        share = max(min(1 / num_updates, 1), 1 / (step + 2))
        expected = [(1 - share) * mean + share * now for mean, now in zip(expected, values(optimizer), strict=True)]
    with average.shown():
        torch.testing.assert_close(values(optimizer), expected, rtol=1e-5, atol=1e-6)


def test_with_a_long_reach_it_is_the_plain_mean(optimizer):
    generator, average = torch.Generator().manual_seed(2), Average(optimizer, 1e9)
    seen = [values(optimizer)]
    for step in range(7):
        change(optimizer, generator)
        average.follow(step, FINITE)
        seen.append(values(optimizer))
    with average.shown():
        for mean, all_seen in zip(values(optimizer), zip(*seen, strict=True), strict=True):
            torch.testing.assert_close(mean, torch.stack(all_seen).mean(0), rtol=1e-5, atol=1e-6)


def test_an_update_that_was_not_finite_is_not_taken_in(optimizer):
    average = Average(optimizer, 4)
    change(optimizer, torch.Generator().manual_seed(3))
    before = {name: mean.clone() for name, mean in average.tensors().items()}
    average.follow(0, NOT_FINITE)
    torch.testing.assert_close(average.tensors(), before, rtol=0, atol=0)
    average.follow(0, FINITE)
    assert any(not torch.equal(mean, before[name]) for name, mean in average.tensors().items())


def test_the_weights_are_back_afterwards_whatever_happens(optimizer):
    average = Average(optimizer, 4)
    change(optimizer, torch.Generator().manual_seed(4))
    expected = values(optimizer)

    def fail():
        with average.shown():
            assert not torch.equal(values(optimizer)[0], expected[0])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    torch.testing.assert_close(values(optimizer), expected, rtol=0, atol=0)


def test_the_model_that_is_kept_has_the_mean_in_all_rows_of_its_table(task, tmp_path, monkeypatch):
    """Against a mean over the whole models of all steps, with rows that never occur and are only decayed."""
    nets, stepped = [], Session._stepped

    def recorded(session, place, norm):
        with session.table.whole():
            nets.append({name: weight.clone() for name, weight in session.subject.net.state_dict().items()})
        stepped(session, place, norm)

    monkeypatch.setattr(Session, "_stepped", recorded)
    overrides = (*SETTINGS, "optim.schedule=constant", "optim.warmup=0", "optim.lr=0.01", "task.average=10")
    outcome = finetune("classify", out=tmp_path / "run", overrides=overrides, **task)
    kept, before = (bw.load(folder).net.state_dict() for folder in (tmp_path / "run", task["model"]))
    known = kept.keys() & before.keys() & nets[0].keys()  # the weights of a new head are drawn, so not known before
    assert TABLE in known
    for name in known:
        mean = torch.stack([before[name], *(net[name] for net in nets[: outcome.step])]).mean(0)
        torch.testing.assert_close(kept[name], mean, rtol=1e-4, atol=1e-5, msg=name)
    assert not torch.allclose(kept[TABLE], nets[outcome.step - 1][TABLE], atol=1e-3)
    unused = PIECES.index("!")
    assert kept[TABLE][unused].norm() < before[TABLE][unused].norm() * 0.9999


def test_training_does_not_notice(task, tmp_path):
    finetune("classify", out=tmp_path / "plain", overrides=SETTINGS, **task)
    finetune("classify", out=tmp_path / "mean", overrides=(*SETTINGS, "task.average=0.5"), **task)
    plain, mean = files_of(tmp_path / "plain"), files_of(tmp_path / "mean")
    assert plain[f"{LAST}/model.safetensors"] == mean[f"{LAST}/model.safetensors"]
    assert plain["model/model.safetensors"] != mean["model/model.safetensors"]


def test_a_run_in_two_parts_keeps_the_same_mean_to_the_last_bit(task, tmp_path):
    constant = (*SETTINGS, "optim.schedule=constant", "optim.warmup=2", "task.average=0.7")
    finetune("classify", out=tmp_path / "whole", overrides=constant, **task)
    finetune("classify", out=tmp_path / "parts", overrides=(*constant, "train.max_steps=11"), **task)
    finetune("classify", out=tmp_path / "parts", overrides=constant, resume=True, **task)
    parts, whole = files_of(tmp_path / "parts"), files_of(tmp_path / "whole")
    for name in (f"{LAST}/model.safetensors", f"{LAST}/optimizer.safetensors"):
        assert parts[name] == whole[name], name


def test_weights_that_are_spread_over_ranks_are_not_averaged():
    settings = FinetuneSettings.model_validate({"task": {"average": 0.5}, "train": {"shard": True}})
    with pytest.raises(UserError, match=r"task\.average needs all weights on every rank"):
        Session._averaged(SimpleNamespace(settings=settings), SimpleNamespace(world_size=2))
