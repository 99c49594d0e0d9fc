"""Lines for standard output: on a terminal with bold headings and faint commands, elsewhere the same lines plain."""

import os
import re
import sys
import textwrap

import typer

from bertworks.errors import printable

_WIDTH = 100  # columns that a line takes at most
_INDENT = "   "
_BAR_WIDTH = 12
_GOES_ON = " \\"
_WORD = re.compile(r"""(?:"[^"]*"|'[^']*'|\S)+""")
_BLOCKS, _MARKS = " ░▒▓█", " .:*#"  # by how much they cover; the latter where a stream has only ASCII


def say(text: str = "", **style: bool) -> None:
    """Write a text, as standard output can have it: with colours if it is a terminal, in its encoding."""
    encoding = sys.stdout.encoding or "utf-8"
    text = printable(text).encode(encoding, "replace").decode(encoding)
    typer.echo(typer.style(text, **style) if style and _is_styled() else text)


def tell(text: str, **style: bool) -> None:
    """Write what belongs to a stage, indented; lines that are too long are broken between words."""
    for line in text.split("\n"):
        indent = _INDENT + " " * (len(line) - len(line.lstrip()))
        broken = textwrap.fill(
            line.strip(), _WIDTH, initial_indent=indent, subsequent_indent=indent,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        say(broken, **style)


def bar(share: float) -> str:
    """Draw a share as a bar."""
    full = round(share * _BAR_WIDTH)
    return shade(1.0) * full + shade(0.25) * (_BAR_WIDTH - full)


def as_typed(command: str) -> str:
    """Return a command as a shell takes it, broken into lines that are not too long; texts in quotes stay whole."""
    lines = ["$"]
    for word in _WORD.findall(command):
        if len(lines[-1]) + len(word) > _WIDTH - len(_INDENT) - len(" " + _GOES_ON):
            lines[-1] += _GOES_ON
            lines.append("   ")
        lines[-1] += f" {word}"
    return "\n".join(lines)


def percent(share: float) -> str:
    """Write a share, a small one with a decimal."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def shade(share: float) -> str:
    """Return a character that covers about so much of its place."""
    shades = _BLOCKS if (sys.stdout.encoding or "").lower().startswith("utf") else _MARKS
    return shades[round(min(share, 1.0) * (len(shades) - 1))]


def _is_styled() -> bool:
    return sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
