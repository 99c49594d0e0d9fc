"""Models in bfloat16 and int8 on a CPU, as users ask for them: `dtype`, folders in int8, what is said and written."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file
from small_models import write_small_gpt, write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.inference import model as model_of
from bertworks.nn.layers import is_fast_on_cpu

TEXTS = ["the cat sat on the mat.", "dogs ran", "a big dog, far away!"]
needs_int8 = pytest.mark.skipif(not is_fast_on_cpu("int8"), reason="NOT TESTED: this processor has no int8 products")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("run") / "model", {"classify": 2}, labels=["no", "yes"])


@pytest.fixture(scope="module")
def in_int8(folder, tmp_path_factory):
    return Path(bw.convert(folder, tmp_path_factory.mktemp("int8") / "model", dtype="int8").out)


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    path.write_text("text\n" + "\n".join(f'"{text}"' for text in TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(params=[True, False], ids=["fast", "slow"])
def is_fast(request, monkeypatch):
    if request.param and not is_fast_on_cpu("bfloat16"):
        pytest.skip("NOT TESTED: this processor has no bfloat16 products")
    monkeypatch.setattr(model_of, "is_fast_on_cpu", lambda _: request.param)
    return request.param


def test_auto_is_bfloat16_where_the_processor_is_fast_at_it(folder, is_fast):
    model, exact = bw.load(folder, device="cpu", dtype="auto"), bw.load(folder, device="cpu")
    assert (exact.dtype, model.dtype) == ("float32", "bfloat16" if is_fast else "float32")
    assert model.dtype in repr(model)
    np.testing.assert_allclose(model.embed(TEXTS), exact.embed(TEXTS), atol=0.05)
    assert np.array_equal(model.embed(TEXTS), exact.embed(TEXTS)) == (not is_fast)


def test_predicting_chooses_it_and_says_so(bertworks, folder, texts, tmp_path, is_fast):
    code, _, err = bertworks("predict", folder, texts, "--out", tmp_path / "auto.csv", "--device", "cpu")
    assert (code, "bfloat16" in err) == (0, is_fast)
    code, _, err = bertworks(
        "predict", folder, texts, "--out", tmp_path / "exact.csv", "--dtype", "float32", "--device", "cpu"
    )
    assert (code, "computed in" in err) == (0, False)


def test_files_of_features_say_in_what_they_were_computed(bertworks, folder, texts, tmp_path, is_fast):
    wanted = "bfloat16" if is_fast else None
    for ending in ("safetensors", "parquet", "jsonl"):
        out = tmp_path / f"features.{ending}"
        code, _, err = bertworks("features", folder, texts, "--out", out, "--device", "cpu")
        assert (code, "bfloat16" in err) == (0, is_fast)
        if ending == "jsonl":
            found = json.loads(out.read_text().splitlines()[0]).get("dtype")
        elif ending == "parquet":
            facts = pq.read_schema(out).metadata or {}
            found = facts.get(b"dtype", b"").decode() or None
        else:
            with safe_open(out, "np") as opened:
                found = opened.metadata().get("dtype")
        assert found == wanted


def test_int8_without_its_instructions_is_float32_and_says_so(folder, monkeypatch, caplog):
    monkeypatch.setattr(model_of, "is_fast_on_cpu", lambda _: False)
    with caplog.at_level(logging.WARNING):
        model = bw.load(folder, device="cpu", dtype="int8")
    assert model.dtype == "float32"
    assert "no instructions for int8" in caplog.text
    assert np.array_equal(model.embed(TEXTS), bw.load(folder, device="cpu").embed(TEXTS))


def test_int8_is_for_a_bert(tmp_path):
    with pytest.raises(UserError, match="int8 is for a BERT on a CPU"):
        bw.load(write_small_gpt(tmp_path / "gpt"), device="cpu", dtype="int8")
    with pytest.raises(UserError, match="choose auto, float32"):
        bw.load(tmp_path / "gpt", dtype="int4")


@needs_int8
def test_a_folder_in_int8_computes_what_int8_does(folder, in_int8):
    opened, chosen = bw.load(in_int8, device="cpu"), bw.load(folder, device="cpu", dtype="int8")
    assert opened.dtype == chosen.dtype == "int8"
    np.testing.assert_allclose(opened.embed(TEXTS), chosen.embed(TEXTS), atol=1e-4)
    exact, found = bw.load(folder, device="cpu").embed(TEXTS), opened.embed(TEXTS)
    cosines = (exact * found).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(found, axis=1)
    assert cosines.min() > 0.999
    for one, other in zip(opened.classify(TEXTS), bw.load(folder, device="cpu").classify(TEXTS), strict=True):
        assert one["label"] == other["label"]


def test_a_folder_in_int8_is_smaller_and_goes_on_from_there(folder, in_int8, tmp_path, bertworks):
    code, out, _ = bertworks("inspect", in_int8, "--json")
    kinds = {tensor["dtype"] for tensor in json.loads(out)["tensors"].values()}
    assert (code, kinds) == (0, {"int8", "float32"})
    again = Path(bw.convert(in_int8, tmp_path / "again", dtype="int8").out)
    assert (again / "model.safetensors").read_bytes() == (in_int8 / "model.safetensors").read_bytes()
    whole = Path(bw.convert(in_int8, tmp_path / "whole", dtype="float32").out)
    assert (whole / "config.json").read_bytes() == (folder / "config.json").read_bytes()
    was, now = load_file(folder / "model.safetensors"), load_file(whole / "model.safetensors")
    assert was.keys() == now.keys()
    for name, tensor in was.items():
        assert np.abs(now[name] - tensor).max() <= np.abs(tensor).max() / 50
    assert bw.load(in_int8, device="cpu", dtype="float32").dtype == "float32"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda name, tensors: tensors.pop(name + "_scale"), "no int8 matrix with a scale for each row"),
        (lambda name, tensors: tensors.update({name + "_scale": np.ones(3, np.float32)}), "a scale for each row"),
        (lambda name, tensors: tensors.pop(name + "_input_factors"), "lacks factors of its int8 inputs"),
        (
            lambda name, tensors: tensors.update({name + "_input_factors": np.zeros(16, np.float32)}),
            "not a positive number an input",
        ),
    ],
    ids=["no scale", "wrong scale", "no factors", "zero factors"],
)
def test_a_folder_in_int8_that_is_not_whole_is_refused(in_int8, tmp_path, change, message):
    broken = tmp_path / "broken"
    shutil.copytree(in_int8, broken)
    tensors = load_file(broken / "model.safetensors")
    name = next(name for name in tensors if name.endswith("query.weight_int8")).removesuffix("_int8")
    change(name, tensors)
    save_file(tensors, broken / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match=message):
        bw.load(broken, device="cpu")


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_change_no_prediction(bertworks, folder, texts, tmp_path, threads):
    out = tmp_path / "out.jsonl"
    options = ("--device", "cpu", "--dtype", "float32", "--threads", threads)
    assert bertworks("predict", folder, texts, "--out", out, *options)[0] == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [row["label"] for row in rows] == [found["label"] for found in bw.load(folder, device="cpu").classify(TEXTS)]
