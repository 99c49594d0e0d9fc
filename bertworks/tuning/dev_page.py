"""The part of a fine-tuning report about the dev set: each class, what was taken for what, and some mistakes.

Everything comes from `dev.json` and is escaped. Shades are classes of the style sheet, for the page's policy refuses
styles of single elements.
"""

from collections.abc import Sequence
from typing import Any

from bertworks.errors import counted
from bertworks.show.page_files import escaped
from bertworks.tasks.breakdown import Breakdown, most_confused
from bertworks.tasks.scores import ClassScore
from bertworks.tuning.dev_record import DevRecord, Mistake

_MOST_CLASSES_IN_A_MATRIX = 24
_MOST_CLASSES_IN_A_TABLE = 200
_MOST_MISTAKES = 20
_SHADES = 10


def dev_sections(dev: DevRecord | None, notes: Sequence[str]) -> str:
    """Return sections of HTML: what is to be said of the data, how each class did, and what was wrong."""
    said = "".join(f'<li dir="auto">{escaped(note)}</li>' for note in notes)
    data = f'<section aria-labelledby="notes"><h2 id="notes">About the data</h2><ul class="notes">{said}</ul></section>'
    return (data if notes else "") + (_classes(dev) + _mistakes(dev) if dev else "")


def _classes(dev: DevRecord) -> str:
    if not dev.per_class:
        return ""
    return f'<section aria-labelledby="dev"><h2 id="dev">On the dev set</h2>{class_tables(dev)}</section>'


def class_tables(dev: DevRecord) -> str:
    """Return tables of HTML: how well each class was found, and what it was taken for."""
    scores = {label: ClassScore(**dict(figures)) for label, figures in dev.per_class.items()}
    counts: list[Any] = dev.confusion.counts if dev.confusion else []
    commonest = [(str(right), str(said), int(count)) for right, said, count in dev.commonest_mistakes]
    labels = dev.confusion.labels if dev.confusion else list(scores)
    breakdown = Breakdown(labels, scores, counts, commonest)
    parts = [_scores_table(breakdown, dev.num_classes or len(scores))]
    if commonest:
        parts.append(_commonest(breakdown))
    elif counts and not isinstance(counts[0][0], list):
        is_small = len(counts) <= _MOST_CLASSES_IN_A_MATRIX
        parts.append(_matrix(breakdown) if is_small else _commonest(breakdown))
    inner = "".join(f'<div class="scroll">{part}</div>' for part in parts)
    return f'<div class="dev">{inner}</div>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[str], style: str) -> str:
    cells = "".join(f'<th scope="col"><bdi>{escaped(head)}</bdi></th>' for head in heads)
    return (
        f'<table class="{style}"><caption>{escaped(caption)}</caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(head: str, cells: Sequence[str]) -> str:
    return f'<tr><th scope="row"><bdi title="{escaped(head)}">{escaped(head)}</bdi></th>{"".join(cells)}</tr>'


def _scores_table(breakdown: Breakdown, num_classes: int) -> str:
    shown = sorted(breakdown.per_class.items(), key=lambda item: -item[1].support)[:_MOST_CLASSES_IN_A_TABLE]
    if len(breakdown.per_class) <= _MOST_CLASSES_IN_A_TABLE:
        shown = list(breakdown.per_class.items())
    caption = "Each class" if len(shown) == num_classes else f"The {len(shown)} commonest of {num_classes:,} classes"
    rows = [
        _row(label, [*(f"<td>{share:.1%}</td>" for share in score[:3]), f"<td>{score.support:,}</td>"])
        for label, score in shown
    ]
    return _table(caption, ["", "precision", "recall", "F1", "examples"], rows, "classes")


def _matrix(breakdown: Breakdown) -> str:
    rows = [
        _row(label, [_cell(count, sum(counts), is_right=row == column) for column, count in enumerate(counts)])
        for row, (label, counts) in enumerate(zip(breakdown.labels, breakdown.confusion, strict=True))
    ]
    return _table("What each class (row) was taken for (column)", ["", *breakdown.labels], rows, "confusion")


def _cell(count: int, total: int, *, is_right: bool) -> str:
    shade = round(_SHADES * count / total) if total else 0
    told = f"{count / total:.1%} of the class" if total else "no examples"
    return f'<td class="{"right" if is_right else "wrong"} s{shade}" title="{told}">{count:,}</td>'


def _commonest(breakdown: Breakdown) -> str:
    rows = [
        _row(right, [f"<td><bdi>{escaped(guess)}</bdi></td><td>{count:,}</td>"])
        for right, guess, count in most_confused(breakdown, _MOST_MISTAKES)
    ]
    return _table("The commonest mistakes", ["class", "taken for", "times"], rows, "classes")


def _mistakes(dev: DevRecord) -> str:
    if not dev.wrong:
        return ""
    title, note = "Its surest mistakes", f"{dev.num_wrong:,} of {counted(dev.examples, 'example')} are wrong"
    note += f"; here are {len(dev.wrong)}." if len(dev.wrong) < dev.num_wrong else "."
    if dev.kind == "regress":
        title, note = "Its largest errors", f"{len(dev.wrong)} of {counted(dev.examples, 'example')}."
    return (
        f'<section aria-labelledby="wrong"><h2 id="wrong">{title}</h2><p class="note">{note}</p>'
        f"{''.join(_mistake(one, dev.kind) for one in dev.wrong)}</section>"
    )


def _mistake(one: Mistake, kind: str) -> str:
    if kind == "regress":
        sure = f"off by {one.score:.3g}"
    else:
        sure = f"{one.score:.0%} {'of the tags wrong' if kind == 'tag' else 'sure'}"
    said, gold = (f'<bdi lang="">{escaped(word)}</bdi>' for word in (one.predicted, one.gold))
    return (
        f'<article class="mistake">{"".join(map(_text, one.texts))}<p class="said"><span class="verdict wrong">{said}'
        f'</span> instead of <span class="verdict right">{gold}</span><span class="beside">{sure}</span>'
        f'<span class="beside">example {escaped(one.id)}</span></p></article>'
    )


def _text(value: str | list[str]) -> str:
    if isinstance(value, str):
        return f'<p class="text" dir="auto" lang="">{escaped(value)}</p>'
    endings = "".join(f'<li dir="auto" lang="">{escaped(part)}</li>' for part in value)
    return f'<ol class="endings" start="0">{endings}</ol>'
