"""The command that trains: pretrain."""

import time
from typing import Annotated, Any

import typer

from bertworks.cli.options import (
    DeviceOption,
    JsonOption,
    OverridesArgument,
    QuietOption,
    SkipBadShardsOption,
    print_json,
)


def pretrain(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a path to one.")],
    data: Annotated[str, typer.Option(help="A folder that `bertworks prepare` made.")],
    out: Annotated[str | None, typer.Option(help="The run folder to write.")] = None,
    overrides: OverridesArgument = None,
    start_from: Annotated[
        str | None,
        typer.Option("--from", metavar="MODEL", help="Train a model further: its folder, a run folder, or its name."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in the run folder.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Walk the whole way for one step and keep nothing.")
    ] = False,
    skip_bad_shards: SkipBadShardsOption = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pre-train a BERT on prepared data."""
    from bertworks.errors import UserError
    from bertworks.progress import progress_bar
    from bertworks.recipe import load_recipe
    from bertworks.train.pretrain import pretrain, pretrain_dry

    settings = load_recipe(recipe, overrides or [])
    if out is None and not dry_run:
        raise UserError("say where the run folder shall be: --out RUN")
    started = time.monotonic()
    options: dict[str, Any] = {
        "data": data,
        "start_from": start_from,
        "skip_bad_shards": skip_bad_shards,
        "device": device,
        "note": lambda text: None if quiet or as_json else typer.echo(text, err=True),
    }
    with progress_bar(quiet=quiet or as_json) as progress:
        if dry_run or out is None:
            outcome = pretrain_dry(settings, **options)
        else:
            outcome = pretrain(settings, out=out, resume=resume, progress=progress, **options)
    result: dict[str, Any] = {
        "out": None if dry_run else out,
        "reason": outcome.reason,
        "steps": outcome.place.step,
        "tokens": outcome.place.tokens,
        **outcome.metrics,
        "seconds": round(time.monotonic() - started, 2),
    }
    if as_json:
        print_json(result)
    elif not quiet:
        typer.echo(_sentence(result))
    if outcome.signal == _INTERRUPT:
        raise typer.Exit(130)


_INTERRUPT = 2  # Ctrl-C; the run is saved all the same


def _sentence(result: dict[str, Any]) -> str:
    where = result["out"] or "a dry run, nothing kept"
    scores = [
        f"{name.removeprefix('holdout_').removesuffix('_accuracy').upper()} {value:.1%}"
        for name, value in result.items()
        if name.endswith("_accuracy")
    ]
    held_out = f"; on documents kept aside {', '.join(scores)} right" if scores else ""
    ended = "stopped by a signal, go on with --resume" if result["reason"] == "signal" else "finished"
    return f"{where}: {ended} after {result['steps']:,} steps, {result['tokens']:,} tokens{held_out}"
