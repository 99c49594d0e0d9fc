"""`bertworks finetune glue`: all tasks of GLUE that there are files for, the paper's row beside ours, one zip.

Each task is a grid, of one run if nothing else is asked for, in OUT/<task>; what is finished there is not made again.
When a task is through, its model is measured on the splits that it was not chosen by, and predicts the test sets. All
that is known is in OUT/glue.json, written after every task.
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

from bertworks.config import Stated, read_record
from bertworks.errors import CannotGoOn, UserError, counted
from bertworks.files import atomic_write
from bertworks.finetuning.finetune import Init
from bertworks.finetuning.network import AnyPath
from bertworks.finetuning.search import (
    GridOutcome,
    GridPlan,
    Row,
    Views,
    aligned,
    finetune_grid,
    markdown_rows,
    shown,
    wrapped,
)
from bertworks.finetuning.settings import points_of
from bertworks.finetuning.start import check_settings
from bertworks.inference.evaluate import measure_models
from bertworks.inference.model import Model, load
from bertworks.inference.predict import Ensemble
from bertworks.models.find import find_model
from bertworks.models.folder import read_json
from bertworks.models.sentence_transformers import find_encoder
from bertworks.report.terminal import print_note, training_view
from bertworks.tasks.glue import AX, COLA, MNLI, MRPC, QNLI, QQP, RTE, SST2, STSB, WNLI
from bertworks.tasks.submission import GLUE_FILES, write_glue, zip_glue
from bertworks.tasks.task import DEV, TEST, TRAIN, Dataset, Task, open_dataset
from bertworks.train.run_folder import Inputs, check_out, given_as, hold_run, write_inputs

# Predictions for GLUE's test sets, in its server's form: one file for each that is there, and one zip of all.
#
# WNLI gets the most frequent label of its train set, as nothing is learnt for it: the paper leaves it out too.


PREDICTIONS, ZIP_FILE = "predictions", "glue.zip"


def open_part(task: Task, data: AnyPath) -> Dataset | None:
    """Return a task of GLUE's with its files below a folder, or nothing if there are none."""
    try:
        return open_dataset(task, Path(data))
    except UserError:
        return None


def server_files(dataset: Dataset) -> dict[str, str]:
    """Return the server's name for each test set that there is, by split."""
    return {
        split: name
        for (task, split), name in GLUE_FILES.items()
        if task == dataset.task.name and split in dataset.found
    }


def write_tests(folder: Path, model: Model, dataset: Dataset) -> list[str]:
    """Predict for a task's test sets; returns the names of the files."""
    names = server_files(dataset)
    for split in names:
        examples = list(dataset.examples(split))
        results = model.results(examples)
        said = [result["label"] if "label" in result else result["score"] for result in results]
        write_glue(folder, dataset.task, split, [example.id for example in examples], said)
    return list(names.values())


def write_diagnostics(folder: Path, model: Model, data: AnyPath) -> list[str]:
    """Predict for the diagnostic set with a model of MNLI, if it is there."""
    dataset = open_part(AX, data)
    return write_tests(folder, model, dataset) if dataset and server_files(dataset) else []


def write_majority(folder: Path, data: AnyPath) -> str:
    """Predict WNLI's most frequent label for its test set; returns what it is, "" if there are no files."""
    dataset = open_part(WNLI, data)
    if dataset is None or not {TRAIN, TEST} <= set(dataset.found):
        return ""
    label = Counter(str(getattr(example, "label", "")) for example in dataset.examples(TRAIN)).most_common(1)[0][0]
    ids = [example.id for example in dataset.examples(TEST)]
    write_glue(folder, WNLI, TEST, ids, [label] * len(ids))
    return label


def pack(out: Path) -> list[str]:
    """Pack what there is into one zip; returns the names of the files that the server wants and that are missing."""
    folder = out / PREDICTIONS
    if not any((folder / name).is_file() for name in GLUE_FILES.values()):
        return sorted(GLUE_FILES.values())
    return zip_glue(folder, out / ZIP_FILE)


# GLUE for a person: ours beside the paper's Table 1, in percent, for a terminal and as markdown.
#
# The paper's average is the plain mean of nine columns, MNLI counted twice (matched and mismatched), WNLI left out.
# Where tasks are missing, ours is the mean of the columns there are, and so is what stands beside it.


