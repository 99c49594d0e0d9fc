"""The animated picture of the panel: complete in one file, and made of what the panel really draws."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from terminals import terminal

from bertworks.recipe import TrainSettings
from bertworks.report.logs import About, Status
from bertworks.report.terminal import Panel, panel_of
from bertworks.train.log import Progress

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tools"))

import panel_svg  # noqa: E402 -- a script, not a module of a package

STORED = ROOT / "docs" / "pictures" / "pretrain.svg"
SVG = "{http://www.w3.org/2000/svg}"


def texts_of(element):
    return [text.text for text in element.iter(f"{SVG}text")]


def check_complete(picture):
    """Return the frames of a well-formed picture that runs nothing, loads nothing and rests on its last frame."""
    root = ElementTree.fromstring(picture)
    tags = {element.tag.removeprefix(SVG) for element in root.iter()}
    assert tags <= {"svg", "title", "style", "rect", "text", "path", "g"}
    assert not [name for element in root.iter() for name in element.attrib if re.search("href|src|^on", name)]
    assert not re.search(r"url\(|@import|@font-face|https?:(?!//www\.w3\.org/2000/svg\")", picture)
    assert root.find(f"{SVG}title").text.startswith("The live panel")
    style, frames = root.find(f"{SVG}style").text, root.findall(f"{SVG}g")
    still, moving = style.split("@media (prefers-reduced-motion:no-preference)")
    assert "animation" not in still
    assert set(re.findall(r"animation:(\w+)", moving)) == {frame.get("id") for frame in frames}
    assert [frame.get("visibility") for frame in frames] == ["hidden"] * (len(frames) - 1) + [None]
    return frames


def test_the_stored_picture_is_complete_small_and_of_a_whole_run():
    picture = STORED.read_text(encoding="utf-8")
    assert len(picture.encode()) < 150_000
    frames = check_complete(picture)
    assert 12 <= len(frames) <= 20
    assert any("0.0%" in text for text in texts_of(frames[0]))
    assert any("100.0%" in text for text in texts_of(frames[-1]))
    assert panel_svg.COMMAND in picture


def test_a_picture_shows_what_the_panel_draws(monkeypatch: pytest.MonkeyPatch):
    status = Status(About("<a> & b", TrainSettings(max_steps=40), ("mlm", "nsp")), Progress())
    panel, plain = Panel(), []
    with terminal(monkeypatch) as written:
        for step in (10, 20, 30, 40):
            status.train(Progress(step=step, tokens=200 * step, seconds=step), {"loss": 9 - step / 10})
            panel("evaluate", status)
            plain.append(panel_of(status, 100).plain)
        panel.close()
    drawings = panel_svg.drawings_of(written[0])
    assert len(drawings) == 4
    drawings = panel_svg.chosen(drawings, 3)
    frames = check_complete(panel_svg.picture("a & b", drawings, 3))
    for frame, drawn in zip(frames, (plain[0], plain[2], plain[3]), strict=True):
        assert re.search(r"\d+ of 40 steps", drawn)[0] in " ".join(texts_of(frame))
        paths = [(path.get("class"), path.get("d")) for path in frame.iter(f"{SVG}path")]
        bar = sum(float(line.partition("h")[2]) for kind, line in paths if kind == "cyan heavy")
        assert bar == pytest.approx((drawn.count("━") + drawn.count("╸") / 2) * 8.4, abs=0.01)
        num_dots = sum((ord(character) & 0xFF).bit_count() for character in drawn if "\u2800" < character <= "\u28ff")
        assert sum(line.count("h0") for kind, line in paths if kind == "cyan dots") == num_dots


def test_the_dots_of_braille_are_where_unicode_has_them():
    (path,) = panel_svg.elements(
        "\u2801\u2880", 0
    )  # the upper left dot, then the lower right one of the next character
    (left, upper), (right, lower) = ((float(x), float(y)) for x, y in re.findall(r"M([\d.]+) ([\d.]+)h0", path))
    assert (right - left, lower - upper) == pytest.approx((1.5 * 8.4, 15), abs=0.1)


def test_the_frames_are_from_the_first_drawing_to_the_last():
    drawings = [str(number) for number in range(100)]
    frames = panel_svg.chosen(drawings, 12)
    assert (frames[0], frames[-1], len(set(frames))) == ("0", "99", 12)
    assert panel_svg.chosen(["only"], 12) == ["only"]
