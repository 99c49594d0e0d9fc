"""How much memory of a GPU a run takes at its peak, by what it is for.

For the backward pass a block keeps, of every token, sixteen times its width in the type that is computed in: what comes
in (1), queries, keys and values (3), what attention gives (1), that projected (1), normalised (1), the feed-forward
layer before and after gelu (4 + 4), and its output (1). What dropout needs is a hash. Besides, each head keeps one
fp32 number and each LayerNorm two. While a block's gradients are computed they take about as much again, once. With
`train.recompute` only what comes into a block is kept; the rest is made again, a block at a time.

Everything is added up, though the last gradients come when most of what was kept is gone: a run takes somewhat less.
"""

from typing import NamedTuple

from bertworks.plan.network import Network

GIGA = 1e9
_KEPT_WIDTHS = 16
_KEPT_BYTES_OF_NORMS = 2 * 2 * 4
_EMBEDDED_BYTES = 6  # of each number of a token: the sum in fp32, and what goes into the first block
_ROWS_AT_ONCE = 8_192  # that a language model scores, see train/objectives.py
_CONTEXT_BYTES = 1.0 * GIGA  # CUDA's own, and the workspaces of its libraries
_USABLE_SHARE = 0.95  # of a card: memory is handed out in pieces, and some fit nothing


class Slice(NamedTuple):
    """What is computed at once on one GPU, and how."""

    tokens: int
    half: bool  # in bf16
    recompute: bool
    parts: int = 1  # that weights, gradients and optimizer are spread over


def memory_of(network: Network, part: Slice) -> dict[str, float]:
    """Return the bytes on one GPU by what they are for."""
    bytes_each = 2 if part.half else 4
    num_rows = network.scored_share * part.tokens
    if network.scores_all:
        num_rows = min(num_rows, _ROWS_AT_ONCE)
    owned = {
        "weights": 4 * network.num_parameters,
        "gradients": 4 * network.num_trained,
        "optimizer": 8 * network.num_trained,
        "bf16 copies of weights": 2 * network.num_parameters if part.half else 0,
    }
    return {name: size / part.parts for name, size in owned.items()} | {
        "activations kept": _activations(network, part, bytes_each),
        "scores of the vocabulary": num_rows * network.columns * bytes_each * 2,  # and their gradient
        "CUDA itself": _CONTEXT_BYTES,
    }


def _activations(network: Network, part: Slice, bytes_each: int) -> float:
    if network.kept_numbers is not None:
        return part.tokens * network.kept_numbers * bytes_each
    block_in = network.width * bytes_each
    block = _KEPT_WIDTHS * block_in + 4 * network.heads + _KEPT_BYTES_OF_NORMS
    kept = network.layers * block_in + block if part.recompute else network.layers * block
    return part.tokens * (kept + block + _EMBEDDED_BYTES * network.width)


def fits(needed: float, memory_gb: float) -> bool:
    """Tell whether so many bytes fit a GPU."""
    return needed <= _USABLE_SHARE * memory_gb * GIGA
