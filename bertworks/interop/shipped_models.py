"""The models that come with the package: folders in `bertworks/shipped`, found by their names, each with a card.

A model is shipped by its folder being there; there is no list to keep. What is told of one is read from its files, and
without torch: sizes from config.json, parameters from the header of the weights. What no other file knows is in
bertworks.json under `shipped`: its `language`, what it was `trained_on` and its held-out `mlm_accuracy`.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

from bertworks.errors import UserError, did_you_mean
from bertworks.interop.folder import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, read_json

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"


class ShippedModel(NamedTuple):
    """What is told of a model before it is opened; None: its files do not say."""

    name: str
    layers: int
    width: int
    parameters: int
    megabytes: float  # of 1,000,000 bytes, all files together
    language: str | None
    trained_on: str | None
    mlm_accuracy: float | None


def shipped_names() -> list[str]:
    """Return the names of the models that come with the package, in alphabetical order."""
    return sorted(config.parent.name for config in SHIPPED_FOLDER.glob(f"*/{CONFIG_FILE}"))


def find_shipped(name: str) -> Path | None:
    """Return the folder of the shipped model of that name, if there is one."""
    return SHIPPED_FOLDER / name if name in shipped_names() else None


def describe_shipped(name: str) -> ShippedModel:
    """Return what the files of a shipped model say of it."""
    from bertworks.interop.safetensors_format import map_file

    folder = _folder_of(name)
    config, told = read_json(folder / CONFIG_FILE), _told(folder)
    _, tensors = map_file(folder / WEIGHTS_FILE)
    return ShippedModel(
        name=name,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        parameters=sum(math.prod(tensor.shape) for tensor in tensors.values()),
        megabytes=sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
        language=told.get("language"),
        trained_on=told.get("trained_on"),
        mlm_accuracy=told.get("mlm_accuracy"),
    )


def read_card(name: str) -> str:
    """Return the card of a shipped model: data, recipe, scores, licence, limits."""
    return (_folder_of(name) / CARD_FILE).read_text(encoding="utf-8")


def _told(folder: Path) -> dict[str, Any]:
    from bertworks.interop.about import read_about  # with pydantic, which finding a model by its name can do without

    return read_about(folder).get("shipped") or {}


def _folder_of(name: str) -> Path:
    folder = find_shipped(name)
    if folder is None:
        names = shipped_names()
        hint = did_you_mean(name, names) if names else "; none does in this version"
        raise UserError(f"no model {name[:80]!r} comes with the package{hint}")
    return folder
