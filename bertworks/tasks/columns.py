"""The roles of the columns of your own file: named, or guessed from the columns' names, and reported either way.

A guess depends on the names alone, never on the values, so that the train and the dev file of one set are read the same
way. A column is taken if it has a usual name; if only the text is missing and a single one of several columns is left,
that is the text. Anything else is an error that lists the columns.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertworks.errors import UserError, shown_names
from bertworks.tasks.tables import RECORD_KINDS, file_kind
from bertworks.tasks.task import Columns

_USUAL = {
    "text": ("text", "sentence", "sentence1", "sentence_a", "text1", "text_a", "first", "premise", "question1",
             "document", "review", "comment", "content", "body", "message", "query", "title",
             "문장", "본문", "내용", "텍스트", "리뷰", "댓글", "후기"),
    "pair": ("pair", "text_pair", "sentence2", "sentence_b", "text2", "text_b", "second", "hypothesis", "question2"),
    "label": ("label", "labels", "gold_label", "class", "category", "target", "score", "sentiment", "rating", "stars",
              "is_duplicate", "intent", "y", "레이블", "라벨", "분류", "감정", "평가", "평점", "별점", "점수"),
    "right": ("label", "labels", "gold_label", "answer", "answer_key", "answerkey", "correct", "target", "class",
              "y", "정답", "레이블", "라벨"),  # the label of a choice
    "id": ("id", "guid", "idx", "index", "pair_id", "pairid", "번호"),
    "question": ("question", "query", "질문"),
    "context": ("context", "paragraph", "passage", "document", "text", "startphrase", "sent1", "prompt", "지문",
                "question", "질문"),
    "answer": ("answer", "answers", "answer_text", "답"),
    "answer_start": ("answer_start", "start"),
    "endings": ("endings", "choices", "options"),
    "words": ("words", "tokens"),
    "tags": ("tags", "ner_tags", "labels", "ner"),
}  # fmt: skip
SEVERAL = ("label", "endings")  # roles of which each may have several columns
OPTIONAL = ("pair", "id", "answer_start")  # roles that may be set to none
_ROLES = {
    "choose": ("context", "endings", "label", "id"),
    "tag": ("words", "tags", "id"),
    "answer": ("question", "context", "answer", "answer_start", "id"),
}
_NEEDED = {"choose": ("context", "endings"), "tag": ("words",), "answer": ("question", "context")}
_ENDING = re.compile(r"(ending|choice|option)[ _]?(\d+|[a-z])", re.IGNORECASE)


def roles_of(kind: str) -> tuple[str, ...]:
    """Return the roles that the columns of a file may have for a kind of task."""
    return _ROLES.get(kind, ("text", "pair", "label", "id"))


def as_columns(given: Columns | Mapping[str, Any] | None, kind: str) -> Columns:
    """Return the columns that a user names, which may be a mapping; a single label or ending need not be a list."""
    if given is None:
        return Columns()
    if not isinstance(given, Columns | Mapping):
        raise UserError(f"columns: {type(given).__name__} where a mapping is expected, such as {{'text': 'review'}}")
    named = dict(given) if isinstance(given, Mapping) else given._asdict()
    named = {role: names for role, names in named.items() if names is not None and names not in ((), [])}
    if unknown := sorted(map(str, named.keys() - set(roles_of(kind)))):
        known = ", ".join(roles_of(kind))
        raise UserError(f"columns: to {kind} there is no {shown_names(dict.fromkeys(unknown))}; allowed: {known}")
    for role, names in named.items():
        listed = tuple(names) if isinstance(names, list | tuple) and role in SEVERAL else (names,)
        for name in listed:
            if not isinstance(name, str) or (not name and role not in OPTIONAL):
                raise UserError(f"columns: {role}: {str(name)[:60]!r} where the name of a column is expected")
        named[role] = listed if role in SEVERAL else names
    return Columns(**named)


def with_remembered(given: Columns, remembered: Columns, there: Sequence[str]) -> Columns:
    """Take the columns of training for roles that are not given, if the file has them and they have no other role."""
    free = {"", *there} - set(_names_in(given))
    found: dict[str, Any] = {
        role: value
        for role, value, named in zip(Columns._fields, remembered, given, strict=True)
        if named in (None, ()) and value is not None and free.issuperset((value,) if isinstance(value, str) else value)
    }
    return given._replace(**found)


def _names_in(columns: Columns) -> list[str]:
    return [name for value in columns if value for name in ((value,) if isinstance(value, str) else value)]


def complete_columns(kind: str, given: Columns, there: Sequence[str], where: str) -> Columns:
    """Complete the named columns of a file with those of usual names.

    Labels, tags and answers may be missing, as in a file to predict on; endings may be columns named ending0, ending1,
    ...; of a file of texts a single column that is left over is the text.
    """
    named = _names_in(given)
    for name in named:
        if name not in there:
            raise UserError(f"{where}: no column {name!r}; there are: {shown_names(dict.fromkeys(there))}")
    free = [column for column in there if column not in named]
    found: dict[str, Any] = {}
    # Of a file of texts the text is guessed last, as its usual names are the most.
    for role in sorted(roles_of(kind), key=lambda role: role == "text"):
        value = getattr(given, role)
        if value in (None, ()):
            by_plain_name = {_plain(column): column for column in free}
            usual = _USUAL["right" if kind == "choose" and role == "label" else role]
            value = next((by_plain_name[name] for name in usual if name in by_plain_name), None)
            if role == "endings" and any(map(_ENDING.fullmatch, free)):
                value = tuple(sorted(filter(_ENDING.fullmatch, free), key=_number_of_ending))
            elif role in SEVERAL:
                value = () if value is None else (value,)
            taken = (value,) if isinstance(value, str) else value or ()
            free = [column for column in free if column not in taken]
        found[role] = None if value == "" else value
    if kind == "choose":
        found["label"] = found["label"][:1]
    if kind not in _ROLES and found["text"] is None and len(free) == 1 < len(there):
        is_usual = any(_plain(free[0]) in names for names in _USUAL.values())  # then it is something else
        found["text"] = None if is_usual else free[0]
    for role in _NEEDED.get(kind, ("text",)):
        if not found[role]:
            examples = ", ".join(_USUAL[role][:6])
            # If a file has only texts, its first line cannot be told from a header.
            is_table = file_kind(Path(where)) not in RECORD_KINDS
            alone = "; if that is a text, write `text` on a line above it" if len(there) == 1 and is_table else ""
            raise UserError(
                f"{where}: which column is the {role}? None has a usual name ({examples}, ...); name it with "
                f"--column {role}=NAME, in Python with columns; there are: {shown_names(dict.fromkeys(there))}{alone}"
            )
    return given._replace(**found)


def _number_of_ending(column: str) -> tuple[int, str]:
    """Return the sort key of a column of endings: ending2 comes before ending10, and a before b."""
    found = _ENDING.fullmatch(column)
    assert found is not None
    return (int(found[2]) if found[2].isdecimal() else -1, found[2].lower())


def _plain(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def describe_columns(given: Columns, remembered: Columns, chosen: Columns, there: Sequence[str], where: str) -> str:
    """Return a line with the column of each role and why: named, as in training, or guessed; and the unused columns."""
    parts, unused = [], list(there)
    for role, columns, named, learnt in zip(Columns._fields, chosen, given, remembered, strict=True):
        if columns:
            names = (columns,) if isinstance(columns, str) else columns
            why = "" if named else " (as in training)" if columns == learnt else " (guessed)"
            parts.append(f"{role} from {', '.join(map(repr, names))}{why}")
            unused = [column for column in unused if column not in names]
    if unused:
        parts.append(f"not used: {shown_names(dict.fromkeys(unused))}")
    return f"{where}: {'; '.join(parts)}"
