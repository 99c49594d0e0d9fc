"""T4 and T5: no text makes the tokenizer slow or makes it fail."""

import itertools
import random
import string
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks import Tokenizer, UserError
from bertworks.text.elmo_words import WordTokenizer
from bertworks.text.gpt import GptTokenizer
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import IdsByWords

NUM_BYTES = 100_000
LEAST_BYTES_PER_S = 500_000
MOST_GROWTH = 2.3  # of the time, when the text grows to twice its length
SLACK_S = 0.01  # the first touch of fresh memory; what grows with the square of these texts takes seconds
ROUNDS = 30  # a busy machine gets this many tries to show its speed
# Beyond T4's list: a token for every byte, and a vocabulary made against the search. They may take twice the time.
HARDER = ("syllables", "words of one letter")
LONGEST_PIECE = 18  # letters, as in the original English vocabulary

# -- T4


@pytest.fixture(scope="module")
def long_pieces():
    draw = random.Random(11)
    return ["".join(draw.choices(string.ascii_lowercase, k=LONGEST_PIECE)) for _ in range(200)]


@pytest.fixture(scope="module")
def slow_vocabulary(pieces, long_pieces):
    """The worst for a search from the longest fit down: long pieces that almost fit, and single letters that do."""
    almost = ["x" * (LONGEST_PIECE - 1) + "y", *long_pieces]
    return list(dict.fromkeys([*pieces, *almost, *("##" + piece for piece in almost)]))


def bad_texts(long_pieces):
    """Endless streams of parts, by what is bad about them."""
    draw = random.Random(12)
    scalars = [*range(0xD800), *range(0xE000, 0x110000)]
    return {
        "words of 200 letters": lambda: "".join(draw.choices(string.ascii_letters, k=200)) + " ",
        "words of pieces that almost fit": lambda: "".join(p[:-1] for p in draw.choices(long_pieces, k=11)) + " ",
        "words of one letter": lambda: "x" * draw.randrange(190) + draw.choice("yzé") + "x" * draw.randrange(9) + " ",
        "one huge word": lambda: "x",
        "one huge word with accents": lambda: "é",
        "alternating accents": lambda: "\u0301\u0316",
        "alternating combining letters": lambda: "\u302e\U00016ff0\U0001d165",
        "accents on letters": lambda: "a" + "".join(draw.choices("\u0301\u0316\u302e\U0001d165", k=6)),
        "ideographs": lambda: chr(draw.randrange(0x4E00, 0xA000)),
        "syllables": lambda: chr(draw.randrange(0xAC00, 0xD7A4)) + draw.choice(["", " "]),
        "punctuation": lambda: draw.choice(string.punctuation),
        "single letters": lambda: draw.choice(string.ascii_letters) + " ",
        "NUL": lambda: "\0",
        "spaces": lambda: " ",
        "emoji with joiners": lambda: "👩\u200d👩\u200d👧\u200d👦\u200d",
        "sigmas and apostrophes": lambda: "Σ'",
        "sigmas far apart": lambda: "Σ" + "." * 50,
        "a sigma among apostrophes": lambda: "'" * 40_000 + "Σ",
        "any character": lambda: chr(draw.choice(scalars)),
        "lone surrogates": lambda: "\ud800",
    }


BAD_TEXTS = sorted(bad_texts([]))


def num_bytes(text):
    return len(text.encode("utf-8", "surrogatepass"))


def text_of(part, least_bytes):
    parts, size = [], 0
    while size < least_bytes:
        parts.append(part())
        size += num_bytes(parts[-1])
    return "".join(parts)


def slowness():
    """How much slower this machine is, just now, than one that counts ten million numbers a second; at least 1."""
    counts = {}
    began = time.process_time()
    for number in range(100_000):
        counts[number & 1023] = counts.get(number & 1023, 0) + 1
    return max(1.0, (time.process_time() - began) / 0.01)


