"""N7, S6: folders of fine-tuned ELMos come back exactly, and what contradicts itself in one is told."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import ELMO_WORDS, scattered

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.inference.describe import model_report, report_text
from bertworks.models.kinds import write_model
from bertworks.nn.config import ElmoConfig, ElmoReaderConfig
from bertworks.nn.elmo import ElmoTasks
from bertworks.text.elmo_words import WordTokenizer

SIZES = {"vocab_size": len(ELMO_WORDS), "num_filters": (3, 4, 5), "char_embedding_size": 6, "projection_size": 8,
         "cell_size": 12}  # fmt: skip


def write(folder, heads=None, *, labels=None, about=None, **reader):
    config = ElmoReaderConfig(**{"num_cells": 5, "hidden_size": 7, **reader})
    folder.mkdir(parents=True, exist_ok=True)
    net = scattered(ElmoTasks(ElmoConfig(**SIZES), config, {"classify": 2} if heads is None else heads))
    write_model(folder, net, labels=labels, about=about)
    WordTokenizer(ELMO_WORDS).save(folder)
    return folder


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "manifest.json"}


@pytest.mark.parametrize(
    ("heads", "labels", "pairs"),
    [({"classify": 2}, ["no", "yes"], True), ({"tag": 3}, ["O", "B-X", "I-X"], False), ({"span": 2}, [], True)],
)
def test_save_load_save_gives_the_same_bytes(tmp_path, heads, labels, pairs):
    write(tmp_path / "first", heads, labels=labels, about={"steps": 3}, pairs=pairs)
    opened = bw.load(tmp_path / "first", device="cpu")
    assert (opened.labels, opened.about, opened.unused) == (labels, {"steps": 3}, [])
    assert (list(opened.net.heads), opened.net.reader.pairs) == (list(heads), pairs)
    opened.save(tmp_path / "second")
    assert contents(tmp_path / "first") == contents(tmp_path / "second")


def test_the_form_of_a_folder(tmp_path):
    """What is written today opens tomorrow: these names are the format."""
    raw = json.loads((write(tmp_path) / "config.json").read_text())
    assert (raw["model_type"], raw["max_characters"]) == ("bertworks-elmo-task", 50)
    assert raw["reader"] == {
        "pairs": False,
        "num_cells": 5,
        "hidden_size": 7,
        "dropout": 0.2,
        "trains_elmo": False,
    }
    names = set(load_file(tmp_path / "model.safetensors"))
    assert {"elmo.from_left.0.weight_hr_l0", "second.lstm.bias_ih_l0", "heads.classify.out.weight"} < names
    assert not [name for name in names if "softmax" in name]


CONTRADICTIONS = {
    "a missing tensor": ({"second.lstm.bias_ih_l0": None}, {}, ["second.lstm.bias_ih_l0 is missing"]),
    "half a head": ({"heads.classify.out.weight": None}, {}, ["heads.classify.out.weight is missing"]),
    "no head": ({"heads.classify.out.bias": None}, {}, ["no head is there"]),
    "a wrong shape": ({"hidden.bias": torch.ones(3, 6)}, {}, ["has the shape (3, 6)"]),
    "whole numbers": ({"mix.gamma": torch.tensor(1)}, {}, ["holds torch.int64"]),
    "other cells": ({}, {"reader": {"num_cells": 6}}, ["config.json wants (24, 16)"]),
    "no reader": ({}, {"reader": None}, ["reader: 'None' is not an object"]),
    "far too many cells": ({}, {"reader": {"num_cells": 10**12}}, ["num_cells"]),
    "another spelling": ({}, {"max_characters": 20}, ["max_characters: '20'; words are spelt with 50"]),
    "more labels than outputs": ({}, {"id2label": {"0": "a", "1": "b", "2": "c"}}, ["names 3 labels"]),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_weights_and_config_that_contradict_each_other_are_named(tmp_path, kind):
    tensors, changes, words = CONTRADICTIONS[kind]
    write(tmp_path)
    old = {name: tensor.clone() for name, tensor in load_file(tmp_path / "model.safetensors").items()}
    save_file({name: t for name, t in (old | tensors).items() if t is not None}, tmp_path / "model.safetensors")
    raw = json.loads((tmp_path / "config.json").read_text()) | changes
    (tmp_path / "config.json").write_text(json.dumps(raw))
    with pytest.raises(ConfigError) as caught:
        bw.load(tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_a_folder_that_says_nothing_of_its_task_is_used_by_its_head(tmp_path):
    model = bw.load(write(tmp_path / "pairs", labels=["no", "yes"], pairs=True), device="cpu")
    assert set(model.classify(["the cat"], ["a zebra"])[0]["scores"]) == {"no", "yes"}
    tagger, text = bw.load(write(tmp_path / "tag", {"tag": 2}), device="cpu"), "the zebra " * 400
    assert {text[found["start"] : found["end"]] for found in tagger.tag(text)} <= {"the", "zebra"}
    assert {found["type"] for found in tagger.tag(text)} <= {"LABEL_0", "LABEL_1"} != set()
    spans = bw.load(write(tmp_path / "span", {"span": 2}, pairs=True), device="cpu")
    (answer,) = spans.answer("who sat?", "the cat sat " * 200)
    assert ("the cat sat " * 200)[answer["start"] : answer["end"]] == answer["text"]


def test_what_only_a_bert_can_do_is_refused_in_words(tmp_path):
    model = bw.load(write(tmp_path), device="cpu")
    for name, what in (("fill", "fill masks"), ("embed", "embed texts"), ("attention", "show attention")):
        with pytest.raises(UserError, match=f"this fine-tuned ELMo cannot {what}: .*; it can: classify$"):
            getattr(model, name)("the [MASK]")
    with pytest.raises(UserError, match=r"cannot tag: it has no tag head \(heads: classify\)"):
        model.tag("the cat")
    chooser = bw.load(write(tmp_path / "choose", {"choose": 1}, pairs=True), device="cpu")
    with pytest.raises(UserError, match=r"it has no classify head .*; it can: choose$"):
        chooser.classify(["the cat"])
    with pytest.raises(UserError, match="computed in float32"):
        bw.load(tmp_path, dtype="bfloat16")


def test_the_report_of_a_folder_tells_its_parts(tmp_path):
    report = model_report(str(write(tmp_path, pairs=True, labels=["no", "yes"])))
    assert report["parameters"]["total"] == sum(v for k, v in report["parameters"].items() if k != "total")
    text = report_text(report)
    assert "frozen, under BiLSTMs of 5 cells each way for pairs of texts" in text
    assert "labels: no, yes" in text
