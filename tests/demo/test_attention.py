"""The head that the demo draws, and how."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bertworks.demo.stages import most_telling_head, picture, words_of

TOKENS = ["[CLS]", "the", "soup", "was", ",", "##s", "cold", ".", "[SEP]"]
WORDS = [1, 2, 3, 5, 6]


def even(num_layers, num_heads):
    """Heads in which every token looks at all alike."""
    return np.full((num_layers, num_heads, len(TOKENS), len(TOKENS)), 1 / len(TOKENS), np.float32)


def looking(to):
    """A head in which the token at each place looks at `to(place)` alone."""
    head = np.zeros((len(TOKENS), len(TOKENS)), np.float32)
    for place in range(len(TOKENS)):
        head[place, to(place) % len(TOKENS)] = 1.0
    return head


def test_words_are_what_is_neither_special_nor_punctuation():
    assert words_of(TOKENS) == WORDS
    assert words_of(["[CLS]", "[UNK]", "...", "$", "[SEP]"]) == [1]


@given(st.integers(0, 2), st.integers(0, 3))
def test_the_head_that_looks_far_is_found(layer, head):
    weights = even(3, 4)
    weights[layer, head] = looking(lambda place: 6 if place < 4 else 1)
    assert most_telling_head(weights, WORDS) == (layer, head)


def test_looking_at_oneself_neighbours_punctuation_and_special_tokens_is_not_telling():
    weights = even(1, 6)
    for head, to in enumerate((lambda p: p, lambda p: p + 1, lambda p: p - 1, lambda _: 4, lambda _: 8)):
        weights[0, head] = looking(to)
    assert most_telling_head(weights, WORDS) == (0, 5)


def test_a_row_shows_where_its_word_looks_and_says_the_word():
    head = looking(lambda place: 6 if place < 4 else 2)
    rows = picture(TOKENS, WORDS, head)
    assert [row.split()[0] for row in rows] == ["the", "soup", "was", "##s", "cold"]
    assert rows[0].endswith("attends to cold, 100%")
    assert rows[-1].endswith("attends to soup, 100%")
    cells = [row[13:23] for row in rows]
    assert cells[0] == " " * 8 + "██"
    assert cells[-1] == "  ██" + " " * 6


def test_a_word_that_looks_at_itself_says_what_else_it_looks_at():
    head = 0.8 * np.eye(len(TOKENS), dtype=np.float32)
    head[:, 2] += 0.2
    assert picture(TOKENS, WORDS, head)[0].endswith("attends to soup, 20%")


def test_long_words_are_cut_so_that_rows_stay_in_line():
    tokens = ["x" * 40 if token == "cold" else token for token in TOKENS]
    rows = picture(tokens, WORDS, even(1, 1)[0, 0])
    assert max(map(len, rows)) <= 60
    assert len({row.index("attends to") for row in rows}) == 1
