"""The demo's report: a page of all stages that loads nothing from outside, and functions that make its parts.

It has the same style, charts and tables as the reports of runs. The only script is that of the attention page, in a
separate frame; the page's content security policy allows it by its hash. All text from outside is escaped.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from bertworks import __version__
from bertworks.demo.run import Show, as_typed, percent
from bertworks.files import atomic_write
from bertworks.report.charts import chart_style, content_hash, escaped, page_file


def write_demo_page(path: Path, show: Show, seconds: float) -> None:
    """Write the report of a demo; `seconds` is how long it took."""
    page = demo_page(show, seconds)
    with atomic_write(path) as stream:
        stream.write(page)


def demo_page(show: Show, seconds: float) -> str:
    """Return the page's text, to be written as UTF-8."""
    from bertworks.report.attention import attention_files
    from bertworks.report.logs import duration

    style = page_file("report", "style.css") + chart_style() + page_file("report", "dev.css")
    style += page_file("demo", "style.css")
    framed_style, framed_script = attention_files()
    sections = []
    for stage in show.stages:
        commands = escaped("\n".join(map(as_typed, stage.commands)))
        sections.append(
            f'<section aria-labelledby="stage-{stage.number}"><h2 id="stage-{stage.number}">'
            f'<span class="number">{stage.number}</span> {escaped(stage.title)}'
            f'<span class="took">{stage.seconds:.1f} s</span></h2><pre class="command">{commands}</pre>'
            f"{stage.html}</section>"
        )
    return Template(page_file("demo", "page.html")).substitute(
        summary=escaped(f"From raw text to a usable model, on one machine's CPU, in {duration(seconds)}."),
        tiles="".join(show.tiles),
        stages="".join(sections),
        version=escaped(__version__),
        style=style,
        style_hashes=f"'sha256-{content_hash(style)}' 'sha256-{content_hash(framed_style)}'",
        script_hash=content_hash(framed_script),
    )


def text(content: str) -> str:
    """Return a text that was the input of a model, as HTML."""
    return f'<p class="given" dir="auto" lang="">{escaped(content)}</p>'


def paragraph(content: str) -> str:
    """Return a paragraph of the demo's own text, as HTML."""
    return f'<p class="note">{escaped(content)}</p>'


def cards(contents: Iterable[str]) -> str:
    """Return parts side by side, each with a border."""
    return f'<div class="cards">{"".join(f"<article>{content}</article>" for content in contents)}</div>'


def pieces(names: Iterable[str], marked: Iterable[int] = ()) -> str:
    """Return the pieces of a text as a list; those at the positions `marked` are highlighted."""
    positions = set(marked)
    items = (
        f'<li class="marked">{escaped(name)}</li>' if position in positions else f"<li>{escaped(name)}</li>"
        for position, name in enumerate(names)
    )
    return f'<ol class="pieces" lang="">{"".join(items)}</ol>'


def shares(named: Sequence[tuple[str, float]], *, is_first_best: bool = True) -> str:
    """Return names with their shares as bars; the first may be highlighted as the best."""
    items = ""
    for number, (name, share) in enumerate(named):
        style = ' class="best"' if is_first_best and not number else ""
        items += (
            f'<li{style}><bdi lang="">{escaped(name)}</bdi><span class="share">{percent(share)}</span>'
            '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect width="{100 * share:.1f}" height="1"/></svg></li>'
        )
    return f'<ul class="guesses">{items}</ul>'
