"""Several ranks: their number changes nothing (F9), what is not finite on one stops all (F11), nor do they wait for
one that died (F13).

Ranks are forked children, as torch takes seconds to import; where torchrun is to start ranks anew, torchrun's.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import rank_faults
import tiny_runs
import torch
from forked_ranks import run_ranks

from bertworks.config import to_toml
from bertworks.models.weights import read_weights
from bertworks.report.logs import read_log
from bertworks.train.distributed import GradientSums
from bertworks.train.log import Progress
from bertworks.train.objectives import OBJECTIVES
from bertworks.train.pretrain import Feed, pretrain


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tiny_runs.write_data(tmp_path_factory.mktemp("ranks") / "run")


def train_by(world_size, recipe, data, run, folder=None):
    """Train, or go on, by so many ranks; returns how they ended."""

    def work(_):
        pretrain(recipe, data=data, out=run, device="cpu", resume=True, quiet=True)

    return run_ranks(world_size, work, folder or run.parent / f"{run.name}-said")


def assert_well(ended):
    assert [rank.code for rank in ended] == [0] * len(ended), "\n".join(rank.said for rank in ended)


# F9


@pytest.fixture
def seen(monkeypatch, tmp_path):
    """Has every rank write down a hash of each slice it is given; gives a function that returns a run's, by step."""
    make_part = Feed._micro_batch

    def part(self, packed, step, number, length):
        if self.recipe.train.slices > 1 and self.is_training:
            digest = hashlib.sha256(b"".join(array.tobytes() for array in packed)).hexdigest()
            with open(tmp_path / f"seen-{os.getpid()}.jsonl", "a") as stream:
                stream.write(json.dumps([step, number, digest]) + "\n")
        return make_part(self, packed, step, number, length)

    def held_out(self, *asked):
        self.is_training = False
        yield from real_held_out(self, *asked)
        self.is_training = True

    real_held_out = Feed.held_out
    monkeypatch.setattr(Feed, "_micro_batch", part)
    monkeypatch.setattr(Feed, "held_out", held_out)
    monkeypatch.setattr(Feed, "is_training", True, raising=False)

    def take():
        """Return the hash of each step's whole batch; what was made ahead and not used is overwritten or beyond."""
        slices = {}
        for path in tmp_path.glob("seen-*.jsonl"):
            for line in path.read_text().splitlines():
                step, number, digest = json.loads(line)
                assert slices.setdefault(step, {}).setdefault(number, digest) == digest
            path.unlink()
        return {step: [digest for _, digest in sorted(found.items())] for step, found in slices.items()}

    return take


def losses_of(run):
    return {line["step"]: line["loss"] for line in read_log(run / "metrics.jsonl") if "lr" in line}


def check_elastic(seen, data, folder, slices, steps, starts):
    """Train a run by these numbers of ranks, each from a later step on, and one by one process; compare them."""
    changes = {"train__slices": slices, "train__batch_size": slices, "train__log_every": 1, "train__save_every": 1_000}
    changes |= {"model__dropout": 0.0, "optim__schedule": "constant", "train__eval_every": 1_000}
    found = {}
    for name, parts in {"one": [(1, steps)], "run": starts}.items():
        batches = {}
        for world_size, end in parts:
            recipe = tiny_runs.recipe(**changes, train__max_steps=end)
            assert_well(train_by(world_size, recipe, data, folder / name))
            batches |= {step: hashes for step, hashes in seen().items() if step < end}
        found[name] = (batches, losses_of(folder / name))
    (batches, losses), (expected_batches, expected_losses) = found["run"], found["one"]
    assert all(len(hashes) == slices for hashes in expected_batches.values())
    assert sorted(expected_batches) == list(range(steps))
    assert batches == expected_batches
    assert losses == pytest.approx(expected_losses, rel=1e-5)
    assert len(losses) == steps


def test_batches_and_losses_do_not_depend_on_the_number_of_ranks(seen, data, tmp_path):
    """F9, P2: two ranks, and in the middle one."""
    check_elastic(seen, data, tmp_path, slices=4, steps=12, starts=[(2, 7), (1, 12)])


@pytest.mark.faults
@pytest.mark.parametrize("starts", [[(2, 50)], [(3, 50)], [(4, 50)], [(6, 50)], [(4, 17), (2, 34), (1, 50)]])
def test_batches_and_losses_do_not_depend_on_the_number_of_ranks_in_full(seen, data, tmp_path, starts):
    """F9 in full: 24 slices, 50 steps."""
    check_elastic(seen, data, tmp_path, slices=24, steps=50, starts=starts)


# F11

KINDS = ["nan loss", "inf loss", "nan gradient", "inf activation"]
STOPPING = {"train__slices": 2, "optim__schedule": "constant", "train__max_steps": 20, "train__save_every": 1_000}


@pytest.fixture(scope="module")
def before(data, tmp_path_factory):
    """The weights before the faulty batch, of a run by two ranks that ended there."""
    run = tmp_path_factory.mktemp("before") / "run"
    recipe = tiny_runs.recipe(**(STOPPING | {"train__max_steps": rank_faults.FAULTY_STEP - 1}))
    assert_well(train_by(2, recipe, data, run))
    return run


