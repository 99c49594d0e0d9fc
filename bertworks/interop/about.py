"""`bertworks.json`: what Hugging Face's form has no place for. The keys that are read, and of what kind they are.

Other keys may be there, and are kept. A file that says something of the wrong kind is refused as a whole.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from bertworks.config import ColumnNames, Stated, read_record
from bertworks.interop.folder import OWN_FILE, read_json

_Tokens = Annotated[int, Field(ge=1, le=1 << 20)]
_Rate = Annotated[float, Field(gt=0, le=100)]


class StatedTask(Stated):
    """What a model was fine-tuned for, and how much of an example it read at once."""

    name: str = ""
    kind: Literal["classify", "regress", "multilabel", "choose", "tag", "answer"] | None = None
    labels: list[str] = Field(default_factory=list)
    is_pair: bool = False
    score_range: Annotated[list[float], Field(min_length=2, max_length=2)] | None = None
    columns: dict[str, ColumnNames | None] | None = None  # of the files, by their roles
    max_length: _Tokens = 128
    context: Literal["document", "sentence"] = "document"
    stride: _Tokens | None = None
    doc_stride: _Tokens = 128
    max_query: _Tokens = 64


class StatedRates(Stated):
    """At which learning rates a model is best fine-tuned: one to begin with, and those that a search goes through."""

    lr: _Rate
    lr_grid: list[_Rate] = Field(default_factory=list)


class StatedStart(Stated):
    """The model that a run began with."""

    model: str = ""
    weights: dict[str, str] = Field(default_factory=dict)
    init: str = ""
    new_words: int = 0
    drawn: list[str] = Field(default_factory=list)
    left_out: list[str] = Field(default_factory=list)


class Provenance(Stated):
    """Where a model comes from."""

    start: StatedStart | None = None
    minutes: Annotated[float, Field(ge=0, le=1e9)] | None = None
    device: str = ""
    steps: int = 0
    examples: int = 0
    notes: list[str] = Field(default_factory=list)


class Shipped(Stated):
    """What the list of the models in the package says of one."""

    language: str | None = None
    trained_on: str | None = None
    mlm_accuracy: float | None = None


class About(Stated):
    """The whole file."""

    task: StatedTask | None = None
    provenance: Provenance | None = None
    shipped: Shipped | None = None
    finetune: StatedRates | None = None
    head: Literal["classify", "tag", "choose"] | None = None
    problem: Literal["classify", "multilabel", "regress"] | None = None
    threshold: Annotated[float, Field(allow_inf_nan=True)] | None = None
    units: Literal["word", "character"] = "word"


def read_about(folder: Path) -> dict[str, Any]:
    """Return what bertworks.json says, as it is written; nothing if there is none."""
    path = folder / OWN_FILE
    if not path.exists():
        return {}
    raw = read_json(path)
    read_record(About, raw, str(path))
    return raw


def read_rates(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return at which learning rates a model is best fine-tuned, if it says so: `lr`, and `lr_grid` for a search."""
    said = about.get("finetune")
    if said is None:
        return {}
    return {"lr": float(said["lr"]), "lr_grid": [float(rate) for rate in said.get("lr_grid") or [said["lr"]]]}
