"""`bertworks glue`: all tasks of GLUE that there are files for, the paper's row beside ours, one zip.

Each task is a grid, by default of one run, in OUT/<task>; finished runs are not repeated. When a task is finished, its
model is measured on the other splits with labels, and predicts the test sets in the form of GLUE's server. All results
are in OUT/glue.json, written after every task. WNLI is not trained, as in the paper: its test set gets the most
frequent label of its train set.

Scores are shown beside the paper's Table 1, in percent. The paper's average is the plain mean of nine columns, MNLI
counted twice (matched and mismatched), WNLI left out. Where tasks are missing, both averages are over the columns that
are there.
"""

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT
from statistics import fmean
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bertworks.config import FileRecord, read_record
from bertworks.errors import CannotResume, UserError, counted
from bertworks.files import atomic_write
from bertworks.finetuning.finetune import Init, check_settings
from bertworks.finetuning.network import AnyPath
from bertworks.finetuning.search import (
    GridOutcome,
    GridPlan,
    Row,
    Views,
    aligned,
    markdown_rows,
    search,
    shown,
    wrapped,
)
from bertworks.finetuning.settings import points_of
from bertworks.inference.evaluate import measure_models
from bertworks.inference.model import Model, load
from bertworks.inference.predict import Ensemble
from bertworks.models.folder import find_encoder, find_model, read_json
from bertworks.report.terminal import print_note, training_view
from bertworks.tasks.glue import AX, COLA, MNLI, MRPC, QNLI, QQP, RTE, SST2, STSB, WNLI
from bertworks.tasks.submission import GLUE_FILES, write_glue, zip_glue
from bertworks.tasks.task import DEV, TEST, TRAIN, Dataset, Task, open_dataset
from bertworks.train.run_folder import Inputs, check_out, given_as, hold_run, write_inputs

GLUE_FILE, TABLE_FILE, PREDICTIONS, ZIP_FILE = "glue.json", "glue.md", "predictions", "glue.zip"
MISMATCHED, GOLD = "dev-mismatched", "test-gold"
# In the order of the paper's columns, which is that of their train sets' sizes.
PAPERS_TASKS = (MNLI, QQP, QNLI, SST2, COLA, STSB, MRPC, RTE)
_FROM_MNLI = (RTE, MRPC, STSB)
_ONE_RUN = GridPlan(grid=False)
_log = logging.getLogger(__name__)


class GlueOutcome(NamedTuple):
    """The outcome of GLUE; as text it is a table.

    Attributes:
        results: what `glue.json` holds: tasks with their scores, the average, what was written for the server.
        signal: the signal that ended it early, or 0.
    """

    results: dict[str, Any]
    signal: int = 0

    @property
    def is_failed(self) -> bool:
        """Whether there were tasks and none could be learnt."""
        states = [task["state"] for task in self.results["tasks"].values()]
        return "failed" in states and "finished" not in states

    def __str__(self) -> str:
        return glue_text(self.results)


def glue(
    *,
    model: AnyPath,
    data: AnyPath,
    out: AnyPath,
    overrides: Sequence[str] = (),
    plan: GridPlan = _ONE_RUN,
    from_mnli: bool = False,
    init: Init = "model",
    beside: AnyPath | None = None,
    resume: bool = False,
    device: str = "auto",
    quiet: bool = False,
    views: Views | None = None,
    note: Callable[[str], None] | None = None,
) -> GlueOutcome:
    """Fine-tune a model for every task of GLUE that there are files for, and predict its test sets.

    Args:
        model: a model folder, a run folder, or a name in the local cache.
        data: the folder with GLUE's files, as its own archive has them.
        out: the folder to write; new or empty unless `resume`.
        overrides: `section.key=value` for all tasks; with a grid also axes.
        plan: which runs are made for each task; one by default.
        from_mnli: start RTE, MRPC and STS-B from the model of MNLI.
        init: whether the model's weights are taken, or only its sizes and vocabulary.
        beside: a second BERT that reads the same texts.
        resume: what is finished is not made again.
        device: where to train.
        quiet: show nothing; otherwise progress is shown on the error stream.
        views: returns a view of a run's progress, instead of the default display.
        note: is called with remarks.

    Example:
        >>> outcome = bw.glue(model="mini", data="glue", out="glue-runs")
    """
    plan.check()
    views, note = views or partial(training_view, quiet=quiet), note or (_log.info if quiet else print_note)
    folder = Path(out)
    check_out(folder, GLUE_FILE, resume=resume)
    folders = [find_encoder(find_model(source)) for source in (model, beside) if source is not None]
    datasets = {
        task.name: dataset for task in PAPERS_TASKS if (dataset := open_part(task, data)) and TRAIN in dataset.found
    }
    if not datasets:
        names = ", ".join(task.title for task in PAPERS_TASKS)
        raise UserError(f"{data} has no train set of GLUE; expected are folders as in GLUE's archive: {names}")
    # Before hours of training, and not once for each task.
    points = [points_of(dataset.task, overrides, is_grid=plan.grid) for dataset in datasets.values()]
    settings = [point.settings for some in points for point in some]
    check_settings(folders, settings, is_random=init == "random")
    start = partial(
        search, data=data, overrides=overrides, plan=plan, init=init, beside=beside, resume=True,
        device=device, views=views, note=note,
    )  # fmt: skip
    inputs = Inputs(
        command="glue", model=given_as(model), beside=given_as(beside), data=given_as(data), init=init, device=device,
        overrides=list(overrides), plan=plan._asdict(), from_mnli=from_mnli,
    )  # fmt: skip
    with hold_run(folder):
        write_inputs(folder, inputs)
        return Session(folder, Path(data), model, datasets, start, device, note).run(from_mnli=from_mnli)


