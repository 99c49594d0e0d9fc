"""The pages of reproduced tables in a real browser: nothing overflows, no labels overlap, and commands unfold."""

import sys
from pathlib import Path

import pytest
from test_report_in_a_browser import OVERLAPS, SCREENS, browser  # noqa: F401 -- a fixture

sys.path.insert(0, str(Path(__file__).parents[1] / "reproduction"))

from made_up_runs import setup_for, write_made_up


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    setup = setup_for(folder / "data", folder / "out")
    for name in ("table1", "table6", "figure5", "systems"):
        write_made_up(setup, name, {"": 0.8, "ltr": 0.6, "elmo": 0.5, "size1": 0.4, "random": 0.3})
    return folder / "out"


@pytest.fixture(params=SCREENS, ids=lambda screen: f"{screen[0]}-{screen[1]}")
def page(request, browser, pages):  # noqa: F811 -- the fixture
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.goto((pages / "index.html").as_uri())
    yield page
    context.close()
    assert problems == []


def test_nothing_overflows_and_no_labels_overlap(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.evaluate(OVERLAPS.replace(".chart svg", ".chart svg, .dumbbell svg")) == []


def test_a_row_unfolds_to_its_commands(page):
    first = page.locator(".unfold").first
    assert not first.locator("pre").is_visible()
    first.locator("summary").click()
    assert "bertworks finetune" in first.locator("pre").inner_text()
