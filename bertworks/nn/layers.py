"""Linear maps, embeddings and LayerNorm whose weights are made without values.

A model folder or `initialise` gives the values: torch's own layers would first fill hundreds of megabytes with random
numbers that are then overwritten.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_SINUSOID_BASE = 10_000.0


class Linear(nn.Module):
    """x W^T + b.

    On a CPU a frozen layer multiplies with a copy of its matrix in the order that the processor reads it: 1.1 times as
    fast for a thousand rows and 2 to 3 times for ten, where a plain product spends its time on bringing the matrix into
    that order. The copy is made when it is first needed; a pickle or a copy of the layer makes its own.
    """

    def __init__(self, num_in: int, num_out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_out, num_in))
        self.bias = nn.Parameter(torch.empty(num_out))
        self.is_frozen = False
        self._ordered: Tensor | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_ordered": None}  # which has no storage that torch could pickle

    def forward(self, x: Tensor) -> Tensor:
        """Map the last dimension."""
        if self.is_frozen and x.numel() and x.dtype == torch.float32 and not torch.is_grad_enabled():
            if self._ordered is None:
                self._ordered = torch.ops.mkldnn._reorder_linear_weight(self.weight)
            return torch.ops.mkldnn._linear_pointwise(x, self._ordered, self.bias, "none", [], "")
        return F.linear(x, self.weight, self.bias)


def freeze(model: nn.Module) -> None:
    """Say that the weights of a model on the CPU will not change any more, which makes it faster."""
    # Builds without it multiply as always.
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.dtype == torch.float32:
            module.is_frozen = module.weight.device.type == "cpu"


class Embedding(nn.Module):
    """A row for every id; `sinusoidal` ones are a table that is not learnt."""

    def __init__(self, num_rows: int, width: int, *, sinusoidal: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width), requires_grad=not sinusoidal)
        self.sinusoidal = sinusoidal

    def forward(self, ids: Tensor) -> Tensor:
        """Look up the rows."""
        return F.embedding(ids, self.weight)


class LayerNorm(nn.Module):
    """Mean 0 and variance 1 over the last dimension, then scaled and shifted."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Normalise."""
        return F.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


def activate(x: Tensor, name: str) -> Tensor:
    """Apply the activation function of that name."""
    if name == "relu":
        return F.relu(x)
    return F.gelu(x, approximate="tanh" if name == "gelu_new" else "none")


def activated(linear: Linear, x: Tensor, name: str) -> Tensor:
    """Apply a linear map and the activation function of that name."""
    if name == "gelu" and linear.training and x.is_cuda and x.dtype != torch.float32:
        from bertworks.nn.gpu_gelu import bias_gelu  # needs triton, which only GPU builds of torch bring

        return bias_gelu(F.linear(x, linear.weight), linear.bias)
    return activate(linear(x), name)


@torch.no_grad()
def initialise(model: nn.Module, std: float, seed: int, *, cut: bool = True) -> None:
    """Fill all weights as the original code does: matrices by a normal cut at two deviations, biases 0, scales 1.

    GPT-1's normal is not cut.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.ndim > 1:
                values = torch.empty(parameter.shape)  # drawn on the CPU: the same on every device
                if cut:
                    nn.init.trunc_normal_(values, 0.0, std, -2 * std, 2 * std, generator=generator)
                else:
                    nn.init.normal_(values, 0.0, std, generator=generator)
                parameter.copy_(values)
            else:
                parameter.fill_(1.0 if isinstance(module, LayerNorm) and name == "weight" else 0.0)
        # After the drawing, so that all else begins as it does with learned positions.
        if isinstance(module, Embedding) and module.sinusoidal:
            module.weight.copy_(sinusoids(*module.weight.shape))


def sinusoids(num_positions: int, width: int) -> Tensor:
    """Return the Transformer's fixed position table: sines in even, cosines in odd columns, ever longer waves."""
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * torch.pow(
        _SINUSOID_BASE, -torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    table = torch.zeros(num_positions, width, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : width // 2]
    return table.float()
