"""Attention for training on a GPU, as a torch operator with Triton kernels for packed sequences.

T tokens, N heads, H width of a head.

- A program computes a block of queries of one head of one sequence. For sequences of up to 128 tokens, nine tenths of
  BERT's pre-training, all keys of a sequence fit into one block. Then the backward pass is a single kernel: it reads
  queries, keys and values once and writes their gradients directly in the layout of the preceding matrix product,
  without partial sums in global memory. Longer sequences take two kernels, one for queries and one for keys and values.
- Dropout masks are computed by a hash, as in `layers.py`.
- The kernels are limited by the arithmetic on single attention weights, about ten operations each besides the matrix
  products. So factors are applied once per row, and only blocks that extend over the end of a sequence are masked.
- The launch options were chosen by measurement. Functions that triton compiles have no type annotations.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from bertworks.nn.layers import place_key, wrapped

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def _mixed(number):
    number = (number ^ (number >> 16)) * 0x7FEB352D
    number = (number ^ (number >> 15)) * 0x846CA68B
    return number ^ (number >> 16)


@triton.jit
def _kept(row_keys, column_keys, threshold):
    """Return which weights of a block dropout keeps, as `kept_pairs` does."""
    # Keys are hashed once per row and column, and a pair of them takes one multiply-add: at length 512 every operation
    # here is a tenth of the kernel's time.
    number = (row_keys | 1)[:, None] * column_keys[None, :] + _mixed(row_keys)[:, None]
    return number >= threshold.to(tl.uint32)


@triton.jit
def _visible(rows, columns, length, CAUSAL: tl.constexpr):
    seen = columns[None, :] < length
    if CAUSAL:
        seen = seen & (columns[None, :] <= rows[:, None])
    return seen


@triton.jit
def _tile(base, first, rows, length, stride, H: tl.constexpr, WIDTH: tl.constexpr):
    """Return the addresses of some rows of a sequence and which of them exist."""
    lanes = tl.arange(0, WIDTH)
    return base + (first + rows)[:, None] * stride + lanes[None, :], (rows < length)[:, None] & (lanes < H)[None, :]


@triton.jit
def _attend_to(
    state, start, q, qkv, head, rows, row_keys, key, first, length, factor, threshold,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Update the running maximum, total and sum of values with one block of keys."""
    best, total, sum_v = state
    columns = start + tl.arange(0, KEYS)
    pointers_k, exist = _tile(qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
    k = tl.load(pointers_k, mask=exist, other=0.0)
    scores = tl.dot(q, tl.trans(k))
    if MASKED:
        scores = tl.where(_visible(rows, columns, length, CAUSAL), scores, float("-inf"))
    new_best = tl.maximum(best, tl.max(scores, 1) * factor)
    weights = tl.exp2(scores * factor - new_best[:, None])
    shrink = tl.exp2(best - new_best)
    total = total * shrink + tl.sum(weights, 1)
    if DROPOUT:
        weights = tl.where(_kept(row_keys, _mixed(columns.to(tl.uint32) ^ key), threshold), weights, 0.0)
    v = tl.load(pointers_k + N * H, mask=exist, other=0.0)
    sum_v = sum_v * shrink[:, None] + tl.dot(weights.to(v.dtype), v)
    return new_best, total, sum_v


@triton.jit
def forward(
    qkv, out, log_sums, starts, seed, place, num_tokens, scale, threshold, keep_scale,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the values of one block of queries, and the log-sums of their scores."""
    sequence, head, block = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if block * QUERIES >= length:
        return
    rows = block * QUERIES + tl.arange(0, QUERIES)
    numbers = head * num_tokens + first + rows
    pointers_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    q = tl.load(pointers_q, mask=exists, other=0.0)
    key = (tl.load(seed) + place).to(tl.uint32)
    row_keys = _mixed(numbers.to(tl.uint32) + key)
    best = tl.full([QUERIES], float("-inf"), tl.float32)
    state = best, tl.zeros([QUERIES], tl.float32), tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum((block + 1) * QUERIES, length) if CAUSAL else length
    unmasked = 0 if CAUSAL else length // KEYS * KEYS
    for start in range(0, unmasked, KEYS):
        state = _attend_to(
            state, start, q, qkv, head, rows, row_keys, key, first, length, scale * _LOG2_E, threshold,
            N, H, WIDTH, CAUSAL, DROPOUT, KEYS, MASKED=False,
        )  # fmt: skip
    for start in range(unmasked, end, KEYS):
        state = _attend_to(
            state, start, q, qkv, head, rows, row_keys, key, first, length, scale * _LOG2_E, threshold,
            N, H, WIDTH, CAUSAL, DROPOUT, KEYS, MASKED=True,
        )  # fmt: skip
    best, total, sum_v = state
    pointers_out, exists = _tile(out + head * H, first, rows, length, N * H, H, WIDTH)
    tl.store(pointers_out, (sum_v * (keep_scale / total)[:, None]).to(q.dtype), mask=exists)
    tl.store(log_sums + numbers, best + tl.log2(total), mask=rows < length)


@triton.jit
def _gradients(
    q, k, v, grad, delta, log_sum, rows, columns, row_keys, column_keys, length, scale, threshold,
    CAUSAL: tl.constexpr, DROPOUT: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Return the weights after dropout and the gradient of the scores, for one block of queries and keys.

    The caller applies the common factors: `keep_scale` to both, and `scale` to the gradient.
    """
    weights = tl.exp2(tl.dot(q, tl.trans(k)) * (scale * _LOG2_E) - log_sum[:, None])
    if MASKED:
        weights = tl.where(_visible(rows, columns, length, CAUSAL), weights, 0.0)
    grad_weights = tl.dot(grad, tl.trans(v))
    used = weights
    if DROPOUT:
        keep = _kept(row_keys, column_keys, threshold)
        used = tl.where(keep, weights, 0.0)
        grad_weights = tl.where(keep, grad_weights, 0.0)
    return used.to(q.dtype), (weights * (grad_weights - delta[:, None])).to(q.dtype)


@triton.jit
def backward_short(
    qkv, out, log_sums, grad_out, grad_qkv, starts, seed, place, num_tokens, scale, threshold, keep_scale,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    KEYS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of a whole sequence whose keys fit into one block."""
    sequence, head = tl.program_id(1), tl.program_id(0)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if length <= 0:
        return
    rows = tl.arange(0, KEYS)
    numbers = head * num_tokens + first + rows
    pointers_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    pointers_out, exists = _tile(out + head * H, first, rows, length, N * H, H, WIDTH)
    pointers_grad, exists = _tile(grad_out + head * H, first, rows, length, N * H, H, WIDTH)
    q = tl.load(pointers_q, mask=exists, other=0.0)
    k = tl.load(pointers_q + N * H, mask=exists, other=0.0)
    v = tl.load(pointers_q + 2 * N * H, mask=exists, other=0.0)
    grad = tl.load(pointers_grad, mask=exists, other=0.0)
    o = tl.load(pointers_out, mask=exists, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * o.to(tl.float32), 1) / keep_scale
    log_sum = tl.load(log_sums + numbers, mask=rows < length, other=0.0)
    key = (tl.load(seed) + place).to(tl.uint32)
    row_keys, column_keys = _mixed(numbers.to(tl.uint32) + key), _mixed(rows.to(tl.uint32) ^ key)
    used, grad_scores = _gradients(
        q, k, v, grad, delta, log_sum, rows, rows, row_keys, column_keys, length, scale, threshold,
        CAUSAL, DROPOUT, MASKED=True,
    )  # fmt: skip
    pointers_grad_q, exists = _tile(grad_qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    factor = scale * keep_scale
    tl.store(pointers_grad_q + 2 * N * H, (tl.dot(tl.trans(used), grad) * keep_scale).to(q.dtype), mask=exists)
    tl.store(pointers_grad_q, (tl.dot(grad_scores, k) * factor).to(q.dtype), mask=exists)
    tl.store(pointers_grad_q + N * H, (tl.dot(tl.trans(grad_scores), q) * factor).to(q.dtype), mask=exists)


@triton.jit
def _add_grad_q(
    grad_q, start, q, grad, delta, log_sum, qkv, head, rows, row_keys, key, first, length, scale, threshold,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    KEYS: tl.constexpr, MASKED: tl.constexpr,
):  # fmt: skip
    """Add the contribution of one block of keys to the gradient of the queries."""
    columns = start + tl.arange(0, KEYS)
    pointers_k, exist = _tile(qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
    k = tl.load(pointers_k, mask=exist, other=0.0)
    v = tl.load(pointers_k + N * H, mask=exist, other=0.0)
    _, grad_scores = _gradients(
        q, k, v, grad, delta, log_sum, rows, columns, row_keys, _mixed(columns.to(tl.uint32) ^ key), length, scale,
        threshold, CAUSAL, DROPOUT, MASKED,
    )  # fmt: skip
    return grad_q + tl.dot(grad_scores, k)


@triton.jit
def backward_queries(
    qkv, out, log_sums, grad_out, grad_qkv, deltas, starts, seed, place, num_tokens, scale, threshold, keep_scale,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the gradient of one block of queries, and the row sums `deltas` for `backward_keys`."""
    sequence, head, block = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if block * QUERIES >= length:
        return
    rows = block * QUERIES + tl.arange(0, QUERIES)
    numbers = head * num_tokens + first + rows
    pointers_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    pointers_out, exists = _tile(out + head * H, first, rows, length, N * H, H, WIDTH)
    pointers_grad, exists = _tile(grad_out + head * H, first, rows, length, N * H, H, WIDTH)
    q = tl.load(pointers_q, mask=exists, other=0.0)
    grad = tl.load(pointers_grad, mask=exists, other=0.0)
    o = tl.load(pointers_out, mask=exists, other=0.0)
    delta = tl.sum(grad.to(tl.float32) * o.to(tl.float32), 1) / keep_scale
    tl.store(deltas + numbers, delta, mask=rows < length)
    log_sum = tl.load(log_sums + numbers, mask=rows < length, other=0.0)
    key = (tl.load(seed) + place).to(tl.uint32)
    row_keys = _mixed(numbers.to(tl.uint32) + key)
    grad_q = tl.zeros([QUERIES, WIDTH], tl.float32)
    end = tl.minimum((block + 1) * QUERIES, length) if CAUSAL else length
    unmasked = 0 if CAUSAL else length // KEYS * KEYS
    for start in range(0, unmasked, KEYS):
        grad_q = _add_grad_q(
            grad_q, start, q, grad, delta, log_sum, qkv, head, rows, row_keys, key, first, length, scale, threshold,
            N, H, WIDTH, CAUSAL, DROPOUT, KEYS, MASKED=False,
        )  # fmt: skip
    for start in range(unmasked, end, KEYS):
        grad_q = _add_grad_q(
            grad_q, start, q, grad, delta, log_sum, qkv, head, rows, row_keys, key, first, length, scale, threshold,
            N, H, WIDTH, CAUSAL, DROPOUT, KEYS, MASKED=True,
        )  # fmt: skip
    pointers_grad_q, exists = _tile(grad_qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
    tl.store(pointers_grad_q, (grad_q * (scale * keep_scale)).to(q.dtype), mask=exists)


@triton.jit
def backward_keys(
    qkv, log_sums, grad_out, grad_qkv, deltas, starts, seed, place, num_tokens, scale, threshold, keep_scale,
    N: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr, CAUSAL: tl.constexpr, DROPOUT: tl.constexpr,
    QUERIES: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Write the gradients of one block of keys and values, after `backward_queries`."""
    sequence, head, block = tl.program_id(2), tl.program_id(0), tl.program_id(1)
    first = tl.load(starts + sequence)
    length = tl.load(starts + sequence + 1) - first
    if block * KEYS >= length:
        return
    columns = block * KEYS + tl.arange(0, KEYS)
    pointers_k, exist = _tile(qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
    k = tl.load(pointers_k, mask=exist, other=0.0)
    v = tl.load(pointers_k + N * H, mask=exist, other=0.0)
    key = (tl.load(seed) + place).to(tl.uint32)
    column_keys = _mixed(columns.to(tl.uint32) ^ key)
    grad_k = tl.zeros([KEYS, WIDTH], tl.float32)
    grad_v = tl.zeros([KEYS, WIDTH], tl.float32)
    # Missing rows and columns need no mask: rows of zeros add nothing, and missing columns are not stored.
    begin = (block * KEYS // QUERIES) * QUERIES if CAUSAL else 0
    for start in range(begin, length, QUERIES):
        rows = start + tl.arange(0, QUERIES)
        numbers = head * num_tokens + first + rows
        pointers_q, exists = _tile(qkv + head * H, first, rows, length, 3 * N * H, H, WIDTH)
        pointers_grad, exists = _tile(grad_out + head * H, first, rows, length, N * H, H, WIDTH)
        q = tl.load(pointers_q, mask=exists, other=0.0)
        grad = tl.load(pointers_grad, mask=exists, other=0.0)
        delta = tl.load(deltas + numbers, mask=rows < length, other=0.0)
        log_sum = tl.load(log_sums + numbers, mask=rows < length, other=0.0)
        used, grad_scores = _gradients(
            q, k, v, grad, delta, log_sum, rows, columns, _mixed(numbers.to(tl.uint32) + key), column_keys, length,
            scale, threshold, CAUSAL, DROPOUT, MASKED=CAUSAL,
        )  # fmt: skip
        grad_v += tl.dot(tl.trans(used), grad)
        grad_k += tl.dot(tl.trans(grad_scores), q)
    pointers_grad_k, exist = _tile(grad_qkv + (N + head) * H, first, columns, length, 3 * N * H, H, WIDTH)
    tl.store(pointers_grad_k, (grad_k * (scale * keep_scale)).to(k.dtype), mask=exist)
    tl.store(pointers_grad_k + N * H, (grad_v * keep_scale).to(k.dtype), mask=exist)


class _Launch(NamedTuple):
    """A kernel's launch options: queries and keys per block, warps and pipeline stages; measured on an H200."""

    queries: int
    keys: int
    warps: int
    stages: int

    def options(self) -> dict[str, int]:
        """Return the launch options of a kernel."""
        return {"QUERIES": self.queries, "KEYS": self.keys, "num_warps": self.warps, "num_stages": self.stages}


_SHORT = 128  # tokens: the longest sequences whose keys fit into one block
_FORWARD_SHORT = _Launch(64, 32, 4, 3)
_FORWARD = _Launch(64, 64, 4, 3)
_BACKWARD_QUERIES = _Launch(64, 32, 4, 3)
_BACKWARD_KEYS = _Launch(64, 64, 4, 3)


def _numbers(qkv_T3NH: Tensor, seed: Tensor, place: int, share: float) -> tuple[Any, ...]:
    """Return the kernel arguments that the forward and backward pass share."""
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
    """Compute attention within sequences; returns the values [T, N, H] and each row's log-sum of scores [N, T]."""
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
