"""A task: what a benchmark asks for, where its files lie, how they are read and measured; and its dataset.

A task knows its files by the names that its makers gave them. `open_dataset(task, folder)` finds them: in the folder
itself, or in the subfolder where the original archive has them, so one folder may hold all of GLUE or all benchmarks
there are. A split may have several sources in order of preference; one that is a stand-in carries a note, which belongs
beside every score. Where there is no dev set, a tenth of the train set becomes one.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Literal, NamedTuple

from bertworks.errors import UserError, counted
from bertworks.files import digest64, usable_path
from bertworks.tasks.columns import Columns
from bertworks.tasks.examples import ChoiceExample, Example, Skipped, SpanExample, TagExample, why_untrainable

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
        homes: folders below the given one in which the files may lie, "" for itself.
        labels: in the order of the model's outputs; none for `regress`, `choose` and `answer`.
        metrics: the first decides which model is best.
        positive: the label that a binary F1 is about.
        words: what the benchmark's own files and its server write for each label.
        is_symmetric: whether the order of a pair's texts means nothing, so that no prediction may depend on it.
        score_range: lowest and highest score of `regress`.
        has_impossible: whether questions may have no answer.
        threshold: of questions that have no answer, see `windows.py`; None: the best for the questions measured on.
        units: what is tagged.
        answers_are_korean: answers are compared by KorQuAD's rules instead of SQuAD's.
        trained_on: the task whose model is measured, where there is nothing to train on.
        columns: of your own file, of the train file for the model to remember.
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
        notes: what was guessed or stands in for something else, in words.
        chosen: for each example of a split's files 1 if it is in the split; a dev set that was split off has this.
    """

    task: Task
    found: Mapping[str, Found]
    origin: str
    notes: tuple[str, ...] = ()
    chosen: Mapping[str, bytes] = field(default_factory=dict)

    def examples(self, split: str, skipped: Skipped | None = None) -> Iterator[Example]:
        """Yield the examples of a split; from `train` those are left out, and counted, that nothing is learnt from."""
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
    if skipped and not (split == DEV and DEV in dataset.chosen):  # split off from train, for which it is reported
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
    """Divide a dataset's train set into `train` and `dev`, where no dev set is given, and say so in its notes.

    Which examples go to dev is decided by a hash of the content, not by the order of a file: rows may be shuffled or
    added and most others stay where they are, and a text that comes twice with one label is not on both sides. The
    share is taken within each class, and one each from some of the classes that are too small for it. What belongs
    together stays together: questions about one context, sentences of one document.
    """
    assert not dataset.chosen, "divided once is enough"
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
        # The examples with the lowest hashes, and all with the same content. A text that comes more often than the
        # share is left out, unless all do: then, of several texts, it is one of them.
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
    # What stands before the content is there for resumed runs: their dev set was chosen with it.
    return int.from_bytes(digest64(f"0\0{content}".encode()), "big")
