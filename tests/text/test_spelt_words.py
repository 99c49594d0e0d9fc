"""Words numbered as they are met: what tasks want of a tokenizer, and how each word is spelt."""

import random

import numpy as np
import pytest

from bertworks.errors import UserError
from bertworks.tasks.windows import pieces_of
from bertworks.text.elmo_words import SeenWords, SpelledTokenizer, WordTokenizer, character_ids
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import CLS, SEP, SPECIAL_TOKENS

LIST = ["<S>", "</S>", "<UNK>", "the", "cat"]
LETTERS = "abc ,.<S>/\u00e9\ud55c"


@pytest.fixture
def tokenizer():
    return SpelledTokenizer(WordTokenizer(LIST))


def texts(count, seed=0):
    rng = random.Random(seed)
    return ["".join(rng.choice(LETTERS) for _ in range(rng.randrange(30))) for _ in range(count)]


def test_every_word_has_a_number_of_its_own_in_the_list_or_not(tokenizer):
    encoding = tokenizer.encode("the zebra, the giraffe")
    assert encoding.tokens == ["<S>", "the", "zebra", ",", "the", "giraffe", "</S>"]
    assert encoding.ids == [0, 2, 3, 4, 2, 5, 1]
    assert tokenizer.encode("giraffe zebra").ids == [0, 5, 3, 1]


def test_the_words_are_those_of_the_list_tokenizer_with_their_places(tokenizer):
    listed = WordTokenizer(LIST)
    for text in texts(200):
        encoding = tokenizer.encode(text)
        assert encoding.tokens == listed.words(text)
        assert encoding.offsets == listed.encode(text).offsets
        assert encoding.word_ids == listed.encode(text).word_ids


@pytest.mark.parametrize("max_length", [3, 5, 8, None])
def test_pairs_are_laid_and_cut_as_berts_are(tokenizer, max_length):
    """On words that are one piece each the two tokenizers differ in nothing but numbers."""
    words = ["a", "b", "c", "ab", "the", "cat"]
    bert, rng = Tokenizer([*SPECIAL_TOKENS, *words]), random.Random(1)
    firsts, seconds = ([" ".join(rng.choices(words, k=rng.randrange(7))) for _ in range(40)] for _ in range(2))
    for pairs in (None, seconds):
        ours, theirs = (one.encode_batch(firsts, pairs, max_length) for one in (tokenizer, bert))
        for mine, yours in zip(ours, theirs, strict=True):
            signs = {"<S>": CLS, "</S>": SEP}
            assert [signs.get(token, token) for token in mine.tokens] == yours.tokens
            assert (mine.segment_ids, mine.offsets) == (yours.segment_ids, yours.offsets)


def test_pieces_for_windows_have_places_and_boundaries_have_numbers(tokenizer):
    (found,) = pieces_of(tokenizer, ["the  zebra."])
    assert [(int(start), int(end)) for start, end in zip(found.starts, found.ends, strict=True)] == [
        (0, 3),
        (5, 10),
        (10, 11),
    ]
    assert (tokenizer.id_of(CLS), tokenizer.id_of(SEP)) == (0, 1) == (tokenizer.id_of("<S>"), tokenizer.id_of("</S>"))


def test_no_text_can_spell_a_sign(tokenizer):
    for text in ("<S>", "</S> [CLS]", "<S></S>", "<s>"):
        assert tokenizer.encode(text).ids[1:-1].count(0) == tokenizer.encode(text).ids[1:-1].count(1) == 0


def test_the_table_grows_with_the_words_and_spells_them():
    met = SeenWords()
    assert np.array_equal(met.characters(), character_ids(["<S>", "</S>"]))
    assert [met.id_of(word) for word in ("zebra", "cat", "zebra")] == [2, 3, 2]
    before = met.characters()
    assert met.characters() is before, "nothing new, nothing made"
    met.id_of("\ud55c\uad6d")
    assert np.array_equal(met.characters(), character_ids(["<S>", "</S>", "zebra", "cat", "\ud55c\uad6d"]))
    assert np.array_equal(met.characters()[:4], before)


def test_words_that_are_spelt_alike_as_far_as_is_read_are_one_and_take_no_more_room():
    met = SeenWords()
    assert met.id_of("x" * 100_000) == met.id_of("x" * 48 + "y")
    assert met.id_of("x" * 47 + "y") != met.id_of("x" * 48)
    assert max(map(len, met.words)) == 48


def test_a_checksum_tells_words_apart_that_have_the_same_numbers():
    digests = set()
    for words in (["a", "b"], ["b", "a"], ["a"], ["ab"], ["a", "\ud800"]):
        met = SeenWords()
        for word in words:
            met.id_of(word)
        digests.add(met.digest())
    assert len(digests) == 5


def test_the_list_and_its_rules_are_saved_and_not_what_was_met(tokenizer, tmp_path):
    tokenizer = SpelledTokenizer(WordTokenizer(LIST, Rules(lowercase=True, strip_accents=True)))
    tokenizer.encode("a zebra")
    tokenizer.save(tmp_path)
    again = SpelledTokenizer.from_folder(tmp_path)
    assert (len(again), len(again.met), again.rules) == (len(LIST), 2, tokenizer.rules)
    assert again.encode("The Caf\u00e9").tokens == ["<S>", "the", "cafe", "</S>"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("a text",), "takes a list of texts"),
        (([3],), "must be a str"),
        ((["a"], ["b", "c"]), "1 text but 2 pairs"),
        ((["a"], ["b"], 2), "max_length=2 is too small"),
    ],
)
def test_what_is_no_text_is_refused(tokenizer, arguments, said):
    with pytest.raises(UserError, match=said):
        tokenizer.encode_batch(*arguments)
