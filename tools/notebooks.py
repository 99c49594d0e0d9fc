"""Run notebooks, and write them with their outputs in a form that changes only where something was computed anew.

    python tools/notebooks.py examples/*.ipynb

Each runs in an empty folder that has the repository's `examples`, so it writes nothing beside itself.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).parents[1]


def run(path: Path) -> Any:
    """Return a notebook that was just run from top to bottom; a cell that fails is an error."""
    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(ROOT / "examples")
        resources = {"metadata": {"path": folder}}
        NotebookClient(
            notebook, timeout=600, kernel_name="python3", coalesce_streams=True, resources=resources
        ).execute()
    return notebook


def clean(notebook: Any) -> None:
    """Drop what differs from machine to machine and from run to run, but for the outputs themselves."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    )
    for number, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{number}", nbformat.from_dict({})
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        notebook = run(Path(name))
        clean(notebook)
        nbformat.write(notebook, name)
