"""One table: the names of our modules and those of Hugging Face's BERT.

Ours are shorter, and one matrix makes queries, keys and values together where theirs are three. `#` is a layer's
number. The table names modules; each has a weight and a bias unless the name goes down to the parameter.
"""

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

_TABLE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("embeddings.token.weight", ("bert.embeddings.word_embeddings.weight",)),
    ("embeddings.position.weight", ("bert.embeddings.position_embeddings.weight",)),
    ("embeddings.segment.weight", ("bert.embeddings.token_type_embeddings.weight",)),
    ("embeddings.norm", ("bert.embeddings.LayerNorm",)),
    ("blocks.#.qkv", tuple(f"bert.encoder.layer.#.attention.self.{part}" for part in ("query", "key", "value"))),
    ("blocks.#.attention_out", ("bert.encoder.layer.#.attention.output.dense",)),
    ("blocks.#.attention_norm", ("bert.encoder.layer.#.attention.output.LayerNorm",)),
    ("blocks.#.up", ("bert.encoder.layer.#.intermediate.dense",)),
    ("blocks.#.down", ("bert.encoder.layer.#.output.dense",)),
    ("blocks.#.norm", ("bert.encoder.layer.#.output.LayerNorm",)),
    ("pooler", ("bert.pooler.dense",)),
    ("heads.mlm.dense", ("cls.predictions.transform.dense",)),
    ("heads.mlm.norm", ("cls.predictions.transform.LayerNorm",)),
    ("heads.mlm.bias", ("cls.predictions.bias",)),
    ("heads.nsp.out", ("cls.seq_relationship",)),
    ("heads.classify.out", ("classifier",)),
    ("heads.choose.out", ("classifier",)),
    ("heads.tag.out", ("classifier",)),
    ("heads.span.out", ("qa_outputs",)),
)
# What other people's files hold a second time: the matrix and the bias of the MLM head, which are tied to these.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
COUNTERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")  # 0, 1, 2, ... and zeros
_PREFIXES = ("bert.", "cls.", "classifier.", "qa_outputs.", "dropout.")
_LAYER = re.compile(r"\.(\d+)\.")


def _parameters() -> dict[str, tuple[str, ...]]:
    table = {}
    for ours, theirs in _TABLE:
        is_parameter = ours.endswith((".weight", "mlm.bias"))
        for part in ("",) if is_parameter else (".weight", ".bias"):
            table[ours + part] = tuple(name + part for name in theirs)
    return table


_THEIRS = _parameters()


def theirs_of(ours: str) -> tuple[str, ...]:
    """Return the names of the tensors, in order, that one of our parameters is made of."""
    layer = _LAYER.search(ours)
    names = _THEIRS[_LAYER.sub(".#.", ours)]
    return tuple(name.replace(".#.", f".{layer[1]}.") for name in names) if layer else names


def modern_name(name: str) -> str:
    """Return a tensor's name as it is written today: with `bert.` before it, weight and bias for gamma and beta."""
    if name.endswith(".gamma"):
        name = name.removesuffix("gamma") + "weight"
    elif name.endswith(".beta"):
        name = name.removesuffix("beta") + "bias"
    return name if name.startswith(_PREFIXES) else f"bert.{name}"


def to_ours(names: Iterable[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our parameters of these names, made of their tensors; a single one is not copied."""
    ours = {}
    for name in names:
        parts = [tensors[part] for part in theirs_of(name)]
        ours[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return ours


def to_theirs(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under Hugging Face's names, with the prefix that all but a bare encoder have."""
    theirs: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        parts = theirs_of(name)
        theirs |= dict(zip(parts, parameter.chunk(len(parts)), strict=True))
    return theirs
