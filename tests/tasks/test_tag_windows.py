"""Tagging with documents as context: each unit labelled once, with as much text beside it as a window can give."""

import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import UserError
from bertworks.tasks.conll import tag_labels
from bertworks.tasks.task import TagExample, words_example
from bertworks.tasks.windows import (
    NO_UNIT,
    decode_tags,
    encode_tags,
    most_central,
    overlapping,
    side_by_side,
    unit_labels,
)
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

LABELS = tag_labels(("PER", "LOC"))
WORDS = ["new", "york", "##er", "##s", "rain", "in", ".", "-", "서울", "##에", "##서", "은", "비"]
TOKENIZER = Tokenizer([*SPECIAL_TOKENS, *WORDS], strip_accents=False)
SOME_WORDS = st.sampled_from(["new", "yorkers", "rain", "rains.", "-", "unknown", "\x00", "😀", "서울에서", "----"])
TAGS = st.sampled_from(LABELS)
SENTENCE = st.lists(st.tuples(SOME_WORDS, TAGS), min_size=1, max_size=12)
DOCUMENTS = st.lists(st.lists(SENTENCE, min_size=1, max_size=5), min_size=1, max_size=4)


def examples_of(documents):
    made = []
    for document, sentences in enumerate(documents):
        for sentence in sentences:
            words, tags = zip(*sentence, strict=True)
            made.append(words_example(str(len(made)), words, tags, document))
    return made


def characters_example(text, tags):
    places = [place for place, character in enumerate(text) if character != " "]
    return TagExample("0", text, tuple((place, place + 1) for place in places), tuple(tags), 0)


def pieces_by_word(example):
    """As the original does: every word by itself."""
    return [TOKENIZER.encode(word).ids[1:-1] for word in example.words]


def right_answers(encoded):
    """What a perfect model would say."""
    for number, window in enumerate(encoded.windows):
        logits = np.zeros((len(window.positions), len(LABELS)), np.float32)
        logits[np.arange(len(window.positions)), window.targets] = 9
        yield number, logits


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(3, 20), st.booleans(), st.sampled_from(["document", "sentence"]))
def test_each_word_with_a_piece_is_labelled_once_by_its_first_piece(documents, max_length, is_training, context):
    examples = examples_of(documents)
    encoded = encode_tags(TOKENIZER, examples, LABELS, max_length=max_length, context=context, is_training=is_training)
    words = [(pieces, tag) for one in examples for pieces, tag in zip(pieces_by_word(one), one.tags, strict=True)]
    assert sorted(unit for window in encoded.windows for unit in window.units) == [
        unit for unit, (pieces, _) in enumerate(words) if pieces
    ]
    for window in encoded.windows:
        assert len(window.ids) <= max_length
        assert (window.ids[0], window.ids[-1]) == (TOKENIZER.id_of("[CLS]"), TOKENIZER.id_of("[SEP]"))
        for place, unit, target in zip(window.positions, window.units, window.targets, strict=True):
            pieces, tag = words[unit]
            assert window.ids[place] == pieces[0]
            assert LABELS[target] == tag
            room_behind = len(window.ids) - 1 - place
            assert window.ids[place:-1][: len(pieces)].tolist() == pieces[:room_behind]


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(3, 20))
def test_training_windows_are_the_document_cut_into_parts(documents, max_length):
    examples = examples_of(documents)
    for document in range(len(documents)):
        own = [one for one in examples if one.document == document]
        encoded = encode_tags(TOKENIZER, own, LABELS, max_length=max_length, is_training=True)
        laid = [id for one in own for pieces in pieces_by_word(one) for id in pieces]
        joined = [id for window in encoded.windows for id in window.ids[1:-1].tolist()]
        # A window in which no word starts, inside a word that is longer than a window, has nothing to learn from.
        assert joined == laid or (max_length < 8 and set(joined) <= set(laid))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(1, 15), st.data())
def test_no_other_window_has_more_text_on_the_poorer_side(num_pieces, room, data):
    stride = data.draw(st.integers(1, room))
    starts = overlapping(num_pieces, room, stride)
    assert all(0 <= start <= max(num_pieces - room, 0) for start in starts)
    chosen = most_central(np.arange(num_pieces), starts, room)
    for place, window in enumerate(chosen):
        contexts = [min(place - start, start + room - 1 - place) for start in starts]
        assert contexts[window] == max(contexts) >= 0
        assert window == contexts.index(max(contexts))


def test_words_far_from_the_ends_of_a_document_have_a_quarter_of_a_window_beside_them():
    examples = examples_of([[[("new", "O")] * 50] * 4])
    encoded = encode_tags(TOKENIZER, examples, max_length=42)
    for window in encoded.windows:
        for place, unit in zip(window.positions, window.units, strict=True):
            assert min(place - 1, len(window.ids) - 2 - place) >= min(9, unit, 199 - unit)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=20), st.integers(1, 15))
def test_cuts_are_at_sentences_unless_one_is_too_long(lengths, room):
    starts, num_pieces = np.cumsum([0, *lengths])[:-1], sum(lengths)
    cuts = side_by_side(num_pieces, room, starts, np.arange(num_pieces))
    assert (cuts[0], cuts[-1]) == (0, num_pieces)
    assert all(0 <= size <= room for size in np.diff(cuts))
    if max(lengths) * 2 <= room:
        assert set(cuts[:-1]) <= set(starts)


