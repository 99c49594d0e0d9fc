"""The report of a run, `RUN/report.html`: one HTML file that loads nothing from outside and needs no server.

It is made only from the run folder (recipe, logs, samples and the shapes of the model's weights), at the end of a run
or later on request, without torch.

Samples are a model's predictions on held-out texts: for each masked piece, the most likely pieces. `train/guesses.py`
computes them. They are saved in the run folder as `samples.json`, together with facts about the data, so that a report
can be made again without the data.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any, NamedTuple

from pydantic import Field, ValidationInfo, field_validator

from bertworks import __version__
from bertworks.config import Count, Settings, read_record
from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, usable_path
from bertworks.models.folder import read_json
from bertworks.recipe import OptimSettings, Recipe, load_recipe
from bertworks.report.charts import Points, chart, chart_style, content_hash, escaped, page_file, value_label
from bertworks.report.logs import (
    KINDS,
    METRICS_FILE,
    RECIPE_FILE,
    TIMING_FILE,
    Line,
    duration,
    newest_model,
    points_of,
    read_log,
    training_lines,
    training_seconds,
)
from bertworks.text.gpt import END_OF_WORD
from bertworks.text.vocabulary import MASK

REPORT_FILE, SAMPLES_FILE = "report.html", "samples.json"
_LARGEST_LOSS = 50  # for larger losses no perplexity is shown
_NOTE = (
    "Held-out texts. The model had to predict the marked pieces: its five most likely predictions are listed, with "
    "their probabilities."
)


class Guess(Settings):
    """A predicted piece and its probability."""

    piece: str
    probability: float = Field(ge=0, le=1)


class Blank(Settings):
    """A position whose piece the model predicted."""

    piece: str  # the true piece
    seen: str | None  # the model's input there; None: a language model, which had not read so far
    guesses: list[Guess]  # the most likely first

    @property
    def is_right(self) -> bool:
        """Whether the most likely prediction is right."""
        return bool(self.guesses) and self.guesses[0].piece == self.piece


class Span(Settings):
    """A part of a text; if it was predicted, it has the number of its blank."""

    text: str
    blank: Count | None = None


class Sample(Settings):
    """A text, or a pair of them."""

    texts: list[list[Span]] = Field(min_length=1, max_length=2)
    blanks: list[Blank]
    follows: bool | None = None  # whether the second text really follows the first
    follows_probability: float | None = Field(default=None, ge=0, le=1)

    @field_validator("blanks")
    @classmethod
    def _spans_are_of_blanks(cls, blanks: list[Blank], info: ValidationInfo) -> list[Blank]:
        named = [span.blank for spans in info.data.get("texts", []) for span in spans if span.blank is not None]
        if named and max(named) >= len(blanks):
            raise ValueError(f"there are {len(blanks)}, but a text refers to number {max(named)}")
        return blanks


class Samples(Settings):
    """The samples of a run, and facts about its data."""

    data: str  # the name of its folder
    vocab_size: Count
    counts: dict[str, dict[str, Count]]  # documents, sentences and tokens of each split
    next_majority: float | None  # the share of the more frequent label among the held-out pairs
    samples: list[Sample]


def write_samples(run: Path, samples: Samples) -> None:
    """Write samples into a run folder."""
    with atomic_write(run / SAMPLES_FILE) as stream:
        json.dump(samples.model_dump(), stream, ensure_ascii=False, indent=1)


def read_samples(run: Path) -> Samples | None:
    """Return the samples of a run folder; None if it has none."""
    path = run / SAMPLES_FILE
    return read_record(Samples, read_json(path), str(path)) if path.exists() else None


def filled_page(
    *,
    kind: str,
    title: str,
    summary: str,
    tiles: Iterable[str],
    charts: Iterable[str],
    facts: Mapping[str, Mapping[str, str]],
    samples: str,
    recipe: str,
    more_style: str = "",
) -> str:
    """Return a report's text, to be written as UTF-8; tiles, charts and samples must already be HTML."""
    style = page_file("report", "style.css") + chart_style() + more_style
    tables = []
    for name, rows in facts.items():
        lines = (f'<tr><th scope="row">{escaped(key)}</th><td>{escaped(fact)}</td></tr>' for key, fact in rows.items())
        tables.append(f"<table><caption>{escaped(name)}</caption><tbody>{''.join(lines)}</tbody></table>")
    return Template(page_file("report", "page.html")).substitute(
        kind=escaped(kind),
        title=escaped(title),
        summary=escaped(summary),
        tiles="".join(tiles),
        charts="".join(charts),
        facts="".join(tables),
        samples=samples,
        recipe=escaped(recipe),
        version=escaped(__version__),
        style=style,
        style_hash=content_hash(style),
    )


