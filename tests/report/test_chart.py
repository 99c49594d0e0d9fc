"""A chart is well-formed, shows every point inside its axes, lets no labels touch and no text become markup."""

import itertools
import re
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.report.charts import chart, chart_style

WIDTH, HEIGHT, LETTER = 520, 250, 6.3


def parsed(text):
    return ElementTree.fromstring(text)


def lines_of(figure, style):
    """The points of each path of a style."""
    paths = [path for path in figure.iter("path") if path.get("class", "").split()[0] == style and "L" in path.get("d")]
    return [[tuple(map(float, point.split())) for point in path.get("d")[1:].split("L")] for path in paths]


def labels_of(figure):
    """The box of each label: left, right, baseline, text."""
    boxes = []
    for text in figure.iter("text"):
        width, x = LETTER * len(text.text or ""), float(text.get("x"))
        left = {"start": x, "middle": x - width / 2, "end": x - width}[text.get("text-anchor")]
        boxes.append((left, left + width, float(text.get("y")), text.text))
    return boxes


def descending(count, start=10.0):
    return [(step, start / (1 + step / 100)) for step in range(0, 10 * count, 10)]


def test_two_curves_have_a_legend_with_their_last_values():
    figure = parsed(chart("Loss", {"training": descending(10), "held out": [(50, 7.25)]}))
    texts = [text.text for text in figure.iter("text")]
    assert "training 5.263" in texts
    assert "held out 7.250" in texts
    assert figure.find("figcaption").text == "Loss"
    assert figure.find("svg").get("aria-label") == "Loss: training 5.263, held out 7.250 at step 90"


def test_each_of_few_points_is_marked_and_told():
    figure = parsed(chart("Accuracy", {"held out": [(1_000, 0.25), (2_000, 0.5)]}, percent=True))
    assert [title.text for title in figure.iter("title")] == ["held out, 1,000: 25.0%", "held out, 2,000: 50.0%"]
    (line,) = lines_of(figure, "line")
    circles = [(float(c.get("cx")), float(c.get("cy"))) for c in figure.iter("circle")]
    assert circles == line


def test_a_bar_through_a_point_reaches_as_far_as_its_spread_and_lies_inside():
    figure = parsed(chart("Accuracy", {"seeds": [(1, 0.5), (2, 0.6)]}, percent=True, spreads={"seeds": [0.05, 0.2]}))
    *bars, line = lines_of(figure, "line")
    scale = (line[0][1] - line[1][1]) / 0.1  # pixels of a share of 1
    assert len(bars) == 2
    for (low, high), (x, y), half in zip(bars, line, (0.05, 0.2), strict=True):
        assert low[0] == high[0] == x
        assert [low[1] - y, y - high[1]] == pytest.approx([half * scale] * 2, abs=0.3)
        assert 33.9 <= high[1] < low[1] <= 220.1


def test_many_points_are_drawn_faintly_as_they_are_and_strongly_smoothed():
    points = [(step, 5 + (step % 7) / 10) for step in range(20_000)]
    figure = parsed(chart("Loss", {"training": points}))
    (raw,), (smooth,) = lines_of(figure, "raw"), lines_of(figure, "line")
    assert max(len(raw), len(smooth)) <= 600
    assert not list(figure.iter("circle"))

    def spread(line):
        return max(y for _, y in line) - min(y for _, y in line)

    assert spread(smooth[5:-5]) < 0.1 * spread(raw)


def test_what_is_exact_is_not_smoothed():
    points = [(step, min(step, 400)) for step in range(1_000)]
    figure = parsed(chart("Learning rate", {"last": points}, is_noisy=False))
    assert not lines_of(figure, "raw")
    (line,) = lines_of(figure, "line")
    assert min(y for _, y in line) == line[-1][1]


def lists_of(heights):
    points = st.tuples(st.integers(0, 6 * 10**9), heights.map(lambda height: round(height, 5)))
    return st.lists(points, min_size=1, max_size=30, unique_by=lambda point: point[0])


@given(
    st.one_of(
        st.tuples(lists_of(st.floats(-1e7, 1e7)), st.just(False)), st.tuples(lists_of(st.floats(0, 1)), st.just(True))
    ),
    st.booleans(),
)
@settings(deadline=None)
def test_whatever_is_drawn_lies_inside_and_no_labels_touch(drawn, from_zero):
    points, percent = drawn
    figure = parsed(chart("Any", {"training": sorted(points)}, percent=percent, from_zero=from_zero))
    check_labels(figure)
    for line in lines_of(figure, "line"):
        assert all(-0.1 <= x <= WIDTH + 0.1 and 33.9 <= y <= 220.1 for x, y in line)


@pytest.mark.parametrize("last", [9, 999, 10**6, 1_199_999, 29_999_999, 10**9 - 1, 2_900_000_000, 9 * 10**9, 10**13])
def test_labels_have_room_below_however_long_a_run_is(last):
    check_labels(parsed(chart("Loss", {"training": [(1, 2.0), (last, 1.0)]})))


def check_labels(figure):
    boxes = labels_of(figure)
    for left, right, y, _ in boxes:
        assert left >= -0.1
        assert right <= WIDTH + 0.1
        assert 0 < y < HEIGHT
    for index, (left, right, y, text) in enumerate(boxes):
        for other_left, other_right, other_y, other in boxes[index + 1 :]:
            assert abs(y - other_y) > 11 or right < other_left or other_right < left, (text, other)


def test_higher_values_are_drawn_higher_and_later_ones_further_right():
    (line,) = lines_of(parsed(chart("Loss", {"training": descending(30)})), "line")
    assert all(x < later_x and y < later_y for (x, y), (later_x, later_y) in itertools.pairwise(line))


@pytest.mark.parametrize("points", [[(5, 0.0)], [(5, 3.0)], [(0, -2.0)], [(1, 4.0), (2, 4.0)], [(0, 0.0), (1, 0.0)]])
def test_one_point_and_level_lines_can_be_drawn(points):
    figure = parsed(chart("Loss", {"training": points}))
    assert len(list(figure.iter("circle"))) == len(points)


def test_nothing_is_drawn_of_nothing():
    assert chart("Loss", {}) == ""
    assert chart("Loss", {"training": [], "held out": []}) == ""
    assert "c1" in chart("Loss", {"training": [], "held out": [(1, 1.0)]})


def test_names_are_text():
    name = "</text><script>alert(1)</script>\"'&"
    figure = parsed(chart(name, {name: [(1, 1.0)]}, x_name=name))
    assert {element.tag for element in figure.iter()} <= {
        "figure",
        "figcaption",
        "svg",
        "path",
        "text",
        "circle",
        "title",
    }
    assert figure.find("figcaption").text == name


def test_the_style_names_what_is_drawn_and_loads_nothing():
    style = chart_style()
    for used in (".grid", ".line", ".raw", ".c0", ".c1", "circle", "text"):
        assert used in style
    assert not re.search(r"url\(|@import|https?:", style)
