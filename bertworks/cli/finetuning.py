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
)
from bertworks.errors import UserError

TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="A task of `bertworks tasks`; glue: all of it; classify, regress, tag, answer, ...: your own files.",
    ),
]
ModelOption = Annotated[str, typer.Option(help="A model folder, a run folder, or a name, of `models` or in the cache.")]
OutOption = Annotated[str, typer.Option(help="The run folder to write.")]
InitOption = Annotated[str, typer.Option(help="model, or random: only its sizes and vocabulary.")]
BesideOption = Annotated[
    str | None, typer.Option("--with", help="A BERT of the other direction, to read the same texts beside it.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")]
FeaturesOption = Annotated[
    str | None,
    typer.Option(help="Tagging on frozen layers: last, concat-last-four, ..., or table7: all six of the paper."),
]
CacheOption = Annotated[str | None, typer.Option(help="Where frozen layers are kept for several runs.")]


def finetune(
    task: TaskArgument,
    model: ModelOption,
    out: OutOption,
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

    if task == "glue" and column:
        raise UserError("GLUE's files have columns of their own; leave out --column")
    if features is not None and any(text.partition("=")[0].strip() == "task.features" for text in overrides or []):
        raise UserError("--features and task.features say the same; leave one of them out")
    columns = named_columns(task, column or []) if task != "glue" else None
    files = {"data": data, "train": train, "dev": dev, "columns": columns}
    given = [*(overrides or []), *([f"task.features={features}"] if features not in (None, TABLE7) else [])]
    start = {"model": model, "overrides": given, "init": init, "beside": beside, "resume": resume, "device": device}
    if task == "glue" or grid or restart_best or from_mnli or (restarts, search_examples) != (None, None):
        refuse_together(features, cache)
        asked = Asked(task, out, grid, restarts, restart_best, search_examples, from_mnli, quiet, as_json)
        run_many(asked, files, **start)
    else:
        options = files | start | {"out": out, "cache": cache}
        _run_one(task, options, is_table=features == TABLE7, quiet=quiet, as_json=as_json)


def _run_one(task: str, options: dict[str, Any], *, is_table: bool, quiet: bool, as_json: bool) -> None:
    from bertworks.train.distributed import is_first_rank
    from bertworks.train.view import training_view
    from bertworks.tuning.finetune import finetune

    started, is_silent = time.monotonic(), quiet or as_json
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if not is_silent:
            say(text, err=True)

    with training_view(quiet=is_silent) as view:
        options |= {"view": view, "note": note}
        if is_table:
            print_table7(task, options, quiet=quiet, as_json=as_json)
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
        best = f"best {outcome.metric} on dev {outcome.score:.4f}"
        if math.isnan(outcome.score):
            best = f"{outcome.metric} on dev is not defined"
        say(
            f"{out}: {ended} after {outcome.place.step:,} steps{then}; {best}; its model is of step {outcome.step:,}; "
            f"{outcome.minutes:.1f} minutes on the device"
        )
