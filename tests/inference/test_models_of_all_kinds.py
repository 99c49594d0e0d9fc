"""Models of all kinds in use: pickled, copied and sent to other processes, before and after use; their repr."""

import copy
import json
import multiprocessing
import pickle

import numpy as np
import pytest
from small_models import (
    ELMO_WORDS,
    GPT_PIECES,
    MERGES,
    PIECES,
    scattered,
    write_small_elmo,
    write_small_gpt,
    write_small_model,
)

import bertworks as bw
from bertworks.errors import UserError
from bertworks.models.kinds import write_model
from bertworks.nn.bilstm import Compound
from bertworks.nn.config import BertConfig, CompoundConfig, ElmoConfig, ElmoReaderConfig
from bertworks.nn.elmo import ElmoTasks
from bertworks.text.elmo_words import WordTokenizer
from bertworks.text.gpt import GptTokenizer, with_special_pieces
from bertworks.text.tokenizer import Encoding, Tokenizer

TEXTS = ["the cat sat", "a dog ran far away", "the big dog", "the dog sat on a mat"]
BERT = {"vocab_size": len(PIECES), "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
        "intermediate_size": 24, "max_position_embeddings": 20}  # fmt: skip
ELMO = {"vocab_size": len(ELMO_WORDS), "num_filters": (3, 4, 5), "char_embedding_size": 6, "projection_size": 8,
        "cell_size": 12}  # fmt: skip


def write_tuned_gpt(folder):
    tokenizer = with_special_pieces(GptTokenizer(GPT_PIECES, MERGES))
    about = {"task": {"kind": "classify"}}
    write_small_gpt(folder, {"classify": 2}, labels=["no", "yes"], about=about, vocab_size=len(tokenizer))
    tokenizer.save(folder)


def write_tuned_elmo(folder):
    folder.mkdir()
    net = scattered(ElmoTasks(ElmoConfig(**ELMO), ElmoReaderConfig(num_cells=5, hidden_size=7), {"classify": 2}))
    write_model(folder, net, labels=["no", "yes"])
    WordTokenizer(ELMO_WORDS).save(folder)


def write_two_berts(folder):
    folder.mkdir()
    encoders = tuple(BertConfig(**BERT, direction=f"{way}", summary="last") for way in ("left_to_right", "both"))
    net = scattered(Compound(CompoundConfig(encoders=encoders), {"classify": 2}))
    write_model(folder, net, labels=["no", "yes"])
    Tokenizer(PIECES).save(folder)


def embedded(model):
    return model.embed(TEXTS)


def classified(model):
    return [list(result["scores"].values()) for result in model.classify(TEXTS)]


def tokenized(model):
    """Through the compiled code."""
    return model.tokenizer.encode_batch(["the cat sat " * 100_000])[0].ids


