"""A checkpoint comes back bit for bit, or is refused with its file and reason: P1, P3, F6."""

import errno
import json
import logging
import os
import random
import shutil
import time

import pytest
import torch
from small_run import (
    FILES,
    assert_is_of,
    assert_whole,
    folder_of,
    leftovers_in,
    net_of,
    optimizer_of,
    publish_model,
    save,
    save_checkpoint,
    state_of,
    steps_in,
    writer_of,
)

import bertworks as bw
from bertworks.errors import CorruptFile, UserError
from bertworks.files import verify_manifest, write_manifest
from bertworks.models.kinds import read_model
from bertworks.models.weights import read_weights, write_weights
from bertworks.report.logs import CHECKPOINTS
from bertworks.train import checkpoint as module
from bertworks.train.checkpoint import (
    check_layout,
    latest_checkpoint,
    layout_of,
    prune,
    read_checkpoint,
    restore_rng,
    to_hex,
)


@pytest.fixture
def run(tmp_path):
    """A run with checkpoints of steps 1 and 2."""
    (tmp_path / "run").mkdir()
    save(tmp_path / "run", 1)
    save(tmp_path / "run", 2)
    return tmp_path / "run"


# -- what is saved comes back


def test_weights_optimizer_and_state_come_back_to_the_last_bit(run):
    assert_is_of(latest_checkpoint(run), 2)
    state = latest_checkpoint(run).state
    assert {name: state[name] for name in state_of(2)} == state_of(2)
    assert state["versions"] == {"bertworks": bw.__version__, "torch": torch.__version__}


def test_a_checkpoint_has_its_files_and_opens_as_a_model_folder(run):
    folder = folder_of(run, 2)
    assert set(verify_manifest(folder)) == FILES
    assert sorted(os.listdir(folder)) == sorted([*FILES, "manifest.json"])
    model = bw.load(folder, device="cpu")
    assert len(model.fill("piece1 [MASK] piece2")[0]) == 5
    assert torch.equal(model.net.embeddings.token.weight, net_of(2).embeddings.token.weight)


def test_the_same_training_gives_the_same_bytes(run, tmp_path):
    (tmp_path / "again").mkdir()
    save(tmp_path / "again", 2)
    for name in [*FILES, "manifest.json"]:
        assert (folder_of(run, 2) / name).read_bytes() == (folder_of(tmp_path / "again", 2) / name).read_bytes()


def test_dropout_goes_on_where_it_was(tmp_path):
    """P1: the random numbers after a checkpoint are those of a run that was never stopped."""
    torch.manual_seed(5)
    torch.nn.functional.dropout(torch.ones(100))
    state = {"rng": [to_hex(torch.get_rng_state())]}
    save_checkpoint(tmp_path, 1, writer_of(1), optimizer_of(1), state, keep=1)
    after = torch.nn.functional.dropout(torch.ones(1000))
    torch.manual_seed(6)
    restore_rng(latest_checkpoint(tmp_path).state["rng"][0])
    assert torch.equal(torch.nn.functional.dropout(torch.ones(1000)), after)


def test_tensors_of_every_kind_that_an_optimizer_has_come_back(tmp_path):
    optimizer = {
        "step": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "mean": torch.randn(3, 5).t(),
        "half": torch.randn(3).bfloat16(),
        "flag": torch.tensor([True]),
    }
    save_checkpoint(tmp_path, 1, writer_of(1), optimizer, {}, keep=1)
    found = latest_checkpoint(tmp_path).optimizer
    assert layout_of(found) == layout_of(optimizer)
    assert all(torch.equal(found[name], optimizer[name]) for name in optimizer)


def test_changing_a_loaded_tensor_does_not_reach_the_file(run):
    for tensor in latest_checkpoint(run).weights.values():
        tensor.zero_()
    assert_whole(run, 2)


# -- which one is the latest, and which ones are deleted


