"""`bw.load` and what can be asked of a model."""

import numpy as np
import pytest
import torch
from small_models import PIECES, write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.files import verify_manifest
from bertworks.nn.attention import pack

TEXTS = ["the cat sat on the mat.", "a", "", "dogs ran far away, far away!", "the big dog", "The BIG cat"]
LONG = "far away " * 20


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bw.load(write_small_model(tmp_path_factory.mktemp("model")), device="cpu")


def test_a_text_has_the_same_features_in_any_company(model, monkeypatch):
    """H21: batches of every size."""
    alone = [model.features([text])[0] for text in TEXTS]
    for tokens_at_once in (1, 9, 2_048):
        monkeypatch.setattr("bertworks.nn.attention._TOKENS_AT_ONCE", tokens_at_once)
        for each, together in zip(alone, model.features(TEXTS), strict=True):
            assert together.encoding.ids == each.encoding.ids
            np.testing.assert_allclose(together.hidden, each.hidden, atol=1e-5)


def test_features_are_the_layers_asked_for(model):
    (found,) = model.features(["the cat"])
    expected = model.net.encode(pack([found.encoding.ids]), hidden=True).all_hidden
    assert found.encoding.tokens == ["[CLS]", "the", "cat", "[SEP]"]
    np.testing.assert_allclose(found.hidden, torch.stack(expected).detach(), atol=1e-6)
    (some,) = model.features(["the cat"], layers=[-1, 0, 2])
    np.testing.assert_allclose(some.hidden, found.hidden[[3, 0, 2]], atol=1e-6)


@pytest.mark.parametrize("layers", [None, [-1], [0], [-2, -1], [1, 3, 1]])
@pytest.mark.parametrize(("pooling", "normalize"), [(None, None), ("cls", True), ("mean", False), ("max", None)])
def test_embed_pools_the_layers_asked_for(model, layers, pooling, normalize):
    vectors = model.embed(TEXTS, layers=layers, pooling=pooling, normalize=normalize)
    for vector, features in zip(vectors, model.features(TEXTS), strict=True):
        rows = np.concatenate(features.hidden[layers or [-1]], axis=-1)
        expected = {"cls": rows[0], "max": rows.max(0)}.get(pooling, rows.mean(0))
        if normalize:
            expected = expected / np.linalg.norm(expected)
        np.testing.assert_allclose(vector, expected, atol=1e-5)


def test_layers_may_be_all_of_them_or_one_number(model):
    np.testing.assert_array_equal(model.embed(TEXTS, layers="all"), model.embed(TEXTS, layers=[0, 1, 2, 3]))
    np.testing.assert_array_equal(model.embed(TEXTS, layers=-2), model.embed(TEXTS, layers=[-2]))
    (found,) = model.features(["a"])
    np.testing.assert_array_equal(model.features(["a"], layers=np.array([1, 2]))[0].hidden, found.hidden[[1, 2]])


def test_nothing_to_embed_is_no_vectors(model):
    assert model.embed([]).shape == (0, 16)
    assert model.features([]) == []


def test_attention_weights_are_of_the_encoding(model):
    encoding, weights = model.attention("the cat", "sat.")
    assert encoding.tokens == ["[CLS]", "the", "cat", "[SEP]", "sat", ".", "[SEP]"]
    assert weights.shape == (3, 2, 7, 7)
    np.testing.assert_allclose(weights.sum(-1), 1, atol=1e-5)


def test_special_tokens_in_a_text_are_text_but_mask_where_it_is_filled(model):
    """H22."""
    specials = {2, 3, 0, 4}
    for text in ("[CLS] a [SEP] [MASK] [PAD]", "[MASK]"):
        ids = model.encode([text])[0].ids
        assert not specials & set(ids[1:-1])
    with pytest.raises(UserError, match="no \\[MASK\\] to fill"):
        model.fill("the [mask] sat [SEP]")
    assert len(model.fill("[MASK][MASK] [MASK]")) == 3


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the [MASK]s ran", "the [MASK] ##s ran"),
        ("the [MASK] s ran", "the [MASK] [UNK] ran"),
        ("the [MASK]ERs.", "the [MASK] ##er ##s ."),
        ("the [MASK][MASK]er!", "the [MASK] [MASK] ##er !"),
        ("the [MASK], [MASK]. ran", "the [MASK] , [MASK] . ran"),
        ("the [MASK]cat", "the [MASK] cat"),
    ],
)
def test_what_follows_a_mask_without_a_space_goes_on_with_its_word(model, text, tokens):
    ids = [model.tokenizer.id_of(token) for token in ("[CLS]", *tokens.split(), "[SEP]")]
    with torch.inference_mode():
        logits_TV = model.mlm_logits(model.net(pack([ids])))
    expected = logits_TV[[place for place, id in enumerate(ids) if PIECES[id] == "[MASK]"]].softmax(-1)
    found = model.fill(text, top_k=len(PIECES))
    assert len(found) == len(expected)
    for guesses, scores_V in zip(found, expected, strict=True):
        np.testing.assert_allclose([guess["score"] for guess in guesses], scores_V.sort(descending=True)[0], atol=1e-6)