def faulty_tokens(data, rank):
    """The tokens that a rank is given at the faulty step."""
    batches = tiny_runs.trainer_of(tiny_runs.recipe(**STOPPING), data).task.batches(Progress())
    for _ in range(rank_faults.FAULTY_STEP):
        parts, _ = next(batches)
    batches.close()
    return parts[rank].batch.tokens.token_ids


def check_not_finite(monkeypatch, before, data, folder, kind, rank):
    run = folder / "run"
    broken = rank_faults.not_finite(kind, rank, faulty_tokens(data, rank))
    monkeypatch.setitem(OBJECTIVES, "mlm+nsp", broken)
    first, second = (train_by(2, tiny_runs.recipe(**STOPPING), data, run, folder / f"said-{n}") for n in range(2))
    assert [each.code for each in first] == [2, 2], first
    assert abs(first[0].seconds - first[1].seconds) < 10
    message = first[0].said.strip().splitlines()[-1]
    assert re.match(
        rf"error: not finite at step {rank_faults.FAULTY_STEP} on rank {rank}: losses .*, gradient norm", message
    )
    assert re.search(r"in the batch after \{'epoch': 0, 'block': \d+, 'offset': \d+, 'length': 32\}", message)
    assert first[1].said.strip().splitlines()[-1] == (
        f"error: rank 1 stops too: not finite at step {rank_faults.FAULTY_STEP} on rank {rank}"
    )
    name = f"checkpoints/step-{rank_faults.FAULTY_STEP - 1:08d}"
    for file in ("model.safetensors", "optimizer.safetensors"):
        assert (run / name / file).read_bytes() == (before / name / file).read_bytes()
    # The dump is that checkpoint: whoever goes on from it meets the same numbers again, dropout included.
    assert [each.said for each in second] == [each.said for each in first]


def test_what_is_not_finite_on_one_rank_stops_both_and_can_be_met_again(monkeypatch, before, data, tmp_path):
    """F11, P6."""
    check_not_finite(monkeypatch, before, data, tmp_path, "nan gradient", 1)


@pytest.mark.faults
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_what_is_not_finite_stops_all_ranks_in_full(monkeypatch, before, data, tmp_path, kind, rank):
    """F11 in full."""
    check_not_finite(monkeypatch, before, data, tmp_path, kind, rank)


# F13


def check_ending(monkeypatch, data, folder, kind, limit_s, **changes):
    """Have rank 1 end, or hang, and see that rank 0 ends soon and says little."""
    when = folder / "when"
    monkeypatch.setattr(GradientSums, "begin", rank_faults.ending(kind, lambda: when.write_text(str(time.monotonic()))))
    recipe = tiny_runs.recipe(train__slices=2, **changes)
    started = time.monotonic()

    def work(_):
        pretrain(recipe, data=data, out=folder / "run", device="cpu", quiet=True)

    first, second = run_ranks(2, work, folder, hanging=[1] if kind == "hang" else [])
    assert started + first.seconds - float(when.read_text()) < limit_s
    assert first.code == 2
    assert re.fullmatch(r"error: rank 0 has (lost|waited \d+ s for) another rank.*--resume.*\n", first.said)
    assert second.code == {"kill": -9, "exception": 1, "hang": -9}[kind]
    assert second.said.count(f"RuntimeError: {rank_faults.ROOT_ERROR}") == (kind == "exception")


@pytest.mark.parametrize("kind", ["kill", "exception", "hang"])
def test_a_rank_does_not_wait_for_one_that_ended(monkeypatch, data, tmp_path, kind):
    """F13."""
    check_ending(monkeypatch, data, tmp_path, kind, limit_s=10, train__rank_timeout=2)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["kill", "exception", "hang"])
def test_a_rank_waits_at_most_30_s_unless_told_otherwise(monkeypatch, data, tmp_path, kind):
    """F13, with the time limit that a run has by itself."""
    check_ending(monkeypatch, data, tmp_path, kind, limit_s=30)


@pytest.mark.faults
@pytest.mark.parametrize("kind", ["kill", "exception", "hang"])
def test_torchrun_starts_ranks_anew_and_the_run_ends_as_if_nothing_had_happened(data, tmp_path, kind):
    """F13: dropout included, for a checkpoint has the random numbers of all ranks."""
    recipe = tiny_runs.recipe(train__slices=2, train__max_steps=20, train__save_every=5)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    assert_well(train_by(2, recipe, data, tmp_path / "reference"))
    script = Path(rank_faults.__file__)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command += [str(script), kind, "pretrain", str(tmp_path / "recipe.toml"), "--data", str(data)]
    command += ["--out", str(tmp_path / "run"), "--device", "cpu", "--quiet", "--resume"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    found = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stderr.count(f"RuntimeError: {rank_faults.ROOT_ERROR}") == (kind == "exception")
    expected = read_weights(tmp_path / "reference/model/model.safetensors")
    weights = read_weights(tmp_path / "run/model/model.safetensors")
    assert all(torch.equal(weights[name], tensor) for name, tensor in expected.items())
