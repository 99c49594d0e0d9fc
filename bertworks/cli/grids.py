"""`bertworks finetune` with many runs: --grid, --restarts, and all of GLUE."""

import time
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any, NamedTuple

import typer

from bertworks.cli.options import print_json, say, say_next
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

    task: str | None
    out: str
    grid: bool
    restarts: int | None
    restart_best: bool
    search_examples: int | None
    from_mnli: bool
    quiet: bool
    as_json: bool

    def is_many(self) -> bool:
        """Tell whether it is more than one run."""
        number = (self.restarts, self.search_examples) != (None, None)
        return self.task == "glue" or self.grid or self.restart_best or self.from_mnli or number


def as_before(asked: Asked, files: dict[str, Any], options: dict[str, Any]) -> Asked:
    """Return what a folder of many runs was asked for, and fill in its inputs that are not given anew."""
    from bertworks.train.run_folder import check_still_there, read_inputs

    out = Path(asked.out)
    inputs = read_inputs(out, "finetune", "grid", "glue")
    if inputs is None or inputs.command == "finetune":
        return asked
    recorded = {"data": inputs.data, "train": inputs.train, "dev": inputs.dev}
    check_still_there(out, **{name: path for name, path in recorded.items() if files[name] is None})
    files |= {name: path for name, path in recorded.items() if files[name] is None} | {
        "columns": inputs.columns or None
    }
    options["overrides"] = [*inputs.overrides, *options["overrides"]]
    options |= {name: options[name] or getattr(inputs, name) for name in ("model", "beside")}
    options["init"] = inputs.init if options["init"] == "model" else options["init"]
    options["device"] = inputs.device if options["device"] == "auto" else options["device"]
    plan = inputs.plan
    return asked._replace(
        task="glue" if inputs.command == "glue" else inputs.task,
        grid=asked.grid or bool(plan.get("grid")),
        restarts=asked.restarts or plan.get("restarts", 1),
        restart_best=asked.restart_best or bool(plan.get("restart_best")),
        search_examples=asked.search_examples or plan.get("search_examples") or None,
        from_mnli=asked.from_mnli or inputs.from_mnli,
    )


def run_many(asked: Asked, files: dict[str, Any], **options: Any) -> None:
    """Make the runs, print a table or JSON, and end with 130 after Ctrl-C, with 1 if all runs failed."""
    from bertworks.tuning.grid import GridPlan

    started, is_silent = time.monotonic(), asked.quiet or asked.as_json
    restarts = 1 if asked.restarts is None else asked.restarts
    # A search over no examples is refused there, where 0 would mean all.
    examples = -1 if asked.search_examples == 0 else asked.search_examples or 0
    options |= {
        "out": asked.out,
        "plan": GridPlan(asked.grid, restarts, asked.restart_best, examples),
        "quiet": is_silent,
    }
    outcome = _glue(asked, files, options) if asked.task == "glue" else _grid(asked, files, options)
    if asked.as_json:
        print_json({"out": asked.out, **outcome.results, "seconds": round(time.monotonic() - started, 2)})
    elif not asked.quiet:
        say(str(outcome))
    if outcome.signal:
        say("stopped by a signal", err=True)
        say_next("finetune", "--resume", "--out", asked.out)
    elif not is_silent and not outcome.is_failed:
        _say_next(asked)
    if outcome.signal == SIGINT:
        raise typer.Exit(130)
    if outcome.is_failed:
        raise typer.Exit(1)


def _say_next(asked: Asked) -> None:
    if asked.task == "glue":
        say_next(
            "predict",
            f"{asked.out}/sst2",
            "INPUT.csv",
            "--out",
            "predictions.csv",
            why=f"{asked.out}/glue.zip is for GLUE's server",
        )
    else:
        say_next("predict", asked.out, "INPUT.csv", "--out", "predictions.csv", why=f"all runs: {asked.out}/grid.md")


def _glue(asked: Asked, files: dict[str, Any], options: dict[str, Any]) -> Any:
    from bertworks.tuning.glue import finetune_glue

    if files["data"] is None or files["train"] or files["dev"]:
        raise UserError("GLUE is read from a folder: give --data DIR")
    return finetune_glue(data=files["data"], from_mnli=asked.from_mnli, **options)


def _grid(asked: Asked, files: dict[str, Any], options: dict[str, Any]) -> Any:
    from bertworks.tuning.grid import finetune_grid

    if asked.from_mnli:
        raise UserError("--from-mnli is for `bertworks finetune glue`; for a single task give its model: --model RUN")
    return finetune_grid(str(asked.task), **files, **options)