def test_a_text_that_is_too_long_is_refused_with_its_length_unless_it_may_be_cut(model):
    words = r"has 42 tokens with \[CLS\] and \[SEP\], and the model reads 20"
    for ask in (lambda: model.embed(["a", LONG]), lambda: model.features(["a", LONG]), lambda: model.attention(LONG)):
        with pytest.raises(UserError, match=words):
            ask()
    with pytest.raises(UserError, match="text 2 of 2"):
        model.embed(["a", LONG])
    with pytest.raises(UserError, match="45 tokens"):
        model.nsp(LONG, "the cat")
    with pytest.raises(UserError, match="43 tokens"):
        model.fill("[MASK] " + LONG)
    assert model.embed(["a", LONG], truncate=True).shape == (2, 16)
    assert len(model.features([LONG], truncate=True)[0].encoding) == 20
    assert 0 < model.nsp(LONG, LONG, truncate=True) < 1
    assert model.fill("[MASK] " + LONG, truncate=True) == model.fill("[MASK] " + "far away " * 8 + "far", truncate=True)


def test_a_mask_that_would_be_cut_away_is_told(model):
    with pytest.raises(UserError, match=r"1 of 2 \[MASK\] are in the part that was cut"):
        model.fill("[MASK] " + LONG + "[MASK]", truncate=True)


@pytest.mark.parametrize(("options", "words"), [
    ({"top_k": 0}, "ask for 1 or more"),
    ({"targets": ["cats"]}, r"'cats' is 2 pieces \(cat ##s\), not one; choose a word that `bertworks tokenize` leaves"),
    ({"targets": ["zebra"]}, "'zebra' is not in the vocabulary"),
    ({"targets": [""]}, "is 0 pieces"),
])  # fmt: skip
def test_what_cannot_be_filled_in_is_refused(model, options, words):
    with pytest.raises(UserError, match=words):
        model.fill("the [MASK]", **options)


def test_fill_gives_probabilities_of_the_whole_vocabulary(model):
    (guesses,) = model.fill("the [MASK] sat", top_k=1_000)
    assert [guess["token"] for guess in guesses] == [PIECES[guess["id"]] for guess in guesses]
    assert sorted(guess["id"] for guess in guesses) == list(range(len(PIECES)))
    assert sum(guess["score"] for guess in guesses) == pytest.approx(1, abs=1e-5)
    assert guesses == sorted(guesses, key=lambda guess: -guess["score"])
    scores = {guess["token"]: guess["score"] for guess in guesses}
    assert [[guess["token"] for guess in mask] for mask in model.fill("the [MASK]", targets="cat")] == [["cat"]]
    (chosen,) = model.fill("the [MASK] sat", targets=["Dog", "cat"])
    assert {guess["token"]: guess["score"] for guess in chosen} == {name: scores[name] for name in ("cat", "dog")}


def test_pieces_that_the_tokenizer_does_not_have_are_never_guessed(tmp_path):
    """A vocabulary is often padded to an even number of rows."""
    model = bw.load(write_small_model(tmp_path, vocab_size=len(PIECES) + 9), device="cpu")
    (guesses,) = model.fill("the [MASK]", top_k=1_000)
    assert len(guesses) == len(PIECES)


