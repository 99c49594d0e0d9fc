"""The commands that list what is available: recipes, tasks, models, settings, demo."""

import re
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from bertworks.cli.options import JsonOption, OverridesArgument, print_json, say
from bertworks.errors import UserError, nearest_name, shown

if TYPE_CHECKING:
    from bertworks.tasks.task import Task, TaskKind


# The origins of recipes, in the order of the list.
ORIGINS = (
    "The paper",
    "Google's compact models",
    "Ours, for an hour or less",
    "The paper's Table 5: tasks to pre-train with",
    "The paper's Table 6: sizes other than base and large",
    "The paper's Table 8: what becomes of masked pieces (mask-MASK-SAME-RANDOM)",
    "What the paper compares BERT with",
    "Starting from a model",
    "Small ones for a CPU",
)


def recipes(as_json: JsonOption = False) -> None:
    """List the recipes that come with the package."""
    from bertworks.config import recipe_names, recipe_origin, recipe_summary

    summaries = {name: recipe_summary(name) for name in recipe_names()}
    if as_json:
        print_json(summaries)
        return

    def by_numbers(name: str) -> list[tuple[int, str]]:  # 6x768 is before 12x1024
        return [(int(part), "") if part.isdigit() else (0, part) for part in re.split(r"(\d+)", name)]

    for origin in ORIGINS:
        say(origin)
        for name in sorted(summaries, key=by_numbers):
            if recipe_origin(name) == origin:
                say(f"  {name:<15} {summaries[name]}")


def tasks(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[TASK]", help="Show only this benchmark, or this kind of task for your own files."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks that a model can be fine-tuned and measured on."""
    from bertworks.tasks import TASKS, find_task
    from bertworks.tasks.own_files import DESCRIBED

    kinds = [kind for kind in DESCRIBED if name in (None, kind)]
    chosen = list(TASKS.values()) if name is None else [] if kinds else [find_task(name)]
    described = {task.name: _described(task) for task in chosen}
    for kind in kinds:
        _, columns, other_forms = DESCRIBED[kind]
        described[kind] = _described(_task_of_own_files(kind)) | {"columns": columns, "other_forms": other_forms}
    if as_json:
        print_json(described if name is None else next(iter(described.values())))
    elif name is None:
        for task in chosen:
            say(f"{task.name:<21} {task.kind:<10} {task.metrics[0]:<9} {task.title}: {task.summary}")
        say("\nYour own files, given with --train and --dev; if columns have other names, give --column ROLE=COLUMN")
        for kind in kinds:
            found = described[kind]
            files = ", ".join(found["columns"]) + (f"; or {found['other_forms']}" if found["other_forms"] else "")
            say(f"{kind:<21} {kind:<10} {found['metrics'][0]:<9} {found['summary']}: {files}")
    else:
        for key, value in next(iter(described.values())).items():
            if value:
                say(f"{key:<12} {_shown(value)}")


def _task_of_own_files(kind: "TaskKind") -> "Task":
    from bertworks.tasks.own_files import DEFAULTS, DESCRIBED, METRICS
    from bertworks.tasks.task import Task

    return Task(
        name=kind, title="your own files", kind=kind, summary=DESCRIBED[kind][0], splits={}, homes=(),
        metrics=METRICS[kind], defaults=DEFAULTS[kind],
    )  # fmt: skip


def _described(task: "Task") -> dict[str, Any]:
    return {
        "name": task.name,
        "title": task.title,
        "kind": task.kind,
        "summary": task.summary,
        "labels": list(task.labels),
        "metrics": list(task.metrics),
        "files": {split: [" + ".join(one.names) for one in sources] for split, sources in task.splits.items()},
        "folders": [home or "." for home in task.homes],
        "trained_on": task.trained_on,
        "paper": task.published._asdict() if task.published else None,
        "defaults": task.defaults._asdict(),
    }


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_shown(inner)}" if inner else key for key, inner in value.items())
    return ", ".join(value) if isinstance(value, list) else str(value)


def settings(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[SECTION|TASK]", help="A section of a recipe, such as train; or a task, such as mrpc or classify."
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings of pre-training, or of fine-tuning for a task: default, allowed values, description."""
    from bertworks.config import described
    from bertworks.recipe import Recipe

    rows = described(Recipe())
    if name in Recipe.model_fields:
        rows = [row for row in rows if row["setting"].startswith(f"{name}.")]
    elif name is not None:
        from bertworks.finetuning.settings import settings_for
        from bertworks.tasks import find_task
        from bertworks.tasks.task import TaskKind

        if name in get_args(TaskKind):
            task = _task_of_own_files(cast("TaskKind", name))
        else:
            try:
                task = find_task(name)
            except UserError:
                if hint := nearest_name(name, list(Recipe.model_fields)):
                    raise UserError(f"{shown(name)} is neither a section of a recipe{hint} nor a task") from None
                raise
        rows = described(settings_for(task))
    if as_json:
        print_json(rows)
        return
    for row in rows:
        default = "not set" if row["default"] is None else str(row["default"])
        default = default.lower() if isinstance(row["default"], bool) else default
        say(f"{row['setting']:<24} {default:<12} {row['allowed']}")
        if row["help"]:
            say(f"    {row['help']}")


def models(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="Show the card of this model.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the models that come with the package; commands accept these names as models."""
    from bertworks.models.folder import describe_shipped, read_card, shipped_names

    if name is not None:
        card = read_card(name)
        print_json({**describe_shipped(name), "card": card}) if as_json else say(card.rstrip())
        return
    described = [describe_shipped(one) for one in shipped_names()]
    if as_json:
        print_json({model["name"]: model for model in described})
    elif not described:
        say("No model comes with this version; `bertworks recipes` lists what can be trained.")
    for model in [] if as_json else described:
        accuracy = "" if model["mlm_accuracy"] is None else f"MLM {model['mlm_accuracy']:.1%}"
        size = f"{model['layers']}x{model['width']}"
        line = (
            f"{model['name']:<8} {size:<7} {model['parameters'] / 1e6:>5.1f} M parameters {model['megabytes']:>5.1f} MB"
        )
        line += f"  {model['language'] or '':<3} {accuracy:<9}  {model['trained_on'] or ''}"
        say(line.rstrip())


def demo(
    overrides: OverridesArgument = None,
    out: Annotated[
        str, typer.Option(help="The folder to write; the files of an earlier demo are replaced.")
    ] = "bertworks-demo",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress, only results.")] = False,
) -> None:
    """Show the life of a BERT on this machine, from raw text to a fine-tuned model, in a few minutes."""
    from bertworks.demo.run import run_demo

    run_demo(overrides or [], out=out, quiet=quiet)
