"""Write the badges of the README: small pictures, so that it says the same without a network.

    python tools/badges.py

The version and the Python that is needed are read from where they are kept; a test compares them.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
_PER_LETTER, _AROUND, _HEIGHT = 6.6, 7, 20
_LEFT, _RIGHT = "#454d58", "#1f6f54"


def badges() -> dict[str, tuple[str, str]]:
    """Return what each badge says: on the left, and on the right."""
    version = re.search(r'__version__ = "(.+?)"', (ROOT / "bertworks" / "__init__.py").read_text(encoding="utf-8"))
    python = re.search(r'requires-python = ">=(.+?)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert version
    assert python
    return {
        "version": ("version", version[1]), "python": ("Python", f"{python[1]} or newer"),
        "licence": ("licence", "Apache 2.0"), "tests": ("tests", "more than 7,000"),
    }  # fmt: skip


def picture(left: str, right: str) -> str:
    """Return a badge as SVG."""
    widths = [round(len(text) * _PER_LETTER + 2 * _AROUND) for text in (left, right)]
    total, style = sum(widths), 'fill="#fff" font-family="Verdana,DejaVu Sans,sans-serif" font-size="11"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{_HEIGHT}" role="img">'
        f"<title>{left}: {right}</title>"
        f'<clipPath id="r"><rect width="{total}" height="{_HEIGHT}" rx="3"/></clipPath><g clip-path="url(#r)">'
        f'<rect width="{widths[0]}" height="{_HEIGHT}" fill="{_LEFT}"/>'
        f'<rect x="{widths[0]}" width="{widths[1]}" height="{_HEIGHT}" fill="{_RIGHT}"/></g>'
        f'<g {style} text-anchor="middle"><text x="{widths[0] / 2}" y="14">{left}</text>'
        f'<text x="{widths[0] + widths[1] / 2}" y="14">{right}</text></g></svg>\n'
    )


if __name__ == "__main__":
    for name, texts in badges().items():
        (ROOT / "docs" / "pictures" / f"badge-{name}.svg").write_text(picture(*texts), encoding="utf-8")
