"""Folders of ELMo, read and written: a form of our own, for nobody else has one in safetensors.

Weights have the names that they have in `nn/elmo.py`. The word list is beside them (`vocab.txt`, with the rules for
words in `tokenizer_config.json`). How words are spelt is stated in the configuration, and cannot be chosen.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bertworks.config import validate
from bertworks.errors import ConfigError
from bertworks.interop.about import read_about
from bertworks.interop.folder import CONFIG_FILE, ELMO_TYPE, WEIGHTS_FILE, read_json, read_tensors
from bertworks.interop.model_folder import ModelFolder, contradictions, values_for, write_description
from bertworks.interop.weights import read_weights, write_weights
from bertworks.nn.baseline_config import ElmoConfig
from bertworks.nn.elmo import Elmo
from bertworks.text.words import MAX_CHARACTERS, NUM_CHARACTERS

SPELLING = {"characters": "utf-8 bytes", "max_characters": MAX_CHARACTERS, "num_characters": NUM_CHARACTERS}


def read_elmo(folder: Path) -> ModelFolder[Elmo]:
    """Open an ELMo folder, with or without its softmax, after checking config and tensors against each other."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(ElmoConfig, values_for(ElmoConfig, raw), str(where))
    tensors = read_tensors(folder, read_weights)
    with torch.device("meta"):
        net = Elmo(config, softmax=any(name.startswith("softmax.") for name in tensors))
    wanted = net.state_dict()
    if problems := spelling_problems(raw) + contradictions(wanted, tensors):
        raise ConfigError(str(folder), problems)
    net.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return ModelFolder(net, [], read_about(folder), sorted(set(tensors) - set(wanted)))


def spelling_problems(raw: Mapping[str, Any]) -> list[str]:
    """Name what a configuration says of the spelling of words that is not so here."""
    return [
        f"{name}: {str(raw[name])[:40]!r}; words are spelt with {value!r} here"
        for name, value in SPELLING.items()
        if name in raw and raw[name] != value
    ]


def write_elmo(folder: Path, net: Elmo, *, about: Mapping[str, Any] | None = None) -> None:
    """Write config, weights and bertworks.json into a folder that is there."""
    write_weights(folder / WEIGHTS_FILE, net.state_dict())
    write_description(folder, {"model_type": ELMO_TYPE, **SPELLING, **dict(net.config)}, about or {})
