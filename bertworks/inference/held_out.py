"""How well a pre-trained model predicts prepared text, such as the documents that were kept aside.

Pairs and masks are made as in training, the paper's, from a seed of their own: the same for every model. So the figures
of two models can be compared, which those that runs report of themselves cannot where the runs masked differently.
"""

import itertools
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertworks.config import validate
from bertworks.data.loader import Loader, Packed, shape_for
from bertworks.data.settings import DataSettings, Objective
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.inference.model import AnyModel, LanguageModel, Model, load
from bertworks.models.kinds import check_model
from bertworks.nn.attention import can_flash
from bertworks.nn.bert import Bert
from bertworks.nn.device import find_device
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.processes import Progress, silent
from bertworks.train.objectives import OBJECTIVES, to_device
from bertworks.train.pretrain import EVALUATION_SEED

HELD_OUT = "holdout"
_BATCH_TOKENS = 8_192
_MAX_LENGTH = 128
_OBJECTIVES: dict[str, Objective] = {"left_to_right": "ltr", "right_to_left": "rtl"}


class HeldOut(NamedTuple):
    """What a model made of a text.

    Attributes:
        metrics: by kind of prediction (mlm, nsp; lm of a model that reads one way; bilm of ELMo) its accuracy,
            mean loss in nats, and the perplexity, or the share of the larger class of what has two.
        counts: how many tokens there were, and predictions of each kind.
        max_length: of sequences.
    """

    metrics: dict[str, float]
    counts: dict[str, int]
    max_length: int


def measure_text(
    source: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    split: str = HELD_OUT,
    max_length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    dtype: str = "float32",
    progress: Progress = silent,
) -> HeldOut:
    """Measure a pre-trained model on prepared data, every document once.

    Args:
        source: a model folder, a run folder or a name.
        data: a folder that `bertworks prepare` made, with the model's own vocabulary.
        split: `holdout` or `train`.
        max_length: of sequences; 128, or what the model reads, without.
        max_tokens: when to stop; all of it without.
        device: where to compute.
        dtype: in which numbers.
        progress: is told how far it is.
    """
    check_model(source)
    dataset, model = Dataset(Path(data)), load(source, device=device, dtype=dtype)
    objective = _objective_of(model, source)
    _check_fitting(model, source, dataset)
    if isinstance(model.net, Elmo):
        model.net.characters_VK = torch.tensor(dataset.characters(), device=find_device(device))
    max_length = _length_for(model, source, max_length)
    settings = validate(DataSettings, {"objective": objective, "max_length": max_length}, "measuring text")
    shape = shape_for(settings, tokens=max(_BATCH_TOKENS, max_length))
    loader = Loader(dataset, settings, shape, seed=EVALUATION_SEED, split=split)
    place = find_device(device)
    flash = _can_flash(model.net, place)
    most = max_tokens or math.inf
    total = min(most, dataset.manifest[split]["tokens"])  # without [CLS] and [SEP], which only the loader adds
    found, num_tokens, labels = _Sums(), 0, [0.0, 0.0]
    for packed in _once(loader):
        with torch.inference_mode():
            found.add(OBJECTIVES[objective](model.net, to_device(packed, place, max_length, flash=flash)))
        num_tokens += int(packed.cumulative_lengths[len(packed.next_labels)])
        for label in (0, 1):
            labels[label] += float(packed.next_weights[packed.next_labels == label].sum())
        progress("measuring", min(num_tokens, total), total)
        if num_tokens >= most:
            break
    metrics, counts = found.means()
    if "nsp" in counts:
        metrics["nsp_larger_class"] = max(labels) / sum(labels)
    return HeldOut(metrics, {"tokens": num_tokens, **counts}, max_length)


class _Sums:
    """The sums of each kind of prediction over all batches, in float64."""

    def __init__(self) -> None:
        self._sums: dict[str, torch.Tensor] = {}

    def add(self, sums: Mapping[str, Any]) -> None:
        for kind, (loss, correct, total) in sums.items():
            numbers = torch.stack([loss, correct, total]).double().cpu()
            self._sums[kind] = self._sums.get(kind, 0) + numbers

    def means(self) -> tuple[dict[str, float], dict[str, int]]:
        metrics, counts = {}, {}
        for kind, sums in self._sums.items():
            loss, correct, total = sums.tolist()
            counts[kind] = int(total)
            metrics[f"{kind}_accuracy"] = correct / max(total, 1)
            metrics[f"{kind}_loss"] = loss / max(total, 1)
            if kind != "nsp":
                metrics[f"{kind}_perplexity"] = math.exp(min(loss / max(total, 1), 700))
        return metrics, counts


def _once(loader: Loader) -> Iterator[Packed]:
    """Yield the batches of one epoch."""
    for slices, _ in itertools.takewhile(lambda made: made[1].epoch == 0, loader.batches()):
        yield from slices


def _objective_of(model: AnyModel, source: Any) -> Objective:
    """Return what the model was taught; one that has no head for it any more is refused."""
    if isinstance(model.net, Gpt) and isinstance(model, LanguageModel):
        return "ltr"
    if isinstance(model.net, Elmo) and model.net.softmax is not None:
        return "bilm"
    if not isinstance(model, Model) or "mlm" not in model.net.heads:
        raise UserError(f"{source} cannot predict words: it has no head for that; give --task to measure a task")
    one_way = _OBJECTIVES.get(model.net.config.direction)
    return one_way or ("mlm+nsp" if "nsp" in model.net.heads else "mlm")


def _check_fitting(model: Any, source: Any, dataset: Dataset) -> None:
    ours, theirs = model.tokenizer, dataset.tokenizer
    if (ours.kind, ours.pieces, ours.rules) != (theirs.kind, theirs.pieces, theirs.rules):
        what = "other rules for case and accents" if ours.pieces == theirs.pieces else "another vocabulary"
        raise UserError(
            f"{dataset.folder} was prepared with {what} than {source}; prepare the text again with the model's, "
            f"--vocab {source}"
        )


def _length_for(model: Any, source: Any, wanted: int | None) -> int:
    if wanted is not None and wanted > model.max_length:
        raise UserError(f"{source} reads at most {model.max_length} tokens; choose --max-length up to that")
    return wanted or min(_MAX_LENGTH, model.max_length)


def _can_flash(net: Any, device: torch.device) -> bool:
    if isinstance(net, Bert):
        return can_flash(net.config.head_width, net.embeddings.token.weight.dtype, device)
    if isinstance(net, Gpt):
        return can_flash(net.config.n_embd // net.config.n_head, net.token.weight.dtype, device)
    return False
