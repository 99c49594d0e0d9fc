"""F17, F18: a change of the code changes no number of a run, and what an older version saved goes on."""

import json
import os
import shutil

import golden_runs
import numpy as np
import pytest
from golden_runs import SAVED_STEP, TOLERANCE, checkpoint_recipe, losses_recipe, machine_class, numbers_of

from bertworks.train.checkpoint import FORMAT, read_checkpoint
from bertworks.train.pretrain import pretrain


def assert_agree(found, kept, id, record_property):
    """The same bits on the class of machine that the kept numbers are from; 1e-4 elsewhere, and say so."""
    if machine_class() == kept["class"]:
        assert found == kept["steps"]
        record_property("fault_note", f"{id}: the same bits as kept, on the class of machine they are from")
        return
    apart = np.abs(np.array(found) - kept["steps"]) / np.maximum(np.abs(kept["steps"]), 1e-3)
    assert apart.max() < TOLERANCE
    where = "another class of machine or version of torch than the kept numbers are from"
    record_property("fault_note", f"{id}: {where}: within {apart.max():.0e}, not compared bit by bit")


def test_a_hundred_steps_have_the_losses_that_they_had(data, tmp_path, record_property):
    """F17: on a CPU, in fp32. If a change is meant to change them, `golden_runs.py losses` writes them anew."""
    pretrain(losses_recipe(), data=data, out=tmp_path / "run", device="cpu")
    kept = json.loads(golden_runs.LOSSES.read_text())
    assert len(kept["steps"]) == 100
    assert_agree(numbers_of(tmp_path / "run"), kept, "F17", record_property)


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_a_checkpoint_of_every_format_goes_on_with_the_steps_that_it_had(data, tmp_path, format, record_property):
    """F18: of each format one is kept; its next ten losses are known."""
    kept, run = golden_runs.checkpoint_folder(format), tmp_path / "run"
    name = f"step-{SAVED_STEP:08d}"
    shutil.copytree(kept / name, run / "checkpoints" / name)
    assert read_checkpoint(run / "checkpoints" / name).step == SAVED_STEP
    outcome = pretrain(checkpoint_recipe(SAVED_STEP + 10), data=data, out=run, device="cpu", resume=True)
    assert outcome.progress.step == SAVED_STEP + 10
    expected = json.loads((kept / "next-steps.json").read_text())
    assert len(expected["steps"]) == 10
    assert_agree(numbers_of(run, SAVED_STEP + 1), expected, "F18", record_property)


@pytest.mark.parametrize("format", range(1, FORMAT + 1))
def test_kept_checkpoints_are_small(format):
    files = [path for path in golden_runs.checkpoint_folder(format).rglob("*") if path.is_file()]
    assert sum(os.path.getsize(path) for path in files) < 100_000
