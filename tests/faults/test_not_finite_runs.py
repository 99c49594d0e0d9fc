"""F11 in full, for one rank: a NaN or an infinity, wherever it arises, changes no weight and can be met again."""

import pytest
import tiny_runs
import torch
from tiny_runs import lines_of

from bertworks.errors import UserError
from bertworks.models.weights import read_weights
from bertworks.train.objectives import OBJECTIVES
from bertworks.train.pretrain import pretrain

pytestmark = pytest.mark.faults
STEP = 10


def in_the_loss(net, sums, value):
    return sums | {"mlm": sums["mlm"]._replace(loss=sums["mlm"].loss * value)}


def in_the_loss_alone(net, sums, value):
    """As when a sum overflows: every gradient is finite."""
    return sums | {"mlm": sums["mlm"]._replace(loss=sums["mlm"].loss + value)}


def in_one_gradient(net, sums, value):
    """One number of one matrix, which no loss shows."""

    def spoil(gradient):
        handle.remove()
        spoilt = gradient.clone()
        spoilt[3, 5] = value
        return spoilt

    handle = net.blocks[0].up.weight.register_hook(spoil)
    return sums


def in_one_activation(net, batch, value):
    """One number of what the first block reads."""

    def spoil(module, inputs, output):
        handle.remove()
        spoilt = torch.zeros_like(output)
        spoilt[7, 5] = value
        return output + spoilt

    handle = net.embeddings.register_forward_hook(spoil)


def spoil(monkeypatch, where, value):
    """Have it happen in a step, and in that step again when the run goes on from before it."""
    real, seen = OBJECTIVES["mlm+nsp"], []

    def spoilt(net, batch):
        if net.training:
            seen.append(batch.tokens.token_ids.clone())
        is_met = net.training and len(seen) >= STEP and torch.equal(seen[STEP - 1], seen[-1])
        if is_met and where is in_one_activation:
            where(net, batch, value)
        sums = real(net, batch)
        return where(net, sums, value) if is_met and where is not in_one_activation else sums

    monkeypatch.setitem(OBJECTIVES, "mlm+nsp", spoilt)
    return seen


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [in_the_loss, in_the_loss_alone, in_one_gradient, in_one_activation])
def test_it_changes_no_weight_and_is_met_again(data, tmp_path, monkeypatch, where, value):
    """F11, P6: stopped with step and batch; saved from before it; resumed it stops there again."""
    settings, run = {"optim__schedule": "constant"}, tmp_path / "run"
    nine = tiny_runs.recipe(**settings, train__max_steps=STEP - 1)
    pretrain(nine, data=data, out=tmp_path / "nine", device="cpu")
    seen = spoil(monkeypatch, where, value)
    for _ in range(2):
        with pytest.raises(UserError, match=rf"not finite at step {STEP}: .* after {{'epoch'.*No weight was changed"):
            pretrain(tiny_runs.recipe(**settings), data=data, out=run, device="cpu", resume=True)
        name = f"checkpoints/step-{STEP - 1:08d}"
        for file in ("model.safetensors", "optimizer.safetensors"):
            found, expected = read_weights(run / name / file), read_weights(tmp_path / "nine" / name / file)
            assert all(torch.equal(found[key], expected[key]) for key in expected)
    assert torch.equal(seen[STEP - 1], seen[-1])
    assert max(line["step"] for line in lines_of(run)) < STEP


def test_the_first_batch_is_behind_none_and_called_the_first(data, tmp_path, monkeypatch):
    real = OBJECTIVES["mlm+nsp"]
    monkeypatch.setitem(OBJECTIVES, "mlm+nsp", lambda net, batch: in_the_loss(net, real(net, batch), float("nan")))
    with pytest.raises(UserError, match=r"not finite at step 1: .*, in the first batch\. No weight was changed"):
        pretrain(tiny_runs.recipe(), data=data, out=tmp_path / "run", device="cpu")


def test_a_run_that_passes_over_such_updates_ends_and_has_skipped_them(data, tmp_path, monkeypatch):
    """F11: at most as many as are allowed."""
    spoil(monkeypatch, in_one_gradient, float("nan"))
    skip = {"train__on_nonfinite": "skip", "train__max_steps": 14}
    outcome = pretrain(tiny_runs.recipe(**skip), data=data, out=tmp_path / "run", device="cpu")
    assert (outcome.progress.step, outcome.progress.skipped) == (14, 1)
    assert all(bool(torch.isfinite(w).all()) for w in read_weights(tmp_path / "run/model/model.safetensors").values())
