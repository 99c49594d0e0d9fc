"""GPT-1's weights under our names and under those of its published files (`openai-gpt`), both ways.

The published files keep matrices the other way round (in x out), the output matrix is the piece embedding and may or
may not be there again, old files carry the attention mask as if it were a weight, and the first of them lack the
prefix `transformer.`.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from bertworks.errors import CorruptFile

if TYPE_CHECKING:
    from torch import Tensor

_PREFIX = "transformer."
EMBEDDING, OUTPUT = "transformer.tokens_embed.weight", "lm_head.weight"
_EMBEDDINGS = {"token.weight": "tokens_embed.weight", "position.weight": "positions_embed.weight"}
_BLOCK = {
    "qkv": "attn.c_attn",
    "attention_out": "attn.c_proj",
    "attention_norm": "ln_1",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "norm": "ln_2",
}
_BLOCK_BACK = {theirs: ours for ours, theirs in _BLOCK.items()}
# transformers has no GPT-1 that tags or answers; those names are ours.
HEADS = {
    "classify": "score.weight",
    "choose": "multiple_choice_head.summary.weight",
    "tag": "tag_head.weight",
    "span": "span_head.weight",
}
_HEADS = {f"heads.{head}.weight": theirs for head, theirs in HEADS.items()}
# A bias that all choices share changes no choice, so ours has none.
_CHOICE_BIAS = "multiple_choice_head.summary.bias"
_IGNORED = re.compile(r"lm_head\.weight|position_ids|h\.\d+\.attn\.(bias|masked_bias)|" + re.escape(_CHOICE_BIAS))
_OUR_BLOCK = re.compile(r"blocks\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)")
_THEIR_BLOCK = re.compile(r"h\.(?P<layer>\d+)\.(?P<part>[\w.]+)\.(?P<kind>weight|bias)")


def is_weight(name: str) -> bool:
    """Tell whether a published tensor is a weight of its own, and neither a copy, a mask nor of no effect."""
    return _IGNORED.fullmatch(name.removeprefix(_PREFIX)) is None


def by_published_names(tensors: "Mapping[str, Tensor]", where: object) -> "dict[str, Tensor]":
    """Return tensors with the prefix that the first files lack; the embedding may be there as the output matrix."""
    outside = (OUTPUT, _CHOICE_BIAS, *_HEADS.values())
    named = {name if name in outside else _PREFIX + name.removeprefix(_PREFIX): tensors[name] for name in tensors}
    if len(named) < len(tensors):
        raise CorruptFile(f"{where} has the same tensor under two names, with and without {_PREFIX}")
    if OUTPUT in named:
        named.setdefault(EMBEDDING, named[OUTPUT])
    return named


def to_openai(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return weights of `Gpt` under the published names; the output matrix is left out, being the embedding."""
    renamed = {}
    for name, values in state.items():
        block = _OUR_BLOCK.fullmatch(name)
        if block:
            theirs = f"h.{block['layer']}.{_BLOCK[block['part']]}.{block['kind']}"
            renamed[_PREFIX + theirs] = _turned(values, theirs)
        elif name in _EMBEDDINGS:
            renamed[_PREFIX + _EMBEDDINGS[name]] = values
        else:
            renamed[_HEADS[name]] = values
    if _HEADS["heads.choose.weight"] in renamed:
        renamed[_CHOICE_BIAS] = renamed[_HEADS["heads.choose.weight"]].new_zeros(1)
    return renamed


def from_openai(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return published weights under the names of `Gpt`, or raise CorruptFile for a name that GPT-1 does not have."""
    plain = {theirs: ours for ours, theirs in (_EMBEDDINGS | _HEADS).items()}
    renamed = {}
    for name, values in state.items():
        theirs = name.removeprefix(_PREFIX)
        block = _THEIR_BLOCK.fullmatch(theirs)
        if _IGNORED.fullmatch(theirs):
            continue
        if theirs in plain:
            renamed[plain[theirs]] = values
        elif block and block["part"] in _BLOCK_BACK:
            ours = f"blocks.{block['layer']}.{_BLOCK_BACK[block['part']]}.{block['kind']}"
            renamed[ours] = _turned(values, theirs)
        else:
            raise CorruptFile(f"{name[:80]!r} is no weight of GPT-1; is this a model of another kind?")
    return renamed


def _turned(values: "Tensor", theirs: str) -> "Tensor":
    """Turn a matrix of a block round; LayerNorms and biases have nothing to turn."""
    return values.t().contiguous() if ".c_" in theirs and theirs.endswith(".weight") else values