def tile(name: str, value: str, beside: str) -> str:
    """Return a figure with its name above it and a remark below."""
    return (
        f'<div class="tile"><p class="name">{escaped(name)}</p><p class="value">{escaped(value)}</p>'
        f'<p class="beside">{escaped(beside)}</p></div>'
    )


class Run(NamedTuple):
    """The contents of a run folder."""

    name: str
    recipe: Recipe
    recipe_text: str
    training: Sequence[Line]
    holdout: Sequence[Line]
    timing: Sequence[Line]
    samples: Samples | None
    config: Mapping[str, Any] | None  # of the newest model
    num_parameters: int | None

    @property
    def kinds(self) -> list[str]:
        """The kinds of predictions in the logs."""
        names = {name.removeprefix("holdout_") for line in (*self.training, *self.holdout) for name in line}
        return [kind for kind in KINDS if f"{kind}_accuracy" in names]


def read_run(folder: Path) -> Run:
    """Read the parts of a run folder that its report needs."""
    if not (usable_path(folder) / RECIPE_FILE).is_file():
        raise UserError(
            f"{folder} has no {RECIPE_FILE}: not a run folder; give the --out of `bertworks pretrain` or "
            "`finetune`, or for a grid one of its runs: OUT/POINT/seed-N"
        )
    metrics = read_log(folder / METRICS_FILE)
    config, num_parameters = newest_model(folder)
    return Run(
        name=folder.absolute().name,
        recipe=load_recipe(str(folder / RECIPE_FILE)),
        recipe_text=(folder / RECIPE_FILE).read_text(encoding="utf-8"),
        training=training_lines(metrics),
        holdout=[line for line in metrics if any(name.startswith("holdout_") for name in line)],
        timing=read_log(folder / TIMING_FILE),
        samples=read_samples(folder),
        config=config,
        num_parameters=num_parameters,
    )


