"""A model by Hugging Face's names to a folder of the original BERT, ready for its code and for TensorFlow."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import ConfigError
from bertworks.files import atomic_write
from bertworks.interop.agreement import contradictions
from bertworks.interop.bundle_writer import write_bundle
from bertworks.interop.google import CONFIG_FILE, VOCABULARY_FILE, pieces_warnings, turned
from bertworks.interop.google_config import GoogleConfig, to_google
from bertworks.interop.names import GLOBAL_STEP, Parameter, parameters
from bertworks.text.vocabulary import write_vocabulary

_STATE_FILE = "checkpoint"


def write_google(
    prefix: str | os.PathLike[str],
    config: Mapping[str, Any],
    tensors: Mapping[str, NDArray[Any]],
    pieces: Sequence[str],
    optimizer: Mapping[str, NDArray[Any]] | None = None,
) -> list[str]:
    """Write a checkpoint with its configuration and vocabulary; returns what the original code will do differently.

    Args:
        prefix: what the checkpoint's files begin with; the other files go beside them.
        config: the content of config.json.
        tensors: the parameters by Hugging Face's names; a name that Google has no place for is an error.
        pieces: the vocabulary.
        optimizer: Adam's state and the step, as `read_google` gives them.
    """
    prefix = Path(prefix)
    google_config, warnings = to_google(dict(config), "config.json")
    step = {name: np.asarray(value, np.int64) for name, value in (optimizer or {}).items() if name == GLOBAL_STEP}
    given = {name: value for name, value in {**tensors, **(optimizer or {})}.items() if name not in step}
    every = _by_name(google_config.num_hidden_layers)
    _check(given, every, google_config, len(pieces))
    write_bundle(prefix, {every[name].google: turned(tensor, every[name]) for name, tensor in given.items()} | step)
    said = {name: value for name, value in google_config if value is not None}
    write_vocabulary(prefix.with_name(VOCABULARY_FILE), pieces)
    _write_text(prefix.with_name(CONFIG_FILE), json.dumps(said, indent=2, sort_keys=True) + "\n")
    quoted = json.dumps(prefix.name, ensure_ascii=False)
    _write_text(
        prefix.with_name(_STATE_FILE), f"model_checkpoint_path: {quoted}\nall_model_checkpoint_paths: {quoted}\n"
    )
    return warnings + pieces_warnings(len(pieces), google_config.vocab_size)


def _by_name(num_layers: int) -> dict[str, Parameter]:
    """Return what Google has a place for, Adam's state too, by Hugging Face's names."""
    table = parameters(num_layers)
    return {parameter.huggingface: parameter for known in table for parameter in (known, *known.slots())}


def _check(
    given: Mapping[str, NDArray[Any]], every: Mapping[str, Parameter], config: GoogleConfig, num_pieces: int
) -> None:
    problems = [f"Google's model has no parameter {name[:80]!r}" for name in given if name not in every]
    shapes = {
        every[name].google: tensor.shape[::-1] if every[name].is_transposed else tensor.shape
        for name, tensor in given.items()
        if name in every
    }
    problems += contradictions(shapes, config)
    if num_pieces > config.vocab_size:
        problems.append(f"the vocabulary has {num_pieces:,} pieces, but vocab_size is {config.vocab_size:,}")
    if problems:
        raise ConfigError("config.json and the tensors do not agree", problems)


def _write_text(path: Path, text: str) -> None:
    with atomic_write(path) as stream:
        stream.write(text)