def test_a_run_without_checkpoints_has_no_latest(tmp_path):
    assert latest_checkpoint(tmp_path) is None
    (tmp_path / CHECKPOINTS).mkdir()
    assert latest_checkpoint(tmp_path) is None


def test_the_highest_step_is_the_latest_whatever_the_names_sort_like(run):
    (run / CHECKPOINTS / "step-99").mkdir()  # not a name of ours
    (run / CHECKPOINTS / "notes.txt").write_text("mine")
    for step in (99_999_999, 100_000_000):
        save(run, step, keep=9)
        assert latest_checkpoint(run).step == step


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_the_last_ones_are_kept(tmp_path, keep):
    for step in range(1, 6):
        save(tmp_path, step, keep=keep)
    assert steps_in(tmp_path) == list(range(6 - keep, 6))
    assert leftovers_in(tmp_path) == []


def test_the_oldest_goes_first(run, monkeypatch):
    save(run, 3, keep=3)
    deleted = []
    monkeypatch.setattr(module, "discard_folder", lambda folder: deleted.append(folder.name))
    prune(run, 1)
    assert deleted == ["step-00000001", "step-00000002"]


def test_nothing_is_deleted_for_a_checkpoint_that_does_not_verify(run, caplog):
    """P3: `keep` counts from the newest whole one."""
    save(run, 3, keep=3)
    flip_bit(folder_of(run, 3) / "model.safetensors", 5000, 0)
    prune(run, 1)
    assert steps_in(run) == [2, 3]
    assert "model.safetensors was altered" in caplog.text
    flip_bit(folder_of(run, 2) / "model.safetensors", 5000, 0)
    prune(run, 1)
    assert steps_in(run) == [2, 3]


def test_an_old_checkpoint_that_cannot_be_deleted_does_not_end_the_run(run, monkeypatch, caplog):
    def refuse(_):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(module, "discard_folder", refuse)
    save(run, 3, keep=1)
    assert steps_in(run) == [1, 2, 3]
    assert "cannot delete the old checkpoint" in caplog.text


def test_a_step_that_is_saved_already_is_left_alone(run):
    before = os.stat(folder_of(run, 2)).st_ino
    save(run, 2)
    assert os.stat(folder_of(run, 2)).st_ino == before


def test_a_run_that_comes_again_to_a_corrupt_step_writes_it_anew(run, caplog):
    flip_bit(folder_of(run, 2) / "optimizer.safetensors", 9000, 3)
    save(run, 2)
    assert "is written again" in caplog.text
    assert_is_of(latest_checkpoint(run), 2)
    assert leftovers_in(run) == []


# -- corrupt ones


def flip_bit(path, place, bit):
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(content)


def assert_falls_back(run, caplog, *said):
    """Step 2 is refused with the file and the reason in under a second, and step 1 is loaded instead."""
    caplog.clear()
    started = time.perf_counter()
    with pytest.raises(CorruptFile) as caught:
        read_checkpoint(folder_of(run, 2))
    assert time.perf_counter() - started < 1.0
    message = str(caught.value)
    assert len(message) < 500
    for words in ("step-00000002", *said):
        assert words in message
    assert latest_checkpoint(run).step == 1
    assert [(record.levelno, record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, f"skipped a corrupt checkpoint: {message}")
    ]


@pytest.mark.fault("F6", trials=12)
@pytest.mark.parametrize("name", sorted([*FILES, "manifest.json"]))
def test_any_flipped_bit_of_any_file_is_found(run, name, caplog):
    """F6: 108 positions, 12 in each file."""
    path = folder_of(run, 2) / name
    whole, generator = path.read_bytes(), random.Random(name)
    for _ in range(12):
        flip_bit(path, generator.randrange(len(whole)), generator.randrange(8))
        # A manifest that is altered may blame the file that it now describes wrongly.
        assert_falls_back(run, caplog, *([name, "was altered"] if name in FILES else []))
        path.write_bytes(whole)
    assert latest_checkpoint(run).step == 2


