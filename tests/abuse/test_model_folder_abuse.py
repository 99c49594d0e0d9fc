"""S6, S7: wrong configs, weights that contradict them and names that lead elsewhere: all told, nothing made."""

import contextlib
import json
import os
import shutil
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.errors import ConfigError, CorruptFile, UserError
from bertworks.inference.describe import model_report
from bertworks.models.convert import convert
from bertworks.models.folder import SHIPPED_FOLDER, find_encoder, find_model
from bertworks.models.kinds import read_model, write_model
from bertworks.models.sentence_transformers import read_pooling
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import initialise

CONFIG = BertConfig(
    vocab_size=20,
    hidden_size=8,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=8,
    max_position_embeddings=8,
)


@pytest.fixture
def folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    net = Bert(CONFIG, {"classify": 3})
    initialise(net, 0.5, seed=0)
    write_model(folder, net, labels=["a", "b", "c"])
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefgh"]) + "\n")
    return folder


def change_config(folder, **changes):
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps({name: value for name, value in raw.items() if value is not ...}))


def change_tensors(folder, **changes):
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()} | changes
    tensors = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    save_file(tensors, folder / "model.safetensors")


PREFIX = "bert.encoder.layer.1."
CONTRADICTIONS = {
    "a missing tensor": (
        change_tensors,
        {PREFIX + "output.dense.bias": None},
        [PREFIX + "output.dense.bias is missing"],
    ),
    "a wrong shape": (
        change_tensors,
        {PREFIX + "attention.self.key.weight": torch.ones(8, 9), "classifier.bias": torch.ones(4)},
        [PREFIX + "attention.self.key.weight has the shape (8, 9), and config.json wants (8, 8)", "classifier.bias"],
    ),
    "whole numbers": (
        change_tensors,
        {"bert.pooler.dense.bias": torch.ones(8, dtype=torch.int64)},
        ["pooler.dense.bias holds torch.int64"],
    ),
    "a scalar classifier": (
        change_tensors,
        {"classifier.weight": torch.tensor(1.0)},
        ["classifier.weight has the shape ()"],
    ),
    "an endless empty classifier": (
        change_tensors,
        {"classifier.weight": torch.empty(1 << 47, 0)},
        ["classifier.weight has the shape"],
    ),
    "fewer layers in the config": (
        change_config,
        {"num_hidden_layers": 1},
        [PREFIX + "output.dense.weight is there, and config.json has 1 plain"],
    ),
    "more layers in the config": (
        change_config,
        {"num_hidden_layers": 3},
        ["bert.encoder.layer.2.output.dense.bias is missing"],
    ),
    "another width": (
        change_config,
        {"hidden_size": 16},
        ["word_embeddings.weight has the shape (20, 8)", "classifier.weight"],
    ),
    "another vocabulary": (change_config, {"vocab_size": 21}, ["config.json wants (21, 8)"]),
    "other labels": (change_config, {"id2label": {"0": "x", "1": "y"}}, ["names 2 labels, and the head has 3"]),
    "an untied output matrix": (
        change_tensors,
        {"cls.predictions.decoder.weight": torch.ones(20, 8)},
        ["decoder.weight differs from"],
    ),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_weights_and_config_that_contradict_each_other_are_named(folder, kind):
    change, changes, words = CONTRADICTIONS[kind]
    change(folder, **changes)
    with pytest.raises(ConfigError) as caught:
        read_model(folder)
    assert all(word in str(caught.value) for word in words)


WRONG_CONFIGS = {
    "unknown activation": ({"hidden_act": "swish"}, ["hidden_act"]),
    "activation of another type": ({"hidden_act": ["gelu"]}, ["hidden_act"]),
    "wrong types": (
        {"hidden_size": "8", "vocab_size": 20.5, "num_hidden_layers": None, "layer_norm_eps": "x"},
        ["hidden_size", "vocab_size", "num_hidden_layers", "layer_norm_eps"],
    ),
    "not finite": (
        {"layer_norm_eps": float("inf"), "hidden_dropout_prob": float("nan")},
        ["layer_norm_eps", "hidden_dropout_prob"],
    ),
    "negative": ({"vocab_size": -1, "num_hidden_layers": -1}, ["vocab_size", "num_hidden_layers"]),
    "far too large": (
        {
            "vocab_size": 10**12,
            "hidden_size": 10**12,
            "max_position_embeddings": 10**12,
            "intermediate_size": 10**12,
            "num_hidden_layers": 10**12,
        },
        ["vocab_size", "hidden_size", "max_position_embeddings", "intermediate_size", "num_hidden_layers"],
    ),
    "as large as is allowed": (
        {"hidden_size": 65_536, "vocab_size": 10_000_000, "intermediate_size": 1_048_576},
        ["word_embeddings.weight has the shape (20, 8)"],
    ),
    "heads that do not divide": (
        {"num_attention_heads": 3, "type_vocab_size": 0},
        ["3 heads cannot share", "type_vocab_size"],
    ),
    "another model": ({"model_type": "gpt2", "vocab_size": -1}, ["model_type: 'gpt2' is not a BERT", "vocab_size"]),
    "a model type that is a list": ({"model_type": ["bert"]}, ["model_type"]),
    "relative positions": (
        {"position_embedding_type": "relative_key", "hidden_act": 3},
        ["relative_key", "hidden_act"],
    ),
    "a decoder perhaps": ({"is_decoder": "yes"}, ["is_decoder: 'yes' is neither true nor false"]),
    "deep values": ({"hidden_size": json.loads("[" * 90 + "]" * 90)}, ["hidden_size"]),
}


@pytest.mark.parametrize("kind", WRONG_CONFIGS)
def test_every_problem_of_a_config_is_told_and_nothing_is_allocated(folder, grown, kind):
    """S6."""
    changes, words = WRONG_CONFIGS[kind]
    change_config(folder, **changes)
    started = time.process_time()
    with pytest.raises(ConfigError) as caught:
        bw.load(folder)
    assert all(word in str(caught.value) for word in words)
    assert len(caught.value.problems) >= len(words)
    assert time.process_time() - started < 2
    assert grown() < 100_000_000


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not JSON"),
        (b"[]", "holds a list"),
        (b"null", "holds null"),
        (b"{", "not JSON"),
        (b"\xff\xfe\0", "not JSON"),
        (b'{"hidden_size": ' + b"9" * 5_000 + b"}", "not JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "not JSON"),
        (b" " * 10_000_001, "at most 10,000,000 are read"),
    ],
)
@pytest.mark.parametrize("name", ["config.json", "bertworks.json"])
def test_a_file_that_is_no_json_object_is_refused(folder, name, content, words):
    """S6: a thousand levels and more, and more than 10 MB."""
    (folder / name).write_bytes(content)
    with pytest.raises(UserError, match=words):
        read_model(folder)


