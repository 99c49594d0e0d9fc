"""A task: what a benchmark asks for, where its files lie, how they are read and measured.

A task knows its files by the names that its makers gave them. `open_dataset(task, folder)` finds them: in the folder
itself, or in the subfolder where the original archive has them, so one folder may hold all of GLUE or all benchmarks
there are. A split may have several sources in order of preference; one that is a stand-in carries a note, which belongs
beside every score.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.tasks.columns import Columns
from bertworks.tasks.examples import Example, Skipped, why_untrainable

Kind = Literal["classify", "regress", "multilabel", "choose", "tag", "answer"]
Reader = Callable[[Sequence[Path], Skipped], Iterator[Example]]
TRAIN, DEV, TEST = "train", "dev", "test"
_MAX_FILES_SHOWN = 6


class Source(NamedTuple):
    """Files that together hold a split, the function that reads them, and what must be said beside a score."""

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
        is_symmetric: whether the two texts of a pair stand in no order, so that what is said of them must not either.
        score_range: lowest and highest score of `regress`.
        has_impossible: whether questions may have no answer.
        threshold: of questions that have no answer, see `answers.py`; None: the best for the questions measured on.
        units: what is tagged.
        answers_are_korean: answers are compared by KorQuAD's rules instead of SQuAD's.
        trained_on: the task whose model is measured, where there is nothing to train on.
        columns: of your own file, of the train file for the model to remember.
    """

    name: str
    title: str
    kind: Kind
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
        origin: the folder or files as a person named them.
        notes: what was guessed or stands in for something else, in words.
        chosen: for each place in a split's files 1 where the example is in it; a dev set that was split off has this.
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


def open_dataset(task: Task, folder: str | Path) -> Dataset:
    """Find a task's files below a folder, or raise UserError with the names that were looked for."""
    root = usable_path(folder)
    if not root.is_dir():
        raise UserError(f"{folder} is not a folder; name the one that holds {task.title}'s files")
    found = {split: files for split in task.splits if (files := _find(task, split, root))}
    if not found:
        raise UserError(f"{folder} has no files of {task.title}{_looked_for(task, list(task.splits))}")
    notes = [f"{split}: {files.note}" for split, files in found.items() if files.note]
    return Dataset(task=task, found=found, origin=str(folder), notes=tuple(notes))


def _find(task: Task, split: str, root: Path) -> Found | None:
    for source in task.splits[split]:
        for home in task.homes:
            paths = tuple(root / home / name for name in source.names)
            if all(path.is_file() for path in paths):
                return Found(paths, source.read, source.note)
    return None


def _looked_for(task: Task, splits: Sequence[str]) -> str:
    names = [" + ".join(source.names) for split in splits for source in task.splits.get(split, ())]
    if not names:
        return ""
    shown = names[:_MAX_FILES_SHOWN] + ["..."] * (len(names) > _MAX_FILES_SHOWN)
    below = ", ".join(home for home in task.homes if home)
    return f"; looked for {', '.join(shown)} in it and in {below}"
