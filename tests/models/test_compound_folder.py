"""Folders of encoders with something on top: what is written comes back, and contradictions are told at once."""

import json

import pytest
import torch
from small_models import PIECES, scattered, write_small_gpt

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.inference.describe import model_report, report_text
from bertworks.models.kinds import COMPOUND, kind_of_model, read_model, write_model
from bertworks.nn.attention import pack
from bertworks.nn.bilstm import Compound
from bertworks.nn.config import BertConfig, CompoundConfig
from bertworks.text.tokenizer import Tokenizer

SIZES = {"vocab_size": len(PIECES), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
         "intermediate_size": 24, "max_position_embeddings": 20}  # fmt: skip
HEADS = {"classify": {"classify": 3}, "choose": {"choose": 1}, "tag": {"tag": 3}, "span": {"span": 2}}
LABELS = ["O", "B-PER", "I-PER"]


def write(folder, heads, labels=None, about=None, **changes):
    encoders = (
        BertConfig(**SIZES, direction="left_to_right", summary="last"),
        BertConfig(**SIZES, direction="right_to_left", positions="sinusoidal"),
    )
    config = CompoundConfig(**({"encoders": encoders, "num_lstm_layers": 1, "num_cells": 6} | changes))
    folder.mkdir(parents=True, exist_ok=True)
    net = scattered(Compound(config, heads))
    write_model(folder, net, labels=labels, about=about)
    Tokenizer(PIECES).save(folder)
    return net


@pytest.mark.parametrize("head", HEADS)
@torch.no_grad()
def test_what_is_written_comes_back_to_the_last_bit(tmp_path, head):
    net = write(tmp_path, HEADS[head], about={"units": "word"})
    assert kind_of_model(tmp_path) is COMPOUND
    opened = read_model(tmp_path)
    assert opened.net.config == net.config
    assert opened.about == {"units": "word"}
    assert opened.unused == []
    tokens = pack([[2, 7, 8, 3], [2, 9, 3]])
    for name, tensor in net.state_dict().items():
        assert torch.equal(opened.net.state_dict()[name], tensor)
    # Where a matrix lies in memory may change the last bit of a product.
    torch.testing.assert_close(opened.net.eval()(tokens), net(tokens), rtol=1e-5, atol=1e-6)
    again = tmp_path / "again"
    again.mkdir()
    write_model(again, opened.net, about=opened.about)
    for name in ("config.json", "model.safetensors", "bertworks.json"):
        assert (again / name).read_bytes() == (tmp_path / name).read_bytes()


def test_labels_go_with_the_folder(tmp_path):
    write(tmp_path, {"tag": 3}, LABELS)
    assert read_model(tmp_path).labels == LABELS
    write(tmp_path / "wrong", {"tag": 3}, LABELS[:2])
    with pytest.raises(ConfigError, match="names 2 labels, and the head has 3"):
        read_model(tmp_path / "wrong")


CHANGES = {
    "a width": ({"num_cells": 7}, "bilstm.0.lstm.weight_ih_l0"),
    "more layers": ({"num_lstm_layers": 2}, "bilstm.1.lstm.weight_hh_l0 is missing"),
    "no encoders": ({"encoders": []}, "encoders"),
    "three encoders": ({"encoders": [SIZES] * 3}, "encoders"),
    "an encoder of text": ({"encoders": ["base"]}, "encoders.0"),
    "an unknown key": ({"encoders": [SIZES | {"wings": 2}]}, "wings"),
    "a billion cells": ({"num_cells": 10**9}, "num_cells"),
    "a direction": ({"encoders": [SIZES | {"direction": "up"}]}, "direction"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_config_that_contradicts_itself_or_the_weights_is_a_user_error(tmp_path, change):
    """S6: before anything is allocated."""
    write(tmp_path, {"classify": 3})
    changes, said = CHANGES[change]
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(UserError, match=said):
        bw.load(tmp_path)


def test_tags_and_answers_have_places_in_texts_of_any_length(tmp_path):
    write(tmp_path / "tag", {"tag": 3}, LABELS)
    text = "the cat sat far away . " * 10
    found = bw.load(tmp_path / "tag", device="cpu").tag(text)
    assert all(text[one["start"] : one["end"]] == one["text"] for one in found)
    write(tmp_path / "span", {"span": 2})
    answers = bw.load(tmp_path / "span", device="cpu").answer("a cat", text, top_k=3)
    assert len(answers) == 3
    assert all(text[one["start"] : one["end"]] == one["text"] for one in answers)


def test_a_fine_tuned_gpt_tags_and_answers_too(tmp_path):
    from small_models import GPT_PIECES, MERGES

    from bertworks.text.gpt import FINE_TUNING_TOKENS, GptTokenizer

    text, size = "the cat sat far away. the dog ran. " * 3, {"vocab_size": len(GPT_PIECES) + 3}
    for kind, heads in (("tag", {"tag": 3}), ("answer", {"span": 2})):
        labels = LABELS if kind == "tag" else None
        folder = write_small_gpt(tmp_path / kind, heads, labels=labels, about={"task": {"kind": kind}}, **size)
        GptTokenizer([*GPT_PIECES, *FINE_TUNING_TOKENS], MERGES).save(folder)
        assert set(read_model(folder).net.heads) == set(heads)
        model = bw.load(folder, device="cpu")
        found = model.tag(text) if kind == "tag" else model.answer("a cat", text)
        assert found
        assert all(text[one["start"] : one["end"]] == one["text"] for one in found)


def test_what_only_a_bert_can_do_is_refused_in_words(tmp_path):
    write(tmp_path, {"classify": 3})
    model = bw.load(tmp_path)
    with pytest.raises(UserError, match=r"cannot fill masks: it has no mlm head .*; it can: classify$"):
        model.fill("a [MASK]")
    with pytest.raises(UserError, match="has no tag head"):
        model.tag("a cat")


def test_a_report_names_all_parts(tmp_path):
    write(tmp_path, {"classify": 3})
    report = model_report(str(tmp_path))
    text = report_text(json.loads(json.dumps(report)))
    for said in ("attends left to right", "attends right to left", "a BiLSTM of 1 layer, 6 cells each way", "bilstm"):
        assert said in text
