"""Questions about a text, in SQuAD's JSON: 1.1, 2.0, KorQuAD, and your own files of that form.

An answer counts as located where the context has it at the place that the file gives, or, where a file gives none, at
its first occurrence. Training leaves out, and counts, questions none of whose answers is located; a score keeps them.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from bertworks.errors import UserError
from bertworks.tasks.examples import NOT_LOCATED, Answer, Skipped, SpanExample
from bertworks.tasks.json_values import member, of_kind, read_json
from bertworks.tasks.task import Defaults, Published, Source, Task

_NEGATIVES_NOTE = "SQuAD 1.1 and made-up impossible questions, not SQuAD 2.0's"


def read_squad(paths: Sequence[Path], _: Skipped) -> Iterator[SpanExample]:
    """Yield the questions of some files."""
    for path in paths:
        yield from unique(_questions(read_json(path), str(path)), path)


def unique(examples: Iterable[SpanExample], path: Path) -> Iterator[SpanExample]:
    """Pass a file's questions on; refuse an id that comes twice, as answers and scores are kept by id."""
    seen: set[str] = set()
    for example in examples:
        if example.id in seen:
            raise UserError(f"{path}: two questions have the id {example.id[:60]!r}")
        seen.add(example.id)
        yield example


def _questions(content: Any, where: str) -> Iterator[SpanExample]:
    for i, article in enumerate(member(content, "data", list, where)):
        in_article = f"{where}: data[{i}]"
        for j, paragraph in enumerate(member(article, "paragraphs", list, in_article)):
            in_paragraph = f"{in_article}.paragraphs[{j}]"
            context = member(paragraph, "context", str, in_paragraph)
            for k, question in enumerate(member(paragraph, "qas", list, in_paragraph)):
                yield _question(question, context, f"{in_paragraph}.qas[{k}]")


def _question(record: Any, context: str, where: str) -> SpanExample:
    text = member(record, "question", str, where)
    name = str(record["id"]) if type(record.get("id")) is int else member(record, "id", str, where)
    is_impossible = "is_impossible" in record and member(record, "is_impossible", bool, where)
    answers = member(record, "answers", list, where) if "answers" in record else []
    located = tuple(_answer(answer, context, f"{where}.answers[{i}]") for i, answer in enumerate(answers))
    return SpanExample(name, text, context, located, is_impossible)


def _answer(record: Any, context: str, where: str) -> Answer:
    text = member(record, "text", str, where)
    start = record.get("answer_start")
    return located_answer(text, None if start is None else of_kind(start, int, f"{where}.answer_start"), context)


def located_answer(text: str, start: int | None, context: str) -> Answer:
    """Return an answer with its place, if the context has it there; without a place, where it first occurs."""
    if not text:
        return Answer(NOT_LOCATED, text)
    if start is None:
        return Answer(context.find(text), text)
    return Answer(start if start >= 0 and context.startswith(text, start) else NOT_LOCATED, text)


def squad_source(*names: str, note: str = "") -> Source:
    """Return the source of a split that is one or several files of SQuAD's form."""
    return Source(names, read_squad, note)


SQUAD1 = Task(
    name="squad1", title="SQuAD 1.1", kind="answer", summary="find the answer in a paragraph", is_pair=True,
    splits={"train": (squad_source("train-v1.1.json"),), "dev": (squad_source("dev-v1.1.json"),)},
    homes=("", "squad", "squad1", "SQuAD"), metrics=("f1", "exact_match"),
    published=Published("Table 2, dev, EM/F1", "80.8/88.5", "84.1/90.9"),
    defaults=Defaults(epochs=3, batch_size=32, learning_rate=5e-5, max_length=384),
)  # fmt: skip

SQUAD2 = Task(
    name="squad2", title="SQuAD 2.0", kind="answer", summary="find the answer, or see that there is none",
    is_pair=True, has_impossible=True,
    splits={
        "train": (
            squad_source("train-v2.0.json"),
            squad_source("squad/train-v1.1.json", "derived/squad_v2_negatives.json", note=_NEGATIVES_NOTE),
            squad_source("train-v1.1.json", "squad_v2_negatives.json", note=_NEGATIVES_NOTE),
        ),
        "dev": (squad_source("dev-v2.0.json"),),
    },
    homes=("", "squad", "squad2", "SQuAD"), metrics=("f1", "exact_match"),
    published=Published("Table 3, dev, EM/F1", "not given", "78.7/81.9"),
    defaults=Defaults(epochs=2, batch_size=48, learning_rate=5e-5, max_length=384),
)  # fmt: skip
