"""Folders of BERTs side by side or under a BiLSTM, read and written: a form of our own, for nobody else has one.

Weights have the names that they have in `nn/compound.py`; the encoders' sizes are in config.json, one object each.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bertworks.config import validate
from bertworks.errors import ConfigError
from bertworks.interop.about import read_about
from bertworks.interop.folder import COMPOUND_TYPE, CONFIG_FILE, WEIGHTS_FILE, read_json, read_tensors
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
from bertworks.nn.baseline_config import CompoundConfig
from bertworks.nn.compound import Compound
from bertworks.nn.heads import OutputHead

_HEADS = ("classify", "choose", "tag", "span")


def read_compound(folder: Path) -> ModelFolder[Compound]:
    """Open a folder: build what config and tensors say, after checking them against each other."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(CompoundConfig, values_for(CompoundConfig, raw), str(where))
    tensors, labels = read_tensors(folder, read_weights), labels_of(raw)
    with torch.device("meta"):
        net = Compound(config, _heads(tensors))
    wanted = net.state_dict()
    if problems := wrong_labels(labels, _num_labels(net)) + contradictions(wanted, tensors):
        raise ConfigError(str(folder), problems)
    net.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return ModelFolder(net, labels, read_about(folder), sorted(set(tensors) - set(wanted)))


def _heads(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    found = {head: tensors.get(f"heads.{head}.out.weight") for head in _HEADS}
    return {head: tensor.shape[0] if tensor.ndim else 1 for head, tensor in found.items() if tensor is not None}


def _num_labels(net: Compound) -> int | None:
    heads = [cast(OutputHead, net.heads[name]) for name in ("classify", "tag") if name in net.heads]
    return heads[0].num_outputs if heads else None


def write_compound(
    folder: Path, net: Compound, *, labels: list[str] | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write config, weights and bertworks.json into a folder that is there."""
    write_weights(folder / WEIGHTS_FILE, net.state_dict())
    config = {"model_type": COMPOUND_TYPE, **net.config.model_dump(mode="json")}
    write_description(folder, config | stated_labels(labels or [], _num_labels(net)), about or {})