def test_a_thousand_levels_in_a_key_that_nobody_reads(folder):
    """S6: refused, or passed over where this Python can parse it; never a traceback."""
    text = (folder / "config.json").read_text().rstrip("} \n")
    (folder / "config.json").write_text(text + ', "unknown": ' + "[" * 1_000 + "]" * 1_000 + "}")
    with contextlib.suppress(CorruptFile):
        assert read_model(folder).labels == ["a", "b", "c"]


def test_a_vocabulary_larger_than_the_models_is_refused(folder):
    """S6."""
    with open(folder / "vocab.txt", "a") as stream:
        stream.writelines(f"word{n}\n" for n in range(9))
    with pytest.raises(UserError, match=r"its vocabulary has 22 pieces and its model 20"):
        bw.load(folder)


NAMES = [
    "../x",
    "/etc/passwd",
    "..%2fx",
    "a\0b",
    "C:\\x",
    "x" * 300,
    "․․/x",
    "-rf",
    ".",
    "",
    "..",
    "a/../../x",
    "a//b",
    "~/x",
]


@pytest.mark.parametrize("name", [*NAMES, "link.safetensors"])
def test_an_index_cannot_lead_out_of_its_folder(folder, tmp_path, name):
    """S7."""
    (tmp_path / "x").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "link.safetensors").symlink_to(tmp_path / "x")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(UserError, match=r"is not a usable name|leads out of"):
        read_model(folder)


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"w": 1}}, {"weight_map": {"w": ["a"]}}])
def test_an_index_without_names_is_corrupt(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CorruptFile, match="weight_map"):
        read_model(folder)


