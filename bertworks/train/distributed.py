"""Several processes that train as one, started by torchrun: who this one is, and what all of them agree on.

Each rank computes its own slices of every batch. Since a loss is a sum over predictions divided by their number in the
whole batch, gradients are added up, not averaged, and one rank with two slices does the same sums as two ranks with
one. Counts and decisions go through a group of their own on the CPU, so that no rank waits for its GPU to learn them.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from bertworks.errors import UserError

_BUCKET_NUMBERS = 1 << 24  # added up in one message: many small ones wait for each other, one large one takes memory
_TIMEOUT = timedelta(seconds=300)  # a save or an evaluation of rank 0 may take as long; torchrun ends the rest earlier


class Ranks:
    """One process alone, or one of several.

    Attributes:
        rank: which this is.
        world_size: how many there are.
    """

    def __init__(self, rank: int = 0, world_size: int = 1) -> None:
        self.rank, self.world_size = rank, world_size
        self._control = dist.new_group(backend="gloo", timeout=_TIMEOUT) if world_size > 1 else None

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def total(self, values: list[float]) -> list[float]:
        """Add up numbers of all ranks."""
        return self._agreed(values, dist.ReduceOp.SUM)

    def greatest(self, value: float) -> float:
        """Return the greatest number of any rank."""
        return self._agreed([value], dist.ReduceOp.MAX)[0]

    def _agreed(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self._control is None:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(tensor, operation, group=self._control)
        return tensor.tolist()

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, of one shape and on the CPU, in their order."""
        if self._control is None:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(tensors, tensor, group=self._control)
        return tensors

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Add up tensors of all ranks in place, on the device; every rank gets the sums."""
        if self._control is None:
            return
        for bucket in _buckets(tensors):
            flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
            dist.all_reduce(flat)
            parts = torch.split(flat, [tensor.numel() for tensor in bucket])
            for tensor, part in zip(bucket, parts, strict=True):
                tensor.copy_(part.view_as(tensor))

    def wait(self) -> None:
        """Wait until all ranks are here."""
        if self._control is not None:
            dist.barrier(group=self._control)


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > _BUCKET_NUMBERS:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def local_device(device: torch.device) -> torch.device:
    """Return this rank's own GPU where there are several ranks."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


@contextmanager
def joined_ranks(device: torch.device) -> Iterator[Ranks]:
    """Join the ranks that torchrun has started, or be the only one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise UserError(f"several ranks need cpu or cuda, not {device.type}")
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=_TIMEOUT)
    try:
        yield Ranks(dist.get_rank(), world_size)
    finally:
        dist.destroy_process_group()