def write_report(run: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run folder, by default into the folder, and return its path."""
    target, found = Path(out) if out else Path(run) / REPORT_FILE, read_run(Path(run))
    model, most = found.recipe.model, found.recipe.train.max_steps
    size = f" with {counted(found.num_parameters, 'parameter')}" if found.num_parameters else ""
    step = max((line["step"] for line in (*found.training, *found.holdout)), default=0)
    steps = counted(step, "step") if step >= most else f"{step:,} of at most {most:,} steps"
    tokens = f"{found.training[-1]['tokens']:,}" if found.training else "no"
    page = filled_page(
        kind="Pre-training",
        title=found.name,
        summary=f"A {model.kind.upper()} of size {model.preset}{size}, after {steps} and {tokens} tokens.",
        tiles=_tiles(found),
        charts=[*learning_charts(found), *course_charts(found.training, found.timing)],
        facts={"Model": _model_facts(found), "Data": _data_facts(found), "Training": _training_facts(found)},
        samples=samples_section(found.samples),
        recipe=found.recipe_text,
    )
    with atomic_write(target) as stream:
        stream.write(page)
    return target


def _tiles(run: Run) -> Iterable[str]:
    """Yield the final figures: for held-out documents if there are any, otherwise for training."""
    last = {name.removeprefix("holdout_"): value for name, value in run.holdout[-1].items()} if run.holdout else {}
    where = "held out" if last else "in training"
    in_training = run.training[-1] if run.training else {}
    last = last or dict(in_training)
    for kind in run.kinds:
        name, accuracy, loss = KINDS[kind], last.get(f"{kind}_accuracy"), last.get(f"{kind}_loss")
        if kind == "nsp":  # the accuracy of a constant answer
            share = last.get("nsp_larger_class")
            if share is None and run.holdout and run.samples:  # logs of earlier versions lack it
                share = run.samples.next_majority
            note = f"larger class {share:.1%}" if isinstance(share, int | float) else ""
        else:
            share = in_training.get(f"{kind}_accuracy") if run.holdout else None
            note = f"in training {share:.1%}" if share is not None else ""
        if accuracy is not None:
            yield tile(f"{name} accuracy, {where}", f"{accuracy:.1%}", note)
        if kind != "nsp" and loss is not None and loss < _LARGEST_LOSS:
            perplexity = f"{math.exp(loss):,.1f}" if loss < math.log(1_000) else f"{math.exp(loss):,.0f}"
            yield tile(f"{name} perplexity, {where}", perplexity, f"loss {loss:.3f}")
    if (loss := last.get("loss")) is not None:
        yield tile(f"Loss, {where}", f"{loss:.3f}", "of all tasks together" if len(run.kinds) > 1 else "")
    if speeds := [speed for _, speed in points_of(run.timing, "tokens_per_second")]:
        yield tile("Tokens a second", f"{statistics.median(speeds):,.0f}", "the median")


def learning_charts(run: Run) -> Iterable[str]:
    """Draw the loss and accuracies of a run, in training and on held-out documents."""

    def both(name: str) -> dict[str, Points]:
        held_out = points_of(run.holdout, f"holdout_{name}")
        return {"training": points_of(run.training, name), "held out": held_out}

    yield chart("Loss", both("loss"))
    for kind in run.kinds:
        yield chart(f"{KINDS[kind]} accuracy", both(f"{kind}_accuracy"), percent=True)


def course_charts(training: Sequence[Line], timing: Sequence[Line]) -> Iterable[str]:
    """Draw the learning rate, the speed and the gradient norms of a run."""
    yield chart("Learning rate", {"last": points_of(training, "lr")}, from_zero=True, is_noisy=False)
    yield chart("Tokens a second", {"last": points_of(timing, "tokens_per_second")}, from_zero=True)
    yield chart("Norm of all gradients", {"last": points_of(training, "grad_norm")}, from_zero=True)


def optimizer_facts(optim: OptimSettings) -> dict[str, str]:
    """Describe the optimizer of a run."""
    return {
        "optimizer": optim.name,
        "learning rate": f"{value_label(optim.lr)}, {optim.schedule}",
        "warm-up": counted(round(optim.warmup), "step") if optim.warmup >= 1 else f"{optim.warmup:.0%} of the run",
    }


def memory_facts(timing: Sequence[Line]) -> dict[str, str]:
    """Describe the peak memory of a run, if its logs have it."""
    memory = max((line.get("memory_bytes") or 0 for line in timing), default=0)
    return {"most memory": f"{memory / 1e9:,.2f} GB"} if memory else {}


def _model_facts(run: Run) -> dict[str, str]:
    sizes, settings, objective = run.config or {}, run.recipe.model, run.recipe.data.objective
    directions = {"ltr": "next words, left to right", "rtl": "next words, right to left"}
    named = {
        "layers": sizes.get("num_hidden_layers", sizes.get("n_layer")),
        "width": sizes.get("hidden_size", sizes.get("n_embd")),
        "heads": sizes.get("num_attention_heads", sizes.get("n_head")),
        "vocabulary": sizes.get("vocab_size"),
        "longest text": sizes.get("max_position_embeddings", sizes.get("n_positions")),
        "parameters": run.num_parameters,
    }
    return {
        "size": settings.preset,
        "objective": directions.get(objective, objective),
        **{name: f"{value:,}" for name, value in named.items() if isinstance(value, int)},
        "activation, dropout": f"{settings.hidden_act}, {settings.dropout:g}",
    }


def _data_facts(run: Run) -> dict[str, str]:
    data = run.recipe.data
    facts = {"longest sequence": f"{data.max_length:,}"}
    if data.objective.startswith("mlm"):
        facts["masked"] = f"{data.mask_rate:.0%}" + (", whole words" if data.whole_word else "")
    if run.samples is None:
        return facts
    counts = run.samples.counts
    for split, name in (("train", "for training"), ("holdout", "held out")):
        facts |= {f"{what} {name}": f"{count:,}" for what, count in counts.get(split, {}).items()}
    seen, there = (run.training[-1]["tokens"] if run.training else 0), counts.get("train", {}).get("tokens", 0)
    return {"folder": run.samples.data, **facts, "tokens seen per token of data": f"{seen / max(there, 1):,.2f}"}


def _training_facts(run: Run) -> dict[str, str]:
    data, optim, train = run.recipe.data, run.recipe.optim, run.recipe.train
    tokens_of = dict.fromkeys(map(run.recipe.batch_tokens, data.lengths()))  # both lengths may have the same number
    facts = {
        **optimizer_facts(optim),
        "batch": " and ".join(f"{tokens:,}" for tokens in tokens_of) + " tokens",
        "seed": f"{train.seed}",
    }
    if run.timing:
        facts["time in training"] = duration(training_seconds(run.timing))
    return facts | memory_facts(run.timing)


def samples_section(samples: Samples | None) -> str:
    """Return a section of HTML, or an empty text if there are no samples."""
    if not samples or not samples.samples:
        return ""
    is_masked = any(blank.seen for sample in samples.samples for blank in sample.blanks)
    note = _NOTE + (" The model saw [MASK] there unless noted otherwise." if is_masked else "")
    articles = []
    for sample in samples.samples:
        names = ("A", "B") if len(sample.texts) > 1 else ("",)
        texts = ""
        for spans, name in zip(sample.texts, names, strict=True):
            which = f'<span class="which">{name}</span>' if name else ""
            marked = "".join(_span(span, sample.blanks) for span in spans)
            texts += f'<p class="text" dir="auto" lang="">{which}{marked}</p>'
        if sample.follows is not None and sample.follows_probability is not None:
            truth = "B follows A" if sample.follows else "B is from elsewhere"
            text_shown = f"{truth}; the model's probability that it follows is {sample.follows_probability:.0%}"
            verdict = _verdict((sample.follows_probability >= 0.5) == sample.follows)
            texts += f'<p class="next">{text_shown} {verdict}</p>'
        blanks = "".join(f"<li>{_blank(number, blank)}</li>" for number, blank in enumerate(sample.blanks, 1))
        articles.append(f'<article class="sample">{texts}<ol class="blanks">{blanks}</ol></article>')
    return (
        '<section aria-labelledby="samples"><h2 id="samples">Predictions</h2>'
        f'<p class="note">{escaped(note)}</p>{"".join(articles)}</section>'
    )


def _span(span: Span, blanks: list[Blank]) -> str:
    """Return a part of a text; if it was predicted, it is marked, with the predictions as its tooltip."""
    if span.blank is None:
        return escaped(span.text)
    blank = blanks[span.blank]
    message = ", ".join(f"{guess.piece.removesuffix(END_OF_WORD)} {guess.probability:.0%}" for guess in blank.guesses)
    return (
        f'<mark class="{"right" if blank.is_right else "wrong"}" title="{escaped(message)}">{escaped(span.text)}'
        f"<sup>{span.blank + 1}</sup></mark>"
    )


def _blank(number: int, blank: Blank) -> str:
    """Return a masked piece, the model's input there, and its predictions as bars."""
    right = ' class="right"'
    piece, seen, guesses = blank.piece.removesuffix(END_OF_WORD), "", ""
    if blank.seen not in (None, MASK):
        seen = (
            "shown unchanged"
            if blank.seen == blank.piece
            else f"shown as {(blank.seen or '').removesuffix(END_OF_WORD)}"
        )
    for guess in blank.guesses:
        share = f"{guess.probability:.0%}" if guess.probability >= 0.0995 else f"{guess.probability:.1%}"
        guesses += (
            f"<li{right if guess.piece == blank.piece else ''}>"
            f'<bdi lang="">{escaped(guess.piece.removesuffix(END_OF_WORD))}</bdi><span class="share">{share}</span>'
            '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="{100 * guess.probability:.1f}" height="1"/></svg></li>'
        )
    return (
        f'<p class="asked"><span class="number">{number}</span> <bdi lang="">{escaped(piece)}</bdi>'
        f'{_verdict(blank.is_right)}</p><p class="seen">{escaped(seen)}</p><ul class="guesses">{guesses}</ul>'
    )


def _verdict(is_right: bool) -> str:
    word, sign = ("right", "✓") if is_right else ("wrong", "✗")
    return f'<span class="verdict {word}" title="{word}">{sign}</span>'
