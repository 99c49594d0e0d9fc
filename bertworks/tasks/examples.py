"""What a task gives to a trainer: four kinds of example, and a count of what was left out.

Labels are words here, not numbers: a task has them in order, and the number is the place in that order. A label that a
file does not have (test sets) is None. Examples are made while a file is read, so a file may be of any size.
"""

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from bertworks.errors import counted

NOT_LOCATED = -1


class TextExample(NamedTuple):
    """A text, or a pair of texts, with one label, several labels, or a score."""

    id: str
    first: str
    second: str | None
    label: str | float | tuple[str, ...] | None


class ChoiceExample(NamedTuple):
    """A context and ways to go on, each written in full; the label is the place of the right one."""

    id: str
    context: str
    endings: tuple[str, ...]
    label: int | None


class TagExample(NamedTuple):
    """A text whose units (words, or single characters) have a tag each, in IOB2.

    Units are `text[start:end]`. Sentences with the same document number follow each other in one document.
    """

    id: str
    text: str
    spans: tuple[tuple[int, int], ...]
    tags: tuple[str, ...] | None
    document: int

    @property
    def words(self) -> list[str]:
        """The units as text."""
        return [self.text[start:end] for start, end in self.spans]


class Answer(NamedTuple):
    """An answer, and where in the context it starts; NOT_LOCATED where the file's place does not hold it."""

    start: int
    text: str


class SpanExample(NamedTuple):
    """A question about a context; a dev set has several people's answers."""

    id: str
    question: str
    context: str
    answers: tuple[Answer, ...]
    is_impossible: bool


Example = TextExample | ChoiceExample | TagExample | SpanExample


class Skipped:
    """What a reading left out, or took for what it is not called: for each reason how many, and where the first was."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self._first: dict[str, str] = {}
        self._fates: dict[str, str] = {}

    def add(self, reason: str, where: str, fate: str = "left out") -> None:
        """Count one more; the reason is in the plural, as in "3 rows without a label"."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        self._first.setdefault(reason, where)
        self._fates[reason] = fate

    def __bool__(self) -> bool:
        return bool(self.counts)

    def __str__(self) -> str:
        parts: dict[str, list[str]] = {}
        for reason, count in self.counts.items():
            what, rest = reason.split(" ", 1)
            said = f"{counted(count, what.removesuffix('s'))} {rest} (first: {self._first[reason]})"
            parts.setdefault(self._fates[reason], []).append(said)
        return "; ".join(f"{fate}: {', '.join(some)}" for fate, some in parts.items()) or "nothing left out"


def words_example(id: str, words: Sequence[str], tags: tuple[str, ...] | None, document: int) -> TagExample:
    """Make an example of words that spaces divide."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return TagExample(id, " ".join(words), tuple(spans), tags, document)


def why_untrainable(example: Example) -> str | None:
    """Say why nothing can be learnt from an example; None where something can.

    Only training leaves such examples out: a score counts every question that its file asks.
    """
    if isinstance(example, SpanExample):
        if example.is_impossible or any(answer.start != NOT_LOCATED for answer in example.answers):
            return None
        if not example.answers:
            return 'questions without an answer and without "is_impossible": true'
        is_elsewhere = any(answer.text and answer.text in example.context for answer in example.answers)
        return f"questions whose answer is not {'at its answer_start' if is_elsewhere else 'in the context'}"
    if isinstance(example, TagExample):
        return "sentences without tags" if example.tags is None else None
    if example.label is None:
        return "rows without a label"
    if isinstance(example, ChoiceExample):
        return None if any(map(str.strip, example.endings)) else "rows without a text"
    is_empty = not example.first.strip() or (example.second is not None and not example.second.strip())
    return "rows without a text" if is_empty else None


def digest_of(rows: Iterable[Sequence[Any]]) -> str:
    """Return a checksum of examples with all they have, in their order, or of other rows."""
    found = hashlib.sha256()
    for row in rows:
        found.update(json.dumps(row).encode() + b"\n")
    return found.hexdigest()


# `Cut`: how much of an example is read at once. Its fields are keys of the `[task]` section and of a model folder.


Context = Literal["document", "sentence"]


class Cut(NamedTuple):
    """How much of an example is read at once, in tokens.

    Attributes:
        max_length: of a sequence, special tokens included.
        context: of tagging: whether a sentence is read with its document, or alone.
        stride: of tagging: how far apart windows start; half a window without it.
        doc_stride: of answering: the same.
        max_query: of answering: longer questions are cut.
    """

    max_length: int
    context: Context = "document"
    stride: int | None = None
    doc_stride: int = 128
    max_query: int = 64
