"""Fine-tuned models measured on a benchmark or on a file of your own: the metrics, and what is in them.

`evaluate` is the public function; the command calls its parts, and writes what was predicted wrongly besides. Tables
of scores are text of at most 100 columns, which are in line whatever the labels are written in: Hangul and other wide
characters count as two.
"""

import io
import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bertworks.data.shards import MANIFEST
from bertworks.errors import UserError, counted
from bertworks.files import make_folder
from bertworks.inference.held_out import HELD_OUT, measure_text
from bertworks.inference.minimal_pairs import BLIMP, measure_pairs
from bertworks.inference.model import Model
from bertworks.inference.predict import AnyModel, Ensemble, check_row_file, open_models, write_rows
from bertworks.processes import ProgressCallback, silent
from bertworks.tasks import TASKS, find_task
from bertworks.tasks.columns import as_columns
from bertworks.tasks.evaluation import loss_of_rows
from bertworks.tasks.heads import kind_of
from bertworks.tasks.metrics import Breakdown, break_down, gold_of, most_confused
from bertworks.tasks.own_files import KINDS as OWN_KINDS
from bertworks.tasks.own_files import open_own
from bertworks.tasks.submission import check_submission, write_submission, wrong_columns, wrong_examples
from bertworks.tasks.task import DEV, TRAIN, Columns, Dataset, Example, Skipped, SpanExample, Task, open_dataset

WIDTH = 100
_LONGEST_LABEL = 40
_GAP = 2
_MOST_MISTAKES = 15


class Measured(NamedTuple):
    """The scores of models on a task.

    Attributes:
        task: the task, with the labels in the models' order, and the threshold that was used.
        split: of the examples.
        examples: the examples of the split.
        predictions: the prediction for each.
        rows: their scores.
        metrics: the task's, the main one first, and the loss; none where the split has no labels.
        breakdown: the same by classes, where there are any.
        notes: what users should know about them.
    """

    task: Task
    split: str
    examples: list[Example]
    predictions: list[Any]
    rows: list[NDArray[np.float32]]
    metrics: dict[str, float]
    breakdown: Breakdown | None
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return metrics, classes and the number of examples; a number that JSON does not have is None."""
        metrics = {name: value if math.isfinite(value) else None for name, value in self.metrics.items()}
        parts = self.breakdown.as_json() if self.breakdown else {}
        return metrics | parts | {"examples": len(self.examples)}


def evaluate(
    model: AnyModel | Sequence[AnyModel],
    data: str | os.PathLike[str],
    *,
    task: str | None = None,
    split: str | None = None,
    columns: Columns | Mapping[str, Any] | None = None,
    max_length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    dtype: str | None = None,
) -> dict[str, Any]:
    """Measure a fine-tuned model on a task, or a pre-trained one on prepared text.

    Args:
        model: a run folder, a model folder, or what `bw.load` gives; a list of fine-tuned ones is measured together.
        data: your own file, the folder with a benchmark's files, or one that `bertworks prepare` made.
        task: a benchmark's name or a kind of task; without it what the model was fine-tuned for. `blimp` is for
            pre-trained models.
        split: of a benchmark, dev without it; of prepared text holdout.
        columns: which column of your own file is what; without it those of training, or a guess.
        max_length: of sequences of prepared text.
        max_tokens: of prepared text about this many.
        device: auto, cpu, cuda or mps.
        dtype: float32 (the default), bfloat16, float16, int8 or auto.

    Returns:
        what `bertworks evaluate --json` prints, but for the time it took.

    Example:
        >>> measured = bw.evaluate("reviews-model", "reviews.csv")
        >>> measured["accuracy"], measured["examples"]
        (1.0, 30)
    """
    if is_text(task, data):
        if not isinstance(model, str | os.PathLike) or columns is not None:
            raise UserError("prepared text is measured with one model, named by its folder, and has no columns")
        options: dict[str, Any] = {"max_length": max_length, "max_tokens": max_tokens, "device": device, "dtype": dtype}
        metrics, counts, length = measure_text(model, data, split=split or HELD_OUT, **options)
        return metrics | counts | {"max_length": length}
    if max_length is not None or max_tokens is not None:
        raise UserError("max_length and max_tokens are for prepared text; for a task a model uses its own")
    if task == BLIMP:
        if not isinstance(model, str | os.PathLike | Model) or columns is not None:
            raise UserError("minimal pairs are measured with one pre-trained model, and have no columns")
        return measure_pairs(model, data, device=device, dtype=dtype)[0]
    ensemble, task = open_for(model, data, task, device=device, dtype=dtype)
    measured = measure_models(ensemble, task, data, split or DEV, columns)
    return measured.as_json() | training_cost(ensemble.models) | {"notes": list(measured.notes)}


def is_text(task: str | None, data: str | os.PathLike[str]) -> bool:
    """Tell whether what is to be measured on is text that `bertworks prepare` made, and not a task's files."""
    return task is None and Path(data, MANIFEST).exists()


