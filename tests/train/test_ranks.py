"""Two ranks against one: the same batches, the same sums, the same weights."""

import itertools
import os
import subprocess
import sys
import time
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import tiny_runs
import torch
import torch._dynamo  # which FSDP2 needs too; here, or every forked rank would import them
import torch.distributed.fsdp
from forked_ranks import run_ranks
from tiny_runs import lines_of

from bertworks.config import to_toml
from bertworks.data.shards import Dataset
from bertworks.models.weights import read_weights
from bertworks.report.page import SAMPLES_FILE
from bertworks.train import trainer as loop
from bertworks.train.distributed import Ranks, joined_ranks
from bertworks.train.pretrain import Feed, pretrain, pretrain_dry

CHANGES = {
    "train__slices": 2,
    "train__eval_batches": 3,
    "model__dropout": 0.1,  # whose masks are those of the slice, whichever rank computes it
    "optim__schedule": "constant",
    "train__max_steps": 12,
}


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


@pytest.fixture(scope="module")
def one(data, tmp_path_factory):
    """A run by one process, which others are compared with."""
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("one") / "run"
    pretrain(tiny_runs.recipe(**CHANGES), data=data, out=run, device="cpu")
    return run


def train_by(world_size, data, run, **changes):
    """Train, or go on, by so many ranks."""
    recipe = tiny_runs.recipe(**(CHANGES | changes))

    def work(_):
        pretrain(recipe, data=data, out=run, device="cpu", resume=True)

    for rank in run_ranks(world_size, work, run.parent / f"said-{world_size}"):
        assert rank.code == 0, rank.said
    return run


def weights_of(run):
    return read_weights(run / "model/model.safetensors")


def assert_same_bits(run, other):
    expected = weights_of(other)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights_of(run).items())


def test_two_ranks_that_torchrun_starts_do_what_one_does(one, data, tmp_path):
    """F9, P2: not a bit differs, for sums and masks of dropout are the same; nor in what is measured together."""
    run = tmp_path / "run"
    found = launch(tiny_runs.recipe(**CHANGES), tmp_path, data, run, 2)
    assert found.returncode == 0, found.stderr[-2000:]
    assert_same_bits(run, one)
    assert lines_of(run) == lines_of(one)
    assert (run / SAMPLES_FILE).read_text() == (one / SAMPLES_FILE).read_text()


@pytest.mark.parametrize(("first", "then"), [(2, 1), (1, 2)])
def test_a_run_may_go_on_with_another_number_of_ranks(one, data, tmp_path, first, then):
    run = train_by(first, data, tmp_path / "run", train__max_steps=7)
    train_by(then, data, run)
    assert_same_bits(run, one)
    assert [line for line in lines_of(run) if line["step"] != 7] == lines_of(one)


@pytest.mark.parametrize(
    "changes",
    [
        {"train__max_minutes": 11.5 / 60, "train__save_every": 100},
        {"train__save_minutes": 0.09, "train__save_every": 5},
    ],
    ids=["minutes", "saves"],
)
def test_ranks_whose_clocks_differ_decide_alike(data, tmp_path, monkeypatch, changes):
    """A step takes a second on rank 0 and 1.3 on rank 1: no decision may come from a rank's own clock."""
    recipe = tiny_runs.recipe(**(CHANGES | {"train__eval_every": 100, "train__rank_timeout": 5} | changes))

    def work(rank):
        clock = SimpleNamespace(monotonic=partial(next, itertools.count(0.0, 1.0 + 0.3 * rank)))
        monkeypatch.setattr(loop, "time", clock)
        pretrain(recipe, data=data, out=tmp_path / "run", device="cpu")

    for rank in run_ranks(2, work, tmp_path / "said"):
        assert rank.code == 0, rank.said


