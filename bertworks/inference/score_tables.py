"""Scores as text of at most 100 columns: the metrics, each class, and what was taken for what.

Columns stand under each other whatever the labels are written in: Hangul and other wide characters count as two.
"""

import io
from collections.abc import Mapping, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertworks.tasks.breakdown import Breakdown, most_confused

WIDTH = 100
_LONGEST_LABEL = 40
_GAP = 2
_MOST_MISTAKES = 15


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return a line for each metric."""
    widest = max(12, *map(len, metrics)) if metrics else 0
    return "".join(f"{name:<{widest}} {value:.4f}\n" for name, value in metrics.items())


def breakdown_text(breakdown: Breakdown) -> str:
    """Return a table of the classes and, where classes exclude each other, one of what was taken for what."""
    text = _rendered(_classes(breakdown))
    if not _is_matrix(breakdown) and not breakdown.commonest:
        return text
    if breakdown.confusion and (matrix := _matrix(breakdown)):
        return f"{text}\nhow often a class (row) was taken for a class (column)\n{_rendered(matrix)}"
    return f"{text}\nthe commonest mistakes\n{_rendered(_mistakes(breakdown))}"


def _is_matrix(breakdown: Breakdown) -> bool:
    return bool(breakdown.confusion) and not isinstance(breakdown.confusion[0][0], list)


def _rendered(table: Table) -> str:
    """Return a table as plain text without blanks at line ends."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, force_terminal=False, _environ={}).print(table)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())


def _table(first: str, others: Sequence[str], widest: int = _LONGEST_LABEL) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0))
    table.add_column(Text(first), no_wrap=True, overflow="ellipsis", max_width=widest)
    for name in others:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def _classes(breakdown: Breakdown) -> Table:
    are_sets = bool(breakdown.confusion) and not _is_matrix(breakdown)
    names = ["precision", "recall", "F1", "support", *(["right", "false", "missed"] if are_sets else [])]
    table = _table("class", names)
    for number, (label, score) in enumerate(breakdown.per_class.items()):
        cells = [f"{share:.4f}" for share in score[:3]] + [f"{score.support:,}"]
        if are_sets:
            (_, false), (missed, right) = breakdown.confusion[number]
            cells += [f"{count:,}" for count in (right, false, missed)]
        table.add_row(Text(label), *cells)
    return table


def _matrix(breakdown: Breakdown) -> Table | None:
    """Return the matrix with its labels, or with their numbers where they are too wide; None where neither fits."""
    labels = breakdown.labels
    widest = max(len(f"{count:,}") for row in breakdown.confusion for count in row)
    beside = min(_LONGEST_LABEL, max(map(cell_len, labels)))
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    for heads, more in ((labels, 0), (numbers, len(numbers[-1]) + 1)):
        width = beside + more + sum(_GAP + max(widest, cell_len(head)) for head in heads)
        if width + _GAP <= WIDTH:
            return _filled(breakdown, heads, [f"{number:>{more - 1}} " if more else "" for number in numbers])
    return None


def _filled(breakdown: Breakdown, heads: Sequence[str], before: Sequence[str]) -> Table:
    table = _table("", heads, _LONGEST_LABEL + len(before[0]))
    for label, number, row in zip(breakdown.labels, before, breakdown.confusion, strict=True):
        table.add_row(Text(number + label), *(f"{count:,}" for count in row))
    return table


def _mistakes(breakdown: Breakdown) -> Table:
    table = _table("class", [])
    table.add_column("taken for", no_wrap=True, overflow="ellipsis", max_width=_LONGEST_LABEL)
    table.add_column("times", justify="right")
    for right, guess, count in most_confused(breakdown, _MOST_MISTAKES):
        table.add_row(Text(right), Text(guess), f"{count:,}")
    return table
