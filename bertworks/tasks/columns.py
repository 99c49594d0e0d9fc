"""Which column of your own file is what: named, or guessed from the columns' names, and said either way.

A guess never looks at the values: it follows from the names alone, so that the train and the dev file of one set are
read alike. A column is taken by a usual name; where one of several columns is left over for the one thing that is
missing, it is that. Anything else is an error that lists the columns.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from bertworks.errors import UserError, shown_names
from bertworks.tasks.tables import RECORD_KINDS, file_kind

_USUAL = {
    "text": ("text", "sentence", "sentence1", "sentence_a", "text1", "text_a", "first", "premise", "question1",
             "document", "review", "comment", "content", "body", "message", "query", "title",
             "문장", "본문", "내용", "텍스트", "리뷰", "댓글", "후기"),
    "pair": ("pair", "text_pair", "sentence2", "sentence_b", "text2", "text_b", "second", "hypothesis", "question2"),
    "label": ("label", "labels", "gold_label", "class", "category", "target", "score", "sentiment", "rating", "stars",
              "is_duplicate", "intent", "y", "레이블", "라벨", "분류", "감정", "평가", "평점", "별점", "점수"),
    "right": ("label", "labels", "gold_label", "answer", "answer_key", "answerkey", "correct", "target", "class",
              "y", "정답", "레이블", "라벨"),
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
OPTIONAL = ("pair", "id", "answer_start")  # roles that may be said to have none
_TEXT_ROLES = ("text", "pair", "label", "id")
_ROLES = {
    "choose": ("context", "endings", "label", "id"),
    "tag": ("words", "tags", "id"),
    "answer": ("question", "context", "answer", "answer_start", "id"),
}
_ENDING = re.compile(r"(ending|choice|option)[ _]?(\d+|[a-z])", re.IGNORECASE)


class Columns(NamedTuple):
    """The columns of your own file by what they hold; what is None is guessed, and what is "" is not there.

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


def roles_of(kind: str) -> tuple[str, ...]:
    """Return what the columns of a file for a kind of task may hold."""
    return _ROLES.get(kind, _TEXT_ROLES)


def as_columns(given: Columns | Mapping[str, Any] | None, kind: str) -> Columns:
    """Return the columns that a person names, in Python as a mapping too; one label or ending need be no list."""
    if given is None:
        return Columns()
    if not isinstance(given, Columns | Mapping):
        raise UserError(f"columns: {type(given).__name__} where a mapping is expected, such as {{'text': 'review'}}")
    named = dict(given) if isinstance(given, Mapping) else given._asdict()
    named = {role: names for role, names in named.items() if names is not None and names not in ((), [])}
    if unknown := sorted(map(str, named.keys() - set(roles_of(kind)))):
        known = ", ".join(roles_of(kind))
        raise UserError(f"columns: to {kind} there is no {shown_names(dict.fromkeys(unknown))}; allowed: {known}")
    checked: dict[str, Any] = {role: _names_of(role, names) for role, names in named.items()}
    return Columns(**checked)


def with_remembered(given: Columns, remembered: Columns, there: Sequence[str]) -> Columns:
    """Take the columns of training for what is not given, as far as a file has them and they are not given a role."""
    taken = {name for value in given if value for name in ((value,) if isinstance(value, str) else value)}
    free = {"", *there} - taken
    found: dict[str, Any] = {
        role: value
        for role, value, named in zip(Columns._fields, remembered, given, strict=True)
        if named in (None, ()) and value is not None and free.issuperset((value,) if isinstance(value, str) else value)
    }
    return given._replace(**found)


def _names_of(role: str, names: Any) -> str | tuple[str, ...]:
    listed = tuple(names) if isinstance(names, list | tuple) and role in SEVERAL else (names,)
    for name in listed:
        if not isinstance(name, str) or (not name and role not in OPTIONAL):
            raise UserError(f"columns: {role}: {str(name)[:60]!r} where the name of a column is expected")
    return listed if role in SEVERAL else listed[0]


