"""A checksum of everything that decides what a run computes, by which a run that goes on knows its own settings."""

import hashlib
import json

from bertworks.data.shards import Dataset
from bertworks.recipe import Recipe

# Settings that may differ when a run goes on: how long it runs and what it tells, not what it computes; and how memory
# is saved, which gives the same numbers up to rounding, as another number of ranks does.
_FREE = {
    "train": {
        "max_steps",
        "max_tokens",
        "max_minutes",
        "keep",
        "loader_workers",
        "on_nonfinite",
        "max_skips",
        "on_save_error",
        "rank_timeout",
        "recompute",
        "shard",
    }
}


def digest_of(recipe: Recipe, dataset: Dataset) -> str:
    """Return the checksum of a recipe's settings and of the data's vocabulary and files."""
    # What is as usual is left out: a run may go on in a later version, which has settings that this one has not.
    sections = {
        name: {key: value for key, value in changed.items() if key not in _FREE.get(name, ())}
        for name, changed in recipe.model_dump(exclude_defaults=True).items()
    }
    sections["vocabulary"] = {"sha256": dataset.manifest["vocab_sha256"]}
    sections["files"] = {name: entry["sha256"] for name, entry in dataset.manifest["files"].items()}
    return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()
