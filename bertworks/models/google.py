"""A folder of the original BERT (bert_config.json, vocab.txt, bert_model.ckpt.*), by Hugging Face's names.

- The configuration, the vocabulary and every tensor's shape must agree before a tensor is read or written; everything
  that does not is reported together.
- The original says "gelu" and computes the tanh form of it, which Hugging Face calls "gelu_new"; its LayerNorm epsilon
  of 1e-12 is in its code alone. What a file does not say has the value that the original's code has for it.
- Differences between the written model and what the original code computes with it are returned as warnings.
"""

import json
import os
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings, validate
from bertworks.errors import ConfigError, UserError
from bertworks.files import atomic_write, read_object
from bertworks.models.names import (
    GLOBAL_STEP,
    MASKED_WORD_HEAD,
    NEXT_SENTENCE_HEAD,
    OPTIONAL,
    POOLER,
    Parameter,
    parameters,
)
from bertworks.models.tf_bundle import Bundle, write_bundle
from bertworks.text.vocabulary import PAD, read_vocabulary, write_vocabulary

CONFIG_FILE, VOCABULARY_FILE, _STATE_FILE = "bert_config.json", "vocab.txt", "checkpoint"
LAYER_NORM_EPS = 1e-12
_MAX_SIZE = 10_000_000
_ENDING = re.compile(r"\.(index|data-\d{5}-of-\d{5})$")
Tensors = dict[str, NDArray[Any]]
Shape = tuple[int, ...]
_TO_HUGGINGFACE = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh", "linear": "linear"}
# The tanh form has three names there; the other two of them compute it in other ways.
_TO_GOOGLE = {"gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu": "gelu"} | {
    theirs: ours for ours, theirs in _TO_HUGGINGFACE.items()
}


