"""The demo's report: all stages as one page that loads nothing.

It looks like the reports of runs and has their charts and tables. The one script is that of the attention page, which
stands in a frame of its own; the page's policy knows it by its hash.
"""

from pathlib import Path
from string import Template

from bertworks import __version__
from bertworks.demo.show import Show, Stage
from bertworks.demo.telling import as_typed
from bertworks.files import atomic_write
from bertworks.show.chart import chart_style
from bertworks.show.page_files import content_hash, escaped, page_file


def write_demo_page(path: Path, show: Show, seconds: float) -> None:
    """Write the report of a demo that took so long."""
    page = demo_page(show, seconds)
    with atomic_write(path) as stream:
        stream.write(page)


def demo_page(show: Show, seconds: float) -> str:
    """Return the page's text, to be written as UTF-8."""
    from bertworks.show.attention_page import attention_files
    from bertworks.train.run_facts import duration

    style = page_file("report", "style.css") + chart_style() + page_file("report", "dev.css")
    style += page_file("demo", "style.css")
    framed = attention_files()
    return Template(page_file("demo", "page.html")).substitute(
        summary=escaped(f"From raw text to a model that can be used, on one machine's CPU, in {duration(seconds)}."),
        tiles="".join(show.tiles),
        stages="".join(map(_section, show.stages)),
        version=escaped(__version__),
        style=style,
        style_hashes=f"'sha256-{content_hash(style)}' 'sha256-{content_hash(framed.style)}'",
        script_hash=content_hash(framed.script),
    )


def _section(stage: Stage) -> str:
    commands = "\n".join(map(as_typed, stage.commands))
    return (
        f'<section aria-labelledby="stage-{stage.number}"><h2 id="stage-{stage.number}">'
        f'<span class="number">{stage.number}</span> {escaped(stage.title)}'
        f'<span class="took">{stage.seconds:.1f} s</span></h2><pre class="command">{escaped(commands)}</pre>'
        f"{stage.html}</section>"
    )