KINDS = {
    "bert": (write_small_model, embedded),
    "bert, compiled tokenizer": (write_small_model, tokenized),
    "gpt": (write_small_gpt, embedded),
    "elmo": (write_small_elmo, embedded),
    "tuned gpt": (write_tuned_gpt, classified),
    "tuned elmo": (write_tuned_elmo, classified),
    "two berts": (write_two_berts, classified),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_used_model_is_copied_and_pickled(tmp_path, kind):
    write, use = KINDS[kind]
    write(tmp_path / "model")
    model = bw.load(tmp_path / "model", device="cpu")
    expected = use(model)
    size = len(pickle.dumps(model))
    for again in (copy.deepcopy(model), copy.copy(model), pickle.loads(pickle.dumps(model))):
        np.testing.assert_allclose(use(again), expected, atol=1e-6)
        np.testing.assert_array_equal(use(model), expected)
    assert len(pickle.dumps(model)) < size + 10_000  # what is made ready is not pickled


SAID = {
    "bert": ("Model(", "BERT: 3 layers of width 16, 2 heads", "22 pieces",
             "parameters in float32 on cpu", "heads: mlm, nsp", "can: fill, nsp, embed, features, attention"),
    "gpt": ("Model(", "GPT-1: 3 layers", "can: embed, features, next_words, perplexity"),
    "elmo": ("Model(", "ELMo: ", "can: embed, features, next_words, perplexity"),
    "tuned gpt": ("Model(", "GPT-1", "labels: no, yes", "fine-tuned for: classify", "can: classify"),
    "tuned elmo": ("Model(", "ELMo", "heads: classify", "can: classify"),
    "two berts": ("Model(", "attends left to right", "attends both ways", "can: classify"),
}  # fmt: skip


def test_the_repr_of_one_layer_and_one_head_is_in_the_singular(tmp_path):
    write_small_model(tmp_path / "bert", num_hidden_layers=1, num_attention_heads=1)
    assert "BERT: 1 layer of width 16, 1 head, feed" in repr(bw.load(tmp_path / "bert", device="cpu"))
    write_small_gpt(tmp_path / "gpt", n_layer=1, n_head=1)
    assert "GPT-1: 1 layer of width 16, 1 head, " in repr(bw.load(tmp_path / "gpt", device="cpu"))


@pytest.mark.parametrize("kind", SAID)
def test_the_repr_of_a_model_says_what_it_is_and_can(tmp_path, kind):
    KINDS[kind][0](tmp_path / "model")
    model = bw.load(tmp_path / "model", device="cpu")
    for words in SAID[kind]:
        assert words in repr(model)
    assert len(repr(model)) < 600
    assert "\n" not in repr(model.tokenizer)
    can = repr(model).rpartition("can: ")[2].split("\n")[0].split(", ")
    assert all(callable(getattr(model, name)) for name in can)
    if kind == "bert":
        assert repr(model.tokenizer) == "Tokenizer(22 pieces, lowercase=True, strip_accents=True, split_cjk=True)"


CALLS = {  # of every method, with one text or pair
    "encode": ("the cat sat",), "fill": ("the [MASK] sat",), "nsp": ("the cat sat", "a dog"),
    "classify": ("the cat sat",), "tag": ("the cat sat",), "answer": ("who sat", "the cat sat"),
    "choose": ("the cat", ["sat", "ran far"]), "embed": ("the cat sat",), "features": ("the cat sat",),
    "attention": ("the cat sat",), "next_words": ("the cat",), "perplexity": ("the cat sat",),
}  # fmt: skip


def numbers_of(result):
    """Every number in a result of any form, in order."""
    if isinstance(result, dict):
        return [number for value in result.values() for number in numbers_of(value)]
    if isinstance(result, list | tuple):
        return [number for value in result for number in numbers_of(value)]
    if isinstance(result, np.ndarray):
        return result.ravel().tolist()
    return result.ids if isinstance(result, Encoding) else [result] if isinstance(result, int | float) else []


DESCRIBED = {
    "bert": {"kind": "bert", "heads": ["mlm", "nsp"], "max_length": 20, "task": None,
             "methods": ["fill", "nsp", "embed", "features", "attention"]},
    "gpt": {"kind": "gpt", "heads": [], "max_length": 20, "methods": ["embed", "features", "next_words", "perplexity"]},
    "elmo": {"kind": "elmo", "max_length": None, "methods": ["embed", "features", "next_words", "perplexity"]},
    "tuned gpt": {"labels": ["no", "yes"], "task": {"kind": "classify"}, "methods": ["classify"]},
    "tuned elmo": {"kind": "elmotasks", "max_length": None, "methods": ["classify"]},
    "two berts": {"kind": "compound", "max_length": 20, "methods": ["classify"]},
}  # fmt: skip


@pytest.mark.parametrize("kind", DESCRIBED)
def test_a_program_is_told_what_a_model_is_and_can(tmp_path, kind):
    KINDS[kind][0](tmp_path / "model")
    model = bw.load(tmp_path / "model", device="cpu")
    described = json.loads(json.dumps(model.describe()))
    assert {name: described[name] for name in DESCRIBED[kind]} == DESCRIBED[kind]
    assert described["vocabulary"]["size"] == len(model.tokenizer)
    assert described["parameters"]["total"] == sum(weight.numel() for weight in model.net.parameters())
    assert (described["device"], described["dtype"], described["language"]) == ("cpu", "float32", None)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_a_method_is_refused_or_among_those_that_a_model_can(tmp_path, kind):
    """The one that is refused says which there are."""
    KINDS[kind][0](tmp_path / "model")
    model, can = bw.load(tmp_path / "model", device="cpu"), DESCRIBED[kind]["methods"]
    for method, arguments in CALLS.items():
        if method in ("encode", *can):
            getattr(model, method)(*arguments)
        else:
            with pytest.raises(UserError, match=f"this .* cannot .*: .*; it can: {', '.join(can)}$"):
                getattr(model, method)(*arguments)


@pytest.mark.parametrize("kind", DESCRIBED)
def test_every_method_takes_one_text_or_many(tmp_path, kind):
    """A text by itself has one result, a list as many as it has texts; a perplexity is of all texts together."""
    KINDS[kind][0](tmp_path / "model")
    model = bw.load(tmp_path / "model", device="cpu")
    for method in ("encode", *DESCRIBED[kind]["methods"]):
        ask, arguments = getattr(model, method), CALLS[method]
        alone, many = ask(*arguments), ask(*([argument] * 2 for argument in arguments))
        if method == "perplexity":
            assert many == pytest.approx(alone)
            continue
        assert len(many) == 2
        for one in many:
            assert type(one) is type(alone)
            assert numbers_of(one) == pytest.approx(numbers_of(alone), abs=1e-6)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that was used."""
    opened = bw.load(write_small_model(tmp_path_factory.mktemp("model")), device="cpu")
    opened.embed(TEXTS)
    return opened


def test_a_copy_is_as_fast(model):
    """It makes its own matrices in the processor's order."""
    again = copy.deepcopy(model)
    again.embed(TEXTS)
    for one in (model, again):
        assert one.net.blocks[0].up._ordered is not None


def test_scikit_learn_clones_and_cross_validates_with_a_model(model):
    sklearn = pytest.importorskip("sklearn")
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer

    texts, labels = TEXTS * 4, [0, 1, 1, 0] * 4
    pipeline = sklearn.clone(make_pipeline(FunctionTransformer(model.embed), LogisticRegression()))
    expected = cross_val_score(LogisticRegression(), model.embed(texts), labels, cv=2)
    np.testing.assert_array_equal(cross_val_score(pipeline, texts, labels, cv=2), expected)


def test_joblib_dumps_a_model(model, tmp_path):
    joblib = pytest.importorskip("joblib")
    joblib.dump(model, tmp_path / "model.joblib")
    np.testing.assert_array_equal(joblib.load(tmp_path / "model.joblib").embed(TEXTS), model.embed(TEXTS))


def test_processes_share_the_work_of_a_model(model):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        found = pool.map(model.embed, [TEXTS[:2], TEXTS[2:]])
    np.testing.assert_allclose(np.concatenate(found), model.embed(TEXTS), atol=1e-6)
