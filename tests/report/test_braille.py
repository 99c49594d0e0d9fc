"""Curves of dots: without a gap, from edge to edge, and nothing above the top."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bertworks.report.terminal import braille_curve

# The dots of a character in Unicode's numbering: 1-3 and 7 on the left, 4-6 and 8 on the right, from the top.
PLACES = {0: (0, 0), 1: (0, 1), 2: (0, 2), 6: (0, 3), 3: (1, 0), 4: (1, 1), 5: (1, 2), 7: (1, 3)}


def dots_of(rows):
    """The dots that are set, (column, row) from the upper left."""
    found = set()
    for row, text in enumerate(rows):
        for column, char in enumerate(text):
            bits = 0 if char == " " else ord(char) - 0x2800
            found |= {(2 * column + x, 4 * row + y) for bit, (x, y) in PLACES.items() if bits >> bit & 1}
    return found


def test_a_falling_line_goes_from_corner_to_corner():
    dots = dots_of(braille_curve([(0, 1.0), (100, 0.0)], 10, 5))
    assert {(0, 0), (19, 19)} <= dots
    assert dots == {(place, place) for place in range(20)}


def test_characters_are_those_that_unicode_says():
    assert braille_curve([(0, 1.0), (1, 1.0)], 2, 1) == ["⠤⠤"]
    assert braille_curve([(0, 0.0), (1, 1.0)], 2, 1) == ["⡠⠊"]


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=80), st.integers(2, 40), st.integers(1, 10))
def test_a_curve_has_a_dot_in_every_column_and_no_gap(heights, width, height):
    rows = braille_curve(list(enumerate(heights)), width, height)
    assert [len(row) for row in rows] == [width] * height
    dots = dots_of(rows)
    assert {x for x, _ in dots} == set(range(2 * width))
    for x in range(2 * width - 1):
        here, there = ([y for column, y in dots if column == place] for place in (x, x + 1))
        assert min(abs(y - other) for y in here for other in there) <= 1


def test_nothing_is_drawn_above_the_top_and_the_rest_uses_all_the_height():
    points = [(step, 10 * math.exp(-step / 5) + 2) for step in range(100)]
    dots = dots_of(braille_curve(points, 30, 6, top=4.0))
    assert min(x for x, _ in dots) > 2
    assert {y for _, y in dots} == set(range(24))


def test_enormous_values_cost_no_time():
    dots_of(braille_curve([(0, 1e300), (1, 1.0), (2, 0.0)], 10, 4, top=1.0))


@pytest.mark.parametrize("points", [[], [(3, 5.0)]])
def test_few_points_are_few_dots(points):
    assert len(dots_of(braille_curve(points, 8, 3))) == len(points)


def test_a_level_line_lies_in_the_middle():
    (row,) = {y for _, y in dots_of(braille_curve([(0, 7.0), (9, 7.0)], 8, 3))}
    assert row in (5, 6)
