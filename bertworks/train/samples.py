"""What a model made of texts that it was not trained on: pieces taken away, and its likeliest guesses for each.

`asking.py` asks. The answers lie in the run folder as `samples.json`, with what is known of the data, so that a report
can be made again where the data is gone. Nothing here needs torch.
"""

import json
from pathlib import Path

from bertworks.config import Settings, validate
from bertworks.files import atomic_write
from bertworks.interop.folder import read_json

SAMPLES_FILE = "samples.json"


class Guess(Settings):
    """A piece and how likely the model finds it."""

    piece: str
    probability: float


class Blank(Settings):
    """A place whose piece the model was asked for."""

    piece: str  # what stands there
    seen: str | None  # what the model saw there; None: nothing, for it had not come so far
    guesses: list[Guess]  # the likeliest first


class Span(Settings):
    """A stretch of text; one that was asked for says which of the blanks it is."""

    text: str
    blank: int | None = None


class Sample(Settings):
    """A text, or a pair of them."""

    texts: list[list[Span]]
    blanks: list[Blank]
    follows: bool | None = None  # whether the second text does follow the first
    follows_probability: float | None = None


class Samples(Settings):
    """What the model was asked, and what is known of the data."""

    data: str  # the name of its folder
    vocab_size: int
    counts: dict[str, dict[str, int]]  # documents, sentences and tokens of each split
    next_majority: float | None  # of the pairs kept aside, the share of the more frequent kind
    samples: list[Sample]


def write_samples(run: Path, samples: Samples) -> None:
    """Write samples into a run folder."""
    with atomic_write(run / SAMPLES_FILE) as stream:
        json.dump(samples.model_dump(), stream, ensure_ascii=False, indent=1)


def read_samples(run: Path) -> Samples | None:
    """Return the samples of a run folder; None if it has none."""
    path = run / SAMPLES_FILE
    return validate(Samples, read_json(path), str(path)) if path.exists() else None
