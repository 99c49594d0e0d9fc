"""A network with its objective as one module: what torch.compile sees.

The weights are fp32 and stay so; they are the masters that the optimizer changes. In half precision each step works on
copies of them, made inside the compiled step, and its whole residual stream is in half precision too. Embeddings are
looked up in fp32: a frequent token's row gathers gradients from thousands of places, which bf16 would round away.
"""

import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from bertworks.train.objectives import Objective

# BERT's and GPT-1's embeddings; and cuDNN's LSTMs want their weights where they are.
_KEPT_IN_FULL = re.compile(r"net\.((encoders\.\d+\.)?embeddings|token|position|bilstm)\.")


class Trainee(nn.Module):
    """Computes the loss of a batch.

    Args:
        net: the network, in fp32.
        objective: gives the sums of its predictions.
        dtype: what to compute in.
    """

    def __init__(self, net: nn.Module, objective: Objective, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner = _WithObjective(net, objective)
        self.dtype = dtype

    def forward(self, batch: Any, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and, for each kind of prediction, [kinds, (loss, correct, count)] in sums.

        Args:
            batch: what the objective reads.
            counts: how many predictions of each kind the global batch has.
        """
        if self.dtype == torch.float32:
            return self.inner(batch, counts)
        copies = {name: self._copy(name, weight) for name, weight in self.inner.named_parameters()}
        return functional_call(self.inner, copies, (batch, counts))

    def _copy(self, name: str, weight: Tensor) -> Tensor:
        return weight if _KEPT_IN_FULL.match(name) else weight.to(self.dtype)


def with_backward(trainee: Callable[[Any, Tensor], tuple[Tensor, Tensor]]) -> Callable[[Any, Tensor], Tensor]:
    """Return a function that adds the gradients of a batch to the weights', and returns its sums."""

    def compute(batch: Any, counts: Tensor) -> Tensor:
        loss, sums = trainee(batch, counts)
        loss.backward()  # type: ignore[no-untyped-call]
        return sums

    return compute


class _WithObjective(nn.Module):
    def __init__(self, net: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.net = net
        self.objective = objective

    def forward(self, batch: Any, counts: Tensor) -> tuple[Tensor, Tensor]:
        kinds = self.objective(self.net, batch)
        losses = torch.stack([sums.loss for sums in kinds.values()])
        # At least 1: a batch without a prediction of some kind adds nothing to the loss, not a NaN.
        loss = (losses / counts.clamp(min=1)).sum()
        return loss, torch.stack([torch.stack(sums).detach() for sums in kinds.values()])