@pytest.mark.parametrize(("heads", "ask", "words"), [
    ({}, lambda model: model.fill("[MASK]"), r"cannot fill masks: it has no mlm head \(heads: none\)"),
    ({"mlm": 0}, lambda model: model.nsp("a", "a"), r"it has no nsp head \(heads: mlm\)"),
])  # fmt: skip
def test_a_missing_head_is_named(tmp_path, heads, ask, words):
    with pytest.raises(UserError, match=words):
        ask(bw.load(write_small_model(tmp_path, heads), device="cpu"))


def test_a_model_of_one_segment_refuses_pairs(tmp_path):
    model = bw.load(write_small_model(tmp_path, type_vocab_size=1), device="cpu")
    assert model.embed(["the cat"]).shape == (1, 16)
    with pytest.raises(UserError, match="single texts, not pairs"):
        model.nsp("the cat", "sat")


def test_a_model_without_layers_gives_its_embeddings(tmp_path):
    model = bw.load(write_small_model(tmp_path, num_hidden_layers=0), device="cpu")
    assert model.embed(["the cat"]).shape == (1, 16)
    with pytest.raises(UserError, match="has no layers"):
        model.attention("the cat")


@pytest.mark.parametrize(("ask", "words"), [
    (lambda model: model.embed(["a"], layers=[4]), r"layers \[4\] are not in a model of 3; 0 to 3, or -1 back"),
    (lambda model: model.embed(["a"], layers=[-5]), "-5"),
    (lambda model: model.features(["a"], layers=[]), r"layers \[\]"),
    (lambda model: model.embed([], pooling="sum"), "choose cls, mean, max"),
    (lambda model: model.embed(["a"], layers="1"), r"layers '1' are not numbers; such as \[-1, -2\], or 'all'"),
    (lambda model: model.embed(["a"], layers=[None]), r"layers \[None\] are not numbers"),
    (lambda model: model.embed(["a"], layers=9), r"layers \[9\] are not in a model of 3"),
    (lambda model: model.embed(b"a text"), r"embed takes a list of texts, not a bytes; write embed\(\[text\]\)"),
    (lambda model: model.embed(" "), "the text is empty; give one"),
    (lambda model: model.fill(""), "the text is empty; give one"),
    (lambda model: model.nsp("a", ""), "the text is empty; give one"),
    (lambda model: model.nsp(["a", "b"], ["a"]), "nsp: 2 texts but 1 for them; give one for each, or one for all"),
    (lambda model: model.nsp(["a"], ["b", "c"]), "nsp: 1 text but 2 for them"),
    (lambda model: model.fill(["the [MASK]", "a cat"]), r"text 2 of 2: no \[MASK\] to fill in 'a cat'"),
    (lambda model: model.embed(None), "embed takes a list of texts, not a NoneType"),
    (lambda model: model.features(None), "features takes a list of texts"),
    (lambda model: model.encode(b"a text"), "encode takes a list of texts, not a bytes"),
    (lambda model: model.fill([["a [MASK]"]]), "a text must be a str, not list"),
    (lambda model: model.fill(None), "fill takes a list of texts, not a NoneType"),
    (lambda model: model.fill("[MASK]", top_k="5"), "'5' is not a number of guesses; ask for 1 or more"),
    (lambda model: model.fill("[MASK]", top_k=True), "True is not a number of guesses; ask for 1 or more"),
    (lambda _: bw.load(None), "a model is named by a text or a path, not by None"),
    (lambda _: bw.load(""), "no model is named by an empty text; give a model or run folder"),
    (lambda _: bw.split_sentences(None), "a text must be a str, not NoneType"),
    (lambda model: model.embed([b"a"]), "must be a str"),
])  # fmt: skip
def test_wrong_arguments_are_user_errors(model, ask, words):
    with pytest.raises(UserError, match=words):
        ask(model)


