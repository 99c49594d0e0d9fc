"""A folder of the original BERT (bert_config.json, vocab.txt, bert_model.ckpt.*), read as Hugging Face would have it.

The configuration, the vocabulary and every tensor's shape must agree before a tensor is read; what contradicts is told
together.
"""

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import ConfigError, UserError
from bertworks.interop.agreement import architecture, contradictions
from bertworks.interop.bundle import Bundle
from bertworks.interop.google_config import GoogleConfig, read_google_config, to_huggingface
from bertworks.interop.names import GLOBAL_STEP, Parameter, parameters
from bertworks.text.vocabulary import PAD, read_vocabulary

CONFIG_FILE, VOCABULARY_FILE = "bert_config.json", "vocab.txt"
_ENDING = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
Tensors = dict[str, NDArray[Any]]


class GoogleModel(NamedTuple):
    """What a folder of the original holds, by Hugging Face's names."""

    config: dict[str, Any]  # the content of config.json
    tensors: Tensors
    optimizer: Tensors  # "<name>.adam_m", "<name>.adam_v" and "global_step", where asked for and present
    pieces: list[str]
    left_out: list[str]  # Google's names of tensors that are no part of BERT or were not asked for
    files: list[Path]
    warnings: list[str]


def find_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the prefix that is meant by a prefix, by one of its files or by a folder with one checkpoint in it."""
    path = Path(path)
    if path.is_dir():
        prefixes = sorted(index.with_suffix("") for index in path.glob("*.index"))
        if len(prefixes) != 1:
            names = ", ".join(prefix.name for prefix in prefixes[:10])
            raise UserError(
                f"{path} holds {len(prefixes)} checkpoints ({names}); give one of them, such as {prefixes[-1]}"
                if prefixes
                else f"{path} holds no checkpoint: no file that ends in .index"
            )
        return prefixes[0]
    prefix = path.with_name(_ENDING.sub("", path.name)) if path.name else path
    if not prefix.with_name(prefix.name + ".index").is_file():
        raise UserError(f"there is no checkpoint {prefix}: neither such a folder nor {prefix.name}.index is there")
    return prefix


def read_google(path: str | os.PathLike[str], *, with_optimizer: bool = False) -> GoogleModel:
    """Read a checkpoint of the original code with its configuration and vocabulary.

    Args:
        path: a checkpoint's prefix (".../bert_model.ckpt"), one of its files, or a folder with one checkpoint.
        with_optimizer: read Adam's state and the step too.
    """
    prefix = find_checkpoint(path)
    bundle = Bundle(prefix)
    config_path, vocabulary_path = prefix.with_name(CONFIG_FILE), prefix.with_name(VOCABULARY_FILE)
    config, pieces = read_google_config(config_path), read_vocabulary(vocabulary_path)
    names = bundle.names()
    present = _check(bundle, config, len(pieces))
    slots = [slot for parameter in present for slot in parameter.slots() if slot.google in names and with_optimizer]
    step = [GLOBAL_STEP] if with_optimizer and GLOBAL_STEP in names else []
    used = {parameter.google for parameter in [*present, *slots]} | {*step}
    return GoogleModel(
        config=to_huggingface(config, architecture(names), pieces.index(PAD) if PAD in pieces else 0),
        tensors=_read(bundle, present),
        optimizer=_read(bundle, slots) | {name: bundle.read(name).astype(np.int64) for name in step},
        pieces=pieces,
        left_out=[name for name in names if name not in used],
        files=[*bundle.files(), config_path, vocabulary_path],
        warnings=pieces_warnings(len(pieces), config.vocab_size),
    )


def _check(bundle: Bundle, config: GoogleConfig, num_pieces: int) -> list[Parameter]:
    """Return the parameters that a checkpoint has, or raise with all contradictions to its configuration."""
    shapes = {name: bundle.shape(name) for name in bundle.names()}
    present = [parameter for parameter in parameters(config.num_hidden_layers) if parameter.google in shapes]
    if not present:
        some = ", ".join([*shapes][:3]) or "nothing"
        raise UserError(f"{bundle.prefix} has no variable of BERT by the original's names; it has {some:.200}")
    problems = contradictions(shapes, config)
    for parameter in present:
        dtype = bundle.dtype(parameter.google)
        if dtype not in (np.float32, np.float16):
            problems.append(f"{parameter.google} is {dtype}, not float32 (float16 and bfloat16 will do)")
    if num_pieces > config.vocab_size:
        problems.append(f"{VOCABULARY_FILE} has {num_pieces:,} pieces, but vocab_size is {config.vocab_size:,}")
    if problems:
        raise ConfigError(f"{bundle.prefix} and {CONFIG_FILE} beside it do not agree", problems)
    return present


def _read(bundle: Bundle, wanted: Iterable[Parameter]) -> Tensors:
    return {parameter.huggingface: turned(bundle.read(parameter.google), parameter) for parameter in wanted}


def turned(tensor: NDArray[Any], parameter: Parameter) -> NDArray[np.float32]:
    """Return a tensor of either side as the other side has it, in float32."""
    return np.ascontiguousarray(tensor.T if parameter.is_transposed else tensor, dtype=np.float32)


def pieces_warnings(num_pieces: int, vocab_size: int) -> list[str]:
    """Say where a vocabulary is shorter than the table of embeddings, as it is in models padded for speed."""
    if num_pieces == vocab_size:
        return []
    return [f"{VOCABULARY_FILE} has {num_pieces:,} pieces for a vocab_size of {vocab_size:,}: the last ids have none"]
