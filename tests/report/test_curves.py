"""Points thinned and smoothed without a lie, axes that hold what is drawn, labels that can be told apart."""

import math
import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bertworks.report.charts import round_step, smoothed, thinned, tick_label, value_label, x_axis, y_axis

values = st.floats(-1e6, 1e6).filter(lambda value: value == 0 or abs(value) > 1e-6)
noisy = [(step, math.sin(step / 50) + random.Random(step).gauss(0, 1)) for step in range(5_000)]


@given(st.lists(values, min_size=1, max_size=200), st.integers(2, 60))
def test_thinning_keeps_some_of_the_points_in_order_with_their_extremes(heights, most):
    points = list(enumerate(heights))
    kept = thinned(points, most)
    assert len(kept) <= max(most, 2)
    assert list(kept) == sorted(set(kept))
    assert set(kept) <= set(points)
    assert {min(heights), max(heights)} <= {y for _, y in kept}


def test_few_points_are_all_kept():
    assert thinned(noisy[:600], 600) == noisy[:600]
    assert 500 < len(thinned(noisy, 600)) <= 600


@pytest.mark.parametrize("reach", [0, 1, 7])
def test_a_straight_line_is_smooth_already_from_its_start_on(reach):
    line = [(x, 3.0 - 0.25 * x) for x in range(50)]
    for found, expected in zip(smoothed(line, reach)[: 50 - reach], line, strict=False):
        assert found == pytest.approx(expected)


def test_smoothing_is_the_mean_of_the_points_around_and_at_the_end_of_those_before():
    found = smoothed(noisy, 20)
    for index, end in ((100, 121), (2_000, 2_021), (4_990, 5_000), (4_999, 5_000)):
        around = [y for _, y in noisy[index - 20 : end]]
        assert found[index] == (index, pytest.approx(sum(around) / len(around)))
    assert found[0] == pytest.approx(noisy[0])


@given(st.lists(values, min_size=1, max_size=30), st.integers(0, 50))
def test_a_mean_lies_between_the_extremes(heights, reach):
    slack = 1e-6 * (1 + max(map(abs, heights)))
    for _, mean in smoothed(list(enumerate(heights)), reach):
        assert min(heights) - slack <= mean <= max(heights) + slack


@given(st.floats(1e-9, 1e9), st.integers(1, 12))
def test_a_step_is_the_smallest_round_one_of_which_few_enough_fit(width, most):
    step = round_step(width, most)
    power = 10 ** math.floor(math.log10(step) + 1e-9)
    factor = round(step / power)
    assert step == pytest.approx(factor * power)
    assert factor in (1, 2, 5)
    assert width / step <= most * (1 + 1e-6)
    smaller = {1: 0.5, 2: 1, 5: 2}[factor] * power
    assert width / smaller > most * (1 - 1e-6)


@given(st.lists(values, min_size=1, max_size=20), st.booleans())
def test_an_upright_axis_holds_all_values_between_its_first_and_last_tick(heights, from_zero):
    assume(max(heights) == min(heights) or max(heights) - min(heights) > 1e-9 * max(map(abs, heights)))
    axis = y_axis(heights, 5, from_zero=from_zero)
    slack = axis.step * 1e-6
    assert axis.low <= min(heights) + slack
    assert axis.high >= max(heights) - slack
    assert (axis.ticks[0], axis.ticks[-1]) == (axis.low, axis.high)
    assert 2 <= len(axis.ticks) <= 8
    if from_zero and min(heights) >= 0:
        assert axis.low == 0


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=20), st.integers(3, 6))
def test_a_level_axis_reaches_from_zero_to_the_last_value(steps, most):
    axis = x_axis(steps, most)
    assert (axis.low, axis.high) == (0, max(steps) or 1)
    assert axis.ticks[0] == 0
    assert 2 <= len(axis.ticks) <= most + 1
    assert axis.ticks[-1] <= axis.high * (1 + 1e-9)
    assert (axis.position(0, 40, 500), axis.position(axis.high, 40, 500)) == (40, 500)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=5), st.booleans())
def test_labels_of_an_axis_differ_from_each_other(heights, percent):
    assume(max(heights) - min(heights) > 1e-2 * max(heights))
    axis = y_axis(heights, 5)
    labels = [tick_label(tick, axis.step, percent) for tick in axis.ticks]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("value", "step", "percent", "label"),
    [
        (0, 2e5, False, "0"),
        (1_200_000, 2e5, False, "1,200,000"),
        (2.5, 0.5, False, "2.5"),
        (0.25, 0.05, True, "25%"),
        (0.255, 0.005, True, "25.5%"),
        (0.0, 0.1, True, "0%"),
        (5e-5, 5e-5, False, "5e-5"),
        (1.5e-4, 5e-5, False, "1.5e-4"),
        (0, 5e-5, False, "0"),
        (4e12, 2e12, False, "4e12"),
    ],
)
def test_ticks_are_written_with_the_digits_they_need(value, step, percent, label):
    assert tick_label(value, step, percent) == label


@pytest.mark.parametrize(
    ("value", "percent", "label"),
    [(3.21445, False, "3.214"), (1234567.8, False, "1,234,568"), (0.41234, True, "41.2%"), (9.1e-05, False, "9.1e-5"),
     (0.0, False, "0.000"), (2.5e13, False, "2.5e13"), (-0.5, False, "-0.500")],
)  # fmt: skip
def test_values_are_written_for_people(value, percent, label):
    assert value_label(value, percent) == label
