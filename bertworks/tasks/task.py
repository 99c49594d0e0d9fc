"""A task: what a benchmark asks for, where its files are, how they are read and measured; its examples and dataset.

- Examples are of four kinds, and are made while a file is read, so a file may be of any size. Labels are words here: a
  task has them in order, and a label's number is its index in that order. A label that a file does not have (test sets)
  is None.
- A task knows its files by the names that its makers gave them. `open_dataset(task, folder)` finds them: in the folder
  itself, or in the subfolder where the original archive has them, so one folder may hold all of GLUE or all benchmarks
  there are. A split may have several sources in order of preference; one that is a stand-in carries a note, which
  belongs beside every score. Where there is no dev set, a tenth of the train set becomes one.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, groupby, product
from pathlib import Path
from typing import Any, Literal, NamedTuple

from bertworks.errors import UserError, counted
from bertworks.files import digest64, usable_path

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
    """Counts what was left out while reading, or read differently: by reason how many, and where the first was."""

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
    """Return why nothing can be learnt from an example; None if something can.

    Such examples are left out only in training: a score counts every question of its file.
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


TaskKind = Literal["classify", "regress", "multilabel", "choose", "tag", "answer"]
Reader = Callable[[Sequence[Path], Skipped], Iterator[Example]]
TRAIN, DEV, TEST = "train", "dev", "test"
_MAX_FILES_SHOWN = 6
_DEV_SHARE = 0.1
# Why no dev set can be split off, by the kind of task: examples that belong together are not divided.
_LACKING = {
    "classify": "too few share their label with a different text",
    "choose": "too few have different contexts",
    "answer": "too few have different contexts",
    "tag": "too few are of different documents",
}


class Columns(NamedTuple):
    """The columns of your own file by what they hold; what is None is guessed, and what is "" is absent.

    Several `label` columns are a label each, with 0 or 1 for each example; several `endings` are one ending each.
    """

    text: str | None = None
    pair: str | None = None
    label: tuple[str, ...] = ()
    id: str | None = None
    question: str | None = None
    context: str | None = None
    answer: str | None = None
    answer_start: str | None = None
    endings: tuple[str, ...] = ()
    words: str | None = None
    tags: str | None = None

    def stated(self) -> dict[str, Any]:
        """Return the columns that are named, by their roles, as JSON and `as_columns` have them."""
        named = {role: value for role, value in self._asdict().items() if value not in (None, ())}
        return {role: list(value) if isinstance(value, tuple) else value for role, value in named.items()}


class Source(NamedTuple):
    """Files that together hold a split, the function that reads them, and the note that goes with a score."""

    names: tuple[str, ...]
    read: Reader
    note: str = ""


class Defaults(NamedTuple):
    """What the paper fine-tunes with (A.3); its grid is epochs 2 to 4, batches of 16 and 32, rates 2e-5 to 5e-5."""

    epochs: int = 3
    batch_size: int = 32
    learning_rate: float = 3e-5
    max_length: int = 128


class Published(NamedTuple):
    """What the paper reports, in percent: where, BERT base and BERT large."""

    where: str
    base: str
    large: str


@dataclass(frozen=True, kw_only=True)
class Task:
    """A benchmark, or a task on your own files.

    Args:
        name: as typed on the command line.
        title: as people write it.
        kind: what a model has to do.
        splits: the sources of `train`, `dev`, `test`; names such as `dev-mismatched` for more of them.
        homes: folders below the given one in which the files may be, "" for itself.
        labels: in the order of the model's outputs; none for `regress`, `choose` and `answer`.
        metrics: the first decides which model is best.
        positive: the label that a binary F1 is about.
        words: what the benchmark's own files and its server write for each label.
        is_symmetric: whether the order of a pair's texts has no meaning, so that no prediction may depend on it.
        score_range: lowest and highest score of `regress`.
        has_impossible: whether questions may have no answer.
        threshold: of questions that have no answer, see `windows.py`; None: the best for the questions measured on.
        units: what is tagged.
        answers_are_korean: answers are compared by KorQuAD's rules instead of SQuAD's.
        trained_on: the task whose model is measured, where there is nothing to train on.
        columns: of your own file; those of the train file are recorded with the model.
    """

    name: str
    title: str
    kind: TaskKind
    splits: Mapping[str, tuple[Source, ...]]
    metrics: tuple[str, ...]
    summary: str = ""
    homes: tuple[str, ...] = ("",)
    labels: tuple[str, ...] = ()
    positive: str = ""
    words: Mapping[str, str] = field(default_factory=dict)
    is_pair: bool = False
    is_symmetric: bool = False
    score_range: tuple[float, float] | None = None
    has_impossible: bool = False
    threshold: float | None = None
    units: Literal["word", "character"] = "word"
    answers_are_korean: bool = False
    published: Published | None = None
    defaults: Defaults = field(default_factory=Defaults)
    trained_on: str = ""
    columns: Columns = field(default_factory=Columns)


