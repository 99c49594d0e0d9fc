"""What the reports of all runs are put together with: the page, figures in tiles, tables of facts."""

from collections.abc import Iterable, Mapping
from string import Template

from bertworks import __version__
from bertworks.show.chart import chart_style
from bertworks.show.page_files import content_hash, escaped, page_file


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
