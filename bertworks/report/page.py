"""HTML pages: each is one file that loads nothing and needs no server.

`RUN/report.html` describes a run and its progress. It is made from the run folder alone (recipe, logs, samples and
the shapes of its model), at the end of a run and again on request, without torch.

The page of `attend` shows the attention of one sentence, or of a pair. Its scripts and its style (`pages/attention`)
are written into it, and the tokens and the weights follow as JSON. A content security policy lets the browser run the
scripts and styles that we ship (known by their hashes) and load nothing at all, so a slip in the escaping of what comes
from outside would show, not run. A weight takes one byte: round(255 * sqrt(weight / largest)). Most weights are small,
and the root gives most of the 256 steps to them: among 512 tokens one of 0.2 % still comes out within 0.02 points, one
of 50 % within 0.3. In base64, 12 layers of 12 heads over 60 tokens are 0.7 MB. Each layer is a text of its own, decoded
when it is first looked at.
"""

import base64
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, NamedTuple

from bertworks import __version__
from bertworks.errors import UserError, counted
from bertworks.files import atomic_write, usable_path
from bertworks.recipe import Recipe, load_recipe
from bertworks.report.charts import Curve, chart, chart_style, content_hash, escaped, page_file, value_label
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
from bertworks.report.samples import Samples, read_samples, samples_section

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

REPORT_FILE = "report.html"
_LARGEST_LOSS = 50  # of which a perplexity can be written in digits
# The paper's large model over 512 tokens fits (101 million); a browser's longest text is about four times this page.
_MAX_WEIGHTS = 1 << 27


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
    """Return a report's text, to be written as UTF-8; tiles, charts and samples are HTML already."""
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
    """Return a figure with its name above it and a word beneath."""
    return (
        f'<div class="tile"><p class="name">{escaped(name)}</p><p class="value">{escaped(value)}</p>'
        f'<p class="beside">{escaped(beside)}</p></div>'
    )