def assert_alike(run, other):
    expected = weights_of(other)
    for name, tensor in weights_of(run).items():
        torch.testing.assert_close(tensor, expected[name], rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("recompute", [False, True])
def test_weights_that_are_spread_over_ranks_are_trained_as_whole_ones(one, data, tmp_path, recompute):
    """Slice by slice the sums are added up in another order, so bits may differ."""
    run = train_by(2, data, tmp_path / "run", train__shard=True, train__recompute=recompute)
    assert_alike(run, one)
    for line, expected in zip(lines_of(run), lines_of(one), strict=True):
        assert line == pytest.approx(expected, rel=1e-5)


def test_a_language_model_that_is_spread_over_ranks_is_trained_as_a_whole_one(data, tmp_path):
    """Its head computes the loss too, while its weights are in place."""
    alone = train_by(1, data, tmp_path / "alone", data__objective="ltr", train__max_steps=4)
    assert_alike(
        train_by(2, data, tmp_path / "run", data__objective="ltr", train__max_steps=4, train__shard=True), alone
    )


def test_a_spread_run_goes_on_as_a_whole_one_and_the_other_way_round(one, data, tmp_path):
    """A checkpoint does not tell how its weights lay."""
    run = train_by(2, data, tmp_path / "run", train__shard=True, train__max_steps=4)
    train_by(1, data, run, train__max_steps=8)
    train_by(2, data, run, train__shard=True)
    assert_alike(run, one)


def test_a_dry_run_by_two_ranks_opens_the_model_that_the_first_one_wrote(data, tmp_path):
    recipe = tiny_runs.recipe(**CHANGES)
    ended = run_ranks(2, lambda _: pretrain_dry(recipe, data=data, device="cpu"), tmp_path)
    assert [rank.code for rank in ended] == [0, 0], ended


def test_a_mistake_ends_all_ranks(data, tmp_path):
    recipe = tiny_runs.recipe(train__slices=1)
    ended = run_ranks(2, lambda _: pretrain(recipe, data=data, out=tmp_path / "run", device="cpu"), tmp_path)
    assert [rank.code for rank in ended] == [2, 2]
    assert all("2 ranks cannot share 1 micro-batches" in rank.said for rank in ended)


class Rank(NamedTuple):
    rank: int
    world_size: int


def test_ranks_share_the_documents_kept_aside(data):
    recipe = tiny_runs.recipe(**(CHANGES | {"train__slices": 4}))

    def parts(rank, world_size):
        feed = Feed(
            recipe,
            Dataset(data),
            torch.device("cpu"),
            Rank(rank, world_size),
            ("mlm", "nsp"),
            flash=False,
            seeded=False,
        )
        return [tuple(part.batch.tokens.token_ids.tolist()) for part in feed.held_out(0.0)]

    whole = parts(0, 1)
    assert len(set(whole)) == len(whole) == 12
    by_rank = [parts(rank, 4) for rank in range(4)]
    assert [part for parts_at_once in zip(*by_rank, strict=True) for part in parts_at_once] == whole


def test_a_rank_alone_agrees_with_itself():
    ranks, tensor = Ranks(), torch.ones(3)
    assert ranks.total([1.0, 2.0]) == [1.0, 2.0]
    assert ranks.greatest(3) == 3
    assert ranks.gathered(tensor)[0] is tensor
    ranks.add_up(tensor)()
    assert tensor.tolist() == [1, 1, 1]


def test_ranks_are_patient_until_they_have_met(tmp_path):
    """Rank 1 comes 2 s late: no loss where that was to be expected, a loss where it was not."""

    def work(rank):
        with joined_ranks(torch.device("cpu"), timeout_s=0.5) as ranks:
            ranks.wait()
            for is_expected in (True, False):
                ranks.met()
                if is_expected:
                    ranks.be_patient()
                if rank == 1:
                    time.sleep(1.5)
                print("met" if ranks.total([1.0]) == [2.0] else "wrong", file=sys.stderr)

    first, second = run_ranks(2, work, tmp_path)
    assert first.said == (
        "met\nerror: rank 0 has waited 0.5 s for another rank; if that was only slow, raise train.rank_timeout. "
        "--resume continues from the last checkpoint\n"
    )
    assert (first.code, second.code) == (2, 2)
    assert second.said.startswith("met\nerror: rank 1 has lost another rank")
