"""A task on your own files: CSV, TSV, JSON lines, Parquet; CoNLL's lines and SQuAD's JSON too.

`open_own("classify", {"train": "a.csv", "dev": "b.csv"})` looks at the columns, says what it took for what, reads the
train file once for its labels, and gives a dataset like that of any benchmark. Labels are in the order of their names,
or of their numbers where all are whole numbers. A label that only the dev file has is an error with its line.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from bertworks.errors import UserError, counted, did_you_mean
from bertworks.tasks.conll import OUTSIDE, read_conll, tag_labels
from bertworks.tasks.examples import Example, Skipped, SpanExample, TagExample
from bertworks.tasks.json_values import is_json_object
from bertworks.tasks.lines import file_kind
from bertworks.tasks.own_columns import (
    Columns,
    answer_columns,
    as_columns,
    choice_columns,
    said,
    tag_columns,
    text_columns,
    with_remembered,
)
from bertworks.tasks.own_readers import (
    labels_of,
    read_choices,
    read_questions,
    read_several_labels,
    read_tagged_records,
)
from bertworks.tasks.squad import read_squad
from bertworks.tasks.tables import RECORD_KINDS, column_names, label_word, rows
from bertworks.tasks.task import TEST, TRAIN, Dataset, Defaults, Found, Kind, Reader, Task
from bertworks.tasks.texts import TextColumns, read_texts
from bertworks.text.sources import NAMES_OF_KINDS, form_of_name

KINDS: tuple[str, ...] = get_args(Kind)
_METRICS: dict[str, tuple[str, ...]] = {
    "classify": ("accuracy", "f1_macro"),
    "regress": ("pearson", "spearman"),
    "multilabel": ("f1", "f1_macro", "accuracy"),
    "choose": ("accuracy",),
    "tag": ("f1", "precision", "recall"),
    "answer": ("f1", "exact_match"),
}
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_MAX_LABELS = 10_000
_FEW_LABELS, _FEW_ROWS = 100, 20
_Complete = Callable[[Columns, Sequence[str], str], Columns]


def open_own(
    kind: str,
    files: Mapping[str, str | os.PathLike[str]],
    columns: Columns | Mapping[str, Any] | None = None,
    labels: Sequence[str] | None = None,
    *,
    remembered: Columns | None = None,
    words: Mapping[str, str] | None = None,
    to_predict: bool = False,
) -> Dataset:
    """Return the dataset that your own files are.

    Args:
        kind: classify, regress, multilabel, choose, tag or answer.
        files: `train`, `dev` and `test`, as far as there are any; only `test` may lack labels.
        columns: the columns that are to be taken; others are guessed.
        labels: of a model that exists already; without them they are those of the train file.
        remembered: the columns that a model was trained with, taken where the files have them and none are named.
        words: what a benchmark's own files write for a label, which yours may write too.
        to_predict: leave alone whatever labels the files have.
    """
    if kind not in KINDS:
        raise UserError(f"{kind[:60]!r} is not a kind of task{did_you_mean(kind, KINDS)}; allowed: {', '.join(KINDS)}")
    paths = {split: Path(file) for split, file in files.items()}
    given = as_columns(columns, kind)
    chosen, notes = {}, []
    for split, path in paths.items():
        chosen[split], note = _columns(kind, path, given, remembered or Columns(), split, to_predict=to_predict)
        notes += [note] if note else []
    _check_pairs(paths, chosen)
    if labels is None:
        labels = _labels(kind, paths, chosen)
    known = {} if to_predict else {label_word(label): label for label in labels}
    known = {word: label for label, word in (words or {}).items() if label in labels and not to_predict} | known
    readers = {split: _reader(kind, columns, known) for split, columns in chosen.items()}
    if to_predict and kind in _WITHOUT_LABELS:
        readers = {split: partial(_WITHOUT_LABELS[kind], read) for split, read in readers.items()}
    found = {split: Found((path,), readers[split]) for split, path in paths.items()}
    task = Task(
        name=kind,
        title=", ".join(path.name for path in paths.values()),
        kind=cast(Kind, kind),
        splits={},
        metrics=_METRICS[kind],
        labels=tuple(labels),
        is_pair=kind in ("choose", "answer") or any(one.pair is not None for one in chosen.values()),
        has_impossible=kind == "answer" and not to_predict and any(map(_has_impossible, found.values())),
        defaults=Defaults(max_length=384) if kind == "answer" else Defaults(),
        columns=_to_remember(given, next(iter(chosen.values()))),
    )
    return Dataset(task=task, found=found, origin=", ".join(map(str, paths.values())), notes=tuple(notes))


def recorded_columns(task: str, given: Columns | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns that a person has named as JSON, which `as_columns` takes again; a benchmark has none."""
    return as_columns(given, task).stated() if task in KINDS else {}


