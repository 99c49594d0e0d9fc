"""The command `finetune`: one run, or many of them."""

import math
import time
from signal import SIGINT
from typing import Annotated, Any

import typer

from bertworks.cli.feature_table import TABLE7, print_table7, refuse_together
from bertworks.cli.grids import (
    Asked,
    FromMnliOption,
    GridOption,
    RestartBestOption,
    RestartsOption,
    SearchExamplesOption,
    as_before,
    run_many,
)
from bertworks.cli.options import (
    ColumnOption,
    DataOption,
    DeviceOption,
    DevOption,
    JsonOption,
    OverridesArgument,
    QuietOption,
    TrainOption,
    how_ended,
    or_null,
    print_json,
    say,
    say_next,
)
from bertworks.errors import UserError, counted

TaskArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="A task of `bertworks tasks`; glue: all of it; classify, regress, tag, answer, ...: your own files.",
    ),
]
ModelOption = Annotated[
    str | None, typer.Option(help="A model folder, a run folder, or a name, of `models` or in the cache.")
]
OutOption = Annotated[str, typer.Option(help="The run folder to write.")]
InitOption = Annotated[str, typer.Option(help="model, or random: only its sizes and vocabulary.")]
BesideOption = Annotated[
    str | None, typer.Option("--with", help="A BERT of the other direction, to read the same texts beside it.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint; --out RUN is enough.")]
FeaturesOption = Annotated[
    str | None,
    typer.Option(help="Tagging on frozen layers: last, concat-last-four, ..., or table7: all six of the paper."),
]
CacheOption = Annotated[str | None, typer.Option(help="Where frozen layers are kept for several runs.")]


def finetune(
    out: OutOption,
    task: TaskArgument = None,
    model: ModelOption = None,
    overrides: OverridesArgument = None,
    data: DataOption = None,
    train: TrainOption = None,
    dev: DevOption = None,
    column: ColumnOption = None,
    init: InitOption = "model",
    beside: BesideOption = None,
    grid: GridOption = False,
    restarts: RestartsOption = None,
    restart_best: RestartBestOption = False,
    search_examples: SearchExamplesOption = None,
    from_mnli: FromMnliOption = False,
    resume: ResumeOption = False,
    features: FeaturesOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a model for a task, and keep the one that is best on the dev set."""
    from bertworks.tasks.named_columns import named_columns

    if task is not None and resume and "=" in task:  # there is no task: it is the first of the settings
        overrides, task = [task, *(overrides or [])], None
    if not resume and (task is None or model is None):
        needed = "a task, see `bertworks tasks`" if task is None else "a model to start from: --model MODEL"
        raise UserError(f"give {needed}; or --resume --out RUN to go on with a run")
    if task is None and column:
        raise UserError("--column belongs to a task's files; give the task too")
    if task == "glue" and column:
        raise UserError("GLUE's files have columns of their own; leave out --column")
    if features is not None and any(text.partition("=")[0].strip() == "task.features" for text in overrides or []):
        raise UserError("--features and task.features say the same; leave one of them out")
    columns = named_columns(task, column) if task is not None and column else None
    files = {"data": data, "train": train, "dev": dev, "columns": columns}
    given = [*(overrides or []), *([f"task.features={features}"] if features not in (None, TABLE7) else [])]
    start = {"model": model, "overrides": given, "init": init, "beside": beside, "resume": resume, "device": device}
    asked = Asked(task, out, grid, restarts, restart_best, search_examples, from_mnli, quiet, as_json)
    if task is None:
        asked = as_before(asked, files, start)
    if asked.is_many():
        refuse_together(features, cache)
        run_many(asked, files, **start)
    else:
        options = files | start | {"out": out, "cache": cache}
        _run_one(task, options, is_table=features == TABLE7, quiet=quiet, as_json=as_json)


def _run_one(task: str | None, options: dict[str, Any], *, is_table: bool, quiet: bool, as_json: bool) -> None:
    from bertworks.train.distributed import is_first_rank
    from bertworks.tuning.finetune import finetune

    started, is_silent = time.monotonic(), quiet or as_json
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if not is_silent:
            say(text, err=True)

    options |= {"quiet": is_silent, "note": note}
    if is_table:
        print_table7(str(task), options, quiet=quiet, as_json=as_json)
        return
    outcome = finetune(task, **options)
    if is_first_rank():
        _tell(outcome, options["out"], time.monotonic() - started, notes, quiet=quiet, as_json=as_json)
    if outcome.signal == SIGINT:
        raise typer.Exit(130)


def _tell(outcome: Any, out: str, seconds: float, notes: list[str], *, quiet: bool, as_json: bool) -> None:
    if as_json:
        facts = {"out": out, "reason": outcome.reason, "steps": outcome.place.step, "best_step": outcome.step}
        metrics = {name: or_null(value) for name, value in {outcome.metric: outcome.score, **outcome.metrics}.items()}
        cost = {"minutes": round(outcome.minutes, 3), "seconds": round(seconds, 2)}
        print_json(facts | metrics | cost | {"notes": notes})
    elif not quiet:
        ended, then = how_ended(outcome.reason)
        steps = counted(outcome.place.step, "step")
        minutes = f"{outcome.minutes:.1f} minutes on the device"
        say(f"{out}: {ended} after {steps}{then}; {_said_of_model(outcome)}; {minutes}")
        if outcome.signal:
            say_next("finetune", "--resume", "--out", out)
        else:
            say_next(*_in_use(out))


def _said_of_model(outcome: Any) -> str:
    """Say what the run has: its best model, or what there is before one was measured."""
    if not outcome.metrics:
        from bertworks.train.run_folder import CHECKPOINTS

        kept = (
            f"{CHECKPOINTS}/step-{outcome.place.step:08}" if outcome.place.step else "nothing yet, it will start anew"
        )
        return f"not measured yet, so there is no model; saved: {kept}"
    best = f"best {outcome.metric} on dev {outcome.score:.4f}"
    if math.isnan(outcome.score):
        best = f"{outcome.metric} on dev is not defined"
    return f"{best}; its model is of step {outcome.step:,}"


def _in_use(out: str) -> tuple[str, ...]:
    """Return the command that uses the model, by the kind of its task."""
    from pathlib import Path

    from bertworks.interop.folder import OWN_FILE, read_json

    task = read_json(Path(out) / "model" / OWN_FILE).get("task")
    kind = task.get("kind") if isinstance(task, dict) else None
    asked = {
        "tag": ("tag", out, "A text."),
        "answer": ("answer", out, "--question", "A question?", "--context", "A text with the answer."),
        "choose": ("choose", out, "What goes before", "one ending", "another"),
    }
    pair = ("--pair", "A second text.") if isinstance(task, dict) and task.get("is_pair") else ()
    return asked.get(str(kind), ("classify", out, "A text.", *pair))