def test_one_text_or_many(model, monkeypatch):
    """A text by itself gives a result, a list gives a list of the same, in batches of any size."""
    masked = ["the [MASK] sat", "[MASK] big [MASK]", "a [MASK] ran far away"]
    expected = [model.fill(text, top_k=3) for text in masked]
    follows = [model.nsp("the cat sat", text) for text in TEXTS if text]
    vectors = [model.embed(text) for text in TEXTS if text]
    for tokens_at_once in (1, 2_048):
        monkeypatch.setattr("bertworks.nn.attention._TOKENS_AT_ONCE", tokens_at_once)
        for found, alone in zip(model.fill(masked, top_k=3), expected, strict=True):
            assert [[guess["id"] for guess in mask] for mask in found] == [
                [one["id"] for one in mask] for mask in alone
            ]
            scores = [[[guess["score"] for guess in mask] for mask in each] for each in (found, alone)]
            np.testing.assert_allclose(*scores, atol=1e-6)
        texts = [text for text in TEXTS if text]
        np.testing.assert_allclose(model.nsp("the cat sat", texts), follows, atol=1e-6)
        np.testing.assert_allclose(model.nsp(["the cat sat"] * len(texts), texts), follows, atol=1e-6)
        np.testing.assert_allclose(model.embed(texts), vectors, atol=1e-6)
        np.testing.assert_allclose(model.embed(np.array(texts)), vectors, atol=1e-6)
    assert model.embed("the cat").shape == (16,)
    assert (model.fill([]), model.nsp([], "a"), model.nsp([], [])) == ([], [], [])


def test_an_empty_text_among_many_is_logged_with_its_number(model, caplog):
    assert len(model.embed(["the cat", "", "a", " \n"])) == 4
    assert caplog.messages == ["embed: 2 of 4 texts are empty (numbers 2, 4); their results mean nothing"]
    caplog.clear()
    assert model.fill(["", "the [MASK]"])[0] == []
    assert "fill: 1 of 2 texts is empty (number 1)" in caplog.text
    caplog.clear()
    model.embed([""] * 1_000)
    assert "1,000 of 1,000 texts are empty (numbers 1, 2, 3, 4, 5, ...)" in caplog.text


@pytest.mark.parametrize(("head", "ask"), [("classify", "classify"), ("tag", "tag")])
def test_tuned_models_take_one_text_or_many(tmp_path, caplog, head, ask):
    tuned = bw.load(write_small_model(tmp_path, {head: 3}, labels=["O", "B-X", "I-X"]), device="cpu")
    texts = ["the cat", "a dog ran far away"]
    for found, text in zip(getattr(tuned, ask)(texts), texts, strict=True):
        alone = getattr(tuned, ask)(text)
        assert str(found)[:30] == str(alone)[:30]
    assert not caplog.text
    getattr(tuned, ask)(["the cat", ""])
    assert f"{ask}: 1 of 2 texts is empty (number 2)" in caplog.text
    if ask == "classify":
        assert tuned.classify("the cat", "a dog")["scores"].keys() == {"O", "B-X", "I-X"}
        with pytest.raises(UserError, match="the text is empty; give one"):
            tuned.classify("")


def test_one_choice_or_many(tmp_path):
    tuned = bw.load(write_small_model(tmp_path, {"choose": 1}), device="cpu")
    endings = [["a cat", "a dog ran"], ["the mat", "far", "away"]]
    found = tuned.choose(["the", "a big"], endings)
    for one, context, some in zip(found, ["the", "a big"], endings, strict=True):
        assert one["scores"] == pytest.approx(tuned.choose(context, some)["scores"], abs=1e-6)
    with pytest.raises(UserError, match="2 contexts but 1 lists of endings"):
        tuned.choose(["the", "a"], endings[:1])


def test_using_a_model_leaves_the_callers_autograd_alone(model):
    weight = torch.ones(2, requires_grad=True)
    model.embed(TEXTS)
    model.features(TEXTS)
    assert not torch.is_inference_mode_enabled()
    weight.sum().backward()
    assert weight.grad.tolist() == [1, 1]


def test_a_saved_model_is_the_same_model(model, tmp_path):
    model.save(tmp_path / "saved")
    assert set(verify_manifest(tmp_path / "saved")) >= {
        "config.json",
        "model.safetensors",
        "vocab.txt",
        "bertworks.json",
    }
    again = bw.load(tmp_path / "saved", device="cpu")
    np.testing.assert_array_equal(again.embed(TEXTS), model.embed(TEXTS))
    assert again.fill("the [MASK]") == model.fill("the [MASK]")
    with pytest.raises(UserError, match="exists already"):
        model.save(tmp_path / "saved")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_near(model, tmp_path, dtype):
    half = bw.load(write_small_model(tmp_path), device="cpu", dtype=dtype)
    vectors, expected = half.embed(TEXTS, normalize=True), model.embed(TEXTS, normalize=True)
    assert vectors.dtype == np.float32
    assert ((vectors * expected).sum(1) > 0.999).all()
