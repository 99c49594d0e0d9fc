"""Questions about a text, in SQuAD's JSON: 1.1, 2.0, KorQuAD, and your own files of that form.

An answer counts as located where the context has it at the position that the file gives, or, where a file gives none,
at its first occurrence. Training leaves out questions none of whose answers is located, and counts them; a score keeps
them.

An empty list of answers, where `is_impossible` is not there, says that a question has none: in SQuAD 2.0, as for its
official script, and in any file that has answers to other questions and is not of version 1. This is counted too.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bertworks.errors import UserError
from bertworks.tasks.tables import member, of_kind, read_json
from bertworks.tasks.task import NOT_LOCATED, Answer, Defaults, Published, Skipped, Source, SpanExample, Task

_FIRST = re.compile("(^|v)1", re.IGNORECASE)  # 1.1, v1.1, KorQuAD_v1.0_train
_EMPTY = "questions with an empty list of answers"
_NEGATIVES_NOTE = "SQuAD 1.1 and made-up impossible questions, not SQuAD 2.0's"


def read_squad(paths: Sequence[Path], skipped: Skipped, *, is_second: bool = False) -> Iterator[SpanExample]:
    """Yield the questions of some files; with `is_second` they are SQuAD 2.0's, whatever version they state."""

    def judged(questions: Sequence[tuple[SpanExample, bool]], path: Path) -> Iterator[SpanExample]:
        for example, is_empty in questions:
            if is_empty:
                skipped.add(_EMPTY, f"{path.name}, example {example.id[:40]}", "read as impossible")
            yield example._replace(is_impossible=example.is_impossible or is_empty)

    for path in paths:
        content = read_json(path)
        questions = list(_questions(content, str(path)))
        is_first = _FIRST.search(str(content.get("version", "")))
        empty_says_none = is_second or (not is_first and any(example.answers for example, _ in questions))
        yield from unique(judged(questions, path) if empty_says_none else (one for one, _ in questions), path)


def unique(examples: Iterable[SpanExample], path: Path) -> Iterator[SpanExample]:
    """Yield a file's questions; refuse an id that occurs twice, because answers and scores go by id."""
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise UserError(f"{path}: two questions have the id {example.id[:60]!r}")
        seen.add(example.id)
        yield example


def _questions(content: Any, where: str) -> Iterator[tuple[SpanExample, bool]]:
    """Yield each question, and whether its list of answers is empty without `is_impossible`."""
    for i, article in enumerate(member(content, "data", list, where)):
        in_article = f"{where}: data[{i}]"
        for j, paragraph in enumerate(member(article, "paragraphs", list, in_article)):
            in_paragraph = f"{in_article}.paragraphs[{j}]"
            context = member(paragraph, "context", str, in_paragraph)
            for k, record in enumerate(member(paragraph, "qas", list, in_paragraph)):
                where = f"{in_paragraph}.qas[{k}]"
                text = member(record, "question", str, where)
                key = "guid" if "guid" in record and "id" not in record else "id"  # KLUE-MRC calls it guid
                name = str(record[key]) if type(record.get(key)) is int else member(record, key, str, where)
                is_impossible = "is_impossible" in record and member(record, "is_impossible", bool, where)
                answers = member(record, "answers", list, where) if "answers" in record else []
                located = tuple(_answer(one, context, f"{where}.answers[{n}]") for n, one in enumerate(answers))
                is_empty = "answers" in record and not answers and "is_impossible" not in record
                yield SpanExample(name, text, context, located, is_impossible), is_empty


def _answer(record: Any, context: str, where: str) -> Answer:
    text = member(record, "text", str, where)
    start = record.get("answer_start")
    return located_answer(text, None if start is None else of_kind(start, int, f"{where}.answer_start"), context)


def located_answer(text: str, start: int | None, context: str) -> Answer:
    """Return an answer with its position, if the context has it there; without one, where it first occurs."""
    if not text:
        return Answer(NOT_LOCATED, text)
    if start is None:
        return Answer(context.find(text), text)
    return Answer(start if start >= 0 and context.startswith(text, start) else NOT_LOCATED, text)


def squad_source(*names: str, note: str = "", is_second: bool = False) -> Source:
    """Return the source of a split that is one or several files of SQuAD's form."""
    return Source(names, partial(read_squad, is_second=is_second), note)


SQUAD1 = Task(
    name="squad1", title="SQuAD 1.1", kind="answer", summary="find the answer in a paragraph", is_pair=True,
    splits={"train": (squad_source("train-v1.1.json"),), "dev": (squad_source("dev-v1.1.json"),)},
    homes=("", "squad", "squad1", "SQuAD"), metrics=("f1", "exact_match"),
    published=Published("Table 2, dev, EM/F1", "80.8/88.5", "84.1/90.9"),
    defaults=Defaults(epochs=3, batch_size=32, learning_rate=5e-5, max_length=384),
)  # fmt: skip

_second = partial(squad_source, is_second=True)
SQUAD2 = Task(
    name="squad2", title="SQuAD 2.0", kind="answer", summary="find the answer, or see that there is none",
    is_pair=True, has_impossible=True,
    splits={
        "train": (
            _second("train-v2.0.json"),
            _second("squad/train-v1.1.json", "derived/squad_v2_negatives.json", note=_NEGATIVES_NOTE),
            _second("train-v1.1.json", "squad_v2_negatives.json", note=_NEGATIVES_NOTE),
        ),
        "dev": (_second("dev-v2.0.json"),),
    },
    homes=("", "squad", "squad2", "SQuAD"), metrics=("f1", "exact_match"),
    published=Published("Table 3, dev, EM/F1", "not given", "78.7/81.9"),
    defaults=Defaults(epochs=2, batch_size=48, learning_rate=5e-5, max_length=384),
)  # fmt: skip
