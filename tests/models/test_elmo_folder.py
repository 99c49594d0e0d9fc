"""N7, S6: ELMo's folders come back exactly, and what contradicts itself in one is told."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import ELMO_WORDS, write_small_elmo

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.models.kinds import read_model, write_model
from bertworks.nn.attention import pack_lengths


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


@pytest.mark.parametrize("softmax", [True, False])
def test_save_load_save_gives_the_same_bytes(tmp_path, softmax):
    write_small_elmo(tmp_path / "first", softmax=softmax, about={"steps": 3}, dropout=0.0)
    opened = bw.load(tmp_path / "first", device="cpu")
    assert (opened.net.config.dropout, opened.net.config.num_filters) == (0.0, (3, 4, 5))
    assert (opened.about, opened.unused, opened.labels) == ({"steps": 3}, [], [])
    opened.save(tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_the_form_of_a_folder(tmp_path):
    """What is written today opens tomorrow: these names are the format."""
    write_small_elmo(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    assert raw["model_type"] == "bertworks-elmo"
    assert (raw["characters"], raw["max_characters"], raw["num_characters"]) == ("utf-8 bytes", 50, 262)
    assert set(contents(tmp_path)) == {
        "config.json",
        "model.safetensors",
        "bertworks.json",
        "vocab.txt",
        "tokenizer_config.json",
    }
    tensors = load_file(tmp_path / "model.safetensors")
    assert set(tensors) == set(read_model(tmp_path).net.state_dict())
    assert tensors["softmax.weight"].shape == (len(ELMO_WORDS), 8)


def test_weights_on_their_way_through_a_file_compute_the_same(tmp_path):
    write_small_elmo(tmp_path)
    net = read_model(tmp_path).net.eval()
    (tmp_path / "again").mkdir()
    write_model(tmp_path / "again", net)
    again = read_model(tmp_path / "again").net.eval()
    words = torch.randn(9, 8)
    packing = pack_lengths([4, 5])
    with torch.no_grad():
        for first, second in zip(net.layers(words, packing), again.layers(words, packing), strict=True):
            assert torch.equal(first, second)


CONTRADICTIONS = {
    "a missing tensor": ({"from_left.1.weight_hr_l0": None}, {}, ["from_left.1.weight_hr_l0 is missing"]),
    "half a softmax": ({"softmax.bias": None}, {}, ["softmax.bias is missing"]),
    "a wrong shape": ({"characters.filters.0.weight": torch.ones(3, 6)}, {}, ["has the shape (3, 6)"]),
    "whole numbers": ({"softmax.bias": torch.ones(12, dtype=torch.int32)}, {}, ["holds torch.int32"]),
    "another width": ({}, {"projection_size": 9}, ["config.json wants (9, 12)"]),
    "fewer cells than are projected to": ({}, {"cell_size": 8}, ["more than projection_size"]),
    "other filters": ({}, {"num_filters": [3, 4]}, ["characters.projection.weight has the shape"]),
    "another spelling": ({}, {"max_characters": 20}, ["max_characters: '20'; words are spelt with 50"]),
    "wrong types": ({}, {"num_layers": "2", "vocab_size": -1}, ["num_layers", "vocab_size"]),
    "far too large": ({}, {"cell_size": 10**12, "vocab_size": 10**12}, ["cell_size", "vocab_size"]),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_weights_and_config_that_contradict_each_other_are_named(tmp_path, kind):
    tensors, changes, words = CONTRADICTIONS[kind]
    write_small_elmo(tmp_path)
    old = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file({name: t for name, t in (old | tensors).items() if t is not None}, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError) as caught:
        bw.load(tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_a_tensor_that_elmo_does_not_have_is_named(tmp_path):
    write_small_elmo(tmp_path)
    tensors = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file(tensors | {"mix.weights": torch.ones(3)}, tmp_path / "model.safetensors")
    assert read_model(tmp_path).unused == ["mix.weights"]


def test_a_list_of_more_words_than_the_model_guesses_is_refused(tmp_path):
    write_small_elmo(tmp_path)
    with open(tmp_path / "vocab.txt", "a") as stream:
        stream.write("zebra\n")
    with pytest.raises(UserError, match=r"vocabulary has 13 pieces and its model 12"):
        bw.load(tmp_path)