class Session:
    """One start of GLUE."""

    def __init__(
        self,
        out: Path,
        data: Path,
        model: AnyPath,
        datasets: dict[str, Dataset],
        start: Callable[..., GridOutcome],
        device: str,
        note: Callable[[str], None],
    ) -> None:
        self.out, self.data, self.model, self.datasets = out, data, model, datasets
        self._start, self._device, self._note = start, device, note
        (out / PREDICTIONS).mkdir(exist_ok=True)
        self._wnli = write_majority(out / PREDICTIONS, data)
        path = out / GLUE_FILE
        before: dict[str, Any] = {}
        if path.exists():
            content = read_json(path)
            read_record(_File, content, str(path))
            before = content["tasks"]
        # Results of an earlier start are kept until this one reaches the task.
        self.tasks = {
            task.name: before.get(task.name) or _unknown(task, task.name in datasets) for task in PAPERS_TASKS
        }

    def run(self, *, from_mnli: bool) -> GlueOutcome:
        """Go through all tasks."""
        for number, task in enumerate([task for task in PAPERS_TASKS if task.name in self.datasets], 1):
            self._note(f"{task.title}, {number} of {counted(len(self.datasets), 'task')}")
            try:
                signal = self._learn(task, from_mnli=from_mnli)
            except KeyboardInterrupt:
                signal = SIGINT
            except CannotResume:  # the other tasks could not be resumed either
                raise
            except UserError as error:
                self.tasks[task.name] = _unknown(task) | {"state": "failed", "error": " ".join(str(error).split())}
                signal = 0
            if signal:
                return GlueOutcome(self._write(), signal)
            self._write()
        return GlueOutcome(self._write())

    def _learn(self, task: Task, *, from_mnli: bool) -> int:
        """Fine-tune for a task, measure its best model and predict; returns the signal that ended it, or 0."""
        model = self.model
        if from_mnli and task in _FROM_MNLI:
            if self.tasks[MNLI.name]["state"] == "finished":
                self._note(f"{task.title} starts from the model of MNLI")
                model = self.out / MNLI.name
            else:
                self._note(f"there is no model of MNLI: {task.title} starts from {self.model}")
        grid = self._start(task.name, model=model, out=self.out / task.name)
        results = grid.results
        if grid.signal:
            return grid.signal
        known = _unknown(task) | {"minutes": results["minutes"], "notes": list(results["notes"])}
        if model != self.model:
            known["notes"].append(f"started from the model of {MNLI.title}")
        if grid.is_failed:
            error = next(one["error"] for one in results["runs"].values())
            self.tasks[task.name] = known | {"state": "failed", "error": " ".join(error.split())}
            return 0
        known["state"] = "finished"
        # The mean and spread of the best point; that of the search if there is no other.
        best = sorted((point for point in results["points"] if point["is_best"]), key=lambda point: point["is_search"])
        if best:
            known |= {"mean": best[0]["mean"], "std": best[0]["std"], "seeds": len(best[0]["scores"])}
        score = results["runs"][results["model_of"]]["score"]
        self.tasks[task.name] = known | self._further(task, results["model_of"], score)
        return 0

    def _further(self, task: Task, model_of: str, score: float | None) -> dict[str, Any]:
        """Return what a task's model scores on each split, and the files of its predictions; made once for a model."""
        before = self.tasks[task.name]
        folder = self.out / PREDICTIONS
        is_same = before.get("model_of") == model_of and before["measured"].get(DEV) == score
        if is_same and all((folder / name).is_file() for name in before.get("predicted", ["-"])):
            return {name: before[name] for name in ("model_of", "measured", "predicted")}
        model = load(self.out / task.name, device=self._device)
        assert isinstance(model, Model)
        measured = {DEV: score}
        for split in (MISMATCHED, GOLD):
            if split in self.datasets[task.name].found:
                found = measure_models(Ensemble([model], [task.name]), task.name, self.data, split).metrics[
                    task.metrics[0]
                ]
                measured[split] = None if math.isnan(found) else found
        predicted = write_tests(folder, model, self.datasets[task.name])
        if task is MNLI and (diagnostics := open_part(AX, self.data)):
            predicted += write_tests(folder, model, diagnostics)
        return {"model_of": model_of, "measured": measured, "predicted": predicted}

    def _write(self) -> dict[str, Any]:
        """Pack the predictions and write all results, as JSON and as a table; returns them."""
        names, folder = sorted(GLUE_FILES.values()), self.out / PREDICTIONS
        missing = zip_glue(folder, self.out / ZIP_FILE) if any((folder / name).is_file() for name in names) else names
        has_zip = (self.out / ZIP_FILE).is_file()
        content = {
            "model": str(self.model),
            "data": str(self.data),
            "tasks": self.tasks,
            "average": average(self.tasks),
            "minutes": round(sum(task.get("minutes", 0.0) for task in self.tasks.values()), 4),
            "submission": {"zip": str(self.out / ZIP_FILE) if has_zip else "", "missing": missing, "wnli": self._wnli},
        }
        with atomic_write(self.out / GLUE_FILE) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=1, allow_nan=False)
            stream.write("\n")
        with atomic_write(self.out / TABLE_FILE) as stream:
            stream.write(glue_markdown(content))
        return content