def test_an_index_that_lists_what_is_not_there(folder):
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    for name, words in (("model-1.safetensors", "lists 'nothing'"), ("model-2.safetensors", "No such file")):
        index.write_text(json.dumps({"weight_map": {"nothing": name}}))
        with pytest.raises(UserError, match=words):
            read_model(folder)


@pytest.mark.parametrize("name", [name for name in NAMES if name])
@pytest.mark.parametrize("kind", ["Transformer", "Pooling"])
def test_the_modules_of_a_sentence_folder_cannot_lead_out_of_it(folder, kind, name):
    """S7."""
    listed = [{"type": "sentence_transformers.Transformer", "path": ""}] if kind == "Pooling" else []
    listed.append({"type": f"sentence_transformers.{kind}", "path": name})
    (folder / "modules.json").write_text(json.dumps(listed))
    with pytest.raises(UserError, match="is not a usable name"):
        find_encoder(folder) if kind == "Transformer" else read_pooling(folder)


@pytest.mark.parametrize(
    "content",
    ["{}", "[1]", '[{"type": 1, "path": ""}]', '[{"type": "a"}]', "[", '[{"type": "a.Transformer", "path": 3}]'],
)
def test_a_list_of_modules_that_is_none_is_corrupt(folder, content):
    (folder / "modules.json").write_text(content)
    if content == "{}":
        assert read_pooling(folder).modes == ("mean",)
        return
    with pytest.raises(CorruptFile):
        find_encoder(folder)


@pytest.mark.parametrize(
    "name",
    [
        "../x",
        "/nowhere",
        "..%2f",
        "a\0b",
        "C:\\x",
        "x" * 300,
        "x" * 5_000,
        "․․/x",
        "-rf",
        "a/b/c",
        "models--x",
        "\ud800",
        "a\nb",
        "~",
        "x/",
    ],
)
def test_a_name_that_is_no_model_is_refused(tmp_path, monkeypatch, name):
    """S7."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    with pytest.raises(UserError, match="no model"):
        find_model(name)


@pytest.mark.parametrize("revision", [b"..", b".", b"../../../x", b"/etc", b"", b"\xff\xfe", b"a" * 10_000, b"a\0b"])
def test_a_reference_in_the_cache_cannot_lead_out_of_it(tmp_path, monkeypatch, revision):
    """S7."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    home = tmp_path / "hub" / "models--a--b"
    for name in ("refs", "snapshots"):
        (home / name).mkdir(parents=True)
    (home / "refs" / "main").write_bytes(revision)
    with pytest.raises(UserError, match=r"no model|not a usable name"):
        find_model("a/b")


def test_a_file_and_an_empty_folder_are_no_models(tmp_path, folder):
    with pytest.raises(UserError, match="is a file; give the folder"):
        bw.load(folder / "config.json")
    with pytest.raises(UserError, match=r"has no config\.json: not a model folder"):
        bw.load(tmp_path)
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"has no model\.safetensors"):
        bw.load(folder)


def test_a_folder_of_the_original_bert_is_told_the_way(tmp_path):
    (tmp_path / "bert_config.json").write_text("{}")
    with pytest.raises(UserError, match=r"bertworks convert .* NEW"):
        bw.load(tmp_path)


@pytest.mark.parametrize("name", ["recipe.toml", "checkpoints"])
def test_a_run_that_was_killed_before_its_first_model_is_told_to_resume(tmp_path, name):
    (tmp_path / name).mkdir()
    with pytest.raises(UserError, match=r"has no config\.json: a run that has no model yet; resume it, .* --resume"):
        bw.load(tmp_path)


def test_a_run_folder_means_the_model_in_it(tmp_path, folder):
    (tmp_path / "run").mkdir()
    folder.rename(tmp_path / "run" / "model")
    assert find_model(tmp_path / "run") == tmp_path / "run" / "model"
    (tmp_path / "run" / "model" / "model").mkdir()
    (tmp_path / "run" / "model" / "model" / "config.json").touch()
    assert find_model(tmp_path / "run" / "model") == tmp_path / "run" / "model"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"device": "tpu"}, "device 'tpu'"),
        ({"device": "meta"}, "device 'meta'"),
        ({"device": "cuda:99"}, "cuda:99"),
        ({"dtype": "int4"}, "choose auto, float32"),
        ({"dtype": "float64"}, "choose auto, float32"),
    ],
)
def test_a_device_or_type_that_is_not_there_is_refused(folder, options, words):
    with pytest.raises(UserError, match=words):
        bw.load(folder, **options)


