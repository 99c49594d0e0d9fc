"""A grid for a person: a row for each point, at most 100 columns on a terminal, and the same as markdown.

|    batch_size  lr    seeds  mean    std     min..max        minutes
|    16          5e-5  3      0.8913  0.0041  0.8870..0.8952  4.13
| *  16          3e-5  3      0.8990  0.0012  0.8979..0.9002  4.20
"""

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from bertworks.errors import counted

_WIDTH = 100
_BEST = "*"
Row = Sequence[str]


def grid_text(results: Mapping[str, Any]) -> str:
    """Write what grid.json holds for a terminal."""
    lines = [_heading(results)]
    for title, points in _tables(results):
        lines += ["", *([title] if title else []), *aligned(_rows(points))]
    failures = [_cut(line) for line in _failures(results)]
    return "\n".join([*lines, "", *failures, *(line for text in _closing(results) for line in wrapped(text))])


def grid_markdown(results: Mapping[str, Any]) -> str:
    """Write what grid.json holds as markdown."""
    lines = [f"# {_heading(results)}"]
    for title, points in _tables(results):
        lines += ["", *([title, ""] if title else []), *markdown_rows(_rows(points))]
    for line in (*_failures(results), *_closing(results)):
        lines += ["", line]
    return "\n".join(lines) + "\n"


def aligned(rows: Sequence[Row]) -> list[str]:
    """Lay rows out in columns, two spaces between them; what is wider than a terminal is cut."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        _cut("  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()) for row in rows
    ]


def markdown_rows(rows: Sequence[Row]) -> list[str]:
    """Write rows as a table in markdown, the first as its head."""
    head, *others = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return [head, "|" + "---|" * len(rows[0]), *others]


def wrapped(text: str) -> list[str]:
    """Break a text into lines of a terminal."""
    return textwrap.wrap(text, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def _cut(line: str) -> str:
    return line if len(line) <= _WIDTH else line[: _WIDTH - 3] + "..."


def _heading(results: Mapping[str, Any]) -> str:
    return f"{results['title']}, {results['metric']} on the dev set"


def _tables(results: Mapping[str, Any]) -> list[tuple[str, list[Mapping[str, Any]]]]:
    """Return the points of the search, if it saw fewer examples, and then the others."""
    search, full = ([point for point in results["points"] if point["is_search"] == which] for which in (True, False))
    if not search:
        return [("", full)]
    seen = f"Search, on {results['search_examples']:,} of {counted(results['examples'], 'example')}:"
    return [(seen, search), *([("At the best of these:", full)] if full else [])]


def _rows(points: Sequence[Mapping[str, Any]]) -> list[Row]:
    names = list(dict.fromkeys(name for point in points for name in point["values"]))
    return [["", *names, "seeds", "mean", "std", "min..max", "minutes"], *(_row(point, names) for point in points)]


def _row(point: Mapping[str, Any], names: Sequence[str]) -> Row:
    count, failed = len(point["seeds"]), point["failed"]
    spread = "–" if point["mean"] is None else f"{point['min']:.4f}..{point['max']:.4f}"
    return [
        _BEST if point["is_best"] else "",
        *(point["values"].get(name, "") for name in names),
        f"{count - failed} of {count}" if failed else str(count),
        "failed" if failed == count else shown(point["mean"]),
        shown(point["std"]),
        spread,
        f"{point['minutes']:.2f}",
    ]


def shown(value: float | None, digits: int = 4) -> str:
    """Write a score, or a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}f}"


def _failures(results: Mapping[str, Any]) -> list[str]:
    failures = [f"{folder} failed: {run['error']}" for folder, run in results["runs"].items() if run["error"]]
    return [" ".join(failure.split()) for failure in failures]


def _closing(results: Mapping[str, Any]) -> list[str]:
    """Return what stands below the table: the best, and what all of it cost."""
    lines, best = [], results["model_of"]
    if best:
        score = shown(results["runs"][best]["score"])
        lines.append(f"model/ is of the best run, {best}: {results['metric']} {score}; {_BEST} marks the best point")
    failed = f", {results['failed']} of them failed" if results["failed"] else ""
    runs = counted(len(results["runs"]), "run")
    return [*lines, f"{runs}{failed}, {results['minutes']:.2f} minutes of training in all"]
