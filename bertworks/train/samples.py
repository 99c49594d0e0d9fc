"""What a model made of texts that it was not trained on: pieces taken away, and its likeliest guesses for each.

`asking.py` asks. The answers lie in the run folder as `samples.json`, with what is known of the data, so that a report
can be made again where the data is gone. Nothing here needs torch.
"""

import json
from pathlib import Path

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Count, Settings, read_record
from bertworks.files import atomic_write
from bertworks.interop.folder import read_json

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
