"""What is frozen is in a run once: checkpoints share it, and each is whole by itself, wherever the run is moved."""

import os
import shutil

import pytest
import torch
from calm_models import write_calm_model
from conll_files import write_conll
from tiny_runs import files_of
from toy_elmo_tasks import QUICK as QUICK_ELMO
from toy_elmo_tasks import write_elmo, write_files

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.finetune import finetune
from bertworks.models.weights import FROZEN_FILE, LEARNT_FILE, read_weights
from bertworks.train.checkpoint import checkpoint_folders, latest_checkpoint

QUICK_FEATURES = ("optim.lr=1e-2", "task.cells=8", "task.features=last", "task.max_length=18", "train.batch_size=8")
KEPT = ("train.epochs=100", "train.save_every=3", "train.keep=2")


@pytest.fixture(scope="module", params=["features", "elmo"])
def case(request, tmp_path_factory):
    """What a run is made of: task, settings and, for finetune, where from."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "features":
        source = {"model": write_calm_model(folder / "model"), "data": write_conll(folder)}
        return "conll2003", (*QUICK_FEATURES, *KEPT), source
    return "classify", (*QUICK_ELMO, *KEPT), {"model": write_elmo(folder / "model"), **write_files(folder, "pair")}


def tuned(case, run, steps, **changes):
    task, overrides, source = case
    changes = {"device": "cpu", "resume": True, **source, **changes}
    return finetune(task, out=run, overrides=(*overrides, f"train.max_steps={steps}"), **changes)


@pytest.fixture(scope="module")
def begun(case, tmp_path_factory):
    run = tmp_path_factory.mktemp("begun") / "run"
    tuned(case, run, 7)
    return run


def test_what_is_frozen_is_written_once_and_the_rest_with_every_checkpoint(begun):
    new, old = checkpoint_folders(begun)
    assert os.path.samefile(new / FROZEN_FILE, old / FROZEN_FILE)
    assert not os.path.samefile(new / LEARNT_FILE, old / LEARNT_FILE)
    learnt, whole = read_weights(new / LEARNT_FILE), latest_checkpoint(begun).weights
    assert not any(torch.equal(learnt[name], weight) for name, weight in read_weights(old / LEARNT_FILE).items())
    assert whole.keys() == learnt.keys() | read_weights(new / FROZEN_FILE).keys()
    assert read_weights(begun / "model/model.safetensors").keys() == whole.keys()


def test_a_checkpoint_is_a_model_by_itself(begun, tmp_path):
    shutil.copytree(checkpoint_folders(begun)[0], tmp_path / "alone")
    assert bw.load(tmp_path / "alone", device="cpu").about["provenance"]["steps"] == 7


def test_a_run_that_was_moved_goes_on_to_the_same_bytes_without_its_model(case, begun, tmp_path):
    """P1: by copies, in which nothing is linked, and by a rename, in which all is."""
    stayed, copied = tmp_path / "stayed", tmp_path / "copied"
    for run in (stayed, copied):
        shutil.copytree(begun, run)
    tuned(case, stayed, 10)
    tuned(case, copied, 10, model=tmp_path / "gone")
    copied.rename(tmp_path / "renamed")
    assert tuned(case, stayed, 12).progress.step == 12
    assert tuned(case, tmp_path / "renamed", 12, model=tmp_path / "gone").progress.step == 12
    assert files_of(tmp_path / "renamed") == files_of(stayed)


def test_a_checkpoint_whose_frozen_file_is_damaged_is_passed_over(case, begun, tmp_path, caplog):
    """F6: and if older ones share that file, that is said, and nothing goes on silently."""
    run = tmp_path / "run"
    shutil.copytree(begun, run)  # as copies: each checkpoint has a file of its own
    new, old = checkpoint_folders(run)
    for folder, at_fault in ((new, False), (old, True)):
        content = bytearray((folder / FROZEN_FILE).read_bytes())
        content[-1] ^= 1
        (folder / FROZEN_FILE).write_bytes(content)
        if at_fault:
            with pytest.raises(UserError, match="none of the 2 checkpoints"):
                tuned(case, run, 12)
        else:
            assert latest_checkpoint(run).path == old
        assert f"{FROZEN_FILE} was altered" in caplog.text


def test_what_learns_as_a_whole_is_in_one_file(tmp_path):
    """An ELMo that was drawn from a seed is not frozen."""
    files = write_files(tmp_path, "pair")
    case = "classify", (*QUICK_ELMO, *KEPT), {"model": write_elmo(tmp_path / "model"), **files}
    tuned(case, tmp_path / "run", 2, init="random")
    assert not (checkpoint_folders(tmp_path / "run")[0] / FROZEN_FILE).exists()
    assert latest_checkpoint(tmp_path / "run") is not None
