"""The part of a report that shows what the model guessed: texts with the asked pieces marked, and its guesses."""

from bertworks.show.page_files import escaped
from bertworks.text.gpt_bpe import END_OF_WORD
from bertworks.text.vocabulary import MASK
from bertworks.train.samples import Blank, Guess, Sample, Samples, Span

_VERDICTS = {True: "right", False: "wrong"}
_SIGNS = {True: "✓", False: "✗"}
_NOTE = (
    "Texts that were kept aside. The marked pieces were to be guessed: their likeliest five stand below, with their "
    "probabilities."
)


def samples_section(samples: Samples | None) -> str:
    """Return a section of HTML; nothing where no samples were taken."""
    if not samples or not samples.samples:
        return ""
    is_masked = any(blank.seen for sample in samples.samples for blank in sample.blanks)
    note = _NOTE + (" The model saw [MASK] there, unless something else is said." if is_masked else "")
    articles = "".join(map(_article, samples.samples))
    return (
        '<section aria-labelledby="samples"><h2 id="samples">What it guesses</h2>'
        f'<p class="note">{escaped(note)}</p>{articles}</section>'
    )


def _article(sample: Sample) -> str:
    names = ("A", "B") if len(sample.texts) > 1 else ("",)
    texts = "".join(_text(spans, name, sample) for spans, name in zip(sample.texts, names, strict=True))
    blanks = "".join(f"<li>{_blank(number, blank)}</li>" for number, blank in enumerate(sample.blanks, 1))
    return f'<article class="sample">{texts}{_next(sample)}<ol class="blanks">{blanks}</ol></article>'


def _text(spans: list[Span], name: str, sample: Sample) -> str:
    which = f'<span class="which">{name}</span>' if name else ""
    return f'<p class="text" dir="auto" lang="">{which}{"".join(_span(span, sample) for span in spans)}</p>'


def _span(span: Span, sample: Sample) -> str:
    if span.blank is None:
        return escaped(span.text)
    blank = sample.blanks[span.blank]
    told = ", ".join(f"{_bare(guess.piece)} {guess.probability:.0%}" for guess in blank.guesses)
    return (
        f'<mark class="{_VERDICTS[_is_right(blank)]}" title="{escaped(told)}">{escaped(span.text)}'
        f"<sup>{span.blank + 1}</sup></mark>"
    )


def _next(sample: Sample) -> str:
    if sample.follows is None or sample.follows_probability is None:
        return ""
    is_right = (sample.follows_probability >= 0.5) == sample.follows
    truth = "B follows A" if sample.follows else "B is from elsewhere"
    said = f"{truth}; that it follows, the model finds {sample.follows_probability:.0%} likely"
    return f'<p class="next">{said} {_verdict(is_right)}</p>'


def _blank(number: int, blank: Blank) -> str:
    seen = ""
    if blank.seen not in (None, MASK):
        seen = "shown as it is" if blank.seen == blank.piece else f"shown as {_bare(blank.seen or '')}"
    guesses = "".join(_guess(guess, blank) for guess in blank.guesses)
    return (
        f'<p class="asked"><span class="number">{number}</span> <bdi lang="">{escaped(_bare(blank.piece))}</bdi>'
        f"{_verdict(_is_right(blank))}</p>"
        f'<p class="seen">{escaped(seen)}</p><ul class="guesses">{guesses}</ul>'
    )


def _guess(guess: Guess, blank: Blank) -> str:
    style = ' class="right"' if guess.piece == blank.piece else ""
    return (
        f'<li{style}><bdi lang="">{escaped(_bare(guess.piece))}</bdi>'
        f'<span class="share">{_share(guess.probability)}</span>'
        '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{100 * guess.probability:.1f}" height="1"/></svg></li>'
    )


def _share(probability: float) -> str:
    return f"{probability:.0%}" if probability >= 0.0995 else f"{probability:.1%}"


def _verdict(is_right: bool) -> str:
    return f'<span class="verdict {_VERDICTS[is_right]}" title="{_VERDICTS[is_right]}">{_SIGNS[is_right]}</span>'


def _is_right(blank: Blank) -> bool:
    return bool(blank.guesses) and blank.guesses[0].piece == blank.piece


def _bare(piece: str) -> str:
    return piece.removesuffix(END_OF_WORD)
