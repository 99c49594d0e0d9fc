"""How well a pre-trained model predicts prepared text, such as held-out documents.

Pairs and masks are made as in training, the paper's, from a seed of their own: the same for every model. So the figures
of two models can be compared, which those that runs report of themselves cannot where the runs masked differently.
"""

import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path

import torch

from bertworks.config import DataSettings, Objective, validate
from bertworks.data.loader import Loader, shape_for
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.inference.model import Model, load
from bertworks.models.kinds import check_model
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.processes import ProgressCallback, silent
from bertworks.train.objectives import OBJECTIVES, to_device
from bertworks.train.pretrain import EVALUATION_SEED

HELD_OUT = "holdout"
_BATCH_TOKENS = 8_192
_MAX_LENGTH = 128


def measure_text(
    source: str | os.PathLike[str],
    data: str | os.PathLike[str],
    *,
    split: str = HELD_OUT,
    max_length: int | None = None,
    max_tokens: int | None = None,
    device: str = "auto",
    dtype: str | None = None,
    progress: ProgressCallback = silent,
    each: Callable[[dict[str, torch.Tensor]], None] = lambda _: None,
) -> tuple[dict[str, float], dict[str, int], int]:
    """Measure a pre-trained model on prepared data, every document once.

    Args:
        source: a model folder, a run folder or a name.
        data: a folder that `bertworks prepare` made, with the model's own vocabulary.
        split: `holdout` or `train`.
        max_length: of sequences; 128, or what the model reads, without.
        max_tokens: when to stop; all of it without.
        device: where to compute.
        dtype: in which numbers.
        progress: is called with how far it is.
        each: is called with the sums of each batch by kind of prediction: loss, right ones, all. Batches hold the same
            text for all models of a vocabulary.

    Returns:
        metrics: by kind of prediction (mlm, nsp; lm of a model that reads one way; bilm of ELMo) its accuracy, mean
            loss in nats, and the perplexity, or the share of the larger class of what has two.
        counts: how many tokens there were, and predictions of each kind.
        max_length: of sequences.
    """
    check_model(source)
    dataset, model = Dataset(Path(data)), load(source, device=device, dtype=dtype)
    objective = _objective_of(model, source)
    _check_tokenizer(model, source, dataset)
    if isinstance(model.net, Elmo):
        model.net.characters_VK = torch.tensor(dataset.characters(), device=model.device)
    if max_length is not None and max_length > model.max_length:
        raise UserError(f"{source} reads at most {model.max_length} tokens; choose --max-length up to that")
    max_length = max_length or min(_MAX_LENGTH, model.max_length)
    settings = validate(DataSettings, {"objective": objective, "max_length": max_length}, "measuring text")
    shape = shape_for(settings, tokens=max(_BATCH_TOKENS, max_length))
    loader = Loader(dataset, settings, shape, seed=EVALUATION_SEED, split=split)
    most = max_tokens or math.inf
    total = min(most, dataset.manifest[split]["tokens"])  # without [CLS] and [SEP], which only the loader adds
    all_sums, num_tokens, labels = dict[str, torch.Tensor](), 0, [0.0, 0.0]
    epoch = itertools.takewhile(lambda made: made[1].epoch == 0, loader.batches())
    for packed in itertools.chain.from_iterable(micro_batches for micro_batches, _ in epoch):
        with torch.inference_mode():
            tensors = to_device(packed, model.device, max_length, flash=model.flash)
            found = OBJECTIVES[objective](model.net, tensors)
        by_kind = {kind: torch.stack(list(sums)).double().cpu() for kind, sums in found.items()}
        each(by_kind)
        for kind, sums in by_kind.items():
            all_sums[kind] = all_sums.get(kind, 0) + sums
        num_tokens += int(packed.cumulative_lengths[len(packed.next_labels)])
        for label in (0, 1):
            labels[label] += float(packed.next_weights[packed.next_labels == label].sum())
        progress("measuring", min(num_tokens, total), total)
        if num_tokens >= most:
            break
    metrics, counts = dict[str, float](), {"tokens": num_tokens}
    for kind, (loss, correct, weight) in ((kind, sums.tolist()) for kind, sums in all_sums.items()):
        counts[kind] = int(weight)
        metrics[f"{kind}_accuracy"] = correct / max(weight, 1)
        metrics[f"{kind}_loss"] = loss / max(weight, 1)
        if kind != "nsp":
            metrics[f"{kind}_perplexity"] = math.exp(min(loss / max(weight, 1), 700))
    if "nsp" in counts:
        metrics["nsp_larger_class"] = max(labels) / sum(labels)
    return metrics, counts, max_length


def _objective_of(model: Model, source: str | os.PathLike[str]) -> Objective:
    """Return the objective of a model; one that has no head for it any more is refused."""
    if isinstance(model.net, Gpt) and not model.is_task_only:
        return "ltr"
    if isinstance(model.net, Elmo) and model.net.softmax is not None:
        return "bilm"
    if "mlm" not in model.heads:
        raise UserError(f"{source} cannot predict words: it has no head for that; give --task to measure a task")
    one_way: dict[str, Objective] = {"left_to_right": "ltr", "right_to_left": "rtl"}
    return one_way.get(model.net.config.direction) or ("mlm+nsp" if "nsp" in model.heads else "mlm")


def _check_tokenizer(model: Model, source: str | os.PathLike[str], dataset: Dataset) -> None:
    """Refuse text that was prepared with another vocabulary or other rules."""
    ours, theirs = model.tokenizer, dataset.tokenizer
    if (ours.kind, ours.pieces, ours.rules) != (theirs.kind, theirs.pieces, theirs.rules):
        what = "other rules for case and accents" if ours.pieces == theirs.pieces else "another vocabulary"
        raise UserError(
            f"{dataset.folder} was prepared with {what} than {source}; prepare the text again with the model's, "
            f"--vocab {source}"
        )
