"""`bertworks convert` as a person or a script meets it, from a checkpoint to a folder and back."""

import json
import pickle
import zipfile

import numpy as np
import pytest
import torch
from google_reference import CONFIG, pieces, random_variables, write_folder
from safetensors.torch import load_file
from small_models import write_small_elmo, write_small_gpt

from bertworks import Tokenizer
from bertworks.errors import CorruptFile, UserError
from bertworks.files import verify_manifest
from bertworks.models import folder as shipped_models
from bertworks.models.convert import convert, has_capitals
from bertworks.models.names import by_modern_names, huggingface_names, parameters
from bertworks.models.tf_bundle import Bundle
from bertworks.models.weights import read_arrays, write_arrays

WORDS, DECODER = "bert.embeddings.word_embeddings.weight", "cls.predictions.decoder.weight"


@pytest.fixture
def google(tmp_path):
    return write_folder(tmp_path / "google", random_variables(with_optimizer=True))


@pytest.fixture
def folder(google, tmp_path):
    convert(google, tmp_path / "folder", with_optimizer=True)
    return tmp_path / "folder"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def rewrite(folder, change):
    """Change the weights of a folder."""
    tensors = read_arrays(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    write_arrays(folder / "model.safetensors", change(tensors))


def test_a_checkpoint_becomes_a_folder_with_all_files(bertworks, google, tmp_path):
    code, out, err = bertworks("convert", google, tmp_path / "out")
    assert code == 0
    assert f"{len(random_variables())} tensors" in out
    assert "adam_m" in err
    assert "--with-optimizer" in err
    assert set(verify_manifest(tmp_path / "out")) == {
        "config.json", "model.safetensors", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "bertworks.json",
    }  # fmt: skip
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert (config["model_type"], config["hidden_act"], config["layer_norm_eps"]) == ("bert", "gelu_new", 1e-12)
    provenance = json.loads((tmp_path / "out/bertworks.json").read_text())["provenance"]
    assert sorted(provenance["files"]) == sorted(path.name for path in google.iterdir())
    assert all(len(digest) == 64 for digest in provenance["files"].values())


def test_json_says_what_was_made(bertworks, google, tmp_path):
    code, out, err = bertworks("convert", google, tmp_path / "out", "--json", "--with-optimizer")
    result = json.loads(out)
    assert (code, err) == (0, "")
    assert result["form"] == "folder"
    assert result["optimizer_tensors"] == 2 * result["tensors"] + 1
    assert result["parameters"] == sum(value.size for value in random_variables().values())
    assert result["left_out"] == []


def test_quiet_is_silent(bertworks, google, tmp_path):
    assert bertworks("convert", google, tmp_path / "out", "--quiet") == (0, "", "")


def test_the_same_checkpoint_gives_the_same_bytes(google, tmp_path):
    for name in ("a", "b"):
        convert(google, tmp_path / name, with_optimizer=True)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def test_there_and_back_is_exact_on_every_file(google, folder, tmp_path):
    """N7"""
    converted = convert(folder, tmp_path / "back/bert_model.ckpt", with_optimizer=True)
    assert converted.warnings == []
    before, after = contents(google), contents(tmp_path / "back")
    assert json.loads(after.pop("bert_config.json")) == json.loads(before.pop("bert_config.json"))
    assert set(after) - set(before) == {"checkpoint", "manifest.json"}
    assert before.items() <= after.items()


def test_a_run_and_a_name_go_to_google_as_the_folder_does(bertworks, tmp_path):
    model = shipped_models.SHIPPED_FOLDER / "mini"
    (tmp_path / "run").mkdir()
    (tmp_path / "run/model").symlink_to(model)
    found = []
    for number, source in enumerate((model, tmp_path / "run", "mini")):
        code, _, err = bertworks("convert", source, tmp_path / f"{number}/x.ckpt")
        assert code == 0, err
        found.append((tmp_path / f"{number}/x.ckpt.data-00000-of-00001").read_bytes())
    assert found[0] == found[1] == found[2]


def test_a_checkpoint_by_the_name_of_a_shipped_model_is_converted(google, tmp_path, monkeypatch):
    monkeypatch.chdir(google)
    for path in [*google.glob("bert_model.ckpt.*")]:
        path.rename(path.name.replace("bert_model.ckpt", "mini"))
    assert convert("mini", tmp_path / "out").form == "folder"


def test_a_folder_goes_to_google_by_its_ending_or_by_the_option(bertworks, folder, tmp_path):
    code, _, err = bertworks("convert", folder, tmp_path / "a/my.ckpt")
    assert code == 0
    assert "left out: optimizer.safetensors; --with-optimizer" in err
    assert "--do_lower_case=True" in err
    assert "gelu_new is called gelu there" in err
    assert bertworks("convert", folder, tmp_path / "b", "--to", "google")[0] == 0
    ours, theirs = Bundle(tmp_path / "a/my.ckpt"), Bundle(tmp_path / "b/bert_model.ckpt")
    assert ours.names() == theirs.names() == sorted(random_variables())


@pytest.mark.parametrize(
    ("options", "vocabulary", "expected"),
    [
        ((), pieces(), True),
        ((), pieces(cased=True), False),
        (("--cased",), pieces(), False),
        (("--lowercase",), pieces(cased=True), True),
    ],
)
def test_lower_casing_is_told_or_seen_in_the_vocabulary(bertworks, tmp_path, options, vocabulary, expected):
    write_folder(tmp_path / "google", random_variables(), vocabulary=vocabulary)
    code, _, err = bertworks("convert", tmp_path / "google", tmp_path / "out", *options)
    assert code == 0
    assert ("capital letters" in err) == (not options)
    assert Tokenizer.from_folder(tmp_path / "out").rules.lowercase is expected
    assert Tokenizer.from_folder(tmp_path / "out").pieces == vocabulary


def test_special_and_unused_pieces_are_no_capitals():
    assert not has_capitals(["[PAD]", "[UNK]", "[CLS]", "[unused1]", "word", "é", "한", ""])
    assert has_capitals(["[UNK]", "##A"])


def test_the_exact_gelu_warns(bertworks, folder, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    code, out, err = bertworks("convert", folder, tmp_path / "g/x.ckpt", "--json")
    assert code == 0
    assert err.startswith("warning: hidden_act is the exact (erf) gelu")
    assert json.loads(out)["warnings"]
    assert json.loads((tmp_path / "g/bert_config.json").read_text())["hidden_act"] == "gelu"


@pytest.mark.parametrize(
    ("rules", "words"),
    [
        ({"lowercase": True, "strip_accents": False}, "keeps accents, and the original code strips them"),
        ({"lowercase": True, "split_cjk": False}, "leaves Chinese characters together"),
        ({"lowercase": True}, None),
        ({"lowercase": False}, None),
    ],
)
def test_what_the_original_code_cannot_be_told_of_text_is_a_warning(folder, tmp_path, rules, words):
    Tokenizer(pieces(), **rules).save(folder)
    warnings = convert(folder, tmp_path / "g/x.ckpt").warnings
    assert [words in warning for warning in warnings] == ([True] if words else [])


def test_a_type_keeps_the_rules_where_case_is_said_to_be_what_it_is(folder, tmp_path):
    Tokenizer(pieces(), lowercase=True, strip_accents=False).save(folder)
    convert(folder, tmp_path / "half", dtype="bfloat16", lowercase=True)
    assert Tokenizer.from_folder(tmp_path / "half").rules == Tokenizer.from_folder(folder).rules


def test_an_optimizer_that_is_not_there_is_refused_both_ways(bertworks, folder, tmp_path):
    (folder / "optimizer.safetensors").unlink()
    convert(folder, tmp_path / "plain/x.ckpt")
    for source, made in ((folder, tmp_path / "g/x.ckpt"), (tmp_path / "plain/x.ckpt", tmp_path / "back")):
        code, _, err = bertworks("convert", source, made, "--with-optimizer")
        assert (code, err.count("it has no state of Adam's; leave out --with-optimizer\n")) == (2, 1)
        assert not made.exists()


def test_a_runs_optimizer_goes_to_google_and_back(folder, tmp_path):
    """A checkpoint as a run writes it: our names, and queries, keys and values in one tensor."""
    state = read_arrays(folder / "optimizer.safetensors")
    ours = {"global_step": state["global_step"], "embeddings.token.weight.mean": np.zeros(3, np.float32)}
    for name in {p.ours for p in parameters(json.loads((folder / "config.json").read_text())["num_hidden_layers"])}:
        for slot in ("adam_m", "adam_v"):
            ours[f"{name}.{slot}"] = np.concatenate([state[f"{part}.{slot}"] for part in huggingface_names(name)])
    write_arrays(folder / "optimizer.safetensors", ours)
    (folder / "state.json").write_text("{}")
    convert(folder, tmp_path / "g/x.ckpt", with_optimizer=True)
    convert(tmp_path / "g/x.ckpt", tmp_path / "back", with_optimizer=True)
    back = read_arrays(tmp_path / "back/optimizer.safetensors")
    assert back.keys() == state.keys()
    assert all(np.array_equal(back[name], state[name]) for name in state)
    assert convert(folder, tmp_path / "without/x.ckpt").left_out == ["optimizer.safetensors"]


def test_the_rows_in_use_alone_are_no_state_that_google_could_take(bertworks, folder, tmp_path):
    cut = {f"embeddings.token.weight.{slot}": np.zeros((3, 12), np.float32) for slot in ("adam_m", "adam_v")}
    write_arrays(folder / "optimizer.safetensors", cut)
    (folder / "state.json").write_text("{}")
    code, _, err = bertworks("convert", folder, tmp_path / "g/x.ckpt", "--with-optimizer")
    assert (code, "fine-tuning keeps Adam's state of the rows in use alone" in err) == (2, True)


def test_an_empty_folder_is_filled_and_a_full_one_refused(bertworks, google, folder, tmp_path):
    (tmp_path / "empty").mkdir()
    assert bertworks("convert", google, tmp_path / "empty")[0] == 0
    before = contents(tmp_path / "empty")
    for source, destination in ((google, "empty"), (folder, "empty/x.ckpt"), (google, "google/vocab.txt")):
        code, out, err = bertworks("convert", source, tmp_path / destination)
        assert (code, out) == (2, "")
        assert "not an empty folder" in err
    assert contents(tmp_path / "empty") == before


def test_a_checkpoint_without_a_folder_of_its_own_is_told_to_have_one(bertworks, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = bertworks("convert", folder, "x.ckpt")
    assert (code, "give NEW_FOLDER/x.ckpt" in err) == (2, True)


def test_a_failure_leaves_nothing_behind(google, tmp_path):
    data = google / "bert_model.ckpt.data-00000-of-00001"
    data.write_bytes(b"????" + data.read_bytes()[4:])
    with pytest.raises(CorruptFile):
        convert(google, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["google"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "out"), "no checkpoint"),
        (("nowhere", "out.ckpt"), "no model folder"),
        (("google", "out.ckpt"), "no model folder"),
        (("google", "out", "--to", "google"), "no model folder"),
        (("google", "out", "--to", "onnx"), "google or folder"),
        (("folder", "out"), "is a model folder already"),
        (("mini", "out"), "mini is a model folder already; give --to google"),
        (("folder/config.json", "out"), "no checkpoint"),
        (("folder", "out/a%2fb.ckpt"), "not a usable name"),
        (("google", "a\0b"), "NUL"),
    ],
)
def test_a_mistake_is_one_line(bertworks, google, folder, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = bertworks("convert", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert words in err
    assert len(err.splitlines()) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "google"]


class Canary:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "model.ckpt", "weights.pkl", "zipped.ckpt", ""])
def test_a_pickle_is_refused_and_never_opened(bertworks, tmp_path, name):
    """S1"""
    (tmp_path / "in").mkdir()
    content = pickle.dumps(Canary(tmp_path / "canary"))
    if name == "zipped.ckpt":
        with zipfile.ZipFile(tmp_path / "in" / name, "w") as archive:
            archive.writestr("archive/data.pkl", content)
    else:
        (tmp_path / "in" / (name or "pytorch_model.bin")).write_bytes(content)
    code, _, err = bertworks("convert", tmp_path / "in" / name, tmp_path / "out")
    assert code == 2
    assert "refused: pickle" in err
    assert "--allow-pickle" in err
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.fixture
def pickled(folder):
    """A folder of 2019: pickled weights, a vocabulary, and nothing that says whether text is lower-cased."""
    weights = load_file(folder / "model.safetensors")
    torch.save({name: tensor.clone() for name, tensor in weights.items()}, folder / "pytorch_model.bin")
    names = ("model.safetensors", "optimizer.safetensors", "tokenizer.json", "tokenizer_config.json", "manifest.json")
    for name in names:
        (folder / name).unlink()
    return folder


