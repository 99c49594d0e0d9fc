"""Texts and pairs of texts with a label or a score, out of the columns of a table: most benchmarks are this."""

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bertworks.errors import UserError
from bertworks.tasks.examples import Skipped, TextExample
from bertworks.tasks.tables import Row, rows
from bertworks.tasks.task import Source

MISSING_NUMBER = "-1"  # what Hugging Face's datasets write where labels are numbers from 0 and there is none
_MAX_LABELS_SHOWN = 20
_MAX_SCORE = 3.4e38  # what float32 holds, in which a network learns


class TextColumns(NamedTuple):
    """Where a table has what.

    Args:
        first: the column of the text, or of the first of two.
        second: the column of the second text.
        label: the column of the label or score; None where the file has none to be told (a test set).
        words: each label by the word that the file writes for it; None for a score.
        id: the column that names an example; without one it is the row's number, from 0.
        header: the columns of a file that does not name them.
        no_label: words that stand for no label at all; such rows are left out of every split.
        allows_broken_rows: rows with a wrong number of columns are counted and left out.
        score_range: the lowest and the highest score there is.
    """

    first: str
    second: str | None = None
    label: str | None = "label"
    words: Mapping[str, str] | None = None
    id: str | None = None
    header: Sequence[str] | None = None
    no_label: frozenset[str] = frozenset()
    allows_broken_rows: bool = False
    score_range: tuple[float, float] = (-math.inf, math.inf)


def text_source(*names: str, columns: TextColumns, note: str = "") -> Source:
    """Return the source of a split that is a table, or several of one form."""
    return Source(names, partial(read_texts, columns=columns), note)


def read_texts(paths: Sequence[Path], skipped: Skipped, columns: TextColumns) -> Iterator[TextExample]:
    """Yield the examples of some files, one after the other."""
    number = 0
    for path in paths:
        for row in rows(path, columns.header, skipped if columns.allows_broken_rows else None):
            example = example_of(row, number, columns)
            if columns.label is not None and example.label is None:
                is_score = columns.words is None
                skipped.add("rows without a label" if is_score else why_missing(row.word(columns.label)), row.place)
            else:
                yield example
            number += 1


def why_missing(word: str) -> str:
    """Return what a row is counted as whose label is read as none."""
    return f"rows with the label {word}, read as no label" if word == MISSING_NUMBER else "rows without a label"


def example_of(row: Row, number: int, columns: TextColumns) -> TextExample:
    """Return the example that a row holds."""
    second = None if columns.second is None else row.text_or_nothing(columns.second)
    label: str | float | None = None
    if columns.label is not None:
        word = row.label(columns.label) if columns.words is not None else _score_word(row, columns.label)
        if word not in columns.no_label:
            label = score_of(word, row, columns) if columns.words is None else label_of(word, row, columns.words)
    name = str(number) if columns.id is None else row.word(columns.id)
    return TextExample(name, row.text_or_nothing(columns.first), second, label)


def _score_word(row: Row, column: str) -> str:
    """Return a score as it is written; a NaN of Parquet is one that went wrong, as in text, and not a missing one."""
    value = row.value(column)
    return "nan" if isinstance(value, float) and math.isnan(value) else row.label(column)


def label_of(word: str, row: Row, words: Mapping[str, str]) -> str:
    """Return the label that a file's word stands for."""
    if word not in words:
        shown = ", ".join([*list(words)[:_MAX_LABELS_SHOWN], *["..."] * (len(words) > _MAX_LABELS_SHOWN)])
        raise UserError(f"{row.place}: {word[:60]!r} is not a label here; allowed: {shown}")
    return words[word]


def score_of(word: str, row: Row, columns: TextColumns) -> float:
    """Return a score as a number inside its range; NaN, infinity and what float32 does not hold are none."""
    low, high = columns.score_range
    try:
        score = float(word)
    except ValueError:
        score = math.nan
    if not (abs(score) <= _MAX_SCORE and low <= score <= high):
        allowed = f" from {low:g} to {high:g}" if math.isfinite(high) else ""
        raise UserError(f"{row.place}: {word[:60]!r} is not a score; it must be a number{allowed}")
    return score
