"""Pre-training on a GPU: a compiled step that is recorded and replayed computes what it would without that."""

import os

import pytest
import tiny_runs
import torch
from tiny_runs import files_of, lines_of

from bertworks.train import trainer as trainer_module
from bertworks.train.pretrain import pretrain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: there is no GPU"),
]
WIDE = {"model__preset": "2x64x1", "train__deterministic": True, "optim__lr": 1e-3}  # a head the kernels take


@pytest.fixture(autouse=True)
def _deterministic_ends_with_the_test():
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(False)
    torch.compiler.reset()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__dropout": 0.0},
        {"train__slices": 2},
        {"train__compile": False},
        {"data__short_length": 16, "data__short_share": 0.5},
        {"data__objective": "mlm"},
        {"data__objective": "ltr"},
    ],
    ids=["as it is", "no dropout", "two slices", "not compiled", "two lengths", "mlm alone", "left to right"],
)
def test_a_replayed_run_equals_one_that_asks_for_every_kernel(data, tmp_path, monkeypatch, changes):
    recipe = tiny_runs.recipe(**WIDE, **changes)
    pretrain(recipe, data=data, out=tmp_path / "replayed", device="cuda")
    monkeypatch.setattr(trainer_module, "Replayed", lambda *_: None)
    pretrain(recipe, data=data, out=tmp_path / "asked", device="cuda")
    assert files_of(tmp_path / "replayed") == files_of(tmp_path / "asked")
    losses = [line["loss"] for line in lines_of(tmp_path / "replayed") if "lr" in line]
    assert losses[-1] < losses[0]


def test_a_replayed_run_in_two_parts_equals_one_in_one(data, tmp_path):
    """F20, in small."""
    settings = {**WIDE, "optim__schedule": "constant"}
    for out, steps, resume in (("whole", 40, False), ("parts", 17, False), ("parts", 40, True)):
        changed = tiny_runs.recipe(**settings, train__max_steps=steps)
        pretrain(changed, data=data, out=tmp_path / out, device="cuda", resume=resume)
    name = "model/model.safetensors"
    assert files_of(tmp_path / "parts")[name] == files_of(tmp_path / "whole")[name]
