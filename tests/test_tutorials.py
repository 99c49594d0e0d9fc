"""The first page, tutorials, concepts: `bash` and `python` blocks run in order, in a folder with what a clone has."""

import ast
import re

import pytest
from document_blocks import ROOT, Reader, blocks_of, check_command, commands_of, free_port, quick_program, write_program

DOCS = ROOT / "docs"
ROOMS = ("tutorials", "concepts")
PAGES = ["index.md", *sorted(str(path.relative_to(DOCS)) for room in ROOMS for path in (DOCS / room).glob("*.md"))]


@pytest.fixture(scope="session")
def tools(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tools")
    server = quick_program(folder)
    next(server)
    yield folder
    next(server, None)


@pytest.fixture
def reader(tmp_path, tools, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return Reader(tmp_path, tools, free_port())


@pytest.mark.parametrize("page", PAGES)
def test_quick_blocks_run_in_order(page, reader):
    for block in blocks_of(DOCS / page):
        if block.language in ("bash", "python") and not block.is_slow:
            reader.run(block)


@pytest.mark.nightly
@pytest.mark.parametrize("page", PAGES)
def test_all_blocks_run_in_order(page, tmp_path, tmp_path_factory, monkeypatch):
    """As a person runs them: each command is a process of its own."""
    monkeypatch.chdir(tmp_path)
    tools = tmp_path_factory.mktemp("tools")
    write_program(tools)
    reader = Reader(tmp_path, tools, free_port())
    for block in blocks_of(DOCS / page):
        if block.language in ("bash", "python"):
            reader.run(block)


@pytest.mark.parametrize("page", PAGES)
def test_every_command_exists(page):
    for words in commands_of(DOCS / page, "", "bash"):
        check_command(words)


@pytest.mark.parametrize("page", PAGES[1:])
def test_every_page_says_where_to_go_next(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert re.search(r"^## (Where next|다음에 볼 것)$", text, re.MULTILINE)
    if page.startswith("tutorials"):
        assert 60 <= len(text.splitlines()) <= 150


# A link to a file, a colon, and the names of what is in it, to the next link or the end of the paragraph.
_CODE = re.compile(r"\[`([\w/]+\.py)`\]\(\.\./\.\./bertworks/([\w/]+\.py)\):(.*?)(?=\[`|\n\n)", re.DOTALL)


def names_in(path):
    """Return the functions, classes and methods of a file, a method as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
            found |= {
                f"{node.name}.{one.name}" for one in getattr(node, "body", ()) if isinstance(one, ast.FunctionDef)
            }
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith("concepts")])
def test_the_functions_that_a_concept_names_exist(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    count = 0
    for shown, linked, names in _CODE.findall(text):
        assert shown == linked
        for name in re.findall(r"`([\w.]+)`", names):
            count += 1
            assert name in names_in(ROOT / "bertworks" / linked), (linked, name)
    assert count > 40
    assert len(re.findall(r"\]\(\.\./\.\./bertworks/", text)) == len(_CODE.findall(text))
