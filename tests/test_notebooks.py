"""The notebooks in `examples`: stored with the outputs of a whole run, small, and without traces of a machine."""

import importlib.util
import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
MOST_BYTES = 60_000


def outputs_of(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def check_whole(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]
    assert not [output for output in outputs_of(notebook) if output.output_type == "error"]
    assert not [output for output in outputs_of(notebook) if output.get("name") == "stderr"]  # which is painted red
    panels = [output for output in outputs_of(notebook) if output.output_type == "display_data"]
    assert len(panels) == 1  # a run's panel, drawn many times in one place
    assert "100.0%" in panels[0].data["text/html"]


def test_there_are_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["korean_news", "quickstart"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_is_stored_is_whole_and_clean(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.encode()) < MOST_BYTES
    assert not re.search(r"/(?:home|root|tmp|work|Users)/|\\\\x1b|\\\\u001b", text)
    notebook = nbformat.reads(text, as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec"}
    check_whole(notebook)


@pytest.mark.nightly
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_they_run_from_top_to_bottom(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    tool = importlib.util.spec_from_file_location("notebooks", ROOT / "tools" / "notebooks.py")
    module = importlib.util.module_from_spec(tool)
    tool.loader.exec_module(module)
    check_whole(module.run(path))
