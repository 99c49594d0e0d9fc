"""The command `finetune`: one run, or many of them."""

import time
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
    DeviceOption,
    JsonOption,
    OverridesArgument,
    QuietOption,
    or_null,
    print_json,
)

_INTERRUPT = 2  # Ctrl-C; the run is saved all the same


def finetune(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK",
            help="A task of `bertworks tasks`; glue: all of it; classify, regress, tag, answer, ...: your own files.",
        ),
    ],
    model: Annotated[str, typer.Option(help="A model folder, a run folder, or a name in the local cache.")],
    out: Annotated[str, typer.Option(help="The run folder to write.")],
    overrides: OverridesArgument = None,
    data: Annotated[str | None, typer.Option(help="The folder with the task's files.")] = None,
    train: Annotated[str | None, typer.Option(help="Your own file to learn from: .csv, .tsv, .jsonl, ...")] = None,
    dev: Annotated[str | None, typer.Option(help="Your own file to measure on; default: a tenth of --train.")] = None,
    column: ColumnOption = None,
    init: Annotated[str, typer.Option(help="model, or random: only its sizes and vocabulary.")] = "model",
    beside: Annotated[
        str | None, typer.Option("--with", help="A BERT of the other direction, to read the same texts beside it.")
    ] = None,
    grid: GridOption = False,
    restarts: RestartsOption = None,
    restart_best: RestartBestOption = False,
    search_examples: SearchExamplesOption = None,
    from_mnli: FromMnliOption = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the newest checkpoint.")] = False,
    features: Annotated[
        str | None,
        typer.Option(help="Tagging on frozen layers: last, concat-last-four, ..., or table7: all six of the paper."),
    ] = None,
    cache: Annotated[str | None, typer.Option(help="Where frozen layers are kept for several runs.")] = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a model for a task, and keep the one that is best on the dev set."""
    from bertworks.tasks.named_columns import named_columns

    columns = named_columns(task, column or []) if task != "glue" else None
    given = [*(overrides or []), *([f"task.features={features}"] if features not in (None, TABLE7) else [])]
    if task == "glue" or grid or restart_best or from_mnli or (restarts, search_examples) != (None, None):
        asked = Asked(task, out, grid, restarts, restart_best, search_examples, from_mnli, quiet, as_json)
        files = {"data": data, "train": train, "dev": dev, "columns": columns}
        refuse_together(features, cache)
        many = {"model": model, "overrides": given, "init": init, "beside": beside}
        run_many(asked, files, **many, resume=resume, device=device)
        return
    from bertworks.train.view import training_view
    from bertworks.tuning.finetune import finetune

    started = time.monotonic()
    with training_view(quiet=quiet or as_json) as view:
        options: dict[str, Any] = {
            "model": model,
            "out": out,
            "data": data,
            "train": train,
            "dev": dev,
            "columns": columns,
            "overrides": given,
            "init": init,
            "beside": beside,
            "resume": resume,
            "cache": cache,
            "device": device,
            "view": view,
            "note": lambda text: None if quiet or as_json else typer.echo(text, err=True),
        }
        if features == TABLE7:
            print_table7(task, options, quiet=quiet, as_json=as_json)
            return
        outcome = finetune(task, **options)
    _tell(outcome, out, time.monotonic() - started, quiet=quiet, as_json=as_json)
    if outcome.signal == _INTERRUPT:
        raise typer.Exit(130)


def _tell(outcome: Any, out: str, seconds: float, *, quiet: bool, as_json: bool) -> None:
    if as_json:
        facts = {"out": out, "reason": outcome.reason, "steps": outcome.place.step, "best_step": outcome.step}
        metrics = {name: or_null(value) for name, value in outcome.metrics.items()}
        print_json(facts | metrics | {"minutes": round(outcome.minutes, 3), "seconds": round(seconds, 2)})
    elif not quiet:
        ended = "stopped by a signal, go on with --resume" if outcome.reason == "signal" else "finished"
        typer.echo(
            f"{out}: {ended} after {outcome.place.step:,} steps; best {outcome.metric} on dev {outcome.score:.4f} at "
            f"step {outcome.step:,}, which is its model; {outcome.minutes:.1f} minutes on the device"
        )