def open_for(
    models: AnyModel | Sequence[AnyModel],
    data: str | os.PathLike[str],
    task: str | None,
    *,
    device: str,
    dtype: str | None,
) -> tuple[Ensemble, str]:
    """Open models, and find the task that they are measured on if none is named: their own, or of a file its kind."""
    is_folder = task is None and Path(data).is_dir()
    try:
        ensemble = open_models(models, device=device, dtype=dtype)
    except UserError as error:
        if is_folder:
            message = "is not text prepared with `bertworks prepare`, on which a pre-trained model is measured"
            raise UserError(f"{error}; {data} {message}; for a benchmark's files name it with --task") from error
        raise
    if task is not None or not is_folder:
        return ensemble, task or ensemble.task.kind
    if ensemble.task.name in OWN_KINDS:
        raise UserError(
            f"{data} is a folder, and the model has no record of a benchmark it was fine-tuned on: give the file with "
            "your examples, or name the benchmark with --task"
        )
    return ensemble, ensemble.task.name


def measure_models(
    ensemble: Ensemble,
    task: str,
    data: str | os.PathLike[str],
    split: str = DEV,
    columns: Columns | Mapping[str, Any] | None = None,
    *,
    needs_labels: bool = True,
    max_examples: int = 0,
    progress: ProgressCallback = silent,
) -> Measured:
    """Measure models together on a task's split, or on a file of your own.

    Args:
        ensemble: the models.
        task: a benchmark's name, or a kind of task for your own file.
        data: the folder with the benchmark's files, or your own file.
        split: which of the benchmark's.
        columns: of your own file.
        needs_labels: whether a split without labels is an error; else it is only predicted.
        max_examples: measure on the first ones alone; 0: on all.
        progress: is called with how far it is.
    """
    dataset, skipped = _dataset_for(ensemble, task, Path(data), split, columns), Skipped()
    examples = list(itertools.islice(dataset.examples(split, skipped), max_examples or None))
    if not examples:
        raise UserError(f"{dataset.task.title}: the {split} split in {dataset.origin} has no examples")
    gold, questions = gold_of(examples), [example for example in examples if isinstance(example, SpanExample)]
    # At least one question must have a gold answer, or be marked as having none.
    is_answered = not questions or any(question.answers or question.is_impossible for question in questions)
    has_labels = None not in gold and is_answered
    if needs_labels and not has_labels and dataset.task.kind == "answer":
        files = ", ".join(map(str, dataset.files(split).paths))
        raise UserError(f"{files}: no question has a gold answer to measure with; `bertworks predict` answers them")
    if needs_labels and not has_labels:
        others = ", ".join(name for name in dataset.found if name not in (split, TRAIN))
        hint = f"; there are also: {others}" if others else ""
        raise UserError(f"{dataset.task.title}: the {split} split has no labels to measure with{hint}")
    # Predicted in the models' order of labels, measured as the benchmark does.
    threshold, remarks = threshold_for(ensemble, dataset.task)
    measured_task = replace(dataset.task, labels=ensemble.task.labels, threshold=threshold)
    kind, count = kind_of(measured_task), len(examples)

    def done(share: float) -> None:
        progress("measuring", share * count, count, counted(int(share * count), "example"))

    of_models = ensemble.read(examples, measured_task)
    items, (rows, loss) = of_models[0], ensemble.score(measured_task, of_models, done)
    predictions = kind.decode(examples, items, rows, measured_task)
    unknown = ensemble.unknown()
    unknown.add(items.ids)
    notes = tuple(filter(None, (*dataset.notes, str(skipped) if skipped else "", *remarks, unknown.warning())))
    metrics, breakdown = dict[str, float](), None
    if has_labels:
        loss = loss_of_rows(kind, items, rows, ensemble.models[0].layout) if loss is None else loss
        metrics = kind.measure(measured_task, examples, predictions) | {"loss": loss}
        breakdown = break_down(measured_task, gold, predictions)
    measured_task = replace(measured_task, threshold=metrics.get("threshold", threshold))
    return Measured(measured_task, split, examples, predictions, rows, metrics, breakdown, notes)


