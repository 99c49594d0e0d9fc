"""Memory for time: a block keeps its input alone, and the backward pass computes the rest of it again.

What a block keeps for its backward pass is some fifteen times its input; computed twice, a step takes about a third
longer. The gradients are the same to the last bit, for dropout is the same both times: a hash needs nothing for that,
and the state of torch's generator is kept and set again.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from bertworks.errors import UserError


def recompute_blocks(net: nn.Module) -> None:
    """Have the blocks of a network computed again in the backward pass; of one that is spread, after it is."""
    blocks: Any = getattr(net, "blocks", None)
    if blocks is None:
        raise UserError("train.recompute is for networks of blocks, and this one has none; leave it out")
    for block in blocks:
        if hasattr(block, "unshard"):  # of FSDP2: its weights are in place again when its backward pass begins
            block.forward = _recomputed(block.forward)
        else:
            block.is_recomputed = True


def _recomputed(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda *inputs: checkpoint(forward, *inputs, use_reentrant=False)


def called(block: nn.Module, x_TD: Tensor, packing: Any, seed: Tensor | None, *more: Tensor) -> Tensor:
    """Return what a block makes of its input; `seed` is that of its dropout."""
    if not (block.is_recomputed and torch.is_grad_enabled()):
        return block(x_TD, packing, seed, *more)
    return checkpoint(as_it_is(block), x_TD, packing, seed, *more, use_reentrant=False)


def as_it_is(module: nn.Module) -> Callable[..., Any]:
    """Return a function that calls a module with the weights it has now, whenever it is called.

    In half precision a module has its copies only while the forward pass lasts.
    """
    if hasattr(module, "unshard"):  # of FSDP2: it gathers its weights whenever it is called
        return module
    weights: dict[str, Tensor] = dict(module.named_parameters())
    return lambda *inputs: functional_call(module, weights, inputs)
