"""A GPT-1 and an ELMo to use: what can be asked of them, and how they refuse what only a BERT can do."""

import itertools
import json
import math

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from small_models import ELMO_WORDS, write_small_elmo, write_small_gpt, write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.inference.model import spelt
from bertworks.nn.attention import pack
from bertworks.text.elmo_words import character_ids

WRITERS = {"gpt": write_small_gpt, "elmo": write_small_elmo}
TEXTS = ["the cat sat, far away.", "a", "", "the dog", "Dogs ran far!", "The cat"]
LONG = "far away " * 20


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    return {kind: bw.load(write(tmp_path_factory.mktemp(kind)), device="cpu") for kind, write in WRITERS.items()}


@pytest.fixture(params=WRITERS)
def model(models, request):
    return models[request.param]


# Hidden states


def test_a_text_has_the_same_features_in_any_company(model, monkeypatch):
    """H21: batches of every size."""
    alone = [model.features([text])[0] for text in TEXTS]
    for tokens_at_once in (1, 9, 2_048):
        monkeypatch.setattr("bertworks.nn.attention._TOKENS_AT_ONCE", tokens_at_once)
        for each, together in zip(alone, model.features(TEXTS), strict=True):
            assert together.encoding.ids == each.encoding.ids
            np.testing.assert_allclose(together.hidden, each.hidden, atol=1e-5)


@torch.no_grad()
def test_features_are_the_layers_asked_for(models):
    (found,) = models["gpt"].features(["the cats"])
    assert found.encoding.tokens == ["the</w>", "ca", "t", "s</w>"]
    expected = models["gpt"].net.all_hidden(pack([found.encoding.ids]))
    np.testing.assert_allclose(found.hidden, torch.stack(expected), atol=1e-6)
    (found,) = models["elmo"].features(["the cats"])
    assert found.encoding.tokens == ["<S>", "the", "<UNK>", "</S>"]
    expected = models["elmo"].net.read(*spelt([["<S>", "the", "cats", "</S>"]], torch.device("cpu")))
    np.testing.assert_allclose(found.hidden, torch.stack(expected), atol=1e-6)
    for model in models.values():
        assert model.features(TEXTS)[0].hidden.shape[0::2] == (model.num_layers + 1, model.width)
        (whole,), (some,) = model.features(["the cat"]), model.features(["the cat"], layers=[-1, 0, 1])
        np.testing.assert_allclose(some.hidden, whole.hidden[[-1, 0, 1]], atol=1e-6)


def test_elmo_tells_words_apart_that_its_list_does_not_have(models):
    first, second = models["elmo"].features(["zebra", "giraffe"])
    assert first.encoding.ids == second.encoding.ids
    assert np.abs(first.hidden[:, 1] - second.hidden[:, 1]).max() > 0.1


@pytest.mark.parametrize("layers", [None, [0], [-2, -1]])
@pytest.mark.parametrize(("pooling", "normalize"), [(None, None), ("max", True), ("last", False)])
def test_embed_pools_the_layers_asked_for_and_nothing_is_zeros(model, layers, pooling, normalize):
    vectors = model.embed(TEXTS, layers=layers, pooling=pooling, normalize=normalize)
    for vector, features in zip(vectors, model.features(TEXTS), strict=True):
        rows = np.concatenate(features.hidden[layers or [-1]], axis=-1)
        if not len(rows):
            assert not vector.any()
            continue
        expected = {"last": rows[-1], "max": rows.max(0)}.get(pooling, rows.mean(0))
        np.testing.assert_allclose(vector, expected / (np.linalg.norm(expected) if normalize else 1), atol=1e-5)


def test_nothing_to_embed_is_no_vectors(model):
    assert model.embed([]).shape == (0, model.width)
    assert model.features([]) == []
    assert model.embed(["", ""], pooling="max").shape == (2, model.width)