def threshold_for(ensemble: Ensemble, task: Task) -> tuple[float | None, list[str]]:
    """Return what decides that a question has no answer, as when it is predicted, and notes on it."""
    own = ensemble.task.threshold
    if own is not None or not task.has_impossible:
        return own, []
    if ensemble.names_task:
        return math.inf, [
            "some questions have no answer, but the model was trained without such questions: it always gives one"
        ]
    return None, ["the model has no threshold for questions without an answer: the best one for these is used"]


def check_outputs(
    task: str, data: str, split: str, wrong: str | None, predictions: str | None, *, csv_safe: bool = False
) -> None:
    """Refuse, before any work, files that could not be written afterwards."""
    if csv_safe and wrong is None:
        raise UserError("--csv-safe is for the table of --wrong; give that too, or leave it out")
    if wrong is not None:
        check_row_file(wrong, data, csv_safe=csv_safe)
    if predictions is not None:
        if task in OWN_KINDS:
            raise UserError("only benchmarks have their own format for predictions; `bertworks predict` writes yours")
        check_submission(find_task(task), split)
        make_folder(predictions)


def write_outputs(
    measured: Measured, wrong: str | None, predictions: str | None, *, csv_safe: bool = False
) -> list[str]:
    """Write the requested files, and return lines that name them."""
    lines = []
    if wrong is not None:
        mistakes = wrong_examples(measured.task, measured.examples, measured.predictions, measured.rows)
        count = write_rows(wrong, mistakes, wrong_columns(measured.examples[0]), csv_safe=csv_safe)
        lines.append(f"{wrong}: {count:,} of {counted(len(measured.examples), 'example')}")
    if predictions is not None:
        files = write_submission(
            Path(predictions), measured.task, measured.split, measured.examples, measured.predictions
        )
        lines += [f"{path}: {counted(len(measured.predictions), 'prediction')}" for path in files]
    return lines


def training_cost(models: Sequence[Model]) -> dict[str, Any]:
    """Return the device minutes of fine-tuning, of several models together, and where; None where one does not say."""
    reports = [model.about.get("provenance") or {} for model in models]
    minutes = [one["minutes"] for one in reports if one.get("minutes") is not None]
    devices = dict.fromkeys(one["device"] for one in reports if "device" in one)
    return {
        "minutes": round(sum(minutes), 3) if len(minutes) == len(models) else None,
        "device": ", ".join(devices) or None,
    }