@pytest.mark.fault("F6", trials=7)
@pytest.mark.parametrize("name", sorted([*FILES, "manifest.json"]))
def test_any_truncation_and_the_loss_of_any_file_are_found(run, name, caplog):
    """F6: to 0, 1, 7, 8, half and all but one of its bytes, and deleted."""
    path = folder_of(run, 2) / name
    whole = path.read_bytes()
    for length in {0, 1, 7, 8, len(whole) // 2, len(whole) - 1} - {len(whole)}:
        path.write_bytes(whole[:length])
        assert_falls_back(run, caplog, name)
    path.unlink()
    assert_falls_back(run, caplog, name)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"])
def test_swapped_files_of_two_steps_are_found(run, name):
    """F6: then neither is whole, and to start anew in silence would be a lie."""
    one, two = folder_of(run, 1) / name, folder_of(run, 2) / name
    kept = one.read_bytes()
    shutil.copyfile(two, one)
    two.write_bytes(kept)
    for step in (1, 2):
        with pytest.raises(CorruptFile, match=r"was altered|where manifest\.json says"):
            read_checkpoint(folder_of(run, step))
    with pytest.raises(CorruptFile, match=r"none of the 2 checkpoints in .*checkpoints is intact.*remove them"):
        latest_checkpoint(run)


def test_a_checkpoint_under_the_name_of_another_step_is_found(run, caplog):
    shutil.rmtree(folder_of(run, 2))
    shutil.copytree(folder_of(run, 1), folder_of(run, 2))
    assert_falls_back(run, caplog, "state.json is of step 1, not of its folder's")


def reshaped(tensors, name):
    tensors[name] = tensors[name].reshape(-1)


def retyped(tensors, name):
    tensors[name] = tensors[name].half()


def removed(tensors, name):
    del tensors[name]


def added(tensors, name):
    tensors["more"] = tensors[name]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (reshaped, "is ['float32', 32000] and should be ['float32', 500, 64]"),
        (retyped, "is ['float16', 500, 64] and should be ['float32', 500, 64]"),
        (removed, "lacks the tensor"),
        (added, "has a tensor 'more' that does not belong there"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize(
    ("file", "tensor"),
    [
        ("model.safetensors", "bert.embeddings.word_embeddings.weight"),
        ("optimizer.safetensors", "embeddings.token.weight.mean"),
    ],
)
def test_tensors_that_are_not_the_runs_are_found_even_if_the_manifest_agrees(run, caplog, file, tensor, change, reason):
    """F6: wrong shape, wrong type, extra and missing tensors."""
    path = folder_of(run, 2) / file
    tensors = {name: value.clone() for name, value in read_weights(path).items()}
    change(tensors, tensor)
    write_weights(path, tensors)
    write_manifest(folder_of(run, 2))
    assert_falls_back(run, caplog, file, reason)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "holds a list, not an object"),
        (b"{}", "has no format and step"),
        (b'{"format": 1, "step": "2"}', "has no format and step"),
        (b'{"format": 0, "step": 2}', "has no format and step"),
        (b'{"format": 1, "step": 3}', "is of step 3"),
        (b'{"format": 1, "step": 2}', "does not say which tensors there are"),
        (b'{"format": 1, "step": 2, "tensors": {"model.safetensors": {}}}', "does not say which tensors there are"),
        (
            b'{"format": 1, "step": 2, "tensors": {"model.safetensors": {}, "optimizer.safetensors": {}}}',
            "does not belong there",
        ),
    ],
    ids=lambda value: value[:60] if isinstance(value, str) else "",
)
def test_a_state_of_another_shape_is_corrupt(run, caplog, content, reason):
    (folder_of(run, 2) / "state.json").write_bytes(content)
    write_manifest(folder_of(run, 2))
    assert_falls_back(run, caplog, reason)


