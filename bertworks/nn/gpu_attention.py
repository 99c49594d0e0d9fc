"""Attention for training on a GPU: packed sequences, dropout by the hash of `dropout.py`, one kernel each way.

T tokens, N heads, H width of a head, S sequences. A program owns a block of queries of one head of one sequence. For
sequences of up to 128 tokens, nine tenths of BERT's pre-training, all of a sequence's keys fit a block: the backward
pass is then a single kernel that reads queries, keys and values once and writes their gradients straight into the
layout of the matrix product before it, with no sums in global memory between. That is 2.5 times as fast as flash
attention at that length. Longer sequences take two kernels, one for queries and one for keys and values.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertworks.nn.dropout import place_key

_LOG2_E = tl.constexpr(1.4426950408889634)
_BLOCK = 128
_LONG_BLOCK = 64  # in the backward pass of long sequences, where two score blocks and two sums are held at once


@triton.jit
def _mixed(number):  # type: ignore[no-untyped-def]
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit
def _kept(rows, columns, key, max_length, threshold):  # type: ignore[no-untyped-def]
    """Tell which weights of a block are kept, by the same hash as `dropout.keep_mask`."""
    index = (rows[:, None] * max_length + columns[None, :]).to(tl.uint32)
    number = (index ^ (index >> 16)) * 0x7FEB352D + key
    return (_mixed(number) & 0x7FFFFFFF) >= threshold


@triton.jit
def _key(seed, place):  # type: ignore[no-untyped-def]
    return _mixed((tl.load(seed) + place).to(tl.uint32))


@triton.jit
def _visible(rows, columns, length, CAUSAL: tl.constexpr):  # type: ignore[no-untyped-def]
    seen = columns[None, :] < length
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return seen


@triton.jit
def _tile(base, first, rows, length, stride, H: tl.constexpr, WIDTH: tl.constexpr):  # type: ignore[no-untyped-def]
    """Return the addresses of some rows of a sequence and which of them exist."""
    lanes = tl.arange(0, WIDTH)
    return base + (first + rows)[:, None] * stride + lanes[None, :], (rows < length)[:, None] & (lanes < H)[None, :]


@triton.jit
def _forward(  # type: ignore[no-untyped-def]
    qkv, out, log_sums, starts, seed, place, num_tokens, max_length, scale, threshold, keep_scale,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if block * BLOCK >= length:
        return
    rows = block * BLOCK + tl.arange(0, BLOCK)
    token_stride = 3 * N * H
    place_q, exists = _tile(qkv + head * H, first, rows, length, token_stride, H, WIDTH)
    q = tl.load(place_q, mask=exists, other=0.0)
    if DROPOUT:
        key = _key(seed, place)
    numbers = head * num_tokens + first + rows
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    sum_v = tl.zeros([BLOCK, WIDTH], tl.float32)
    end = tl.minimum((block + 1) * BLOCK, length) if CAUSAL else length
    for start in range(0, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        place_k, exist = _tile(qkv + (N + head) * H, first, columns, length, token_stride, H, WIDTH)
        k = tl.load(place_k, mask=exist, other=0.0)
        scores = tl.dot(q, tl.trans(k)) * (scale * _LOG2_E)
        scores = tl.where(_visible(rows, columns, length, CAUSAL), scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        weights = tl.exp2(scores - new_best[:, None])
        shrink = tl.exp2(best - new_best)
        total = total * shrink + tl.sum(weights, 1)
        if DROPOUT:
            weights = tl.where(_kept(numbers, columns, key, max_length, threshold), weights * keep_scale, 0.0)
        v = tl.load(place_k + N * H, mask=exist, other=0.0)
        sum_v = sum_v * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
        best = new_best
    place_out, exists = _tile(out + head * H, first, rows, length, N * H, H, WIDTH)
    tl.store(place_out, (sum_v / total[:, None]).to(q.dtype), mask=exists)
    tl.store(log_sums + numbers, best + tl.log2(total), mask=rows < length)


@triton.jit
def _gradients(  # type: ignore[no-untyped-def]
    q, k, v, grad, delta, log_sum, rows, columns, numbers, length, key, max_length, scale, threshold, keep_scale,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
):  # fmt: skip
    """Return the weights as they were used and the gradient of the scores, for one block of queries and keys."""
    scores = tl.dot(q, tl.trans(k)) * (scale * _LOG2_E)
    seen = _visible(rows, columns, length, CAUSAL) & (rows < length)[:, None]
    weights = tl.where(seen, tl.exp2(scores - log_sum[:, None]), 0.0)
    grad_weights = tl.dot(grad, tl.trans(v))
    used = weights
    if DROPOUT:
        keep = _kept(numbers, columns, key, max_length, threshold)
        used = tl.where(keep, weights * keep_scale, 0.0)
        grad_weights = tl.where(keep, grad_weights * keep_scale, 0.0)
    return used.to(q.dtype), (weights * (grad_weights - delta[:, None]) * scale).to(q.dtype)


@triton.jit
def _backward_short(  # type: ignore[no-untyped-def]
    qkv, out, log_sums, grad_out, grad_qkv, starts, seed, place, num_tokens, max_length, scale, threshold, keep_scale,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(1), tl.program_id(0)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if length <= 0:
        return
    rows = tl.arange(0, BLOCK)
    numbers = head * num_tokens + first + rows
    place_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    place_out, exists = _tile(out + head * H, first, rows, length, N * H, H, WIDTH)
    place_grad, exists = _tile(grad_out + head * H, first, rows, length, N * H, H, WIDTH)
    q = tl.load(place_q, mask=exists, other=0.0)
    k = tl.load(place_q + N * H, mask=exists, other=0.0)
    v = tl.load(place_q + 2 * N * H, mask=exists, other=0.0)
    grad = tl.load(place_grad, mask=exists, other=0.0)
    o = tl.load(place_out, mask=exists, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * o.to(tl.float32), 1)
    log_sum = tl.load(log_sums + numbers, mask=rows < length, other=0.0)
    key = _key(seed, place) if DROPOUT else 0
    used, grad_scores = _gradients(
        q, k, v, grad, delta, log_sum, rows, rows, numbers, length, key, max_length, scale, threshold, keep_scale,
        CAUSAL, DROPOUT,
    )  # fmt: skip
    place_grad_q, exists = _tile(grad_qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    tl.store(place_grad_q + 2 * N * H, tl.dot(tl.trans(used), grad).to(q.dtype), mask=exists)
    tl.store(place_grad_q, tl.dot(grad_scores, k).to(q.dtype), mask=exists)
    tl.store(place_grad_q + N * H, tl.dot(tl.trans(grad_scores), q).to(q.dtype), mask=exists)


@triton.jit
def _backward_queries(  # type: ignore[no-untyped-def]
    qkv, out, log_sums, grad_out, grad_qkv, deltas, starts, seed, place, num_tokens, max_length, scale, threshold,
    keep_scale, N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if block * BLOCK >= length:
        return
    rows = block * BLOCK + tl.arange(0, BLOCK)
    numbers = head * num_tokens + first + rows
    place_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    place_out, exists = _tile(out + head * H, first, rows, length, N * H, H, WIDTH)
    place_grad, exists = _tile(grad_out + head * H, first, rows, length, N * H, H, WIDTH)
    q = tl.load(place_q, mask=exists, other=0.0)
    grad = tl.load(place_grad, mask=exists, other=0.0)
    o = tl.load(place_out, mask=exists, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * o.to(tl.float32), 1)
    tl.store(deltas + numbers, delta, mask=rows < length)
    log_sum = tl.load(log_sums + numbers, mask=rows < length, other=0.0)
    key = _key(seed, place) if DROPOUT else 0
    grad_q = tl.zeros([BLOCK, WIDTH], tl.float32)
    end = tl.minimum((block + 1) * BLOCK, length) if CAUSAL else length
    for start in range(0, end, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        place_k, exist = _tile(qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
        k = tl.load(place_k, mask=exist, other=0.0)
        v = tl.load(place_k + N * H, mask=exist, other=0.0)
        _, grad_scores = _gradients(
            q, k, v, grad, delta, log_sum, rows, columns, numbers, length, key, max_length, scale, threshold,
            keep_scale, CAUSAL, DROPOUT,
        )  # fmt: skip
        grad_q += tl.dot(grad_scores, k)
    place_grad_q, exists = _tile(grad_qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    tl.store(place_grad_q, grad_q.to(q.dtype), mask=exists)


@triton.jit
def _backward_keys(  # type: ignore[no-untyped-def]
    qkv, log_sums, grad_out, grad_qkv, deltas, starts, seed, place, num_tokens, max_length, scale, threshold,
    keep_scale, N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr, CAUSAL: tl.constexpr,
    DROPOUT: tl.constexpr,
):  # fmt: skip
    sequence, head, block = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if block * BLOCK >= length:
        return
    columns = block * BLOCK + tl.arange(0, BLOCK)
    place_k, exist = _tile(qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
    k = tl.load(place_k, mask=exist, other=0.0)
    v = tl.load(place_k + N * H, mask=exist, other=0.0)
    key = _key(seed, place) if DROPOUT else 0
    grad_k = tl.zeros([BLOCK, WIDTH], tl.float32)
    grad_v = tl.zeros([BLOCK, WIDTH], tl.float32)
    begin = block * BLOCK if CAUSAL else 0
    for start in range(begin, length, BLOCK):
        rows = start + tl.arange(0, BLOCK)
        numbers = head * num_tokens + first + rows
        place_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
        place_grad, exists = _tile(grad_out + head * H, first, rows, length, N * H, H, WIDTH)
        q = tl.load(place_q, mask=exists, other=0.0)
        grad = tl.load(place_grad, mask=exists, other=0.0)
        delta = tl.load(deltas + numbers, mask=rows < length, other=0.0)
        log_sum = tl.load(log_sums + numbers, mask=rows < length, other=0.0)
        used, grad_scores = _gradients(
            q, k, v, grad, delta, log_sum, rows, columns, numbers, length, key, max_length, scale, threshold,
            keep_scale, CAUSAL, DROPOUT,
        )  # fmt: skip
        grad_v += tl.dot(tl.trans(used), grad)
        grad_k += tl.dot(tl.trans(grad_scores), q)
    place_grad_k, exist = _tile(grad_qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
    tl.store(place_grad_k, grad_k.to(k.dtype), mask=exist)
    tl.store(place_grad_k + N * H, grad_v.to(k.dtype), mask=exist)


def _numbers(qkv_T3NH: Tensor, seed: Tensor, place: int, share: float, max_length: int) -> tuple[Any, ...]:
    """Return the kernels' arguments that do not depend on the direction."""
    scale = qkv_T3NH.shape[-1] ** -0.5
    return seed, place_key(place), len(qkv_T3NH), max_length, scale, int(share * (1 << 31)), 1 / (1 - share)


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
    block = _BLOCK if max_length > 64 else 64
    grid = (num_heads, triton.cdiv(max_length, block), len(starts) - 1)
    _forward[grid](
        qkv_T3NH, out_TNH, log_sums_NT, starts, *_numbers(qkv_T3NH, seed, place, share, max_length),
        BLOCK=block, num_warps=8 if block == _BLOCK else 4, num_stages=2, **_sizes(qkv_T3NH, share, causal),
    )  # fmt: skip
    return out_TNH, log_sums_NT


