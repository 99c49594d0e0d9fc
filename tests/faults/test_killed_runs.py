"""F1 and F3 in full: runs that are killed or told to stop end with the bytes of a run that was not."""

import os
import random
import shutil
import signal
import time

import pytest
from small_run import leftovers_in
from tiny_runs import files_of
from whole_runs import command, killed_after, recipe, train

from bertworks.config import to_toml
from bertworks.train.distributed import GradientSums

pytestmark = pytest.mark.faults
NUM_KILLS, NUM_SIGNALS = 50, 10


@pytest.fixture(scope="module")
def reference(data, tmp_path_factory):
    """A run that was never disturbed: its files and its seconds."""
    run = tmp_path_factory.mktemp("reference") / "run"
    started = time.monotonic()
    train(run, data)
    return files_of(run), time.monotonic() - started


@pytest.mark.fault("F1", trials=NUM_KILLS)
def test_fifty_kills_at_random_instants_change_nothing(data, reference, tmp_path, record_property):
    """F1: uniform over the run, so some land inside a save; what a kill can cost is the time since the last one."""
    expected, seconds = reference
    rng, kills, inside_saves, unsaved = random.Random(1), 0, 0, 0
    while kills < NUM_KILLS:
        run = tmp_path / "run"
        through_after = killed_after(rng.uniform(0, seconds), run, data)
        if through_after:
            seconds = min(seconds, through_after)  # the reference was slower, other work permitting
        else:
            kills += 1
            inside_saves += bool(run.exists() and leftovers_in(run))
            unsaved += not (run / "checkpoints").exists()
            train(run, data)
            assert files_of(run) == expected, f"kill {kills}"
        shutil.rmtree(run)
    record_property(
        "fault_note",
        f"F1: {NUM_KILLS} of {NUM_KILLS} runs of 200 steps ended with the same bytes; {inside_saves} kills came in a "
        f"save, {unsaved} before the first",
    )


@pytest.mark.fault("F3", trials=NUM_SIGNALS)
def test_signals_at_ten_random_steps_end_a_run_there_and_it_goes_on_exactly(data, reference, tmp_path, monkeypatch):
    """F3: by the command, whose exit code is 130 for Ctrl-C and 0 else."""
    rng, real = random.Random(3), GradientSums.begin
    (tmp_path / "recipe.toml").write_text(to_toml(recipe()))
    for trial in range(NUM_SIGNALS):
        run, step = tmp_path / f"run{trial}", rng.randrange(1, 200)
        number = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)[trial % 3]
        calls = []

        def signalled(self, calls=calls, step=step, number=number):
            calls.append(1)
            if len(calls) == step:
                os.kill(os.getpid(), number)
            real(self)

        arguments = ("pretrain", tmp_path / "recipe.toml", "--data", data, "--out", run, "--device", "cpu")
        monkeypatch.setattr(GradientSums, "begin", signalled)
        assert command(*arguments) == (130 if number == signal.SIGINT else 0)
        monkeypatch.setattr(GradientSums, "begin", real)
        assert max(os.listdir(run / "checkpoints")) == f"step-{step:08d}"
        assert not (run / "model").exists()
        assert command(*arguments, "--resume") == 0
        assert files_of(run) == reference[0], f"step {step}, signal {number}"
        shutil.rmtree(run)
