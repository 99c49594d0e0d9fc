"""The documentation's site in a real browser, offline and from the disk: it searches, and loads nothing from outside.

Needs what `make docs` installs, `pip install playwright` and a Chromium; skipped, and said so, where one is missing.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="the site is UNTESTED in a browser: playwright is not installed"
)
ROOT = Path(__file__).parents[2]
MKDOCS = ROOT / ".venv-docs" / "bin" / "python"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Return the address of the site's folder."""
    if not MKDOCS.exists():
        pytest.skip("the site is UNTESTED in a browser: `make docs` was not run here")
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, ROOT / "tools" / "reference.py", ROOT / "build" / "reference"], check=True)
    command = [MKDOCS, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    built = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert (built.returncode, built.stderr) == (0, "")
    return folder.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        try:
            running = playwright.chromium.launch(
                executable_path=shutil.which("chromium") or shutil.which("google-chrome"), args=["--no-sandbox"]
            )
        except sync_api.Error as error:
            pytest.skip(f"the site is UNTESTED in a browser: {str(error).splitlines()[0]}")
        yield running
        running.close()


@pytest.fixture
def opened(browser):
    """Give a function that opens a page; what it asked for and what went wrong is in lists."""
    pages = []

    def open_page(address, width):
        page = browser.new_context(viewport={"width": width, "height": 900}, offline=True).new_page()
        page.asked, page.wrong = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.wrong.append(str(error)))
        page.goto(address)
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()


@pytest.mark.parametrize("width", [390, 1_280])
@pytest.mark.parametrize("name", ["index", "reference/commands", "reference/settings", "reference/python", "training"])
def test_a_page_loads_nothing_from_outside_and_fits_the_screen(site, opened, name, width):
    page = opened(f"{site}/{name}.html", width)
    assert [url for url in page.asked if not url.startswith(("file:", "data:", "about:"))] == []
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert page.wrong == []


@pytest.mark.parametrize(
    ("words", "found"),
    [("train.epochs", "Fine-tuning"), ("restart-best", "Commands"), ("사전 학습", "사전 학습하기")],
)
def test_the_search_works_from_the_disk_in_both_languages(site, opened, words, found):
    page = opened(f"{site}/index.html", 1_280)
    page.fill("input.md-search__input", words)
    page.wait_for_selector(".md-search-result__item", timeout=20_000)
    assert found in page.inner_text(".md-search-result__list")
    assert page.wrong == []
