"""Inspection of prepared data: counts, lengths, and instances as text (the original script logs its first ones)."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from bertworks.config import OBJECTIVES, DataSettings
from bertworks.data.loader import Loader, shape_for
from bertworks.data.shards import SPLITS, Dataset

_BAR_WIDTH = 40
_LEFT_OUT = ("duplicates", "too_short", "empty")


def summary(dataset: Dataset) -> dict[str, Any]:
    """Return counts, settings, and how many sentences and documents have up to 1, 2, 4 ... tokens."""
    manifest = dataset.manifest
    names = ("kind", "vocab_size", "tokenizer", "options", *SPLITS, *_LEFT_OUT, "replaced_lines")
    return {name: manifest.get(name, 0) for name in names} | {
        "shards": len(dataset.shards("train")),
        "skipped": dataset.skipped,
        "sentence_lengths": _histogram(dataset, of_documents=False),
        "document_lengths": _histogram(dataset, of_documents=True),
    }


def _histogram(dataset: Dataset, *, of_documents: bool) -> dict[str, int]:
    counts = np.zeros(64, np.int64)
    for shard in dataset.shards("train"):
        ends = shard.sentences[shard.documents] if of_documents else shard.sentences
        lengths = np.maximum(np.diff(ends.astype(np.int64)), 1)
        counts += np.bincount(np.ceil(np.log2(lengths)).astype(np.int64), minlength=64)
    found = np.flatnonzero(counts)
    return {str(1 << power): int(counts[power]) for power in range(found[0], found[-1] + 1)}


def instances(dataset: Dataset, settings: DataSettings, *, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield instances in the order of training, epoch after epoch, with their tokens as text.

    If no objective is set, the default objective of the data's kind of tokens is used.
    """
    if "objective" not in settings.model_fields_set:
        settings = settings.model_copy(update={"objective": next(iter(OBJECTIVES[dataset.tokenizer.kind]))})
    pieces = dataset.tokenizer.pieces
    shape = shape_for(settings, sequences=1)
    for (packed,), _ in Loader(dataset, settings, shape, seed=seed).batches():
        length = int(packed.cumulative_lengths[1])
        masked = packed.masked_weights > 0
        instance = {
            "tokens": [pieces[id] for id in packed.token_ids[:length]],
            "segment_ids": packed.segment_ids[:length].tolist(),
            "masked_positions": packed.masked_positions[masked].tolist(),
            "masked_tokens": [pieces[id] for id in packed.masked_ids[masked]],
        }
        if settings.objective == "mlm+nsp":
            instance["is_random_next"] = bool(packed.next_labels[0])
        yield instance


def summary_text(found: dict[str, Any]) -> str:
    """Write a summary for a terminal."""
    shards = f"{found['shards']:,} shard{'s' if found['shards'] > 1 else ''}"
    lines = [f"{found['kind']}, vocabulary of {found['vocab_size']:,} pieces, {shards}"]
    for split in SPLITS:
        counts = "".join(f" {found[split][kind]:>14,} {kind}" for kind in ("documents", "sentences", "tokens"))
        lines.append(f"{split:<8}{counts}")
    for name in _LEFT_OUT:
        if found[name]:
            lines.append(f"left out {found[name]:>14,} documents: {name.replace('_', ' ')}")
    if found["skipped"]:
        lines.append(f"left out {len(found['skipped']):>14,} bad shards; the counts above still have them")
    for name, title in (("sentence_lengths", "Sentences"), ("document_lengths", "Documents")):
        most = max(found[name].values())
        lines += ["", f"{title} by length in tokens"]
        for limit, count in found[name].items():
            lines.append(f"  up to {limit:>9} {count:>12,} {'█' * round(_BAR_WIDTH * count / most)}")
    return "\n".join(lines)


def instance_text(instance: dict[str, Any]) -> str:
    """Write an instance for a terminal: the tokens as the model sees them, and what was masked."""
    lines = [" ".join(instance["tokens"])]
    if instance["masked_positions"]:
        masked = zip(instance["masked_positions"], instance["masked_tokens"], strict=True)
        lines.append("masked: " + " ".join(f"{position}:{token}" for position, token in masked))
    if "is_random_next" in instance:
        lines.append(f"next sentence: {'random' if instance['is_random_next'] else 'follows'}")
    return "\n".join(lines)
