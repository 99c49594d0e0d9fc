"""`Model.tag` and the command: entities with their places, in texts of any length."""

import json

import pytest
import torch
from small_models import write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.inference.heads import Tagged, read_tags
from bertworks.tasks.conll import tag_labels
from bertworks.tasks.evaluation import score_items
from bertworks.tasks.heads import KINDS

LABELS = list(tag_labels(("PER", "LOC")))
TEXTS = ["The big cats ran far away!", "", "a dog\nsat, on the mat", "\x00", "the 😀 dog"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("ner"), {"tag": len(LABELS)}, labels=LABELS)


@pytest.fixture(scope="module")
def model(folder):
    return bw.load(folder, device="cpu")


def best_labels(model, text):
    """The best label of each token of a text that fits the model, by the plainest way."""
    encoding = model.tokenizer.encode(text)
    with torch.no_grad():
        logits = model.net.heads["tag"](model.net(model.pack([encoding.ids], [encoding.segment_ids])))
    shares, numbers = logits.softmax(-1).max(-1)
    return encoding, [LABELS[number] for number in numbers.tolist()], shares.tolist()


def tag_texts(model, texts):
    """The tags of every unit, of which `Model.tag` shows the entities."""
    items, tagged = read_tags(model, texts)
    return tagged(score_items(model.net, KINDS["tag"], items, model.layout).rows)


def test_words_have_the_label_of_their_first_piece(model):
    for text, tagged in zip(TEXTS, tag_texts(model, TEXTS), strict=True):
        encoding, labels, shares = best_labels(model, text)
        firsts = {}
        for place, word in enumerate(encoding.word_ids):
            if word is not None:
                firsts.setdefault(word, place)
        assert tagged.tags == [labels[place] for place in firsts.values()]
        assert tagged.scores == pytest.approx([shares[place] for place in firsts.values()], abs=1e-5)
        assert [start for start, _ in tagged.spans] == [encoding.offsets[place][0] for place in firsts.values()]


def test_entities_are_slices_of_the_text(model):
    found = model.tag(TEXTS)
    assert len(found) == len(TEXTS)
    assert sum(map(len, found)) > 3
    for text, entities in zip(TEXTS, found, strict=True):
        for entity in entities:
            assert text[entity["start"] : entity["end"]] == entity["text"] != ""
            assert entity["type"] in ("PER", "LOC")
            assert 0 < entity["score"] <= 1
        assert [one["text"] for one in model.tag(text)] == [one["text"] for one in entities]


def test_words_given_as_a_list_are_tagged_each(model):
    words = ["The", "cats!", "", "\x00", "ran", "unheard-of"]
    (tagged,) = tag_texts(model, [words])
    assert len(tagged.tags) == len(words)
    assert tagged.tags[2:4] == ["O", "O"]
    assert tagged.text == " ".join(words)
    assert [tagged.text[start:end] for start, end in tagged.spans] == words


def test_a_text_of_many_windows_has_a_tag_for_every_word(model):
    text = "the big cats sat on a small mat. " * 40
    (tagged,) = tag_texts(model, [text])
    assert len(tagged.tags) == 40 * 9
    windows = model.tag(text)
    assert windows[-1]["end"] > len(text) // 2


def test_characters_are_units_where_the_model_learnt_so(tmp_path):
    folder = write_small_model(tmp_path, {"tag": len(LABELS)}, labels=LABELS, about={"units": "character"})
    model = bw.load(folder, device="cpu")
    assert model.tag("the cats") == model.tag("the cats", units="character")
    (tagged,) = tag_texts(model, ["the cats"])
    assert len(tagged.spans) == 7
    _, labels, _ = best_labels(model, "the cats")
    assert tagged.tags[0] == labels[1]
    assert tagged.tags[1] == labels[1].replace("B-", "I-")
    assert tagged.tags[6] == labels[3]


@pytest.mark.parametrize(
    ("labels", "tags", "expected"),
    [
        (["O", "B-X", "I-X"], ["B-X", "I-X", "O", "I-X"], [("X", "aa bb", 0.75), ("X", "dd", 0.25)]),
        (["O", "S-X", "B-X", "E-X"], ["S-X", "O", "B-X", "E-X"], [("X", "aa", 1), ("X", "cc dd", 0.375)]),
        (["O", "NOUN"], ["NOUN", "NOUN", "O", "O"], [("NOUN", "aa", 1), ("NOUN", "bb", 0.5)]),
    ],
)
def test_entities_by_the_form_of_the_labels(labels, tags, expected):
    spans = ((0, 2), (3, 5), (6, 8), (9, 11))
    found = Tagged("aa bb cc dd", spans, tags, [1.0, 0.5, 0.5, 0.25]).entities(labels)
    assert [(one["type"], one["text"], one["score"]) for one in found] == expected


def test_a_folder_without_label_names_numbers_them(tmp_path):
    folder = write_small_model(tmp_path, {"tag": 2})
    assert {entity["type"] for entity in bw.load(folder, device="cpu").tag("the cat sat")} <= {"LABEL_0", "LABEL_1"}


@pytest.mark.parametrize(
    ("texts", "options", "words"),
    [
        (["the"], {"units": "sentence"}, "choose word or character"),
        ([3], {}, "must be a str, not int"),
        ([["the", None]], {}, "must be a str, not NoneType"),
    ],
)
def test_what_cannot_be_tagged_is_refused(model, texts, options, words):
    with pytest.raises(UserError, match=words):
        model.tag(texts, **options)


def test_a_model_without_the_head_says_so(tmp_path):
    model = bw.load(write_small_model(tmp_path), device="cpu")
    with pytest.raises(UserError, match="cannot tag: it has no tag head"):
        model.tag("the")
    with pytest.raises(UserError, match="cannot answer questions: it has no span head"):
        model.answer("the", "cat")


def test_the_command_prints_entities_a_text(bertworks, folder, model):
    code, out, err = bertworks("tag", folder, TEXTS[0], TEXTS[2], "--json")
    assert (code, err) == (0, "")
    assert [json.loads(line) for line in out.splitlines()] == model.tag([TEXTS[0], TEXTS[2]])
    _, out, _ = bertworks("tag", folder, TEXTS[0])
    first, *lines = out.splitlines()
    assert first == TEXTS[0]
    for line, entity in zip(lines, model.tag(TEXTS[0]), strict=True):
        assert line.endswith(f"{entity['type']}  {entity['text']}  ({entity['start']}-{entity['end']})")
    assert bertworks("tag", folder, "the", "--units", "page")[0] == 2
