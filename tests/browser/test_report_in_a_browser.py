"""A run's report in a real browser, offline and opened from the disk: nothing overflows, no labels overlap, no errors.

Needs `pip install playwright` and a Chromium of the system or of playwright; skipped, and said so, where there is none.
"""

import json
import math
import random
import shutil

import pytest

from bertworks.config import to_toml
from bertworks.recipe import Recipe
from bertworks.report.page import Blank, Guess, Sample, Samples, Span, write_report, write_samples

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the report is UNTESTED in a browser: playwright is not installed"
)
SCREENS = [(390, "light"), (820, "dark"), (1_400, "light")]
OVERLAPS = """() => {
    const overlaps = [];
    for (const svg of document.querySelectorAll(".chart svg")) {
        const boxes = [...svg.querySelectorAll("text")].map((text) => [text.textContent, text.getBoundingClientRect()]);
        for (const [index, [name, box]] of boxes.entries()) {
            const outer = svg.getBoundingClientRect();
            if (box.left < outer.left - 1 || box.right > outer.right + 1) overlaps.push(`${name} is cut off`);
            for (const [other, its] of boxes.slice(index + 1)) {
                const beside = box.right < its.left || its.right < box.left;
                const below = box.bottom < its.top + 4 || its.bottom < box.top + 4;  // lines of text are loose
                if (!beside && !below) overlaps.push(`${name} and ${other}`);
            }
        }
    }
    return overlaps;
}"""


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        except sync_api.Error as error:
            pytest.skip(f"the report is UNTESTED in a browser: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


def write_run(folder):
    """A run of a million steps, with words of every width in its samples."""
    folder.mkdir()
    (folder / "recipe.toml").write_text(to_toml(Recipe()))
    rng = random.Random(0)
    with open(folder / "metrics.jsonl", "w") as metrics, open(folder / "timing.jsonl", "w") as timing:
        for step in range(1_000, 1_000_001, 1_000):
            loss = 2 + 8 * math.exp(-step / 5e4) + rng.gauss(0, 0.1)
            scores = {"loss": loss, "mlm_loss": loss, "mlm_accuracy": 1 / loss, "nsp_loss": 0.1, "nsp_accuracy": 0.98}
            line = {"step": step, **scores, "lr": 1e-4 * (1 - step / 1e6), "grad_norm": 1.0, "tokens": 32_768 * step}
            metrics.write(json.dumps(line) + "\n")
            timing.write(
                json.dumps({"step": step, "seconds": step / 10, "tokens_per_second": rng.gauss(1.2e6, 3e4)}) + "\n"
            )
            if step % 50_000 == 0:
                metrics.write(json.dumps({"step": step, **{f"holdout_{name}": s for name, s in scores.items()}}) + "\n")
    words = ["the", "한국어는", "x" * 90, "<b>bold</b>", "العربية", "##ing"]
    guesses = [
        Guess(piece=word, probability=share) for word, share in zip(words, (0.5, 0.2, 0.1, 0.05, 0), strict=False)
    ]
    blanks = [Blank(piece=word, seen="[MASK]", guesses=guesses) for word in words]
    spans = [Span(text=f" {word} ", blank=number) for number, word in enumerate(words)]
    sample = Sample(
        texts=[spans, [Span(text="많은 낱말 " * 40)]], blanks=blanks, follows=True, follows_probability=0.25
    )
    counts = {split: {"documents": 10**6, "sentences": 10**8, "tokens": 10**10} for split in ("train", "holdout")}
    write_samples(folder, Samples(data="w" * 60, vocab_size=9, counts=counts, next_majority=0.5, samples=[sample] * 3))
    return write_report(folder)


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("browser") / "run-위키백과")


@pytest.fixture(params=SCREENS, ids=lambda screen: f"{screen[0]}-{screen[1]}")
def page(request, browser, report):
    """The page, opened; whatever goes wrong in it fails the test."""
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: message.type == "error" and problems.append(message.text))
    page.on("dialog", lambda dialog: (problems.append("a dialog"), dialog.dismiss()))
    page.goto(report.as_uri())
    yield page
    context.close()
    assert problems == []


def test_nothing_overflows_and_no_labels_of_a_chart_overlap(page):
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.locator(".chart").count() == 6
    assert page.evaluate(OVERLAPS) == []


def test_the_style_is_applied_in_both_schemes(page):
    dark = page.evaluate("matchMedia('(prefers-color-scheme: dark)').matches")
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(21, 24, 28)" if dark else "rgb(252, 252, 251)")
    line = page.evaluate("getComputedStyle(document.querySelector('.chart .line.c0')).stroke")
    assert line == ("rgb(157, 184, 255)" if dark else "rgb(47, 75, 143)")


def test_texts_are_shown_as_texts_and_the_recipe_unfolds(page):
    assert "<b>bold</b>" in page.locator("mark").nth(3).inner_text()
    assert not page.locator("pre").is_visible()
    page.locator("summary").click()
    assert 'schedule = "linear"' in page.locator("pre").inner_text()


def test_probabilities_are_bars_of_their_length(page):
    bars = page.locator(".blanks > li").first.locator(".bar")
    widths = [bar.locator("rect").bounding_box()["width"] / bar.bounding_box()["width"] for bar in bars.all()[:4]]
    assert widths == pytest.approx([0.5, 0.2, 0.1, 0.05], abs=0.01)
