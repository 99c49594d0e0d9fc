"""A task on your own files: CSV, TSV, JSON lines, Parquet; CoNLL's lines and SQuAD's JSON too.

`open_own("classify", {"train": "a.csv", "dev": "b.csv"})` looks at the columns, reports their roles, reads the train
file once for its labels, and returns a dataset like that of any benchmark. Labels are sorted by name, or as numbers if
all are whole numbers; if the others are whole numbers from 0, -1 means no label, as in Hugging Face's datasets. A label
that only the dev file has is an error with its line.

A row is a text, a choice or a question; a tagged sentence is a record with two lists, or lines.
"""

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from bertworks.errors import CorruptFile, UserError, counted, did_you_mean, shown_names
from bertworks.files import name_kind, parse_json
from bertworks.tasks.columns import (
    OPTIONAL,
    SEVERAL,
    as_columns,
    complete_columns,
    describe_columns,
    roles_of,
    with_remembered,
)
from bertworks.tasks.conll import OUTSIDE, read_conll, tag_labels, tag_problem, to_iob2
from bertworks.tasks.squad import located_answer, read_squad, unique
from bertworks.tasks.swag import choice_of
from bertworks.tasks.tables import (
    MISSING_NUMBER,
    RECORD_KINDS,
    Row,
    TextColumns,
    column_names,
    example_of,
    file_kind,
    is_json_object,
    label_of,
    label_word,
    member,
    of_kind,
    read_texts,
    rows,
    why_missing,
    word_of,
)
from bertworks.tasks.task import (
    TEST,
    TRAIN,
    ChoiceExample,
    Columns,
    Dataset,
    Defaults,
    Example,
    Found,
    Reader,
    Skipped,
    SpanExample,
    TagExample,
    Task,
    TaskKind,
    TextExample,
    words_example,
)
from bertworks.text.corpus import NAMES_OF_KINDS, form_of_name

