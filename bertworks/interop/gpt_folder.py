"""Folders of GPT-1 (`openai-gpt`) in Hugging Face's form, read and written, with the heads of fine-tuning.

Which heads a folder has is seen by its tensors; the language model is always there, its matrix being the embedding.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bertworks.config import validate
from bertworks.errors import ConfigError
from bertworks.interop.about import read_about
from bertworks.interop.folder import CONFIG_FILE, GPT_TYPE, WEIGHTS_FILE, read_json, read_tensors
from bertworks.interop.gpt_names import EMBEDDING, HEADS, OUTPUT, by_published_names, from_openai, is_weight, to_openai
from bertworks.interop.model_folder import (
    ModelFolder,
    contradictions,
    labels_of,
    stated_labels,
    values_for,
    write_description,
    wrong_labels,
)
from bertworks.interop.weights import read_weights, write_weights
from bertworks.nn.baseline_config import GptConfig
from bertworks.nn.gpt import Gpt, GptHead

_BOTH_ORDERS = "both_orders"  # our own word in config.json: pairs are read in both
_ARCHITECTURES = {
    (): "OpenAIGPTLMHeadModel",
    ("classify",): "OpenAIGPTForSequenceClassification",
    ("choose",): "OpenAIGPTDoubleHeadsModel",
}


def read_gpt(folder: Path) -> ModelFolder[Gpt]:
    """Open a GPT-1 folder: build what its tensors say; config and tensors are checked before anything is allocated."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(GptConfig, values_for(GptConfig, raw), str(where))
    tensors = by_published_names(read_tensors(folder, read_weights), folder)
    labels = labels_of(raw) if {HEADS["classify"], HEADS["tag"]} & tensors.keys() else []
    with torch.device("meta"):
        net = Gpt(config, _heads(tensors), both_orders=raw.get(_BOTH_ORDERS) is True)
    wanted = {name: tensor for name, tensor in to_openai(net.state_dict()).items() if is_weight(name)}
    unused = sorted(name for name in tensors if name not in wanted and is_weight(name))
    problems = _untied(tensors) + wrong_labels(labels, _num_labels(net)) + contradictions(wanted, tensors)
    problems += [
        f"{name} is there, and {CONFIG_FILE} has {config.n_layer} layers"
        for name in unused
        if name.startswith("transformer.h.")
    ]
    if problems:
        raise ConfigError(str(folder), problems)
    net.load_state_dict(from_openai({name: tensors[name] for name in wanted}), assign=True)
    return ModelFolder(net, labels, read_about(folder), unused)


def _heads(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    found = {head: tensors[name] for head, name in HEADS.items() if name in tensors}
    return {head: tensor.shape[0] if tensor.ndim and tensor.numel() else 1 for head, tensor in found.items()}


def _num_labels(net: Gpt) -> int | None:
    heads = [cast(GptHead, net.heads[name]) for name in ("classify", "tag") if name in net.heads]
    return heads[0].num_outputs if heads else None


def _untied(tensors: Mapping[str, Tensor]) -> list[str]:
    if OUTPUT not in tensors or torch.equal(tensors[OUTPUT], tensors[EMBEDDING]):
        return []
    return [f"{OUTPUT} differs from {EMBEDDING}, to which it is tied in GPT-1"]


def write_gpt(
    folder: Path, net: Gpt, *, labels: list[str] | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write config, weights and bertworks.json into a folder that is there; transformers opens it."""
    write_weights(folder / WEIGHTS_FILE, to_openai(net.state_dict()))
    architecture = _ARCHITECTURES.get(tuple(sorted(net.heads)), _ARCHITECTURES[()])
    config: dict[str, Any] = {"architectures": [architecture], "model_type": GPT_TYPE, **dict(net.config)}
    config |= {"tie_word_embeddings": True, **stated_labels(labels or [], _num_labels(net))}
    if net.both_orders:
        config[_BOTH_ORDERS] = True
    if "choose" in net.heads:
        config |= {"num_labels": 1, "summary_first_dropout": net.config.resid_pdrop}
    write_description(folder, config, about or {})
