"""The commands `finetune` (one run), `search` (many runs of one task) and `glue` (all tasks of GLUE).

For existing scripts, `finetune` also accepts the options of earlier versions: `--grid`, `--restarts` and related
options are hidden and do what `search` does, and `finetune glue` is the same as `glue`.
"""

import math
import time
from pathlib import Path
from signal import SIGINT
from typing import Annotated, Any

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
    complete_model,
    complete_task,
    how_ended,
    or_null,
    print_json,
    say,
    say_next,
    say_report,
)
from bertworks.errors import UserError, counted

TABLE7 = "table7"

TaskArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="TASK",
        help="A task of `bertworks tasks`; or, for your own files, classify, regress, tag, answer, ...",
        autocompletion=complete_task,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        help="A model folder, a run folder, or the name of a model (see `models`, or in the Hugging Face cache).",
        autocompletion=complete_model,
    ),
]
OutOption = Annotated[str, typer.Option(help="The run folder to write.")]
InitOption = Annotated[str, typer.Option(help="model: its weights; random: only its sizes and vocabulary.")]
BesideOption = Annotated[
    str | None, typer.Option("--with", help="A second BERT of the other direction, to read the same texts.")
]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Resume from the newest checkpoint; --out RUN is enough.")]
FeaturesOption = Annotated[
    str | None,
    typer.Option(help="Tag with frozen layers: last, concat-last-four, ...; or table7: all six choices of the paper."),
]
CacheOption = Annotated[str | None, typer.Option(help="A folder that caches frozen layers for several runs.")]
_GRID_HELP = (
    "Try the paper's batch sizes, rates (or the model's recommended ones) and epochs, and every given list of values, "
    "such as optim.lr=3e-4,1e-4."
)
GridOption = Annotated[bool, typer.Option("--grid", help=_GRID_HELP)]
GridOrNotOption = Annotated[
    bool | None,
    typer.Option("--grid/--no-grid", help=f"{_GRID_HELP} --no-grid: only the given settings; default: --grid."),
]
RestartsOption = Annotated[int | None, typer.Option(help="Number of seeds to run, starting at train.seed.")]
RestartBestOption = Annotated[
    bool, typer.Option("--restart-best", help="With a grid: one seed per point; --restarts only for the best point.")
]
SearchExamplesOption = Annotated[
    int | None, typer.Option(help="With --restart-best: number of training examples in the search; default: all.")
]
FromMnliOption = Annotated[
    bool, typer.Option("--from-mnli", help="Start RTE, MRPC and STS-B from the model fine-tuned on MNLI.")
]


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
    resume: ResumeOption = False,
    features: FeaturesOption = None,
    cache: CacheOption = None,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
    grid: Annotated[bool, typer.Option("--grid", hidden=True)] = False,
    restarts: Annotated[int | None, typer.Option(hidden=True)] = None,
    restart_best: Annotated[bool, typer.Option("--restart-best", hidden=True)] = False,
    search_examples: Annotated[int | None, typer.Option(hidden=True)] = None,
    from_mnli: Annotated[bool, typer.Option("--from-mnli", hidden=True)] = False,
) -> None:
    """Fine-tune a model for a task, and keep the model that is best on the dev set."""
    if features is not None and any(text.partition("=")[0].strip() == "task.features" for text in overrides or []):
        raise UserError("--features and task.features set the same thing; leave one of them out")
    task, files, start = _arguments(
        task, overrides, data, train, dev, column,
        model=model, init=init, beside=beside, resume=resume, device=device,
    )  # fmt: skip
    start["overrides"] += [f"task.features={features}"] if features not in (None, TABLE7) else []
    many = _many(grid or None, restarts, restart_best, search_examples, from_mnli)
    if task is None:
        task = _resumed(out, ("finetune", "grid", "glue"), files, start, many)
    has_grid = any(value is not None for name, value in many.items() if name != "restarts")
    is_table = features == TABLE7 and task != "glue" and not has_grid
    if not is_table and (task == "glue" or set(many.values()) != {None}):
        if features == TABLE7 or cache is not None:
            raise UserError(
                "--grid, --restarts and glue can be used with --features LAYERS, but not with --cache; --features "
                "table7 can only be used with --restarts"
            )
        _run_many(task, out, files, start, many, quiet=quiet, as_json=as_json)
    else:
        options = files | start | {"out": out, "cache": cache}
        options |= {"restarts": restarts or 1} if is_table else {}
        _run_one(task, options, is_table=is_table, quiet=quiet, as_json=as_json)


