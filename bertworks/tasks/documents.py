"""The texts of a task's examples as documents, for a model to be trained further on them before it is fine-tuned."""

from collections.abc import Hashable, Iterable, Iterator
from itertools import groupby

from bertworks.tasks.examples import ChoiceExample, Example, SpanExample, TagExample


def documents(examples: Iterable[Example]) -> Iterator[list[str]]:
    """Yield the texts of each example, a line each, without labels and without what a line before it says.

    Sentences of one document stay together, and a context with the questions about it.
    """
    for _, together in groupby(enumerate(examples), _document):
        lines = (" ".join(text.split()) for _, example in together for text in texts_of(example))
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


def _document(numbered: tuple[int, Example]) -> Hashable:
    number, example = numbered
    if isinstance(example, TagExample):
        return example.document
    return example.context if isinstance(example, SpanExample) else number
