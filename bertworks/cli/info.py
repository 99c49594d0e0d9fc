"""The commands that list what is available: recipes, tasks, models, settings, demo."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from bertworks.cli.options import JsonOption, OverridesArgument, print_json, say, say_next
from bertworks.errors import UserError, nearest_name, shown

if TYPE_CHECKING:
    from bertworks.config import Settings
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
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[pretrain|finetune]", help="What the settings are for; also a section or a task by itself."
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]",
            help="Of pretrain: a section, such as train, or a recipe, such as base. Of finetune: a task, such as mrpc, "
            "or classify for your own files.",
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List the settings of pre-training, or of fine-tuning for a task: default, allowed values, meaning.

    Any of them can be changed as key=value, after `bertworks pretrain ...` or `bertworks finetune ...`.
    """
    from bertworks.config import described

    rows = described(settings_of(what, name))
    if section := _section(what, name):
        rows = [row for row in rows if row["setting"].startswith(f"{section}.")]
    if as_json:
        print_json(rows)
        return
    for row in rows:
        default = str(row["default"]).lower() if isinstance(row["default"], bool) else row["default"]
        setting = row["setting"] + (f"={default}" if default is not None else "  (not set)")
        say(f"{setting:<34} {row['allowed']}")
        say(f"    {row['help']}")


def _section(what: str | None, name: str | None) -> str | None:
    """Return the section of a recipe that is asked for, if it is one."""
    from bertworks.recipe import Recipe

    wanted = what if name is None else name
    return wanted if what != "finetune" and wanted in Recipe.model_fields else None


def settings_of(what: str | None, name: str | None) -> "Settings":
    """Return the settings that are asked for: of pre-training, of a recipe, or of fine-tuning for a task."""
    from bertworks.config import recipe_names
    from bertworks.finetuning.settings import settings_for
    from bertworks.recipe import Recipe, load_recipe
    from bertworks.tasks import find_task
    from bertworks.tasks.task import TaskKind

    sections = list(Recipe.model_fields)
    if what in (None, "pretrain"):
        if name is None or name in sections:
            return Recipe()
        if name not in recipe_names() and not name.endswith(".toml"):
            hint = nearest_name(name, [*sections, *recipe_names()])
            raise UserError(f"{shown(name)} is neither a section nor a recipe{hint}; `bertworks recipes` lists recipes")
        return load_recipe(name)
    if what != "finetune":
        if name is not None:
            hint = nearest_name(str(what), ["pretrain", "finetune"])
            raise UserError(f"{shown(what)} is neither pretrain nor finetune{hint}")
        if what in sections:
            return Recipe()
        name = what
    kind = "classify" if name is None else name
    if kind in get_args(TaskKind):
        return settings_for(_task_of_own_files(cast("TaskKind", kind)))
    try:
        return settings_for(find_task(kind))
    except UserError:
        known = [] if what == "finetune" else [*sections, "pretrain", "finetune"]
        if hint := nearest_name(kind, known):
            raise UserError(f"{shown(kind)} is neither a section of a recipe{hint} nor a task") from None
        raise


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
    from bertworks.demo.run import TUNED, run_demo

    run_demo(overrides or [], out=out, quiet=quiet)
    if (Path(out) / TUNED).exists():  # not where the package has no model
        say_next("classify", f"{out}/{TUNED}", "The room was spotless.")