def _unknown(task: Task, has_data: bool = True) -> dict[str, Any]:
    return {"title": task.title, "metric": task.metrics[0], "state": "waiting" if has_data else "missing"}


class _TaskState(FileRecord):
    """What is known of a task."""

    title: str
    metric: str
    state: Literal["waiting", "missing", "failed", "finished"]
    minutes: float = Field(default=0.0, ge=0, le=1e9)
    notes: list[str] = Field(default_factory=list)
    error: str = ""
    mean: float | None = None
    std: float | None = None
    seeds: int = 0
    measured: dict[str, float | None] = Field(default_factory=dict)
    model_of: str = ""
    predicted: list[str] = Field(default_factory=list)

    @model_validator(mode="after")
    def _has_scores(self) -> Self:
        needed = {"mean", "seeds"} if self.std is not None else set()
        needed |= (
            {"measured", "predicted"} if self.state == "finished" or "model_of" in self.model_fields_set else set()
        )
        if missing := sorted(needed - self.model_fields_set):
            raise ValueError(f"{', '.join(missing)} should be there")
        return self


class _File(FileRecord):
    """What is read of `glue.json`."""

    tasks: dict[str, _TaskState]


def open_part(task: Task, data: AnyPath) -> Dataset | None:
    """Return a task of GLUE's with its files below a folder, or nothing if there are none."""
    try:
        return open_dataset(task, Path(data))
    except UserError:
        return None


def write_tests(folder: Path, model: Model, dataset: Dataset) -> list[str]:
    """Predict for a task's test sets; returns the names of the files."""
    names = []
    for (task, split), name in GLUE_FILES.items():
        if task == dataset.task.name and split in dataset.found:
            examples = list(dataset.examples(split))
            predictions = [
                result["label"] if "label" in result else result["score"] for result in model.results(examples)
            ]
            write_glue(folder, dataset.task, split, [example.id for example in examples], predictions)
            names.append(name)
    return names


def write_majority(folder: Path, data: AnyPath) -> str:
    """Predict WNLI's most frequent label for its test set; returns what it is, "" if there are no files."""
    dataset = open_part(WNLI, data)
    if dataset is None or not {TRAIN, TEST} <= set(dataset.found):
        return ""
    label = Counter(str(getattr(example, "label", "")) for example in dataset.examples(TRAIN)).most_common(1)[0][0]
    ids = [example.id for example in dataset.examples(TEST)]
    write_glue(folder, WNLI, TEST, ids, [label] * len(ids))
    return label