def text_columns(given: Columns, there: Sequence[str], where: str) -> Columns:
    """Complete the columns of a file of texts or pairs; the label may be missing, as in a file to predict on."""
    free = _check_given(given, there, where)
    name, free = _taken("id", given.id, free)
    labels = given.label
    if not labels:
        label, free = _taken("label", None, free)
        labels = () if label is None else (label,)
    pair, free = _taken("pair", given.pair, free)
    text, free = _taken("text", given.text, free)
    if text is None and len(free) == 1 < len(there) and not _is_usual(free[0]):
        text, free = free[0], []
    if text is None:
        _refuse("text", there, where)
    return given._replace(text=text, pair=pair, label=labels, id=name)


def choice_columns(given: Columns, there: Sequence[str], where: str) -> Columns:
    """Complete the columns of a file of choices: a list of endings, or columns named ending0, ending1, ..."""
    free = _check_given(given, there, where)
    name, free = _taken("id", given.id, free)
    context, free = _taken("context", given.context, free)
    label, free = _taken("right", given.label[0] if given.label else None, free)
    endings = given.endings or tuple(sorted(filter(_ENDING.fullmatch, free), key=_number_of_ending))
    if not endings:
        one, free = _taken("endings", None, free)
        endings = () if one is None else (one,)
    if context is None or not endings:
        _refuse("context" if context is None else "endings", there, where)
    return given._replace(context=context, endings=endings, label=() if label is None else (label,), id=name)


def _number_of_ending(column: str) -> tuple[int, str]:
    """Whatever the columns' order in the file: ending2 is before ending10, and a before b."""
    found = _ENDING.fullmatch(column)
    assert found is not None
    return (int(found[2]) if found[2].isdecimal() else -1, found[2].lower())


def answer_columns(given: Columns, there: Sequence[str], where: str) -> Columns:
    """Complete the columns of a file of questions; the answer may be missing, as in a file to predict on."""
    free = _check_given(given, there, where)
    found: dict[str, Any] = {}
    for role in ("id", "question", "context", "answer_start", "answer"):
        found[role], free = _taken(role, getattr(given, role), free)
    for role in ("question", "context"):
        if found[role] is None:
            _refuse(role, there, where)
    return given._replace(**found)


def tag_columns(given: Columns, there: Sequence[str], where: str) -> Columns:
    """Complete the columns of a file whose records are lists of words and of tags."""
    free = _check_given(given, there, where)
    name, free = _taken("id", given.id, free)
    words, free = _taken("words", given.words, free)
    tags, free = _taken("tags", given.tags, free)
    if words is None:
        _refuse("words", there, where)
    return given._replace(words=words, tags=tags, id=name)


def said(given: Columns, remembered: Columns, chosen: Columns, there: Sequence[str], where: str) -> str:
    """Say which columns were taken for what and why: named, those of training, or guessed; and which are not used."""
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


def _check_given(given: Columns, there: Sequence[str], where: str) -> list[str]:
    """Make sure that the named columns are there; return the others."""
    named = [name for value in given if value for name in ((value,) if isinstance(value, str) else value)]
    for name in named:
        if name not in there:
            raise UserError(f"{where}: no column {name!r}; there are: {shown_names(dict.fromkeys(there))}")
    return [column for column in there if column not in named]


def _plain(column: str) -> str:
    return column.strip().lower().replace(" ", "_").replace("-", "_")


def _is_usual(column: str) -> bool:
    """Tell whether a name is usual for something, so that it is not taken for something else."""
    return any(_plain(column) in names for names in _USUAL.values())


def _taken(role: str, named: str | None, free: list[str]) -> tuple[str | None, list[str]]:
    """Return the column for a role, named or by a usual name, and those that are left; none where that is said."""
    if named == "":
        return None, free
    by_plain_name = {_plain(column): column for column in free}
    usual = next((by_plain_name[name] for name in _USUAL[role] if name in by_plain_name), None)
    chosen = named or usual
    return chosen, [column for column in free if column != chosen]


def _refuse(role: str, there: Sequence[str], where: str) -> NoReturn:
    usual = ", ".join(_USUAL[role][:6])
    # Of the first line of a file that has only texts nobody can tell whether it is one of them.
    is_table = file_kind(Path(where)) not in RECORD_KINDS
    alone = "; if that is a text, write `text` on a line above it" if len(there) == 1 and is_table else ""
    raise UserError(
        f"{where}: which column is the {role}? None is called as usual ({usual}, ...); name it with --column "
        f"{role}=NAME, in Python with columns; there are: {shown_names(dict.fromkeys(there))}{alone}"
    )