def test_training_windows_are_of_like_size():
    """A rest of a few words would be trained on without context."""
    examples = examples_of([[[("new", "O")] * 5] * 11])
    encoded = encode_tags(TOKENIZER, examples, LABELS, max_length=52, is_training=True)
    assert sorted(len(window.ids) - 2 for window in encoded.windows) == [25, 30]


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(3, 20), st.booleans())
def test_the_right_labels_come_back_in_the_order_of_the_input(documents, max_length, is_training):
    examples = examples_of(documents)
    encoded = encode_tags(TOKENIZER, examples, LABELS, max_length=max_length, is_training=is_training)
    found = decode_tags(encoded, unit_labels(encoded, right_answers(encoded))[0], LABELS)
    for example, tags in zip(examples, found, strict=True):
        assert tags == [
            tag if pieces else "O" for pieces, tag in zip(pieces_by_word(example), example.tags, strict=True)
        ]


def test_characters_inside_a_token_go_on_with_its_label():
    """KLUE: 서울 is one piece, 에 and 서 are pieces of their own, and each takes the tag of its first character."""
    example = characters_example("서울에서 비", ["B-LOC", "I-LOC", "O", "O", "O"])
    encoded = encode_tags(TOKENIZER, [example], LABELS, max_length=10, is_training=True)
    assert encoded.windows[0].units.tolist() == [0, 2, 3, 4]
    assert [LABELS[target] for target in encoded.windows[0].targets] == ["B-LOC", "O", "O", "O"]
    found = decode_tags(encoded, unit_labels(encoded, right_answers(encoded))[0], LABELS)
    assert found == [["B-LOC", "I-LOC", "O", "O", "O"]]


def test_an_unknown_word_labels_all_its_characters():
    example = characters_example("쀍쀍 비", ["B-PER", "I-PER", "O"])
    encoded = encode_tags(TOKENIZER, [example], LABELS, max_length=10)
    assert encoded.labelled_by.tolist() == [0, 0, 2]
    found = decode_tags(encoded, unit_labels(encoded, right_answers(encoded))[0], LABELS)
    assert found == [["B-PER", "I-PER", "O"]]


def test_pieces_outside_a_unit_do_not_label_it():
    """Neither text between units, nor a piece that ends where a unit without one begins."""
    between = TagExample("0", "\x00 rain", ((0, 1),), ("B-PER",), 0)
    assert encode_tags(TOKENIZER, [between], LABELS, max_length=10).labelled_by.tolist() == [NO_UNIT]
    beside = characters_example("new\x00", ["B-LOC", "I-LOC", "I-LOC", "O"])
    assert encode_tags(TOKENIZER, [beside], LABELS, max_length=10).labelled_by.tolist() == [0, 0, 0, NO_UNIT]


def test_sentences_of_other_documents_are_no_context():
    examples = examples_of([[[("new", "O")], [("rain", "O")]], [[("york", "O")]]])
    of_documents = encode_tags(TOKENIZER, examples, max_length=20)
    assert [len(window.ids) - 2 for window in of_documents.windows] == [2, 1]
    alone = encode_tags(TOKENIZER, examples, max_length=20, context="sentence")
    assert [len(window.ids) - 2 for window in alone.windows] == [1, 1, 1]


def test_scores_are_the_probabilities_of_the_best_labels():
    encoded = encode_tags(TOKENIZER, examples_of([[[("new", "O"), ("york", "O")]]]), max_length=9)
    logits = np.array([[1.0, 3.0, 2.0], [0.0, 0.0, 80.0]], np.float32)
    numbers, scores = unit_labels(encoded, [(0, logits)])
    expected = np.exp(logits.astype(np.float64))
    np.testing.assert_allclose(scores, (expected / expected.sum(1, keepdims=True)).max(1), rtol=1e-6)
    assert numbers.tolist() == [1, 2]


def test_nothing_to_label_is_no_error():
    assert encode_tags(TOKENIZER, [], LABELS, max_length=8).windows == []
    empty = [TagExample("0", "", (), (), 0), words_example("1", ["\x00"], ("O",), 0)]
    encoded = encode_tags(TOKENIZER, empty, LABELS, max_length=8)
    assert encoded.windows == []
    assert encoded.labelled_by.tolist() == [NO_UNIT]
    assert decode_tags(encoded, unit_labels(encoded, [])[0], LABELS) == [[], ["O"]]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_length": 2}, "max_length=2 is too small"),
        ({"max_length": 9, "stride": 8}, "stride=8 is not possible"),
        ({"max_length": 9, "stride": 0}, "allow 1 to 7"),
        ({"max_length": 9, "context": "book"}, "choose document or sentence"),
        ({"max_length": 9, "labels": ["O"]}, "sentence 0: 'B-PER' is not a label here; allowed: O"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, words):
    with pytest.raises(UserError, match=words):
        encode_tags(TOKENIZER, examples_of([[[("new", "B-PER")]]]), **settings)


def test_a_huge_sentence_is_cut_in_linear_time():
    """T9: one sentence of a megabyte; windows that searched all that came before would take minutes."""
    example = words_example("0", ["new", "york"] * 100_000, None, 0)
    began = time.perf_counter()
    encoded = encode_tags(TOKENIZER, [example], LABELS, max_length=512)
    assert sum(len(window.units) for window in encoded.windows) == 200_000
    assert len(encoded.windows) == 200_000 // 255
    assert time.perf_counter() - began < 20
