"""`Tokenizer` and its encodings as callers see them: invariants (T6), truncation, errors, and what an import costs."""

import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzz_texts import texts
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks import Tokenizer, UserError
from bertworks.text.tokenizer import Encodings, ListColumns, kept_lengths

REPOSITORY = Path(__file__).parents[2]
SMALL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "##b", "c", "hello", "world", ",", "don", "'", "t"]


@pytest.fixture
def small():
    return Tokenizer(SMALL)


@pytest.fixture(scope="module")
def full(pieces):
    return Tokenizer(pieces)


# -- what an encoding holds


def test_a_text_becomes_cls_text_sep(small):
    encoding = small.encode("Hello, abX [MASK]")
    assert encoding.tokens == ["[CLS]", "hello", ",", "[UNK]", "[UNK]", "[UNK]", "[UNK]", "[SEP]"]
    assert encoding.ids == [2, 9, 11, 1, 1, 1, 1, 3]
    assert encoding.offsets == [(0, 0), (0, 5), (5, 6), (7, 10), (11, 12), (12, 16), (16, 17), (0, 0)]
    assert encoding.word_ids == [None, 0, 1, 2, 3, 4, 5, None]
    assert encoding.segment_ids == [0] * 8
    assert len(encoding) == 8


def test_a_pair_gets_a_second_segment_with_places_and_words_of_its_own(small):
    encoding = small.encode("ab", "c ab")
    assert encoding.tokens == ["[CLS]", "a", "##b", "[SEP]", "c", "a", "##b", "[SEP]"]
    assert encoding.segment_ids == [0, 0, 0, 0, 1, 1, 1, 1]
    assert encoding.offsets == [(0, 0), (0, 1), (1, 2), (0, 0), (0, 1), (2, 3), (3, 4), (0, 0)]
    assert encoding.word_ids == [None, 0, 0, None, 0, 1, 1, None]


def run_classifier(tokenizer, first, second, max_length):
    """The original's convert_single_example and _truncate_seq_pair, in short."""
    tokens_a, tokens_b = tokenizer.tokenize(first), tokenizer.tokenize(second) if second else None
    if tokens_b:
        while len(tokens_a) + len(tokens_b) > max_length - 3:
            (tokens_a if len(tokens_a) > len(tokens_b) else tokens_b).pop()
    else:
        tokens_a = tokens_a[: max_length - 2]
    tokens, segment_ids = ["[CLS]", *tokens_a, "[SEP]"], [0] * (len(tokens_a) + 2)
    if tokens_b:
        tokens, segment_ids = [*tokens, *tokens_b, "[SEP]"], segment_ids + [1] * (len(tokens_b) + 1)
    return tokens, segment_ids


@pytest.mark.parametrize("max_length", [3, 4, 5, 64])
def test_a_second_text_without_tokens_is_none_as_in_run_classifier(small, encode_compiled, max_length):
    assert small.encode("a", "").tokens == ["[CLS]", "a", "[SEP]"]
    firsts, seconds = ["a", "", "ab c ab c", "a", "ab c"], ["", " ", "\x00", "c", "ab c"]
    expected = [run_classifier(small, *both, max_length) for both in zip(firsts, seconds, strict=True)]
    for encodings in (
        small.encode_batch(firsts, seconds, max_length),
        encode_compiled(small, firsts, seconds, max_length=max_length),
        [small.encode(*both, max_length) for both in zip(firsts, seconds, strict=True)],
    ):
        assert [(encoding.tokens, encoding.segment_ids) for encoding in encodings] == expected
        assert [len(encoding.offsets) for encoding in encodings] == [len(tokens) for tokens, _ in expected]


def test_special_tokens_in_a_text_are_plain_text(full):
    # No control id but those the tokenizer itself adds, whatever a user types.
    for typed in ("[CLS]", "[SEP]", "[MASK]", "[PAD]", "a[SEP]b", "[ SEP ]", "[UNK]"):
        assert not set(full.encode(typed).ids[1:-1]) & {full.id_of(t) for t in ("[CLS]", "[SEP]", "[MASK]", "[PAD]")}


def test_an_encoding_shows_its_tokens(small):
    assert repr(small.encode("ab")) == "Encoding(tokens=['[CLS]', 'a', '##b', '[SEP]'])"


def test_lists_read_from_an_encoding_are_the_callers_own(small, encode_compiled):
    for encoding in (small.encode("ab c"), encode_compiled(small, ["ab c"])[0]):
        encoding.ids.clear()
        encoding.offsets.append((9, 9))
        assert encoding.ids == [2, 5, 7, 8, 3]
        assert len(encoding.offsets) == 5
        assert all(type(number) is int for column in (encoding.ids, encoding.segment_ids) for number in column)


# -- T6: invariants


def test_every_piece_has_its_id_and_every_id_its_piece(full, pieces):
    assert [full.id_of(piece) for piece in pieces] == list(range(len(pieces)))
    assert len(full) == len(pieces)


