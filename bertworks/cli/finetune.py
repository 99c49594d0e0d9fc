"""The command `finetune`: one run, or many of them."""

import math
import time
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any, NamedTuple

import typer

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

# `bertworks finetune` with many runs: --grid, --restarts, and all of GLUE.


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
    from bertworks.finetuning.search import GridPlan

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
    from bertworks.finetuning.glue_suite import finetune_glue

    if files["data"] is None or files["train"] or files["dev"]:
        raise UserError("GLUE is read from a folder: give --data DIR")
    return finetune_glue(data=files["data"], from_mnli=asked.from_mnli, **options)


def _grid(asked: Asked, files: dict[str, Any], options: dict[str, Any]) -> Any:
    from bertworks.finetuning.search import finetune_grid

    if asked.from_mnli:
        raise UserError("--from-mnli is for `bertworks finetune glue`; for a single task give its model: --model RUN")
    return finetune_grid(str(asked.task), **files, **options)


# `bertworks finetune TASK --features table7`: the six rows of the paper's Table 7.


TABLE7 = "table7"


def refuse_together(features: str | None, cache: str | None) -> None:
    """Refuse what many runs cannot have: each of them keeps the features of its own run folder."""
    if features == TABLE7 or cache is not None:
        raise UserError("--grid, --restarts and glue go with --features LAYERS, not with --features table7 or --cache")


def print_table7(task: str, options: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Train the rows and print them beside the paper's."""
    from bertworks.finetuning.table7 import TABLE_FILE, as_markdown, table7

    rows = table7(task, **options)
    if as_json:
        print_json({"out": options["out"], "rows": [row.facts() for row in rows]})
    elif not quiet:
        say(as_markdown(task, rows))
    signal = max(row.outcome.signal for row in rows)
    if signal:
        say("stopped by a signal before all six rows; go on with --resume", err=True)
    elif not quiet and not as_json:
        say(f"written to {options['out']}/{TABLE_FILE}", err=True)
    if signal == SIGINT:
        raise typer.Exit(130)


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
    from bertworks.tasks.own_files import named_columns

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
    from bertworks.finetuning.finetune import finetune
    from bertworks.train.distributed import is_first_rank

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
        from bertworks.report.logs import CHECKPOINTS

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

    from bertworks.models.folder import OWN_FILE, read_json

    task = read_json(Path(out) / "model" / OWN_FILE).get("task")
    kind = task.get("kind") if isinstance(task, dict) else None
    asked = {
        "tag": ("tag", out, "A text."),
        "answer": ("answer", out, "--question", "A question?", "--context", "A text with the answer."),
        "choose": ("choose", out, "What goes before", "one ending", "another"),
    }
    pair = ("--pair", "A second text.") if isinstance(task, dict) and task.get("is_pair") else ()
    return asked.get(str(kind), ("classify", out, "A text.", *pair))
