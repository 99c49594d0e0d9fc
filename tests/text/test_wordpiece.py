"""The greedy split of one word, against a search that tries every end."""

import random

import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.text.vocabulary import MAX_WORD_LENGTH, WordPiece


def splitter(*pieces):
    return WordPiece({piece: id for id, piece in enumerate(("[UNK]", *pieces))})


def texts_of(splitter, word):
    by_id = {id: piece for piece, id in splitter._first.items()}
    return [by_id[id] for id, _, _ in splitter.split(word)]


def test_the_longest_piece_wins_even_where_a_shorter_one_would_have_let_the_word_through():
    assert texts_of(splitter("un", "##aff", "##able", "una"), "unaffable") == ["[UNK]"]
    assert texts_of(splitter("un", "##aff", "##able"), "unaffable") == ["un", "##aff", "##able"]


def test_a_match_says_which_characters_it_covers():
    assert splitter("un", "##aff", "##able").split("unaffable") == [(1, 0, 2), (2, 2, 5), (3, 5, 9)]
    assert splitter("un").split("xun") == [(0, 0, 3)]


def test_continuations_match_inside_words_only():
    words = splitter("a", "##b")
    assert texts_of(words, "ab") == ["a", "##b"]
    assert texts_of(words, "b") == ["[UNK]"]
    assert texts_of(words, "aa") == ["[UNK]"]


def test_a_piece_of_bare_continuation_signs_matches_nothing_inside_a_word():
    assert texts_of(splitter("a", "##"), "ab") == ["[UNK]"]
    assert texts_of(splitter("a", "##"), "a") == ["a"]


@pytest.mark.parametrize(("length", "is_known"), [(199, True), (200, True), (201, False)])
def test_words_of_more_than_200_characters_are_unknown(length, is_known):
    matches = splitter("a", "##a").split("a" * length)
    assert len(matches) == (length if is_known else 1)
    assert (matches[0][0] == 0) == (not is_known)
    assert matches[-1][2] == length


def test_a_piece_longer_than_its_neighbours_in_the_table_is_found():
    # The table of lengths is kept by the first three characters: pieces of 1, 2, 3 and more that share them.
    words = splitter("a", "ab", "abc", "abcdef", "##d", "##de", "##def", "##defghi", "##g")
    for word in ("a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcg", "abd", "abdefghi"):
        assert texts_of(words, word) == reference.split_pieces(word, words._first)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.sets(st.text("ab한", min_size=1, max_size=7), max_size=30),
    st.sets(st.text("ab한", min_size=1, max_size=7), max_size=30),
    st.text("ab한c", min_size=1, max_size=210),
)
def test_pieces_are_those_of_the_exhaustive_search(firsts, rests, word):
    words = splitter(*firsts, *("##" + rest for rest in rests))
    assert texts_of(words, word) == reference.split_pieces(word, words._first)
    assert [start for _, start, _ in words.split(word)][1:] == [end for _, _, end in words.split(word)][:-1]


def test_what_is_remembered_is_bounded_and_right(monkeypatch):
    monkeypatch.setattr(WordPiece, "_MAX_REMEMBERED", 50)
    words = splitter("a", "b", "##a", "##b")
    draw = random.Random(4)
    for _ in range(300):
        word = "".join(draw.choices("abc", k=draw.randint(1, 6)))
        assert texts_of(words, word) == texts_of(words, word) == reference.split_pieces(word, words._first)
        assert len(words._remembered) <= 50


def test_words_beyond_the_limit_are_not_remembered():
    words = splitter("a")
    words.split("b" * (MAX_WORD_LENGTH + 1))
    assert not words._remembered  # or a text of megabytes would stay in memory