def test_pickled_weights_become_a_folder_when_that_is_allowed(bertworks, google, pickled, tmp_path):
    """S1: without the flag they are refused, with the advice."""
    code, out, err = bertworks("convert", pickled, tmp_path / "safe")
    assert (code, out) == (2, "")
    assert err.startswith("error: refused: pickle")
    assert f"`bertworks convert {pickled} NEW --allow-pickle`" in err
    assert not (tmp_path / "safe").exists()
    (pickled / "training_args.bin").touch()
    code, out, err = bertworks("convert", pickled, tmp_path / "safe", "--allow-pickle")
    assert code == 0
    assert f"{len(random_variables())} tensors" in out
    next_line = f"next: bertworks inspect {tmp_path / 'safe'}  (what it is and what it can do)\n"
    assert err == f"note: left out: training_args.bin\n{next_line}"
    assert set(verify_manifest(tmp_path / "safe")) == {
        "config.json", "model.safetensors", "vocab.txt", "bertworks.json",
    }  # fmt: skip
    convert(tmp_path / "safe", tmp_path / "back/bert_model.ckpt")
    for name, variable in random_variables(with_optimizer=True).items():
        if name in random_variables():
            np.testing.assert_array_equal(Bundle(tmp_path / "back/bert_model.ckpt").read(name), variable)