@pytest.fixture
def secret(tmp_path):
    path = tmp_path / "secret"
    path.write_text("root:x:0:0\n")
    return path


def uses_of(folder, tmp_path):
    """Every way in which a folder is opened or copied."""
    yield lambda: bw.load(folder).save(tmp_path / "saved")
    yield lambda: convert(folder, tmp_path / "half", dtype="bfloat16")
    yield lambda: convert(folder, tmp_path / "google.d/bert_model.ckpt")
    yield lambda: convert(folder, tmp_path / "safe", from_pickle=True)
    yield lambda: bw.finetune("classify", model=folder, train=tmp_path / "t.csv", out=tmp_path / "run")
    yield lambda: model_report(folder)
    yield lambda: find_model(folder)


@pytest.mark.parametrize(
    "name",
    ["CARD.md", "vocab.txt", "config.json", "bertworks.json", "tokenizer.json", "tokenizer_config.json",
     "model.safetensors", "model-00001-of-00002.safetensors", "pytorch_model.bin", "bert_config.json",
     "bert_model.ckpt.index", "modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
     "2_Dense/model.safetensors", "1_Pooling"],
)  # fmt: skip
def test_a_link_out_of_a_model_folder_is_refused_by_whatever_opens_it(tmp_path, secret, name):
    shutil.copytree(SHIPPED_FOLDER / "mini", tmp_path / "mini")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/config.json").write_text("{}")
    path = tmp_path / "mini" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to("../outside" if name == "1_Pooling" else os.path.relpath(secret, path.parent))
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"t{n},{n % 2}\n" for n in range(40)))
    before = set(tmp_path.iterdir())
    for use in uses_of(tmp_path / "mini", tmp_path):
        with pytest.raises(UserError, match=rf"mini/{name}.* is a link to .*, outside of the folder; put a copy"):
            use()
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize("name", ["CARD.md", "vocab.txt", "config.json", "model.safetensors", "1_Pooling/config.json"])
@pytest.mark.parametrize("kind", ["pipe", "link to a pipe", "loop", "folder"])
def test_what_is_no_file_in_a_model_folder_is_refused_and_not_waited_for(tmp_path, name, kind):
    shutil.copytree(SHIPPED_FOLDER / "mini", tmp_path / "mini")
    path = tmp_path / "mini" / name
    path.parent.mkdir(exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to("pipe" if kind == "link to a pipe" else path.name)
        os.mkfifo(path.parent / "pipe")
    (tmp_path / "t.csv").write_text("text,label\n" + "".join(f"t{n},{n % 2}\n" for n in range(40)))
    for use in uses_of(tmp_path / "mini", tmp_path):
        with pytest.raises(UserError, match=r"is not a regular file|a link that leads to no file"):
            use()


def test_links_inside_a_folder_to_a_folder_and_into_the_caches_blobs_are_followed(tmp_path, secret):
    home = tmp_path / "models--someone--mini"
    snapshot = home / "snapshots/0123"
    snapshot.mkdir(parents=True)
    shutil.copytree(SHIPPED_FOLDER / "mini", home / "blobs")
    for path in (home / "blobs").iterdir():
        (snapshot / path.name).symlink_to(f"../../blobs/{path.name}")
    (tmp_path / "linked").symlink_to(snapshot)
    (snapshot / "notes.txt").symlink_to(secret)  # which nobody reads
    for folder in (snapshot, tmp_path / "linked"):
        assert find_model(folder) == folder
        assert convert(folder, tmp_path / f"{folder.name}-half", dtype="bfloat16").tensors
    (home / "blobs/CARD.md").unlink(missing_ok=True)
    (snapshot / "CARD.md").unlink(missing_ok=True)
    (snapshot / "CARD.md").symlink_to("../../blobs/../../secret")
    with pytest.raises(UserError, match="outside of the folder"):
        find_model(snapshot)
