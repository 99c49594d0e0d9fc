"""`bertworks convert --dtype`: the same model with numbers of another type, in half the bytes or in all of them."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import write_small_elmo, write_small_gpt, write_small_model

import bertworks as bw
from bertworks.files import verify_manifest
from bertworks.models.convert import convert

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    return write_small_model(tmp_path / "folder", about={"note": "kept"})


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def num_bytes_of_tensors(folder):
    return sum(tensor.nbytes for tensor in load_file(folder / WEIGHTS).values())


def test_a_run_folder_becomes_a_folder_of_half_the_size(bertworks, folder, tmp_path):
    (tmp_path / "run").mkdir()
    folder.rename(tmp_path / "run" / "model")
    code, out, err = bertworks("convert", tmp_path / "run", tmp_path / "out", "--dtype", "bfloat16")
    assert code == 0
    assert "parameters in" in out
    next_line = f"next: bertworks inspect {tmp_path / 'out'}  (what it is and what it can do)\n"
    assert err == f"note: rounded from float32 to bfloat16\n{next_line}"
    assert 2 * num_bytes_of_tensors(tmp_path / "out") == num_bytes_of_tensors(tmp_path / "run" / "model")
    assert {"config.json", WEIGHTS, "vocab.txt", "bertworks.json"} <= set(verify_manifest(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "bertworks.json").read_text())["note"] == "kept"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_every_number_is_the_nearest_of_its_type(folder, tmp_path, dtype):
    convert(folder, tmp_path / "out", dtype=dtype)
    before, after = load_file(folder / WEIGHTS), load_file(tmp_path / "out" / WEIGHTS)
    assert list(before) == list(after)
    for name, tensor in before.items():
        assert torch.equal(after[name], tensor.to(getattr(torch, dtype))), name


def test_the_same_folder_gives_the_same_bytes(folder, tmp_path):
    for name in ("a", "b"):
        convert(folder, tmp_path / name, dtype="bfloat16")
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    convert(tmp_path / "a", tmp_path / "again", dtype="bfloat16")
    assert contents(tmp_path / "again") == contents(tmp_path / "a")


def test_halved_weights_come_back_exactly_and_open_in_float32(folder, tmp_path):
    convert(folder, tmp_path / "half", dtype="bfloat16")
    back = convert(tmp_path / "half", tmp_path / "back", dtype="float32")
    assert back.notes == []
    half, whole = (bw.load(tmp_path / name, device="cpu") for name in ("half", "back"))
    assert half.fill("the [MASK] sat") == whole.fill("the [MASK] sat")
    for ours, theirs in zip(half.net.parameters(), whole.net.parameters(), strict=True):
        assert ours.dtype == torch.float32
        assert torch.equal(ours, theirs)


def test_what_is_not_copied_is_named(bertworks, folder, tmp_path):
    (folder / "CARD.md").write_text("# a card\n")
    (folder / "notes.txt").write_text("mine")
    result = json.loads(bertworks("convert", folder, tmp_path / "out", "--dtype", "bfloat16", "--json")[1])
    assert result["left_out"] == ["notes.txt"]
    assert (tmp_path / "out" / "CARD.md").read_text() == "# a card\n"


def test_several_weight_files_become_one(folder, tmp_path):
    tensors = load_file(folder / WEIGHTS)
    convert(folder, tmp_path / "expected", dtype="bfloat16")
    halves = {name: f"model-0000{number % 2 + 1}-of-00002.safetensors" for number, name in enumerate(tensors)}
    for file_name in set(halves.values()):
        save_file({name: tensors[name] for name in tensors if halves[name] == file_name}, folder / file_name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": halves}))
    (folder / WEIGHTS).unlink()
    assert convert(folder, tmp_path / "out", dtype="bfloat16").left_out == []
    assert contents(tmp_path / "out") == contents(tmp_path / "expected")


def test_whole_numbers_stay_and_a_stated_type_is_restated(folder, tmp_path):
    tensors = load_file(folder / WEIGHTS) | {"bert.embeddings.position_ids": torch.arange(20)[None]}
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": "float32"}))
    convert(folder, tmp_path / "out", dtype="float16")
    assert load_file(tmp_path / "out" / WEIGHTS)["bert.embeddings.position_ids"].dtype == torch.int64
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config | {"torch_dtype": "float16"}


@pytest.mark.parametrize("write", [write_small_gpt, write_small_elmo])
def test_other_kinds_of_models_are_halved_too(tmp_path, write):
    convert(write(tmp_path / "folder"), tmp_path / "out", dtype="bfloat16")
    assert 2 * num_bytes_of_tensors(tmp_path / "out") == num_bytes_of_tensors(tmp_path / "folder")
    bw.load(tmp_path / "out", device="cpu")


def test_what_does_not_fit_is_refused_by_name(bertworks, folder, tmp_path):
    tensors = load_file(folder / WEIGHTS)
    tensors["bert.pooler.dense.bias"][3] = 1e6
    save_file(tensors, folder / WEIGHTS, {"format": "pt"})
    code, _, err = bertworks("convert", folder, tmp_path / "out", "--dtype", "float16")
    assert code == 2
    assert "bert.pooler.dense.bias has numbers too large for float16" in err
    assert not (tmp_path / "out").exists()
    assert bertworks("convert", folder, tmp_path / "out", "--dtype", "bfloat16")[0] == 0


def test_how_text_was_can_be_said_too(folder, tmp_path):
    assert convert(folder, tmp_path / "as it is", dtype="bfloat16").lowercase
    assert convert(folder, tmp_path / "cased", dtype="bfloat16", lowercase=False).lowercase is False
    assert not bw.load(tmp_path / "cased", device="cpu").tokenizer.rules.lowercase


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("folder", "out", "--dtype", "int4"), "choose float32, bfloat16, float16, int8"),
        (("folder", "out.ckpt", "--dtype", "bfloat16"), "--dtype makes a model folder"),
        (("folder", "out", "--dtype", "bfloat16", "--with-optimizer"), "--dtype makes a model folder"),
        (("folder", "out", "--dtype", "bfloat16", "--allow-pickle"), "--dtype makes a model folder"),
        (("folder", "folder", "--dtype", "bfloat16"), "exists and is not an empty folder"),
        (("nowhere", "out", "--dtype", "bfloat16"), "no model 'nowhere'"),
        (("folder", "out"), "or --dtype"),
    ],
)
def test_a_mistake_is_one_line(bertworks, folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = bertworks("convert", *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
