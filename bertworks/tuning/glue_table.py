"""GLUE for a person: ours beside the paper's Table 1, in percent, for a terminal and as markdown.

The paper's average is the plain mean of nine columns, MNLI counted twice (matched and mismatched), WNLI left out. Where
tasks are missing, ours is the mean of the columns there are, and so is what stands beside it.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from bertworks.tasks.glue import COLA, MNLI, MRPC, QNLI, QQP, RTE, SST2, STSB
from bertworks.tasks.task import DEV, Task
from bertworks.tuning.grid_table import Row, aligned, markdown_rows, shown, wrapped

MISMATCHED, GOLD = "dev-mismatched", "test-gold"
# In the order of the paper's columns, which is that of their train sets' sizes.
PAPERS_TASKS = (MNLI, QQP, QNLI, SST2, COLA, STSB, MRPC, RTE)


class Column(NamedTuple):
    """A column of Table 1."""

    task: Task
    title: str
    split: str
    base: float
    large: float


def _columns() -> tuple[Column, ...]:
    columns = []
    for task in PAPERS_TASKS:
        assert task.published, task.name
        splits = {DEV: task.title} if task is not MNLI else {DEV: "MNLI-m", MISMATCHED: "MNLI-mm"}
        scores = zip(task.published.base.split("/"), task.published.large.split("/"), strict=True)
        for (split, title), (base, large) in zip(splits.items(), scores, strict=True):
            columns.append(Column(task, title, split, float(base), float(large)))
    return tuple(columns)


COLUMNS = _columns()


def average(tasks: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean of the columns there are, in percent, of ours and of the paper's models over the same columns."""
    there = [column for column in COLUMNS if _score(tasks, column) is not None]
    ours = [100 * score for column in there if (score := _score(tasks, column)) is not None]
    return {
        "ours": fmean(ours) if ours else None,
        "base": fmean(column.base for column in there) if ours else None,
        "large": fmean(column.large for column in there) if ours else None,
        "columns": len(there),
        "tasks": len({column.task.name for column in there}),
    }


def _score(tasks: Mapping[str, Mapping[str, Any]], column: Column) -> float | None:
    score: float | None = tasks[column.task.name].get("measured", {}).get(column.split)
    return score


def glue_text(results: Mapping[str, Any]) -> str:
    """Write what glue.json holds for a terminal."""
    lines = [line for text in _closing(results) for line in wrapped(text)]
    return "\n".join([*aligned(_rows(results)), "", *lines])


def glue_markdown(results: Mapping[str, Any]) -> str:
    """Write what glue.json holds as markdown."""
    lines = ["# GLUE", "", *markdown_rows(_rows(results))]
    for line in _closing(results):
        lines += ["", line]
    return "\n".join(lines) + "\n"


def _rows(results: Mapping[str, Any]) -> list[Row]:
    tasks, mean = results["tasks"], results["average"]
    head = ["", "metric", "ours, dev", "mean, std of seeds", "base, test", "large, test", "minutes"]
    rows = [_row(tasks[column.task.name], column) for column in COLUMNS]
    rows.append(["average", "", shown(mean["ours"], 1), "", shown(mean["base"], 1), shown(mean["large"], 1), ""])
    if not _has_gold(tasks):
        return [head, *rows]
    golds = [_percent(tasks[column.task.name].get("measured", {}).get(GOLD)) for column in COLUMNS]
    return [[*row[:3], gold, *row[3:]] for row, gold in zip([head, *rows], ["ours, test", *golds, ""], strict=True)]


def _has_gold(tasks: Mapping[str, Mapping[str, Any]]) -> bool:
    return any(GOLD in task.get("measured", {}) for task in tasks.values())


def _row(task: Mapping[str, Any], column: Column) -> Row:
    score = task.get("measured", {}).get(column.split)
    spread = "" if task.get("std") is None else f"{100 * task['mean']:.1f}, {100 * task['std']:.1f} of {task['seeds']}"
    minutes = f"{task['minutes']:.2f}" if "minutes" in task and column.split == DEV else ""
    return [
        column.title,
        column.task.metrics[0],
        _percent(score) if task["state"] == "finished" else task["state"],
        spread if column.split == DEV else "",
        f"{column.base:.1f}",
        f"{column.large:.1f}",
        minutes,
    ]


def _percent(score: float | None) -> str:
    return shown(None if score is None else 100 * score, 1)


def _closing(results: Mapping[str, Any]) -> Sequence[str]:
    """Return what must be said beside the scores."""
    tasks, mean = results["tasks"], results["average"]
    lines = [
        "In percent. Ours is measured on dev sets, by which its models are chosen too; the columns base and large are "
        "the paper's (Table 1), on test sets by GLUE's server.",
        *(["Ours on test is by the labels in the original archives, not by the server."] if _has_gold(tasks) else []),
        f"The average is the paper's: the mean of the columns above, MNLI twice, without WNLI; over {mean['tasks']} of "
        f"{len(PAPERS_TASKS)} tasks ({mean['columns']} of {len(COLUMNS)} columns), base's and large's over the same.",
    ]
    for state in ("missing", "failed"):
        names = [task["title"] for task in tasks.values() if task["state"] == state]
        lines += [f"{state}: {', '.join(names)}"] if names else []
    for task in tasks.values():
        lines += [f"{task['title']}: {said}" for said in (*task.get("notes", ()), task.get("error", "")) if said]
    return [*lines, *_submission(results["submission"]), f"{results['minutes']:.2f} minutes of training in all"]


def _submission(submission: Mapping[str, Any]) -> list[str]:
    lines = []
    if submission["wnli"]:
        lines.append(f"WNLI is not learnt, as in the paper: all of its test set is said to be {submission['wnli']}")
    if submission["zip"]:
        lines.append(f"{submission['zip']} holds the predictions for the server")
    if submission["missing"]:
        lines.append(f"not in it, as there are no test files or no model: {', '.join(submission['missing'])}")
    return lines
