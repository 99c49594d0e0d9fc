"""Exported files in use: `bw.load` and the commands give what the folder gives; what is refused, and bad files."""

import json
import os
import random
import sys

import numpy as np
import onnx
import pytest
import torch
from small_models import PIECES, write_small_elmo, write_small_gpt, write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.nn import layers

LABELS = ["no", "yes"]
TEXTS = ["the cat sat", "a dog ran far away", "the big dog", "a"]


def exported(tmp_path, heads=None, *, name="m", options=None, **changes):
    model = bw.load(write_small_model(tmp_path / name, heads, **changes))
    model.export(tmp_path / f"{name}.onnx", **(options or {}))
    return model, bw.load(tmp_path / f"{name}.onnx")


def nearly(one, other):
    """Tell whether two results are the same, but for the last digits of their numbers."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(nearly(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(nearly, one, other))
    return one == (pytest.approx(other, abs=1e-5) if isinstance(other, float) else other)


def test_a_pretrained_model(tmp_path):
    model, opened = exported(tmp_path)
    texts = ["the [MASK] sat", "a [MASK] [MASK] ran far away .", "[MASK]"]
    assert nearly(opened.fill(texts, top_k=3), model.fill(texts, top_k=3))
    assert nearly(opened.nsp(TEXTS, "far away"), model.nsp(TEXTS, "far away"))
    np.testing.assert_allclose(opened.embed(TEXTS), model.embed(TEXTS), atol=1e-5)
    features = opened.features("the cat sat", layers=-1).hidden
    np.testing.assert_allclose(features, model.features("the cat sat", layers=-1).hidden, atol=1e-5)
    assert opened.methods == ["fill", "nsp", "embed", "features"]
    assert repr(opened) == repr(model).replace(", attention", "")
    assert opened.embed([]).shape == (0, 16)
    assert nearly(opened.describe() | {"methods": 0}, model.describe() | {"methods": 0})


def test_fine_tuned_models(tmp_path):
    for number, kind in enumerate(("classify", "multilabel")):
        about = {"task": {"kind": kind}}
        model, opened = exported(tmp_path, {"classify": 2}, name=f"c{number}", labels=LABELS, about=about)
        assert nearly(opened.classify(TEXTS), model.classify(TEXTS))
    model, opened = exported(tmp_path, {"classify": 1}, name="r", about={"task": {"kind": "regress"}})
    assert nearly(opened.classify("a cat"), model.classify("a cat"))
    model, opened = exported(tmp_path, {"tag": 3}, name="t", labels=["O", "B-PER", "I-PER"])
    assert nearly(opened.tag(["the cat sat on a mat " * 9, "a"]), model.tag(["the cat sat on a mat " * 9, "a"]))
    model, opened = exported(tmp_path, {"choose": 1}, name="h")
    assert nearly(opened.choose("the cat", ["sat", "ran away", "a"]), model.choose("the cat", ["sat", "ran away", "a"]))
    model, opened = exported(tmp_path, {"span": 2}, name="s", about={"threshold": 0.5})
    both = ["the cat ?", "a dog ?"], "the cat sat on the mat . a dog ran far away . " * 3
    assert nearly(opened.answer(*both, top_k=2), model.answer(*both, top_k=2))


def test_a_left_to_right_model_predicts_words(tmp_path):
    model, opened = exported(tmp_path, {"mlm": 0}, direction="left_to_right", summary="last")
    assert nearly(opened.next_words("the cat"), model.next_words("the cat"))
    assert opened.perplexity(TEXTS) == pytest.approx(model.perplexity(TEXTS), rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"portable": True}, {"calibrate": TEXTS}], ids=str)
def test_an_int8_file_says_so(tmp_path, options):
    model, opened = exported(tmp_path, {"mlm": 0}, hidden_size=64, options={"int8": True} | options)
    assert (opened.dtype, bw.load(tmp_path / "m.onnx", dtype="int8").dtype) == ("int8", "int8")
    assert opened.fill("the [MASK] sat", top_k=1)[0][0]["score"] == pytest.approx(
        model.fill("the [MASK] sat", top_k=1)[0][0]["score"], rel=0.2
    )
    with pytest.raises(UserError, match="was exported in int8; for float32 open the folder"):
        bw.load(tmp_path / "m.onnx", dtype="float32")


@pytest.mark.parametrize("is_fast", [True, False])
def test_int8_does_not_overflow_where_there_is_no_vnni(tmp_path, monkeypatch, caplog, is_fast):
    """Two products of bytes would; avoiding that takes twice the time, so it is not asked for where they do not."""
    monkeypatch.setattr(layers, "cpu_instructions", lambda: frozenset({"avx512_vnni"} if is_fast else ()))
    caplog.set_level("WARNING")
    _, opened = exported(tmp_path, {}, options={"int8": True})
    assert ("is right on it, but not fast" in caplog.text) is not is_fast
    options, key = opened.net.engine.session.get_session_options(), "session.x64quantprecision"
    if is_fast:
        with pytest.raises(RuntimeError, match="does not have"):
            options.get_session_config_entry(key)
    else:
        assert options.get_session_config_entry(key) == "1"


def test_lengths_of_a_batch_do_not_matter(tmp_path):
    """Texts of similar length share a run of the graph, others have one of their own; empty ones have none."""
    model, opened = exported(tmp_path, {"classify": 2})
    generator = torch.Generator().manual_seed(0)
    lengths = [1, 20, 2, 0, 19, 20, 3, 3, 7, 11, 0]
    ids = [torch.randint(5, 20, (length,), generator=generator).tolist() for length in lengths]
    with torch.inference_mode():
        tokens = model.pack(ids)
        torch.testing.assert_close(opened.net(tokens), model.net(tokens), atol=1e-5, rtol=1e-5)
        filled = model.pack([some for some in ids if some])
        torch.testing.assert_close(opened.net.pooled_of(filled), model.net.pooled_of(filled), atol=1e-5, rtol=1e-5)
        assert opened.net(model.pack([[], []])).shape == (0, 16)


# The commands.


@pytest.fixture
def tuned(tmp_path):
    return write_small_model(tmp_path / "model", {"classify": 2}, labels=LABELS, about={"task": {"kind": "classify"}})


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("text,label\nthe cat sat,yes\na dog ran,no\nfar away,yes\n")
    return path


def test_export_predict_and_evaluate(bertworks, tuned, rows, tmp_path):
    out = tmp_path / "m.onnx"
    code, said, err = bertworks("export", tuned, "--out", out, "--dev", rows)
    assert code == 0
    assert said.startswith(f"{out}: float32, 29 nodes of operators of ONNX Runtime, 0.0 MB")
    assert "\ncompared with torch: largest difference" in said
    assert f"\naccuracy on {rows}: " in said
    assert err.startswith("next: bertworks")
    scores = [json.loads(bertworks("evaluate", one, "--data", rows, "--json")[1]) for one in (tuned, out)]
    assert nearly(*({name: one[name] for name in ("accuracy", "loss", "examples")} for one in scores))
    for one, name in ((tuned, "a"), (out, "b")):
        assert bertworks("predict", one, rows, "--out", tmp_path / f"{name}.csv", "--dtype", "auto")[0] == 0
    assert "computed in" not in bertworks("predict", out, rows, "--out", tmp_path / "c.csv")[2]
    assert bertworks("classify", out, "the cat sat", "--json")[0] == 0


def test_export_as_json(bertworks, tuned, rows, tmp_path):
    texts = tmp_path / "texts.txt"
    texts.write_text("the cat sat\n\na dog ran far away\n")
    out = tmp_path / "m.onnx"
    options = ["--int8", "--calibrate", texts, "--dev", rows, "--json"]
    code, printed, _ = bertworks("export", tuned, "--out", out, *options)
    found = json.loads(printed)
    assert code == 0
    assert (found["dtype"], found["form"], found["outputs"]) == ("int8", "standard", ["logits", "last_hidden_state"])
    assert set(found["dev"]) == {"model", "file"}
    assert found["megabytes"] == pytest.approx(out.stat().st_size / 1e6)


@pytest.mark.parametrize(("arguments", "message"), [
    (["--out", "m.bin"], "cannot export to m.bin; give a name that ends in .onnx"),
    (["--out", "there.onnx"], "there.onnx exists already; choose another name or remove it"),
    (["--out", "no/such/m.onnx"], "no/such"),
    (["--out", "m.onnx", "--calibrate", "texts.txt"], "ask for it with --int8"),
    (["--out", "m.onnx", "--int8", "--calibrate", "blank.txt"], "no text to calibrate with"),
    (["--out", "m.onnx", "--int8", "--calibrate", "missing.txt"], "cannot read missing.txt"),
])  # fmt: skip
def test_options_that_are_refused(bertworks, tuned, tmp_path, monkeypatch, arguments, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.onnx").write_text("mine")
    (tmp_path / "texts.txt").write_text("the cat\n")
    (tmp_path / "blank.txt").write_text("\n \n")
    code, out, err = bertworks("export", tuned, *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert (tmp_path / "there.onnx").read_text() == "mine"
    assert not (tmp_path / "m.onnx").exists()


def test_other_kinds_are_refused(bertworks, tmp_path):
    write_small_gpt(tmp_path / "gpt")
    write_small_elmo(tmp_path / "elmo")
    for kind, words in (("gpt", "a GPT-1; its folder opens here and in transformers"), ("elmo", "an ELMo; its folder")):
        code, _, err = bertworks("export", tmp_path / kind, "--out", tmp_path / "m.onnx")
        assert (code, err.count("\n")) == (2, 1)
        assert f"only BERTs are exported to ONNX, and this is {words}" in err


def test_what_is_not_a_number_is_not_exported(tmp_path):
    model = bw.load(write_small_model(tmp_path / "model"))
    model.net.blocks[1].up.weight.data[3, 3] = float("nan")
    with pytest.raises(UserError, match=r"m\.onnx is not written: its results differ from torch's by nan"):
        model.export(tmp_path / "m.onnx")
    assert os.listdir(tmp_path) == ["model"]


def test_a_graph_that_computes_something_else_is_not_written(tmp_path, monkeypatch):
    from bertworks.export import graph

    monkeypatch.setattr(graph.Float32, "multiply", lambda self, graph, x, name, weight: graph.op(
        "MatMul", x, graph.weight(f"{name}.matrix", weight.detach().t().contiguous() * 1.01)))  # fmt: skip
    with pytest.raises(UserError, match="is not written: its results differ"):
        bw.load(write_small_model(tmp_path / "model")).export(tmp_path / "m.onnx")


@pytest.mark.parametrize("library", ["onnx", "onnxruntime"])
def test_a_missing_library_is_named(bertworks, tuned, tmp_path, monkeypatch, library):
    bw.load(tuned).export(tmp_path / "m.onnx")
    monkeypatch.setitem(sys.modules, library, None)
    for command in (("export", tuned, "--out", tmp_path / "n.onnx"), ("classify", tmp_path / "m.onnx", "a cat")):
        code, _, err = bertworks(*command)
        assert (code, err) == (2, f'error: ONNX files need {library}: pip install "bertworks[export]"\n')


def test_int8_without_its_instructions_is_right_but_not_fast(bertworks, tuned, tmp_path, monkeypatch):
    monkeypatch.setattr(layers, "cpu_instructions", frozenset)
    code, _, err = bertworks("export", tuned, "--out", tmp_path / "m.onnx", "--int8")
    assert code == 0
    assert "no instructions for int8 (VNNI or AMX): results are right, but not faster" in err


def test_an_int8_file_is_not_said_to_have_another_number_type(bertworks, tuned, tmp_path):
    bw.load(tuned).export(tmp_path / "m.onnx", int8=True)
    (tmp_path / "rows.csv").write_text("text\nthe cat sat\n")
    commands = ["predict", tmp_path / "m.onnx", tmp_path / "rows.csv"], ["embed", tmp_path / "m.onnx", "a cat"]
    for command, out in zip(commands, ("p.csv", "v.npy"), strict=True):
        code, _, err = bertworks(*command, "--out", tmp_path / out)
        assert (code, "--dtype" in err) == (0, False)


def test_inspect_shows_what_a_file_can_do(bertworks, tmp_path):
    _, opened = exported(tmp_path)
    code, out, _ = bertworks("inspect", tmp_path / "m.onnx")
    assert (code, out) == (0, f"{opened!r}\n")
    assert json.loads(bertworks("inspect", tmp_path / "m.onnx", "--json")[1]) == opened.describe()


# What a file cannot do.


@pytest.mark.parametrize(("ask", "message"), [
    (lambda model, _: model.attention("a cat"), "an exported model does not give it; open the folder"),
    (lambda model, _: model.features("a cat"), "gives its last layer alone: --layers -1, in Python layers=-1"),
    (lambda model, _: model.embed("a cat", layers=0), "gives its last layer alone"),
    (lambda model, tmp: model.save(tmp / "new"), "an exported model is not saved as a folder; copy its file"),
    (lambda model, tmp: model.export(tmp / "n.onnx"), "is an ONNX file already; export the folder"),
    (lambda _, tmp: bw.convert(tmp / "m.onnx", tmp / "new", dtype="int8"), "for this give the folder"),
    (lambda _, tmp: bw.load(tmp / "m.onnx", device="mps"), "is computed on the CPU|is not there"),
])  # fmt: skip
def test_what_needs_layers_is_refused(tmp_path, ask, message):
    _, opened = exported(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        ask(opened, tmp_path)
    assert "\n" not in str(error.value)


def test_fine_tuning_a_file_is_refused(bertworks, tmp_path, rows):
    exported(tmp_path)
    run = ("finetune", "classify", "--model", tmp_path / "m.onnx", "--train", rows, "--out", tmp_path / "run")
    for command in (run, ("attend", tmp_path / "m.onnx", "a cat")):
        code, _, err = bertworks(*command)
        assert (code, err.count("\n")) == (2, 1)
        assert "give the folder that it was exported from" in err or "open the folder that it was exported from" in err


# Files from anywhere.


def changed(path, change):
    model = onnx.load(path)
    change(model)
    path.write_bytes(model.SerializeToString())
    return path


def outside(model):
    tensor = model.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="../../etc/passwd")


def without(*names):
    def change(model):
        kept = [entry for entry in model.metadata_props if entry.key not in names]
        del model.metadata_props[:]
        model.metadata_props.extend(kept)

    return change


def saying(name, value):
    def change(model):
        for entry in model.metadata_props:
            entry.value = value if entry.key == name else entry.value
        if name not in {entry.key for entry in model.metadata_props}:
            model.metadata_props.add(key=name, value=value)

    return change


def with_operator(model):
    model.graph.node[3].op_type = "NonZero"


def with_loop(model):
    graph = onnx.helper.make_graph([], "inner", [], [])
    model.graph.node[3].attribute.append(onnx.helper.make_attribute("body", graph))


def shorter_table(model):
    tensor = next(one for one in model.graph.initializer if one.name == "embeddings.token.weight")
    tensor.dims[0] -= 1
    tensor.raw_data = tensor.raw_data[: -4 * tensor.dims[1]]


def shorter_bias(model):
    tensor = next(one for one in model.graph.initializer if one.name == "blocks.0.up.bias")
    tensor.raw_data = tensor.raw_data[:-4]


def without_hidden(model):
    del model.graph.output[-1]


@pytest.mark.parametrize(("change", "message"), [
    (outside, "weights in a file beside it, '../../etc/passwd', are refused"),
    (without("bertworks"), "was not written by `bertworks export` (by bertworks)"),
    (saying("bertworks", "9"), "has form '9', and this version reads 1"),
    (without("config.json"), "config.json is missing"),
    (without("vocab.txt", "tokenizer.json"), "vocab.txt"),
    (saying("config.json", '{"hidden_size": "wide"}'), "hidden_size"),
    (saying("config.json", "[" * 100_000), "config.json"),
    (saying("bertworks.json", '{"task": 3}'), "task"),
    (saying("../out.txt", "mine"), "is not a usable name"),
    (with_operator, "has an operator 'NonZero', which `bertworks export` does not write"),
    (with_loop, "which `bertworks export` does not write"),
    (shorter_table, "its weights do not fit its config.json"),
    (saying("vocab.txt", "\n".join([*PIECES, *"123456789"]) + "\n"), "its vocabulary has 31 pieces and its"),
    (shorter_bias, "ONNX Runtime does not open it"),
    (without_hidden, "has no output last_hidden_state"),
])  # fmt: skip
def test_a_file_that_was_changed_is_refused_in_a_line(bertworks, tmp_path, change, message):
    exported(tmp_path)
    changed(tmp_path / "m.onnx", change)
    code, out, err = bertworks("fill", tmp_path / "m.onnx", "the [MASK] sat")
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) <= 2
    assert "/tmp" not in err.replace(str(tmp_path), "")  # where it is unpacked is nobody's business
    assert not (tmp_path.parent / "out.txt").exists()


@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.999])
def test_a_file_that_was_cut_off(bertworks, tmp_path, share):
    exported(tmp_path)
    path = tmp_path / "m.onnx"
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    code, out, err = bertworks("embed", path, "the cat")
    assert (code, out, err.count("\n")) == (2, "", 1)


@pytest.mark.parametrize("data", [b"PK\x03\x04 a zip", b"\xff" * 99, b"just text\n"])
def test_what_is_no_onnx(bertworks, tmp_path, data):
    (tmp_path / "m.onnx").write_bytes(data)
    code, _, err = bertworks("embed", tmp_path / "m.onnx", "the cat")
    assert (code, err.count("\n")) == (2, 1)
    assert str(tmp_path / "m.onnx") in err


def test_a_file_with_any_damage_is_opened_or_refused(tmp_path, capfd):
    exported(tmp_path, {"mlm": 0, "tag": 2})
    path, generator = tmp_path / "m.onnx", random.Random(0)
    whole, refusals = path.read_bytes(), list[str]()
    for _ in range(120):
        data = bytearray(whole)
        for _ in range(generator.choice([1, 1, 2, 8])):
            place, kind = generator.randrange(len(data)), generator.random()
            if kind < 0.6:
                data[place] = generator.randrange(256)
            elif kind < 0.8:
                del data[place : place + generator.randrange(1, 40)]
            else:
                data[place:place] = generator.randbytes(generator.randrange(1, 20))
        path.write_bytes(data)
        try:
            model = bw.load(path)
            model.fill("the [MASK] sat")
            model.tag("the cat sat")
        except UserError as error:
            refusals.append(str(error))
    assert len(refusals) > 40
    assert [one for one in refusals if str(path) not in one and "[MASK]" not in one and "model reads" not in one] == []
    assert capfd.readouterr() == ("", "")


def test_a_file_that_is_not_there(bertworks, tmp_path):
    code, _, err = bertworks("embed", tmp_path / "m.onnx", "the cat")
    assert (code, "no model" in err) == (2, True)
