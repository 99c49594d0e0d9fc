"""The report of a fine-tuning run: its cost, its best model's scores on the dev set, and `RUN/report.html`.

Cost: the minutes for which a run holds its devices, over all of its starts. A checkpoint must not depend on the clock,
because a resumed run ends with the same bytes. So time is recorded elsewhere: `starts.jsonl` has a line whenever the
logs have one, with the seconds of the current start so far. Work that a kill undid counts, because it has cost time.

Dev set: `dev.json` says how the best model did, by classes, with some of its most confident mistakes. It is written
when that model is, so that the report of a run, also of one that was killed, needs neither torch nor a model to be
opened.

Page: like that of pre-training it loads nothing, needs no script, and is made from the run folder alone, at the end of
a run and again on request. Everything is escaped. Shades are classes of the style sheet, for the page's
policy refuses styles of single elements.
"""

import json
import math
import os
import shutil
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Count, Settings, read_recipe, read_record, read_toml, validate
from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, usable_path
from bertworks.finetuning.settings import FinetuneSettings
from bertworks.models.folder import OWN_FILE, read_about, read_json
from bertworks.report.charts import chart, escaped, page_file
from bertworks.report.logs import (
    IN_PERCENT,
    METRICS_FILE,
    MODEL,
    RECIPE_FILE,
    TIMING_FILE,
    Line,
    StepLog,
    duration,
    newest_model,
    points_of,
    read_log,
    training_lines,
)
from bertworks.report.page import REPORT_FILE, course_charts, filled_page, memory_facts, optimizer_facts, tile
from bertworks.tasks.metrics import Breakdown, ClassScore, break_down, gold_of, most_confused
from bertworks.tasks.task import Example, Task
from bertworks.train.run_folder import replace_model

if TYPE_CHECKING:
    import torch

    from bertworks.tasks.evaluation import Evaluated

STARTS_FILE, DEV_FILE = "starts.jsonl", "dev.json"
_MOST_WRONG = 20
_MOST_CLASSES = 1_000  # of more the commonest are written
_LONGEST_TEXT = 600  # characters; what is wrong is seen by then, and a page stays a page
_NOT_TEXTS = ("id", "gold", "predicted", "score", "error")
_MOST_CLASSES_IN_A_MATRIX = 24
_MOST_CLASSES_IN_A_TABLE = 200
_MOST_MISTAKES = 20
_SHADES = 10
_SHARES = ("accuracy", "f1", "f1_macro", "precision", "recall")
_TITLES = {"f1": "F1", "f1_macro": "F1, mean of classes", "exact_match": "exact match"}


class Clock:
    """Counts the device minutes of a run from now on, and those of its earlier starts.

    Args:
        run: the run folder; it is written to only when the first line is due, and by then held.
        device: where it runs.
        num_devices: that are held.
        writes: whether this process writes them down; one of several ranks does.
    """

    def __init__(self, run: Path, device: "torch.device", num_devices: int = 1, *, writes: bool = True) -> None:
        self._path, self._device, self._num_devices, self._writes = run / STARTS_FILE, device, num_devices, writes
        earlier = read_starts(run)
        self._earlier = device_minutes(earlier)
        self._start = 1 + max((line["start"] for line in earlier), default=0)
        self._log: StepLog | None = None
        self._began = time.monotonic()

    @property
    def minutes(self) -> float:
        """All of them so far."""
        return self._earlier + (time.monotonic() - self._began) * self._num_devices / 60

    def cost(self) -> dict[str, Any]:
        """Return the cost as model folders record it."""
        return {"minutes": round(self.minutes, 3), "device": device_name(self._device, self._num_devices)}

    def note(self, step: int) -> None:
        """Record how long the current start has taken so far."""
        if not self._writes:
            return
        self._log = self._log or StepLog(self._path, sys.maxsize)
        seconds = round(time.monotonic() - self._began, 3)
        self._log.append(step, {"start": self._start, "seconds": seconds, "devices": self._num_devices})

    def close(self) -> None:
        """Stop recording."""
        if self._log:
            self._log.close()


def read_starts(run: Path) -> list[dict[str, Any]]:
    """Return the lines of `starts.jsonl`."""
    return read_log(run / STARTS_FILE, ("start", "seconds", "devices"))


def device_minutes(lines: Sequence[dict[str, Any]]) -> float:
    """Return the minutes of all starts, by the last line of each in `starts.jsonl`."""
    by_start = {line["start"]: float(line["seconds"] * line["devices"]) for line in lines}
    return sum(by_start.values()) / 60


