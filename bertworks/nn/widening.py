"""A BERT made wider that computes what the narrow one does, so that a large model need not begin from nothing.

With a factor of k every number of the narrow network stands k times in the wide one: embeddings are repeated, a layer
has each of its rows k times, and as each of its inputs comes k times too, a column is divided among its copies. Heads
keep their width and become k times as many. LayerNorm does not notice, for repeated numbers have the same mean and
variance. The masked-word head compares with embeddings that are k times as long, so its own norm is divided by k.

Copies that are treated alike learn alike, for ever. So a column is not divided evenly: to its k parts noise is added
that sums up to 0. What the layer gives is the same; what its copies are told by the gradients is not. As they part, the
noise no longer cancels out: were it four times as large, what is known already would suffer in the first steps; as it
is, these go as they do without any noise (docs/log.md).
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from bertworks.nn.config import BertConfig

_MLM_HEAD = "heads.mlm."
_NOISE = 0.25  # of the parts that a column is divided into


def can_widen(config: BertConfig) -> bool:
    """Tell whether it is possible: a table of sinusoids is another one at every width, and not learnt."""
    return config.positions == "learned"


def wider(config: BertConfig, factor: int) -> BertConfig:
    """Return the sizes of a network that is so many times as wide."""
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    return config.model_copy(update={name: factor * getattr(config, name) for name in names})


def widened(weights: Mapping[str, Tensor], factor: int, seed: int) -> dict[str, Tensor]:
    """Return the weights, by our names, of a network so many times as wide that computes the same, in float32."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _widened(name, weight.float(), factor, generator) for name, weight in weights.items()}


def _widened(name: str, weight: Tensor, factor: int, generator: torch.Generator) -> Tensor:
    if name == f"{_MLM_HEAD}bias":  # one for each piece, and pieces are no more than before
        return weight.clone()
    if name.startswith("embeddings.") and weight.ndim == 2:
        return weight.repeat(1, factor)
    if name.startswith("heads.") and ".out." in name:
        return _divided(weight, factor, generator) if weight.ndim == 2 else weight.clone()
    if name.startswith(f"{_MLM_HEAD}norm."):
        return weight.repeat(factor) / factor
    rows = _repeated_rows(weight, factor, num_parts=3 if ".qkv." in name else 1)
    return _divided(rows, factor, generator) if weight.ndim == 2 else rows


def _repeated_rows(weight: Tensor, factor: int, num_parts: int) -> Tensor:
    """Repeat the rows of a matrix or a vector; queries, keys and values are parts of one, each repeated by itself."""
    return torch.cat([part for part in weight.chunk(num_parts) for _ in range(factor)])


def _divided(weight: Tensor, factor: int, generator: torch.Generator) -> Tensor:
    """Divide the columns of a matrix unevenly among so many copies of its inputs."""
    noise = torch.randn(len(weight), factor, weight.shape[1], generator=generator)
    noise = (noise - noise.mean(1, keepdim=True)) * math.sqrt(factor / (factor - 1))  # of size 1 again
    size = weight.square().mean().sqrt()
    return ((weight[:, None] + _NOISE * size * noise) / factor).flatten(1)