@settings(max_examples=examples(200), deadline=None, derandomize=True)
@given(texts)
def test_tokens_ids_and_places_fit_together(full, text):
    encoding = full.encode(text)
    assert [full.pieces[id] for id in encoding.ids] == encoding.tokens == ["[CLS]", *full.tokenize(text), "[SEP]"]
    starts, ends = zip(*encoding.offsets[1:-1], strict=True) if len(encoding) > 2 else ((), ())
    assert list(starts) == sorted(starts)
    assert list(ends) == sorted(ends)
    assert all(text[start:end] for start, end in zip(starts, ends, strict=True))
    words = encoding.word_ids[1:-1]
    assert words == sorted(words)
    assert set(words) == set(range(len(set(words))))
    assert all(
        token[:2] != "##" or before == word
        for token, before, word in zip(encoding.tokens[2:-1], words, words[1:], strict=False)
    )


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(st.text("abcXYZ ,.!-_019漢字ßœ€\n\t", max_size=80))
def test_places_cover_a_text_without_accents_and_controls(full, text):
    covered = "".join(text[start:end] for start, end in full.encode(text).offsets)
    assert covered == "".join(text.split())


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(texts, texts)
def test_tokens_of_texts_with_a_space_between_are_the_tokens_of_both(full, first, second):
    assert full.tokenize(f"{first} {second}") == full.tokenize(first) + full.tokenize(second)


LETTER = "\U00010428"  # of no other piece, so that a word that begins with it is split right behind it


@pytest.fixture(scope="module")
def with_letter(pieces):
    assert not any(LETTER in piece for piece in pieces)
    return Tokenizer([*pieces, LETTER])


@settings(max_examples=examples(300), deadline=None, derandomize=True)
@given(texts)
def test_what_stands_right_behind_a_piece_goes_on_with_its_word(full, with_letter, pieces, text):
    first, *rest = with_letter.tokenize(LETTER + text)
    behind = [pieces[id] for id in full.ids_behind(text)]
    assert behind == (rest if first == LETTER else full.tokenize(text))


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("b b", ["##b", "b"]),
        ("B, b", ["##b", ",", "b"]),
        (" b", ["b"]),
        (",b", [",", "b"]),
        ("c b", ["c", "b"]),
        ("bc b", ["[UNK]", "b"]),
        ("", []),
    ],
)
def test_letters_that_no_piece_goes_on_with_begin_a_word(small, text, tokens):
    assert [SMALL[id] for id in small.ids_behind(text)] == tokens


@settings(max_examples=examples(100), deadline=None, derandomize=True)
@given(texts, texts, st.integers(3, 30))
def test_truncation_keeps_cls_and_sep_and_the_beginnings(full, first, second, max_length):
    single, pair = full.encode(first, max_length=max_length), full.encode(first, second, max_length)
    assert len(single) == min(max_length, len(full.encode(first)))
    whole = full.encode(first, second)
    lost = 1 in whole.segment_ids and 1 not in pair.segment_ids  # all of the second text, and so its [SEP]
    assert len(pair) == min(max_length, len(whole)) - lost
    assert single.tokens[0] == pair.tokens[0] == "[CLS]"
    assert single.tokens[-1] == pair.tokens[-1] == "[SEP]"
    kept = [pair.ids[1:-1][row] for row in range(len(pair) - 2) if pair.segment_ids[row + 1] == 0][:-1]
    assert kept == full.encode(first).ids[1 : len(kept) + 1]
    kept = [id for id, segment_id in zip(pair.ids, pair.segment_ids, strict=True) if segment_id == 1][:-1]
    assert kept == full.encode(second).ids[1 : len(kept) + 1]


def test_longest_first_equals_popping_one_token_at_a_time():
    draw = random.Random(8)
    for _ in range(5_000):
        first, second, room = draw.randint(0, 60), draw.randint(0, 60), draw.randint(0, 80)
        popped = [first, second]
        while sum(popped) > room:
            popped[0 if popped[0] > popped[1] else 1] -= 1
        assert kept_lengths(first, second, room + 3, "longest_first") == tuple(popped)
        assert kept_lengths(first, None, room + 2, "longest_first") == (min(first, room), None)


def test_only_second_leaves_the_first_text_whole(small):
    encoding = small.encode("a b", "c c c c", max_length=6, truncation="only_second")
    assert encoding.tokens == ["[CLS]", "a", "b", "[SEP]", "c", "[SEP]"]
    assert small.encode("a b", "c c", max_length=5, truncation="only_second").tokens[-2:] == ["b", "[SEP]"]


def test_what_fits_needs_no_truncation(small):
    assert len(small.encode("a b", max_length=4, truncation=None)) == 4
    assert len(small.encode("a b", "c", max_length=6, truncation=None)) == 6
    assert small.encode("a b c", max_length=2).tokens == ["[CLS]", "[SEP]"]


# -- many encodings read like a list


def test_encodings_read_like_a_list(small):
    batch = small.encode_batch(["a", "b", "c"])
    assert [encoding.tokens[1] for encoding in batch] == ["a", "b", "c"]
    assert [batch[0].tokens[1], batch[-1].tokens[1]] == ["a", "c"]
    assert [encoding.tokens[1] for encoding in batch[::-1]] == ["c", "b", "a"]
    assert len(batch) == 3
    for outside in (3, -4):
        with pytest.raises(IndexError):
            batch[outside]


