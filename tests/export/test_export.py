"""Exported files, run by plain onnxruntime without our code: against torch for every head, form, length and batch."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from small_models import PIECES, write_small_model

import bertworks as bw
from bertworks.export.graph import OPERATORS, Float32, write_graph
from bertworks.models.sentence_transformers import Layer, Pooling, write_pooling
from bertworks.nn.bert import Bert
from bertworks.nn.config import preset
from bertworks.nn.layers import initialise

TEXTS = ["the cat sat", "a", "the big dog ran far away, far away!", "", "a small cat sat on the mat ."]
RANDOM = np.random.default_rng(0)
DENSE = Layer("Dense", RANDOM.normal(size=(5, 32)).astype(np.float32), RANDOM.normal(size=5).astype(np.float32), "Tanh")
NORM = Layer("LayerNorm", *RANDOM.normal(size=(2, 16)).astype(np.float32))
PLAIN = Layer("Dense", RANDOM.normal(size=(6, 16)).astype(np.float32), None)
HEADS = {
    "bare": {}, "mlm": {"mlm": 0}, "both": {"mlm": 0, "nsp": 2}, "classify": {"classify": 3},
    "regress": {"classify": 1}, "choose": {"choose": 1}, "tag": {"tag": 4}, "span": {"span": 2},
}  # fmt: skip
OUTPUTS = {
    "bare": [], "mlm": ["mlm_logits"], "both": ["mlm_logits", "nsp_logits"], "span": ["start_logits", "end_logits"]
}  # fmt: skip
KINDS = {
    "gelu-new": {"hidden_act": "gelu_new"}, "relu": {"hidden_act": "relu"}, "one-segment": {"type_vocab_size": 1},
    "no-layers": {"num_hidden_layers": 0}, "left-to-right": {"direction": "left_to_right", "summary": "last"},
    "right-to-left": {"direction": "right_to_left"}, "sinusoidal": {"positions": "sinusoidal"},
    "left-to-right-first": {"direction": "left_to_right"},
}  # fmt: skip
POOLINGS = {
    "mean": Pooling(), "cls": Pooling(("cls",)), "max": Pooling(("max",)), "last": Pooling(("last",)),
    "weighted": Pooling(("weightedmean",)), "sqrt": Pooling(("mean_sqrt_len_tokens",), ("Normalize",)),
    "layers": Pooling(("mean", "cls"), (DENSE, "Normalize")), "norm": Pooling(("mean",), (NORM, PLAIN)),
    "cut": Pooling(("max",), truncate_dim=7, max_length=9), "long-cut": Pooling(truncate_dim=99),
}  # fmt: skip
FORMS = pytest.mark.parametrize("portable", [False, True], ids=["fused", "portable"])


def run(path, encodings, positions=None):
    """Run a file on padded texts, as its users do; returns its outputs by their names, and where there are tokens."""
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    ids = np.zeros((len(encodings), max(map(len, encodings))), np.int64)
    segments, mask = ids.copy(), ids.copy()
    for row, one in enumerate(encodings):
        ids[row, : len(one)], segments[row, : len(one)], mask[row, : len(one)] = one.ids, one.segment_ids, 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": segments}
    if "masked_positions" in {one.name for one in session.get_inputs()}:
        inputs["masked_positions"] = np.argwhere(mask)[::3] if positions is None else positions(ids)
    names = [one.name for one in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True)), mask.astype(bool), inputs


@torch.inference_mode()
def expected(model, encodings, is_token, inputs):
    """Return what torch makes of the same texts, tokens end to end."""
    tokens = model.pack([one.ids for one in encodings], [one.segment_ids for one in encodings])
    hidden = model.net(tokens)
    padded = np.zeros((*is_token.shape, hidden.shape[1]), np.float32)
    padded[is_token] = hidden.numpy()
    found = {"last_hidden_state": hidden}
    for name in model.heads:
        if name == "mlm":
            rows = torch.from_numpy(padded[tuple(inputs["masked_positions"].T)])
            found["mlm_logits"] = model.mlm_logits(rows)
        elif name == "span":
            found["start_logits"], found["end_logits"] = model.net.scores(name, hidden).unbind(1)
        elif name == "tag":
            found["logits"] = model.net.scores(name, hidden)
        else:
            found["nsp_logits" if name == "nsp" else "logits"] = model.net.scores(name, model.net.pooled_of(tokens))
    return {name: values.numpy() for name, values in found.items()}


def check(path, model, texts=TEXTS, pairs=None, tolerance=2e-6):
    encodings = model.encode(texts, pairs)
    found, is_token, inputs = run(path, encodings)
    wanted = expected(model, encodings, is_token, inputs)
    if "sentence_embedding" in found:
        wanted["sentence_embedding"] = model.embed(texts, prompt="")
    assert set(found) == set(wanted)
    for name, right in wanted.items():
        values = found[name][is_token] if found[name].shape[:2] == is_token.shape else found[name]
        np.testing.assert_allclose(values, right, atol=tolerance * max(1, np.abs(right).max()), err_msg=name)


@FORMS
@pytest.mark.parametrize("heads", HEADS)
def test_every_head_gives_what_torch_gives(tmp_path, heads, portable):
    model = bw.load(write_small_model(tmp_path / "model", HEADS[heads]))
    path = tmp_path / "m.onnx"
    exported = model.export(path, portable=portable)
    assert exported.outputs == [*OUTPUTS.get(heads, ["logits"]), "last_hidden_state"]
    assert exported.difference < 1e-5
    check(path, model)
    check(path, model, texts=["a cat sat on the mat, far away"])
    check(path, model, texts=["the cat ran"] * 7)
    check(path, model, texts=["the cat", "a big big dog"], pairs=["ran away", "sat ."])
    check(path, model, texts=["a cat " * 9])  # as many tokens as it has positions
    assert len(model.encode("a cat " * 9)) == model.max_length


@FORMS
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_bert(tmp_path, kind, portable):
    model = bw.load(write_small_model(tmp_path / "model", {"mlm": 0, "classify": 2}, **KINDS[kind]))
    model.export(tmp_path / "m.onnx", portable=portable)
    check(tmp_path / "m.onnx", model)


@FORMS
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_sentence_folder_gives_its_vectors(tmp_path, pooling, portable):
    folder, stated = write_small_model(tmp_path / "model", {}), POOLINGS[pooling]
    write_pooling(folder, stated, 16)
    model = bw.load(folder)
    exported = model.export(tmp_path / "m.onnx", portable=portable)
    assert exported.outputs == ["sentence_embedding", "last_hidden_state"]
    texts = [text for text in TEXTS if len(model.tokenizer.encode(text)) <= model.max_length]
    check(tmp_path / "m.onnx", model, texts)
    opened = bw.load(tmp_path / "m.onnx")
    np.testing.assert_allclose(opened.embed("the cat sat"), model.embed("the cat sat"), atol=1e-5)
    assert opened.max_length == model.max_length
    assert opened.pooling.as_json() | {"max_length": 0} == model.pooling.as_json() | {"max_length": 0}


def test_a_prompt_that_is_not_pooled_has_no_vectors_in_the_graph(tmp_path):
    folder = write_small_model(tmp_path / "model", {})
    prompts = {"query": "far away "}
    write_pooling(folder, Pooling(prompts=prompts, default_prompt="query", include_prompt=False), 16)
    model = bw.load(folder)
    exported = model.export(tmp_path / "m.onnx")
    assert exported.outputs == ["last_hidden_state"]
    assert "pools without the prompt" in exported.notes[0]
    np.testing.assert_allclose(bw.load(tmp_path / "m.onnx").embed("the cat"), model.embed("the cat"), atol=1e-5)


def test_a_tokenizer_and_labels_travel_in_the_metadata(tmp_path):
    about = {"task": {"kind": "classify", "name": "mine"}}
    folder = write_small_model(tmp_path / "model", {"classify": 2}, labels=["아니요", "yes"], about=about)
    bw.load(folder).export(tmp_path / "m.onnx")
    facts = onnxruntime.InferenceSession(tmp_path / "m.onnx").get_modelmeta().custom_metadata_map
    assert facts["vocab.txt"].split("\n")[:-1] == PIECES
    assert json.loads(facts["labels"]) == ["아니요", "yes"]
    assert (facts["task"], facts["dtype"], facts["max_length"]) == ("classify", "float32", "20")
    assert {"config.json", "bertworks.json", "tokenizer.json", "tokenizer_config.json"} <= set(facts)


def test_six_layers_are_46_nodes_and_standard_ones_173():
    net = Bert(preset("6x128", vocab_size=50), pooler=False)
    initialise(net, 0.02, 0)
    fused, portable = (write_graph(net, Float32(), None, portable=one) for one in (False, True))
    assert (len(fused.graph.nodes), len(portable.graph.nodes)) == (46, 173)
    assert (fused.domains, portable.domains) == (("", "com.microsoft"), ("",))


@pytest.mark.parametrize("options", [{}, {"portable": True}, {"int8": True}, {"int8": True, "calibrate": TEXTS}])
def test_equal_weights_give_equal_bytes_and_a_valid_file(tmp_path, options):
    paths = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for path in paths:
        bw.load(write_small_model(path.with_suffix(""), {"mlm": 0, "tag": 2})).export(path, **options)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    model = onnx.load(paths[0])
    assert paths[0].stat().st_size == model.ByteSize()
    onnx.checker.check_model(model, full_check=True)
    assert all(node.op_type in OPERATORS[node.domain] for node in model.graph.node)
    used = {name for node in model.graph.node for name in node.input}
    assert {one.name for one in model.graph.initializer} <= used


def test_a_model_in_other_numbers_is_exported_as_float32(tmp_path):
    folder = write_small_model(tmp_path / "model", {"classify": 2})
    bw.load(folder).export(tmp_path / "a.onnx")
    for dtype in ("int8", "bfloat16"):
        model = bw.load(folder, dtype=dtype)
        model.export(tmp_path / f"{dtype}.onnx")
        assert model.dtype == bw.load(folder, dtype=dtype).dtype  # it is what it was
        if next(model.net.parameters()).dtype == torch.float32:
            assert (tmp_path / f"{dtype}.onnx").read_bytes() == (tmp_path / "a.onnx").read_bytes()


# int8.

INT8 = pytest.mark.parametrize(
    "options", [{}, {"portable": True}, {"calibrate": ["the big cat sat on a mat, far away!", *TEXTS]}],
    ids=["fused", "portable", "static"],
)  # fmt: skip


@INT8
@pytest.mark.parametrize("kind", [{}, {"hidden_act": "relu"}, {"direction": "right_to_left"}], ids=str)
def test_int8_is_near_to_float32(tmp_path, options, kind):
    model = bw.load(write_small_model(tmp_path / "model", {"mlm": 0, "span": 2}, hidden_size=64, **kind))
    exported = model.export(tmp_path / "m.onnx", int8=True, **options)
    assert exported.dtype == "int8"
    assert exported.cosine > 0.997
    encodings = model.encode([text for text in TEXTS if text])
    found, is_token, inputs = run(tmp_path / "m.onnx", encodings)
    wanted = expected(model, encodings, is_token, inputs)
    for name, right in wanted.items():
        values = found[name][is_token] if found[name].shape[:2] == is_token.shape else found[name]
        assert np.corrcoef(values.ravel(), right.ravel())[0, 1] > 0.97, name


def test_a_calibrated_file_rounds_the_inputs_to_fixed_levels(tmp_path):
    model = bw.load(write_small_model(tmp_path / "model", {}, num_hidden_layers=1))
    exported = model.export(tmp_path / "m.onnx", int8=True, calibrate=["a cat sat"])
    assert exported.form == "standard"
    graph = onnx.load(tmp_path / "m.onnx").graph
    kinds = [node.op_type for node in graph.node]
    assert (kinds.count("QuantizeLinear"), kinds.count("DequantizeLinear")) == (4, 8)
    weights = {one.name: onnx.numpy_helper.to_array(one) for one in graph.initializer}
    assert weights["blocks.0.up.matrix"].dtype == np.int8
    assert np.abs(weights["blocks.0.up.matrix"]).max() == 127


def test_int8_makes_a_file_smaller(tmp_path):
    model = bw.load(write_small_model(tmp_path / "model", {}, hidden_size=128, intermediate_size=512))
    sizes = [model.export(tmp_path / f"{int8}.onnx", int8=int8).megabytes for int8 in (False, True)]
    assert sizes[1] < 0.3 * sizes[0]
    assert Path(tmp_path / "True.onnx").stat().st_size == round(sizes[1] * 1e6)