class Column(NamedTuple):
    """A column of Table 1."""

    task: Task
    title: str
    split: str
    base: float
    large: float


def _columns() -> tuple[Column, ...]:
    columns = []
    for task in PAPERS_TASKS:
        assert task.published, task.name
        splits = {DEV: task.title} if task is not MNLI else {DEV: "MNLI-m", MISMATCHED: "MNLI-mm"}
        scores = zip(task.published.base.split("/"), task.published.large.split("/"), strict=True)
        for (split, title), (base, large) in zip(splits.items(), scores, strict=True):
            columns.append(Column(task, title, split, float(base), float(large)))
    return tuple(columns)


COLUMNS = _columns()


def average(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of the columns there are, in percent, of ours and of the paper's models over the same columns."""
    measured = [(column, tasks[column.task.name].get("measured", {}).get(column.split)) for column in COLUMNS]
    there = [(column, score) for column, score in measured if score is not None]
    return {
        "ours": fmean(100 * score for _, score in there) if there else None,
        "base": fmean(column.base for column, _ in there) if there else None,
        "large": fmean(column.large for column, _ in there) if there else None,
        "columns": len(there),
        "tasks": len({column.task.name for column, _ in there}),
    }


def glue_text(results: Mapping[str, Any]) -> str:
    """Write what glue.json holds for a terminal."""
    rows, closing = _glue_parts(results)
    return "\n".join([*aligned(rows), "", *(line for text in closing for line in wrapped(text))])


def glue_markdown(results: Mapping[str, Any]) -> str:
    """Write what glue.json holds as markdown."""
    rows, closing = _glue_parts(results)
    lines = ["# GLUE", "", *markdown_rows(rows)]
    for line in closing:
        lines += ["", line]
    return "\n".join(lines) + "\n"


def _glue_parts(results: Mapping[str, Any]) -> tuple[list[Row], list[str]]:
    """Return the rows of the table, and the notes on the scores."""
    tasks, mean, submission = results["tasks"], results["average"], results["submission"]
    has_gold = any(GOLD in task.get("measured", {}) for task in tasks.values())

    def percent(score: float | None) -> str:
        return shown(None if score is None else 100 * score, 1)

    gold = ["ours, test"] if has_gold else []
    rows: list[Row] = [["", "metric", "ours, dev", *gold, "mean, std of seeds", "base, test", "large, test", "minutes"]]
    for column in COLUMNS:
        task, is_first = tasks[column.task.name], column.split == DEV
        measured = task.get("measured", {})
        spread = ""
        if task.get("std") is not None and is_first:
            spread = f"{100 * task['mean']:.1f}, {100 * task['std']:.1f} of {task['seeds']}"
        rows.append(
            [
                column.title,
                column.task.metrics[0],
                percent(measured.get(column.split)) if task["state"] == "finished" else task["state"],
                *([percent(measured.get(GOLD))] if has_gold else []),
                spread,
                f"{column.base:.1f}",
                f"{column.large:.1f}",
                f"{task['minutes']:.2f}" if "minutes" in task and is_first else "",
            ]
        )
    means = [shown(mean[name], 1) for name in ("ours", "base", "large")]
    rows.append(["average", "", means[0], *([""] if has_gold else []), "", *means[1:], ""])
    lines = [
        "In percent. Ours are scores on the dev sets, which also choose its models; the columns base and large are "
        "the paper's (Table 1), on test sets by GLUE's server.",
        *(
            ["Ours on test are computed with the labels in the original archives, not by the server."]
            if has_gold
            else []
        ),
        f"The average is the paper's: the mean of the columns above, MNLI twice, without WNLI; over {mean['tasks']} of "
        f"{len(PAPERS_TASKS)} tasks ({mean['columns']} of {len(COLUMNS)} columns), base's and large's over the same.",
    ]
    for state in ("missing", "failed"):
        names = [task["title"] for task in tasks.values() if task["state"] == state]
        lines += [f"{state}: {', '.join(names)}"] if names else []
    for task in tasks.values():
        lines += [f"{task['title']}: {note}" for note in (*task.get("notes", ()), task.get("error", "")) if note]
    if submission["wnli"]:
        lines.append(f"WNLI is not trained, as in the paper: its whole test set is predicted as {submission['wnli']}")
    if submission["zip"]:
        lines.append(f"{submission['zip']} holds the predictions for the server")
    if submission["missing"]:
        lines.append(f"missing from it, for lack of test files or a model: {', '.join(submission['missing'])}")
    return rows, [*lines, f"{results['minutes']:.2f} minutes of training in all"]
