"""What a task gives to a trainer: four kinds of example, how they are cut, and a count of what was left out.

Labels are words here, not numbers: a task has them in order, and a label's number is its index in that order. A label
that a file does not have (test sets) is None. Examples are made while a file is read, so a file may be of any size.
"""

import hashlib
import json
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, groupby
from typing import Any, Literal, NamedTuple

from bertworks.errors import counted

NOT_LOCATED = -1
Context = Literal["document", "sentence"]


class TextExample(NamedTuple):
    """A text, or a pair of texts, with one label, several labels, or a score."""

    id: str
    first: str
    second: str | None
    label: str | float | tuple[str, ...] | None


class ChoiceExample(NamedTuple):
    """A context and possible endings, each written in full; the label is the index of the right one."""

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
    """An answer, and where in the context it starts; NOT_LOCATED where the context does not have it there."""

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
    """What was left out while reading, or read differently: for each reason how many, and where the first was."""

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
            message = f"{counted(count, what.removesuffix('s'))} {rest} (first: {self._first[reason]})"
            parts.setdefault(self._fates[reason], []).append(message)
        return "; ".join(f"{fate}: {', '.join(some)}" for fate, some in parts.items()) or "nothing left out"


class Cut(NamedTuple):
    """How much of an example is read at once, in tokens: keys of the `[task]` section and of a model folder.

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


def words_example(id: str, words: Sequence[str], tags: tuple[str, ...] | None, document: int) -> TagExample:
    """Make an example of words that spaces divide."""
    ends = list(accumulate((len(word) + 1 for word in words), initial=0))
    spans = tuple((start, start + len(word)) for start, word in zip(ends, words, strict=False))
    return TagExample(id, " ".join(words), spans, tags, document)


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


def documents(examples: Iterable[Example]) -> Iterator[list[str]]:
    """Yield the texts of examples as documents, without labels, for a model to be pre-trained further on them.

    A document is a list of lines, none twice; sentences of one document stay together, and a context with the questions
    about it.
    """

    def together(numbered: tuple[int, Example]) -> Hashable:
        number, example = numbered
        if isinstance(example, TagExample):
            return example.document
        return example.context if isinstance(example, SpanExample) else number

    for _, some in groupby(enumerate(examples), together):
        lines = (" ".join(text.split()) for _, example in some for text in texts_of(example))
        if kept := list(filter(None, dict.fromkeys(lines))):
            yield kept


def texts_of(example: Example) -> tuple[str, ...]:
    """Return the texts of an example."""
    if isinstance(example, TagExample):
        return (example.text,)
    if isinstance(example, SpanExample):
        return example.context, example.question
    if isinstance(example, ChoiceExample):
        return example.context, *example.endings
    return (example.first,) if example.second is None else (example.first, example.second)