def _dataset_for(
    ensemble: Ensemble, task: str, data: Path, split: str, columns: Columns | Mapping[str, Any] | None
) -> Dataset:
    """Open data; refuse some of another kind, with other labels, or of pairs where the models know single texts."""
    learnt, is_own = ensemble.task, task in OWN_KINDS
    if is_own and not data.is_file():
        raise UserError(f"{data} is not a file; for {task} give the file with your examples")
    if is_own and split != DEV:
        raise UserError(f"{data} is one file, all of which is measured; --split {split[:40]} is for benchmarks")
    if is_own:
        named = set(as_columns(columns, task).label)
        missing = [label for label in learnt.labels if label not in named]
        if task == "multilabel" and len(named) > 1 and missing:
            raise UserError(
                f"the model has labels without a column: {', '.join(missing)[:200]}; name one for each label"
            )
        words = TASKS[learnt.name].words if learnt.name in TASKS else None
        dataset = open_own(task, {split: data}, columns, learnt.labels, remembered=learnt.columns, words=words)
    elif columns:
        raise UserError(f"{find_task(task).title} has columns of its own; they are named for your own files alone")
    else:
        dataset = open_dataset(find_task(task), data)
    wanted = dataset.task
    if wanted.kind != learnt.kind:
        raise UserError(f"{task} is to {wanted.kind}, and the model was fine-tuned to {learnt.kind}")
    if wanted.labels and set(wanted.labels) != set(learnt.labels):
        raise UserError(
            f"{task} has the labels {', '.join(wanted.labels)}, and the model {', '.join(learnt.labels)[:200]}"
        )
    ensemble.check_pairs(wanted.is_pair, dataset.origin if is_own else task)
    return dataset


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Return a line for each metric."""
    widest = max(12, *map(len, metrics)) if metrics else 0
    return "".join(f"{name:<{widest}} {value:.4f}\n" for name, value in metrics.items())


def breakdown_text(breakdown: Breakdown) -> str:
    """Return a table of the classes and, where classes exclude each other, one of what was taken for what."""
    has_counts = bool(breakdown.confusion)
    are_sets = has_counts and isinstance(breakdown.confusion[0][0], list)  # each label has a table of two by two
    names = ["precision", "recall", "F1", "support", *(["right", "false", "missed"] if are_sets else [])]
    classes = _table("class", names)
    for number, (label, score) in enumerate(breakdown.per_class.items()):
        cells = [f"{share:.4f}" for share in score[:3]] + [f"{score.support:,}"]
        if are_sets:
            (_, false), (missed, right) = breakdown.confusion[number]
            cells += [f"{count:,}" for count in (right, false, missed)]
        classes.add_row(Text(label), *cells)
    text = _rendered(classes)
    if (are_sets or not has_counts) and not breakdown.commonest:
        return text
    if has_counts and (matrix := _matrix(breakdown)):
        return f"{text}\nhow often each class (row) was predicted as each class (column)\n{_rendered(matrix)}"
    mistakes = _table("class", [])
    mistakes.add_column("predicted as", no_wrap=True, overflow="ellipsis", max_width=_LONGEST_LABEL)
    mistakes.add_column("times", justify="right")
    for right, guess, count in most_confused(breakdown, _MOST_MISTAKES):
        mistakes.add_row(Text(right), Text(guess), f"{count:,}")
    return f"{text}\nthe commonest mistakes\n{_rendered(mistakes)}"


def _matrix(breakdown: Breakdown) -> Table | None:
    """Return the matrix with its labels, or with their numbers where they are too wide; None where neither fits."""
    labels = breakdown.labels
    widest = max(len(f"{count:,}") for row in breakdown.confusion for count in row)
    longest = min(_LONGEST_LABEL, max(map(cell_len, labels)))
    numbers = [str(number) for number in range(1, len(labels) + 1)]
    for heads, more in ((labels, 0), (numbers, len(numbers[-1]) + 1)):
        if longest + more + sum(_GAP + max(widest, cell_len(head)) for head in heads) + _GAP <= WIDTH:
            table = _table("", heads, _LONGEST_LABEL + more)
            for label, number, row in zip(labels, numbers, breakdown.confusion, strict=True):
                before = f"{number:>{more - 1}} " if more else ""
                table.add_row(Text(before + label), *(f"{count:,}" for count in row))
            return table
    return None


def _table(first: str, others: Sequence[str], widest: int = _LONGEST_LABEL) -> Table:
    table = Table(box=None, padding=(0, _GAP, 0, 0))
    table.add_column(Text(first), no_wrap=True, overflow="ellipsis", max_width=widest)
    for name in others:
        table.add_column(Text(name), justify="right", no_wrap=True)
    return table


def _rendered(table: Table) -> str:
    """Return a table as plain text without blanks at line ends."""
    stream = io.StringIO()
    Console(file=stream, width=WIDTH, color_system=None, force_terminal=False, _environ={}).print(table)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines())