def state_cost(run: Path, cost: Mapping[str, Any]) -> None:
    """Write the cost of a run into its model; does nothing where none has been published yet.

    A model folder is whole at any instant, so this is a new one; its files are links to those of the old, of which only
    the manifest is replaced.
    """
    model = run / MODEL
    if not (model / OWN_FILE).is_file():
        return

    with replace_model(run, num_bytes=1 << 20) as folder:
        for path in model.iterdir():
            if path.name == OWN_FILE:
                continue
            try:
                os.link(path, folder / path.name)
            except OSError:  # not all systems have links
                shutil.copyfile(path, folder / path.name)
        about = read_about(model)
        about["provenance"] = {**(about.get("provenance") or {}), **cost}
        with atomic_write(folder / OWN_FILE) as stream:
            json.dump(about, stream, ensure_ascii=False, indent=2)


def device_name(device: "torch.device", num_devices: int) -> str:
    """Name the devices of a run."""
    import torch  # here, because a report needs only the minutes

    if device.type == "cpu":
        threads = torch.get_num_threads()
        name = f"cpu, {threads} thread{'s' * (threads > 1)}"
    else:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return f"{num_devices} x {name}" if num_devices > 1 else name


class ClassFigures(Settings):
    """How well a class, or a type of entity, was found."""

    precision: float
    recall: float
    f1: float
    support: Count


class Confusion(Settings):
    """See `Breakdown`."""

    labels: list[str]
    counts: list[list[Count]] | list[list[list[Count]]]


class Mistake(Settings):
    """An example, its label and the model's prediction, as text."""

    id: str
    texts: list[str | list[str]]  # a list: of endings
    gold: str
    predicted: str
    score: float  # how sure the model was; of a regression its error


class DevRecord(Settings):
    """The record of the best model."""

    kind: str  # of the task
    step: Count
    metrics: dict[str, float]
    examples: Count
    num_wrong: Count
    wrong: list[Mistake]
    per_class: dict[str, ClassFigures] = Field(default_factory=dict)
    confusion: Confusion | None = None
    commonest_mistakes: list[list[str | int]] = Field(default_factory=list)  # see `Breakdown`
    num_classes: int | None = None  # where there are more than those of per_class

    @field_validator("confusion")
    @classmethod
    def _has_a_row_and_a_column_for_each_class(
        cls, confusion: Confusion | None, info: ValidationInfo
    ) -> Confusion | None:
        num_classes = len(info.data.get("per_class", {}))
        if confusion and {len(confusion.labels), len(confusion.counts)} != {num_classes}:
            raise ValueError(f"it is not of the {num_classes} classes of per_class")
        rows = confusion.counts if confusion else []
        # Of several labels there are two rows of two numbers for each, else a row of a number for each.
        if any(len(row) != (num_classes if isinstance(row[0], int) else 2) for row in rows if row) or [] in rows:
            raise ValueError("its rows are not of one length")
        return confusion


def write_dev(
    run: Path, task: Task, step: int, metrics: Mapping[str, float], examples: Sequence[Example], found: "Evaluated"
) -> None:
    """Record a model's predictions for the dev set.

    Args:
        run: the run folder.
        task: the task.
        step: of the model.
        metrics: those that are defined.
        examples: the dev set.
        found: the model's predictions and scores.
    """
    from bertworks.tasks.submission import wrong_examples

    wrong = wrong_examples(task, examples, found.predictions, found.rows)
    mistakes = [
        {
            "id": one["id"],
            "texts": [_cut(value) for name, value in one.items() if name not in _NOT_TEXTS],
            "gold": _worded(one["gold"]),
            "predicted": _worded(one["predicted"]),
            "score": one["error"] if "error" in one else one["score"],
        }
        for one in wrong
        if math.isfinite(one["error"] if "error" in one else one["score"])
    ]
    breakdown = break_down(task, gold_of(examples), found.predictions)
    values = {
        "kind": task.kind,
        "step": step,
        "metrics": dict(metrics),
        "examples": len(examples),
        "num_wrong": len(wrong),
        "wrong": mistakes[:_MOST_WRONG],
        **(breakdown.as_json() if breakdown else {}),
    }
    if breakdown and len(breakdown.per_class) > _MOST_CLASSES:
        chosen = sorted(breakdown.per_class.items(), key=lambda item: -item[1].support)[:_MOST_CLASSES]
        values |= {"per_class": {label: score._asdict() for label, score in chosen}, "confusion": None}
        values["num_classes"] = len(breakdown.per_class)
    record = validate(DevRecord, values, str(run / DEV_FILE))
    unused = {name for name in ("commonest_mistakes", "num_classes") if not getattr(record, name)}
    with atomic_write(run / DEV_FILE) as stream:
        json.dump(record.model_dump(exclude=unused), stream, ensure_ascii=False, indent=1)
        stream.write("\n")


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(part) for part in value]
    return f"{value[:_LONGEST_TEXT]} ..." if len(value) > _LONGEST_TEXT else value


