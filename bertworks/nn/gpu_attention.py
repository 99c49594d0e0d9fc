"""Attention for training on a GPU as an operator of torch: packed sequences in, values and gradients out, few kernels.

T tokens, N heads, H width of a head. What the kernels of `attention_kernels.py` are launched with was measured.
"""

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from bertworks.nn.attention_kernels import backward_keys, backward_queries, backward_short, forward
from bertworks.nn.dropout import place_key, wrapped


class _Launch(NamedTuple):
    """How a kernel is cut: rows of queries and keys in a block, warps and pipeline stages; measured on an H200."""

    queries: int
    keys: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """Return the launch options of a kernel."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "num_warps": self.warps, "num_stages": self.stages}


_SHORT = 128  # tokens: the longest sequences whose keys are one block
_FORWARD_SHORT = _Launch(64, 32, 4, 3)
_FORWARD = _Launch(64, 64, 4, 3)
_BACKWARD_QUERIES = _Launch(64, 32, 4, 3)
_BACKWARD_KEYS = _Launch(64, 64, 4, 3)


def _numbers(qkv_T3NH: Tensor, seed: Tensor, place: int, share: float) -> tuple[Any, ...]:
    """Return the kernels' arguments that do not depend on the direction."""
    threshold = wrapped(int(share * (1 << 32)))
    return seed, place_key(place), len(qkv_T3NH), qkv_T3NH.shape[-1] ** -0.5, threshold, 1 / (1 - share)


def _sizes(qkv_T3NH: Tensor, share: float, causal: bool) -> dict[str, Any]:
    _, _, num_heads, width = qkv_T3NH.shape
    padded = max(16, triton.next_power_of_2(width))
    return {"N": num_heads, "H": width, "WIDTH": padded, "CAUSAL": causal, "DROPOUT": share > 0}


@torch.library.custom_op("bertworks::attention", mutates_args=())
def gpu_attention(
    qkv_T3NH: Tensor, starts: Tensor, seed: Tensor, max_length: int, place: int, share: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """Attend within sequences; returns the values [T, N, H] and each row's log-sum of scores [N, T]."""
    num_tokens, _, num_heads, width = qkv_T3NH.shape
    out_TNH = qkv_T3NH.new_empty(num_tokens, num_heads, width)
    log_sums_NT = qkv_T3NH.new_empty(num_heads, num_tokens, dtype=torch.float32)
    launch = _FORWARD_SHORT if max_length <= _SHORT else _FORWARD
    grid = (num_heads, triton.cdiv(max_length, launch.queries), len(starts) - 1)
    forward[grid](
        qkv_T3NH, out_TNH, log_sums_NT, starts, *_numbers(qkv_T3NH, seed, place, share),
        **_sizes(qkv_T3NH, share, causal), **launch.options(),
    )  # fmt: skip
    return out_TNH, log_sums_NT


@gpu_attention.register_fake
def _(qkv_T3NH: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    num_tokens, num_heads, width = qkv_T3NH.shape[0], *qkv_T3NH.shape[2:]
    log_sums_NT = qkv_T3NH.new_empty(num_heads, num_tokens, dtype=torch.float32)
    return qkv_T3NH.new_empty(num_tokens, num_heads, width), log_sums_NT


@torch.library.custom_op("bertworks::attention_backward", mutates_args=())
def gpu_attention_backward(
    qkv_T3NH: Tensor, out_TNH: Tensor, log_sums_NT: Tensor, grad_TNH: Tensor, starts: Tensor, seed: Tensor,
    max_length: int, place: int, share: float, causal: bool,
) -> Tensor:  # fmt: skip
    """Return the gradient of queries, keys and values, [T, 3, N, H]."""
    grad_qkv_T3NH = torch.empty_like(qkv_T3NH)
    num_heads, num_sequences = qkv_T3NH.shape[2], len(starts) - 1
    numbers = _numbers(qkv_T3NH, seed, place, share)
    sizes = _sizes(qkv_T3NH, share, causal)
    if max_length <= _SHORT:
        backward_short[(num_heads, num_sequences)](
            qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, grad_qkv_T3NH, starts, *numbers, **sizes,
            KEYS=_SHORT, num_warps=8, num_stages=1,
        )  # fmt: skip
        return grad_qkv_T3NH
    deltas_NT = torch.empty_like(log_sums_NT)
    backward_queries[(num_heads, triton.cdiv(max_length, _BACKWARD_QUERIES.queries), num_sequences)](
        qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, grad_qkv_T3NH, deltas_NT, starts, *numbers, **sizes,
        **_BACKWARD_QUERIES.options(),
    )  # fmt: skip
    backward_keys[(num_heads, triton.cdiv(max_length, _BACKWARD_KEYS.keys), num_sequences)](
        qkv_T3NH, log_sums_NT, grad_TNH, grad_qkv_T3NH, deltas_NT, starts, *numbers, **sizes,
        **_BACKWARD_KEYS.options(),
    )  # fmt: skip
    return grad_qkv_T3NH


@gpu_attention_backward.register_fake
def _(qkv_T3NH: Tensor, *_: Any) -> Tensor:
    return torch.empty_like(qkv_T3NH)


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    qkv_T3NH, starts, seed, *ctx.settings = inputs
    ctx.save_for_backward(qkv_T3NH, *output, starts, seed)


def _differentiate(ctx: Any, grad_TNH: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    qkv_T3NH, out_TNH, log_sums_NT, starts, seed = ctx.saved_tensors
    grad_TNH = grad_TNH.contiguous()
    grad = gpu_attention_backward(qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, starts, seed, *ctx.settings)
    return grad, None, None, None, None, None, None


gpu_attention.register_autograd(_differentiate, setup_context=_remember)
