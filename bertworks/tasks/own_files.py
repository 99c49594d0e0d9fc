"""A task on your own files: CSV, TSV, JSON lines, Parquet; CoNLL's lines and SQuAD's JSON too.

`open_own("classify", {"train": "a.csv", "dev": "b.csv"})` looks at the columns, says what it took for what, reads the
train file once for its labels, and gives a dataset like that of any benchmark. Labels are in the order of their names,
or of their numbers where all are whole numbers; beside whole numbers from 0, -1 is no label, as in Hugging Face's
sets. A label that only the dev file has is an error with its line.
"""

import os
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast, get_args

from bertworks.errors import CorruptFile, UserError, counted, did_you_mean, shown_names
from bertworks.files import name_kind, parse_json
from bertworks.tasks.columns import (
    OPTIONAL,
    SEVERAL,
    Columns,
    answer_columns,
    as_columns,
    choice_columns,
    roles_of,
    said,
    tag_columns,
    text_columns,
    with_remembered,
)
from bertworks.tasks.conll import OUTSIDE, read_conll, tag_labels, tag_problem, to_iob2
from bertworks.tasks.examples import (
    Answer,
    ChoiceExample,
    Example,
    Skipped,
    SpanExample,
    TagExample,
    TextExample,
    words_example,
)
from bertworks.tasks.squad import located_answer, read_squad, unique
from bertworks.tasks.swag import choice_of
from bertworks.tasks.tables import (
    RECORD_KINDS,
    Row,
    column_names,
    file_kind,
    is_json_object,
    label_word,
    member,
    of_kind,
    rows,
    word_of,
)
from bertworks.tasks.task import TEST, TRAIN, Dataset, Defaults, Found, Kind, Reader, Task
from bertworks.tasks.texts import MISSING_NUMBER, TextColumns, example_of, label_of, read_texts, why_missing
from bertworks.text.corpus import NAMES_OF_KINDS, form_of_name

# Your own files, read: a row each for a text, a choice or a question, a record or lines for a tagged sentence.


_LABEL_SEPARATORS = ("|", ";", ",")
_YES_OR_NO = {"0": "", "1": "yes", "false": "", "true": "yes", "0.0": "", "1.0": "yes"}
_PLACE = re.compile(r"([0-9]{1,15})(\.0)?")  # pandas writes 4.0 where a column has empty cells too


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
        value = _json_list(value, row)
    if isinstance(value, str):
        separator = next((sign for sign in _LABEL_SEPARATORS if sign in value), _LABEL_SEPARATORS[0])
        value = value.split(separator)
    if value is None:
        return ()
    if not isinstance(value, list):
        value = [value]
    return tuple(dict.fromkeys(word for part in value if (word := _label_word(part, row))))


def _label_word(value: Any, row: Row) -> str:
    if isinstance(value, list | dict):
        raise UserError(f"{row.place}: {name_kind(value)} where a label is expected")
    return label_word(word_of(value).strip())


def _json_list(text: str, row: Row) -> Any:
    try:
        return parse_json(text, row.place, strict=True)
    except CorruptFile as error:
        raise UserError(f"{row.place}: {text[:60]!r} is not a list of labels: {error}") from error


def read_choices(paths: Sequence[Path], skipped: Skipped, *, columns: Columns) -> Iterator[ChoiceExample]:
    """Yield contexts with their endings; where the endings have names of their own, one of them is the answer."""
    for path in paths:
        for number, row in enumerate(rows(path)):
            endings, names = _endings(row, columns.endings)
            label = None
            if columns.label:
                word = row.word(columns.label[0])
                if word in ("", MISSING_NUMBER):
                    skipped.add(why_missing(word), row.place)
                    continue
                label = names.index(word) if word in names else choice_of(word, endings, row)
            name = str(number) if columns.id is None else row.word(columns.id)
            yield ChoiceExample(name, row.text(columns.context or ""), endings, label)


def _endings(row: Row, columns: Sequence[str]) -> tuple[tuple[str, ...], list[str]]:
    """Return a row's endings, and their names where they have any: {"text": [...], "label": ["A", ...]} as in ARC."""
    names: list[str] = []
    if len(columns) > 1:
        endings = _filled_columns(row, columns)
    else:
        values, place = row.value(columns[0]), f"{row.place}: column {columns[0]!r}"
        if isinstance(values, dict):
            names = [word_of(name) for name in member(values, "label", list, place)]
            values = member(values, "text", list, place)
            if len(names) != len(values):
                raise UserError(f"{place}: {counted(len(values), 'text')} and {counted(len(names), 'label')}")
        endings = tuple(
            of_kind(value, str, f"{row.place}: {columns[0]}[{i}]")
            for i, value in enumerate(of_kind(values, list, place))
        )
    if len(endings) < 2:
        raise UserError(f"{row.place}: {counted(len(endings), 'ending')}; a choice needs two")
    return endings, names


