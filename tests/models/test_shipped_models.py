"""Models that come with the package: found by name, listed, described by their cards, and the same in transformers.

The folders here are small fakes; what is really shipped is looked at by the last tests.
"""

import json
import os
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from same_logits import check_logits_of_transformers
from small_models import write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.files import verify_manifest
from bertworks.models import folder as shipped_models
from bertworks.models.convert import convert
from bertworks.models.folder import CARD_FILE, describe_shipped, find_model, read_card, shipped_names
from bertworks.models.weights import map_file

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
TOLD = {"language": "en", "trained_on": "tales of a cat", "mlm_accuracy": 0.5123}
CARD = "# fake\n\nTrained on tales of a cat. Für Katzen, 고양이.\n"
MOST_BYTES = 25_000_000
RESULTS = Path(__file__).parents[2] / "docs/results"
WEIGHTS = Path(__file__).parents[2] / "weights"  # of models that are not shipped
ROWS = {
    "a set like SWAG": "swag-like", "RTE from an SNLI model": "rte-from-snli", "CoNLL-2003": "conll2003",
    "SQuAD 1.1": "squad1", "SQuAD 2.0": "squad2", "QNLI from a SQuAD 1.1 model": "qnli-from-squad1",
}  # fmt: skip


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """An empty folder to be in and an empty cache, so that nothing but what is shipped has a name."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))


@pytest.fixture
def shipped(tmp_path, monkeypatch):
    """A folder of shipped models with `fake`, in bfloat16 as ours are, and `bare`, of which nothing is told."""
    folder = tmp_path / "shipped"
    source = write_small_model(tmp_path / "source", about={"shipped": TOLD})
    (source / CARD_FILE).write_text(CARD, encoding="utf-8")
    convert(source, folder / "fake", dtype="bfloat16")
    write_small_model(folder / "bare", num_hidden_layers=1)
    (folder / "__pycache__").mkdir()
    monkeypatch.setattr(shipped_models, "SHIPPED_FOLDER", folder)
    return folder


@pytest.fixture
def nothing_shipped(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped_models, "SHIPPED_FOLDER", tmp_path / "not there")


def cache_model(home, name):
    snapshot = home / "hub" / f"models--{name}" / "snapshots" / "abc"
    write_small_model(snapshot)
    (home / "hub" / f"models--{name}" / "refs").mkdir()
    (home / "hub" / f"models--{name}" / "refs" / "main").write_text("abc")
    return snapshot


def test_a_folder_comes_first_then_a_shipped_name_then_the_cache(shipped, tmp_path):
    cached = {name: cache_model(tmp_path / "home", name) for name in ("fake", "other")}
    assert find_model("fake") == shipped / "fake"
    assert find_model("other") == cached["other"]
    write_small_model(tmp_path / "here" / "fake")
    assert find_model("fake").resolve() == (tmp_path / "here" / "fake").resolve()


def test_a_folder_that_is_no_model_is_told_to_hide_the_shipped_one(bertworks, shipped, tmp_path):
    (tmp_path / "here" / "fake").mkdir()
    code, _, err = bertworks("fill", "fake", "the [MASK] sat")
    assert code == 2
    assert "fake has no config.json: not a model folder, and it hides the shipped model fake; rename it" in err
    with pytest.raises(UserError, match="it hides the shipped model fake"):
        bw.load("fake")


def test_an_unknown_name_is_told_the_shipped_ones_and_the_nearest(shipped):
    with pytest.raises(
        UserError, match=r"no model 'fakee' \(did you mean 'fake'\?\): .* \(bare, fake\), nor a name in"
    ):
        find_model("fakee")
    with pytest.raises(UserError, match=r"no model 'zzzzz': neither a folder, nor shipped .* \(bare, fake\)"):
        find_model("zzzzz")


def test_an_unknown_name_is_told_that_nothing_is_shipped(nothing_shipped):
    with pytest.raises(UserError, match=r"nor shipped with the package \(none is\), nor a name in"):
        find_model("fake")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "bert-base-uncased",
            "hf download google-bert/bert-base-uncased .*convert uncased_L-12_H-768_A-12 bert-base-u",
        ),
        ("google-bert/bert-large-cased", "hf download google-bert/bert-large-cased .*cased_L-24_H-1024_A-16.zip"),
        ("bert-base-cased", "pip install huggingface_hub`, .* --local-dir bert-base-cased`; that folder"),
        ("bert-base", "no model 'bert-base': .*hf download google-bert/bert-base-uncased "),
        ("klue/bert-base", "`hf download klue/bert-base --local-dir klue/bert-base`; that .* the model$"),
        ("sentence-transformers/all-MiniLM-L6-v2", "`hf download sentence-transformers/all-MiniLM-L6-v2 --local-dir "),
        ("my-model", "nor a name in \\S*$"),
        ("no such/folder", "nor a name in \\S*$"),
    ],
)
def test_how_a_published_model_is_fetched_is_told(shipped, monkeypatch, tmp_path, name, words):
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(UserError, match=f"(?s){words}"):
        find_model(name)


@pytest.mark.parametrize("name", ["fake/", "../shipped/fake", "./fake", "__pycache__", ".", "", "fake/config.json"])
def test_a_shipped_name_is_a_plain_name(shipped, name):
    """S7"""
    assert shipped_models.find_shipped(name) is None


def test_bfloat16_weights_open_in_float32(shipped):
    stored = load_file(shipped / "fake" / "model.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}
    model = bw.load("fake", device="cpu")
    assert {parameter.dtype for parameter in model.net.parameters()} == {torch.float32}
    words = model.net.embeddings.token.weight
    torch.testing.assert_close(words.data, stored["bert.embeddings.word_embeddings.weight"].float(), rtol=0, atol=0)
    assert model.fill("the [MASK] sat", top_k=2)[0][0]["score"] > 0


def test_transformers_opens_the_same_folder_with_the_same_logits(shipped):
    """N7"""
    check_logits_of_transformers(shipped / "fake", atol=2e-5)


@pytest.mark.parametrize("name", shipped_names())
def test_transformers_opens_what_is_really_shipped_with_the_same_logits(name):
    """N7"""
    check_logits_of_transformers(shipped_models.SHIPPED_FOLDER / name, atol=1e-4)  # logits of up to some tens


@pytest.mark.parametrize("is_saved", [False, True])
def test_transformers_cuts_where_a_model_ends(is_saved, tmp_path):
    import transformers

    folder = shipped_models.SHIPPED_FOLDER / "mini"
    if is_saved:
        bw.load(write_small_model(tmp_path / "small")).save(tmp_path / "saved")
        folder = tmp_path / "saved"
    most = bw.load(folder).max_length
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.model_max_length == most
    assert len(tokenizer("cat " * (most + 9), truncation=True)["input_ids"]) == most


def test_models_are_listed_with_what_their_files_say(bertworks, shipped):
    code, out, err = bertworks("models")
    assert (code, err) == (0, "")
    bare, fake = out.splitlines()
    assert bare.split()[:2] == ["bare", "1x16"]
    assert "MLM" not in bare
    assert fake.split()[:2] == ["fake", "3x16"]
    for told in ("0.0 M parameters", "MB", " en ", "MLM 51.2%", "tales of a cat"):
        assert told in fake


def test_models_are_described_for_scripts(bertworks, shipped):
    told = json.loads(bertworks("models", "--json")[1])
    parameters = sum(parameter.numel() for parameter in bw.load("fake", device="cpu").net.parameters())
    num_bytes = sum(path.stat().st_size for path in (shipped / "fake").iterdir())
    assert list(told) == ["bare", "fake"]
    assert told["fake"] == {
        "name": "fake", "layers": 3, "width": 16, "parameters": parameters, "megabytes": num_bytes / 1e6, **TOLD,
    }  # fmt: skip
    assert told["bare"]["mlm_accuracy"] is told["bare"]["language"] is None


def test_a_name_shows_its_card(bertworks, shipped):
    assert bertworks("models", "fake") == (0, CARD, "")
    assert json.loads(bertworks("models", "fake", "--json")[1])["card"] == CARD


def test_an_unknown_model_has_no_card(bertworks, shipped):
    code, out, err = bertworks("models", "fake1")
    assert (code, out) == (2, "")
    assert err == "error: no model 'fake1' comes with the package (did you mean 'fake'?)\n"


def test_nothing_shipped_is_said_plainly(bertworks, nothing_shipped):
    code, out, _ = bertworks("models")
    assert code == 0
    assert out.startswith("No model comes with this version")
    assert bertworks("models", "--json") == (0, "{}\n", "")
    assert bertworks("models", "mini")[2] == (
        "error: no model 'mini' comes with the package; none does in this version\n"
    )


def test_commands_take_a_shipped_name(bertworks, shipped):
    code, out, _ = bertworks("fill", "fake", "the [MASK] sat", "--device", "cpu")
    assert code == 0
    assert out
    assert json.loads(bertworks("inspect", "fake", "--json")[1])["folder"] == str(shipped / "fake")


def test_what_is_really_shipped_is_whole_small_and_told():
    for name in shipped_names():
        model, card = describe_shipped(name), read_card(name)
        assert model["megabytes"] * 1e6 <= MOST_BYTES, name
        assert model["language"], name
        assert model["trained_on"], name
        assert 0 < model["mlm_accuracy"] < 1, name
        assert len(card) > 500, name
        files = set(verify_manifest(shipped_models.SHIPPED_FOLDER / name))
        assert files >= {"vocab.txt", "tokenizer.json", "tokenizer_config.json"}, name


def test_what_is_really_shipped_is_in_bfloat16_and_fills_masks():
    for name in shipped_names():
        _, tensors = map_file(shipped_models.SHIPPED_FOLDER / name / "model.safetensors")
        assert {tensor.type for tensor in tensors.values()} == {"BF16"}, name
        guesses = bw.load(name, device="cpu").fill("[MASK]", top_k=3)[0]
        assert guesses[0]["score"] >= guesses[-1]["score"] > 0, name


def percent(share, whole=100):
    return f"{whole * share:.1f}"


def card_of(name):
    return read_card(name) if name in shipped_names() else (WEIGHTS / name / CARD_FILE).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["mini", "mini-ko", "small"])
def test_a_card_says_what_was_measured(name):
    results = json.loads((RESULTS / "compact.json").read_text())["models"][name]["results"]
    rows = re.findall(r"^\| ([^|,]+), [^|]+\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", card_of(name), re.MULTILINE)
    works = [ROWS.get(label, label.lower().replace("-", "")) for label, *_ in rows]
    assert sorted(works) == sorted(results["model"])
    for work, (label, ours, random, last) in zip(works, rows, strict=True):
        found, chance = results["model"][work], results["random"].get(work)
        test = re.search(r"test (\S+)\)", ours)
        on_test = test[1] if test else last if name == "mini-ko" else None
        whole = 1 if work.startswith("squad") else 100  # the official script's figures are in percent
        assert ours.split()[0] == percent(found["median"], whole), label
        assert random == (percent(chance["median"], whole) if chance else "–"), label
        assert on_test == (percent(found["test"]["metrics"][found["metric"]]) if found["test"] else None), label


def test_a_card_says_what_a_tasks_own_texts_brought():
    found = json.loads((RESULTS / "adapted.json").read_text())["mini"]["qnli"]
    assert f"on its own texts (`bertworks texts`, docs/training.md): {percent(found['median'])}.\n" in read_card("mini")


@pytest.mark.parametrize("name", ["mini", "mini-ko", "small"])
def test_a_card_says_what_was_guessed_of_documents_kept_aside(name):
    for length, found in json.loads((RESULTS / "held_out.json").read_text())[name].items():
        mlm, nsp, larger = (percent(found[key]) for key in ("mlm_accuracy", "nsp_accuracy", "nsp_larger_class"))
        row = f"| length {length} | {mlm} % | {nsp} % of {found['nsp']:,} | {larger} % |"
        assert row in card_of(name)


@pytest.mark.parametrize(
    "command",
    [
        ("finetune", "classify", "--model", "WRONG", "--train", "FILE"),
        ("finetune", "classify", "--model", "mini", "--with", "WRONG", "--train", "FILE"),
        ("finetune", "classify", "--model", "WRONG", "--train", "FILE", "--grid"),
        ("finetune", "glue", "--model", "WRONG", "--data", "FOLDER"),
        ("pretrain", "continue", "--from", "WRONG", "--data", "FOLDER"),
        ("pretrain", "continue", "--from", "WRONG", "--data", "FOLDER", "--dry-run"),
        ("predict", "WRONG", "FILE"),
        ("evaluate", "WRONG", "--data", "FILE", "--task", "classify"),
        ("evaluate", "WRONG", "--data", "FILE"),
        ("evaluate", "WRONG", "--data", "PREPARED"),
    ],
    ids=" ".join,
)
def test_a_wrong_model_name_is_refused_before_data_is_read(bertworks, tmp_path, command):
    """The data is damaged, so reading any of it would end in another message."""
    (tmp_path / "FILE.csv").write_bytes(b"\xff\xfe\x00")
    for folder in ("FOLDER", "PREPARED"):
        (tmp_path / folder).mkdir()
    (tmp_path / "PREPARED" / "manifest.json").write_text("{")
    places = {"FILE": tmp_path / "FILE.csv", "FOLDER": tmp_path / "FOLDER", "PREPARED": tmp_path / "PREPARED"}
    arguments = [places.get(word, word) for word in command]
    out = () if command[0] == "evaluate" or "--dry-run" in command else ("--out", tmp_path / "out.csv")
    code, _, err = bertworks(*arguments, *out)
    assert (code, "no model 'WRONG'" in err) == (2, True), err
    assert not (tmp_path / "out.csv").exists()
