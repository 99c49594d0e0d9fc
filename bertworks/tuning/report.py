"""`RUN/report.html` of a fine-tuning run: how it went and what its best model makes of the dev set, as one page.

Like that of pre-training the page loads nothing, needs no script, and is made from the run folder alone, at the end of
a run and again whenever it is asked for. `dev_page.py` makes the part about the dev set.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.config import read_recipe, read_toml
from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, usable_path
from bertworks.interop.about import read_about
from bertworks.show.chart import Curve, chart
from bertworks.show.curves import value_label
from bertworks.show.page_files import page_file
from bertworks.show.report_parts import filled_page, tile
from bertworks.train.log import METRICS_FILE, TIMING_FILE, read_log
from bertworks.train.report import REPORT_FILE, course_charts
from bertworks.train.run_facts import IN_PERCENT, RECIPE_FILE, Line, duration, newest_model, points_of, training_lines
from bertworks.train.run_folder import MODEL
from bertworks.tuning.cost import device_minutes, read_starts
from bertworks.tuning.dev_page import dev_sections
from bertworks.tuning.dev_record import DevRecord, read_dev
from bertworks.tuning.settings import FinetuneSettings

_SHARES = ("accuracy", "f1", "f1_macro", "precision", "recall")
_TITLES = {"f1": "F1", "f1_macro": "F1, mean of classes", "exact_match": "exact match"}


class FinetuneRun(NamedTuple):
    """What a run folder holds."""

    name: str
    settings: FinetuneSettings
    recipe_text: str
    training: Sequence[Line]
    evaluations: Sequence[Line]
    timing: Sequence[Line]
    minutes: float
    about: Mapping[str, Any]  # what the best model says of itself
    dev: DevRecord | None
    config: Mapping[str, Any] | None
    num_parameters: int | None

    @property
    def task(self) -> Mapping[str, Any]:
        """What the model says of its task."""
        return self.about.get("task") or {}

    @property
    def provenance(self) -> Mapping[str, Any]:
        """What the model says of where it comes from."""
        return self.about.get("provenance") or {}

    @property
    def metrics(self) -> Mapping[str, float]:
        """What the best model scores on the dev set, the main metric first."""
        return self.dev.metrics if self.dev else {}


def is_finetuned(folder: str | Path) -> bool:
    """Tell whether a run folder is that of a fine-tuning run, by the sections of its recipe."""
    try:
        return "task" in read_toml(Path(folder) / RECIPE_FILE)
    except UserError:
        return False


def write_finetune_report(run: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run folder, into it or to another place, and return where it lies."""
    target = Path(out) if out else Path(run) / REPORT_FILE
    page = finetune_page(read_finetune_run(Path(run)))
    with atomic_write(target) as stream:
        stream.write(page)
    return target


def read_finetune_run(folder: Path) -> FinetuneRun:
    """Read what the report of a run folder needs."""
    if not (usable_path(folder) / RECIPE_FILE).is_file():
        raise UserError(f"{folder} has no {RECIPE_FILE}: not a run folder; give the --out of `bertworks finetune`")
    metrics = read_log(folder / METRICS_FILE)
    config, num_parameters = newest_model(folder)
    return FinetuneRun(
        name=folder.absolute().name,
        settings=read_recipe(FinetuneSettings, str(folder / RECIPE_FILE)),
        recipe_text=(folder / RECIPE_FILE).read_text(encoding="utf-8"),
        training=training_lines(metrics),
        evaluations=[line for line in metrics if any(name.startswith("dev_") for name in line)],
        timing=read_log(folder / TIMING_FILE),
        minutes=device_minutes(read_starts(folder)),
        about=read_about(folder / MODEL),
        dev=read_dev(folder),
        config=config,
        num_parameters=num_parameters,
    )


def finetune_page(run: FinetuneRun) -> str:
    """Return the page's text, to be written as UTF-8."""
    return filled_page(
        kind="Fine-tuning",
        title=run.name,
        summary=_summary(run),
        tiles=_tiles(run),
        charts=[*learning_charts(run), *course_charts(run.training, run.timing)],
        facts={"Model": _model_facts(run), "Data": _data_facts(run), "Training": _training_facts(run)},
        samples=dev_sections(run.dev, _notes(run)),
        recipe=run.recipe_text,
        more_style=page_file("report", "dev.css"),
    )


