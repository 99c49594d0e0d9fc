"""The attention page in a real browser, offline and opened from the disk: what a person does and sees there.

Needs `pip install playwright` and a Chromium of the system or of playwright; skipped, and said so, where there is none.
"""

import shutil

import numpy as np
import pytest

from bertworks.report.attention import attention_page

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the attention page is UNTESTED in a browser: playwright is not installed"
)
TOKENS = ["[CLS]", "who", "</script><script>alert(1)</script>", "[SEP]", "오늘", "x" * 200, "[SEP]"]
SEGMENTS = [0, 0, 0, 0, 1, 1, 1]
SIZES = [(400, 800, 2), (1400, 900, 1)]  # width, height, pixels of the screen for one of the page


def weights():
    """Head 1 of each layer looks at the next token (the last at itself), head 2 at the first (1/4) and itself (3/4)."""
    heads = np.zeros((3, 2, 7, 7), np.float32)
    for token in range(7):
        heads[:, 0, token, min(token + 1, 6)] = 1
        heads[:, 1, token, 0] += 0.25
        heads[:, 1, token, token] += 0.75
    return heads


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"the attention page is UNTESTED in a browser: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture(params=SIZES, ids=["narrow", "wide"])
def page(request, browser, tmp_path):
    """The page, opened; whatever goes wrong in it fails the test."""
    path = tmp_path / "attention.html"
    path.write_text(attention_page(TOKENS, SEGMENTS, weights(), "mini: <b>who</b>"), encoding="utf-8")
    width, height, ratio = request.param
    viewport = {"width": width, "height": height}
    context = browser.new_context(viewport=viewport, device_scale_factor=ratio, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
    page.goto(path.as_uri())
    yield page
    context.close()
    assert problems == []


def shares(page, side):
    return page.locator(f"#{side} .share").all_inner_texts()


def test_tokens_are_shown_as_text_and_nothing_overflows(page):
    assert page.locator("#from bdi").all_inner_texts() == TOKENS
    assert page.locator("h1").inner_text() == "mini: <b>who</b>"
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_a_token_under_the_pointer_shows_the_mean_of_the_heads(page):
    page.locator("#from li").nth(1).hover()
    assert shares(page, "to") == ["13%", "38%", "50%", "", "", "", ""]
    assert page.locator("#told").inner_text().startswith("who attends to </script>")
    page.locator("#to li").nth(1).hover()
    assert shares(page, "from") == ["50%", "38%", "", "", "", "", ""]


def test_heads_are_chosen_by_their_chips(page):
    page.locator("#chips button").nth(0).click()
    page.locator("#from li").nth(1).hover()
    assert shares(page, "to") == ["25%", "75%", "", "", "", "", ""]
    page.locator("#chips button").nth(0).dblclick()
    page.locator("#from li").nth(1).hover()
    assert shares(page, "to") == ["", "", "100%", "", "", "", ""]


def test_sentences_and_special_tokens_are_filtered(page):
    page.select_option("#filter", "BB")
    page.locator("#from li").nth(4).hover()
    assert shares(page, "to") == ["", "", "", "", "38%", "50%", ""]
    page.select_option("#filter", "BA")
    page.locator("#from li").nth(4).hover()
    assert shares(page, "to") == ["13%", "", "", "", "", "", ""]
    page.locator("#special").uncheck()
    page.locator("#from li").nth(4).hover()
    assert shares(page, "to") == [""] * 7


def test_lines_meet_their_tokens(page):
    page.locator("#chips button").nth(0).dblclick()
    drawn = page.evaluate("""() => {
        const canvas = element("lines"), pen = canvas.getContext("2d");
        const top = canvas.getBoundingClientRect().top;
        return rows.to.map((row) => {
            const box = row.getBoundingClientRect();
            const y = Math.round(((box.top + box.bottom) / 2 - top) * devicePixelRatio);
            return pen.getImageData(canvas.width - 3, y, 1, 1).data[3] > 100;
        });
    }""")
    assert drawn == [False, True, True, True, True, True, True]  # nobody looks at the first


def test_the_keyboard_is_enough(page):
    page.locator("#from li").first.focus()
    page.keyboard.press("ArrowDown")
    assert shares(page, "to")[2] == "50%"
    page.keyboard.press("ArrowRight")
    assert shares(page, "from")[0] == "50%"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert shares(page, "from")[0] == "50%"  # held
    page.keyboard.press("Escape")
    assert shares(page, "from") == [""] * 7


def test_a_thumbnail_opens_its_head(page):
    page.locator("input[value=model]").check(force=True)
    assert page.locator("#from").is_hidden()
    assert page.locator("#thumbnails button").count() == 6
    page.get_by_role("button", name="Layer 2, head 1", exact=True).focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert page.locator("#layer").input_value() == "1"
    assert page.locator("#chips button[aria-pressed=true]").all_inner_texts() == ["2"]
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Head 2"