def test_using_a_model_leaves_the_callers_autograd_alone(model):
    weight = torch.ones(2, requires_grad=True)
    model.perplexity(TEXTS)
    model.next_words("the cat")
    assert not torch.is_inference_mode_enabled()
    weight.sum().backward()
    assert weight.grad.tolist() == [1, 1]


# Guesses


def test_next_words_are_probabilities_of_the_whole_vocabulary(model):
    guesses = model.next_words("the cat", 1_000)
    assert sorted(guess["id"] for guess in guesses) == list(range(len(model.tokenizer)))
    assert [guess["token"] for guess in guesses] == [model.tokenizer.pieces[guess["id"]] for guess in guesses]
    assert sum(guess["score"] for guess in guesses) == pytest.approx(1, abs=1e-5)
    assert guesses == sorted(guesses, key=lambda guess: -guess["score"])
    assert model.next_words("the cat", 2) == guesses[:2]


@torch.no_grad()
def test_elmo_guesses_with_its_left_half_behind_the_last_word(models):
    net = models["elmo"].net
    layers = net.read(*spelt([["<S>", "the", "cat"]], torch.device("cpu")))
    scores = (layers[-1][2, :8] @ net.softmax.weight.T + net.softmax.bias).softmax(-1)
    (best,) = models["elmo"].next_words("the cat", 1)
    assert best["id"] == scores.argmax().item()
    assert best["score"] == pytest.approx(scores.max().item(), abs=1e-6)
    assert len(models["elmo"].next_words("", 3)) == 3, "a beginning has a sign of its own"


@torch.no_grad()
def test_perplexity_is_over_every_guess_of_all_texts(models, monkeypatch):
    expected, count = 0.0, 0
    for features in models["elmo"].features(TEXTS):
        softmax, ids = models["elmo"].net.softmax, features.encoding.ids
        left, right = torch.from_numpy(features.hidden[-1]).chunk(2, 1)
        for rows, targets in ((left[:-1], ids[1:]), (right[1:], ids[:-1])):
            scores = (rows @ softmax.weight.T + softmax.bias).log_softmax(-1)
            expected -= scores[range(len(targets)), targets].sum().item()
            count += len(targets)
    found = models["elmo"].perplexity(TEXTS)
    assert found == pytest.approx(math.exp(expected / count), rel=1e-5)
    monkeypatch.setattr("bertworks.nn.attention._TOKENS_AT_ONCE", 7)
    monkeypatch.setattr("bertworks.nn.bert._SCORES_AT_ONCE", 3 * len(ELMO_WORDS))
    assert models["elmo"].perplexity(TEXTS) == pytest.approx(found, rel=1e-5)


def test_a_text_without_a_guess_has_no_perplexity_and_gpt_no_beginning(models):
    with pytest.raises(UserError, match="no text has two tokens"):
        models["gpt"].perplexity(["a", ""])
    with pytest.raises(UserError, match="at least one word"):
        models["gpt"].next_words(" ")


def test_an_elmo_without_its_softmax_gives_layers_alone(tmp_path):
    model = bw.load(write_small_elmo(tmp_path, softmax=False), device="cpu")
    assert model.embed(["the cat"]).shape == (1, 16)
    for ask in (lambda: model.perplexity(["the cat"]), lambda: model.next_words("the cat")):
        with pytest.raises(UserError, match=r"its folder has no softmax; it can: embed, features$"):
            ask()


@pytest.mark.parametrize("direction", ["left_to_right", "right_to_left"])
@torch.no_grad()
def test_a_bert_of_one_direction_has_a_perplexity_too(tmp_path, direction):
    model = bw.load(write_small_model(tmp_path, {"mlm": 0}, direction=direction), device="cpu")
    total, count = 0.0, 0
    for features in model.features(["the cat sat.", "dogs"]):
        ids = features.encoding.ids
        scores = model.mlm_logits(torch.from_numpy(features.hidden[-1])).log_softmax(-1)
        for place, (first, second) in enumerate(itertools.pairwise(ids)):
            is_left = direction == "left_to_right"
            total -= scores[place, second].item() if is_left else scores[place + 1, first].item()
            count += 1
    assert model.perplexity(["the cat sat.", "dogs"]) == pytest.approx(math.exp(total / count), rel=1e-5)
    if direction == "left_to_right":
        assert model.next_words("the cat", 3) == model.fill("the cat [MASK]", 3)[0]