def _worded(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or "no label"
    word = f"{value:.4g}" if isinstance(value, float) else str(value)
    return str(_cut(word)) or "no answer"


def read_dev(run: Path) -> DevRecord | None:
    """Return the record; None where no dev set has been measured yet."""
    path = run / DEV_FILE
    return read_record(DevRecord, read_json(path), str(path)) if path.exists() else None


class FinetuneRun(NamedTuple):
    """What a run folder holds."""

    name: str
    settings: FinetuneSettings
    recipe_text: str
    training: Sequence[Line]
    evaluations: Sequence[Line]
    timing: Sequence[Line]
    minutes: float
    about: Mapping[str, Any]  # bertworks.json of the best model
    dev: DevRecord | None
    config: Mapping[str, Any] | None
    num_parameters: int | None

    @property
    def task(self) -> Mapping[str, Any]:
        """The task, as the model's folder records it."""
        return self.about.get("task") or {}

    @property
    def provenance(self) -> Mapping[str, Any]:
        """The provenance, as the model's folder records it."""
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
    """Write the report of a run folder, into it or to another path, and return the path."""
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
    dev, notes = run.dev, list(map(str, run.provenance.get("notes", [])))
    step = max((line["step"] for line in (*run.training, *run.evaluations)), default=0)
    steps = f"{step:,} of {counted(run.settings.train.max_steps, 'step')}"
    best = f" Its model is that of step {dev.step:,}, the best on the dev set." if dev else ""
    tiles = []
    for number, (name, value) in enumerate(run.metrics.items()):
        beside = f"the best, at step {dev.step:,}" if dev and not number else ""
        tiles.append(
            tile(f"{_titled(name)} on dev", f"{value:.1%}" if _is_share(run, name) else f"{value:.4g}", beside)
        )
    if run.timing or run.minutes:
        tiles.append(tile("Device time", duration(60 * run.minutes), str(run.provenance.get("device", ""))))
    name = run.task.get("name", "a task")
    return filled_page(
        kind="Fine-tuning",
        title=run.name,
        summary=f"Fine-tuned for {name}, after {steps} and {duration(60 * run.minutes)}.{best}",
        tiles=tiles,
        charts=[*learning_charts(run), *course_charts(run.training, run.timing)],
        facts={"Model": _model_facts(run), "Data": _data_facts(run), "Training": _training_facts(run)},
        samples=dev_sections(dev, notes),
        recipe=run.recipe_text,
        more_style=page_file("report", "dev.css"),
    )


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
        curves = {
            "training": points_of(run.training, in_training),
            "dev": points_of(run.evaluations, f"dev_{name}"),
        }
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
    names = ", ".join(dict.fromkeys(run.task[key] for key in ("name", "kind") if run.task.get(key)))
    facts = {"task": names} if run.task else {}
    examples = run.provenance.get("examples")
    unit = "windows" if run.task.get("kind") in ("tag", "answer") else "examples"
    facts |= {"train set": f"{examples:,} {unit}"} if examples else {}
    facts |= {"dev set": counted(run.dev.examples, "example")} if run.dev else {}
    facts |= {"labels": f"{len(run.task['labels']):,}"} if run.task.get("labels") else {}
    return facts | {"longest text": counted(run.settings.task.max_length, "token")}


def _training_facts(run: FinetuneRun) -> dict[str, str]:
    task, optim, train = run.settings.task, run.settings.optim, run.settings.train
    facts = {
        **optimizer_facts(optim),
        "batch": counted(train.batch_size, "example"),
        "epochs": f"{train.epochs:,}",
        "dropout": "the model's own" if task.dropout is None else f"{task.dropout:g}",
        "seed": f"{train.seed}",
    }
    facts |= {"class weights": "yes"} if task.class_weights else {}
    facts |= {"frozen layers": str(task.freeze)} if task.freeze else {}
    facts |= {"rate from layer to layer": f"x {task.layer_decay:g}"} if task.layer_decay < 1 else {}
    return facts | memory_facts(run.timing)


def dev_sections(dev: DevRecord | None, notes: Sequence[str]) -> str:
    """Return sections of HTML: notes on the data, scores of classes, and mistakes."""
    parts = []
    if notes:
        text_shown = "".join(f'<li dir="auto">{escaped(note)}</li>' for note in notes)
        head = '<section aria-labelledby="notes"><h2 id="notes">About the data</h2>'
        parts.append(f'{head}<ul class="notes">{text_shown}</ul></section>')
    if dev and dev.per_class:
        parts.append(f'<section aria-labelledby="dev"><h2 id="dev">On the dev set</h2>{class_tables(dev)}</section>')
    if dev and dev.wrong:
        title, note = "Most confident mistakes", f"{dev.num_wrong:,} of {counted(dev.examples, 'example')} are wrong"
        note += f"; here are {len(dev.wrong)}." if len(dev.wrong) < dev.num_wrong else "."
        if dev.kind == "regress":
            title, note = "Largest errors", f"{len(dev.wrong)} of {counted(dev.examples, 'example')}."
        parts.append(
            f'<section aria-labelledby="wrong"><h2 id="wrong">{title}</h2><p class="note">{note}</p>'
            f"{''.join(_mistake(one, dev.kind) for one in dev.wrong)}</section>"
        )
    return "".join(parts)


def class_tables(dev: DevRecord) -> str:
    """Return tables of HTML: how well each class was found, and what it was taken for."""
    scores = {label: ClassScore(**dict(figures)) for label, figures in dev.per_class.items()}
    counts: list[Any] = dev.confusion.counts if dev.confusion else []
    commonest = [(str(right), str(guess), int(count)) for right, guess, count in dev.commonest_mistakes]
    labels = dev.confusion.labels if dev.confusion else list(scores)
    classes = list(scores.items())
    if len(classes) > _MOST_CLASSES_IN_A_TABLE:
        classes = sorted(classes, key=lambda item: -item[1].support)[:_MOST_CLASSES_IN_A_TABLE]
    num_classes = dev.num_classes or len(scores)
    caption = "Each class"
    if len(classes) < num_classes:
        caption = f"The {len(classes)} commonest of {num_classes:,} classes"
    rows = [
        _row(label, [*(f"<td>{share:.1%}</td>" for share in score[:3]), f"<td>{score.support:,}</td>"])
        for label, score in classes
    ]
    parts = [_table(caption, ["", "precision", "recall", "F1", "examples"], rows, "classes")]
    is_matrix = bool(counts) and not isinstance(counts[0][0], list)
    if is_matrix and len(counts) <= _MOST_CLASSES_IN_A_MATRIX and not commonest:
        rows = [
            _row(label, [_cell(count, sum(row), is_right=number == column) for column, count in enumerate(row)])
            for number, (label, row) in enumerate(zip(labels, counts, strict=True))
        ]
        parts.append(
            _table("How often each class (row) was predicted as each class (column)", ["", *labels], rows, "confusion")
        )
    elif is_matrix or commonest:
        rows = [
            _row(right, [f"<td><bdi>{escaped(guess)}</bdi></td><td>{count:,}</td>"])
            for right, guess, count in most_confused(Breakdown(labels, scores, counts, commonest), _MOST_MISTAKES)
        ]
        parts.append(_table("The commonest mistakes", ["class", "predicted as", "times"], rows, "classes"))
    inner = "".join(f'<div class="scroll">{part}</div>' for part in parts)
    return f'<div class="dev">{inner}</div>'


def _table(caption: str, heads: Sequence[str], rows: Sequence[str], style: str) -> str:
    cells = "".join(f'<th scope="col"><bdi>{escaped(head)}</bdi></th>' for head in heads)
    return (
        f'<table class="{style}"><caption>{escaped(caption)}</caption><thead><tr>{cells}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table>"
    )


def _row(head: str, cells: Sequence[str]) -> str:
    return f'<tr><th scope="row"><bdi title="{escaped(head)}">{escaped(head)}</bdi></th>{"".join(cells)}</tr>'


def _cell(count: int, total: int, *, is_right: bool) -> str:
    shade = round(_SHADES * count / total) if total else 0
    message = f"{count / total:.1%} of the class" if total else "no examples"
    return f'<td class="{"right" if is_right else "wrong"} s{shade}" title="{message}">{count:,}</td>'


def _mistake(one: Mistake, kind: str) -> str:
    if kind == "regress":
        sure = f"off by {one.score:.3g}"
    else:
        sure = f"{one.score:.0%} {'of the tags wrong' if kind == 'tag' else 'sure'}"
    texts = ""
    for value in one.texts:
        if isinstance(value, str):
            texts += f'<p class="text" dir="auto" lang="">{escaped(value)}</p>'
        else:
            endings = "".join(f'<li dir="auto" lang="">{escaped(part)}</li>' for part in value)
            texts += f'<ol class="endings" start="0">{endings}</ol>'
    text_shown, gold = (f'<bdi lang="">{escaped(word)}</bdi>' for word in (one.predicted, one.gold))
    return (
        f'<article class="mistake">{texts}<p class="said"><span class="verdict wrong">{text_shown}'
        f'</span> instead of <span class="verdict right">{gold}</span><span class="beside">{sure}</span>'
        f'<span class="beside">example {escaped(one.id)}</span></p></article>'
    )
