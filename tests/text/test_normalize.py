"""Words and places of `normalize.py`, against the rules restated on whole strings (reference.py)."""

import itertools
import sys
import unicodedata

import pytest
import reference
from fuzz_texts import texts
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks import Tokenizer
from bertworks.text.normalize import ALONE, LETTERS, MARK, Alphabet, Rules, is_cjk, is_punctuation, split_words

ALL_RULES = [Rules(*values) for values in itertools.product((True, False), repeat=3)]
ALPHABETS = {rules: Alphabet(rules) for rules in ALL_RULES}
DEFAULT = Rules()
EVERY_NTH_POINT = 73


def words_of(text, rules=DEFAULT):
    return [word.text for word in split_words(text, ALPHABETS[rules])]


def reference_words(text, rules):
    return reference.split_words(text, rules.lowercase, rules.strip_accents, rules.split_cjk)


def places_of(text, rules=DEFAULT):
    return [(word.text, word.starts, word.ends) for word in split_words(text, ALPHABETS[rules])]


# -- T2: every code point


def settings_around(char):
    """One text with a character alone, inside a word, doubled, and on each side of a capital sigma."""
    return f"{char} a{char}b {char}{char} A{char}Σ Σ{char} AΣ{char} AΣ{char}A {char}Σ e\u302e{char}\U00016ff0"


def differences(points, rules, encode_compiled):
    """Code points whose tokens differ from the reference's, in either way through the tokenizer."""
    around = [settings_around(chr(point)) for point in points]
    expected = [reference_words(text, rules) for text in around]
    letters = sorted({letter for words in expected for word in words for letter in word})
    tokenizer = Tokenizer(
        ["[UNK]", "[CLS]", "[SEP]", *letters, *("##" + letter for letter in letters)],
        lowercase=rules.lowercase,
        strip_accents=rules.strip_accents,
        split_cjk=rules.split_cjk,
    )
    tokens = [
        ["[CLS]", *(c if not i else "##" + c for w in words for i, c in enumerate(w)), "[SEP]"] for words in expected
    ]
    plain = [tokenizer.encode(text).tokens for text in around]
    compiled = [encoding.tokens for encoding in encode_compiled(tokenizer, around)]
    return [hex(point) for point, *ways in zip(points, plain, compiled, tokens, strict=True) if ways != [ways[-1]] * 3]


def sampled_points(first):
    """Every 73rd code point, but of the private and unassigned ones, which all are alike, a sixteenth of these."""
    points = range(first, sys.maxunicode + 1, EVERY_NTH_POINT)
    is_rare = [unicodedata.category(chr(point)) in ("Co", "Cn") for point in points]
    return [point for number, point in enumerate(points) if number % 16 == 0 or not is_rare[number]]


@pytest.mark.parametrize("number", range(len(ALL_RULES)))
def test_sampled_code_points_give_the_tokens_of_the_reference(number, encode_compiled):
    # T2. Each combination of rules begins elsewhere, so together they see eight points of every 73.
    assert differences(sampled_points(5 * number), ALL_RULES[number], encode_compiled) == []


@pytest.mark.nightly
@pytest.mark.parametrize("rules", ALL_RULES, ids=str)
@pytest.mark.parametrize("plane", range(17))
def test_every_code_point_gives_the_tokens_of_the_reference(plane, rules, encode_compiled):
    # T2. All of them under the rules of the published models, every fifth under the others.
    step = 1 if rules in (Rules(), Rules(lowercase=False, strip_accents=False)) else 5
    assert differences(range(plane << 16, (plane + 1) << 16, step), rules, encode_compiled) == []


@pytest.mark.parametrize("rules", ALL_RULES, ids=str)
def test_letters_of_one_character_are_as_the_single_pass_assumes(rules):
    """One word or several letters, never both; and letters that may move come last: else the pass needs more cases."""
    end, step = (0x32000, 1) if rules == Rules() else (sys.maxunicode + 1, EVERY_NTH_POINT)
    for point in range(0, end, step):
        kind, _, letters, orders, stops_reordering = Alphabet(rules).classify(chr(point))
        assert len(letters) <= 3
        assert len(letters) == 1 or kind is not ALONE
        assert kind is ALONE or not any(map(is_punctuation, letters))
        assert not orders or tuple(map(unicodedata.combining, letters))[-len(orders) :] == orders
        assert kind is not LETTERS or stops_reordering == (len(orders) < len(letters))


