"""`bertworks finetune` with many runs: --grid, --restarts, and all of GLUE."""

import time
from functools import partial
from signal import SIGINT
from typing import Annotated, Any, NamedTuple

import typer

from bertworks.cli.options import print_json, say
from bertworks.errors import UserError

GridOption = Annotated[
    bool,
    typer.Option(
        "--grid",
        help="Try the paper's batch sizes, rates (or those the model recommends) and epochs, and every list of "
        "values given: optim.lr=3e-4,1e-4.",
    ),
]
RestartsOption = Annotated[int | None, typer.Option(help="Run with so many seeds, from train.seed on.")]
RestartBestOption = Annotated[
    bool, typer.Option("--restart-best", help="With --grid: one seed for all points, --restarts for the best alone.")
]
SearchExamplesOption = Annotated[
    int | None, typer.Option(help="With --restart-best: how many examples the search sees; default: all.")
]
FromMnliOption = Annotated[
    bool, typer.Option("--from-mnli", help="For glue: start RTE, MRPC and STS-B from the model of MNLI.")
]


class Asked(NamedTuple):
    """What was asked for on the command line, as far as it is about many runs."""

    task: str
    out: str
    grid: bool
    restarts: int | None
    restart_best: bool
    search_examples: int | None
    from_mnli: bool
    quiet: bool
    as_json: bool


def run_many(asked: Asked, files: dict[str, Any], **options: Any) -> None:
    """Make the runs, print a table or JSON, and end with 130 after Ctrl-C, with 1 if all runs failed."""
    from bertworks.train.view import training_view
    from bertworks.tuning.grid import GridPlan

    started, is_silent = time.monotonic(), asked.quiet or asked.as_json
    restarts = 1 if asked.restarts is None else asked.restarts
    # A search over no examples is refused there, where 0 would mean all.
    examples = -1 if asked.search_examples == 0 else asked.search_examples or 0
    options |= {
        "out": asked.out,
        "plan": GridPlan(asked.grid, restarts, asked.restart_best, examples),
        "views": partial(training_view, quiet=is_silent),
        "note": lambda text: None if is_silent else say(text, err=True),
    }
    outcome = _glue(asked, files, options) if asked.task == "glue" else _grid(asked, files, options)
    if asked.as_json:
        print_json({"out": asked.out, **outcome.results, "seconds": round(time.monotonic() - started, 2)})
    elif not asked.quiet:
        say(str(outcome))
    if outcome.signal:
        say(f"stopped by a signal; go on with --resume --out {asked.out}", err=True)
    if outcome.signal == SIGINT:
        raise typer.Exit(130)
    if outcome.is_failed:
        raise typer.Exit(1)


def _glue(asked: Asked, files: dict[str, Any], options: dict[str, Any]) -> Any:
    from bertworks.tuning.glue import finetune_glue

    if files["data"] is None or files["train"] or files["dev"]:
        raise UserError("GLUE is read from a folder: give --data DIR")
    return finetune_glue(data=files["data"], from_mnli=asked.from_mnli, **options)


def _grid(asked: Asked, files: dict[str, Any], options: dict[str, Any]) -> Any:
    from bertworks.tuning.grid import finetune_grid

    if asked.from_mnli:
        raise UserError("--from-mnli is for `bertworks finetune glue`; for a single task give its model: --model RUN")
    return finetune_grid(asked.task, **files, **options)
