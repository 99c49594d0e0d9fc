"""`RUN/report.html`: what a run was and how it went, as one page that loads nothing and needs no script.

The page is made from the run folder alone (recipe, logs, samples, and the shapes of its model), at the end of a run and
again whenever it is asked for. All that comes from files is escaped. `sample_page.py` makes the part with the samples.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from string import Template

from bertworks import __version__
from bertworks.errors import counted
from bertworks.files import atomic_write
from bertworks.report.charts import Curve, chart, chart_style, content_hash, escaped, page_file
from bertworks.report.logs import KINDS, Line, Run, facts_of, median_speed, points_of, read_run
from bertworks.report.samples import samples_section

# What the reports of all runs are put together with: the page, figures in tiles, tables of facts.


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
    """Return a page's text, to be written as UTF-8.

    Args:
        kind: of training.
        title: the run's name.
        summary: what it is, in a sentence.
        tiles: the figures at the end, as HTML.
        charts: as HTML.
        facts: tables by their titles.
        samples: sections that show what the model does, as HTML.
        recipe: all settings.
        more_style: of the samples.
    """
    style = page_file("report", "style.css") + chart_style() + more_style
    return Template(page_file("report", "page.html")).substitute(
        kind=escaped(kind),
        title=escaped(title),
        summary=escaped(summary),
        tiles="".join(tiles),
        charts="".join(charts),
        facts="".join(fact_table(name, rows) for name, rows in facts.items()),
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


def fact_table(title: str, rows: Mapping[str, str]) -> str:
    """Return a table of names and what is to be said of each."""
    lines = (f'<tr><th scope="row">{escaped(name)}</th><td>{escaped(value)}</td></tr>' for name, value in rows.items())
    return f"<table><caption>{escaped(title)}</caption><tbody>{''.join(lines)}</tbody></table>"


REPORT_FILE = "report.html"
_LARGEST_LOSS = 50  # of which a perplexity can be told in digits


def write_report(run: str | Path, out: str | Path | None = None) -> Path:
    """Write the report of a run folder, into it or to another place, and return where it lies."""
    target = Path(out) if out else Path(run) / REPORT_FILE
    page = report_page(read_run(Path(run)))
    with atomic_write(target) as stream:
        stream.write(page)
    return target


def report_page(run: Run) -> str:
    """Return the page's text, to be written as UTF-8."""
    return filled_page(
        kind="Pre-training",
        title=run.name,
        summary=_summary(run),
        tiles=_tiles(run),
        charts=[*learning_charts(run), *course_charts(run.training, run.timing)],
        facts=facts_of(run),
        samples=samples_section(run.samples),
        recipe=run.recipe_text,
    )


def _summary(run: Run) -> str:
    model, most = run.recipe.model, run.recipe.train.max_steps
    size = f" with {counted(run.num_parameters, 'parameter')}" if run.num_parameters else ""
    step = max((line["step"] for line in (*run.training, *run.holdout)), default=0)
    steps = counted(step, "step") if step >= most else f"{step:,} of at most {most:,} steps"
    tokens = f"{run.training[-1]['tokens']:,}" if run.training else "no"
    return f"A {model.kind.upper()} of size {model.preset}{size}, after {steps} and {tokens} tokens."


def _tiles(run: Run) -> Iterable[str]:
    """Give the figures at the end: of documents kept aside where there are any, else of training."""
    last = {name.removeprefix("holdout_"): value for name, value in run.holdout[-1].items()} if run.holdout else {}
    where = "held out" if last else "in training"
    last = last or dict(run.training[-1] if run.training else {})
    for kind in run.kinds:
        name, accuracy, loss = KINDS[kind], last.get(f"{kind}_accuracy"), last.get(f"{kind}_loss")
        if accuracy is not None:
            yield tile(f"{name} accuracy, {where}", f"{accuracy:.1%}", _accuracy_note(run, kind))
        if kind != "nsp" and loss is not None and loss < _LARGEST_LOSS:
            yield tile(f"{name} perplexity, {where}", _perplexity(loss), f"loss {loss:.3f}")
    if (loss := last.get("loss")) is not None:
        yield tile(f"Loss, {where}", f"{loss:.3f}", "of all tasks together" if len(run.kinds) > 1 else "")
    if speed := median_speed(run):
        yield tile("Tokens a second", f"{speed:,.0f}", "the median")


def _accuracy_note(run: Run, kind: str) -> str:
    if kind == "nsp":
        line = run.holdout[-1] if run.holdout else run.training[-1] if run.training else {}
        share = line.get("holdout_nsp_larger_class", line.get("nsp_larger_class"))
        if share is None and run.holdout and run.samples:  # in logs of earlier versions it is not
            share = run.samples.next_majority
        return f"larger class {share:.1%}" if isinstance(share, int | float) else ""
    in_training = run.training[-1].get(f"{kind}_accuracy") if run.training and run.holdout else None
    return f"in training {in_training:.1%}" if in_training is not None else ""


def _perplexity(loss: float) -> str:
    return f"{math.exp(loss):,.1f}" if loss < math.log(1_000) else f"{math.exp(loss):,.0f}"


def learning_charts(run: Run) -> Iterable[str]:
    """Draw what a run learned: its loss and accuracies, in training and on documents kept aside."""
    yield chart("Loss", _both(run, "loss"))
    for kind in run.kinds:
        yield chart(f"{KINDS[kind]} accuracy", _both(run, f"{kind}_accuracy"), percent=True)


def course_charts(training: Sequence[Line], timing: Sequence[Line]) -> Iterable[str]:
    """Draw how a run went: its rate, its speed and its gradients."""
    yield chart("Learning rate", [Curve("last", points_of(training, "lr"))], from_zero=True, is_noisy=False)
    yield chart("Tokens a second", [Curve("last", points_of(timing, "tokens_per_second"))], from_zero=True)
    yield chart("Norm of all gradients", [Curve("last", points_of(training, "grad_norm"))], from_zero=True)


def _both(run: Run, name: str) -> list[Curve]:
    return [
        Curve("training", points_of(run.training, name)),
        Curve("held out", points_of(run.holdout, f"holdout_{name}")),
    ]


# The attention of one sentence, or of a pair, as one HTML page that needs no network, no server and no library.
#
# The page is put together from the files of `pages/attention`: the scripts and the style are written into it, the
# tokens and the weights follow as JSON. It opens from a disk. Tokens and title come from outside and are escaped
# where they are written; besides, a content security policy lets the browser run the one script and the one style
# that we ship (known by their hashes) and load nothing at all, so a slip in the escaping would show, not run.
#
# A weight takes one byte: round(255 * sqrt(weight / largest)). Most weights are small, and the root gives most of
# the 256 steps to them: among 512 tokens one of 0.2 % is still told within 0.02 points, one of 50 % within 0.3. In
# base64, 12 layers of 12 heads over 60 tokens are 0.7 MB. Each layer is a text of its own, decoded when it is first
# looked at.


# The paper's large model over 512 tokens fits (101 million); a browser's longest text is about four times this page.
