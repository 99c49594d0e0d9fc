"""A linear layer's bias and gelu (erf) for training on a GPU: one kernel per pass, including the bias gradient.

T tokens, F width. torch.compile would recompute the output in the backward pass and read the input's gradient once more
to sum it for the bias; both are as large as the network's largest tensors.

The normal distribution is computed by a classic approximation (Abramowitz and Stegun 7.1.26, error below 1e-7): the
exact error function would take longer than the memory accesses. Its gradient reuses the exponential. Functions that
triton compiles have no type annotations.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

_FORWARD = {"ROWS": 32, "COLUMNS": 128, "num_warps": 8}  # a program's tile; measured on an H200
_BACKWARD = {"ROWS": 64, "COLUMNS": 64, "num_warps": 4}


@triton.jit
def _normal(x):
    """Return the cumulative distribution and the density of the normal distribution at x."""
    z = tl.abs(x) * 0.7071067811865476
    bell = tl.exp2(z * z * -1.4426950408889634)
    t = 1.0 / (1.0 + 0.3275911 * z)
    polynomial = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    above = 0.5 * polynomial * bell
    return tl.where(x >= 0, 1.0 - above, above), bell * 0.3989422804014327


@triton.jit
def _tile(num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the offsets of this program's elements, which of them exist, and its columns."""
    rows = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    exists = (rows < num_rows)[:, None] & (columns < width)[None, :]
    return rows[:, None] * width + columns[None, :], exists, columns


@triton.jit
def _forward(x, bias, out, num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    offsets, exists, columns = _tile(num_rows, width, ROWS, COLUMNS)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    wide = tl.load(x + offsets, mask=exists, other=0.0).to(tl.float32) + shift[None, :]
    below, _ = _normal(wide)
    tl.store(out + offsets, (wide * below).to(out.dtype.element_ty), mask=exists)


@triton.jit
def _backward(x, bias, grad, grad_x, sums, num_rows, width, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    offsets, exists, columns = _tile(num_rows, width, ROWS, COLUMNS)
    shift = tl.load(bias + columns, mask=columns < width, other=0.0).to(tl.float32)
    wide = tl.load(x + offsets, mask=exists, other=0.0).to(tl.float32) + shift[None, :]
    given = tl.load(grad + offsets, mask=exists, other=0.0).to(tl.float32)
    below, density = _normal(wide)
    passed = given * (below + wide * density)
    tl.store(grad_x + offsets, passed.to(grad_x.dtype.element_ty), mask=exists)
    tl.store(sums + tl.program_id(1) * width + columns, tl.sum(passed, 0), mask=columns < width)


def _grid(x_TF: Tensor, tile: dict[str, int]) -> tuple[int, int]:
    return triton.cdiv(x_TF.shape[1], tile["COLUMNS"]), triton.cdiv(x_TF.shape[0], tile["ROWS"])


@torch.library.custom_op("bertworks::bias_gelu", mutates_args=())
def bias_gelu(x_TF: Tensor, bias_F: Tensor) -> Tensor:
    """Return gelu(x + bias)."""
    out_TF = torch.empty_like(x_TF)
    _forward[_grid(x_TF, _FORWARD)](x_TF, bias_F, out_TF, *x_TF.shape, **_FORWARD)
    return out_TF


@bias_gelu.register_fake
def _(x_TF: Tensor, _: Tensor) -> Tensor:
    return torch.empty_like(x_TF)


@torch.library.custom_op("bertworks::bias_gelu_backward", mutates_args=())
def bias_gelu_backward(x_TF: Tensor, bias_F: Tensor, grad_TF: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x, and its sums over groups of tokens, whose total is the gradient of the bias."""
    grad_x_TF = torch.empty_like(x_TF)
    sums = _empty_sums(x_TF)
    _backward[_grid(x_TF, _BACKWARD)](x_TF, bias_F, grad_TF, grad_x_TF, sums, *x_TF.shape, **_BACKWARD)
    return grad_x_TF, sums


@bias_gelu_backward.register_fake
def _(x_TF: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x_TF), _empty_sums(x_TF)


def _empty_sums(x_TF: Tensor) -> Tensor:
    return x_TF.new_empty(_grid(x_TF, _BACKWARD)[1], x_TF.shape[1], dtype=torch.float32)


def _remember(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:  # noqa: ARG001 -- torch calls it so
    ctx.save_for_backward(*inputs)


def _differentiate(ctx: Any, grad_TF: Tensor) -> tuple[Tensor, Tensor]:
    x_TF, bias_F = ctx.saved_tensors
    grad_x_TF, sums = bias_gelu_backward(x_TF, bias_F, grad_TF.contiguous())
    return grad_x_TF, sums.sum(0).to(bias_F.dtype)


bias_gelu.register_autograd(_differentiate, setup_context=_remember)
