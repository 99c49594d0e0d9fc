"""fill, nsp, embed, features, attend and inspect as a person or a script meets them."""

import base64
import html
import io
import json
import re
import shutil
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import load_file, save_file
from small_models import PIECES, write_small_model

import bertworks as bw

LINES = ["the cat sat.", "dogs ran\u2028far", "", "The BIG mat!"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("run") / "model", about={"trained": "never", "steps": 0})


@pytest.fixture(scope="module")
def model(folder):
    return bw.load(folder, device="cpu")


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(LINES) + "\n", encoding="utf-8")
    return path


def test_fill_json_is_a_list_of_guesses_for_each_mask(bertworks, folder, model):
    text = "the [MASK] sat on the [MASK]."
    code, out, err = bertworks("fill", folder, text, "--json", "--top-k", 3)
    assert (code, err) == (0, "")
    masks = json.loads(out)
    assert [len(mask) for mask in masks] == [3, 3]
    assert all(set(guess) == {"token", "id", "score"} for mask in masks for guess in mask)
    assert masks == model.fill(text, 3)


def test_fill_prints_shares_and_words_for_several_texts(bertworks, folder):
    code, out, _ = bertworks("fill", folder, "the [MASK]", "[MASK] [MASK]", "--top-k", 2)
    lines = out.splitlines()
    assert code == 0
    assert [line for line in lines if "[MASK]" in line and "%" not in line] == [
        "the [MASK]", "[MASK] [MASK]  (mask 1 of 2)", "[MASK] [MASK]  (mask 2 of 2)"]  # fmt: skip
    guesses = [line.split() for line in lines if "%" in line]
    assert len(guesses) == 6
    assert {word for _, word in guesses} <= set(PIECES)


def test_fill_of_targets_only(bertworks, folder):
    _, out, _ = bertworks("fill", folder, "the [MASK]", "--target", "cat", "--target", "dog", "--json")
    assert {guess["token"] for guess in json.loads(out)[0]} == {"cat", "dog"}


def test_nsp_gives_two_shares(bertworks, folder, model):
    code, out, _ = bertworks("nsp", folder, "the cat", "sat on", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["is_next"] == pytest.approx(model.nsp("the cat", "sat on"))
    assert found["is_next"] + found["is_random"] == pytest.approx(1)
    assert bertworks("nsp", folder, "the cat", "sat on")[1].splitlines()[0].endswith("B follows A")


def test_embed_prints_a_vector_a_line(bertworks, folder, model, tmp_path):
    expected = model.embed(["the cat", "a dog"], layers=[-2], pooling="max", normalize=True)
    options = ("--layers", "-2", "--pooling", "max", "--normalize")
    _, out, _ = bertworks("embed", folder, "the cat", "a dog", *options, "--json")
    np.testing.assert_allclose([json.loads(line) for line in out.splitlines()], expected, atol=1e-6)
    _, out, _ = bertworks("embed", folder, "the cat", "a dog", *options)
    np.testing.assert_allclose([list(map(float, line.split())) for line in out.splitlines()], expected, atol=1e-6)
    code, out, err = bertworks("embed", folder, "the cat", "a dog", *options, "--out", tmp_path / "v.npy")
    assert (code, out) == (0, "")
    assert "2 vectors of 16 numbers" in err
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected, atol=1e-6)


class Stdin:
    """Standard input of these bytes."""

    def __init__(self, data):
        self.buffer = io.BytesIO(data)


def test_embed_reads_lines_from_standard_input(bertworks, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b"\xef\xbb\xbfthe cat\r\n\na dog"))
    _, out, _ = bertworks("embed", folder, "-", "--json", "--dtype", "float32")
    assert out == bertworks("embed", folder, "the cat", "", "a dog", "--json")[1]
    monkeypatch.setattr(sys, "stdin", Stdin(b"the cat\ncaf\xff\n"))
    code, out, err = bertworks("embed", folder, "-", "--json")
    assert (code, out) == (2, "")
    assert "standard input, line 2: not UTF-8" in err


