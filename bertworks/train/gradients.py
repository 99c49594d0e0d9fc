"""The gradients of all ranks, added up while the backward pass still goes on.

Weights are put into buckets from the last one to the first, as the backward pass comes to them. When the last of a
batch's slices has given a bucket its gradients, their sum over all ranks is begun, and the next bucket is computed
meanwhile. Which weights share a bucket is fixed by their order alone, and buckets are sent in one order: so each number
is added up in the same order every time, also in a run that was resumed. torch's own wrapper sorts its buckets anew
after a first step, which would cost that.

That overlaps in fp32. A compiled step gives all gradients at its end, and in half precision those of the copies come to
the weights last, as the copies were made first: there is nothing left then to go on meanwhile. Weights that are spread
over ranks are none of this file's business: FSDP2 adds up their gradients, and overlaps in any case.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

from bertworks.train.distributed import Ranks

_BUCKET_NUMBERS = 1 << 24  # sent as one message: many small ones wait for each other, one large one overlaps nothing


class GradientSums:
    """Adds up the gradients of weights over ranks; `close` it in the end.

    Args:
        ranks: this one and the others.
        weights: those that may have gradients, in an order that is the same on all ranks.
    """

    def __init__(self, ranks: Ranks, weights: Sequence[Tensor]) -> None:
        self._ranks = ranks
        is_ours = ranks.world_size > 1 and not any(hasattr(weight, "full_tensor") for weight in weights)
        self._buckets = list(_buckets(reversed(weights))) if is_ours else []
        self._hooks = [
            weight.register_post_accumulate_grad_hook(partial(self._take, number))  # type: ignore[no-untyped-call]
            for number, bucket in enumerate(self._buckets)
            for weight in bucket
        ]
        self._is_last_slice = False
        self._num_missing: list[int] = []
        self._sent: list[Callable[[], None]] = []
        self._own: list[Tensor] = []

    def begin(self) -> None:
        """Say that the next backward pass is the last of a batch."""
        self._num_missing = [len(bucket) for bucket in self._buckets]
        self._sent, self._own, self._is_last_slice = [], [], True

    def _take(self, number: int, _: Tensor) -> None:
        """Note that a weight of a bucket has its gradient, and send what is complete."""
        if not self._is_last_slice:
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
        self._is_last_slice = False
        for bucket in self._buckets[len(self._sent) :]:
            self._send(bucket)
        own = torch.stack([sums.sum(), *self._own]).sum()
        for wait in [*self._sent, self._ranks.add_up(sums)]:
            wait()
        return own

    def close(self) -> None:
        """Listen to the weights no longer."""
        for hook in self._hooks:
            hook.remove()


def _buckets(tensors: Iterable[Tensor]) -> Iterator[list[Tensor]]:
    bucket: list[Tensor] = []
    for tensor in tensors:
        if bucket and sum(each.numel() for each in bucket) + tensor.numel() > _BUCKET_NUMBERS:
            yield bucket
            bucket = []
        bucket.append(tensor)
    if bucket:
        yield bucket
