"""A running mean of the weights, which is measured and kept in their place.

In the middle of fine-tuning the learning rate is still high and the weights jump about. Their mean over the last part
of an epoch lies near where a falling rate would have led them, at a time when the train set is not yet known by heart.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from bertworks.train.optim import Optimizer

_PREFIX = "average."
_IDLE = "idle"  # what weight decay has left of rows that never have a gradient: one number, with a mean as well


class Average:
    """Follows the weights of an optimizer; in the beginning it is the weights.

    Args:
        optimizer: what changes the weights.
        num_updates: over about how many the mean reaches back.

    Attributes:
        nbytes: that a checkpoint has for it.
    """

    def __init__(self, optimizer: Optimizer, num_updates: float) -> None:
        self._num_updates = max(num_updates, 1.0)
        self._followed = {name: weight.detach() for name, weight in optimizer.named_weights().items()}
        self._followed[_IDLE] = optimizer.idle
        self._means = {name: tensor.clone() for name, tensor in self._followed.items()}
        self.nbytes = sum(mean.nbytes for mean in self._means.values())

    def follow(self, step: int, norm: Tensor) -> None:
        """Take in the weights that an update has led to.

        Args:
            step: how many updates there were before.
            norm: of its gradients; where that is not finite, nothing was changed and nothing is taken in.
        """
        share = max(1 / self._num_updates, 1 / (step + 2))  # in the beginning the mean of all there were
        share_or_nothing = torch.where(norm.isfinite(), share, 0.0)
        *weights, idle = self._followed.values()
        *means, idle_mean = self._means.values()
        for ours, theirs in ((means, weights), ([idle_mean], [idle])):  # apart, for the last has another precision
            differences = torch._foreach_sub(theirs, ours)
            torch._foreach_mul_(differences, share_or_nothing)
            torch._foreach_add_(ours, differences)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Have the mean in the network for a while."""
        kept = {name: tensor.clone() for name, tensor in self._followed.items()}
        _copy(self._means, self._followed)
        try:
            yield
        finally:
            _copy(kept, self._followed)

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold to go on."""
        return {_PREFIX + name: mean for name, mean in self._means.items()}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what a checkpoint holds."""
        _copy({name: tensors[_PREFIX + name] for name in self._means}, self._means)


def _copy(source: Mapping[str, Tensor], target: Mapping[str, Tensor]) -> None:
    for name, tensor in target.items():
        tensor.copy_(source[name])