def test_a_bert_that_sees_both_sides_is_no_language_model(tmp_path):
    model = bw.load(write_small_model(tmp_path), device="cpu")
    with pytest.raises(UserError, match="sees the words it would have to predict"):
        model.perplexity(["the cat"])
    with pytest.raises(UserError, match=r"fill\(text\) guesses at a \[MASK\]"):
        model.next_words("the cat")


# What is refused


@pytest.mark.parametrize("name", ["fill", "nsp", "attention", "mlm_logits"])
def test_what_only_a_bert_can_do_is_refused_with_what_there_is(models, name):
    texts = ["the [MASK]", "a cat"][: 2 if name == "nsp" else 1]
    with pytest.raises(UserError, match=r"this GPT-1 cannot .*; it can: embed, features, next_words, perplexity$"):
        getattr(models["gpt"], name)(*texts)
    with pytest.raises(UserError, match=r"this ELMo cannot .*; it can: embed, features, next_words, perplexity$"):
        getattr(models["elmo"], name)(*texts)


def test_a_text_that_is_too_long_for_gpt_is_refused_unless_it_may_be_cut(models):
    model = models["gpt"]
    for ask in (model.embed, model.features, model.perplexity, model.encode):
        with pytest.raises(UserError, match=r"text 2 of 2 has 140 tokens, and the model reads 20"):
            ask(["a", LONG])
        assert ask(["a", LONG], truncate=True) is not None
    assert len(model.features([LONG], truncate=True)[0].encoding) == 20
    with pytest.raises(UserError, match="the text has 140 tokens"):
        model.next_words(LONG)
    end = model.tokenizer.decode(model.tokenizer.encode(LONG).ids[-20:])
    assert model.next_words(LONG, truncate=True)[0]["score"] == pytest.approx(model.next_words(end)[0]["score"])


def test_one_text_by_itself_is_one_vector(model):
    np.testing.assert_allclose(model.embed("the cat"), model.embed(["the cat", "a"])[0], atol=1e-6)


def test_elmo_reads_texts_of_any_length(models):
    assert len(models["elmo"].features([LONG])[0].encoding) == 42


@pytest.mark.parametrize(("ask", "words"), [
    (lambda model: model.embed(["a"], layers=[9]), r"layers \[9\] are not in a model of"),
    (lambda model: model.embed(["a"], pooling="cls"), "choose mean, max, last"),
    (lambda model: model.embed(b"a text"), "takes a list of texts"),
    (lambda model: model.embed(""), "the text is empty; give one"),
    (lambda model: model.features([b"a"]), "must be a str"),
    (lambda model: model.next_words("a", 0), "ask for 1 or more"),
])  # fmt: skip
def test_wrong_arguments_are_user_errors(model, ask, words):
    with pytest.raises(UserError, match=words):
        ask(model)


def test_half_precision_is_near_for_gpt_and_refused_for_elmo(models, tmp_path):
    half = bw.load(write_small_gpt(tmp_path / "gpt"), device="cpu", dtype="bfloat16")
    vectors, expected = half.embed(["the cat"], normalize=True), models["gpt"].embed(["the cat"], normalize=True)
    assert (vectors * expected).sum() > 0.999
    with pytest.raises(UserError, match="computed in float32, not in bfloat16"):
        bw.load(write_small_elmo(tmp_path / "elmo"), dtype="bfloat16")


# Folders and commands


