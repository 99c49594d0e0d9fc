"""Folders of a tagger on frozen layers come back as they were, and what does not fit together is told."""

import json

import pytest
import torch
from small_models import PIECES

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.inference.describe import model_report, report_text
from bertworks.models.kinds import BERT, read_model, write_model
from bertworks.models.weights import read_weights, write_weights
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import FeatureReader, feature_bert, initialise_readers, reader_of
from bertworks.nn.config import BertConfig, FeatureConfig
from bertworks.nn.layers import initialise
from bertworks.text.tokenizer import Tokenizer

LABELS = ["O", "B-PER", "I-PER"]


def network(features="sum-all", **changes):
    sizes = {"vocab_size": len(PIECES), "hidden_size": 8, "num_hidden_layers": 4, "num_attention_heads": 2,
             "intermediate_size": 8, "max_position_embeddings": 12}  # fmt: skip
    config = BertConfig(**(sizes | changes))
    net = Bert(config, pooler=False)
    initialise(net, 0.1, 0)
    reader = FeatureReader(FeatureConfig(features=features, lstm_cells=5, lstm_dropout=0.25), config, len(LABELS))
    initialise_readers(reader, 1)
    return feature_bert(net, reader)


@pytest.fixture
def folder(tmp_path):
    write_model(tmp_path, network(), labels=LABELS, about={"units": "word"})
    Tokenizer(PIECES).save(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("features", "changes"),
    [
        ("sum-all", {}),
        ("embeddings", {"positions": "sinusoidal"}),
        ("concat-last-four", {"direction": "right_to_left"}),
        ("last", {"direction": "left_to_right"}),
    ],
)
def test_a_network_comes_back_as_it_was(tmp_path, features, changes):
    net = network(features, **changes)
    write_model(tmp_path, net, labels=LABELS, about={})
    opened = read_model(tmp_path)
    assert (opened.labels, opened.unused, opened.net.config) == (LABELS, [], net.config)
    assert reader_of(opened.net).config == reader_of(net).config
    there = opened.net.state_dict()
    assert there.keys() == net.state_dict().keys()
    assert all(torch.equal(tensor, there[name]) for name, tensor in net.state_dict().items())


def test_a_loaded_model_saves_what_it_was(folder, tmp_path):
    bw.load(folder, device="cpu").save(tmp_path / "again")
    for name in ("model.safetensors", "config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (folder / name).read_bytes()
    assert bw.load(tmp_path / "again", device="cpu").about["units"] == "word"


def test_a_report_shows_the_reader_and_all_tensors(folder):
    report = model_report(str(folder))
    assert report["tensors"].keys() == read_weights(folder / "model.safetensors").keys()
    assert "tags by frozen layers: sum-all, 2 BiLSTMs of 5 cells" in report_text(report)


def test_it_is_not_taken_for_a_plain_bert(folder):
    with pytest.raises(ConfigError, match="'bertworks-features' is not a BERT"):
        read_model(folder, BERT)


def changed(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"features": "lats"}, "lats"),
        ({"lstm_cells": 6}, "has the shape"),
        ({"features": "last"}, "reader.mix.gamma is there, and config.json has features last"),
        ({"features": "concat-last-four"}, "reader.lstm.lstm.weight_ih_l0 has the shape"),
        ({"lstm_layers": 3}, "reader.lstm.lstm.weight_ih_l2 is missing"),
        ({"num_hidden_layers": 5}, "is missing"),
        ({"lstm_dropout": 1.0}, "lstm_dropout"),
        ({"id2label": {"0": "O"}}, "names 1 label, and the head has 3"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_told(folder, changes, said):
    changed(folder, **changes)
    with pytest.raises(UserError, match=said):
        read_model(folder)


def test_a_tensor_that_is_missing_is_named(folder):
    tensors = dict(read_weights(folder / "model.safetensors"))
    tensors = {name: tensor.clone() for name, tensor in tensors.items() if name != "reader.out.bias"}
    write_weights(folder / "model.safetensors", tensors)
    with pytest.raises(ConfigError, match=r"reader\.out\.bias is missing"):
        read_model(folder)