class GoogleConfig(Settings):
    """A bert_config.json."""

    vocab_size: int = Field(ge=1, le=_MAX_SIZE)
    hidden_size: int = Field(default=768, ge=1, le=_MAX_SIZE)
    num_hidden_layers: int = Field(default=12, ge=1, le=1_000)
    num_attention_heads: int = Field(default=12, ge=1, le=10_000, validate_default=True)
    intermediate_size: int = Field(default=3072, ge=1, le=_MAX_SIZE)
    hidden_act: Literal["gelu", "relu", "tanh", "linear"] = "gelu"
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1, le=_MAX_SIZE)
    type_vocab_size: int = Field(default=16, ge=1, le=_MAX_SIZE)
    initializer_range: float = Field(default=0.02, ge=0)
    # The multilingual and Chinese models have these; no code of the original reads them.
    directionality: str | None = None
    pooler_fc_size: int | None = None
    pooler_num_attention_heads: int | None = None
    pooler_num_fc_layers: int | None = None
    pooler_size_per_head: int | None = None
    pooler_type: str | None = None

    # A check of the field and not of the whole, so that it is reported together with all other problems.
    @field_validator("num_attention_heads")
    @classmethod
    def _heads_divide_the_width(cls, num_heads: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size", num_heads)
        if width % num_heads:
            raise ValueError(f"{num_heads} heads do not divide hidden_size {width}")
        return num_heads

    def size(self, name: str | int) -> int:
        """Return a size by the name of its setting; a number stands for itself."""
        return name if isinstance(name, int) else int(getattr(self, name))


def read_google_config(path: Path) -> GoogleConfig:
    """Read a bert_config.json, or raise with all that is wrong in it."""
    if not path.exists():
        raise UserError(f"{path} is missing; it belongs beside the weights")
    return validate(GoogleConfig, read_object(path), str(path))


def to_huggingface(config: GoogleConfig, architecture: str, pad_id: int) -> dict[str, Any]:
    """Return the content of config.json for a model of the original code."""
    values = {name: value for name, value in config if value is not None}
    return values | {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": _TO_HUGGINGFACE[config.hidden_act],
        "layer_norm_eps": LAYER_NORM_EPS,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


def to_google(config: dict[str, Any], where: str) -> tuple[GoogleConfig, list[str]]:
    """Return the bert_config.json for a config.json, and what of it the original code will do differently."""
    problems, differences = [], []
    if config.get("model_type") != "bert":
        problems.append(f"model_type is {config.get('model_type')!r:.60}; Google's checkpoints hold 'bert'")
    if config.get("position_embedding_type") not in (None, "absolute"):
        problems.append(f"position_embedding_type {config['position_embedding_type']!r:.60} is not in Google's code")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        problems.append("is_decoder: Google's code has no decoder")
    if problems:
        raise ConfigError(where, problems)
    values = {name: config[name] for name in GoogleConfig.model_fields if config.get(name) is not None}
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _TO_GOOGLE:
        raise UserError(
            f"{where}: the original code has no hidden_act {activation!r:.60}; only {', '.join(_TO_GOOGLE)}"
        )
    if activation == "gelu":
        differences.append(
            "hidden_act is the exact (erf) gelu, which Google's config cannot say; the original code computes the tanh "
            "form for 'gelu' (results differ in the third digit)"
        )
    if config.get("layer_norm_eps", LAYER_NORM_EPS) != LAYER_NORM_EPS:
        differences.append(f"layer_norm_eps is {config['layer_norm_eps']!r:.60}; the original code has 1e-12 fixed")
    # Hugging Face's BERT has 2 segments by default, the original 16; all other defaults are the same.
    values = {"vocab_size": 30_522, "type_vocab_size": 2} | values | {"hidden_act": _TO_GOOGLE[activation]}
    return validate(GoogleConfig, values, where), differences


def contradictions(shapes: Mapping[str, Shape], config: GoogleConfig) -> list[str]:
    """Return a line for each tensor that is missing, misshapen or too much, by Google's names.

    A head may be missing as a whole, the pooler where nothing uses it; names that are no part of BERT are ignored.
    """
    needed = {part for part in OPTIONAL if has_part(shapes, part)}
    if MASKED_WORD_HEAD not in needed or NEXT_SENTENCE_HEAD in needed:
        needed.add(POOLER)
    dispensable = tuple(part for part in OPTIONAL if part not in needed)
    every = list(parameters(config.num_hidden_layers))
    problems = [
        f"{parameter.google} is missing"
        for parameter in every
        if parameter.google not in shapes and not parameter.google.startswith(dispensable)
    ]
    for parameter in every:
        expected = tuple(config.size(size) for size in parameter.shape)
        for name in (parameter.google, *(slot.google for slot in parameter.slots())):
            if shapes.get(name, expected) != expected:
                problems.append(f"{name} has the shape {list(shapes[name])}, but should have {list(expected)}")
    deeper = {name.split("/")[2] for name in shapes if name.startswith("bert/encoder/layer_")}
    deeper -= {f"layer_{layer}" for layer in range(config.num_hidden_layers)}
    if deeper:
        problems.append(f"num_hidden_layers is {config.num_hidden_layers}, but there is {', '.join(sorted(deeper))}")
    return problems


def architecture(names: Collection[str]) -> str:
    """Return the class of transformers that a checkpoint is for, by the heads it has."""
    if not has_part(names, MASKED_WORD_HEAD):
        return "BertModel"
    return "BertForPreTraining" if has_part(names, NEXT_SENTENCE_HEAD) else "BertForMaskedLM"


def has_part(names: Collection[str], part: str) -> bool:
    """Tell whether any of the names belongs to a part of the model."""
    return any(name.startswith(part) for name in names)


class GoogleModel(NamedTuple):
    """What a folder of the original holds, by Hugging Face's names."""

    config: dict[str, Any]  # the content of config.json
    tensors: Tensors
    optimizer: Tensors  # "<name>.adam_m", "<name>.adam_v" and "global_step", where requested and present
    pieces: list[str]
    left_out: list[str]  # Google's names of tensors that are not part of BERT or were not requested
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
    shapes = {name: bundle.shape(name) for name in names}
    present = [parameter for parameter in parameters(config.num_hidden_layers) if parameter.google in shapes]
    if not present:
        some = ", ".join(names[:3]) or "nothing"
        raise UserError(f"{prefix} has no variable of BERT by the original's names; it has {some:.200}")
    problems = contradictions(shapes, config)
    for parameter in present:
        dtype = bundle.dtype(parameter.google)
        if dtype not in (np.float32, np.float16):
            problems.append(f"{parameter.google} is {dtype}, not float32 (float16 and bfloat16 will do)")
    if len(pieces) > config.vocab_size:
        problems.append(f"{VOCABULARY_FILE} has {len(pieces):,} pieces, but vocab_size is {config.vocab_size:,}")
    if problems:
        raise ConfigError(f"{prefix} and {CONFIG_FILE} beside it do not agree", problems)
    slots = [slot for parameter in present for slot in parameter.slots() if slot.google in shapes and with_optimizer]
    step = [GLOBAL_STEP] if with_optimizer and GLOBAL_STEP in shapes else []
    used = {parameter.google for parameter in [*present, *slots]} | {*step}
    return GoogleModel(
        config=to_huggingface(config, architecture(names), pieces.index(PAD) if PAD in pieces else 0),
        tensors={one.huggingface: turned(bundle.read(one.google), one) for one in present},
        optimizer={one.huggingface: turned(bundle.read(one.google), one) for one in slots}
        | {name: bundle.read(name).astype(np.int64) for name in step},
        pieces=pieces,
        left_out=[name for name in names if name not in used],
        files=[*bundle.files(), config_path, vocabulary_path],
        warnings=pieces_warnings(len(pieces), config.vocab_size),
    )


def turned(tensor: NDArray[Any], parameter: Parameter) -> NDArray[np.float32]:
    """Return a tensor of either side as the other side has it, in float32."""
    return np.ascontiguousarray(tensor.T if parameter.is_transposed else tensor, dtype=np.float32)


def pieces_warnings(num_pieces: int, vocab_size: int) -> list[str]:
    """Say where a vocabulary is shorter than the table of embeddings, as it is in models padded for speed."""
    if num_pieces == vocab_size:
        return []
    return [f"{VOCABULARY_FILE} has {num_pieces:,} pieces for a vocab_size of {vocab_size:,}: the last ids have none"]


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
    # What Google has a place for, Adam's state too.
    table = parameters(google_config.num_hidden_layers)
    every = {one.huggingface: one for known in table for one in (known, *known.slots())}
    problems = [f"Google's model has no parameter {name[:80]!r}" for name in given if name not in every]
    shapes = {
        every[name].google: tensor.shape[::-1] if every[name].is_transposed else tensor.shape
        for name, tensor in given.items()
        if name in every
    }
    problems += contradictions(shapes, google_config)
    if len(pieces) > google_config.vocab_size:
        problems.append(f"the vocabulary has {len(pieces):,} pieces, but vocab_size is {google_config.vocab_size:,}")
    if problems:
        raise ConfigError("config.json and the tensors do not agree", problems)
    write_bundle(prefix, {every[name].google: turned(tensor, every[name]) for name, tensor in given.items()} | step)
    write_vocabulary(prefix.with_name(VOCABULARY_FILE), pieces)
    values = {name: value for name, value in google_config if value is not None}
    quoted = json.dumps(prefix.name, ensure_ascii=False)
    state = f"model_checkpoint_path: {quoted}\nall_model_checkpoint_paths: {quoted}\n"
    texts = {CONFIG_FILE: json.dumps(values, indent=2, sort_keys=True) + "\n", _STATE_FILE: state}
    for name, text in texts.items():
        with atomic_write(prefix.with_name(name)) as stream:
            stream.write(text)
    return warnings + pieces_warnings(len(pieces), google_config.vocab_size)
