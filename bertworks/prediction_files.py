"""A fine-tuned model at work on files: predictions row by row, and scores on a benchmark or on your own file.

Files are streamed: memory does not grow with them, and rows come out in the order in which they went in.
"""

import csv
import json
import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.model import Model
from bertworks.predictions import Result
from bertworks.task_model import TaskModel
from bertworks.tasks.evaluation import evaluate
from bertworks.tasks.examples import Skipped
from bertworks.tasks.kinds import kind_of
from bertworks.tasks.own import KINDS as OWN_KINDS
from bertworks.tasks.own import open_own
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.registry import find_task
from bertworks.tasks.task import DEV, TEST, Dataset, open_dataset

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_LISTS = {"labels": "|", "words": " ", "tags": " "}  # in a table, what divides the members of a list


def write_predictions(
    model: Model | TaskModel,
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    columns: Columns | None = None,
) -> int:
    """Predict for every row of a file; returns how many. The ending of `out` names the form: .csv, .tsv or .jsonl."""
    target, predictor = Path(out), model.predictor()
    if target.suffix not in (*_SEPARATORS, ".jsonl"):
        raise UserError(f"cannot tell the form of {target}; let it end in .csv, .tsv or .jsonl")
    dataset = open_own(predictor.task.kind, {TEST: source}, columns, predictor.task.labels)
    examples = dataset.examples(TEST)
    named = _named(examples, predictor.results)
    with atomic_write(target) as stream:
        if target.suffix == ".jsonl":
            return _write_lines(stream, named)
        return _write_table(stream, named, _SEPARATORS[target.suffix])


def _named(examples: Iterable[Any], results: Any) -> Iterator[Result]:
    """Put the id of its example before each result."""
    ids: deque[str] = deque()

    def watched() -> Iterator[Any]:
        for example in examples:
            ids.append(example.id)
            yield example

    for result in results(watched()):
        yield {"id": ids.popleft(), **result}


def _write_lines(stream: IO[str], results: Iterable[Result]) -> int:
    count = 0
    for count, result in enumerate(results, 1):  # noqa: B007 -- it is the count that is returned
        stream.write(json.dumps(result, ensure_ascii=False) + "\n")
    return count


def _write_table(stream: IO[str], results: Iterable[Result], separator: str) -> int:
    writer, count = csv.writer(stream, delimiter=separator, lineterminator="\n"), 0
    for count, result in enumerate(results, 1):
        row = {name: value for name, value in result.items() if name != "scores"}
        row |= {name: separator.join(row[name]) for name, separator in _LISTS.items() if name in row}
        if count == 1:
            writer.writerow(row)
        writer.writerow(row.values())
    return count


def measure_model(
    model: Model | TaskModel,
    task: str,
    data: str | os.PathLike[str],
    split: str = DEV,
    columns: Columns | None = None,
) -> tuple[dict[str, float], tuple[str, ...]]:
    """Return a model's metrics on a task's split, or on a file of your own, and what must be said beside them."""
    predictor = model.predictor()
    dataset = _opened(task, Path(data), split, predictor.task.labels, columns)
    if dataset.task.kind != predictor.task.kind:
        raise UserError(f"{task} is to {dataset.task.kind}, and the model was fine-tuned to {predictor.task.kind}")
    if dataset.task.labels and set(dataset.task.labels) != set(predictor.task.labels):
        raise UserError(
            f"{task} has the labels {', '.join(dataset.task.labels)}, and the model "
            f"{', '.join(predictor.task.labels)[:200]}"
        )
    skipped = Skipped()
    examples = list(dataset.examples(split, skipped))
    if any(getattr(example, "label", "") is None for example in examples):
        raise UserError(f"{dataset.task.title}: the {split} split has no labels to measure with")
    # Asked in the model's order of labels, measured as the benchmark does.
    asked = replace(dataset.task, labels=predictor.task.labels, threshold=predictor.task.threshold)
    kind = kind_of(asked)
    items = kind.encode(examples, model.tokenizer, asked, predictor.cut)
    measured = evaluate(predictor.net, kind, asked, examples, items, predictor.laying)
    notes = (*dataset.notes, *([str(skipped)] if skipped else []))
    return measured.metrics, notes


def _opened(task: str, data: Path, split: str, labels: tuple[str, ...], columns: Columns | None) -> Dataset:
    if task in OWN_KINDS:
        if not data.is_file():
            raise UserError(f"{data} is not a file; for {task} give the file with your examples")
        return open_own(task, {split: data}, columns, labels)
    return open_dataset(find_task(task), data)
