"""What it takes to draw a curve, apart from the drawing: thousands of points thinned and smoothed, axes, labels.

`chart.py` draws with it on pages.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

Points = Sequence[tuple[float, float]]

_STEPS = (1, 2, 5, 10)
_LEVEL, _NOTHING = 1e-12, 1e-300  # differences, relative and absolute, that no axis can show
_LONGEST = 1e9  # numbers from here on are written by their power of ten


class Axis(NamedTuple):
    """The range that is shown, and the places that are labelled."""

    low: float
    high: float
    ticks: list[float]
    step: float

    def place(self, value: float, first: float, last: float) -> float:
        """Return where a value lies between two pixels."""
        return first + (value - self.low) / (self.high - self.low) * (last - first)


def thinned(points: Points, most: int) -> Points:
    """Return at most so many of the points: of each stretch the lowest and the highest, in their order."""
    if len(points) <= most:
        return points
    size = len(points) / (most // 2)
    kept = []
    for part in range(most // 2):
        stretch = range(round(part * size), round((part + 1) * size))
        lowest, highest = min(stretch, key=lambda i: points[i][1]), max(stretch, key=lambda i: points[i][1])
        kept += [points[index] for index in sorted({lowest, highest})]
    return kept


def smoothed(points: Points, reach: int) -> Points:
    """Return each point with the mean of those up to `reach` before and behind it."""
    sums = [0.0, *itertools.accumulate(y for _, y in points)]
    found = []
    for index, (x, _) in enumerate(points):
        # At the start as many on either side, or its steep slope would be bent; at the end all that there are before.
        before = min(reach, index)
        end = min(index + before, len(points) - 1) + 1
        found.append((x, (sums[end] - sums[index - before]) / (end - index + before)))
    return found


def round_step(width: float, most: int) -> float:
    """Return the smallest of 1, 2, 5, 10, 20 ... that divides a width into at most so many parts."""
    power = 10.0 ** math.floor(math.log10(width / most))
    return next(factor * power for factor in _STEPS if factor * power * most >= width * (1 - 1e-9))


def tick_label(value: float, step: float, percent: bool = False) -> str:
    """Write a tick with the digits that its neighbours differ in."""
    if percent:
        return f"{100 * value:,.{_decimals(100 * step)}f}%"
    if value and not 1e-3 <= step < _LONGEST:
        return _short_power(value)
    return f"{value:,.{_decimals(step) if value else 0}f}"


def value_label(value: float, percent: bool = False) -> str:
    """Write a value with three or four digits that say something."""
    if percent:
        return f"{value:.1%}"
    if value and not 1e-2 <= abs(value) < _LONGEST:
        return _short_power(value)
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3f}"


def _short_power(value: float) -> str:
    """Write a number as 2.5e-5."""
    digits, _, power = f"{value:.2e}".partition("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"


def _decimals(step: float) -> int:
    return max(0, -math.floor(math.log10(step) + 1e-9))


def x_axis(values: Sequence[float], most: int) -> Axis:
    """Return an axis of at most so many steps that begins at zero and ends at the last value."""
    high = max(values) or 1
    step = round_step(high, most)
    return Axis(0, high, [step * count for count in range(math.floor(high / step + 1e-9) + 1)], step)


def y_axis(values: Sequence[float], most: int, *, from_zero: bool = False) -> Axis:
    """Return an axis of about so many steps that begins and ends at one."""
    low, high = (min(0.0, *values) if from_zero else min(values)), max(values)
    if high - low <= _LEVEL * max(abs(low), abs(high)):
        low, high = min(0.0, low), max(0.0, high)
    if high - low < _NOTHING:
        high = low + 1
    step = round_step(high - low, most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, [step * count for count in range(first, last + 1)], step)
