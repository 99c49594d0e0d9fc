"""Charts and other parts of pages, as HTML and SVG without a library and without scripts.

`chart` draws one figure with axes, up to two curves, and a legend with their last values. Colours and fonts are the
page's, which must contain `chart_style` once. A curve with many points is drawn twice: the raw curve in a light colour,
reduced to at most 600 points that keep its extremes, and a smoothed curve in a strong one.

A page is one file, made from the files of `pages`, that loads nothing from outside. Its content security policy allows
the styles and scripts that we ship by their hashes, and all text from outside is `escaped`.
"""

import base64
import hashlib
import html
import itertools
import math
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import NamedTuple

Points = Sequence[tuple[float, float]]

_LEVEL, _NOTHING = 1e-12, 1e-300  # differences, relative and absolute, that no axis can show
_LONGEST = 1e9  # larger numbers are written with a power of ten
_MOST_DRAWN = 600
_FEWEST_SMOOTHED = 80
_SMOOTHED_PARTS = 60  # a smoothed point is the mean of this fraction (1/60) of the curve on either side
_MOST_DOTTED = 40  # curves with up to this many points have each of them marked
_WIDTH, _HEIGHT = 520, 250
_TOP, _BASE, _LABELS = 34, 220, 238  # the lower edge of the legend, the horizontal axis, and the baseline of its labels
_GAP = 8  # between the vertical axis and its labels
_LETTER = 6.3  # the width of a digit at the style's 11 pixels, with some room
_USUAL_LABEL = 9  # letters of 1,000,000: all charts of a page have the same margins, unless labels are longer
_MOST_TICKS = 6


def chart(
    title: str,
    curves: Mapping[str, Points],
    *,
    percent: bool = False,
    from_zero: bool = False,
    is_noisy: bool = True,
    x_name: str = "step",
    spreads: Mapping[str, Sequence[float]] | None = None,
) -> str:
    """Draw curves with common axes as an HTML figure; empty if there are no points.

    Args:
        title: the caption above the picture.
        curves: one or two by their names in the legend; finite points in ascending order of x, none below zero. Those
            without points are left out.
        percent: whether values are shares, to be written in percent.
        from_zero: whether the vertical axis begins at zero.
        is_noisy: whether long curves are to be smoothed.
        x_name: the name of the horizontal axis.
        spreads: of curves by their names, half the length of the vertical bar through each point.
    """
    spreads = spreads or {}
    shown = [(number, name, points) for number, (name, points) in enumerate(curves.items()) if points]
    if not shown:
        return ""
    everything = [point for _, _, points in shown for point in points]
    bars = {
        number: [(x, y - half, y + half) for (x, y), half in zip(points, spreads[name], strict=True)]
        for number, name, points in shown
        if name in spreads
    }
    ends = [end for some in bars.values() for _, *both in some for end in both]
    y_ticks = y_axis([*(y for _, y in everything), *ends], _MOST_TICKS - 1, from_zero=from_zero)
    # Long numbers need room: a label takes at most two thirds of the distance to the next one.
    longest = len(f"{max(x for x, _ in everything):,.0f}")
    x_ticks = x_axis([x for x, _ in everything], min(_MOST_TICKS, int(_WIDTH / (1.5 * _LETTER * longest))))
    widest = max(len(x_name), *(len(tick_label(tick, y_ticks.step, percent)) for tick in y_ticks.ticks))
    # A percent sign is nearly as wide as two digits.
    left = max(_USUAL_LABEL, widest + percent) * _LETTER + _GAP
    right = _WIDTH - max(_USUAL_LABEL, len(tick_label(x_ticks.ticks[-1], x_ticks.step))) * _LETTER / 2

    def placed(points: Points) -> Points:
        return [(x_ticks.position(x, left, right), y_ticks.position(y, _BASE, _TOP)) for x, y in points]

    def text(x: float, y: float, content: str, anchor: str) -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escaped(content)}</text>'

    def line(style: str, points: Points) -> str:
        positions = placed(thinned(points, _MOST_DRAWN))
        return f'<path class="{style}" d="M{"L".join(f"{x:.1f} {y:.1f}" for x, y in positions)}"/>'

    parts = []
    for tick in y_ticks.ticks:
        y = y_ticks.position(tick, _BASE, _TOP)
        parts.append(f'<path class="grid" d="M{left:.1f} {y:.1f}H{right:.1f}"/>')
        parts.append(text(left - _GAP, y + 4, tick_label(tick, y_ticks.step, percent), "end"))
    for tick in x_ticks.ticks:
        x = x_ticks.position(tick, left, right)
        parts.append(f'<path class="grid" d="M{x:.1f} {_BASE}v4"/>')
        parts.append(text(x, _LABELS, tick_label(tick, x_ticks.step), "middle"))
    parts.append(text(left - _GAP, _LABELS, x_name, "end"))
    legend = {number: f"{name} {value_label(points[-1][1], percent)}" for number, name, points in shown}
    x = left
    for number, entry in legend.items():
        parts.append(f'<path class="line c{number}" d="M{x:.1f} 14h16"/>{text(x + 22, 18, entry, "start")}')
        x += 22 + (len(entry) + 3) * _LETTER
    for number, some in bars.items():
        parts += [line(f"line c{number}", [(x, low), (x, high)]) for x, low, high in some]
    for number, name, points in shown:
        if is_noisy and len(points) >= _FEWEST_SMOOTHED:
            strong = smoothed(points, len(points) // _SMOOTHED_PARTS)
            parts += [line(f"line c{number}", strong), line(f"raw c{number}", points)]
        else:
            parts.append(line(f"line c{number}", points))
        if len(points) <= _MOST_DOTTED:  # mark every point, and show its value as a tooltip
            for (step, value), (x, y) in zip(points, placed(points), strict=True):
                message = escaped(f"{name}, {step:,.0f}: {value_label(value, percent)}")
                parts.append(
                    f'<circle class="c{number}" cx="{x:.1f}" cy="{y:.1f}" r="2.5"><title>{message}</title></circle>'
                )
    label = escaped(f"{title}: {', '.join(legend.values())} at {x_name} {x_ticks.high:,.0f}")
    return (
        f'<figure class="chart"><figcaption>{escaped(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{label}">{"".join(parts)}</svg></figure>'
    )


def chart_style() -> str:
    """Return the style of all charts, which uses the page's colours --paper, --quiet, --edge, --ink and --second."""
    return page_file("chart.css")


class Axis(NamedTuple):
    """The range of an axis, and its labelled ticks."""

    low: float
    high: float
    ticks: list[float]
    step: float

    def position(self, value: float, first: float, last: float) -> float:
        """Return the coordinate of a value, between the coordinates of both ends of the axis."""
        return first + (value - self.low) / (self.high - self.low) * (last - first)


def thinned(points: Points, most: int) -> Points:
    """Return at most `most` of the points: the lowest and the highest of each section, in order."""
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
    """Return each point with the mean of those up to `reach` before and after it."""
    sums = [0.0, *itertools.accumulate(y for _, y in points)]
    found = []
    for index, (x, _) in enumerate(points):
        # At the start take equally many on both sides, to keep a steep slope; at the end take all `reach` points
        # before.
        before = min(reach, index)
        end = min(index + before, len(points) - 1) + 1
        found.append((x, (sums[end] - sums[index - before]) / (end - index + before)))
    return found


def round_step(width: float, most: int) -> float:
    """Return the smallest of ..., 0.1, 0.2, 0.5, 1, 2, 5, 10 ... that divides a width into at most `most` parts."""
    power = 10.0 ** math.floor(math.log10(width / most))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power * most >= width * (1 - 1e-9))


