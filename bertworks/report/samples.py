"""Samples of a model's predictions on held-out texts: masked pieces, and its most likely guesses for each.

`train/guesses.py` asks the model. The answers are kept in the run folder as `samples.json`, with what is known of the
data, so that a report can be made again where the data is gone; `samples_section` is the report's part with them: texts
with the predicted pieces marked, and the guesses for each. Nothing here needs torch.
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
    """A position whose piece the model predicted."""

    piece: str  # the true piece
    seen: str | None  # what the model saw there; None: nothing, as it had not come so far
    guesses: list[Guess]  # the most likely first

    @property
    def is_right(self) -> bool:
        """Whether the most likely guess is the piece."""
        return bool(self.guesses) and self.guesses[0].piece == self.piece


class Span(Settings):
    """A stretch of text; one that was predicted has the number of its blank."""

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
    """The samples of a run, and what is known of its data."""

    data: str  # the name of its folder
    vocab_size: Count
    counts: dict[str, dict[str, Count]]  # documents, sentences and tokens of each split
    next_majority: float | None  # of the held-out pairs, the share of the more frequent kind
    samples: list[Sample]


def write_samples(run: Path, samples: Samples) -> None:
    """Write samples into a run folder."""
    with atomic_write(run / SAMPLES_FILE) as stream:
        json.dump(samples.model_dump(), stream, ensure_ascii=False, indent=1)


def read_samples(run: Path) -> Samples | None:
    """Return the samples of a run folder; None if it has none."""
    path = run / SAMPLES_FILE
    return read_record(Samples, read_json(path), str(path)) if path.exists() else None


_NOTE = (
    "Held-out texts. The marked pieces were to be predicted: the five most likely ones are listed, with their "
    "probabilities."
)


def samples_section(samples: Samples | None) -> str:
    """Return a section of HTML; nothing where no samples were taken."""
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
        '<section aria-labelledby="samples"><h2 id="samples">What it guesses</h2>'
        f'<p class="note">{escaped(note)}</p>{"".join(articles)}</section>'
    )


def _span(span: Span, blanks: list[Blank]) -> str:
    """Return a stretch of text; one that was predicted is marked, with the guesses as its tooltip."""
    if span.blank is None:
        return escaped(span.text)
    blank = blanks[span.blank]
    message = ", ".join(f"{guess.piece.removesuffix(END_OF_WORD)} {guess.probability:.0%}" for guess in blank.guesses)
    return (
        f'<mark class="{"right" if blank.is_right else "wrong"}" title="{escaped(message)}">{escaped(span.text)}'
        f"<sup>{span.blank + 1}</sup></mark>"
    )


def _blank(number: int, blank: Blank) -> str:
    """Return a predicted piece, what the model saw there, and its guesses as bars."""
    right = ' class="right"'
    piece, seen, guesses = blank.piece.removesuffix(END_OF_WORD), "", ""
    if blank.seen not in (None, MASK):
        seen = (
            "shown as it is"
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
