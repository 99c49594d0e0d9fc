"""`RUN/dev.json`: how the best model of a run did on its dev set, by classes, with some of its surest mistakes.

It is written when that model is, so that the report of a run, also of one that was killed, needs no model to be opened.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertworks.errors import CorruptFile
from bertworks.files import atomic_write
from bertworks.interop.folder import parse_json
from bertworks.tasks.breakdown import break_down, gold_of
from bertworks.tasks.examples import Example
from bertworks.tasks.task import Task

if TYPE_CHECKING:
    from bertworks.tasks.evaluation import Evaluated

DEV_FILE = "dev.json"
_MOST_WRONG = 20
_LONGEST_TEXT = 600  # characters; what is wrong is seen by then, and a page stays a page


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
    record = {
        "step": step,
        "metrics": dict(metrics),
        "examples": len(examples),
        "num_wrong": len(wrong),
        "wrong": [{name: _cut(value) for name, value in one.items()} for one in wrong[:_MOST_WRONG]],
        **(breakdown.as_json() if breakdown else {}),
    }
    with atomic_write(run / DEV_FILE) as stream:
        json.dump(record, stream, ensure_ascii=False, indent=1)
        stream.write("\n")


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(part) for part in value]
    return f"{value[:_LONGEST_TEXT]} ..." if isinstance(value, str) and len(value) > _LONGEST_TEXT else value


def read_dev(run: Path) -> dict[str, Any]:
    """Return what was written down; nothing where no dev set has been measured yet."""
    if not (run / DEV_FILE).exists():
        return {}
    record = parse_json(run / DEV_FILE)
    if not isinstance(record, dict):
        raise CorruptFile(f"{run / DEV_FILE} holds no object")
    return record
