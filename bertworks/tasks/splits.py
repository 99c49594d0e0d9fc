"""A dev set where none is given, and weights for classes of unequal size.

Who goes to dev is decided by a hash of the content, not by the order of a file: rows may be shuffled or
added and most others stay where they are, and a text that comes twice with one label is not on both sides. The share is
taken within each class, and from some of the classes that are too small for it. What belongs together stays together:
questions about one context, sentences of one document.
"""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import groupby

from bertworks.errors import UserError, counted
from bertworks.tasks.examples import ChoiceExample, Example, Skipped, SpanExample, TagExample, why_untrainable
from bertworks.tasks.task import DEV, TRAIN, Dataset

_DEV_SHARE = 0.1
# Why nobody goes to dev, by the kind of task: what is together in a class is not divided, and no class goes whole.
_LACKING = {
    "classify": "too few share their label with a different text",
    "choose": "too few have different contexts",
    "answer": "too few have different contexts",
    "tag": "too few are of different documents",
}


def split_off_dev(dataset: Dataset) -> Dataset:
    """Divide a dataset's train set into `train` and `dev`, and say so in its notes."""
    assert not dataset.chosen, "divided once is enough"
    found = dataset.files(TRAIN)
    skipped = Skipped()
    in_dev = _dev_mask(found.read(found.paths, Skipped()), skipped)
    if in_dev and sum(skipped.counts.values()) == len(in_dev):
        count = counted(len(in_dev), "example")
        raise UserError(f"{dataset.origin}: nothing can be learnt from its {count}; {skipped}")
    if not any(in_dev):
        raise UserError(
            f"{dataset.origin}: no dev set can be split off, as of its {counted(len(in_dev), 'example')} "
            f"{_LACKING.get(dataset.task.kind, 'too few have different texts')}; give a dev set too"
        )
    return Dataset(
        task=dataset.task,
        found={**dataset.found, DEV: found},
        origin=dataset.origin,
        notes=(*dataset.notes, f"dev: {sum(in_dev):,} of the {counted(len(in_dev), 'example')} of train, split off"),
        chosen={TRAIN: bytes(1 - place for place in in_dev), DEV: in_dev},
    )


def _dev_mask(examples: Iterable[Example], skipped: Skipped) -> bytes:
    """Return 1 for each example that goes to dev; those that nothing can be learnt from do not, and are counted."""
    by_class: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    num_examples = 0
    for example, content in _with_content(examples):
        if reason := why_untrainable(example):
            skipped.add(reason, f"example {example.id[:40]}")
        else:
            by_class[_class_of(example)][_hash(content)].append(num_examples)
        num_examples += 1
    mask = bytearray(num_examples)
    sizes = {name: sum(map(len, places.values())) for name, places in by_class.items()}
    for name, count in _counts(sizes).items():
        _mark_lowest(mask, by_class[name], count)
    return bytes(mask)


def _counts(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return how many of each class go to dev: its share, and one each of some for which that is nobody."""
    counts = {name: round(_DEV_SHARE * size) for name, size in sizes.items()}
    left = max(1, round(_DEV_SHARE * sum(sizes.values()))) - sum(counts.values())
    small = [name for name, size in sizes.items() if not counts[name] and size > 1]
    chosen = sorted(small, key=_hash)[: max(0, left)]
    return counts | dict.fromkeys(chosen, 1)


def _mark_lowest(mask: bytearray, places: Mapping[int, list[int]], count: int) -> None:
    """Mark `count` places with the lowest hashes, and those equal to the last.

    A text that comes more often than that is left out, unless all do: then, of several, it is one of them.
    """
    groups = [same for _, same in sorted(places.items())]
    fitting = [same for same in groups if len(same) <= count] or groups[: min(count, len(groups) - 1, 1)]
    marked = 0
    for same in fitting:
        if marked < count:
            marked += len(same)
            for place in same:
                mask[place] = 1


def _with_content(examples: Iterable[Example]) -> Iterator[tuple[Example, str]]:
    """Pair each example with the text that decides where it goes: of a document, its first sentence."""
    document, first_sentence = -1, ""
    for example in examples:
        if isinstance(example, TagExample):
            if example.document != document:
                document, first_sentence = example.document, example.text
            yield example, first_sentence
        elif isinstance(example, SpanExample | ChoiceExample):
            yield example, example.context
        else:
            yield example, f"{example.first}\0{example.second or ''}"


def _class_of(example: Example) -> str:
    label = None if isinstance(example, TagExample | SpanExample | ChoiceExample) else example.label
    return label if isinstance(label, str) else ""


def _hash(content: str) -> int:
    # What stands before the content is there for runs that go on: their dev set was chosen with it.
    return int.from_bytes(blake2b(f"0\0{content}".encode(), digest_size=8).digest(), "big")


def class_weights(labels: Iterable[str], order: Sequence[str]) -> list[float]:
    """Return a weight for each class that makes all classes that are there count alike; their examples' mean is 1."""
    counts = Counter(labels)
    num_present = sum(counts[label] > 0 for label in order)
    return [counts.total() / (num_present * counts[label]) if counts[label] else 0.0 for label in order]


def positive_weights(label_sets: Iterable[Iterable[str]], order: Sequence[str]) -> list[float]:
    """Return for each of several labels how many examples lack it for one that has it; 1 for a label nobody has."""
    num_examples, counts = 0, Counter[str]()
    for labels in label_sets:
        num_examples += 1
        counts.update(set(labels))
    return [(num_examples - counts[label]) / counts[label] if counts[label] else 1.0 for label in order]


# The texts of a task's examples as documents, for a model to be trained further on them before it is fine-tuned.


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
