"""`bertworks finetune glue`: all tasks of GLUE that there are files for, the paper's row beside ours, one zip.

Each task is a grid, of one run if nothing else is asked for, in OUT/<task>; what is finished there is not made again.
When a task is through, its model is measured on the splits that it was not chosen by, and predicts the test sets. All
that is known is in OUT/glue.json, written after every task.
"""

import json
import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Any, Literal, NamedTuple, Self

from pydantic import Field, model_validator

from bertworks.config import Stated, read_record
from bertworks.errors import CannotGoOn, UserError, counted
from bertworks.files import atomic_write
from bertworks.inference.ensemble import Ensemble
from bertworks.inference.loading import load
from bertworks.inference.measuring import measure_models
from bertworks.inference.model import Model
from bertworks.interop.folder import read_json
from bertworks.interop.locate import find_model
from bertworks.interop.sentence_folders import find_encoder
from bertworks.tasks.glue import MNLI, MRPC, RTE, STSB
from bertworks.tasks.task import DEV, TRAIN, Dataset, Task
from bertworks.train.run_folder import Inputs, check_out, given_as, hold_run, write_inputs
from bertworks.train.view import print_note, training_view
from bertworks.tuning.axes import points_of
from bertworks.tuning.finetune import Init
from bertworks.tuning.glue_predictions import (
    PREDICTIONS,
    ZIP_FILE,
    open_part,
    pack,
    write_diagnostics,
    write_majority,
    write_tests,
)
from bertworks.tuning.glue_table import GOLD, MISMATCHED, PAPERS_TASKS, average, glue_markdown, glue_text
from bertworks.tuning.grid import GridOutcome, GridPlan, finetune_grid
from bertworks.tuning.grid_runs import Views
from bertworks.tuning.start import check_settings
from bertworks.tuning.task_start import AnyPath

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