@pytest.mark.parametrize("command", [("fill",), ("tag",), ("embed",), ("classify",), ("features", "--out", "f.jsonl")])
def test_empty_standard_input_is_told(bertworks, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    folder = write_small_model(tmp_path / "model", {"mlm": 0, "classify": 2, "tag": 3})
    monkeypatch.setattr(sys, "stdin", Stdin(b""))
    code, out, err = bertworks(command[0], folder, "-", *command[1:])
    assert (code, out, err) == (2, "", "error: no text in standard input; it has one on each line\n")


def test_fill_names_the_line_of_standard_input_that_has_no_mask(bertworks, folder, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Stdin(b"the [MASK]\nthe [mask]\n"))
    code, out, err = bertworks("fill", folder, "-")
    assert (code, out.splitlines()[0]) == (2, "the [MASK]")
    assert "standard input, line 2: no [MASK] to fill in 'the [mask]'; write it in capitals: [MASK]" in err


@pytest.mark.parametrize("arguments", [("fill", "a [MASK]"), ("nsp", "a", "b"), ("embed", "a")])
def test_json_holds_no_nan(bertworks, folder, tmp_path, arguments):
    weights = load_file(folder / "model.safetensors")
    weights["bert.embeddings.LayerNorm.bias"][0] = float("nan")
    damaged = shutil.copytree(folder, tmp_path / "damaged")
    save_file(weights, damaged / "model.safetensors", {"format": "pt"})
    code, out, err = bertworks(arguments[0], damaged, *arguments[1:], "--json")
    assert (code, out) == (2, "")
    assert "not finite, which JSON cannot hold" in err


@pytest.mark.parametrize("arguments", [("fill", "[MASK]\udcff"), ("nsp", "a", "\ud800"), ("embed", "\udcff")])
def test_an_argument_that_is_not_utf8_is_refused(bertworks, folder, arguments):
    code, out, err = bertworks(arguments[0], folder, *arguments[1:])
    assert (code, out) == (2, "")
    assert "is not UTF-8" in err


def test_features_as_safetensors(bertworks, folder, model, texts, tmp_path):
    """DESIGN: `i/hidden` [layers, tokens, width] and `i/ids`, [CLS] and [SEP] included, layer 0 the embeddings."""
    out = tmp_path / "f.safetensors"
    code, _, err = bertworks("features", folder, texts, "--out", out, "--dtype", "float32")
    assert code == 0
    assert "features of 4 texts" in err
    found = load_file(out)
    assert len(found) == 12
    for index, features in enumerate(model.features(LINES)):
        assert found[f"{index}/ids"].tolist() == features.encoding.ids
        assert found[f"{index}/offsets"].tolist() == [list(span) for span in features.encoding.offsets]
        assert found[f"{index}/hidden"].shape == (4, len(features.encoding), 16)
        np.testing.assert_allclose(found[f"{index}/hidden"], features.hidden, atol=1e-5)


def test_features_per_word_are_those_of_its_first_piece(bertworks, folder, model, texts, tmp_path):
    bertworks(
        "features",
        folder,
        texts,
        "--out",
        tmp_path / "f.jsonl",
        "--layers",
        "-1,0",
        "--per",
        "word",
        "--dtype",
        "float32",
    )
    rows = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["words"] for row in rows] == [
        ["the", "cat", "sat", "."],
        ["dogs", "ran", "far"],
        [],
        ["The", "BIG", "mat", "!"],
    ]
    dogs = model.features(LINES)[1]
    assert dogs.encoding.tokens == ["[CLS]", "dog", "##s", "ran", "far", "[SEP]"]
    np.testing.assert_allclose(rows[1]["layers"]["3"], dogs.hidden[3, [1, 3, 4]], atol=2e-6)
    np.testing.assert_allclose(rows[1]["layers"]["0"], dogs.hidden[0, [1, 3, 4]], atol=2e-6)
    assert rows[1]["offsets"] == [[0, 4], [5, 8], [9, 12]]
    assert [row["index"] for row in rows] == [0, 1, 2, 3]


@pytest.mark.parametrize("per", ["token", "word"])
def test_features_as_parquet_have_a_row_for_each(bertworks, folder, model, texts, tmp_path, per):
    bertworks(
        "features", folder, texts, "--out", tmp_path / "f.parquet", "--layers", "2", "--per", per, "--dtype", "float32"
    )
    table = pq.read_table(tmp_path / "f.parquet").to_pydict()
    features = model.features(LINES, layers=[2])
    if per == "token":
        assert table["token"] == [token for each in features for token in each.encoding.tokens]
        np.testing.assert_allclose(table["layer_2"], np.concatenate([each.hidden[0] for each in features]), atol=1e-5)
    else:
        assert table["word"][:7] == ["the", "cat", "sat", ".", "dogs", "ran", "far"]
        assert table["index"] == [0] * 4 + [1] * 3 + [3] * 4
        assert (table["start"][4], table["end"][4]) == (0, 4)


