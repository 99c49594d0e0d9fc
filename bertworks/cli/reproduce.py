"""The command `reproduce`: the paper's tables, measured and judged."""

from functools import partial
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any

import typer

from bertworks.cli.options import DeviceOption, JsonOption, QuietOption, print_json, say, say_next, say_report
from bertworks.errors import UserError, counted


def reproduce(
    table: Annotated[
        str,
        typer.Argument(
            metavar="TABLE", help="table1 to table8, figure5, systems, transformer, blimp, or all of them: all."
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[key=value...]", help="pretrain.SECTION.KEY=VALUE or finetune.SECTION.KEY=VALUE."),
    ] = None,
    out: Annotated[str | None, typer.Option(help="The folder of all tables, which share models and results.")] = None,
    data: Annotated[
        str | None, typer.Option(help="The folder with the benchmarks' files, and text to pre-train on in `text`.")
    ] = None,
    scale: Annotated[str, typer.Option(help="tiny (two CPU cores), mini, small (one GPU) or base.")] = "tiny",
    text: Annotated[
        list[str] | None, typer.Option(help="The text to pre-train on, if it is elsewhere; repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW=MODEL", help="Use a model instead of pre-training one, as base=DIR; repeatable."),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Seeds of pre-training; default: by the scale.")] = None,
    tunings: Annotated[
        int | None, typer.Option(help="Seeds of fine-tuning for each pre-trained model; default: by the scale.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="How many runs to make side by side.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be done.")] = False,
    gpu: Annotated[
        str, typer.Option(help="With --dry-run: the GPU to plan for: h200, a100-80, ...; default: this machine.")
    ] = "",
    price: Annotated[float | None, typer.Option(help="With --gpu: the price of one GPU for an hour.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    pages: Annotated[
        bool, typer.Option("--pages", help="Only write the pages again, from the results in --out.")
    ] = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Measure the paper's tables, and judge its claims by seeds and examples."""
    from bertworks.reproduction.page import write_pages
    from bertworks.reproduction.plan import in_words
    from bertworks.reproduction.run import reproduce
    from bertworks.reproduction.tables import find_table

    if out is None:
        raise UserError("give the folder to write: --out DIR")
    if table != "all":
        table = find_table(table).name
    if pages:
        written = [str(path) for path in write_pages(Path(out))]
        if as_json:
            print_json(written)
        else:
            say("\n".join(written))
        return
    if data is None:
        raise UserError("give the folder with the benchmarks' files: --data DIR")
    is_silent, models = quiet or as_json, dict[str, str]()
    for one in model or []:
        key, equals, source = one.partition("=")
        if not equals or not source:
            raise UserError(f"--model {one[:60]} is not ROW=MODEL, such as base=runs/base")
        models[key] = source

    def confirm(plan: str) -> bool:
        say(plan, err=True)
        return yes or as_json or typer.confirm("Go on?", err=True)

    results: dict[str, Any] = reproduce(
        table, scale=scale, data=data, out=out, text=text or [], models=models, seeds=seeds, tunings=tunings,
        overrides=overrides or [], jobs=jobs, device=device, dry_run=dry_run, gpu=gpu, quiet=is_silent,
        confirm=None if yes and quiet else confirm, say=(lambda _: None) if is_silent else partial(say, err=True),
    )  # fmt: skip
    every = list(results.values()) if table == "all" else [results]
    if as_json:
        print_json(results)
    elif dry_run:
        jobs_left = dict[str, float]()
        for planned in every:
            say(planned["plan"] + "\n" * (len(every) > 1))
            jobs_left |= planned["jobs"]
        minutes = sum(jobs_left.values())
        if len(every) > 1:
            runs = counted(len(jobs_left), "run")
            say(f"all of them, with what they share done once: {runs}, about {in_words(minutes)} of work")
        if price is not None:
            say(f"about {minutes / 60 * price:,.0f} on one GPU at {price:g} an hour, one run after the other")
    elif "signal" in results:
        say("stopped by a signal", err=True)
        say_next(
            "reproduce", table, "--scale", scale, "--data", data, "--out", out, why="and the other options; resumes"
        )
    else:
        for found in every:
            if not quiet:
                say(f"{found['title']}: {found['headline']}")
            for failure in found["failed"]:
                say(f"failed: {failure['job']}: {failure['error']}", err=True)
            if not quiet:
                say_report(f"{out}/{found['table']}/{found['table']}.html")
        if every and not quiet:
            say_next("reproduce", table, "--out", out, "--pages", why="writes the pages again, from results.json alone")
    if results.get("signal"):
        raise typer.Exit(130 if results["signal"] == SIGINT else 143)
    is_measured = dry_run or any(row["ours"] for found in every for row in found["rows"])
    if not every or not is_measured or any(found.get("failed") for found in every):
        raise typer.Exit(1)