@pytest.mark.parametrize(("options", "expected"), [((), True), (("--cased",), False), (("--lowercase",), True)])
def test_how_text_was_can_be_said_of_pickled_weights(bertworks, pickled, tmp_path, options, expected):
    code, out, _ = bertworks("convert", pickled, tmp_path / "safe", "--allow-pickle", "--json", *options)
    assert code == 0
    assert json.loads(out)["lowercase"] is expected
    assert Tokenizer.from_folder(tmp_path / "safe").rules.lowercase is expected


@pytest.mark.parametrize("is_shared", [True, False])
@pytest.mark.parametrize("is_said_not_to_be_tied", [False, True])
def test_what_is_tied_is_written_once(bertworks, pickled, tmp_path, is_shared, is_said_not_to_be_tied):
    """Whether it shares its numbers in the pickle or not; where it is said not to be tied, others want both."""
    weights = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    copies = {DECODER: weights[WORDS], "cls.predictions.decoder.bias": weights["cls.predictions.bias"]}
    weights |= copies if is_shared else {name: tensor.clone() for name, tensor in copies.items()}
    torch.save(weights, pickled / "pytorch_model.bin")
    if is_said_not_to_be_tied:
        config = json.loads((pickled / "config.json").read_text())
        (pickled / "config.json").write_text(json.dumps(config | {"tie_word_embeddings": False}))
    code, out, _ = bertworks("convert", pickled, tmp_path / "safe", "--allow-pickle", "--json")
    expected = set(weights) if is_said_not_to_be_tied else set(weights) - set(copies)
    assert (code, json.loads(out)["tensors"]) == (0, len(expected))
    assert set(read_arrays(tmp_path / "safe/model.safetensors")) == expected


