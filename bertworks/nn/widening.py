"""A BERT made wider that computes nearly what the narrow one does, so that a large model need not begin from nothing.

With a factor of k every number of the narrow network stands k times in the wide one: embeddings are repeated, a layer
has each of its rows k times, and as each of its inputs comes k times too, a column is divided among its copies. Heads
keep their width and become k times as many. LayerNorm does not notice, for repeated numbers have the same mean and
variance. The masked-word head compares with embeddings that are k times as long, so its own norm is divided by k.
So far the wide network computes the same, exactly.

But copies that are treated alike learn alike, for ever, and the wide network would be a narrow one. So noise is added
that sums up to 0 over the copies, in three places. Of the columns: what a layer gives is still the same, what its
copies are told by the gradients is not. That alone is not enough: `small` from `mini` had, after 1.7 billion tokens,
two halves of its table of pieces that were alike to 0.99 (docs/log.md). So the copies of a piece's embedding differ
from the start, and those of the rows whose results are added to the embeddings. What reads them divides evenly but
for the noise of its columns, so it sees little of that: a masked piece costs `mini` 2.69 nats then, and 2.59 without.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from bertworks.nn.config import BertConfig

_MLM_HEAD = "heads.mlm."
_TABLE, _TABLE_NORM = "embeddings.token.weight", "embeddings.norm.weight"
_TABLES = (_TABLE, "embeddings.position.weight", "embeddings.segment.weight")
_ADDED = (".attention_out.weight", ".down.weight")  # whose results are added to what they were made from


class Noise(NamedTuple):
    """How far copies are from each other at the start, as a share of their own size.

    Attributes:
        columns: of the parts that a column is divided into.
        rows: of the rows of the layers whose results are added to the stream.
        table: of the embeddings of pieces.
    """

    columns: float = 0.25
    rows: float = 0.5
    table: float = 0.5


_NOISE = Noise()


def can_widen(config: BertConfig) -> bool:
    """Tell whether it is possible: a table of sinusoids is another one at every width, and not learnt."""
    return config.positions == "learned"


def wider(config: BertConfig, factor: int) -> BertConfig:
    """Return the sizes of a network that is so many times as wide."""
    names = ("hidden_size", "num_attention_heads", "intermediate_size")
    return config.model_copy(update={name: factor * getattr(config, name) for name in names})


def widened(weights: Mapping[str, Tensor], factor: int, seed: int, noise: Noise = _NOISE) -> dict[str, Tensor]:
    """Return the weights, by our names, in float32, of a network that much wider which computes nearly the same."""
    draw = _Draw(factor, torch.Generator().manual_seed(seed))
    full = {name: weight.detach().float() for name, weight in weights.items()}
    wide = {name: _widened(name, weight, draw, noise) for name, weight in full.items()}
    # The norm sees the table's noise as variance, and would make all the rest smaller.
    variance = sum(full[name].var(-1).mean() for name in _TABLES)
    wide[_TABLE_NORM] *= (1 + (noise.table * _size(full[_TABLE])) ** 2 / variance).sqrt()
    return wide


class _Draw(NamedTuple):
    factor: int
    generator: torch.Generator

    def __call__(self, *shape: int) -> Tensor:
        """Return noise of size 1 whose sum over the copies, of which the last but one number of the shape is, is 0."""
        noise = torch.randn(*shape, generator=self.generator)
        return (noise - noise.mean(-2, keepdim=True)) * math.sqrt(self.factor / (self.factor - 1))


def _widened(name: str, weight: Tensor, draw: _Draw, noise: Noise) -> Tensor:
    factor = draw.factor
    if name == f"{_MLM_HEAD}bias":  # one for each piece, and pieces are no more than before
        return weight.clone()
    if name.startswith("embeddings.") and weight.ndim == 2:
        return _repeated(weight, draw, noise.table if name == _TABLE else 0)
    if name.startswith("heads.") and ".out." in name:
        return _divided(weight, draw, noise.columns) if weight.ndim == 2 else weight.clone()
    if name.startswith(f"{_MLM_HEAD}norm."):
        return weight.repeat(factor) / factor
    rows = _repeated_rows(weight, factor, num_parts=3 if ".qkv." in name else 1)
    if weight.ndim == 1:
        return rows
    wide = _divided(rows, draw, noise.columns)
    if name.endswith(_ADDED):
        parted = draw(wide.shape[1], factor, len(weight)).permute(1, 2, 0).reshape(wide.shape)
        wide = wide + noise.rows * _size(wide) * parted
    return wide


def _size(weight: Tensor) -> Tensor:
    return weight.square().mean().sqrt()


def _repeated(table: Tensor, draw: _Draw, noise: float) -> Tensor:
    """Repeat the columns of a table, its copies that far from each other."""
    copies = table[:, None].expand(-1, draw.factor, -1)
    if noise:
        copies = copies + noise * _size(table) * draw(len(table), draw.factor, table.shape[1])
    return copies.flatten(1)


def _repeated_rows(weight: Tensor, factor: int, num_parts: int) -> Tensor:
    """Repeat the rows of a matrix or a vector; queries, keys and values are parts of one, each repeated by itself."""
    return torch.cat([part for part in weight.chunk(num_parts) for _ in range(factor)])


def _divided(weight: Tensor, draw: _Draw, noise: float) -> Tensor:
    """Divide the columns of a matrix unevenly among so many copies of its inputs."""
    parted = draw(len(weight), draw.factor, weight.shape[1])
    return ((weight[:, None] + noise * _size(weight) * parted) / draw.factor).flatten(1)