def _to_remember(given: Columns, chosen: Columns) -> Columns:
    """Return the first file's columns, with the "" of what is said not to be there, so that it is not guessed later."""
    absent: dict[str, Any] = {role: name for role, name in given._asdict().items() if name == ""}
    return chosen._replace(**absent)


def _columns(
    kind: str, path: Path, given: Columns, remembered: Columns, split: str, *, to_predict: bool
) -> tuple[Columns, str]:
    """Return the columns of a file, and say them; none where its form is fixed."""
    holds, named = file_kind(path), form_of_name(path).kind
    if kind == "tag" and holds == ".csv":
        raise UserError(
            f"{path}: CSV is not read for tagging; give lines of a word and its tag (.txt, .tsv, .conll), or lists of "
            "both in .jsonl, .json or .parquet"
        )
    is_squad = kind == "answer" and holds == ".json" and is_json_object(path)
    if is_squad or (kind == "tag" and holds not in RECORD_KINDS):
        if given != Columns():
            raise UserError(f"{path} has a form of its own, without names of columns; leave out --column")
        return Columns(), ""
    if kind in ("classify", "regress") and len(given.label) > 1:
        raise UserError(f"{', '.join(given.label)}: several columns of labels are the task 'multilabel'")
    there, everywhere = column_names(path)
    if not there:
        raise UserError(f"{path} has no rows")
    if split == TEST:
        given = given._replace(label=tuple(label for label in given.label if label in there))
    wanted = with_remembered(given, remembered, there)
    complete: dict[str, _Complete] = {"choose": choice_columns, "tag": tag_columns, "answer": answer_columns}
    chosen = complete.get(kind, text_columns)(wanted, there, str(path))
    if given.id is None and chosen.id not in everywhere:
        chosen = chosen._replace(id=None)
    if to_predict:
        chosen = chosen._replace(label=(), tags=None, answer=None, answer_start=None)
    target = {"tag": chosen.tags, "answer": chosen.answer}.get(kind, chosen.label)
    if split != TEST and not target:
        role = {"tag": "tags", "answer": "answer"}.get(kind, "label")
        more = " (again for each label, where each has a column of 0 and 1)" if kind == "multilabel" else ""
        raise UserError(
            f"{path}: which column is the {role}? Name it with --column {role}=NAME{more}, in Python with columns; "
            f"there are: {', '.join(map(repr, there))}"
        )
    read_as = "" if holds in (named, ".txt") else f" ({NAMES_OF_KINDS[holds]}, by its content)"
    return chosen, said(given, remembered, chosen, there, path.name + read_as)


def _check_pairs(paths: Mapping[str, Path], chosen: Mapping[str, Columns]) -> None:
    """Refuse files of which one has pairs and another has not: a second text would be taken for empty."""
    alone = [split for split, columns in chosen.items() if columns.pair is None]
    paired = [split for split in chosen if split not in alone]
    if alone and paired:
        raise UserError(
            f"{paths[alone[0]]} has no second text, and {paths[paired[0]]} has one in {chosen[paired[0]].pair!r}; call "
            "it the same in both, or leave it out with --column pair= (in Python columns={'pair': ''})"
        )