MISMATCHED, GOLD = "dev-mismatched", "test-gold"
# In the order of the paper's columns, which is that of their train sets' sizes.
PAPERS_TASKS = (MNLI, QQP, QNLI, SST2, COLA, STSB, MRPC, RTE)


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
    there = [column for column in COLUMNS if _score(tasks, column) is not None]
    ours = [100 * score for column in there if (score := _score(tasks, column)) is not None]
    return {
        "ours": fmean(ours) if ours else None,
        "base": fmean(column.base for column in there) if ours else None,
        "large": fmean(column.large for column in there) if ours else None,
        "columns": len(there),
        "tasks": len({column.task.name for column in there}),
    }


def _score(tasks: Mapping[str, Mapping[str, Any]], column: Column) -> float | None:
    score: float | None = tasks[column.task.name].get("measured", {}).get(column.split)
    return score


def glue_text(results: Mapping[str, Any]) -> str:
    """Write what glue.json holds for a terminal."""
    lines = [line for text in _closing(results) for line in wrapped(text)]
    return "\n".join([*aligned(_rows(results)), "", *lines])


def glue_markdown(results: Mapping[str, Any]) -> str:
    """Write what glue.json holds as markdown."""
    lines = ["# GLUE", "", *markdown_rows(_rows(results))]
    for line in _closing(results):
        lines += ["", line]
    return "\n".join(lines) + "\n"


def _rows(results: Mapping[str, Any]) -> list[Row]:
    tasks, mean = results["tasks"], results["average"]
    head = ["", "metric", "ours, dev", "mean, std of seeds", "base, test", "large, test", "minutes"]
    rows = [_row(tasks[column.task.name], column) for column in COLUMNS]
    rows.append(["average", "", shown(mean["ours"], 1), "", shown(mean["base"], 1), shown(mean["large"], 1), ""])
    if not _has_gold(tasks):
        return [head, *rows]
    golds = [_percent(tasks[column.task.name].get("measured", {}).get(GOLD)) for column in COLUMNS]
    return [[*row[:3], gold, *row[3:]] for row, gold in zip([head, *rows], ["ours, test", *golds, ""], strict=True)]