def tick_label(value: float, step: float, percent: bool = False) -> str:
    """Write a tick with as many decimals as needed to tell it from its neighbours."""
    if percent:
        return f"{100 * value:,.{_decimals(100 * step)}f}%"
    if value and not 1e-3 <= step < _LONGEST:
        return _short_power(value)
    return f"{value:,.{_decimals(step) if value else 0}f}"


def value_label(value: float, percent: bool = False) -> str:
    """Write a value with three or four significant digits."""
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
    """Return an axis with at most `most` steps that begins at zero and ends at the last value."""
    high = max(values) or 1
    step = round_step(high, most)
    return Axis(0, high, [step * count for count in range(math.floor(high / step + 1e-9) + 1)], step)


def y_axis(values: Sequence[float], most: int, *, from_zero: bool = False) -> Axis:
    """Return an axis with about `most` steps that begins and ends at a tick."""
    low, high = (min(0.0, *values) if from_zero else min(values)), max(values)
    if high - low <= _LEVEL * max(abs(low), abs(high)):
        low, high = min(0.0, low), max(0.0, high)
    if high - low < _NOTHING:
        high = low + 1
    step = round_step(high - low, most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return Axis(first * step, last * step, [step * count for count in range(first, last + 1)], step)


def page_file(*path: str) -> str:
    """Return the text of a file in `pages`."""
    return resources.files("bertworks").joinpath("pages", *path).read_text(encoding="utf-8")


def content_hash(content: str) -> str:
    """Return the sha256 of a style or a script as written in a content security policy."""
    return base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def escaped(text: str) -> str:
    """Escape text from outside for HTML, including attributes in quotes; a lone surrogate becomes `?`."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"))