def test_a_copy_without_its_original_is_kept_and_one_that_differs_is_told(bertworks, pickled, tmp_path):
    weights = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    torch.save(weights | {DECODER: weights[WORDS] + 1}, pickled / "pytorch_model.bin")
    code, _, err = bertworks("convert", pickled, tmp_path / "safe", "--allow-pickle")
    assert (code, f"{DECODER} differs from {WORDS}" in err) == (2, True)
    weights[DECODER] = weights.pop(WORDS)
    torch.save(weights, pickled / "pytorch_model.bin")
    assert bertworks("convert", pickled, tmp_path / "safe", "--allow-pickle")[0] == 0
    assert set(read_arrays(tmp_path / "safe/model.safetensors")) == set(weights)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("out.ckpt",), "makes a model folder of a folder"),
        (("out", "--to", "google"), "makes a model folder of a folder"),
        (("out", "--with-optimizer"), "without --with-optimizer"),
        (("folder",), "not an empty folder"),
    ],
)
def test_pickled_weights_become_nothing_else(bertworks, pickled, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    before = contents(pickled)
    code, out, err = bertworks("convert", "folder", *arguments, "--allow-pickle")
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1
    assert contents(pickled) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "google"]


def test_a_pickle_that_asks_for_more_is_refused_even_when_pickles_are_allowed(bertworks, pickled, tmp_path):
    """S1"""
    (pickled / "pytorch_model.bin").write_bytes(pickle.dumps(Canary(tmp_path / "canary")))
    (tmp_path / "empty").mkdir()
    code, _, err = bertworks("convert", pickled, tmp_path / "empty", "--allow-pickle")
    assert code == 2
    assert "refused: pickle" in err
    assert not (tmp_path / "canary").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_the_flag_changes_nothing_where_no_pickle_is(bertworks, google, folder, tmp_path):
    assert bertworks("convert", google, tmp_path / "out", "--allow-pickle")[0] == 0
    assert "is a model folder already" in bertworks("convert", folder, tmp_path / "new", "--allow-pickle")[2]


