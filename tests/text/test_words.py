"""ELMo's tokens: whole words, and the characters of each, as the original numbers them."""

import itertools

import numpy as np
import pytest
import reference
from fuzz_texts import texts
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.errors import UserError
from bertworks.text.elmo_words import NUM_CHARACTERS, WordTokenizer, character_ids
from bertworks.text.learn import frequent_words
from bertworks.text.normalize import Rules

WORDS = ["the", "The", "river", "café", "cafe", "don", "'", "t", ".", "한국어", "東", "京", "a"]
CASED = Rules(lowercase=False, strip_accents=False)


@pytest.fixture(scope="module")
def tokenizer():
    return WordTokenizer(["<S>", "</S>", "<UNK>", *WORDS])


def characters_slowly(word):
    """The numbers of a word, 0 left for sentences that have ended."""
    bytes_or_mark = {"<S>": [256], "</S>": [257]}.get(word) or list(word.encode())[:48]
    numbers = [258, *bytes_or_mark, 259]
    return [number + 1 for number in numbers + [260] * (50 - len(numbers))]


# --- characters ------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(st.one_of(st.text(max_size=70), st.sampled_from(["<S>", "</S>", "<UNK>"])), max_size=8))
def test_characters_are_bytes_between_marks(words):
    table = character_ids(words)
    assert table.tolist() == [characters_slowly(word) for word in words]
    assert (table.dtype, table.shape) == (np.uint16, (len(words), 50))


def test_every_number_is_above_0_and_below_the_number_of_characters():
    table = character_ids(["<S>", "</S>", "", "\x00", "\U0010ffff" * 20])
    assert table.min() == 1
    assert table.max() < NUM_CHARACTERS == 262


def test_words_are_cut_at_48_bytes_even_inside_a_character():
    (row,) = character_ids(["a" + "한" * 20]).tolist()
    assert row[0] == 259
    assert row[-1] == 260
    assert bytes(number - 1 for number in row[1:-1]) == ("a" + "한" * 20).encode()[:48]


def test_a_lone_surrogate_has_no_bytes():
    assert character_ids(["a\ud800b"]).tolist() == character_ids(["ab"]).tolist()


# --- the list --------------------------------------------------------------------------------------------------------


def test_the_list_has_the_most_frequent_words_by_frequency_and_then_by_spelling():
    counts = [("a", 5), ("b", 9), ("c", 5), ("d", 1), ("e" * 201, 99), ("f", 3)]
    assert frequent_words(counts, 6, 1) == ["<S>", "</S>", "<UNK>", "b", "a", "c"]
    assert frequent_words(counts, 100, 4) == ["<S>", "</S>", "<UNK>", "b", "a", "c"]


@pytest.mark.parametrize("missing", ["<S>", "</S>", "<UNK>"])
def test_a_list_without_its_special_words_is_a_user_error(missing):
    with pytest.raises(UserError, match=f"has no '?{missing}"):
        WordTokenizer([word for word in ["<S>", "</S>", "<UNK>", *WORDS] if word != missing])


# --- texts -----------------------------------------------------------------------------------------------------------


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(texts)
def test_tokens_are_the_words_of_berts_rules_where_they_are_in_the_list(tokenizer, text):
    words = reference.split_words(text, *CASED)
    expected = [word if word in WORDS else "<UNK>" for word in words]
    assert tokenizer.encode(text).tokens == ["<S>", *expected, "</S>"]
    assert tokenizer.tokenize(text) == expected


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(st.lists(texts, max_size=6))
def test_many_texts_at_once_give_the_ids_of_each(tokenizer, batch):
    ids, counts = tokenizer.ids_of(batch)
    each = [tokenizer.encode(text).ids[1:-1] for text in batch]
    assert (ids.tolist(), counts.tolist()) == (list(itertools.chain(*each)), list(map(len, each)))


def test_offsets_and_word_numbers(tokenizer):
    text = "The  café."
    encoding = tokenizer.encode(text)
    assert [text[start:end] for start, end in encoding.offsets] == ["", "The", "café", ".", ""]
    assert encoding.word_ids == [None, 0, 1, 2, None]
    assert encoding.segment_ids == [0] * 5


def test_special_words_written_in_a_text_are_text(tokenizer):
    assert tokenizer.tokenize("<S> </S>") == ["<UNK>"] * 7


def test_decoding_gives_readable_text(tokenizer):
    ids = tokenizer.encode("The river don't.").ids
    assert tokenizer.decode(ids) == "The river don't."
    assert tokenizer.decode(ids, keep_special=True).startswith("<S>")
    with pytest.raises(UserError, match="id 16 is not in the vocabulary of 16 pieces"):
        tokenizer.decode([16])


@pytest.mark.parametrize("rules", [CASED, Rules(), Rules(True, False, False)])
def test_what_is_saved_opens_as_it_was(tmp_path, rules):
    WordTokenizer(["<S>", "</S>", "<UNK>", *WORDS], rules).save(tmp_path / "words")
    opened = WordTokenizer.from_folder(tmp_path / "words")
    assert opened.pieces == ["<S>", "</S>", "<UNK>", *WORDS]
    assert opened.rules == rules
    (tmp_path / "words" / "tokenizer_config.json").unlink()
    assert WordTokenizer.from_folder(tmp_path / "words").rules == CASED
