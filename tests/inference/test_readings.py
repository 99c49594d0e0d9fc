"""Readings: what several callers ask of a model is computed together, and each gets what it would get alone."""

import numpy as np
import pytest
from small_models import write_small_elmo, write_small_gpt, write_small_model

import bertworks as bw
from bertworks.inference import readings
from bertworks.tasks.conll import tag_labels
from bertworks.tasks.task import ChoiceExample, TextExample
from bertworks.text.tokenizer import kept_lengths

TEXTS = ["the cat sat on the mat", "a dog", "big cats ran far away, the small dog!", "dogs"]


def open_small(folder, heads=None, write=write_small_model, **options):
    return bw.load(write(folder, heads, **options) if heads else write(folder, **options), device="cpu")


def together(model, first, second):
    """Compute two readings in one go, their units mixed, and answer each."""
    assert first.key == second.key
    units = [*second.units, *first.units]
    rows = readings.compute(model, first.key, units)
    return first.answer(rows[len(second.units) :]), second.answer(rows[: len(second.units)])


def agree(found, expected):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            agree(found[key], value)
    elif isinstance(expected, list | tuple):
        assert len(found) == len(expected)
        for pair in zip(found, expected, strict=True):
            agree(*pair)
    elif isinstance(expected, float | np.ndarray):
        np.testing.assert_allclose(found, expected, atol=1e-6)
    else:
        assert found == expected or type(expected).__name__ == "Encoding"


@pytest.mark.parametrize("write", [write_small_model, write_small_gpt, write_small_elmo])
def test_vectors_and_features_of_two_callers(tmp_path, write):
    model = open_small(tmp_path, write=write)
    texts = [text[:18] for text in TEXTS]  # a small GPT-1 reads each letter
    read = [readings.read_embed(model, some) for some in (texts[:3], texts[3:])]
    for found, expected in zip(together(model, *read), (model.embed(texts[:3]), model.embed(texts[3:])), strict=True):
        agree(found, expected)
    read = [readings.read_features(model, some, [1, -1], truncate=False) for some in (texts[:1], texts[1:])]
    expected = [model.features(some, layers=[1, -1]) for some in (texts[:1], texts[1:])]
    agree(list(together(model, *read)), expected)


def test_masks_and_next_sentences_of_two_callers(tmp_path):
    model = open_small(tmp_path)
    one, other = ["the [MASK] sat", "a [MASK] [MASK]"], ["[MASK]"]
    read = (
        readings.read_fill(model, one, 3, None, truncate=False),
        readings.read_fill(model, other, 2, ["cat", "dog"], truncate=False),
    )
    agree(list(together(model, *read)), [model.fill(one, 3), model.fill(other, 2, targets=["cat", "dog"])])
    read = [readings.read_nsp(model, some, "the mat", truncate=False) for some in (TEXTS[:2], TEXTS[2:])]
    agree(list(together(model, *read)), [model.nsp(some, "the mat") for some in (TEXTS[:2], TEXTS[2:])])


def test_tags_and_answers_of_two_callers(tmp_path):
    labels = list(tag_labels(("PER", "LOC")))
    model = open_small(tmp_path / "tag", {"tag": len(labels)}, labels=labels)
    long = "the cat sat. " * 30
    read = [readings.read_tagging(model, some, None) for some in ([long, ""], TEXTS)]
    agree(list(together(model, *read)), [model.tag([long, ""]), model.tag(TEXTS)])
    model = open_small(tmp_path / "span", {"span": 2})
    read = (
        readings.read_answering(model, ["the cat", "dog"], [long, ""]),
        readings.read_answering(model, ["a"], TEXTS[2]),
    )
    agree(list(together(model, *read)), [model.answer(["the cat", "dog"], [long, ""]), model.answer(["a"], TEXTS[2])])


@pytest.mark.parametrize(
    ("heads", "about"),
    [({"classify": 3}, {}), ({"classify": 1}, {}), ({"classify": 2}, {"problem": "multilabel"}), ({"choose": 1}, {})],
)
def test_classes_scores_labels_and_endings_of_two_callers(tmp_path, heads, about):
    model = open_small(tmp_path, heads, about=about)
    if "choose" in heads:
        sets = [
            [ChoiceExample("", "the cat", tuple(TEXTS), None)],
            [ChoiceExample("", one, ("a", "b"), None) for one in TEXTS],
        ]
    else:
        sets = [[TextExample("", text, None, None) for text in some] for some in (TEXTS[:1], TEXTS)]
    read = [readings.read_examples(model, some, model.task) for some in sets]
    agree(list(together(model, *read)), [list(model.results(some)) for some in sets])


def test_a_long_text_is_read_as_far_as_it_is_kept(tmp_path):
    tokenizer = open_small(tmp_path).tokenizer
    cls, sep = tokenizer.id_of("[CLS]"), tokenizer.id_of("[SEP]")
    for text in (
        "the cats sat, far away! " * 1_000,
        "the cat." * 3_000,
        "한" * 30_000,
        "a" * 50_000 + " the cat " * 40,
    ):
        own = tokenizer.columns_of(text).ids
        for pair in (None, "the dog", text):
            second = None if pair is None else tokenizer.columns_of(pair).ids
            kept, of_second = kept_lengths(len(own), second and len(second), 40, "longest_first")
            expected = [cls, *own[:kept], sep, *([*second[:of_second], sep] if second else [])]
            assert tokenizer.encode(text, pair, max_length=40).ids == expected
    seen = []
    split = tokenizer.split
    tokenizer.split = lambda word: seen.append(word) or split(word)
    tokenizer.encode("the cat " * 100_000, max_length=40)
    assert len(seen) == 40