class Run(NamedTuple):
    """What a run folder holds."""

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
    """Read what the report of a run folder needs."""
    if not (usable_path(folder) / RECIPE_FILE).is_file():
        raise UserError(
            f"{folder} has no {RECIPE_FILE}: not a run folder; give the --out of `bertworks pretrain` or "
            "`finetune`, for a grid one of its runs: OUT/POINT/seed-N"
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
    """Write the report of a run folder, into it or to another place, and return where it is."""
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
    """Yield the figures at the end: of held-out documents where there are any, else of training."""
    last = {name.removeprefix("holdout_"): value for name, value in run.holdout[-1].items()} if run.holdout else {}
    where = "held out" if last else "in training"
    in_training = run.training[-1] if run.training else {}
    last = last or dict(in_training)
    for kind in run.kinds:
        name, accuracy, loss = KINDS[kind], last.get(f"{kind}_accuracy"), last.get(f"{kind}_loss")
        if kind == "nsp":  # what a constant answer would score
            share = last.get("nsp_larger_class")
            if share is None and run.holdout and run.samples:  # logs of earlier versions do not have it
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
    """Draw what a run learned: its loss and accuracies, in training and on held-out documents."""

    def both(name: str) -> list[Curve]:
        held_out = Curve("held out", points_of(run.holdout, f"holdout_{name}"))
        return [Curve("training", points_of(run.training, name)), held_out]

    yield chart("Loss", both("loss"))
    for kind in run.kinds:
        yield chart(f"{KINDS[kind]} accuracy", both(f"{kind}_accuracy"), percent=True)


def course_charts(training: Sequence[Line], timing: Sequence[Line]) -> Iterable[str]:
    """Draw how a run went: its rate, its speed and its gradients."""
    yield chart("Learning rate", [Curve("last", points_of(training, "lr"))], from_zero=True, is_noisy=False)
    yield chart("Tokens a second", [Curve("last", points_of(timing, "tokens_per_second"))], from_zero=True)
    yield chart("Norm of all gradients", [Curve("last", points_of(training, "grad_norm"))], from_zero=True)


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
    for split, name in (("train", "for training"), ("holdout", "kept aside")):
        facts |= {f"{what} {name}": f"{count:,}" for what, count in counts.get(split, {}).items()}
    seen, there = (run.training[-1]["tokens"] if run.training else 0), counts.get("train", {}).get("tokens", 0)
    return {"folder": run.samples.data, **facts, "tokens seen per token of data": f"{seen / max(there, 1):,.2f}"}


def _training_facts(run: Run) -> dict[str, str]:
    data, optim, train = run.recipe.data, run.recipe.optim, run.recipe.train
    tokens_of = dict.fromkeys(map(run.recipe.batch_tokens, data.lengths()))  # the same at both lengths, or not
    facts = {
        "optimizer": optim.name,
        "learning rate": f"{value_label(optim.lr)}, {optim.schedule}",
        "warm-up": counted(round(optim.warmup), "step") if optim.warmup >= 1 else f"{optim.warmup:.0%} of the run",
        "batch": " and ".join(f"{tokens:,}" for tokens in tokens_of) + " tokens",
        "seed": f"{train.seed}",
    }
    if run.timing:
        facts["time in training"] = duration(training_seconds(run.timing))
    if memory := max((line.get("memory_bytes") or 0 for line in run.timing), default=0):
        facts["most memory"] = f"{memory / 1e9:,.2f} GB"
    return facts


def attention_page(tokens: list[str], segment_ids: list[int], attentions: "NDArray[np.float32]", title: str) -> str:
    """Return the text of a page with the attention of all heads, to be written as UTF-8.

    Args:
        tokens: the pieces in order, [CLS] and [SEP] included.
        segment_ids: 0 for a token of the first sentence, 1 for one of the second.
        attentions: [layers, heads, tokens, tokens]; the row of a token says how much it attends to each.
        title: the model's name and the text, shown above the picture.
    """
    import numpy as np

    num_layers, num_heads, num_tokens = attentions.shape[:3]
    assert attentions.shape == (num_layers, num_heads, len(tokens), len(tokens)), attentions.shape
    assert len(segment_ids) == len(tokens), "a segment for every token"
    assert set(segment_ids) <= {0, 1}, "the first segment is 0, the second 1"
    if not attentions.size:
        raise UserError(
            f"no attention to show: the model has {counted(num_layers, 'layer')}, the text "
            f"{counted(num_tokens, 'token')}"
        )
    if attentions.size > _MAX_WEIGHTS:
        most = int((_MAX_WEIGHTS / num_layers / num_heads) ** 0.5)
        raise UserError(
            f"{counted(num_layers, 'layer')} of {counted(num_heads, 'head')} over {num_tokens} tokens are too much for "
            f"one page; at most {most} tokens of this model: shorten the text"
        )
    # Sums of rounded numbers: a weight may lie a little above 1. A comparison with NaN is false.
    if not (attentions.min() >= 0 and attentions.max() <= 1.001):
        raise UserError("the attention weights are not between 0 and 1: the model's weights are damaged")
    scale = float(attentions.max()) or 1.0
    layers = [np.rint(np.sqrt(weights / scale) * 255).astype(np.uint8) for weights in attentions]
    data = {
        "tokens": tokens,
        "segments": segment_ids,
        "numHeads": num_heads,
        "scale": scale,
        "layers": [base64.b64encode(levels.tobytes()).decode("ascii") for levels in layers],
    }
    style, script = attention_files()
    return Template(page_file("attention", "page.html")).substitute(
        title=escaped(title),
        style=style,
        style_hash=content_hash(style),
        script=script,
        script_hash=content_hash(script),
        # JSON that may stand in a script element: all of it ASCII, and no `<` that could end the element.
        data=json.dumps(data, separators=(",", ":")).replace("<", "\\u003c"),
    )


def attention_files() -> tuple[str, str]:
    """Return the style and the script of every attention page; a page that frames one has to allow both."""
    scripts = (page_file("attention", name) for name in ("weights.js", "head_view.js", "model_view.js"))
    return page_file("attention", "style.css"), "".join(scripts)
