"""The documentation: no link leads nowhere, no page is forgotten, and the pages from the code have all of it.

Links are checked as MkDocs and code hosts read them, without either: a heading's anchor is its text in lower case,
without punctuation and with hyphens between words.
"""

import importlib.util
import itertools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer

import bertworks
from bertworks.cli import app
from bertworks.config import described
from bertworks.finetuning.settings import FinetuneSettings
from bertworks.recipe import Recipe
from bertworks.serving.settings import Limits

ROOT = Path(__file__).parents[1]
WRITTEN = "docs/results/reproduce/"  # by `bertworks reproduce`, and shown by its own pages
PAGES = sorted(
    page
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not (page := path.relative_to(ROOT).as_posix()).startswith(WRITTEN)
)  # also those in folders that others add
BUILT = "docs/reference"  # made by tools/reference.py
_FENCE = re.compile(r"^(`{3,})[^\n]*\n.*?^\1`*\s*$", re.MULTILINE | re.DOTALL)
_INLINE = re.compile(r"(`+)[^`].*?\1")
_LINK = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)|(?:src|href)=\"([^\"]+)\"")
_HEADING = re.compile(r"^(#{1,6}) +(.+?)(?: +#+)?$", re.MULTILINE)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """Return the texts of the pages that are made from the code."""
    folder = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, ROOT / "tools" / "reference.py", folder], check=True)
    return {page.name: page.read_text(encoding="utf-8") for page in folder.iterdir()}


def text_of(page, reference):
    if page.startswith(f"{BUILT}/"):
        return reference[page.rpartition("/")[2]]
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(text):
    """Return the anchors of a page: of its headings, those that attributes give, and those of HTML."""
    plain = _FENCE.sub("", text)
    found = {*re.findall(r"(?:id|name)=\"([^\"]+)\"", plain)}
    for _, title in _HEADING.findall(plain):
        given = re.search(r"\{#([\w.-]+)\}", title)
        shown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title.replace("`", ""))
        slug = re.sub(r"[^\w\- ]", "", shown.lower()).strip().replace(" ", "-")
        name, number = slug, 0
        while name in found and not given:
            number += 1
            name = f"{slug}-{number}"  # a code host's; MkDocs writes _1
        found.add(given[1] if given else name)
    return found


def links(text):
    for first, second in _LINK.findall(_INLINE.sub("", _FENCE.sub("", text))):
        target = first or second
        if not re.match(r"[a-z][a-z+.-]*:", target):
            yield target


@pytest.mark.parametrize("page", [*PAGES, *(f"{BUILT}/{name}" for name in ("commands.md", "settings.md", "python.md"))])
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page, reference):
    text = text_of(page, reference)
    wrong = []
    for link in links(text):
        path, _, anchor = link.partition("#")
        target = page
        if path:
            target = (ROOT / page).parent.joinpath(path).resolve()
            if not target.is_relative_to(ROOT):
                wrong.append(f"{link}: outside the repository")
                continue
            target = target.relative_to(ROOT).as_posix()
            if target not in (f"{BUILT}/{name}" for name in reference) and not (ROOT / target).exists():
                wrong.append(f"{link}: no such file")
                continue
        if anchor and target.endswith(".md") and anchor not in anchors(text_of(target, reference)):
            wrong.append(f"{link}: no such heading")
    assert not wrong


@pytest.fixture(scope="module")
def of_site():
    """Return the function that makes a page's text that of the site."""
    spec = importlib.util.spec_from_file_location("docs_site", ROOT / "tools" / "docs_site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.of_site


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_no_link_of_the_site_leaves_it(of_site, reference, page):
    name = page.removeprefix("docs/")
    made = {f"reference/{name}" for name in reference}

    def has(path):
        return path in made or (ROOT / "docs" / path).is_file()

    for link in links(of_site(text_of(page, reference), name, has)):
        target = link.partition("#")[0]
        assert not target or has(os.path.normpath(os.path.join(os.path.dirname(name), target))), link


def test_links_into_the_repository_become_paths_or_links(of_site):
    text = "[`cli/use.py`](../bertworks/cli/use.py), [the tests](../tests/test_docs.py#L1), [a](a.md), 5 %"
    assert of_site(text, "page.md", lambda path: path == "a.md") == (
        "`bertworks/cli/use.py`, the tests (`tests/test_docs.py`), [a](a.md), 5&nbsp;%"
    )
    linked = of_site("[the tests](../tests/test_docs.py#L1)", "page.md", lambda _: False, "https://example.org/it/")
    assert linked == "[the tests](https://example.org/it/blob/main/tests/test_docs.py#L1)"
    assert of_site("```\n[x](../Makefile) 5 %\n```\n", "page.md", lambda _: False) == "```\n[x](../Makefile) 5 %\n```\n"


def test_every_page_is_in_the_navigation_of_the_site():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    named = re.findall(r"([\w./-]+?)(\.md\b|/\*)", navigation)
    folders = {name for name, ending in named if ending == "/*"}
    pages = {f"{name}.md" for name, ending in named if ending == ".md"}
    ours = {page.removeprefix("docs/") for page in PAGES if page.startswith("docs/")}
    assert {page for page in ours if page not in pages and page.rpartition("/")[0] not in folders} == set()
    assert {page for page in pages if page not in ours and not (ROOT / page).exists()} == {
        "reference/commands.md", "reference/python.md", "reference/settings.md",
    }  # fmt: skip


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("docs/")])
def test_lists_and_tables_have_a_blank_line_before_them(page):
    """MkDocs reads a list that follows a line of text as more of that text; code hosts do not."""
    lines = _FENCE.sub("", text_of(page, {})).splitlines()
    starts = re.compile(r"(?:[-*+]|\d+\.) |\|")
    wrong = [
        line
        for before, line in itertools.pairwise(lines)
        if starts.match(line) and before.strip() and not before.startswith((" ", "<")) and not starts.match(before)
    ]
    assert not wrong


def test_the_reference_has_every_command_and_every_option(reference):
    page = reference["commands.md"]
    for name, command in typer.main.get_command(app).commands.items():
        part = page.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        shown = [param for param in command.params if not getattr(param, "hidden", False)]
        assert len(re.findall(r"^\| `", part, re.MULTILINE)) == len(shown), name
        for param in shown:
            assert param.param_type_name == "argument" or f"{param.opts[0]}" in part, (name, param.name)
        assert "..." not in part.partition("\n\n")[0]


@pytest.mark.parametrize("settings", [Recipe(), FinetuneSettings(), Limits()])
def test_the_reference_has_every_setting_and_every_setting_has_a_meaning(reference, settings):
    for row in described(settings):
        assert f"| `{row['setting']}` | " in reference["settings.md"]
        assert row["help"].endswith("."), row["setting"]


def test_the_reference_has_every_public_name_and_the_arguments_that_are_described(reference):
    page = reference["python.md"]
    for name in {*bertworks.__all__} - {"__version__"}:
        assert re.search(rf"^## {name} ", page, re.MULTILINE), name
    assert "object at 0x" not in page
    assert "- **`top_k`**: how many guesses to give for each." in page
    assert ">>> model.fill(" in page
    for text in reference.values():
        for entries in re.findall(r'<div class="entries.*?markdown>(.*?)</div>', text, re.DOTALL):
            assert all(line.startswith("| ") and line.endswith(" |") for line in entries.strip().splitlines())
