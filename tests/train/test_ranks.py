"""Two ranks against one: the same batches, the same sums, the same weights."""

import os
import subprocess
import sys

import pytest
import torch
from tiny_runs import lines_of

from bertworks.config import to_toml
from bertworks.interop.weights import read_weights
from bertworks.train.distributed import Ranks, _buckets

CHANGES = {"train__slices": 2, "model__dropout": 0.0, "optim__schedule": "constant"}


def launch(recipe, folder, data, run, ranks, *options):
    """Run `bertworks pretrain` as a person does it with torchrun."""
    path = folder / f"{run.name}-{ranks}.toml"
    path.write_text(to_toml(recipe))
    start = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        f"--nproc-per-node={ranks}",
        "-m",
        "bertworks",
    ]
    command = [*start, "pretrain", str(path), "--data", str(data), "--out", str(run), "--device", "cpu", "-q", *options]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment, check=False)


def test_two_ranks_do_what_one_does_and_a_run_may_change_their_number(data, tmp_path):
    """F9, P2: without dropout not a bit differs, for the sums are the same; also begun with two and ended with one."""
    import tiny_runs

    one, two, both = tmp_path / "one", tmp_path / "two", tmp_path / "both"
    whole = tiny_runs.recipe(**CHANGES, train__max_steps=12)
    for run, ranks, recipe, options in (
        (one, 1, whole, []),
        (two, 2, whole, []),
        (both, 2, tiny_runs.recipe(**CHANGES, train__max_steps=7), []),
        (both, 1, whole, ["--resume"]),
    ):
        found = launch(recipe, tmp_path, data, run, ranks, *options)
        assert found.returncode == 0, found.stderr[-2000:]
    expected = read_weights(one / "model/model.safetensors")
    for run in (two, both):
        weights = read_weights(run / "model/model.safetensors")
        assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
    assert lines_of(two) == lines_of(one)
    assert [line for line in lines_of(both) if line["step"] != 7] == lines_of(one)


def test_a_mistake_ends_all_ranks(data, tmp_path):
    import tiny_runs

    found = launch(tiny_runs.recipe(train__slices=1), tmp_path, data, tmp_path / "run", 2)
    assert found.returncode != 0
    assert "2 ranks cannot share 1 slices" in found.stderr


def test_a_rank_alone_agrees_with_itself():
    ranks, tensor = Ranks(), torch.ones(3)
    assert ranks.total([1.0, 2.0]) == [1.0, 2.0]
    assert ranks.greatest(3) == 3
    assert ranks.gathered(tensor)[0] is tensor
    ranks.add_up([tensor])
    assert tensor.tolist() == [1, 1, 1]


@pytest.mark.parametrize("sizes", [[], [1], [3, 4, 5], [1 << 24, 1, 1 << 23, 1 << 23, 1]])
def test_buckets_hold_everything_in_order_and_are_bounded(sizes):
    tensors = [torch.empty(size) for size in sizes]
    buckets = list(_buckets(tensors))
    assert [id(tensor) for bucket in buckets for tensor in bucket] == [id(tensor) for tensor in tensors]
    assert all(len(bucket) == 1 or sum(tensor.numel() for tensor in bucket) <= 1 << 24 for bucket in buckets)
