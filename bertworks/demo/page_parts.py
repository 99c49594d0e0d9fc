"""What the demo's report is put together with, as HTML: texts, pieces, cards, shares as bars. Everything is escaped."""

from collections.abc import Iterable, Sequence

from bertworks.demo.telling import percent
from bertworks.show.page_files import escaped


def text(content: str) -> str:
    """Return a text that a model was given."""
    return f'<p class="given" dir="auto" lang="">{escaped(content)}</p>'


def paragraph(content: str) -> str:
    """Return a sentence of ours."""
    return f'<p class="note">{escaped(content)}</p>'


def cards(contents: Iterable[str]) -> str:
    """Return parts side by side, each with an edge."""
    return f'<div class="cards">{"".join(f"<article>{content}</article>" for content in contents)}</div>'


def pieces(names: Iterable[str], marked: Iterable[int] = ()) -> str:
    """Return the pieces of a text one by one; some may be marked."""
    places = set(marked)
    items = (
        f'<li class="marked">{escaped(name)}</li>' if place in places else f"<li>{escaped(name)}</li>"
        for place, name in enumerate(names)
    )
    return f'<ol class="pieces" lang="">{"".join(items)}</ol>'


def shares(named: Sequence[tuple[str, float]], *, is_first_best: bool = True) -> str:
    """Return names with their shares as bars; the first may stand out as the best."""
    items = (_share(name, share, is_best=is_first_best and not number) for number, (name, share) in enumerate(named))
    return f'<ul class="guesses">{"".join(items)}</ul>'


def _share(name: str, share: float, *, is_best: bool) -> str:
    style = ' class="best"' if is_best else ""
    return (
        f'<li{style}><bdi lang="">{escaped(name)}</bdi><span class="share">{percent(share)}</span>'
        '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * share:.1f}" height="1"/></svg></li>'
    )