def assert_linear(timed, text, least_bytes_per_s=LEAST_BYTES_PER_S):
    """Time a text and its first half, again and again until both have shown how fast they can be.

    The half twice, so that the times that are compared are as long and as likely to be disturbed.
    """
    whole = half = float("inf")
    for _ in range(ROUNDS):
        allowed = num_bytes(text) / least_bytes_per_s * slowness()
        whole = min(whole, timed(text))
        half = min(half, sum(timed(text[: len(text) // 2]) for _ in range(2)) / 2)
        if whole <= allowed and whole <= MOST_GROWTH * half + SLACK_S:
            return
    assert whole <= allowed
    assert whole <= MOST_GROWTH * half + SLACK_S


def cpu_time_of_encoding(tokenizer, text):
    began = time.process_time()
    tokenizer.encode(text)
    return time.process_time() - began


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_the_plain_way_takes_linear_time(alone_in_memory, slow_vocabulary, long_pieces, kind):
    def timed(text):
        tokenizer = Tokenizer(slow_vocabulary)  # a new one, which remembers no word
        seconds = cpu_time_of_encoding(tokenizer, text)
        assert tokenizer._compiled is None
        return seconds

    least_bytes_per_s = LEAST_BYTES_PER_S // 2 if kind in HARDER else LEAST_BYTES_PER_S
    assert_linear(timed, text_of(bad_texts(long_pieces)[kind], NUM_BYTES), least_bytes_per_s)


@pytest.fixture(scope="module")
def compiled_tokenizer(slow_vocabulary):
    tokenizer = Tokenizer(slow_vocabulary)
    tokenizer._load_bulk()
    tokenizer.encode("a" * 4_000)
    return tokenizer


@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_the_compiled_way_takes_linear_time(alone_in_memory, compiled_tokenizer, long_pieces, kind):
    text = text_of(bad_texts(long_pieces)[kind], NUM_BYTES) * 10
    assert_linear(lambda text: cpu_time_of_encoding(compiled_tokenizer, text), text, 10 * LEAST_BYTES_PER_S)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_two_megabytes_take_linear_time(alone_in_memory, slow_vocabulary, long_pieces, kind):
    tokenizer = Tokenizer(slow_vocabulary)
    assert_linear(lambda text: cpu_time_of_encoding(tokenizer, text), text_of(bad_texts(long_pieces)[kind], 2_000_000))


# -- T5

any_text = st.text(st.characters(exclude_categories=()), max_size=60)  # lone surrogates among them


@pytest.fixture(scope="module")
def uncased(pieces):
    return Tokenizer(pieces)


@pytest.fixture(scope="module")
def keeping_all(pieces):
    return Tokenizer(pieces, lowercase=False, split_cjk=False)


def check_encoding(tokenizer, encoding, max_length):
    assert all(0 <= id < len(tokenizer) for id in encoding.ids)
    assert len(encoding) <= max_length
    assert len(encoding.ids) == len(encoding.offsets) == len(encoding.word_ids) == len(encoding.segment_ids)
    assert isinstance(tokenizer.decode(encoding.ids), str)
    assert isinstance(tokenizer.decode(encoding.ids, keep_special=True), str)


@settings(max_examples=examples(2_000), deadline=None, derandomize=True)
@given(any_text, any_text, st.integers(3, 200))
def test_no_text_and_no_pair_raises(uncased, keeping_all, encode_compiled, first, second, max_length):
    for tokenizer in (uncased, keeping_all):
        check_encoding(tokenizer, tokenizer.encode(first), 200)
        check_encoding(tokenizer, tokenizer.encode(first, second, max_length), max_length)
    compiled = encode_compiled(uncased, [first, second], [second, first], max_length=max_length)
    for encoding in compiled:
        check_encoding(uncased, encoding, max_length)


@pytest.mark.nightly
@settings(max_examples=100_000, deadline=None, derandomize=True)
@given(any_text, any_text)
def test_no_text_and_no_pair_raises_in_a_hundred_thousand(uncased, encode_compiled, first, second):
    check_encoding(uncased, uncased.encode(first, second), 1_000)
    assert encode_compiled(uncased, [first], [second])[0].ids == uncased.encode(first, second).ids


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(st.binary(max_size=80))
def test_bytes_that_are_not_utf8_are_tokenized_however_they_were_decoded(uncased, data):
    for errors in ("surrogateescape", "replace", "ignore", "backslashreplace"):
        check_encoding(uncased, uncased.encode(data.decode("utf-8", errors)), 400)


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(st.lists(st.integers(-3, 120_000), max_size=50))
def test_ids_decode_or_are_refused(uncased, ids):
    if all(0 <= id < len(uncased) for id in ids):
        assert isinstance(uncased.decode(ids), str)
    else:
        with pytest.raises(UserError, match=r"id -?\d+ is not in the vocabulary of \d+ pieces"):
            uncased.decode(ids)


# -- T4 and T5 for the tokens of GPT-1 and ELMo


@pytest.fixture(scope="module")
def slow_pairs(pieces):
    """Many merges that apply to words of random letters, and words of one letter that join to the last."""
    draw = random.Random(13)
    letters = [piece for piece in pieces if len(piece) == 1]
    pairs = list(itertools.product(string.ascii_lowercase, repeat=2))
    merges = pairs + [("".join(draw.choice(pairs)), "".join(draw.choice(pairs))) for _ in range(5_000)]
    merges += [("x" * (1 << power), "x" * (1 << power)) for power in range(1, 8)]
    merges = list(dict.fromkeys(merges))
    every = ["<unk>", *letters, *(letter + "</w>" for letter in letters), *map("".join, merges)]
    return list(dict.fromkeys(every)), merges


@pytest.fixture(scope="module")
def word_list():
    return ["<S>", "</S>", "<UNK>", "the", "x"]


def forget(tokenizer):
    """Make a tokenizer as if it had met no word yet."""
    if isinstance(tokenizer, GptTokenizer):
        tokenizer._pairs._remembered.clear()
    tokenizer._bulk = IdsByWords(tokenizer._bulk._split, tokenizer.rules)


@pytest.mark.parametrize("way", ["encode", "ids_of"])
@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_other_tokens_take_linear_time(alone_in_memory, slow_pairs, word_list, long_pieces, kind, way):
    text = text_of(bad_texts(long_pieces)[kind], NUM_BYTES // 2)
    least_bytes_per_s = LEAST_BYTES_PER_S // 2 if kind in HARDER else LEAST_BYTES_PER_S
    for tokenizer in (GptTokenizer(*slow_pairs), WordTokenizer(word_list, Rules())):

        def timed(text, tokenizer=tokenizer):
            forget(tokenizer)
            began = time.process_time()
            tokenizer.encode(text) if way == "encode" else tokenizer.ids_of([text])
            return time.process_time() - began

        assert_linear(timed, text, least_bytes_per_s)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", BAD_TEXTS)
def test_two_megabytes_of_other_tokens_take_linear_time(alone_in_memory, slow_pairs, word_list, long_pieces, kind):
    text = text_of(bad_texts(long_pieces)[kind], 2_000_000)
    for tokenizer in (GptTokenizer(*slow_pairs), WordTokenizer(word_list, Rules())):
        assert_linear(lambda text, tokenizer=tokenizer: cpu_time_of_encoding(tokenizer, text), text)


@pytest.fixture(scope="module")
def others(slow_pairs, word_list):
    return GptTokenizer(*slow_pairs), WordTokenizer(word_list)


@settings(max_examples=examples(500), deadline=None, derandomize=True)
@given(any_text)
def test_no_text_raises_as_other_tokens(others, text):
    for tokenizer in others:
        check_encoding(tokenizer, tokenizer.encode(text), 300)
        assert tokenizer.ids_of([text])[1].sum() == len(tokenizer.tokenize(text))