KINDS: tuple[str, ...] = get_args(TaskKind)
METRICS: dict[str, tuple[str, ...]] = {
    "classify": ("accuracy", "f1_macro"),
    "regress": ("pearson", "spearman"),
    "multilabel": ("f1", "f1_macro", "accuracy"),
    "choose": ("accuracy",),
    "tag": ("f1", "precision", "recall"),
    "answer": ("f1", "exact_match"),
}
DEFAULTS = {kind: Defaults(max_length=384) if kind == "answer" else Defaults() for kind in KINDS}
_TEXTS = {"text": "the text, or the first of two", "pair": "the second text, if there is one"}
# Of each kind what a model learns, the columns that its files have, and the files that need none.
DESCRIBED: dict[TaskKind, tuple[str, dict[str, str], str]] = {
    "classify": ("which class a text or pair is of", _TEXTS | {"label": "its class, a word or a number"}, ""),
    "regress": ("the score of a text or pair", _TEXTS | {"label": "a number"}, ""),
    "multilabel": (
        "which of several labels a text or pair has",
        _TEXTS | {"label": "a|b, a list, or a column of 0 and 1 for each label (--column label=NAME, again for each)"},
        "",
    ),
    "choose": (
        "which ending goes with a context",
        {"context": "what comes first", "endings": "ending0, ending1, ..., or a list",
         "label": "the right one: its number from 0, or its letter from A"},
        "",
    ),
    "tag": (
        "a tag for each word", {"words": "a list", "tags": "a list of as many: O, B-PER, I-PER"},
        "CoNLL's lines, a word first and its tag last",
    ),
    "answer": (
        "where in a text the answer to a question is",
        {"question": "", "context": "the text", "answer": "as it stands there; empty: there is none",
         "answer_start": "its position in characters, if known"},
        "SQuAD's JSON",
    ),
}  # fmt: skip
_TARGETS = {"tag": "tags", "answer": "answer"}  # the role that is learnt; of other kinds the label
_MAX_LABELS = 10_000
_FEW_LABELS, _FEW_ROWS = 100, 20
_LABEL_SEPARATORS = ("|", ";", ",")
_YES_OR_NO = {"0": "", "1": "yes", "false": "", "true": "yes", "0.0": "", "1.0": "yes"}
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,18}")
_START = re.compile(r"([0-9]{1,15})(\.0)?")  # pandas writes 4.0 where a column has empty cells too


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
        to_predict: ignore labels that the files may have.
    """
    if kind not in KINDS:
        raise UserError(f"{kind[:60]!r} is not a kind of task{did_you_mean(kind, KINDS)}; allowed: {', '.join(KINDS)}")
    paths = {split: Path(file) for split, file in files.items()}
    given = as_columns(columns, kind)
    chosen, notes = {}, list[str]()
    for split, path in paths.items():
        chosen[split], note = _columns(kind, path, given, remembered or Columns(), split, to_predict=to_predict)
        notes += [note] if note else []
    alone = [split for split, columns in chosen.items() if columns.pair is None]
    paired = [split for split in chosen if split not in alone]
    if alone and paired:  # in one of them the second text would be empty
        raise UserError(
            f"{paths[alone[0]]} has no second text, and {paths[paired[0]]} has one in {chosen[paired[0]].pair!r}; call "
            "it the same in both, or leave it out with --column pair= (in Python columns={'pair': ''})"
        )
    if labels is None:
        labels = _labels(kind, paths, chosen)
    known = {} if to_predict else {label_word(label): label for label in labels}
    known = {word: label for label, word in (words or {}).items() if label in labels and not to_predict} | known
    readers = {split: _reader(kind, columns, known, to_predict=to_predict) for split, columns in chosen.items()}
    found = {split: Found((path,), readers[split]) for split, path in paths.items()}
    # Of the first file's columns the "" of those that are named as absent is kept, so that they are not guessed later.
    absent: dict[str, Any] = {role: name for role, name in given._asdict().items() if name == ""}
    task = Task(
        name=kind,
        title=", ".join(path.name for path in paths.values()),
        kind=cast(TaskKind, kind),
        splits={},
        metrics=METRICS[kind],
        labels=tuple(labels),
        is_pair=kind in ("choose", "answer") or bool(paired),
        has_impossible=kind == "answer"
        and not to_predict
        and any(getattr(one, "is_impossible", False) for file in found.values() for one in _examples(file)),
        defaults=DEFAULTS[kind],
        columns=next(iter(chosen.values()))._replace(**absent),
    )
    return Dataset(task=task, found=found, origin=", ".join(map(str, paths.values())), notes=tuple(notes))


def recorded_columns(task: str, given: Columns | Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the columns that a user has named as JSON, which `as_columns` takes again; a benchmark has none."""
    return as_columns(given, task).stated() if task in KINDS else {}


def named_columns(kind: str, named: Sequence[str]) -> Columns | None:
    """Return the columns that `role=column` names on the command line, for a kind of task; None where none is named.

    Several columns of labels, or of endings, are named one by one; `pair=` says that there is none.
    """
    if not named:
        return None
    if kind not in KINDS:
        raise UserError(f"--column: {kind[:60]} has columns of its own; they are named for your own files alone")
    allowed, found = roles_of(kind), dict[str, Any]()
    for text in named:
        role, sign, column = text.partition("=")
        if not sign or (not column and role not in OPTIONAL):
            raise UserError(f"--column {text[:60]} is not role=column; such as {allowed[0]}=name")
        if role not in allowed:
            hint = did_you_mean(role, allowed)
            raise UserError(f"--column {text[:60]}: to {kind} there is no {role[:40]!r}{hint}; allowed: "
                            f"{', '.join(allowed)}")  # fmt: skip
        if role in found and role not in SEVERAL:
            raise UserError(f"--column {text[:60]}: {role} is {found[role]!r} already")
        found[role] = (*found.get(role, ()), column) if role in SEVERAL else column
    return Columns(**found)