def _has_gold(tasks: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(GOLD in task.get("measured", {}) for task in tasks.values())


def _row(task: Mapping[str, Any], column: Column) -> Row:
    score = task.get("measured", {}).get(column.split)
    spread = "" if task.get("std") is None else f"{100 * task['mean']:.1f}, {100 * task['std']:.1f} of {task['seeds']}"
    minutes = f"{task['minutes']:.2f}" if "minutes" in task and column.split == DEV else ""
    return [
        column.title,
        column.task.metrics[0],
        _percent(score) if task["state"] == "finished" else task["state"],
        spread if column.split == DEV else "",
        f"{column.base:.1f}",
        f"{column.large:.1f}",
        minutes,
    ]


def _percent(score: float | None) -> str:
    return shown(None if score is None else 100 * score, 1)


def _closing(results: Mapping[str, Any]) -> Sequence[str]:
    """Return what must be said beside the scores."""
    tasks, mean = results["tasks"], results["average"]
    lines = [
        "In percent. Ours is measured on dev sets, by which its models are chosen too; the columns base and large are "
        "the paper's (Table 1), on test sets by GLUE's server.",
        *(["Ours on test is by the labels in the original archives, not by the server."] if _has_gold(tasks) else []),
        f"The average is the paper's: the mean of the columns above, MNLI twice, without WNLI; over {mean['tasks']} of "
        f"{len(PAPERS_TASKS)} tasks ({mean['columns']} of {len(COLUMNS)} columns), base's and large's over the same.",
    ]
    for state in ("missing", "failed"):
        names = [task["title"] for task in tasks.values() if task["state"] == state]
        lines += [f"{state}: {', '.join(names)}"] if names else []
    for task in tasks.values():
        lines += [f"{task['title']}: {said}" for said in (*task.get("notes", ()), task.get("error", "")) if said]
    return [*lines, *_submission(results["submission"]), f"{results['minutes']:.2f} minutes of training in all"]


def _submission(submission: Mapping[str, Any]) -> list[str]:
    lines = []
    if submission["wnli"]:
        lines.append(f"WNLI is not learnt, as in the paper: all of its test set is said to be {submission['wnli']}")
    if submission["zip"]:
        lines.append(f"{submission['zip']} holds the predictions for the server")
    if submission["missing"]:
        lines.append(f"not in it, as there are no test files or no model: {', '.join(submission['missing'])}")
    return lines


GLUE_FILE, TABLE_FILE = "glue.json", "glue.md"
_FROM_MNLI = (RTE, MRPC, STSB)
_ONE_RUN = GridPlan(grid=False)
_log = logging.getLogger(__name__)


class GlueOutcome(NamedTuple):
    """What came of GLUE; as text it is a table.

    Attributes:
        results: what `glue.json` holds: tasks with their scores, the average, what was written for the server.
        signal: that ended it before it was through, if one did.
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


def finetune_glue(
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
        plan: which runs are made for each task; one if it is not said.
        from_mnli: start RTE, MRPC and STS-B from the model of MNLI.
        init: whether the model's weights are taken, or only its sizes and vocabulary.
        beside: a second BERT that reads the same texts.
        resume: go on; what is finished is not made again.
        device: where to train.
        quiet: show nothing; else how it goes is shown on the error stream.
        views: gives what shows a person how a run goes, instead.
        note: is told what a person wants to know.
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
        raise UserError(f"{data} has no train set of GLUE; it would hold folders as in GLUE's archive: {names}")
    # Before hours of training, and not once for each task.
    points = [points_of(dataset.task, overrides, is_grid=plan.grid) for dataset in datasets.values()]
    settings = [point.settings for some in points for point in some]
    check_settings(folders, settings, is_random=init == "random")
    start = partial(
        finetune_grid, data=data, overrides=overrides, plan=plan, init=init, beside=beside, resume=True,
        device=device, views=views, note=note,
    )  # fmt: skip
    inputs = Inputs(
        command="glue", model=given_as(model), beside=given_as(beside), data=given_as(data), init=init, device=device,
        overrides=list(overrides), plan=plan._asdict(), from_mnli=from_mnli,
    )  # fmt: skip
    with hold_run(folder):
        write_inputs(folder, inputs)
        return Session(folder, Path(data), model, datasets, start, device, note).run(from_mnli=from_mnli)


class _TaskState(Stated):
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


class _File(Stated):
    """What is read of `glue.json`."""

    tasks: dict[str, _TaskState]


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
        # What an earlier start has found holds until this one comes to it.
        self.tasks = {
            task.name: before.get(task.name) or _unknown(task, task.name in datasets) for task in PAPERS_TASKS
        }

    def run(self, *, from_mnli: bool) -> GlueOutcome:
        """Go through all tasks."""
        for number, task in enumerate([task for task in PAPERS_TASKS if task.name in self.datasets], 1):
            self._note(f"{task.title}, {number} of {counted(len(self.datasets), 'task')}")
            try:
                signal = self._learn(task, self._start_model(task, from_mnli))
            except KeyboardInterrupt:
                signal = SIGINT
            except CannotGoOn:  # the task is as it was, and so would be the others
                raise
            except UserError as error:
                self.tasks[task.name] = _unknown(task) | {"state": "failed", "error": " ".join(str(error).split())}
                signal = 0
            if signal:
                return GlueOutcome(self._write(), signal)
            self._write()
        return GlueOutcome(self._write())

    def _start_model(self, task: Task, from_mnli: bool) -> AnyPath:
        if not from_mnli or task not in _FROM_MNLI:
            return self.model
        if self.tasks[MNLI.name]["state"] == "finished":
            self._note(f"{task.title} starts from the model of MNLI")
            return self.out / MNLI.name
        self._note(f"there is no model of MNLI: {task.title} starts from {self.model}")
        return self.model

    def _learn(self, task: Task, model: AnyPath) -> int:
        """Fine-tune for a task, measure its best model further and let it predict; returns a signal that ended it."""
        run = self.out / task.name
        grid = self._start(task.name, model=model, out=run)
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
        score = results["runs"][results["model_of"]]["score"]
        found = self._further(task, results["model_of"], score)
        self.tasks[task.name] = known | {"state": "finished", **_spread(results), **found}
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
        if task is MNLI:
            predicted += write_diagnostics(folder, model, self.data)
        return {"model_of": model_of, "measured": measured, "predicted": predicted}

    def _write(self) -> dict[str, Any]:
        """Pack the predictions there are and write what is known, as JSON and as a table; returns it."""
        missing = pack(self.out)
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


def _spread(results: dict[str, Any]) -> dict[str, Any]:
    """Return the mean and spread of a grid's best point; that of the search if there is no other."""
    best = sorted((point for point in results["points"] if point["is_best"]), key=lambda point: point["is_search"])
    return {"mean": best[0]["mean"], "std": best[0]["std"], "seeds": len(best[0]["scores"])} if best else {}
