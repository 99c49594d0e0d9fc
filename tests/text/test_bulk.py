"""The compiled way gives what the plain way gives, in every column; and it stands threads, forks and missing caches."""

import itertools
import multiprocessing
import pickle
import random
import sys
import threading
import time
import unicodedata

import numba
import numpy as np
import pytest
import reference
from fuzz_texts import texts
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks import Tokenizer
from bertworks.errors import UserError
from bertworks.text import fast as kernel
from bertworks.text import tokenizer
from bertworks.text.fast import BulkTokenizer
from bertworks.text.normalize import Rules

ALL_RULES = list(itertools.product((True, False), repeat=3))
NAMES = ("lowercase", "strip_accents", "split_cjk")
batches = st.lists(texts, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def plain_tokenizers(pieces):
    return {rules: Tokenizer(pieces, **dict(zip(NAMES, rules, strict=True))) for rules in ALL_RULES}


@pytest.fixture(scope="module")
def bulk_tokenizers(pieces):
    return {rules: Tokenizer(pieces, **dict(zip(NAMES, rules, strict=True))) for rules in ALL_RULES}


def columns_of(encoding):
    return encoding.ids, encoding.offsets, encoding.word_ids, encoding.segment_ids


# -- equality


@settings(max_examples=examples(400), deadline=None, derandomize=True)
@given(batches, st.sampled_from(ALL_RULES))
@example(["AΣ'", "'ΣA", "Σ\u0301", "\u0301", ""], (True, True, True))
@example(["a\u302e\U00016ff0", "e" + "\u302e" * 300, "\U0001d15f\u034f\u302e\U00016ff0"], (True, True, True))
@example(["a" * 199 + "\u0301b", "a" * 200 + "\u0301", "각" * 67, "각" * 66], (True, True, False))
def test_both_ways_and_the_reference_agree(pieces, plain_tokenizers, bulk_tokenizers, encode_compiled, batch, rules):
    plain = [plain_tokenizers[rules].encode(text) for text in batch]
    compiled = encode_compiled(bulk_tokenizers[rules], batch)
    assert list(map(columns_of, plain)) == list(map(columns_of, compiled))
    known = plain_tokenizers[rules]._ids
    assert [e.tokens[1:-1] for e in plain] == [reference.tokenize(text, known, *rules) for text in batch]
    assert plain_tokenizers[rules]._compiled is None


@settings(max_examples=examples(150), deadline=None, derandomize=True)
@given(st.lists(st.tuples(texts, texts), min_size=1, max_size=4), st.integers(3, 40) | st.none())
def test_both_ways_agree_on_pairs_and_truncation(plain_tokenizers, bulk_tokenizers, encode_compiled, both, max_length):
    firsts, seconds = zip(*both, strict=True)
    plain = plain_tokenizers[True, True, True].encode_batch(firsts, seconds, max_length)
    compiled = encode_compiled(bulk_tokenizers[True, True, True], firsts, seconds, max_length=max_length)
    assert list(map(columns_of, plain)) == list(map(columns_of, compiled))


def test_both_ways_refuse_a_text_that_is_too_long_with_the_same_words(pieces, encode_compiled):
    texts = ["a b", "a b c d", "a b c d e"]
    with pytest.raises(UserError) as plain:
        Tokenizer(pieces).encode_batch(texts, max_length=5, truncation=None)
    with pytest.raises(UserError) as compiled:
        encode_compiled(Tokenizer(pieces), texts, max_length=5, truncation=None)
    assert str(plain.value) == str(compiled.value)


def test_a_batch_is_cut_into_chunks_without_a_seam(pieces, monkeypatch):
    draw = random.Random(5)
    texts = ["".join(draw.choices("ab é\u0301漢.", k=draw.choice([0, 0, 1, 5, 40]))) for _ in range(300)]
    pairs = texts[::-1]
    expected = list(map(columns_of, Tokenizer(pieces).encode_batch(texts, pairs)))
    bulk = Tokenizer(pieces)
    bulk._load_bulk()
    monkeypatch.setattr(tokenizer, "_BULK_FROM_CHARS_ONCE_LOADED", 0)
    for chunk_chars in (1, 7, 100, 10**6):
        monkeypatch.setattr(tokenizer, "_CHUNK_CHARS", chunk_chars)
        assert list(map(columns_of, bulk.encode_batch(texts, pairs))) == expected


def test_a_batch_of_a_million_characters_goes_the_compiled_way_by_itself(pieces):
    by_size = Tokenizer(pieces)
    assert by_size.encode("a " * 499_999) is not None
    assert by_size._compiled is None
    tokens = by_size.tokenize("ab " * 333_334)
    assert by_size._compiled is not None
    assert tokens == ["a", "##b"] * 333_334


# -- tables


def test_every_character_that_becomes_several_finds_room(pieces):
    bulk = BulkTokenizer(pieces, Rules())
    points = [point for point in range(0x30000) if unicodedata.decomposition(chr(point)) or 0xAC00 <= point < 0xD7A4]
    text = "".join(map(chr, points))
    plain = Tokenizer(pieces)
    assert bulk.tokenize([text])[0][:, 0].tolist() == plain.encode(text).ids[1:-1]


@settings(max_examples=examples(60), deadline=None, derandomize=True)
@given(
    st.sets(st.text("ab한é", min_size=1, max_size=6), max_size=25),
    st.sets(st.text("ab한é", min_size=1, max_size=6), max_size=25),
    st.lists(st.text("ab한éc", min_size=1, max_size=30), min_size=1, max_size=20),
)
def test_the_trie_finds_the_pieces_of_any_vocabulary(firsts, rests, words):
    vocabulary = ["[UNK]", *firsts, *("##" + rest for rest in rests)]
    tokens = BulkTokenizer(vocabulary, Rules(False, False)).tokenize(words)
    found = [vocabulary[id] for id in tokens[0][:, kernel.ID]]
    assert found == [piece for word in words for piece in reference.split_pieces(word, set(vocabulary))]


def test_the_trie_of_a_large_alphabet_finds_every_piece():
    """Hundreds of letters, and nodes with many children: the searches for room begin at moving places."""
    draw = random.Random(6)
    letters = [chr(point) for point in range(0xAC00, 0xAC00 + 600)]
    firsts = {"".join(draw.choices(letters[: draw.choice([5, 50, 600])], k=draw.randint(1, 5))) for _ in range(20_000)}
    vocabulary = ["[UNK]", *sorted(firsts), *sorted("##" + first for first in firsts)]
    bulk = BulkTokenizer(vocabulary, Rules(False, False, False))
    assert bulk.tokenize(sorted(firsts))[0][:, 0].tolist() == list(range(1, len(firsts) + 1))
    words = ["".join(draw.choices(letters, k=20)) for _ in range(500)]
    plain = Tokenizer([*vocabulary, "[CLS]", "[SEP]"], lowercase=False, split_cjk=False)
    expected = [id for word in words for id in plain.encode(word).ids[1:-1]]
    assert bulk.tokenize(words)[0][:, 0].tolist() == expected


def test_the_trie_of_many_pieces_is_built_in_seconds():
    # T7. Each search for room began where all before it had failed: 20 s, and minutes for a million pieces.
    draw = random.Random(10)
    syllables = [chr(point) for point in range(0xAC00, 0xAC00 + 2_000)]
    pieces = ["[UNK]", *{"".join(draw.choices(syllables, k=draw.randint(2, 5))) for _ in range(200_000)}]
    BulkTokenizer(["[UNK]"], Rules())  # compiles
    began = time.process_time()
    bulk = BulkTokenizer(pieces, Rules(False, False))
    assert time.process_time() - began < 6
    assert bulk.tokenize(pieces[1:])[0][:, 0].tolist() == list(range(1, len(pieces)))


# -- threads, processes, caches


def test_eight_threads_meet_new_characters_at_once(pieces):
    expected = Tokenizer(pieces)
    draw = random.Random(7)
    points = [*range(0x20, 0x3400), *range(0xAC00, 0xD7A4, 7)]
    batches = [["ΑΣ" + "".join(map(chr, draw.choices(points, k=40))) for _ in range(150)] for _ in range(8)]
    ids = [[expected.encode(text).ids for text in batch] for batch in batches]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(3):
            shared = Tokenizer(pieces)
            shared._load_bulk()  # fresh tables: every thread meets characters that another is just filling in
            barrier, results = threading.Barrier(8), [None] * 8

            def work(number, shared=shared, barrier=barrier, results=results):
                barrier.wait()
                results[number] = [encoding.ids for encoding in shared.encode_batch(batches[number])]

            threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert results == ids
    finally:
        sys.setswitchinterval(interval)


def test_a_sigma_before_a_character_that_another_thread_is_filling_in_waits_for_it(pieces):
    bulk = BulkTokenizer(pieces, Rules())
    bulk.tokenize(["ΑΣ"])
    bulk._tables.entries[ord("'")] = kernel.DROP << kernel.KIND_SHIFT  # by the other thread, after the sigma looked
    points = np.array([ord(char) for char in "ΑΣ'\n"], np.int32)
    rows, counts = np.zeros((12, 4), np.int32), np.zeros(1, np.int64)
    assert kernel.tokenize(points, np.array([4]), 0, 0, bulk._tables, rows, counts) == (0, 0)
    bulk._tables.neighbours[ord("'")] = kernel.LOOK_THROUGH
    assert kernel.tokenize(points, np.array([4]), 0, 0, bulk._tables, rows, counts) == (1, 2)
    assert [pieces[id] for id in rows[:2, kernel.ID]] == ["α", "##ς"]


def encode_in_child(connection, shared, batch):
    connection.send([encoding.ids for encoding in shared.encode_batch(batch)])


@pytest.mark.skipif(sys.platform != "linux", reason="forks a process")
def test_a_tokenizer_works_in_a_forked_process(pieces):
    shared = Tokenizer(pieces)
    batch = ["한국어 and \U0001d165 new ΑΣ. " * 60] * 20
    first_use = [encoding.ids for encoding in Tokenizer(pieces).encode_batch(batch)]
    shared._load_bulk()
    shared.encode_batch(["warm " * 2_000])
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=encode_in_child, args=(theirs, shared, batch))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == first_use
    child.join(60)
    assert child.exitcode == 0


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_tokenizer_survives_pickling_as_spawned_workers_need_it(pieces, encode_compiled, is_loaded):
    first = Tokenizer(pieces, lowercase=False)
    expected = columns_of(first.encode("Σ 각 é the"))
    if is_loaded:
        encode_compiled(first, ["Σ 각 é the"])
    second = pickle.loads(pickle.dumps(first))
    assert columns_of(second.encode("Σ 각 é the")) == expected
    assert columns_of(encode_compiled(second, ["Σ 각 é the"])[0]) == expected


def test_compiling_works_without_a_place_to_keep_the_result(monkeypatch):
    compile_with_numba = numba.njit

    def refuse_cache(*arguments, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available for file")
        return compile_with_numba(*arguments, **options)

    monkeypatch.setattr(numba, "njit", refuse_cache)
    assert kernel.compiled(lambda number: number + 1)(2) == 3
