"""What a model made of texts that it was not trained on: pieces taken away, and its likeliest guesses for each.

`asking.py` asks. The answers lie in the run folder as `samples.json`, with what is known of the data, so that a report
can be made again where the data is gone. Nothing here needs torch.
"""

import json
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Count, Settings, read_record
from bertworks.files import atomic_write
from bertworks.models.folder import read_json
from bertworks.report.charts import escaped
from bertworks.text.gpt import END_OF_WORD
from bertworks.text.vocabulary import MASK

SAMPLES_FILE = "samples.json"


class Guess(Settings):
    """A piece and how likely the model finds it."""

    piece: str
    probability: float = Field(ge=0, le=1)


class Blank(Settings):
    """A place whose piece the model was asked for."""

    piece: str  # what stands there
    seen: str | None  # what the model saw there; None: nothing, for it had not come so far
    guesses: list[Guess]  # the likeliest first


class Span(Settings):
    """A stretch of text; one that was asked for says which of the blanks it is."""

    text: str
    blank: Count | None = None


class Sample(Settings):
    """A text, or a pair of them."""

    texts: list[list[Span]] = Field(min_length=1, max_length=2)
    blanks: list[Blank]
    follows: bool | None = None  # whether the second text does follow the first
    follows_probability: float | None = Field(default=None, ge=0, le=1)

    @field_validator("blanks")
    @classmethod
    def _spans_are_of_blanks(cls, blanks: list[Blank], info: ValidationInfo) -> list[Blank]:
        named = [span.blank for spans in info.data.get("texts", []) for span in spans if span.blank is not None]
        if named and max(named) >= len(blanks):
            raise ValueError(f"there are {len(blanks)}, and a text has one of the number {max(named)}")
        return blanks


class Samples(Settings):
    """What the model was asked, and what is known of the data."""

    data: str  # the name of its folder
    vocab_size: Count
    counts: dict[str, dict[str, Count]]  # documents, sentences and tokens of each split
    next_majority: float | None  # of the pairs kept aside, the share of the more frequent kind
    samples: list[Sample]


def write_samples(run: Path, samples: Samples) -> None:
    """Write samples into a run folder."""
    with atomic_write(run / SAMPLES_FILE) as stream:
        json.dump(samples.model_dump(), stream, ensure_ascii=False, indent=1)


def read_samples(run: Path) -> Samples | None:
    """Return the samples of a run folder; None if it has none."""
    path = run / SAMPLES_FILE
    return read_record(Samples, read_json(path), str(path)) if path.exists() else None


# The part of a report that shows what the model guessed: texts with the asked pieces marked, and its guesses.


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
