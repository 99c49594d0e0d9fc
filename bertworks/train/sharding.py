"""Weights that are spread over ranks (FSDP2): each keeps a part of every weight, gradient and running mean.

A block's weights are gathered when it is about to compute, in half precision where it computes in that, and let go
behind it; the backward pass gathers them again, adds up their gradients over all ranks and spreads the sums, slice by
slice. So a rank needs the memory of its part and of a block or two, however large the network. Heads are treated as
blocks are. The rest, above all the embeddings, is gathered in fp32 and kept for a slice: the MLM head reads them too.

FSDP2 would average. Here a loss is divided by the predictions of all ranks already, so it is told to add up.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from bertworks.errors import UserError


def spread(root: nn.Module, net: nn.Module, device: torch.device, *, half: bool) -> None:
    """Spread a network's weights over all ranks.

    Args:
        root: what is called to compute a loss; the network is in it.
        net: the network, whole on every rank; its weights are replaced.
        device: where the parts go.
        half: whether blocks and heads compute in half precision.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = init_device_mesh(device.type, (torch.distributed.get_world_size(),))
    in_half = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    policy = in_half if half else MixedPrecisionPolicy()
    for part in _parts(net):
        _add_up(fully_shard(part, mesh=mesh, mp_policy=policy))
    _add_up(fully_shard(root, mesh=mesh))


def _parts(net: nn.Module) -> Iterable[nn.Module]:
    if not hasattr(net, "blocks"):
        raise UserError("train.shard is for networks of blocks, and this one has none; leave it out")
    named: Any = net
    return [part for part in (*named.blocks, *named.heads.values(), getattr(net, "pooler", None)) if part is not None]


def _add_up(module: Any) -> None:
    module.set_gradient_divide_factor(1.0)
    module.set_force_sum_reduction_for_comms(True)  # gloo cannot scale while it adds, and there is nothing to scale


def whole(tensor: Tensor) -> Tensor:
    """Return the value of a tensor that may be spread over ranks, on each of them; all must ask for it."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def own_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's parts of tensors that may be spread over ranks; an update by elements needs no others."""
    return [tensor.to_local() if hasattr(tensor, "to_local") else tensor for tensor in tensors]


@torch.no_grad()
def fill(tensor: Tensor, values: Tensor) -> None:
    """Give a tensor, which may be spread over ranks, the values of a whole one that every rank has."""
    if hasattr(tensor, "to_local"):
        from torch.distributed.tensor import distribute_tensor

        like: Any = tensor
        values = distribute_tensor(values, like.device_mesh, like.placements, src_data_rank=None)
    own, new = own_parts([tensor, values])
    own.copy_(new)


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Return tensors whole and on the CPU, where `keep` says so; one after the other, as not all may fit on a GPU."""
    found = {}
    for name, tensor in tensors.items():
        value = whole(tensor.detach())
        if keep:
            found[name] = value.cpu()
    return found
