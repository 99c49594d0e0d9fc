"""Several processes that train as one, started by torchrun: ranks, sums of gradients, sharded weights.

- Each rank computes its own micro-batches of every batch. A loss is a sum over predictions divided by their number in
  the whole batch, so gradients are added up, not averaged, and one rank with two micro-batches computes the same sums
  as two ranks with one.
- Counts and decisions go through groups of their own on the CPU, so that no rank waits for its GPU to learn them.
- All ranks meet several times in a step, so one that is gone or hangs is noticed within `train.rank_timeout` seconds.
  Where one may rightly take longer (rank 0 writes a checkpoint, a graph is compiled) all are patient until they have
  met again. Both are gloo groups with a time limit of their own: the operation itself must end, or its thread would
  keep the process from ending.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous

from bertworks.errors import UserError

_PATIENCE_S = 600.0  # for a checkpoint on a slow disk, or a large graph


class Ranks:
    """One process alone, or one of several.

    Args:
        rank: which this is.
        world_size: how many there are.
        timeout_s: how long to wait for another rank in a step.
    """

    def __init__(self, rank: int = 0, world_size: int = 1, timeout_s: float = _PATIENCE_S) -> None:
        self.rank, self.world_size, self._timeout_s = rank, world_size, timeout_s
        self._groups = {
            limit_s: dist.new_group(backend="gloo", timeout=timedelta(seconds=limit_s))
            for limit_s in ((timeout_s, _PATIENCE_S) if world_size > 1 else ())
        }
        self._limit_s = _PATIENCE_S

    @property
    def is_first(self) -> bool:
        """Whether this rank writes what is written once."""
        return self.rank == 0

    def be_patient(self) -> None:
        """Expect, as all ranks do at the same point, that one of them is about to take long."""
        self._limit_s = _PATIENCE_S

    def met(self) -> None:
        """Expect no rank to take long any more, for all have come to the same point."""
        self._limit_s = self._timeout_s

    def total(self, values: list[float]) -> list[float]:
        """Add up numbers of all ranks."""
        return self._agreed(values, dist.ReduceOp.SUM)

    def greatest(self, value: float) -> float:
        """Return the greatest number of any rank."""
        return self._agreed([value], dist.ReduceOp.MAX)[0]

    def _agreed(self, values: list[float], operation: dist.ReduceOp.RedOpType) -> list[float]:
        if self.world_size == 1:
            return values
        tensor = torch.tensor(values, dtype=torch.float64)
        with self._losses_named():
            dist.all_reduce(tensor, operation, group=self._group(tensor))
        return tensor.tolist()

    def gathered(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, of one shape and on the CPU, in their order."""
        if self.world_size == 1:
            return [tensor]
        tensors = [torch.empty_like(tensor) for _ in range(self.world_size)]
        with self._losses_named():
            dist.all_gather(tensors, tensor, group=self._group(tensor))
        return tensors

    def add_up(self, tensor: Tensor) -> Callable[[], None]:
        """Begin to add up the tensors of all ranks in place, on the device; returns what waits for the sums."""
        if self.world_size == 1:
            return lambda: None
        with self._losses_named():
            work = dist.all_reduce(tensor, group=self._group(tensor), async_op=True)

        def wait() -> None:
            with self._losses_named():
                work.wait()

        return wait

    def wait(self) -> None:
        """Wait until all ranks are here."""
        self.total([0.0])

    def _group(self, tensor: Tensor) -> dist.ProcessGroup | None:
        """Return the group for a tensor; on a GPU NCCL's own, which is the default."""
        return None if tensor.is_cuda else self._groups[self._limit_s]

    @contextmanager
    def _losses_named(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:
            loss = "has lost another rank, whose own message says why it ended"
            if "timed out" in str(error).lower():
                loss = (
                    f"has waited {self._limit_s:g} s for another rank; if that was only slow, raise train.rank_timeout"
                )
            raise UserError(f"rank {self.rank} {loss}. --resume continues from the last checkpoint") from error


def is_first_rank() -> bool:
    """Tell whether this process is the one that reports for all ranks, or the only one."""
    return os.environ.get("RANK", "0") == "0"


def local_device(device: torch.device) -> torch.device:
    """Return this rank's own GPU where there are several ranks."""
    if device.type != "cuda" or "LOCAL_RANK" not in os.environ:
        return device
    return torch.device("cuda", int(os.environ["LOCAL_RANK"]))


@contextmanager
def joined_ranks(device: torch.device, timeout_s: float = _PATIENCE_S) -> Iterator[Ranks]:
    """Join the ranks that torchrun has started, or be the only one; `timeout_s` is that of `Ranks`."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Ranks()
        return
    if device.type == "cuda":
        torch.cuda.set_device(device)
    elif device.type != "cpu":
        raise UserError(f"several ranks need cpu or cuda, not {device.type}")
    with_patience = timedelta(seconds=_PATIENCE_S)
    store, rank, world_size = next(rendezvous("env://", timeout=with_patience))
    # Ranks that torchrun has started again find the store of those that ended, and in it where these could be reached.
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)  # type: ignore[attr-defined]
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world_size, timeout=with_patience)
    try:
        yield Ranks(rank, world_size, timeout_s)
    except BaseException:
        if dist.group.WORLD is not None and device.type == "cuda":
            dist.group.WORLD.abort()  # what waits on the GPU for a rank that is lost would wait forever
        raise
    finally:
        dist.destroy_process_group()


_BUCKET_NUMBERS = 1 << 24  # sent as one message: many small ones wait for each other, one large one overlaps nothing


class GradientSums:
    """Adds up the gradients of weights over ranks while the backward pass is still running; `close` it in the end.

    Weights are put into buckets from the last one to the first, as the backward pass comes to them. When the last
    micro-batch of a batch has given a bucket its gradients, their sum over all ranks is started, and the next bucket is
    computed meanwhile. Which weights share a bucket is fixed by their order alone, and buckets are sent in one order:
    so each number is added up in the same order every time, also in a run that was resumed. torch's own wrapper sorts
    its buckets again after a first step, which would cost that.

    That overlaps in fp32. A compiled step gives all gradients at its end, and in half precision those of the copies
    reach the weights last, as the copies were made first, so nothing is left to overlap with. Sharded weights are not
    handled here: FSDP2 adds up their gradients, and overlaps in any case.

    Args:
        ranks: this one and the others.
        weights: those that may have gradients, in an order that is the same on all ranks.
    """

    def __init__(self, ranks: Ranks, weights: Sequence[Tensor]) -> None:
        self._ranks = ranks
        is_ours = ranks.world_size > 1 and not any(hasattr(weight, "full_tensor") for weight in weights)
        self._buckets = list(buckets_of(reversed(weights))) if is_ours else []
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(self._buckets)
            for weight in bucket
        ]
        self._is_last = False
        self._num_missing: list[int] = []
        self._sent: list[Callable[[], None]] = []
        self._own: list[Tensor] = []

    def begin(self) -> None:
        """Call before the last backward pass of a batch."""
        self._num_missing = [len(bucket) for bucket in self._buckets]
        self._sent, self._own, self._is_last = [], [], True

    def _take(self, number: int, _: Tensor) -> None:
        """Note that a weight of a bucket has its gradient, and send the buckets that are complete."""
        if not self._is_last:
            return
        self._num_missing[number] -= 1
        while len(self._sent) < len(self._buckets) and self._num_missing[len(self._sent)] == 0:
            self._send(self._buckets[len(self._sent)])

    def _send(self, bucket: list[Tensor]) -> None:
        grads = {weight: weight.grad for weight in bucket if weight.grad is not None}
        flat = torch.cat([bucket[0].new_zeros(0), *(grad.reshape(-1) for grad in grads.values())])
        for weight, part in zip(grads, torch.split(flat, [weight.numel() for weight in grads]), strict=True):
            weight.grad = part.view_as(weight)  # the bucket is the gradient now: no copy back, no second one kept
        self._own.append(flat.sum())
        self._sent.append(self._ranks.add_up(flat))

    def finish(self, sums: Tensor) -> Tensor:
        """Wait until all gradients, and the batch's sums, are those of all ranks.

        Returns a number that is finite if this rank's own were.
        """
        self._is_last = False
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket)
        own = torch.stack([sums.sum(), *self._own]).sum()
        for wait in [*self._sent, self._ranks.add_up(sums)]:
            wait()
        return own

    def close(self) -> None:
        """Remove the hooks from the weights."""
        for hook in self._hooks:
            hook.remove()


def buckets_of(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    """Yield tensors in lists of bounded size, in their order."""
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > _BUCKET_NUMBERS:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket


def spread(root: nn.Module, net: nn.Module, device: torch.device, *, half: bool) -> None:
    """Shard a network's weights over all ranks (FSDP2): each keeps a part of every weight, gradient and running mean.

    A block's weights are gathered before it computes, in half precision where it computes in that, and released after
    it; the backward pass gathers them again, adds up their gradients over all ranks and shards the sums, micro-batch by
    micro-batch. So a rank needs the memory of its part and of a block or two, however large the network. Heads are
    treated as blocks are. The rest, above all the embeddings, is gathered in fp32 and kept for a micro-batch: the MLM
    head reads them too. FSDP2 would average the gradients; here a loss is already divided by the predictions of all
    ranks, so it is made to add up.

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
    if not hasattr(net, "blocks"):
        raise UserError("train.shard is for networks of blocks, and this one has none; leave it out")
    named: Any = net
    parts = [part for part in (*named.blocks, *named.heads.values(), getattr(net, "pooler", None)) if part is not None]
    for module in (*(fully_shard(part, mesh=mesh, mp_policy=policy) for part in parts), fully_shard(root, mesh=mesh)):
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
