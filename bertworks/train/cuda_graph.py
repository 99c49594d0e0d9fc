"""The forward and backward pass of a batch as one recording for each shape of batch: what small steps need on a GPU.

A batch of fine-tuning has some hundred tokens. A GPU computes its gradient in a millisecond or two, but Python takes
twenty to launch the thousand kernels for it. So they are launched once, recorded (a CUDA graph) and replayed with a
single call. Batches are padded so that they have few shapes (`tasks/heads.py`); those of pre-training have one for each
length. A batch is recorded when its shape first occurs and is then replayed as well, so that a resumed run computes the
same as one that was never interrupted.

A recording reads its batch from the same memory every time and adds to the same gradients. Dropout draws from torch's
generator, whose seed and place a recording takes from outside, or from a seed that comes with the batch.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

# A graph, where it reads a batch, and where it leaves its sums.
_Recording = tuple[torch.cuda.CUDAGraph, list[Any], Tensor]


class Replayed:
    """Adds the gradients of batches to those of weights.

    Args:
        trainee: gives the loss of a batch and its sums, on the device.
        weights: those that are trained, on the device.
    """

    def __init__(self, trainee: Callable[[Any, Tensor], tuple[Tensor, Tensor]], weights: Sequence[Tensor]) -> None:
        self._trainee, self._weights, self._device = trainee, list(weights), weights[0].device
        self._grads = [torch.zeros_like(weight) for weight in weights]
        self._recordings: dict[Any, _Recording] = {}
        # Recordings never run at the same time, so they may share memory. Memory goes by stream, so that is one too.
        self._pool, self._stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, batch: Any, counts: Tensor) -> Tensor:
        """Add the gradients of a batch, which is on the CPU or the device; returns its sums."""
        leaves, form = tree_flatten((batch, counts))
        key = tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
        if key not in self._recordings:
            self._recordings[key] = self._record(leaves, form)
        graph, inputs, sums = self._recordings[key]
        for there, here in zip(inputs, leaves, strict=True):
            if isinstance(here, Tensor):
                there.copy_(here if here.is_cuda else here.pin_memory(), non_blocking=True)
        if self._weights[0].grad is None:  # the first part of a batch
            torch._foreach_zero_(self._grads)
            for weight, grad in zip(self._weights, self._grads, strict=True):
                weight.grad = grad
        graph.replay()
        return sums.clone()

    def _record(self, leaves: Sequence[Any], form: Any) -> _Recording:
        inputs = [leaf.to(self._device, copy=True) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        batch, counts = tree_unflatten(inputs, form)
        graph, stream = torch.cuda.CUDAGraph(), self._stream
        # The generator is left as it was: what is drawn must not depend on when something was recorded.
        with torch.random.fork_rng([self._device]):
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                self._gradients(batch, counts)  # loads all kernels: nothing may be compiled or loaded while recording
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):
                grads, sums = self._gradients(batch, counts)
                torch._foreach_add_(self._grads, list(grads))
        return graph, inputs, sums

    def _gradients(self, batch: Any, counts: Tensor) -> tuple[Sequence[Tensor], Tensor]:
        loss, sums = self._trainee(batch, counts)
        return torch.autograd.grad(loss, self._weights), sums