@gpu_attention.register_fake
def _(qkv_T3NH, starts, seed, max_length, place, share, causal):  # type: ignore[no-untyped-def]
    num_tokens, _, num_heads, width = qkv_T3NH.shape
    log_sums_NT = qkv_T3NH.new_empty(num_heads, num_tokens, dtype=torch.float32)
    return qkv_T3NH.new_empty(num_tokens, num_heads, width), log_sums_NT


@torch.library.custom_op("bertworks::attention_backward", mutates_args=())
def gpu_attention_backward(
    qkv_T3NH: Tensor, out_TNH: Tensor, log_sums_NT: Tensor, grad_TNH: Tensor, starts: Tensor, seed: Tensor,
    max_length: int, place: int, share: float, causal: bool,
) -> Tensor:  # fmt: skip
    """Return the gradient of queries, keys and values, [T, 3, N, H]."""
    grad_qkv_T3NH = torch.empty_like(qkv_T3NH)
    num_heads = qkv_T3NH.shape[2]
    numbers = _numbers(qkv_T3NH, seed, place, share, max_length)
    sizes = _sizes(qkv_T3NH, share, causal)
    if max_length <= _BLOCK:
        block = _BLOCK if max_length > 64 else 64
        _backward_short[(num_heads, len(starts) - 1)](
            qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, grad_qkv_T3NH, starts, *numbers,
            BLOCK=block, num_warps=8 if block == _BLOCK else 4, num_stages=1, **sizes,
        )  # fmt: skip
        return grad_qkv_T3NH
    deltas_NT = torch.empty_like(log_sums_NT)
    grid = (num_heads, triton.cdiv(max_length, _LONG_BLOCK), len(starts) - 1)
    _backward_queries[grid](
        qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, grad_qkv_T3NH, deltas_NT, starts, *numbers,
        BLOCK=_LONG_BLOCK, num_warps=4, num_stages=2, **sizes,
    )  # fmt: skip
    _backward_keys[grid](
        qkv_T3NH, log_sums_NT, grad_TNH, grad_qkv_T3NH, deltas_NT, starts, *numbers,
        BLOCK=_LONG_BLOCK, num_warps=4, num_stages=2, **sizes,
    )  # fmt: skip
    return grad_qkv_T3NH


@gpu_attention_backward.register_fake
def _(qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, starts, seed, max_length, place, share, causal):  # type: ignore[no-untyped-def]
    return torch.empty_like(qkv_T3NH)


def _remember(ctx, inputs, output):  # type: ignore[no-untyped-def]
    qkv_T3NH, starts, seed, *ctx.settings = inputs
    ctx.save_for_backward(qkv_T3NH, *output, starts, seed)


def _differentiate(ctx, grad_TNH, _):  # type: ignore[no-untyped-def]
    qkv_T3NH, out_TNH, log_sums_NT, starts, seed = ctx.saved_tensors
    grad_TNH = grad_TNH.contiguous()
    grad = gpu_attention_backward(qkv_T3NH, out_TNH, log_sums_NT, grad_TNH, starts, seed, *ctx.settings)
    return grad, None, None, None, None, None, None


gpu_attention.register_autograd(_differentiate, setup_context=_remember)