def _columns(
    kind: str, path: Path, given: Columns, remembered: Columns, split: str, *, to_predict: bool
) -> tuple[Columns, str]:
    """Return the columns of a file, and a line about them; none where its form is fixed."""
    holds, (named, _) = file_kind(path), form_of_name(path)
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
    chosen = complete_columns(kind, with_remembered(given, remembered, there), there, str(path))
    if given.id is None and chosen.id not in everywhere:
        chosen = chosen._replace(id=None)
    if to_predict:
        chosen = chosen._replace(label=(), tags=None, answer=None, answer_start=None)
    role = _TARGETS.get(kind, "label")
    if split != TEST and not getattr(chosen, role):
        more = " (again for each label, where each has a column of 0 and 1)" if kind == "multilabel" else ""
        raise UserError(
            f"{path}: which column is the {role}? Name it with --column {role}=NAME{more}, in Python with columns; "
            f"there are: {', '.join(map(repr, there))}"
        )
    read_as = "" if holds in (named, ".txt") else f" ({NAMES_OF_KINDS[holds]}, by its content)"
    return chosen, describe_columns(given, remembered, chosen, there, path.name + read_as)


def _labels(kind: str, paths: Mapping[str, Path], chosen: Mapping[str, Columns]) -> tuple[str, ...]:
    """Read the labels that the train file has."""
    if kind not in ("classify", "multilabel", "tag"):
        return ()
    if TRAIN not in paths:
        raise UserError("the labels are not known: give a train file, or a model that has them")
    path, columns = paths[TRAIN], chosen[TRAIN]
    if kind == "tag":
        types: set[str] = set()
        for example in _examples(Found((path,), _reader(kind, columns, {}))):
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
    several = kind == "multilabel"
    if several and len(columns.label) > 1:
        return columns.label
    (column,) = columns.label
    counts, num_rows = Counter[str](), 0
    for row in rows(path):
        counts.update(labels_of(row, columns.label) if several else [row.label(column)])
        num_rows += 1
        if len(counts) > _MAX_LABELS:
            break
    del counts[""]
    if not several and _says_none({word: word for word in counts if word != MISSING_NUMBER}):
        del counts[MISSING_NUMBER]
    all_differ = not several and num_rows >= _FEW_ROWS and len(counts) == num_rows
    if all_differ or len(counts) > min(_MAX_LABELS, max(_FEW_LABELS, num_rows // 2)):
        raise UserError(
            f"{path}: column {column!r} has {counted(len(counts), 'different value')} in "
            f"{counted(num_rows, 'row')}; is it the label? A number to be predicted is the task 'regress'"
        )
    if len(counts) < 2 - several:
        raise UserError(f"{path}: column {column!r} has {len(counts)} label; there must be at least {2 - several}")
    are_numbers = all(map(_WHOLE_NUMBER.fullmatch, counts))
    return tuple(sorted(counts, key=lambda label: (int(label) if are_numbers else 0, label)))


def _examples(found: Found) -> Iterator[Example]:
    return found.read(found.paths, Skipped())


def _reader(kind: str, columns: Columns, known: Mapping[str, str], *, to_predict: bool = False) -> Reader:
    """Return what reads a file; `known` are labels by the words for them."""
    if kind == "choose":
        return partial(read_choices, columns=columns)
    if kind == "answer":
        read: Reader = read_squad if columns == Columns() else partial(read_questions, columns=columns)
        return partial(_without_targets, read, answers=(), is_impossible=False) if to_predict else read
    if kind == "tag":
        types = tuple(label.removeprefix("B-") for label in known.values() if label.startswith("B-")) or None
        is_lines = columns == Columns()
        read = partial(read_conll, types=types) if is_lines else partial(read_tagged, columns=columns, types=types)
        return partial(_without_targets, read, tags=None) if to_predict else read
    if kind == "multilabel":
        return partial(read_several_labels, columns=columns, known=known)
    assert columns.text is not None
    label, words = columns.label[0] if columns.label else None, None if kind == "regress" else known
    no_label = frozenset(["", MISSING_NUMBER] if kind == "classify" and _says_none(known) else [""])
    texts = TextColumns(columns.text, columns.pair, label, words, columns.id, no_label=no_label)
    return partial(read_texts, columns=texts)


def _says_none(known: Mapping[str, str]) -> bool:
    """Tell whether -1 stands for no label: where each label has a whole number from 0, and -1 is none of them."""
    numbered = {label for word, label in known.items() if word.isdecimal()}
    return MISSING_NUMBER not in known and len(numbered) > 1 and numbered == set(known.values())


def _without_targets(read: Reader, paths: Sequence[Path], skipped: Skipped, **nothing: Any) -> Iterator[Example]:
    """Yield examples without their targets: tags, which lines may have in their last column, or answers."""
    for example in read(paths, Skipped() if "answers" in nothing else skipped):
        yield example._replace(**nothing)


def read_several_labels(
    paths: Sequence[Path], _: Skipped, *, columns: Columns, known: Mapping[str, str] | None
) -> Iterator[TextExample]:
    """Yield texts with any number of labels each, checked where they are known."""
    texts = TextColumns(columns.text or "", columns.pair, label=None, id=columns.id)
    for path in paths:
        for number, row in enumerate(rows(path)):
            labels = labels_of(row, columns.label) if columns.label else None
            if labels is not None and known is not None:
                labels = tuple(label_of(label, row, known) for label in labels)
            yield example_of(row, number, texts)._replace(label=labels)


def labels_of(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """Return an example's labels: from one column of lists, or from a column of 0 or 1 for each label."""
    if len(columns) > 1:
        return tuple(column for column in columns if label_of(row.word(column).lower(), row, _YES_OR_NO))
    value = row.value(columns[0])
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = parse_json(value, row.where, strict=True)
        except CorruptFile as error:
            raise UserError(f"{row.where}: {value[:60]!r} is not a list of labels: {error}") from error
    if isinstance(value, str):
        separator = next((sign for sign in _LABEL_SEPARATORS if sign in value), _LABEL_SEPARATORS[0])
        value = value.split(separator)
    found: dict[str, None] = {}
    for part in [] if value is None else value if isinstance(value, list) else [value]:
        if isinstance(part, list | dict):
            raise UserError(f"{row.where}: {name_kind(part)} where a label is expected")
        if word := label_word(word_of(part).strip()):
            found[word] = None
    return tuple(found)


def read_choices(paths: Sequence[Path], skipped: Skipped, *, columns: Columns) -> Iterator[ChoiceExample]:
    """Yield contexts with their endings: one column each, a list, or {"text": [...], "label": ["A", ...]} as in ARC."""
    for path in paths:
        for number, row in enumerate(rows(path)):
            names: list[str] = []
            if len(columns.endings) > 1:
                endings = _filled_columns(row, columns.endings)
            else:
                column = columns.endings[0]
                values, where = row.value(column), f"{row.where}: column {column!r}"
                if isinstance(values, dict):
                    names = [word_of(name) for name in member(values, "label", list, where)]
                    values = member(values, "text", list, where)
                    if len(names) != len(values):
                        raise UserError(f"{where}: {counted(len(values), 'text')} and {counted(len(names), 'label')}")
                endings = _strings(values, row, column)
            if len(endings) < 2:
                raise UserError(f"{row.where}: {counted(len(endings), 'ending')}; a choice needs two")
            label = None
            if columns.label:
                word = row.word(columns.label[0])
                if word in ("", MISSING_NUMBER):
                    skipped.add(why_missing(word), row.where)
                    continue
                label = names.index(word) if word in names else choice_of(word, endings, row)
            yield ChoiceExample(_id(row, number, columns), row.text(columns.context or ""), tuple(endings), label)


def _id(row: Row, number: int, columns: Columns) -> str:
    return str(number) if columns.id is None else row.word(columns.id)


def _strings(values: Any, row: Row, column: str) -> list[str]:
    if not isinstance(values, list):
        raise UserError(f"{row.where}: column {column!r}: {name_kind(values)} where a list is expected")
    return [of_kind(value, str, f"{row.where}: {column}[{i}]") for i, value in enumerate(values)]


def _filled_columns(row: Row, columns: Sequence[str]) -> list[str]:
    """Return the endings of a row that may have fewer than others: its last columns are empty then, or all."""
    endings = ["" if row.values.get(column) is None else row.text(column) for column in columns]
    is_empty = [not ending.strip() for ending in endings]
    if all(is_empty):  # nothing can be learnt from the row, which is reported elsewhere
        return endings
    count = len(columns) - is_empty[::-1].index(False)
    if any(is_empty[:count]):
        raise UserError(
            f"{row.where}: column {columns[is_empty.index(True)]!r} is empty, and an ending after it is not; a row "
            "with fewer endings leaves the last ones empty"
        )
    return endings[:count]


def read_questions(paths: Sequence[Path], _: Skipped, *, columns: Columns) -> Iterator[SpanExample]:
    """Yield questions with a context each; an empty answer says that there is none.

    Answers are a text, a list of texts, or an object of lists as the datasets library writes it.
    """

    def example(row: Row, number: int) -> SpanExample:
        context = row.text(columns.context or "")
        value: Any = None if columns.answer is None else row.value(columns.answer)
        starts: Any = None if columns.answer_start is None else row.values.get(columns.answer_start)
        if isinstance(value, dict):
            if "text" not in value:
                raise UserError(f"{row.where}: column {columns.answer!r} has no 'text'; it has: {shown_names(value)}")
            value, starts = value["text"], value.get("answer_start")
        texts = value if isinstance(value, list) else [] if value in (None, "") else [value]
        places = starts if isinstance(starts, list) else [starts] * len(texts)
        if columns.answer is not None and len(places) != len(texts):
            found = f"{counted(len(texts), 'answer')} and {counted(len(places), 'place')}"
            raise UserError(f"{row.where}: {found} of answers")
        answers = []
        for text, start in zip(texts, places, strict=False):
            text = of_kind(text, str, f"{row.where}: answer")
            word = word_of(start)
            if word and not _START.fullmatch(word):
                raise UserError(
                    f"{row.where}: {word[:60]!r} is not the position of an answer, which is a number of characters"
                )
            answers.append(located_answer(text, int(word.removesuffix(".0")) if word else None, context))
        is_impossible = columns.answer is not None and not answers
        question = row.text(columns.question or "")
        return SpanExample(_id(row, number, columns), question, context, tuple(answers), is_impossible)

    for path in paths:
        yield from unique((example(row, number) for number, row in enumerate(rows(path))), path)


def read_tagged(
    paths: Sequence[Path], skipped: Skipped, *, columns: Columns, types: tuple[str, ...] | None
) -> Iterator[TagExample]:
    """Yield sentences that are records with a list of words and a list of tags."""
    number = 0
    for path in paths:
        for row in rows(path):
            column = columns.words or ""
            words, tags = _strings(row.value(column), row, column), None
            if columns.tags is not None:
                values = row.value(columns.tags)
                if isinstance(values, list) and values and all(type(one) is int for one in values):
                    raise UserError(
                        f"{row.where}: column {columns.tags!r} has numbers without names; write the names of the tags, "
                        "as B-PER, or Parquet that has them (saved by Hugging Face's datasets with its ClassLabel)"
                    )
                tags = _strings(values, row, columns.tags)
                if len(tags) != len(words):
                    raise UserError(
                        f"{row.where}: {counted(len(words), 'word')} and {len(tags)} tags; each word needs one"
                    )
                if problem := next(filter(None, (tag_problem(tag, types) for tag in tags)), ""):
                    raise UserError(f"{row.where}: {problem}")
            if words or tags is None:  # a prediction is made for every row
                iob2 = None if tags is None else to_iob2(tags)
                yield words_example(_id(row, number, columns), words, iob2, number)
            else:
                skipped.add("rows without words", row.where)
            number += 1