@pytest.mark.parametrize("is_zip", [True, False])
@pytest.mark.parametrize("name", ["model", "state_dict"])
def test_a_training_checkpoint_is_told_from_a_damaged_file(bertworks, pickled, tmp_path, name, is_zip):
    weights = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    state = {"state": {0: {"step": 3, "exp_avg": torch.ones(2)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    checkpoint = {"epoch": 3, "optimizer": state, name: weights, "rng": torch.ones(3)}
    torch.save(checkpoint, pickled / "pytorch_model.bin", _use_new_zipfile_serialization=is_zip)
    code, _, err = bertworks("convert", pickled, tmp_path / "safe", "--allow-pickle")
    assert (code, err.count("\n"), "damaged" in err) == (2, 1, False)
    assert f"is a training checkpoint: its weights are only one part of it, '{name}'; where it was made, save" in err


@pytest.mark.parametrize("options", [(), ("--allow-pickle",)])
def test_a_folder_without_weights_is_not_said_to_be_a_model_already(bertworks, folder, tmp_path, options):
    (folder / "model.safetensors").unlink()
    code, _, err = bertworks("convert", folder, tmp_path / "new", *options)
    assert (code, err.count("\n"), "already" in err) == (2, 1, False)
    assert f"{folder} has no model.safetensors and no other weights" in err


def test_the_pickle_in_a_folder_of_sentence_transformers_is_found(bertworks, pickled, tmp_path):
    root = tmp_path / "sentences"
    root.mkdir()
    pickled.rename(root / "0_Transformer")
    modules = [{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]
    (root / "modules.json").write_text(json.dumps(modules))
    code, _, err = bertworks("convert", root, tmp_path / "new", "--allow-pickle")
    assert (code, f"`bertworks convert {root / '0_Transformer'} NEW --allow-pickle`" in err) == (2, True)


def test_a_folder_with_several_weight_files_goes_to_google_too(bertworks, google, folder, tmp_path):
    tensors = read_arrays(folder / "model.safetensors")
    files = {name: f"model-{number % 3 + 1}-of-3.safetensors" for number, name in enumerate(tensors)}
    for file in set(files.values()):
        write_arrays(folder / file, {name: tensors[name] for name in tensors if files[name] == file})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": files}))
    (folder / "model.safetensors").unlink()
    assert bertworks("convert", folder, tmp_path / "back/bert_model.ckpt", "--with-optimizer", "-q") == (0, "", "")
    data = "bert_model.ckpt.data-00000-of-00001"
    assert (tmp_path / "back" / data).read_bytes() == (google / data).read_bytes()


def test_an_empty_file_by_the_checkpoints_name_is_no_pickle(bertworks, google, tmp_path):
    """Some code looks for the prefix as if it were a file, so people make one."""
    (google / "bert_model.ckpt").touch()
    assert bertworks("convert", google / "bert_model.ckpt", tmp_path / "a", "-q") == (0, "", "")
    assert bertworks("convert", google, tmp_path / "b", "-q") == (0, "", "")


def test_safetensors_open_in_the_library_and_come_back(tmp_path):
    from safetensors import safe_open

    tensors = {"b": np.arange(6, dtype=np.float32).reshape(2, 3).T, "a": np.float32([1]), "step": np.array(3, np.int64)}
    write_arrays(tmp_path / "x", tensors)
    with safe_open(tmp_path / "x", framework="numpy") as opened:
        assert opened.metadata() == {"format": "pt"}
        for name, expected in tensors.items():
            np.testing.assert_array_equal(opened.get_tensor(name), expected)
    for name, found in read_arrays(tmp_path / "x").items():
        np.testing.assert_array_equal(found, tensors[name])
        assert found.flags.aligned


@pytest.mark.parametrize("length", range(1, 9))
def test_the_numbers_of_safetensors_begin_at_multiples_of_their_width(tmp_path, length):
    tensors = {"a" * length: np.ones(3, np.float32), "z": np.array(3, np.int64)}
    write_arrays(tmp_path / "x", tensors)
    content = (tmp_path / "x").read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    assert size % 8 == 0
    assert header["z"]["data_offsets"] == [0, 8]


@pytest.mark.parametrize("content", [b"", b"1234567", bytes(8), b"\xff" * 100, b"\x02\0\0\0\0\0\0\0{}x"])
def test_damaged_safetensors_are_corrupt(tmp_path, content):
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(CorruptFile):
        read_arrays(tmp_path / "x")


def stored_as(tensors, code):
    """A safetensors file by hand, for the types that numpy has not."""
    header, data = {}, b""
    for name, tensor in tensors.items():
        raw = (tensor.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        header[name] = {"dtype": code, "shape": tensor.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_bfloat16_weights_are_written_exactly_as_float32(folder, tmp_path):
    tensors = read_arrays(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()  # the tensors are views of it
    (folder / "model.safetensors").write_bytes(stored_as(tensors, "BF16"))
    convert(folder, tmp_path / "g/x.ckpt")
    found = Bundle(tmp_path / "g/x.ckpt").read("cls/predictions/output_bias")
    expected = tensors["cls.predictions.bias"].view(np.uint32) & 0xFFFF0000
    np.testing.assert_array_equal(found.view(np.uint32), expected)


def test_another_type_is_refused_by_name(folder, tmp_path):
    tensors = read_arrays(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()  # the tensors are views of it
    (folder / "model.safetensors").write_bytes(stored_as(tensors, "I16"))
    with pytest.raises(UserError, match="is I16; only"):
        convert(folder, tmp_path / "g/x.ckpt")


OLD_FORMS = {
    "gamma and beta": lambda tensors: {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    },
    "the output matrix again": lambda tensors: tensors | {DECODER: tensors[WORDS]},
    "the output bias again": lambda tensors: (
        tensors | {"cls.predictions.decoder.bias": tensors["cls.predictions.bias"]}
    ),
    "the output bias by its other name": lambda tensors: {
        name.replace("cls.predictions.bias", "cls.predictions.decoder.bias"): tensor for name, tensor in tensors.items()
    },
    "position ids": lambda tensors: tensors | {"bert.embeddings.position_ids": np.arange(16, dtype=np.int64)[None]},
}


@pytest.mark.parametrize("form", OLD_FORMS)
def test_files_of_older_versions_give_the_same_checkpoint(google, folder, tmp_path, form):
    rewrite(folder, OLD_FORMS[form])
    converted = convert(folder, tmp_path / "back/bert_model.ckpt", with_optimizer=True)
    assert converted.left_out == []
    data = "bert_model.ckpt.data-00000-of-00001"
    assert (tmp_path / "back" / data).read_bytes() == (google / data).read_bytes()


def test_a_bare_encoder_has_its_prefix_added(folder, tmp_path):
    rewrite(folder, lambda tensors: {name[5:]: value for name, value in tensors.items() if name.startswith("bert.")})
    convert(folder, tmp_path / "g/x.ckpt")
    expected = sorted(name for name in random_variables() if name.startswith("bert/"))
    assert Bundle(tmp_path / "g/x.ckpt").names() == expected


def test_a_fine_tuned_head_is_left_out_by_name(folder, tmp_path):
    rewrite(folder, lambda tensors: tensors | {"classifier.weight": np.zeros((2, 12), np.float32)})
    converted = convert(folder, tmp_path / "g/x.ckpt", with_optimizer=True)
    assert converted.left_out == ["classifier.weight"]
    assert "classifier.weight" in converted.notes[0]


def test_an_output_matrix_of_its_own_cannot_be_written(folder, tmp_path):
    rewrite(folder, lambda tensors: tensors | {DECODER: tensors[WORDS] + 1})
    with pytest.raises(UserError, match="not the same as"):
        convert(folder, tmp_path / "g/x.ckpt")
    assert not (tmp_path / "g").exists()


def test_a_layer_norm_by_both_names_is_refused():
    one = np.ones(3, np.float32)
    with pytest.raises(UserError, match="the same tensor under two names"):
        by_modern_names({"bert.x.LayerNorm.gamma": one, "bert.x.LayerNorm.weight": one}, "folder")


def test_the_configuration_is_the_originals_again(folder, tmp_path):
    convert(folder, tmp_path / "g/x.ckpt")
    assert json.loads((tmp_path / "g/bert_config.json").read_text()) == CONFIG


@pytest.mark.parametrize("write", [write_small_gpt, write_small_elmo])
def test_a_model_that_is_no_bert_has_no_checkpoint_of_googles(tmp_path, write):
    with pytest.raises(UserError, match=r"is of the type .*; a checkpoint of Google's is a BERT"):
        convert(write(tmp_path / "model"), tmp_path / "new" / "model.ckpt")
    assert not (tmp_path / "new").exists()