@pytest.mark.parametrize("layout", [None, 3, "float32", [], {}, [["float32"], 500, 64]], ids=str)
def test_a_layout_of_another_shape_is_corrupt(run, caplog, layout):
    path = folder_of(run, 2) / "state.json"
    state = json.loads(path.read_bytes())
    state["tensors"]["model.safetensors"]["bert.embeddings.word_embeddings.weight"] = layout
    path.write_text(json.dumps(state))
    write_manifest(folder_of(run, 2))
    assert_falls_back(run, caplog, "model.safetensors")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "optimizer.safetensors", "state.json"])
def test_a_manifest_without_a_file_that_is_needed_is_corrupt(run, caplog, name):
    (folder_of(run, 2) / name).unlink()
    write_manifest(folder_of(run, 2))
    assert_falls_back(run, caplog, f"manifest.json does not list {name}")


def test_a_checkpoint_of_a_later_version_is_not_passed_over(run):
    """F18: to go on from an older one would throw work away that a newer version can read."""
    path = folder_of(run, 2) / "state.json"
    path.write_text(json.dumps(json.loads(path.read_bytes()) | {"format": 2}))
    write_manifest(folder_of(run, 2))
    with pytest.raises(UserError, match=r"state\.json is of format 2, and this version reads 1; use a newer bertworks"):
        latest_checkpoint(run)


def test_a_file_in_place_of_the_checkpoints_is_a_user_error(tmp_path):
    (tmp_path / CHECKPOINTS).write_text("mine")
    with pytest.raises(UserError, match=r"checkpoints is not a folder, so .* cannot be a run folder"):
        latest_checkpoint(tmp_path)


def test_a_file_on_the_way_to_a_run_folder_is_named(tmp_path):
    (tmp_path / "afile").write_text("mine")
    with pytest.raises(
        UserError, match=r"afile is not a folder, so .*afile/a/b cannot be a run folder; choose another"
    ):
        latest_checkpoint(tmp_path / "afile" / "a" / "b")


def test_an_optimizer_of_another_network_is_told_by_the_first_tensor_that_differs(run):
    found = layout_of(latest_checkpoint(run).optimizer)
    check_layout(run / "x", found, layout_of(optimizer_of(2)))
    with pytest.raises(CorruptFile, match="x lacks the tensor 'zzz'"):
        check_layout(run / "x", found, found | {"zzz": ["float32", 1]})


@pytest.mark.parametrize("state", [{}, None, "xy", "", "00ff"], ids=str)
def test_random_numbers_that_are_none_are_corrupt(state):
    before = torch.get_rng_state()
    with pytest.raises(CorruptFile, match="state of random numbers is not one"):
        restore_rng(state)
    assert torch.equal(torch.get_rng_state(), before)


# -- RUN/model


def test_a_model_that_is_published_has_the_place_of_the_one_before(run):
    publish_model(run, writer_of(2))
    assert set(verify_manifest(run / "model")) == FILES - {"optimizer.safetensors", "state.json"}
    assert torch.equal(bw.load(run, device="cpu").net.embeddings.token.weight, net_of(2).embeddings.token.weight)
    publish_model(run, writer_of(7))
    assert read_model(run / "model").about["step"] == 7
    assert sorted(os.listdir(run)) == ["checkpoints", "model"]


def test_a_link_in_place_of_the_model_is_replaced_and_what_it_leads_to_stays(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a").write_text("a")
    (run / "model").symlink_to(tmp_path / "mine")
    publish_model(run, writer_of(2))
    assert not (run / "model").is_symlink()
    assert (tmp_path / "mine" / "a").read_text() == "a"
    assert leftovers_in(run) == []


def test_a_model_that_cannot_be_written_leaves_the_old_one(run):
    publish_model(run, writer_of(1))

    def fail(folder):
        (folder / "model.safetensors").write_bytes(b"half")
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        publish_model(run, writer_of(2)._replace(write=fail))
    assert read_model(run / "model").about["step"] == 1
    assert sorted(os.listdir(run)) == ["checkpoints", "model"]