def _filled_columns(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    """Return the endings of a row that may have fewer than others: its last columns are empty then, or all."""
    endings = ["" if row.values.get(column) is None else row.text(column) for column in columns]
    is_empty = [not ending.strip() for ending in endings]
    if all(is_empty):  # nothing can be learnt from it, which is told elsewhere
        return tuple(endings)
    count = len(columns) - is_empty[::-1].index(False)
    if any(is_empty[:count]):
        raise UserError(
            f"{row.place}: column {columns[is_empty.index(True)]!r} is empty, and an ending behind it is not; a row "
            "with fewer endings leaves the last ones empty"
        )
    return tuple(endings[:count])


def read_questions(paths: Sequence[Path], _: Skipped, *, columns: Columns) -> Iterator[SpanExample]:
    """Yield questions with a context each; an empty answer says that there is none."""
    for path in paths:
        yield from unique((_question(row, number, columns) for number, row in enumerate(rows(path))), path)


def _question(row: Row, number: int, columns: Columns) -> SpanExample:
    context = row.text(columns.context or "")
    answers = [] if columns.answer is None else _answers(row, columns, context)
    name = str(number) if columns.id is None else row.word(columns.id)
    is_impossible = columns.answer is not None and not answers
    return SpanExample(name, row.text(columns.question or ""), context, tuple(answers), is_impossible)


def _answers(row: Row, columns: Columns, context: str) -> list[Answer]:
    """Return the answers of a row: a text, a list of texts, or an object of lists as the datasets library writes it."""
    value: Any = row.value(columns.answer or "")
    starts: Any = None if columns.answer_start is None else row.values.get(columns.answer_start)
    if isinstance(value, dict):
        if "text" not in value:
            raise UserError(f"{row.place}: column {columns.answer!r} has no 'text'; it has: {shown_names(value)}")
        value, starts = value["text"], value.get("answer_start")
    texts = value if isinstance(value, list) else [] if value in (None, "") else [value]
    places = starts if isinstance(starts, list) else [starts] * len(texts)
    if len(places) != len(texts):
        raise UserError(f"{row.place}: {counted(len(texts), 'answer')} and {counted(len(places), 'place')} of answers")
    return [
        located_answer(of_kind(text, str, f"{row.place}: answer"), _place(start, row), context)
        for text, start in zip(texts, places, strict=True)
    ]


def _place(value: Any, row: Row) -> int | None:
    word = word_of(value)
    if not word:
        return None
    if not (found := _PLACE.fullmatch(word)):
        raise UserError(f"{row.place}: {word[:60]!r} is not the place of an answer; it is a number of characters")
    return int(found[1])


def read_tagged_records(
    paths: Sequence[Path], skipped: Skipped, *, columns: Columns, types: tuple[str, ...] | None
) -> Iterator[TagExample]:
    """Yield sentences that are records with a list of words and a list of tags."""
    number = 0
    for path in paths:
        for row in rows(path):
            words = _strings(row, columns.words or "")
            tags = None if columns.tags is None else _tags(row, columns.tags, words, types)
            if words or tags is None:  # a prediction is made for every row
                name = str(number) if columns.id is None else row.word(columns.id)
                yield words_example(name, words, tags, number)
            else:
                skipped.add("rows without words", row.place)
            number += 1


def _tags(row: Row, column: str, words: Sequence[str], types: tuple[str, ...] | None) -> tuple[str, ...]:
    if isinstance(numbers := row.value(column), list) and numbers and all(type(one) is int for one in numbers):
        raise UserError(
            f"{row.place}: column {column!r} has numbers without names; write the names of the tags, as B-PER, or "
            "Parquet that has them (saved by Hugging Face's datasets with its ClassLabel)"
        )
    tags = _strings(row, column)
    if len(tags) != len(words):
        raise UserError(f"{row.place}: {counted(len(words), 'word')} and {len(tags)} tags; each word needs one")
    for tag in tags:
        if problem := tag_problem(tag, types):
            raise UserError(f"{row.place}: {problem}")
    return to_iob2(tags)


def _strings(row: Row, column: str) -> list[str]:
    values = row.value(column)
    if not isinstance(values, list):
        raise UserError(f"{row.place}: column {column!r}: {name_kind(values)} where a list is expected")
    return [of_kind(value, str, f"{row.place}: {column}[{i}]") for i, value in enumerate(values)]


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
            no_label=frozenset(["", MISSING_NUMBER] if kind == "classify" and _says_none(known) else [""]),
        ),
    )


def _says_none(known: Mapping[str, str]) -> bool:
    """Tell whether -1 stands for no label: where each label has a whole number from 0, and -1 is none of them."""
    numbered = {label for word, label in known.items() if word.isdecimal()}
    return MISSING_NUMBER not in known and len(numbered) > 1 and numbered == set(known.values())


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
    if not several and _says_none({word: word for word in counts if word != MISSING_NUMBER}):
        del counts[MISSING_NUMBER]
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


# Columns of your own files as they are named on the command line: `label=stars`, once for each.


def named_columns(kind: str, named: Sequence[str]) -> Columns | None:
    """Return the columns that `role=column` names, for a kind of task; None where none is named.

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
