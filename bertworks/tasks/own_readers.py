"""Your own files, read: a row each for a text, a choice or a question, a record or lines for a tagged sentence."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.errors import CorruptFile, UserError, counted, shown_names
from bertworks.json_files import name_kind, parse_json
from bertworks.tasks.conll import tag_problem, to_iob2
from bertworks.tasks.examples import Answer, ChoiceExample, Skipped, SpanExample, TagExample, TextExample, words_example
from bertworks.tasks.json_values import of_kind
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.squad import located_answer, unique
from bertworks.tasks.swag import choice_of
from bertworks.tasks.tables import Row, label_word, rows, word_of
from bertworks.tasks.texts import TextColumns, example_of, label_of

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


def read_choices(paths: Sequence[Path], _: Skipped, *, columns: Columns) -> Iterator[ChoiceExample]:
    """Yield contexts with their endings."""
    for path in paths:
        for number, row in enumerate(rows(path)):
            endings = _endings(row, columns.endings)
            label = choice_of(row.word(columns.label[0]), endings, row) if columns.label else None
            name = str(number) if columns.id is None else row.word(columns.id)
            yield ChoiceExample(name, row.text(columns.context or ""), endings, label)


def _endings(row: Row, columns: Sequence[str]) -> tuple[str, ...]:
    if len(columns) > 1:
        endings = _filled_columns(row, columns)
    else:
        values = of_kind(row.value(columns[0]), list, f"{row.place}: column {columns[0]!r}")
        endings = tuple(of_kind(value, str, f"{row.place}: {columns[0]}[{i}]") for i, value in enumerate(values))
    if len(endings) < 2:
        raise UserError(f"{row.place}: {len(endings)} endings; a choice needs two")
    return endings


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
        raise UserError(f"{row.place}: {len(texts)} answers and {len(places)} places of answers")
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
