"""Where a model lies: a folder, a run folder, a shipped model, or a name in the local Hugging Face cache.

- Looked for in this order, so that a folder of one's own is never hidden by a name. Nothing is ever fetched.
- The models that come with the package are folders in `bertworks/shipped`, each with a card. A model is shipped by its
  folder being there; there is no list to keep. What is reported of one is read from its files, and without torch: sizes
  from config.json, parameters from the header of the weights, and from bertworks.json what no other file knows, under
  `shipped`: its `language`, what it was `trained_on` and its held-out `mlm_accuracy`.
"""

import math
import os
import re
from pathlib import Path
from typing import NamedTuple

from bertworks.errors import UserError, did_you_mean, nearest_name
from bertworks.files import safe_join
from bertworks.models.folder import CARD_FILE, CONFIG_FILE, WEIGHTS_FILE, check_files, read_about, read_json
from bertworks.models.weights import read_header

SHIPPED_FOLDER = Path(__file__).parents[1] / "shipped"
_CACHE_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_MAX_REVISION_BYTES = 64
_FILES = "config.json model.safetensors vocab.txt tokenizer_config.json"
_ZIPS = {  # as the original's README names them
    "bert-base-uncased": "uncased_L-12_H-768_A-12",
    "bert-large-uncased": "uncased_L-24_H-1024_A-16",
    "bert-base-cased": "cased_L-12_H-768_A-12",
    "bert-large-cased": "cased_L-24_H-1024_A-16",
    "bert-base-multilingual-cased": "multi_cased_L-12_H-768_A-12",
    "bert-base-multilingual-uncased": "multilingual_L-12_H-768_A-12",
    "bert-base-chinese": "chinese_L-12_H-768_A-12",
}
_BERT_OWNER = "google-bert"  # where the names without an owner have moved to


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
    folder = _folder_of(name)
    config, about = read_json(folder / CONFIG_FILE), read_about(folder).get("shipped") or {}
    return ShippedModel(
        name=name,
        layers=config["num_hidden_layers"],
        width=config["hidden_size"],
        parameters=sum(math.prod(tensor.shape) for tensor in read_header(folder / WEIGHTS_FILE).values()),
        megabytes=sum(path.stat().st_size for path in folder.iterdir()) / 1e6,
        language=about.get("language"),
        trained_on=about.get("trained_on"),
        mlm_accuracy=about.get("mlm_accuracy"),
    )


def read_card(name: str) -> str:
    """Return the card of a shipped model: data, recipe, scores, licence, limits."""
    return (_folder_of(name) / CARD_FILE).read_text(encoding="utf-8")


def _folder_of(name: str) -> Path:
    folder = find_shipped(name)
    if folder is None:
        names = shipped_names()
        hint = did_you_mean(name, names) if names else "; none does in this version"
        raise UserError(f"no model {name[:80]!r} comes with the package{hint}")
    return folder


def find_model(source: str | os.PathLike[str]) -> Path:
    """Return the model folder that is meant, or say where it was looked for."""
    folder = _located(source)
    # An installer may have made the package out of links.
    return folder if folder.parent == SHIPPED_FOLDER else check_files(folder)


def _located(source: str | os.PathLike[str]) -> Path:
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"a model is named by a text or a path, not by {source!r:.40}")
    if not os.fspath(source):
        raise UserError("no model is named by an empty text; give a model or run folder, or a shipped model's name")
    try:
        folder = Path(source)
        if folder.is_dir():
            is_run = not (folder / "config.json").exists() and (folder / "model" / "config.json").exists()
            return folder / "model" if is_run else folder
        if folder.exists():
            raise UserError(f"{source} is a file; give the folder with its config.json")
        found = find_shipped(os.fspath(source)) or _find_cached(os.fspath(source))
    except OSError as error:
        raise UserError(f"no model {str(source)[:80]!r}: {error.strerror}") from error
    if found is None:
        raise UserError(_not_found(os.fspath(source)))
    return found


def _not_found(name: str) -> str:
    names = shipped_names()
    message = (
        f"no model {name[:80]!r}{nearest_name(name[:80], names)}: neither a folder, nor shipped with the package "
        f"({', '.join(names) or 'none is'}), nor a name in {_cache_folder()}"
    )
    if not _CACHE_NAME.fullmatch(name) or not ("/" in name or name.startswith("bert-")):
        return message
    full_name = name if "/" in name else f"{_BERT_OWNER}/{name}"
    files = f" {_FILES}" if full_name.startswith(f"{_BERT_OWNER}/") else ""  # elsewhere a model may need others
    zipped = _ZIPS.get(full_name.partition("/")[2])
    return f"{message}\n  With a network: `hf download {full_name}{files}` (pip install huggingface_hub)" + (
        f"; or Google's {zipped}.zip, unpacked: `bertworks convert {zipped} {name}`" if zipped else ""
    )


def is_model(source: str | os.PathLike[str]) -> bool:
    """Tell whether a name leads to a model folder, by the files that only such a folder has."""
    try:
        folder = _located(source)
    except UserError:
        return False
    return any((folder / name).exists() for name in ("config.json", "modules.json"))


def _cache_folder() -> Path:
    if cache := os.environ.get("HF_HUB_CACHE"):
        return Path(cache)
    return Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface") / "hub"


def _find_cached(name: str) -> Path | None:
    if not _CACHE_NAME.fullmatch(name):
        return None
    for full_name in (name, f"{_BERT_OWNER}/{name}"):
        folder = _cache_folder() / f"models--{full_name.replace('/', '--')}"
        reference = folder / "refs" / "main"
        if reference.is_file():
            with open(reference, "rb") as stream:
                revision = stream.read(_MAX_REVISION_BYTES).strip().decode(errors="replace")
            snapshot = safe_join(folder / "snapshots", revision)
            if snapshot.is_dir():
                return snapshot
    return None
