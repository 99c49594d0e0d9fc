"""What the measurements of our compact models are held against, how results add up, and the table of them.

Figures are in percent here; a result keeps them as they were measured: shares of one, but for answers, which the
official scripts give in percent. Google's are those of the GLUE server's test sets, ours of dev sets, so the two stand
beside each other without being the same measurement.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from bertworks.errors import UserError
from bertworks.tasks import find_task

Models = dict[str, dict[str, Any]]  # by name: sizes, weights, and results by start and task

# Of the main metric, median of three seeds at the best setting, on dev.
BARS = {
    "mini": {"sst2": 88.0, "mrpc": 86.0, "stsb": 84.0, "cola": 25.0, "rte": 61.0, "qnli": 84.1},
    "small": {"sst2": 89.7, "mrpc": 87.5, "stsb": 86.0, "cola": 36.0, "rte": 65.0, "qnli": 86.4},
    "mini-ko": {"nsmc": 86.0},
}

# Google's compact models: layers x width to task to metric.
GOOGLE = {
    "4x256": {
        "cola": {"matthews": 0.0}, "sst2": {"accuracy": 85.9}, "mrpc": {"f1": 81.1, "accuracy": 71.8},
        "stsb": {"pearson": 75.4, "spearman": 73.3}, "qqp": {"f1": 66.4, "accuracy": 86.2},
        "qnli": {"accuracy": 84.1}, "rte": {"accuracy": 57.9},
    },
    "4x512": {
        "cola": {"matthews": 27.8}, "sst2": {"accuracy": 89.7}, "mrpc": {"f1": 83.4, "accuracy": 76.2},
        "stsb": {"pearson": 78.8, "spearman": 77.0}, "qqp": {"f1": 68.1, "accuracy": 87.0},
        "qnli": {"accuracy": 86.4}, "rte": {"accuracy": 61.8},
    },
}  # fmt: skip
ORDER = (
    "cola", "sst2", "mrpc", "stsb", "qqp", "qnli", "qnli-from-squad1", "rte", "rte-from-snli", "wnli", "snli",
    "squad1", "squad2", "swag-like", "codah", "conll2003", "nsmc", "korsts", "kornli",
)  # fmt: skip
SIZE_NAMES = {"2x128": "tiny", "4x256": "mini", "4x512": "small", "8x512": "medium"}
COLUMNS = (
    "task", "metric", "ours, dev", "random initialisation", "ours, test", "Google's, test", "bar", "reached",
    "setting", "notes",
)  # fmt: skip
_NONE = "–"
_LEGEND = (
    "In percent. Dev: the median of the seeds at the best setting (lowest to highest), each at its best epoch. Test: "
    "the best of these runs by dev. Google's are the GLUE server's figures of their model of this size."
)


def merged(there: Models, name: str, about: Mapping[str, Any], init: str, found: Mapping[str, Any]) -> Models:
    """Return results with those of one model and start added; a task that is measured again takes the place of before.

    Args:
        there: by the models' names.
        name: of the model that was measured.
        about: its sizes and its weights' checksums: one name is one model.
        init: how it was started: model or random.
        found: by task.
    """
    before = there.get(name, {**about, "results": {}})
    check_same_model(before, name, about)
    results = before["results"]
    return {**there, name: {**before, "results": {**results, init: {**results.get(init, {}), **found}}}}


def check_same_model(before: Mapping[str, Any], name: str, about: Mapping[str, Any]) -> None:
    """Refuse to put the scores of two models under one name."""
    for part in ("sizes", "weights"):
        if before[part] != about[part]:
            raise UserError(
                f"the results under {name} are of a model with other {part}; choose another --name or --json"
            )


def joined(files: Iterable[Models]) -> Models:
    """Put the results of several files together, the later over the earlier."""
    models: Models = {}
    for content in files:
        for name, model in content.items():
            for init, found in model["results"].items():
                models = merged(models, name, {part: model[part] for part in ("sizes", "weights")}, init, found)
    return models


def markdown(models: Models) -> str:
    """Write a table for each model."""
    parts = [_LEGEND + "\n"]
    for name, model in models.items():
        head = f"### {name} ({model['sizes']})\n\nweights: {', '.join(model['weights'].values())}\n"
        lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(name, model)]
        parts.append(head + "\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    return "\n".join(parts)


def rows(name: str, model: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the lines of a model's table: of every task that was measured from its weights or from random ones."""
    ours, random = (model["results"].get(init, {}) for init in ("model", "random"))
    google, bars = GOOGLE.get(model["sizes"], {}), BARS.get(name, {})
    return [
        _row(work, ours.get(work), random.get(work), google.get(_base(work), {}), bars.get(_base(work)))
        for work in ORDER
        if work in ours or work in random
    ]


def _base(work: str) -> str:
    """Return the task whose figures others published: RTE by way of SNLI is held against RTE."""
    return work.partition("-from-")[0]


def _row(
    work: str,
    ours: Mapping[str, Any] | None,
    random: Mapping[str, Any] | None,
    google: Mapping[str, float],
    bar: float | None,
) -> tuple[str, ...]:
    known = ours or random
    assert known is not None, work
    metrics = metrics_of(known)
    return (
        work,
        " / ".join(metrics),
        measured(ours, metrics) if ours else _NONE,
        measured(random, metrics) if random else _NONE,
        _on_test(ours, metrics) if ours and ours["test"] else _NONE,
        " / ".join(f"{google[name]:.1f}" if name in google else _NONE for name in metrics) if google else _NONE,
        f"{bar:g}" if bar is not None else _NONE,
        reached(ours, bar) if ours and bar is not None else _NONE,
        ", ".join(f"{key} {value}" for key, value in (ours or known)["setting"].items()),
        "; ".join(known["notes"]) or _NONE,
    )


def _on_test(result: Mapping[str, Any], metrics: Iterable[str]) -> str:
    """Write what the best run of the seeds has on the test set."""
    return " / ".join(_percent(result, result["test"]["metrics"].get(name)) for name in metrics)


def metrics_of(result: Mapping[str, Any]) -> list[str]:
    """Return the task's metrics that were measured, the main one first."""
    others = find_task(result["task"]).metrics
    return list(dict.fromkeys([result["metric"], *(name for name in others if name in result["medians"])]))


def measured(result: Mapping[str, Any], metrics: Iterable[str]) -> str:
    """Write the median of the seeds with its spread, and the medians of the other metrics."""
    _, *others = metrics
    if result["median"] is None:
        return "not defined"
    low, high = (_percent(result, result[side]) for side in ("min", "max"))
    spread = f"{low} to {high}" if len(result["seeds"]) > 1 else "one seed"
    text = f"{_percent(result, result['median'])} ({spread})"
    return " / ".join([text, *(_percent(result, result["medians"].get(name)) for name in others)])


def reached(result: Mapping[str, Any], bar: float) -> str:
    """Say whether a median is at its bar, or by how much it is not; what is compared is what the table shows."""
    if result["median"] is None:
        return "no"
    short = round(bar - round(_scale(result) * result["median"], 1), 1)
    return "yes" if short <= 0 else f"no, {short:.1f} short"


def _percent(result: Mapping[str, Any], value: float | None) -> str:
    return _NONE if value is None else f"{_scale(result) * value:.1f}"


def _scale(result: Mapping[str, Any]) -> int:
    return 1 if find_task(result["task"]).kind == "answer" else 100