@pytest.mark.parametrize("kind", WRITERS)
def test_a_saved_model_is_the_same_model(models, tmp_path, kind):
    models[kind].save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved", device="cpu")
    np.testing.assert_array_equal(again.embed(TEXTS), models[kind].embed(TEXTS))
    assert again.next_words("the cat") == models[kind].next_words("the cat")
    with pytest.raises(UserError, match="exists already"):
        models[kind].save(tmp_path / "saved")


@pytest.mark.parametrize("kind", WRITERS)
def test_embed_and_features_commands_serve_all_kinds(bertworks, models, tmp_path, kind):
    folder = WRITERS[kind](tmp_path / "model")
    model = models[kind]
    _, out, _ = bertworks("embed", folder, "the cat", "--json", "--pooling", "last", "--device", "cpu")
    np.testing.assert_allclose(json.loads(out), model.embed(["the cat"], pooling="last")[0], atol=1e-6)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")
    for per in ("token", "word"):
        code, _, err = bertworks(
            "features", folder, tmp_path / "texts.txt", "--out", tmp_path / "f.safetensors", "--per", per
        )
        assert code == 0, err
        found = load_file(tmp_path / "f.safetensors")
        for number, features in enumerate(model.features(TEXTS)):
            if per == "token":
                np.testing.assert_allclose(found[f"{number}/hidden"], features.hidden, atol=1e-5)
            num_words = len({word for word in features.encoding.word_ids if word is not None})
            assert per == "token" or len(found[f"{number}/ids"]) == num_words


def test_fill_of_a_gpt_is_refused_on_the_command_line(bertworks, tmp_path):
    code, out, err = bertworks("fill", write_small_gpt(tmp_path / "model"), "the [MASK]")
    assert (code, out) == (2, "")
    assert "this GPT-1 cannot fill masks: it has no mlm head (heads: none)" in err


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (
            "gpt",
            ["GPT-1: 3 layers of width 16, 2 heads, gelu", "up to 20 tokens", "transformer.h.0-2.attn.c_attn.weight"],
        ),
        ("elmo", ["ELMo: 2 LSTMs each way, 12 cells projected to 8", "12 filters of width 1 to 3", "12 words"]),
    ],
)
def test_inspect_shows_all_kinds(bertworks, tmp_path, kind, words):
    folder = WRITERS[kind](tmp_path / "model", about={"trained": "never"})
    code, out, _ = bertworks("inspect", folder)
    assert code == 0
    assert all(word in out for word in [*words, "trained: never"])
    report = json.loads(bertworks("inspect", folder, "--json")[1])
    assert report["kind"] == kind
    parts = report["parameters"]
    assert parts["total"] == sum(count for part, count in parts.items() if part != "total")
    sizes = [math.prod(tensor["shape"]) for tensor in report["tensors"].values()]
    assert parts["total"] == sum(sizes)


def test_words_as_they_are_read_stand_where_their_ids_do(models):
    """Also where rules change them: the spelling is that of the words in the list."""
    tokenizer = models["elmo"].tokenizer
    for text in [*TEXTS, "Zebra\u00a0x  y!", "강물은 東京", "caf\u00e9"]:
        words, encoding = tokenizer.words(text), tokenizer.encode(text)
        assert len(words) == len(encoding)
        for word, token in zip(words, encoding.tokens, strict=True):
            assert token in (word, "<UNK>")


def test_words_are_spelt_as_in_prepared_data():
    characters, packing = spelt([ELMO_WORDS[:5], [], ELMO_WORDS[5:]], torch.device("cpu"))
    assert np.array_equal(characters.numpy(), character_ids(ELMO_WORDS).astype(np.int16))
    assert packing.cumulative_lengths.tolist() == [0, 5, 5, 12]


def test_a_tokenizer_of_another_kind_is_told(tmp_path):
    write_small_gpt(tmp_path)
    (tmp_path / "vocab.json").unlink()
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"vocab\.json"):
        bw.load(tmp_path)
