"""What `results.json` holds: the measurements of a table, its gates, and the verdicts on its claims."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from typing import Any

from bertworks import __version__
from bertworks.reproduction.claims import counts_of, headline, judge, read_claims
from bertworks.reproduction.jobs import (
    read_error,
    read_result,
    read_sums,
)
from bertworks.reproduction.plan import Plan, Setup, missing_columns, needs_of
from bertworks.reproduction.statistics import Cell, Form, form_of
from bertworks.reproduction.tables import (
    BLIMP,
    RANDOM,
    TEXT,
    Column,
    Row,
)
from bertworks.tasks import find_task

_SAME = 1e-3  # points: two equal scores may be rounded differently


def results_of(setup: Setup, plan: Plan) -> dict[str, Any]:
    """Return what `results.json` holds, from the results of all jobs."""
    table, judged = plan.table, list[dict[str, Any]]()
    found: dict[str, dict[str, Any]] = {}
    for job in plan.jobs:
        if (result := read_result(setup.out, job.id)) is not None:
            found[job.id] = result
    for name in plan.about["pretrained"]:
        if name not in found and (result := read_result(setup.out, name)) is not None:
            found[name] = result
    forms = {column.id: _form(column) for column in table.columns}
    cells: dict[tuple[str, str], Cell] = {}
    missing = dict(plan.missing)
    for (row, column), by_seed in plan.cells.items():
        own = next(one for one in table.columns if one.id == column)
        runs = {
            seeds: read_sums(setup.out, job_id)[f"{own.split}/{own.metric}"]
            for seeds, job_id in by_seed.items()
            if job_id in found and own.split in found[job_id]["splits"]
        }
        if runs:
            its = next((one for one in table.rows if one.id == row), Row(row, "", row))
            model = setup.resolved(its.model).partition("@")[0]
            cells[row, column] = Cell(runs, f"{model}+{its.beside}" if its.beside else model, setup.is_given(its))
        else:
            error = next(filter(None, (_error_of(setup, plan, one) for one in by_seed.values())), "not done")
            missing[row, column] = error

    def why_missing(row: str, column: str) -> str:
        known = missing.get((row, column)) or missing.get(("", column))
        return known or "the paper has it, and nothing here measures it"

    gates, titles = _gates(plan, cells, forms, found), {row.id: row.title for row in table.rows}
    for claim in read_claims():
        if claim.table == table.name:
            for column in claim.sizes:
                lower = next(one for one in table.columns if one.id == column).lower_is_better
                one = judge(claim, column, cells, forms[column], why_missing=why_missing, lower_is_better=lower)
                one = _gated(one, gates, titles)
                judged.append(one | _to_decide(setup, one, plan, found))
    counts = counts_of(judged)
    rows = [_row(plan, row, cells, forms, found, why_missing) for row in table.rows]
    extra = [row for row in (RANDOM,) if any(its == row for its, _ in cells)]
    rows += [_row(plan, Row(row, "random start", "-"), cells, forms, found, why_missing) for row in extra]
    used = {job_id: found[job_id] for job_id in dict.fromkeys(_used(plan)) if job_id in found}
    failed = [{"job": job.id, "error": error} for job in plan.jobs if (error := read_error(setup.out, job.id))]
    return {
        "table": table.name, "title": table.title, "about": table.about, "published": table.published,
        "reference": table.reference, "scale": setup.scale.name, "scale_about": setup.scale.about,
        "command": setup.command(table.name, "--seeds", str(setup.seeds), "--tunings", str(setup.tunings)),
        "headline": headline(counts), "counts": counts,
        "columns": [
            {"id": one.id, "title": one.title, "task": one.task, "metric": one.metric, "split": one.split,
             "lower_is_better": one.lower_is_better} for one in table.columns
        ],
        "rows": rows, "gates": gates, "claims": judged,
        "missing": missing_columns(plan), "failed": failed,
        "provenance": {
            "version": __version__, "scale": setup.scale.name, "seeds": setup.seeds, "tunings": setup.tunings,
            "minutes": round(sum(one["minutes"] for one in used.values()), 2),
            "runs": {name: one["minutes"] for name, one in used.items()},
            "devices": sorted({one.get("device", "") for one in used.values()} - {""}),
            "data": _sizes(plan, found), "files": plan.about["files"], "text": plan.about["text"],
            "overrides": {stage: some for stage, some in setup.overrides.items() if some},
            "tokens": sorted({one["tokens"] for one in used.values() if "tokens" in one}),
            "models": {key: source for key, source in sorted(setup.models.items())
                       if any(setup.resolved(row.model) == key for row in table.rows if row.model)},
        },
    }  # fmt: skip


def _error_of(setup: Setup, plan: Plan, job_id: str) -> str:
    needs = next((job.needs for job in plan.jobs if job.id == job_id), [])
    return next(filter(None, (read_error(setup.out, one) for one in (job_id, *needs))), "")


def _row(
    plan: Plan,
    row: Row,
    cells: Mapping[tuple[str, str], Cell],
    forms: Mapping[str, Form],
    found: Mapping[str, dict[str, Any]],
    why_missing: Callable[[str, str], str],
) -> dict[str, Any]:
    """Return what the results say of a row."""
    paper, ours, missing = dict[str, float](), dict[str, Any](), dict[str, str]()
    commands: list[str] = []
    parameters, used, models = None, dict[str, None](), dict[str, None]()  # columns may share runs
    for column in plan.table.columns:
        published = plan.table.paper_of(row.id, column.id) if row.id != RANDOM else None
        if published is not None:
            paper[column.id] = published
        if (row.id, column.id) not in cells:
            if row.model:
                missing[column.id] = why_missing(row.id, column.id)
            continue
        jobs = plan.cells[row.id, column.id]
        scores = cells[row.id, column.id].scores(forms[column.id])
        by_seed = [fmean(value for (its, _), value in scores.items() if its == seed)
                   for seed in cells[row.id, column.id].seeds]  # fmt: skip
        spread = by_seed if len(by_seed) > 1 else list(scores.values())
        results = [found[jobs[seeds]] for seeds in scores]
        ours[column.id] = {
            "mean": round(fmean(scores.values()), 4),
            "std": round(stdev(spread), 4) if len(spread) > 1 else None,
            "of": "pre-training" if len(by_seed) > 1 else "fine-tuning",
            "runs": {f"{seed}.{tuning}": round(score, 4) for (seed, tuning), score in scores.items()},
            "examples": results[0]["splits"][column.split]["examples"],
        }
        used |= dict.fromkeys(jobs[seeds] for seeds in scores)
        for job_id in jobs.values():
            models |= dict.fromkeys(needs_of(plan, job_id))
        commands += [command for result in results[:1] for command in result["commands"]]
        parameters = max([results[0].get("parameters", 0), parameters or 0]) or None
    made = [found[name] for name in models if name in found]
    minutes = sum(one["minutes"] for one in (*made, *(found[job_id] for job_id in used)))
    sizes = {name.rpartition("-")[0]: found[name]["parameters"] for name in models if name in found}
    commands = [command for one in made[:2] for command in one["commands"]] + commands
    return {
        "id": row.id, "title": row.title, "paper": paper, "ours": ours, "missing": missing,
        "commands": list(dict.fromkeys(commands)), "minutes": round(minutes, 2), "parameters": parameters,
        "encoder_parameters": sum(sizes.values()) or None,
    }  # fmt: skip


def _sizes(plan: Plan, found: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """Return of each task how many items were trained on and measured, and what is to be said of its files."""
    sizes = dict[str, Any]()
    for column in plan.table.columns:
        jobs = (found.get(one) for (_, its), by in plan.cells.items() if its == column.id for one in by.values())
        results = [one for one in jobs if one is not None]
        if results and column.task not in sizes:
            trained = max(one.get("examples") or 0 for one in results)
            measured = {split: about["examples"] for split, about in results[0]["splits"].items()}
            sizes[column.task] = {"train": trained, **measured, "notes": results[0].get("notes", [])}
    return sizes


def _gates(
    plan: Plan,
    cells: Mapping[tuple[str, str], Cell],
    forms: Mapping[str, Form],
    found: Mapping[str, dict[str, Any]],
) -> list[dict[str, Any]]:
    """Return for each column whether every row beats a constant answer, and a random start."""
    gates = []
    for column in plan.table.columns:
        means = {row: fmean(cell.scores(forms[column.id]).values())
                 for (row, its), cell in cells.items() if its == column.id}  # fmt: skip
        rows = [row for row in means if row != RANDOM]
        if not rows:
            continue
        job_id = next(one for one in plan.cells[rows[0], column.id].values() if one in found)
        constant = found[job_id]["splits"][column.split]["majority"].get(column.metric)
        for name, limit in (("constant answer", constant), ("random start", means.get(RANDOM))):
            if limit is not None:
                sign = -1 if column.lower_is_better else 1
                below = [row for row in rows if sign * means[row] <= sign * limit + _SAME]
                gates.append({"column": column.id, "gate": name, "limit": round(limit, 4), "below": below})
    return gates


def _gated(one: dict[str, Any], gates: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> dict[str, Any]:
    """Return a verdict, or that there is none, because one of its rows has learned nothing."""
    for gate in gates:
        for row in (one["row"], one["against"]):
            if "ours" in one and gate["column"] == one["column"] and row in gate["below"]:
                kept = {name: value for name, value in one.items() if name != "seeds_needed"}
                return kept | {
                    "verdict": "not testable here",
                    "why": f"{titles[row]} is no better than a {gate['gate']}",
                }
    return one


def _to_decide(
    setup: Setup, judged: Mapping[str, Any], plan: Plan, found: Mapping[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return how many more seeds would decide a claim, the command, and how many minutes that command takes.

    It makes more seeds of all rows and columns, because their scores are compared in one table.
    """
    needed = judged.get("seeds_needed")
    if not needed:
        return {}
    seeds, tunings = (setup.seeds, needed) if judged["noise_is_of_tuning"] else (needed, setup.tunings)
    runs = {job_id for (row, _), by_seed in plan.cells.items() if row != RANDOM for job_id in by_seed.values()}
    models = {name for job_id in runs for name in needs_of(plan, job_id)}
    of_runs, of_models = (sum(found[name]["minutes"] for name in some if name in found) for some in (runs, models))
    minutes = of_models * (seeds / setup.seeds - 1) + of_runs * (seeds * tunings / (setup.seeds * setup.tunings) - 1)
    return {
        "more_seeds": needed - judged["num_seeds"],
        "more_minutes": round(minutes, 4),
        "command": setup.command(plan.table.name, "--seeds", str(seeds), "--tunings", str(tunings), "--yes"),
    }


def _used(plan: Plan) -> Iterator[str]:
    for by_seed in plan.cells.values():
        for job_id in by_seed.values():
            yield job_id
            yield from needs_of(plan, job_id)


def _form(column: Column) -> Form:
    if column.task == TEXT:
        return "perplexity"
    return "mean" if column.task == BLIMP else form_of(find_task(column.task), column.metric)
