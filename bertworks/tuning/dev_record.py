"""`RUN/dev.json`: how the best model of a run did on its dev set, by classes, with some of its surest mistakes.

It is written when that model is, so that the report of a run, also of one that was killed, needs no model to be opened.
Nothing here needs torch.
"""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Count, Settings, read_record, validate
from bertworks.files import atomic_write
from bertworks.interop.folder import read_json
from bertworks.tasks.breakdown import break_down, gold_of
from bertworks.tasks.examples import Example
from bertworks.tasks.task import Task

if TYPE_CHECKING:
    from bertworks.tasks.evaluation import Evaluated

DEV_FILE = "dev.json"
_MOST_WRONG = 20
_MOST_CLASSES = 1_000  # of more the commonest are written
_LONGEST_TEXT = 600  # characters; what is wrong is seen by then, and a page stays a page
_NOT_TEXTS = ("id", "gold", "predicted", "score", "error")


class ClassFigures(Settings):
    """How well a class, or a type of entity, was found."""

    precision: float
    recall: float
    f1: float
    support: Count


class Confusion(Settings):
    """See `Breakdown`."""

    labels: list[str]
    counts: list[list[Count]] | list[list[list[Count]]]


class Mistake(Settings):
    """An example, what was right and what the model said, in words."""

    id: str
    texts: list[str | list[str]]  # a list: of endings
    gold: str
    predicted: str
    score: float  # how sure the model was; of a regression its error


class DevRecord(Settings):
    """What is known of the best model."""

    kind: str  # of the task
    step: Count
    metrics: dict[str, float]
    examples: Count
    num_wrong: Count
    wrong: list[Mistake]
    per_class: dict[str, ClassFigures] = Field(default_factory=dict)
    confusion: Confusion | None = None
    commonest_mistakes: list[list[str | int]] = Field(default_factory=list)  # see `Breakdown`
    num_classes: int | None = None  # where there are more than those of per_class

    @field_validator("confusion")
    @classmethod
    def _has_a_row_and_a_column_for_each_class(
        cls, confusion: Confusion | None, info: ValidationInfo
    ) -> Confusion | None:
        num_classes = len(info.data.get("per_class", {}))
        if confusion and {len(confusion.labels), len(confusion.counts)} != {num_classes}:
            raise ValueError(f"it is not of the {num_classes} classes of per_class")
        rows = confusion.counts if confusion else []
        # Of several labels there are two rows of two numbers for each, else a row of a number for each.
        if any(len(row) != (num_classes if isinstance(row[0], int) else 2) for row in rows if row) or [] in rows:
            raise ValueError("its rows are not of one length")
        return confusion


def write_dev(
    run: Path, task: Task, step: int, metrics: Mapping[str, float], examples: Sequence[Example], found: "Evaluated"
) -> None:
    """Write down what a model predicted for the dev set.

    Args:
        run: the run folder.
        task: what was asked.
        step: of the model.
        metrics: those that are defined.
        examples: the dev set.
        found: what the model made of it.
    """
    from bertworks.tasks.wrong import wrong_examples  # with numpy, which a report can do without

    wrong = wrong_examples(task, examples, found.predictions, found.rows)
    breakdown = break_down(task, gold_of(examples), found.predictions)
    values = {
        "kind": task.kind,
        "step": step,
        "metrics": dict(metrics),
        "examples": len(examples),
        "num_wrong": len(wrong),
        "wrong": [one for one in map(_mistake, wrong) if math.isfinite(one["score"])][:_MOST_WRONG],
        **(breakdown.as_json() if breakdown else {}),
    }
    if breakdown and len(breakdown.per_class) > _MOST_CLASSES:
        chosen = sorted(breakdown.per_class.items(), key=lambda item: -item[1].support)[:_MOST_CLASSES]
        values |= {"per_class": {label: score._asdict() for label, score in chosen}, "confusion": None}
        values["num_classes"] = len(breakdown.per_class)
    record = validate(DevRecord, values, str(run / DEV_FILE))
    unused = {name for name in ("commonest_mistakes", "num_classes") if not getattr(record, name)}
    with atomic_write(run / DEV_FILE) as stream:
        json.dump(record.model_dump(exclude=unused), stream, ensure_ascii=False, indent=1)
        stream.write("\n")


def _mistake(one: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "id": one["id"],
        "texts": [_cut(value) for name, value in one.items() if name not in _NOT_TEXTS],
        "gold": _worded(one["gold"]),
        "predicted": _worded(one["predicted"]),
        "score": one["error"] if "error" in one else one["score"],
    }


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(part) for part in value]
    return f"{value[:_LONGEST_TEXT]} ..." if len(value) > _LONGEST_TEXT else value


def _worded(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "no label"
    word = f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(_cut(word)) or "no answer"


def read_dev(run: Path) -> DevRecord | None:
    """Return what was written down; None where no dev set has been measured yet."""
    path = run / DEV_FILE
    return read_record(DevRecord, read_json(path), str(path)) if path.exists() else None
