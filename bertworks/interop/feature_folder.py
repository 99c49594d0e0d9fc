"""Folders of a tagger on frozen layers: a BERT's own files with a reader's tensors beside, in a form of our own.

`config.json` is the encoder's with the reader's few settings, and a `model_type` that nobody else has, so that it is
not taken for a BERT whose tag head is missing. The encoder's tensors keep Hugging Face's names; the reader's are those
of `nn/feature_reader.py` behind `reader.`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.config import validate
from bertworks.errors import ConfigError
from bertworks.interop.about import read_about
from bertworks.interop.divided_weights import Put, put_whole
from bertworks.interop.folder import CONFIG_FILE, FEATURES_TYPE, read_json, read_tensors
from bertworks.interop.huggingface import config_json, read_config, to_ours, to_theirs
from bertworks.interop.model_folder import (
    ModelFolder,
    contradictions,
    labels_of,
    stated_labels,
    values_for,
    write_description,
    wrong_labels,
)
from bertworks.interop.weights import read_weights
from bertworks.nn.bert import Bert
from bertworks.nn.feature_config import FeatureConfig
from bertworks.nn.feature_reader import HEAD, FeatureReader, feature_bert, reader_of

_ENCODER_TYPE = "encoder_type"  # what model_type would be without the reader
_READER, _OUR_READER = "reader.", f"heads.{HEAD}."


def read_features(folder: Path) -> ModelFolder[Bert]:
    """Open a folder; config and tensors are checked against each other before anything is allocated."""
    where = folder / CONFIG_FILE
    raw, about = read_json(where), read_about(folder)
    config = read_config({**raw, "model_type": raw.get(_ENCODER_TYPE, "bert")}, about, where)
    settings = validate(FeatureConfig, values_for(FeatureConfig, raw), str(where))
    tensors, labels = read_tensors(folder, read_weights), labels_of(raw)
    num_outputs = _num_outputs(tensors)
    with torch.device("meta"):
        net = feature_bert(Bert(config, pooler=False), FeatureReader(settings, config, num_outputs))
    wanted = tensors_of(dict(net.named_parameters()))
    unused = sorted(set(tensors) - set(wanted))
    problems = wrong_labels(labels, num_outputs) + contradictions(wanted, tensors)
    problems += [
        f"{name} is there, and {CONFIG_FILE} has features {settings.features}, which do without"
        for name in unused
        if name.startswith(_READER)
    ]
    if problems:
        raise ConfigError(str(folder), problems)
    encoder = to_ours([name for name in net.state_dict() if not name.startswith(_OUR_READER)], tensors)
    reader = {f"{_OUR_READER}{name}": tensor for name, tensor in reader_weights(tensors).items()}
    net.load_state_dict(encoder | reader, assign=True)
    return ModelFolder(net, labels, about, unused)


def _num_outputs(tensors: Mapping[str, Tensor]) -> int:
    weight = tensors.get(f"{_READER}out.weight")
    return weight.shape[0] if weight is not None and weight.ndim and weight.numel() else 1


def reader_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of the reader alone, by the names that it has for them."""
    return {name.removeprefix(_READER): tensor for name, tensor in tensors.items() if name.startswith(_READER)}


def tensors_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's tensors as they are called in a folder, with a reader or without."""
    encoder = {name: tensor for name, tensor in parameters.items() if not name.startswith(_OUR_READER)}
    reader = {name: tensor for name, tensor in parameters.items() if name.startswith(_OUR_READER)}
    return to_theirs(encoder) | {_READER + name.removeprefix(_OUR_READER): reader[name] for name in reader}


def is_encoders(name: str) -> bool:
    """Tell whether a tensor of a folder is the frozen encoder's."""
    return not name.startswith(_READER)


def write_features(
    folder: Path, net: Bert, *, labels: list[str], about: Mapping[str, Any], put: Put = put_whole
) -> None:
    """Write config, weights and bertworks.json into a folder that is there; `put` writes the weights."""
    reader = reader_of(net)
    assert reader is not None, "without a reader it is a plain BERT"
    put(folder, tensors_of({name: tensor.detach() for name, tensor in net.named_parameters()}))
    config = config_json(net.config, "FeatureTagger")
    config |= {_ENCODER_TYPE: config["model_type"], "model_type": FEATURES_TYPE, **dict(reader.config)}
    config |= stated_labels(labels, len(reader.out.weight))
    own = dict(about)
    if net.config.positions != "learned":
        own["positions"] = net.config.positions
    write_description(folder, config, own)
