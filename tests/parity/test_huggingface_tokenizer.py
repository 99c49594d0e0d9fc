"""T3: where transformers' BertTokenizerFast departs from google-research/bert, and so from us, and where it does not.

Both sides are asserted, so that a change in either is noticed. Ours is the original's (test_golden_tokenizer.py).
"""

import pytest

from bertworks import Tokenizer

transformers = pytest.importorskip("transformers", reason="NO COMPARISON WITH TRANSFORMERS: it is not installed")


@pytest.fixture(scope="module")
def ours(pieces):
    return Tokenizer(pieces)


@pytest.fixture(scope="module")
def theirs(ours, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    ours.save(folder)
    return transformers.BertTokenizerFast.from_pretrained(folder)


def inside(char):
    """The tokens of `a{char}b` where the character is a letter, where it is not there, and where it is a word."""
    return {"letter": ["a", "##" + char, "##b"], "dropped": ["a", "##b"], "word": ["a", char, "b"], "space": ["a", "b"]}


@pytest.mark.parametrize(
    ("length", "is_known_to_us", "is_known_to_them"),
    [
        (99, True, True),
        (100, True, True),
        (101, True, False),
        (150, True, False),
        (199, True, False),
        (200, True, False),
        (201, False, False),
        (1_000, False, False),
    ],
)
def test_words_are_unknown_from_201_characters_with_us_and_from_101_with_them(
    ours, theirs, length, is_known_to_us, is_known_to_them
):
    assert (ours.tokenize("a" * length) != ["[UNK]"]) == is_known_to_us
    assert (theirs.tokenize("a" * length) != ["[UNK]"]) == is_known_to_them


@pytest.mark.parametrize("point", [*range(0x2B820, 0x2B920, 24), 0x2B91F])
def test_an_ideograph_of_extension_e_is_a_word_with_us_and_a_letter_with_them_in_its_first_256(ours, theirs, point):
    char = chr(point)
    assert ours.tokenize(f"a{char}b") == inside(char)["word"]
    assert theirs.tokenize(f"a{char}b") == inside(char)["letter"]


@pytest.mark.parametrize("point", [0x3400, 0x4E00, 0x9FFF, 0x20000, 0x2B73F, 0x2B740, 0x2B81F, 0x2B920, 0x2CEAF])
def test_all_other_ideographs_are_words_with_both(ours, theirs, point):
    char = chr(point)
    assert ours.tokenize(f"a{char}b") == theirs.tokenize(f"a{char}b") == inside(char)["word"]


@pytest.mark.parametrize("char", ["\ue000", "\ue00f", "\uf8ff", "\U0010fffd"])
def test_private_characters_are_letters_with_us_and_dropped_with_them(ours, theirs, char):
    assert ours.tokenize(f"a{char}b") == inside(char)["letter"]
    assert theirs.tokenize(f"a{char}b") == inside(char)["dropped"]


@pytest.mark.parametrize("char", ["\u0378", "\u0379", "\u2fe0", "\U0002ceb0"])
def test_unassigned_characters_are_letters_with_both(ours, theirs, char):
    assert ours.tokenize(f"a{char}b") == theirs.tokenize(f"a{char}b") == inside(char)["letter"]


@pytest.mark.parametrize("text", ["ΟΔΟΣ", "ΟΔΟΣ.", "ΣΑΣ ΣΑΣ", "Α\u0301Σ", "ΑΣ1", "ΑΣ\u00ad"])
def test_a_final_capital_sigma_is_final_with_us_only(ours, theirs, text):
    expected = ours.tokenize(text)
    assert "##ς" in expected
    assert theirs.tokenize(text) == [token.replace("ς", "σ") for token in expected]


@pytest.mark.parametrize("text", ["Σ", "ΑΣ'Α", "1Σ", "οδός"])
def test_other_sigmas_are_alike(ours, theirs, text):
    assert ours.tokenize(text) == theirs.tokenize(text)


@pytest.mark.parametrize("token", ["[MASK]", "[CLS]", "[SEP]", "[PAD]", "[UNK]"])
def test_a_special_token_in_a_text_is_text_with_us_and_a_command_with_them(ours, theirs, token):
    assert token not in ours.tokenize(f"a {token} b")
    assert ours.tokenize(token)[0] == "["
    assert theirs.tokenize(f"a{token}b") == ["a", token, "b"]


@pytest.mark.parametrize("text", ["[mask]", "[Mask]", "[unused1]", "[ MASK ]", "##ing", "<mask>"])
def test_what_only_looks_like_a_special_token_is_text_with_both(ours, theirs, text):
    assert ours.tokenize(text) == theirs.tokenize(text)


@pytest.mark.parametrize("char", ["\x85", "\x1c", "\v", "\0", "\ufffd", "\xad", "\u200b", "\ufeff", "\u0301"])
def test_controls_are_dropped_with_both(ours, theirs, char):
    assert ours.tokenize(f"a{char}b") == theirs.tokenize(f"a{char}b") == inside(char)["dropped"]


@pytest.mark.parametrize("char", ["\u2028", "\u2029", "\xa0", "\u3000", "\t", "\r"])
def test_line_and_paragraph_separators_split_with_both(ours, theirs, char):
    assert ours.tokenize(f"a{char}b") == theirs.tokenize(f"a{char}b") == inside(char)["space"]


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb"])
def test_lone_surrogates_are_unknown_with_us_and_an_error_with_them(ours, theirs, text):
    assert ours.tokenize(text) == ["[UNK]"]
    with pytest.raises(TypeError):
        theirs.tokenize(text)


@pytest.mark.parametrize(
    ("char", "with_us", "with_them"),
    [("\u1dfa", "dropped", "letter"), ("\u2e52", "word", "letter"), ("\u2e5d", "word", "letter")],
)
def test_they_know_only_the_accents_and_punctuation_of_an_older_unicode(ours, theirs, char, with_us, with_them):
    assert ours.tokenize(f"a{char}b") == inside(char)[with_us]
    assert theirs.tokenize(f"a{char}b") == inside(char)[with_them]
