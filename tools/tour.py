#!/usr/bin/env python3
"""Write the tree of the package into docs/tour.md: each file with the first sentence of its docstring.

Usage: tools/tour.py. A test compares, so a file that is added, moved or described anew has to be written here again.
"""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOUR = ROOT / "docs" / "tour.md"
ROOMS = (  # as imports go
    "text", "data", "nn", "models", "planning", "report", "train", "tasks", "export", "inference", "serving",
    "finetuning", "reproduction", "demo", "cli",
)  # fmt: skip
_TREE = re.compile(r"(?<=<!-- tree -->\n).*?(?=<!-- end of tree -->)", re.DOTALL)
_SENTENCE = re.compile(r"(?<=[.?!])\s+(?=[A-Z`\[(])|\n\s*\n")


def first_sentence(file: Path) -> str:
    """Return what a module says of itself before the first full stop that ends a sentence, or before a blank line."""
    docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(_SENTENCE.split(docstring)[0].split()).removesuffix(".")


def tree() -> str:
    """Return the tree as Markdown."""
    package = ROOT / "bertworks"
    width = max(len(file.name) for file in package.rglob("*.py")) + 2
    lines = ["```", f"bertworks/ ({len(list(package.rglob('*.py')))} files)"]
    for room in ("", *ROOMS, *sorted({file.parent.name for file in package.glob("*/__init__.py")} - {*ROOMS})):
        if room:
            lines += ["", f"{room}/: {first_sentence(package / room / '__init__.py')}"]
        files = sorted(file for file in (package / room).glob("*.py") if not room or file.name != "__init__.py")
        lines += [f"  {file.name:<{width}}{first_sentence(file)}" for file in files]
    return "\n".join([*lines, "```\n"])


def filled(text: str) -> str:
    """Return the text of docs/tour.md with the tree of today."""
    found = tree()
    return _TREE.sub(lambda _: found, text)


if __name__ == "__main__":
    TOUR.write_text(filled(TOUR.read_text(encoding="utf-8")), encoding="utf-8")