# -- against the reference on whole texts


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(texts, st.sampled_from(ALL_RULES))
def test_words_are_those_of_the_reference(text, rules):
    assert words_of(text, rules) == reference_words(text, rules)


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(texts)
def test_words_of_joined_words_are_the_same_words(text):
    once = words_of(text)
    assert words_of(" ".join(once)) == once  # T6


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(texts, texts, st.sampled_from(ALL_RULES))
def test_white_space_separates_texts_completely(first, second, rules):
    assert words_of(f"{first} {second}", rules) == words_of(first, rules) + words_of(second, rules)  # T6


# -- one claim per rule of the original


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hello, World!", ["hello", ",", "world", "!"]),
        ("a\tb\nc\rd e\u3000f", list("abcdef")),
        ("a\u2028b\u2029c", ["a", "b", "c"]),  # not cleaned, but split
        ("a\x85b\x1cc\u200bd\xade", ["abcde"]),  # control and format characters are not there
        ("a\0b\ufffdc", ["abc"]),
        ("$5^2=25`~", ["$", "5", "^", "2", "=", "25", "`", "~"]),
        ("5€ ¬x ©", ["5€", "¬x", "©"]),  # symbols beyond ASCII are letters
        ("x\u2018y\u2019\u3002z", ["x", "\u2018", "y", "\u2019", "\u3002", "z"]),
        ("漢字kana\u304bな", ["漢", "字", "kana\u304bな"]),
        ("\ufa1a", ["\u7965"]),  # a compatibility ideograph is decomposed
        ("Ünïcödé", ["unicode"]),
        ("İSTANBUL ŒUVRE ﬀ Straße", ["istanbul", "œuvre", "ﬀ", "straße"]),
        ("각", ["\u1100\u1161\u11a8"]),
        ("≠≮;", ["=", "<", ";"]),  # accents off and canonical decomposition may leave punctuation
        ("[MASK] ##ing", ["[", "mask", "]", "#", "#", "ing"]),
        ("\u0301 a\u0903\u20dd", ["a\u0903\u20dd"]),  # Mn is an accent, Mc and Me are not
        ("\ud800\udc00x", ["\ud800\udc00x"]),
        ("", []),
        (" \u0301\0", []),
    ],
)
def test_default_rules(text, words):
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("ΟΔΟΣ", ["οδος"]),
        ("ΟΔΟΣ.", ["οδος", "."]),  # a full stop is looked through, and nothing comes behind it
        ("ΣΑΣ ΣΑΣ", ["σας", "σας"]),
        ("Σ", ["σ"]),
        ("ΑΣ'Α", ["ασ", "'", "α"]),
        ("ΑΣ'", ["ας", "'"]),
        ("Α'Σ", ["α", "'", "ς"]),
        ("Α\u00adΣ\u00ad", ["ας"]),
        ("Α\u0301Σ\u0301", ["ας"]),
        ("ΑΣ漢Α", ["ας", "漢", "α"]),  # CJK is white space to its neighbours
        ("1Σ", ["1σ"]),
        ("ΑΣ1", ["ας1"]),
        ("Α\0ΣΑ", ["ασα"]),
        ("A\u02b0Σ", ["a\u02b0ς"]),  # cased, yet looked through
    ],
)
def test_capital_sigma_is_final_where_python_says_so(text, words):
    assert words_of(text) == words


def test_combining_letters_are_put_into_canonical_order_and_marks_stop_them():
    low, high = "\U00016ff0", "\u302e"  # classes 6 and 224; neither is an accent
    assert words_of(f"a{high}{low}b") == [f"a{low}{high}b"]
    assert words_of(f"a{high}\u0301{low}") == [f"a{low}{high}"]  # an accent between them is dropped
    assert words_of(f"a{high}\u034f{low}") == [f"a{high}{low}"]  # one of class 0 stops them first
    assert words_of(f"a{high}\0{low}") == [f"a{low}{high}"]
    assert words_of(f"a{high} {low}") == [f"a{high}", low]
    assert words_of(f"a{high}-{low}") == [f"a{high}", "-", low]
    assert words_of(f"\U0001d15f{low}") == ["\U0001d158" + low + "\U0001d165"]  # a decomposition takes part
    assert words_of(f"a{high}{low}", Rules(strip_accents=False)) == [f"a{high}{low}"]


