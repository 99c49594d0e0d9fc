"""F14: a run that finds no memory says what to lower, and what it had saved is there."""

import pytest
import tiny_runs
import torch
from tiny_runs import files_of
from whole_runs import command

from bertworks.config import to_toml
from bertworks.errors import UserError
from bertworks.train.checkpoint import latest_checkpoint
from bertworks.train.distributed import GradientSums
from bertworks.train.pretrain import pretrain

SETTINGS = {"train__save_every": 2, "train__max_steps": 8, "train__slices": 2}


REFUSALS = [
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."),
    MemoryError("Unable to allocate 20. GiB for an array"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] err == 0. DefaultCPUAllocator: can't allocate memory: you tried"),
]


@pytest.fixture(params=REFUSALS, ids=["gpu", "numpy", "cpu"])
def no_memory(monkeypatch, request):
    calls, real = [], GradientSums.begin

    def begin(self):
        calls.append(1)
        if len(calls) == 5:
            raise request.param
        real(self)

    monkeypatch.setattr(GradientSums, "begin", begin)


def test_it_says_the_batch_and_what_to_change(data, tmp_path, no_memory, monkeypatch):
    run, recipe = tmp_path / "run", tiny_runs.recipe(**SETTINGS)
    with pytest.raises(UserError) as caught:
        pretrain(recipe, data=data, out=run, device="cpu")
    said = str(caught.value)
    for words in ("out of memory on cpu", "8 x 32 tokens in 2 slices", "train.slices", "train.recompute=true"):
        assert words in said
    assert latest_checkpoint(run).step == 4
    monkeypatch.undo()
    sparing = tiny_runs.recipe(**SETTINGS, train__recompute=True)
    pretrain(sparing, data=data, out=run, device="cpu", resume=True)
    pretrain(recipe, data=data, out=tmp_path / "undisturbed", device="cpu")
    assert files_of(run) == files_of(tmp_path / "undisturbed") | {"recipe.toml": to_toml(sparing).encode()}


def test_the_command_ends_with_2_and_no_traceback(data, tmp_path, no_memory):
    (tmp_path / "recipe.toml").write_text(to_toml(tiny_runs.recipe(**SETTINGS)))
    options = ("--data", data, "--out", tmp_path / "run", "--device", "cpu")
    assert command("pretrain", tmp_path / "recipe.toml", *options, stderr=tmp_path / "err") == 2
    said = (tmp_path / "err").read_text()
    assert said.startswith("error: out of memory")
    assert said.count("\n") == 1


def test_a_run_that_does_not_fit_is_refused_before_its_first_step_unless_that_is_overruled(data, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.planning.costs.free_memory", lambda: 1_000)
    monkeypatch.setattr("bertworks.train.pretrain.free_memory", lambda: 1_000)
    with pytest.raises(UserError, match=r"^a step needs about .* GB of memory, and 0.0 GB are free here; change .*"):
        pretrain(tiny_runs.recipe(**SETTINGS), data=data, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
    settings = {**SETTINGS, "train__max_steps": 1, "train__check_memory": False}
    assert pretrain(tiny_runs.recipe(**settings), data=data, out=tmp_path / "run", device="cpu").progress.step == 1