class Found(NamedTuple):
    """The files of a split, as they were found."""

    paths: tuple[Path, ...]
    read: Reader
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A task with the files that it is read from.

    Args:
        task: what they are for.
        found: the files of each split that is there.
        origin: the folder or files as the user named them.
        notes: remarks for users: what was guessed, and which files replace others.
        chosen: for each example of a split's files 1 if it is in the split; only where a dev set was split off.
    """

    task: Task
    found: Mapping[str, Found]
    origin: str
    notes: tuple[str, ...] = ()
    chosen: Mapping[str, bytes] = field(default_factory=dict)

    def examples(self, split: str, skipped: Skipped | None = None) -> Iterator[Example]:
        """Yield the examples of a split; those of `train` that nothing can be learnt from are counted and left out."""
        found = self.files(split)
        skipped = Skipped() if skipped is None else skipped
        chosen = self.chosen.get(split)
        for number, example in enumerate(found.read(found.paths, skipped)):
            if chosen is not None and not chosen[number]:
                continue
            reason = why_untrainable(example) if split == TRAIN else None
            if reason is None:
                yield example
            else:
                skipped.add(reason, f"{found.paths[0].name}, example {example.id[:40]}")

    def files(self, split: str) -> Found:
        """Return the files of a split, or raise UserError with what was looked for."""
        if split not in self.found:
            there = ", ".join(self.found) or "none"
            looked_for = _looked_for(self.task, [split])
            raise UserError(f"{self.task.title}: no {split} split in {self.origin} (there are: {there}){looked_for}")
        return self.found[split]


def examples_of(dataset: Dataset, split: str, note: Callable[[str], None]) -> list[Example]:
    """Read a split, report what was left out, and refuse one without examples."""
    skipped = Skipped()
    examples = list(dataset.examples(split, skipped))
    if skipped and not (split == DEV and DEV in dataset.chosen):  # split off from train, where it is reported
        note(f"{split}: {skipped}")
    if not examples:
        raise UserError(f"{dataset.task.title}: the {split} split in {dataset.origin} has no examples")
    return examples


def open_dataset(task: Task, folder: str | Path) -> Dataset:
    """Find a task's files below a folder, or raise UserError with the names that were looked for."""
    root = usable_path(folder)
    if not root.is_dir():
        raise UserError(f"{folder} is not a folder; name the one that holds {task.title}'s files")
    found: dict[str, Found] = {}
    for split, sources in task.splits.items():
        for source, home in product(sources, task.homes):
            paths = tuple(root / home / name for name in source.names)
            if split not in found and all(path.is_file() for path in paths):
                found[split] = Found(paths, source.read, source.note)
    if not found:
        raise UserError(f"{folder} has no files of {task.title}{_looked_for(task, list(task.splits))}")
    notes = [f"{split}: {files.note}" for split, files in found.items() if files.note]
    return Dataset(task=task, found=found, origin=str(folder), notes=tuple(notes))


def _looked_for(task: Task, splits: Sequence[str]) -> str:
    names = [" + ".join(source.names) for split in splits for source in task.splits.get(split, ())]
    if not names:
        return ""
    shown = names[:_MAX_FILES_SHOWN] + ["..."] * (len(names) > _MAX_FILES_SHOWN)
    below = ", ".join(home for home in task.homes if home)
    return f"; looked for {', '.join(shown)} in it and in {below}"


def split_off_dev(dataset: Dataset) -> Dataset:
    """Divide a dataset's train set into `train` and `dev`, where no dev set is given, and record it in the notes.

    A hash of the content decides which examples go to dev, not their order: if rows are shuffled or added, most others
    stay in their split, and a text that occurs twice with one label is not in both splits. A tenth of each class goes
    to dev, and one example each of some classes that are too small for that. Questions about one context, and sentences
    of one document, stay together.
    """
    assert not dataset.chosen, "a dataset is divided only once"
    found, skipped = dataset.files(TRAIN), Skipped()
    by_class: defaultdict[str, defaultdict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    num_examples, document, first_sentence = 0, -1, ""
    for example in found.read(found.paths, Skipped()):
        name = ""
        if isinstance(example, TagExample):  # a document goes where its first sentence does
            if example.document != document:
                document, first_sentence = example.document, example.text
            content = first_sentence
        elif isinstance(example, SpanExample | ChoiceExample):
            content = example.context
        else:
            content = f"{example.first}\0{example.second or ''}"
            name = example.label if isinstance(example.label, str) else ""
        if reason := why_untrainable(example):
            skipped.add(reason, f"example {example.id[:40]}")
        else:
            by_class[name][_hash(content)].append(num_examples)
        num_examples += 1
    count = counted(num_examples, "example")
    if num_examples and not by_class:
        raise UserError(f"{dataset.origin}: none of its {count} can be trained on; {skipped}")
    in_dev = bytearray(num_examples)
    sizes = {name: sum(map(len, same.values())) for name, same in by_class.items()}
    shares = {name: round(_DEV_SHARE * size) for name, size in sizes.items()}
    left = max(1, round(_DEV_SHARE * sum(sizes.values()))) - sum(shares.values())
    small = [name for name, size in sizes.items() if not shares[name] and size > 1]
    shares |= dict.fromkeys(sorted(small, key=_hash)[: max(0, left)], 1)
    for name, share in shares.items():
        # The examples with the lowest hashes, and all with the same content. A text that occurs more often than the
        # share allows is not taken, unless all do: then one of several texts is.
        groups = [same for _, same in sorted(by_class[name].items())]
        marked = 0
        for same in [same for same in groups if len(same) <= share] or groups[: min(share, len(groups) - 1, 1)]:
            if marked < share:
                marked += len(same)
                for number in same:
                    in_dev[number] = 1
    if not any(in_dev):
        raise UserError(
            f"{dataset.origin}: a dev set cannot be split off: of its {count} "
            f"{_LACKING.get(dataset.task.kind, 'too few have different texts')}; give a dev set too"
        )
    return replace(
        dataset,
        found={**dataset.found, DEV: found},
        notes=(*dataset.notes, f"dev: {sum(in_dev):,} of the {count} of train, split off"),
        chosen={TRAIN: bytes(1 - mark for mark in in_dev), DEV: bytes(in_dev)},
    )


def _hash(content: str) -> int:
    # The prefix is kept for resumed runs: their dev set was chosen with it.
    return int.from_bytes(digest64(f"0\0{content}".encode()), "big")