def test_each_rule_can_be_switched_off_alone():
    text = "É漢"
    words = {rules: words_of(text, rules) for rules in ALL_RULES}
    assert words[Rules()] == ["e", "漢"]
    assert words[Rules(lowercase=False)] == ["E", "漢"]
    assert words[Rules(strip_accents=False)] == ["é", "漢"]
    assert words[Rules(split_cjk=False)] == ["e漢"]
    assert words[Rules(False, False, False)] == ["É漢"]


def test_every_hangul_syllable_stays_whole_without_accent_stripping():
    syllables = "".join(map(chr, range(0xAC00, 0xD7A4)))
    assert len(syllables) == 11_172
    for lowercase in (True, False):
        assert words_of(syllables, Rules(lowercase, False)) == [syllables]


def test_every_hangul_syllable_becomes_its_letters_with_accent_stripping():
    syllables = "".join(map(chr, range(0xAC00, 0xD7A4)))
    assert words_of(syllables) == [unicodedata.normalize("NFD", syllables)]


@pytest.mark.parametrize("block", [(0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF)])
def test_cjk_blocks_end_where_the_original_says(block):
    first, last = block
    assert [is_cjk(chr(point)) for point in (first - 1, first, last, last + 1)] == [False, True, True, False]


def test_ascii_symbols_are_punctuation_and_other_symbols_are_not():
    assert {chr(point) for point in range(128) if is_punctuation(chr(point))} == set(reference.ASCII_SYMBOLS)
    assert not is_punctuation("€")
    assert is_punctuation("。")


# -- places


def test_places_are_those_of_the_characters_a_letter_came_from():
    assert places_of("Né\u0301e") == [("nee", [0, 1, 3], [1, 3, 4])]
    assert places_of("각a") == [("\u1100\u1161\u11a8a", [0, 0, 0, 1], [1, 1, 1, 2])]
    assert places_of("a\0b") == [("ab", [0, 2], [1, 3])]
    assert places_of(" abc ") == [("abc", [1, 2, 3], [2, 3, 4])]


def test_an_accent_lengthens_the_character_right_before_it_and_no_other():
    assert places_of("a\u0301\u0301b") == [("ab", [0, 3], [3, 4])]
    assert places_of("!\u0301 漢\u0301") == [("!", [0], [2]), ("漢", [3], [5])]
    assert places_of("a \u0301b") == [("a", [0], [1]), ("b", [3], [4])]
    assert places_of("a\0\u0301") == [("a", [0], [1])]
    assert places_of("\u0301a") == [("a", [1], [2])]


def test_reordering_moves_letters_and_leaves_places():
    assert places_of("a\u302e\U00016ff0") == [("a\U00016ff0\u302e", [0, 1, 2], [1, 2, 3])]


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(texts, st.sampled_from(ALL_RULES))
def test_places_never_run_backwards_and_are_never_empty(text, rules):
    words = list(split_words(text, ALPHABETS[rules]))
    starts = [start for word in words for start in word.starts]
    ends = [end for word in words for end in word.ends]
    assert starts == sorted(starts)
    assert ends == sorted(ends)
    assert all(0 <= start < end <= len(text) for start, end in zip(starts, ends, strict=True))
    assert all(len(word.text) == len(word.starts) == len(word.ends) for word in words)


# -- the alphabet


def test_the_alphabet_remembers_and_stays_bounded(monkeypatch):
    monkeypatch.setattr(Alphabet, "_MAX_KEPT", 100)
    alphabet = Alphabet(Rules())
    text = "".join(map(chr, range(0x100, 0x400)))
    first = [word.text for word in split_words(text, alphabet)]
    assert 0 < len(alphabet) <= 100
    assert first == words_of(text)
    assert alphabet["é"] is alphabet["é"]


def test_an_accent_that_starts_a_text_is_a_mark_of_nothing():
    assert Alphabet(Rules()).classify("\u0301") == (MARK, "look through", "", (), False)
    assert Alphabet(Rules()).classify("\u034f").stops_reordering