def test_encodings_find_a_text_in_its_chunk():
    together = Encodings(SMALL)
    for first, count in ((0, 3), (3, 1), (4, 0), (4, 2)):
        ids = list(range(first, first + count))
        together.add(ListColumns(ids, [0] * count, [0] * count, [1] * count, [0] * count), list(range(count + 1)))
    assert len(together) == 6
    assert (
        [together[number].ids for number in range(6)]
        == [encoding.ids for encoding in together]
        == [[n] for n in range(6)]
    )


def test_an_empty_batch_is_empty(small):
    assert list(small.encode_batch([])) == list(small.encode_batch([], [])) == []


def test_batches_may_be_tuples(small):
    assert [e.tokens for e in small.encode_batch(("a", "b"), ("c", ""))] == [
        small.encode("a", "c").tokens,
        small.encode("b", "").tokens,
    ]


# -- errors


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.encode_batch("abc"), "encode_batch takes a list of texts, not a str; for one text use encode"),
        (lambda t: t.encode_batch(None), "encode_batch takes a list of texts, not a NoneType; for one text use encode"),
        (
            lambda t: t.encode_batch(["a"], "b"),
            "encode_batch takes a list of texts, not a str; for one text use encode",
        ),
        (lambda t: t.encode(None), "a text must be a str, not NoneType: 'None'"),
        (lambda t: t.encode(b"abc"), "a text must be a str, not bytes: \"b'abc'\""),
        (lambda t: t.tokenize(5), "a text must be a str, not int: '5'"),
        (lambda t: t.encode("a", 5), "a text must be a str, not int: '5'"),
        (lambda t: t.encode_batch(["a", "b"], ["c"]), "2 texts but 1 pair; give one for each"),
        (
            lambda t: t.encode("a", truncation="first"),
            "truncation='first' is not known; use 'longest_first', 'only_second' or None",
        ),
        (lambda t: t.encode("a", max_length=1), "max_length=1 is too small: [CLS] and [SEP] alone take 2"),
        (lambda t: t.encode("a", "b", max_length=2), "max_length=2 is too small: [CLS] and [SEP] alone take 3"),
        (
            lambda t: t.encode("a b c", max_length=4, truncation=None),
            '5 tokens with [CLS] and [SEP], but max_length is 4; shorten the text or pass truncation="longest_first"',
        ),
        (
            lambda t: t.encode("a b", "c", max_length=5, truncation=None),
            '6 tokens with [CLS] and [SEP], but max_length is 5; shorten the text or pass truncation="longest_first"',
        ),
        (
            lambda t: t.encode("a b c", max_length=4, truncation="only_second"),
            "truncation='only_second' cannot reach max_length 4: there is no second text",
        ),
        (
            lambda t: t.encode("a b c", "a", max_length=5, truncation="only_second"),
            "truncation='only_second' cannot reach max_length 5: the first text alone has 3 tokens",
        ),
        (lambda t: t.decode([2, 15]), "id 15 is not in the vocabulary of 15 pieces"),
        (lambda t: t.decode([-1]), "id -1 is not in the vocabulary of 15 pieces"),
        (lambda t: t.id_of("[mask]"), "the vocabulary has no '[mask]'"),
        (lambda t: Tokenizer(["[UNK]", "a"]).encode("a"), "the vocabulary has no '[CLS]'"),
        (lambda t: Tokenizer(["[UNK]", "[CLS]"]).encode("a"), "the vocabulary has no '[SEP]'"),
        (lambda t: Tokenizer([]), "the vocabulary is empty; a vocabulary has one piece a line"),
        (lambda t: Tokenizer(["a"]), "the vocabulary has no [UNK] line; words with unknown characters need it"),
        (lambda t: Tokenizer(["[UNK]", "a", "a"]), "the vocabulary:3: 'a' is on line 2 already; remove one"),
    ],
)
def test_mistakes_are_told_in_a_line(small, call, message):
    with pytest.raises(UserError) as caught:
        call(small)
    assert str(caught.value) == message


def test_a_vocabulary_without_cls_still_tokenizes():
    assert Tokenizer(["[UNK]", "a", "##b"]).tokenize("ab x") == ["a", "##b", "[UNK]"]


# -- settings and imports


def test_accents_follow_the_case_unless_said_otherwise():
    for lowercase in (True, False):
        assert Tokenizer(SMALL, lowercase=lowercase).rules.strip_accents is lowercase
        assert Tokenizer(SMALL, lowercase=lowercase, strip_accents=not lowercase).rules.strip_accents is not lowercase


def test_the_first_encoding_imports_no_numpy_and_no_compiler():
    code = (
        "import sys; from bertworks import Tokenizer\n"
        "print(Tokenizer(['[UNK]', '[CLS]', '[SEP]', 'a']).encode('a é', 'a').ids)\n"
        "print(sorted({'numpy', 'numba', 'torch', 'tokenizers', 'json'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    assert run.stdout.splitlines() == ["[1, 3, 0, 2, 3, 2]", "[]"], run.stderr
