"""A checksum of everything that decides what a run computes, by which a run that goes on knows its own settings."""

import hashlib
import json
import tomllib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

from bertworks.config import Settings, read_toml
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.recipe import Recipe

# Settings that may differ when a run goes on: how long it runs and what it tells, not what it computes; and how memory
# is saved, which gives the same numbers up to rounding, as another number of ranks does.
_LIMITS = {"max_steps", "epochs", "max_tokens", "max_minutes"}
_IDLE = {
    "save_minutes", "keep", "loader_workers", "on_nonfinite", "max_skips", "on_save_error", "rank_timeout", "recompute",
    "check_memory",
}  # fmt: skip
_SPREAD = {"shard"}  # in fine-tuning only the rows in use of a token table that is not spread are trained as such
_TRAIN, _TASK = "train", "task"


def digest_of(recipe: Recipe, dataset: Dataset) -> str:
    """Return the checksum of a recipe's settings and of the data's vocabulary and files."""
    files = {name: entry["sha256"] for name, entry in dataset.manifest["files"].items()}
    return digest_with(recipe, {"vocabulary": {"sha256": dataset.manifest["vocab_sha256"]}, "files": files})


def digest_with(recipe: Settings, more: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the checksum of all settings that decide what is computed, and of sections more."""
    # What is as usual is left out: a run may go on in a later version, which has settings that this one has not.
    sections = _without(_free(type(recipe).model_fields), recipe.model_dump(exclude_defaults=True))
    return hashlib.sha256(json.dumps({**sections, **more}, sort_keys=True).encode()).hexdigest()


def outcome_of(settings: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the settings, by sections, without those that change nothing in how a run ends."""
    return _without(_IDLE, settings)


def _free(sections: Container[str]) -> set[str]:
    """Return which settings of `[train]` may differ: of fine-tuning, which has a section for its task, or not."""
    return _LIMITS | _IDLE if _TASK in sections else _LIMITS | _IDLE | _SPREAD


def _without(free: set[str], sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return all sections, `[train]` among them also where it says nothing, without what is free in it."""
    return {**sections, _TRAIN: {key: value for key, value in sections.get(_TRAIN, {}).items() if key not in free}}


def other_settings(recipe: Path, now: str) -> list[str] | None:
    """Name the settings by which a recipe in TOML differs from a file's, but for those that may; None if unreadable."""
    try:
        there, here = _decisive(read_toml(recipe)), _decisive(tomllib.loads(now))
    except (UserError, AttributeError):  # the latter for a value where a section is expected
        return None
    return [
        f"{key} was {there.get(key)}, not {here.get(key)}"
        for key in sorted(there.keys() | here.keys())
        if there.get(key) != here.get(key)
    ]


def _decisive(recipe: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    return {
        f"{section}.{key}": value
        for section, settings in _without(_free(recipe), recipe).items()
        for key, value in settings.items()
    }