def _reader(kind: str, columns: Columns, known: Mapping[str, str]) -> Reader:
    """Return what reads a file; `known` are labels by the words for them."""
    types = tuple(label.removeprefix("B-") for label in known.values() if label.startswith("B-")) or None
    if kind == "choose":
        return partial(read_choices, columns=columns)
    if kind == "answer":
        return read_squad if columns == Columns() else partial(read_questions, columns=columns)
    if kind == "tag" and columns == Columns():
        return partial(read_conll, types=types)
    if kind == "tag":
        return partial(read_tagged_records, columns=columns, types=types)
    if kind == "multilabel":
        return partial(read_several_labels, columns=columns, known=known)
    assert columns.text is not None
    return partial(
        read_texts,
        columns=TextColumns(
            columns.text,
            columns.pair,
            label=columns.label[0] if columns.label else None,
            words=None if kind == "regress" else known,
            id=columns.id,
            no_label=frozenset([""]),
        ),
    )


def _without_tags(read: Reader, paths: Sequence[Path], skipped: Skipped) -> Iterator[Example]:
    """Leave the tags of words alone, which in lines may be their last column."""
    for example in read(paths, skipped):
        assert isinstance(example, TagExample)
        yield example._replace(tags=None)


def _without_answers(read: Reader, paths: Sequence[Path], _: Skipped) -> Iterator[Example]:
    """Leave the answers to questions alone, and what is guessed where there are none."""
    for example in read(paths, Skipped()):
        assert isinstance(example, SpanExample)
        yield example._replace(answers=(), is_impossible=False)


_WITHOUT_LABELS = {"tag": _without_tags, "answer": _without_answers}


def _labels(kind: str, paths: Mapping[str, Path], chosen: Mapping[str, Columns]) -> tuple[str, ...]:
    """Read the labels that the train file has."""
    if kind not in ("classify", "multilabel", "tag"):
        return ()
    if TRAIN not in paths:
        raise UserError("the labels are not known: give a train file, or a model that has them")
    path, columns = paths[TRAIN], chosen[TRAIN]
    if kind == "tag":
        return _tag_labels(path, _reader(kind, columns, {}))
    if kind == "multilabel" and len(columns.label) > 1:
        return columns.label
    return _ordered_labels(path, columns.label, several=kind == "multilabel")


def _tag_labels(path: Path, read: Reader) -> tuple[str, ...]:
    types: set[str] = set()
    for example in read([path], Skipped()):
        assert isinstance(example, TagExample)
        if example.tags is None:
            raise UserError(
                f"{path}: words without tags; a line is a word and, last, its tag, with spaces or tabs between"
            )
        types.update(tag.partition("-")[2] for tag in example.tags)
    types.discard("")
    if not types:
        raise UserError(f"{path} has no entity: every tag is {OUTSIDE}")
    return tag_labels(sorted(types))


def _ordered_labels(path: Path, columns: Sequence[str], *, several: bool) -> tuple[str, ...]:
    counts, num_rows = Counter[str](), 0
    for row in rows(path):
        counts.update(labels_of(row, columns) if several else [row.label(columns[0])])
        num_rows += 1
        if len(counts) > _MAX_LABELS:
            break
    del counts[""]
    all_differ = not several and num_rows >= _FEW_ROWS and len(counts) == num_rows
    if all_differ or len(counts) > min(_MAX_LABELS, max(_FEW_LABELS, num_rows // 2)):
        raise UserError(
            f"{path}: column {columns[0]!r} has {counted(len(counts), 'different value')} in "
            f"{counted(num_rows, 'row')}; is it the label? A number to be predicted is the task 'regress'"
        )
    if len(counts) < 2 - several:
        raise UserError(f"{path}: column {columns[0]!r} has {len(counts)} label; there must be at least {2 - several}")
    are_numbers = all(map(_WHOLE_NUMBER.fullmatch, counts))
    return tuple(sorted(counts, key=lambda label: (int(label) if are_numbers else 0, label)))


def _has_impossible(found: Found) -> bool:
    examples = found.read(found.paths, Skipped())
    return any(isinstance(example, SpanExample) and example.is_impossible for example in examples)