def test_features_of_many_texts_are_numbered_through(bertworks, folder, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.inference.features._TEXTS_AT_ONCE", 2)
    (tmp_path / "t.txt").write_text("the cat\n" * 5)
    bertworks("features", folder, tmp_path / "t.txt", "--out", tmp_path / "f.jsonl", "--layers", "-1")
    rows = [json.loads(line) for line in (tmp_path / "f.jsonl").read_text().splitlines()]
    assert [row["index"] for row in rows] == [0, 1, 2, 3, 4]
    (tmp_path / "t.txt").write_text("the cat\n" * 4 + "far away " * 20)
    for name in ("g.jsonl", "g.parquet", "g.safetensors"):
        code, _, err = bertworks("features", folder, tmp_path / "t.txt", "--out", tmp_path / name)
        assert code == 2
        assert "text 5 of 5 has 42 tokens" in err
        assert not (tmp_path / name).exists()


def test_features_truncate(bertworks, folder, tmp_path):
    (tmp_path / "t.txt").write_text("far away " * 20)
    bertworks("features", folder, tmp_path / "t.txt", "--out", tmp_path / "f.safetensors", "--truncate")
    assert load_file(tmp_path / "f.safetensors")["0/hidden"].shape == (4, 20, 16)


def page_data(path):
    """The title, and the JSON that the page draws."""
    page = path.read_text(encoding="utf-8")
    title = re.search("<title>Attention: (.*)</title>", page, re.DOTALL)[1]
    return html.unescape(title), json.loads(re.search('<script type="application/json"[^>]*>(.*?)</script>', page)[1])


def test_attend_writes_a_page_of_one_text(bertworks, folder, model, tmp_path):
    out = tmp_path / "page.html"
    code, printed, err = bertworks("attend", folder, "The <cat> sat.", "--out", out)
    assert (code, printed) == (0, "")
    assert err == f"{out}: 3 layers of 2 heads over 8 tokens\n"
    title, data = page_data(out)
    encoding, weights = model.attention("The <cat> sat.")
    assert title == "model: The <cat> sat."
    assert (data["tokens"], data["segments"]) == (encoding.tokens, [0] * 8)
    levels = np.array([[*base64.b64decode(layer)] for layer in data["layers"]]).reshape(3, 2, 8, 8)
    np.testing.assert_allclose((levels / 255) ** 2 * data["scale"], weights, atol=0.005)


def test_attend_names_the_model_and_both_texts(bertworks, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder)
    assert bertworks("attend", ".", "the cat", "sat far away", "--out", tmp_path / "pair.html")[0] == 0
    title, data = page_data(tmp_path / "pair.html")
    assert title == "model: the cat | sat far away"
    assert data["segments"] == [0, 0, 0, 0, 1, 1, 1, 1]


def test_attend_cuts_a_long_text_when_asked(bertworks, folder, tmp_path):
    code, _, err = bertworks("attend", folder, "far away " * 20, "--out", tmp_path / "a.html", "--truncate")
    assert code == 0
    assert "over 20 tokens" in err


def test_attend_is_the_same_twice(bertworks, folder, tmp_path):
    for name in ("a.html", "b.html"):
        bertworks("attend", folder, "the cat sat", "--out", tmp_path / name)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


def test_inspect_shows_a_models_sizes_and_provenance(bertworks, folder):
    code, out, _ = bertworks("inspect", folder.parent)  # a run folder: its model is meant
    assert code == 0
    for words in ("3 layers of width 16, 2 heads", "22 pieces, up to 20 tokens", "heads: mlm, nsp", "trained: never",
                  "bert.encoder.layer.0-2.attention.self.query.weight", "float32   16 x 16"):  # fmt: skip
        assert words in out
    report = json.loads(bertworks("inspect", folder, "--json")[1])
    parts = report["parameters"]
    assert parts["total"] == sum(count for part, count in parts.items() if part != "total")
    assert set(parts) == {"total", "embeddings", "layers", "pooler", "mlm head", "nsp head"}
    assert parts["embeddings"] == (len(PIECES) + 20 + 2 + 2) * 16
    assert report["tensors"]["bert.pooler.dense.weight"] == {"shape": [16, 16], "dtype": "float32"}
    assert report["about"] == {"trained": "never", "steps": 0}
    assert report["sizes"]["num_hidden_layers"] == 3


def test_inspect_shows_labels_and_one_direction(bertworks, tmp_path):
    folder = write_small_model(tmp_path, {"tag": 12}, labels=[f"T{n}" for n in range(12)], direction="left_to_right")
    _, out, _ = bertworks("inspect", folder)
    assert "labels: T0, T1, T2, T3, T4, T5, T6, T7, T8, T9, ... (12 in all)" in out
    assert "attends left to right" in out


@pytest.mark.parametrize(("arguments", "words"), [
    (("fill", "MODEL", "no mask"), "no [MASK] to fill"),
    (("fill", "MODEL", "[MASK]", "--top-k", "0"), "ask for 1 or more"),
    (("fill", "MODEL", "[MASK]", "--target", "zebra"), "'zebra' is not in the vocabulary"),
    (("tag", "MODEL", "a"), "it has no tag head (heads: mlm, nsp); see `bertworks finetune`"),
    (("answer", "MODEL", "--question", "a", "--context", "b"), "(heads: mlm, nsp); see `bertworks finetune`"),
    (("choose", "MODEL", "a", "b", "c"), "(heads: mlm, nsp); see `bertworks finetune`"),
    (("fill", "nowhere", "[MASK]"), "no model 'nowhere'"),
    (("fill", "texts.txt", "[MASK]"), "is a file; give the folder"),
    (("fill", ".", "[MASK]"), "has no config.json"),
    (("fill", "MODEL", "[MASK]", "--device", "tpu"), "the device 'tpu' is not there"),
    (("fill", "MODEL", "[MASK]", "--dtype", "int4"), "unknown number type 'int4'"),
    (("nsp", "MODEL", "far away " * 20, "a"), "has 44 tokens"),
    (("embed", "MODEL", "a", "--layers", "x"), "--layers x is not a list of numbers"),
    (("embed", "MODEL", "a", "--layers", "9"), "0 to 3, or -1 back"),
    (("embed", "MODEL", "a", "--pooling", "sum"), "choose cls, mean, max"),
    (("embed", "MODEL", "a", "--out", "no/v.npy"), "does not exist"),
    (("embed", "MODEL", "a", "--out", "v.txt"), "v.txt; use a name that ends in .npy"),
    (("attend", "MODEL", "far away " * 20, "--out", "a.html"), "has 42 tokens"),
    (("attend", "MODEL", "far away " * 5, "far away " * 5, "--out", "a.html"), "has 23 tokens"),
    (("attend", "MODEL", "a", "--out", "no/a.html"), "does not exist"),
    (("attend", "MODEL", "a", "--out", "."), "not a regular file"),
    (("attend", "MODEL", "\udcff"), "is not UTF-8"),
    (("attend", "nowhere", "a"), "no model 'nowhere'"),
    (("features", "MODEL", "nowhere.txt", "--out", "f.jsonl"), "cannot read nowhere.txt"),
    (("features", "MODEL", ".", "--out", "f.jsonl"), "cannot read ."),
    (("features", "MODEL", "binary.txt", "--out", "f.jsonl"), "binary.txt, line 1: not UTF-8"),
    (("features", "MODEL", "empty.txt", "--out", "f.jsonl"), "no text in empty.txt"),
    (("features", "MODEL", "texts.txt", "--out", "f.csv"), "use a name that ends in .safetensors, .jsonl, .parquet"),
    (("features", "MODEL", "texts.txt", "--out", "f.jsonl", "--per", "line"), "choose token or word"),
    (("features", "MODEL", "texts.txt", "--out", "f.jsonl", "--layers", "-1,3"), "name a layer twice"),
])  # fmt: skip
def test_a_mistake_is_one_line_and_writes_nothing(bertworks, folder, texts, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "empty.txt").touch()
    (tmp_path / "binary.txt").write_bytes(b"caf\xff\n")
    before = sorted(tmp_path.iterdir())
    code, out, err = bertworks(*(folder if word == "MODEL" else word for word in arguments))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert sorted(tmp_path.iterdir()) == before


def test_a_config_with_several_mistakes_is_told_in_as_many_lines(bertworks, folder, tmp_path):
    write_small_model(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text()) | {"hidden_act": "swish", "vocab_size": -1}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    for command in (("inspect", tmp_path), ("fill", tmp_path, "[MASK]")):
        code, _, err = bertworks(*command)
        assert code == 2
        assert "2 problems" in err
        assert len(err.splitlines()) == 3
