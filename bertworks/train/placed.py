"""Where a network is while it is trained: whole on the device of every rank, or spread over the ranks.

A spread one is a copy. The network itself, whose weights become a model folder, stays whole on the CPU of the rank that
writes; the parts come back to it, tensor by tensor, when they are to be written.
"""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from bertworks.nn.recompute import recompute_blocks
from bertworks.nn.tiles import check_tiles
from bertworks.train.distributed import Ranks
from bertworks.train.settings import TrainSettings
from bertworks.train.sharding import fill, gathered, spread
from bertworks.train.subject import Subject
from bertworks.train.trainee import Trainee


class Placed:
    """A network in its place.

    Args:
        subject: has the network, new and on the CPU.
        settings: whether it is spread, and its blocks computed twice.
        device: where to compute.
        ranks: this one and the others.
        half: whether to compute in half precision.

    Attributes:
        net: the network that is trained.
        trainee: computes its loss.
        is_spread: whether each rank has a part of it.
    """

    def __init__(
        self, subject: Subject, settings: TrainSettings, device: torch.device, ranks: Ranks, *, half: bool
    ) -> None:
        check_tiles(device, torch.bfloat16 if half else torch.float32)
        self._written, self._ranks, self._device = subject.net, ranks, device
        self.is_spread = settings.shard and ranks.world_size > 1
        self.net: nn.Module = copy.deepcopy(subject.net) if self.is_spread else subject.net.to(device)
        # A spread network makes its copies in half precision itself, when it gathers its weights.
        makes_copies = half and not self.is_spread
        self.trainee = Trainee(self.net, subject.objective, torch.bfloat16 if makes_copies else torch.float32).train()
        if self.is_spread:
            spread(self.trainee.inner, self.net, device, half=half)
            if not ranks.is_first:
                self._written.to("meta")
        if settings.recompute:
            recompute_blocks(self.net)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over whole weights, which every rank has."""
        for name, tensor in self.net.state_dict().items():
            fill(tensor, weights[name])

    def whole(self) -> nn.Module:
        """Return the network for every rank to measure: itself, or a copy of all its parts. All ranks must call it."""
        if not self.is_spread:
            return self.net
        weights = gathered(self.net.state_dict(), keep=True)
        net = copy.deepcopy(self._written).to_empty(device=self._device)
        net.load_state_dict(weights)
        return net

    def collected(self, optimizer: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Have the subject's network up to date and return the optimizer's state whole, on the rank that writes.

        All ranks must call it.
        """
        if not self.is_spread:
            return optimizer
        weights = gathered(self.net.state_dict(), keep=self._ranks.is_first)
        if self._ranks.is_first:
            self._written.load_state_dict(weights)
        return gathered(optimizer, keep=self._ranks.is_first)
