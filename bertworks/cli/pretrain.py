"""The commands of pre-training: plan, pretrain, report."""

import time
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any

import typer

from bertworks.cli.options import (
    DeviceOption,
    JsonOption,
    OverridesArgument,
    QuietOption,
    SkipBadShardsOption,
    complete_recipe,
    how_ended,
    print_json,
    say,
    say_next,
    say_report,
)
from bertworks.errors import UserError, counted

RecipeArgument = Annotated[
    str,
    typer.Argument(metavar="RECIPE", help="A shipped recipe's name, or a path to one.", autocompletion=complete_recipe),
]


def plan(
    recipe: RecipeArgument,
    overrides: OverridesArgument = None,
    gpu: Annotated[str, typer.Option(help="The GPU by name: h200, a100-80, l40s, ...; cpu: this machine.")] = "h200",
    gpus: Annotated[int, typer.Option(help="Number of GPUs.")] = 1,
    price: Annotated[float | None, typer.Option(help="Price of one GPU for an hour, in any currency.")] = None,
    vocab_size: Annotated[int | None, typer.Option(help="The vocabulary's size; default: the recipe's.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Predict what a run needs: parameters, memory, tokens, time on a GPU, disk."""
    from bertworks.planning.plan import plan, plan_text

    planned = plan(recipe, overrides=overrides or [], gpu=gpu, gpus=gpus, price=price, vocab_size=vocab_size)
    if as_json:
        print_json({"recipe": recipe, **planned})
    else:
        say(plan_text(recipe, planned))


def pretrain(
    recipe: Annotated[
        str | None,
        typer.Argument(
            metavar="RECIPE",
            help="A shipped recipe's name, or a path; not with --resume.",
            autocompletion=complete_recipe,
        ),
    ] = None,
    data: Annotated[str | None, typer.Option(help="A folder that `bertworks prepare` made.")] = None,
    out: Annotated[str | None, typer.Option(help="The run folder to write.")] = None,
    overrides: OverridesArgument = None,
    start_from: Annotated[
        str | None,
        typer.Option(
            "--from", metavar="MODEL", help="Continue pre-training a model: its folder, a run folder, or its name."
        ),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Resume from the newest checkpoint; --out RUN is enough; the rest is recorded there.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Run one step of each length through the whole program, without keeping results."
        ),
    ] = False,
    skip_bad_shards: SkipBadShardsOption = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Pre-train a BERT, a GPT-1 or an ELMo on prepared data."""
    from bertworks.recipe import check_has_model, load_recipe
    from bertworks.report.page import REPORT_FILE
    from bertworks.train.distributed import is_first_rank
    from bertworks.train.pretrain import pretrain, pretrain_dry

    if out is None and not dry_run:
        raise UserError("give the run folder to write: --out RUN")
    if dry_run and resume:
        raise UserError("--dry-run starts from the beginning and keeps nothing; leave out --resume")
    if resume and recipe is not None and "=" in recipe:  # no recipe was given: this is the first setting
        overrides, recipe = [recipe, *(overrides or [])], None
    if not resume and (recipe is None or data is None):
        needed = "a recipe, see `bertworks recipes`" if recipe is None else "prepared data: --data DATA"
        raise UserError(f"give {needed}; or --resume --out RUN to resume a run")
    started = time.monotonic()
    options: dict[str, Any] = {
        "data": data,
        "start_from": start_from,
        "skip_bad_shards": skip_bad_shards,
        "device": device,
        "quiet": quiet or as_json,
    }
    if dry_run or out is None:
        settings = load_recipe(str(recipe), overrides or [])
        if start_from is None:
            check_has_model(str(recipe))
        outcome = pretrain_dry(settings, overrides=overrides or [], **options)
    else:
        outcome = pretrain(recipe, overrides=overrides or [], out=out, resume=resume, **options)
    result: dict[str, Any] = {
        "out": None if dry_run else out,
        "reason": outcome.reason,
        "steps": outcome.progress.step,
        "tokens": outcome.progress.tokens,
        **outcome.metrics,
        "seconds": round(time.monotonic() - started, 2),
    }
    if as_json and is_first_rank():
        print_json(result)
    elif not quiet and is_first_rank():
        scores = [
            f"{name.removeprefix('holdout_').removesuffix('_accuracy').upper()} {value:.1%}"
            for name, value in result.items()
            if name.endswith("_accuracy")
        ]
        if "holdout_nsp_larger_class" in result:  # the accuracy of a constant answer
            scores[-1] += f" (larger class {result['holdout_nsp_larger_class']:.1%})"
        held_out = f"; on held-out documents {', '.join(scores)} right" if scores else ""
        ended, then = how_ended(outcome.reason)
        size = f"{counted(result['steps'], 'step')}, {counted(result['tokens'], 'token')}"
        say(f"{result['out'] or 'a dry run, nothing kept'}: {ended} after {size}{then}{held_out}")
        if out is None or dry_run:
            say_next("pretrain", str(recipe), "--data", str(data), "--out", "RUN", *(overrides or []))
        elif outcome.signal:
            say_next("pretrain", "--resume", "--out", out)
        else:
            say_report(Path(out) / REPORT_FILE)
            say_next("finetune", "classify", "--model", out, "--train", "TRAIN.csv", "--out", "TUNED")
    if outcome.signal == SIGINT:
        raise typer.Exit(130)


def report(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[str | None, typer.Option(help="The page to write; default: report.html in the run folder.")] = None,
) -> None:
    """Write a run's report again: an HTML page with curves and samples."""
    from bertworks.files import check_can_write
    from bertworks.finetuning.report import is_finetuned, write_finetune_report
    from bertworks.report.page import REPORT_FILE, write_report

    if out is not None:
        check_can_write(out, *(path for path in Path(run).rglob("*") if path.is_file() and path.name != REPORT_FILE))
    write = write_finetune_report if is_finetuned(run) else write_report
    say_report(write(run, out))