def _summary(run: FinetuneRun) -> str:
    step = max((line["step"] for line in (*run.training, *run.evaluations)), default=0)
    steps = f"{step:,} of {counted(run.settings.train.max_steps, 'step')}"
    name = run.task.get("name", "a task")
    best = f" Its model is that of step {run.dev.step:,}, the best on the dev set." if run.dev else ""
    return f"Fine-tuned for {name}, after {steps} and {duration(60 * run.minutes)}.{best}"


def _tiles(run: FinetuneRun) -> Iterable[str]:
    """Give what the best model scores on the dev set, and what it took."""
    for number, (name, value) in enumerate(run.metrics.items()):
        beside = f"the best, at step {run.dev.step:,}" if run.dev and not number else ""
        yield tile(f"{_titled(name)} on dev", f"{value:.1%}" if _is_share(run, name) else f"{value:.4g}", beside)
    if run.timing or run.minutes:
        where = str(run.provenance.get("device", ""))
        yield tile("Device time", duration(60 * run.minutes), where)


def _titled(name: str) -> str:
    title = _TITLES.get(name, name)
    return title[:1].upper() + title[1:]


def _is_share(run: FinetuneRun, name: str) -> bool:
    return name in _SHARES and run.dev is not None and run.dev.kind != IN_PERCENT


def learning_charts(run: FinetuneRun) -> Iterable[str]:
    """Draw what a run learned: its loss and its metrics, in training and on the dev set."""
    kind = run.dev.kind if run.dev else ""
    for name in ("loss", *(name for name in run.metrics if name != "loss")):
        in_training = name if name == "loss" else f"{kind}_{name}"
        curves = [
            Curve("training", points_of(run.training, in_training)),
            Curve("dev", points_of(run.evaluations, f"dev_{name}")),
        ]
        yield chart(_titled(name), curves, percent=_is_share(run, name))


def _model_facts(run: FinetuneRun) -> dict[str, str]:
    sizes, start = run.config or {}, run.provenance.get("start") or {}
    facts = {"from": str(start["model"])} if "model" in start else {}
    facts |= {"weights": "drawn from the seed"} if start.get("init") == "random" else {}
    named = {
        "layers": sizes.get("num_hidden_layers"),
        "width": sizes.get("hidden_size"),
        "heads": sizes.get("num_attention_heads"),
        "vocabulary": sizes.get("vocab_size"),
        "parameters": run.num_parameters,
    }
    return facts | {name: f"{value:,}" for name, value in named.items() if isinstance(value, int)}


def _data_facts(run: FinetuneRun) -> dict[str, str]:
    facts = (
        {"task": ", ".join(dict.fromkeys(run.task[key] for key in ("name", "kind") if run.task.get(key)))}
        if run.task
        else {}
    )
    examples = run.provenance.get("examples")
    unit = "windows" if run.task.get("kind") in ("tag", "answer") else "examples"
    facts |= {"to learn from": f"{examples:,} {unit}"} if examples else {}
    facts |= {"to measure on": counted(run.dev.examples, "example")} if run.dev else {}
    facts |= {"labels": f"{len(run.task['labels']):,}"} if run.task.get("labels") else {}
    return facts | {"longest text": counted(run.settings.task.max_length, "token")}


def _notes(run: FinetuneRun) -> Sequence[str]:
    return list(map(str, run.provenance.get("notes", [])))


def _training_facts(run: FinetuneRun) -> dict[str, str]:
    task, optim, train = run.settings.task, run.settings.optim, run.settings.train
    facts = {
        "optimizer": optim.name,
        "learning rate": f"{value_label(optim.lr)}, {optim.schedule}",
        "warm-up": counted(round(optim.warmup), "step") if optim.warmup >= 1 else f"{optim.warmup:.0%} of the run",
        "batch": counted(train.batch_size, "example"),
        "epochs": f"{train.epochs:,}",
        "dropout": "the model's own" if task.dropout is None else f"{task.dropout:g}",
        "seed": f"{train.seed}",
    }
    facts |= {"class weights": "yes"} if task.class_weights else {}
    facts |= {"frozen layers": str(task.freeze)} if task.freeze else {}
    facts |= {"rate from layer to layer": f"x {task.layer_decay:g}"} if task.layer_decay < 1 else {}
    if memory := max((line.get("memory_bytes") or 0 for line in run.timing), default=0):
        facts["most memory"] = f"{memory / 1e9:,.2f} GB"
    return facts