def search(
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
    grid: GridOrNotOption = None,
    restarts: RestartsOption = None,
    restart_best: RestartBestOption = False,
    search_examples: SearchExamplesOption = None,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a model with many settings or seeds, and keep the best."""
    task, files, start = _arguments(
        task, overrides, data, train, dev, column,
        model=model, init=init, beside=beside, resume=resume, device=device,
    )  # fmt: skip
    many = _many(grid, restarts, restart_best, search_examples)
    if task == "glue":
        raise UserError("for all tasks of GLUE, use `bertworks glue`")
    if task is None:
        task = _resumed(out, ("grid",), files, start, many)
    if task is None:
        raise UserError(f"{out} holds no search to resume; to start one, give TASK and --model MODEL")
    many["grid"] = True if many["grid"] is None else many["grid"]
    _run_many(task, out, files, start, many, quiet=quiet, as_json=as_json)


def glue(
    out: OutOption,
    model: ModelOption = None,
    overrides: OverridesArgument = None,
    data: DataOption = None,
    init: InitOption = "model",
    beside: BesideOption = None,
    from_mnli: FromMnliOption = False,
    grid: GridOption = False,
    restarts: RestartsOption = None,
    restart_best: RestartBestOption = False,
    search_examples: SearchExamplesOption = None,
    resume: ResumeOption = False,
    device: DeviceOption = "auto",
    quiet: QuietOption = False,
    as_json: JsonOption = False,
) -> None:
    """Fine-tune a model for all tasks of GLUE, and write the predictions for GLUE's server."""
    _, files, start = _arguments(
        "glue", overrides, data, model=model, init=init, beside=beside, resume=resume, device=device
    )
    many = _many(grid or None, restarts, restart_best, search_examples, from_mnli)
    if resume:
        _resumed(out, ("glue",), files, start, many)
    _run_many("glue", out, files, start, many, quiet=quiet, as_json=as_json)


def _many(
    grid: bool | None, restarts: int | None, restart_best: bool, search_examples: int | None, from_mnli: bool = False
) -> dict[str, Any]:
    """Return the options about many runs; None for those not given."""
    best, mnli = restart_best or None, from_mnli or None
    return {
        "grid": grid, "restarts": restarts, "restart_best": best, "search_examples": search_examples, "from_mnli": mnli,
    }  # fmt: skip


def _arguments(
    task: str | None,
    overrides: list[str] | None,
    data: str | None,
    train: str | None = None,
    dev: str | None = None,
    column: list[str] | None = None,
    **start: Any,
) -> tuple[str | None, dict[str, Any], dict[str, Any]]:
    """Return the task, its files and other options; the task and the model may be left out only with --resume."""
    from bertworks.tasks.own_files import named_columns

    overrides = list(overrides or [])
    if task is not None and start["resume"] and "=" in task:  # no task was given: this is the first setting
        overrides, task = [task, *overrides], None
    if not start["resume"] and (task is None or start["model"] is None):
        needed = "a task, see `bertworks tasks`" if task is None else "a model to start from: --model MODEL"
        raise UserError(f"give {needed}; or --resume --out RUN to resume a run")
    if task is None and column:
        raise UserError("--column belongs to a task's files; give the task too")
    if task == "glue" and column:
        raise UserError("GLUE's files have fixed columns; leave out --column")
    columns = named_columns(task, column) if task is not None and column else None
    files = {"data": data, "train": train, "dev": dev, "columns": columns}
    return task, files, start | {"overrides": overrides}


def _resumed(
    out: str, commands: tuple[str, ...], files: dict[str, Any], start: dict[str, Any], many: dict[str, Any]
) -> str | None:
    """Fill in the inputs with which a folder of many runs was started; returns its task, if there is one."""
    from bertworks.train.run_folder import check_still_there, read_inputs

    inputs = read_inputs(Path(out), *commands)
    if inputs is None or inputs.command == "finetune":
        return None
    recorded = {"data": inputs.data, "train": inputs.train, "dev": inputs.dev}
    missing = {name: path for name, path in recorded.items() if files[name] is None}
    check_still_there(Path(out), **missing)
    files |= missing | {"columns": inputs.columns or None}
    start["overrides"] = [*inputs.overrides, *start["overrides"]]
    start |= {name: start[name] or getattr(inputs, name) for name in ("model", "beside")}
    start["init"] = inputs.init if start["init"] == "model" else start["init"]
    start["device"] = inputs.device if start["device"] == "auto" else start["device"]
    plan: dict[str, Any] = {"grid": False, "restarts": 1, "restart_best": False, "search_examples": 0} | inputs.plan
    plan |= {"search_examples": plan["search_examples"] or None, "from_mnli": inputs.from_mnli}
    many |= {name: plan[name] for name, value in many.items() if value is None}
    return "glue" if inputs.command == "glue" else inputs.task


def _run_many(
    task: str | None,
    out: str,
    files: dict[str, Any],
    start: dict[str, Any],
    many: dict[str, Any],
    *,
    quiet: bool,
    as_json: bool,
) -> None:
    """Make the runs and print a table or JSON; exit with 130 after Ctrl-C, and with 1 if all runs failed."""
    from bertworks.finetuning.search import GridPlan

    started, is_silent = time.monotonic(), quiet or as_json
    restarts = 1 if many["restarts"] is None else many["restarts"]
    # 0 examples must be refused, but 0 in a plan means all: so pass -1, which is refused.
    examples = -1 if many["search_examples"] == 0 else many["search_examples"] or 0
    plan = GridPlan(bool(many["grid"]), restarts, bool(many["restart_best"]), examples)
    options = start | {"out": out, "plan": plan, "quiet": is_silent}
    outcome: Any
    if task == "glue":
        from bertworks.finetuning import glue_suite

        if files["data"] is None or files["train"] or files["dev"]:
            raise UserError("GLUE is read from a folder: give --data DIR")
        outcome = glue_suite.glue(data=files["data"], from_mnli=bool(many["from_mnli"]), **options)
    else:
        from bertworks.finetuning import search as searching

        if many["from_mnli"]:
            raise UserError("--from-mnli is for `bertworks glue`; for a single task give its model: --model RUN")
        outcome = searching.search(str(task), **files, **options)
    if as_json:
        print_json({"out": out, **outcome.results, "seconds": round(time.monotonic() - started, 2)})
    elif not quiet:
        say(str(outcome))
    if outcome.signal:
        say("stopped by a signal", err=True)
        say_next("glue" if task == "glue" else "search", "--resume", "--out", out)
    elif not is_silent and not outcome.is_failed:
        model = f"{out}/sst2" if task == "glue" else out
        why = f"{out}/glue.zip is for GLUE's server" if task == "glue" else ""
        say_report(Path(out) / ("glue.md" if task == "glue" else "grid.md"))
        say_next("predict", model, "INPUT.csv", "--out", "predictions.csv", why=why)
    if outcome.signal == SIGINT:
        raise typer.Exit(130)
    if outcome.is_failed:
        raise typer.Exit(1)


def _run_one(task: str | None, options: dict[str, Any], *, is_table: bool, quiet: bool, as_json: bool) -> None:
    from bertworks.finetuning.finetune import finetune
    from bertworks.report.page import REPORT_FILE
    from bertworks.train.distributed import is_first_rank

    started, is_silent, out = time.monotonic(), quiet or as_json, options["out"]
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        if not is_silent:
            say(text, err=True)

    options |= {"quiet": is_silent, "note": note}
    if is_table:
        _print_table7(str(task), options, quiet=quiet, as_json=as_json)
        return
    outcome = finetune(task, **options)
    if is_first_rank() and as_json:
        facts = {"out": out, "reason": outcome.reason, "steps": outcome.progress.step, "best_step": outcome.step}
        metrics = {name: or_null(value) for name, value in {outcome.metric: outcome.score, **outcome.metrics}.items()}
        cost = {"minutes": round(outcome.minutes, 3), "seconds": round(time.monotonic() - started, 2)}
        print_json(facts | metrics | cost | {"notes": notes})
    elif is_first_rank() and not quiet:
        ended, then = how_ended(outcome.reason)
        steps = counted(outcome.progress.step, "step")
        minutes = f"{outcome.minutes:.1f} minutes on the device"
        say(f"{out}: {ended} after {steps}{then}; {_best_model(outcome)}; {minutes}")
        if outcome.signal:
            say_next("finetune", "--resume", "--out", out)
        else:
            say_report(Path(out) / REPORT_FILE)
            say_next(*_in_use(out))
    if outcome.signal == SIGINT:
        raise typer.Exit(130)


def _best_model(outcome: Any) -> str:
    """Describe the result of a run: its best model, or what was saved before the first evaluation."""
    if not outcome.metrics:
        from bertworks.report.logs import CHECKPOINTS

        step = outcome.progress.step
        kept = f"{CHECKPOINTS}/step-{step:08}" if step else "nothing yet, so it will start again from the beginning"
        return f"not evaluated yet, so there is no model; saved: {kept}"
    best = f"best {outcome.metric} on dev {outcome.score:.4f}"
    if math.isnan(outcome.score):
        best = f"{outcome.metric} on dev is not defined"
    return f"{best}; its model is from step {outcome.step:,}"


def _in_use(out: str) -> tuple[str, ...]:
    """Return the arguments of a command that uses the model, by the kind of its task."""
    from bertworks.models.folder import OWN_FILE, read_json

    task = read_json(Path(out) / "model" / OWN_FILE).get("task")
    kind = task.get("kind") if isinstance(task, dict) else None
    commands = {
        "tag": ("tag", out, "A text."),
        "answer": ("answer", out, "--question", "A question?", "--context", "A text with the answer."),
        "choose": ("choose", out, "What goes before", "one ending", "another"),
    }
    pair = ("--pair", "A second text.") if isinstance(task, dict) and task.get("is_pair") else ()
    return commands.get(str(kind), ("classify", out, "A text.", *pair))


def _print_table7(task: str, options: dict[str, Any], *, quiet: bool, as_json: bool) -> None:
    """Train the six rows of the paper's Table 7 and print them next to the paper's."""
    from bertworks.finetuning.table7 import TABLE7_FILE, table7, table7_markdown

    rows = table7(task, **options)
    if as_json:
        print_json({"out": options["out"], "rows": [row.facts() for row in rows]})
    elif not quiet:
        say(table7_markdown(task, rows))
    signal = max(one.signal for row in rows for one in (row.outcome, *row.others))
    if signal:
        say("stopped by a signal before all six rows; continue with --resume", err=True)
    elif not quiet and not as_json:
        say_report(Path(options["out"]) / TABLE7_FILE)
    if signal == SIGINT:
        raise typer.Exit(130)
