"""BERT's encoder on a CPU in bfloat16 or int8: two to four times as fast as in float32, for inference.

T tokens, S sequences, D width, O outputs of a linear layer.

Only the inputs of the four matrix products of a block have fewer bits. The sum of a block's inputs and outputs, which
runs through all layers, its normalisation, the softmax and the gelu are float32, and so are embeddings and heads.

- bfloat16 needs AMX or AVX512-BF16. Weights and inputs are rounded, products are summed in float32.
- int8 needs AMX or VNNI. Every row of a weight matrix has a scale, its largest number being 127, and so has every
  token's input, found when it is computed (dynamic quantization). A token's result therefore depends on nothing
  beside it, and no data is needed to prepare a model. Inputs are stored as 0 to 255 with 128 for zero, since the
  processors' instructions multiply unsigned by signed numbers; what comes out of a gelu, as 0 to 255 from its least
  value on. Channels of inputs that are much larger than the others are made smaller, see `input_factors`.
- What follows a product is one pass over its result, compiled by numba: scale, add the bias, apply the gelu or add and
  normalise, and make the next product's input. As single operations of torch, these passes over memory would take as
  long as the int8 products.
- oneDNN, called through torch, computes the products, with weights in the order that it wants.
- With several threads a large batch is cut into as many parts, each computed by one thread from the first layer to the
  last; a small one is computed by all threads together.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple, Protocol

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.attention import Packing, Run, Tokens, attend, attend_from_one, pack
from bertworks.nn.bert import Bert, Block
from bertworks.nn.layers import (
    LARGEST_INT8,
    LayerNorm,
    Linear,
    activate,
    activated,
    check_tiles,
    cpu_instructions,
    quantize_weight,
)

_ZERO = 128  # the unsigned number that stands for 0
_MIN_TOKENS_PER_THREAD = 128  # fewer are not worth a thread of their own
_GELU_DEGREE, _GELU_END = 13, 5.2  # of a polynomial that is as near to it as float32 is, and where the gelu is x or 0
_GELU_LEAST = 0.1701  # no gelu is below minus this
_SAMPLE_LENGTHS = (8, 16, 40, 64)  # of the sequences that show which inputs are large
_INPUTS_SHARE = 0.6  # of the difference between large and small inputs, what goes into the weights
# Sums may be reordered, and there are no infinities to respect: without this nothing here is vectorised.
_FAST = {"reassoc", "contract", "nsz", "arcp", "nnan", "ninf"}
_f32 = np.float32


# What follows a product, compiled. y is the product, before its scale and bias; x runs through the layers.


def _compiled(function: Callable[..., Any]) -> Any:
    try:
        return numba.njit(cache=True, nogil=True, fastmath=_FAST)(function)
    except RuntimeError:  # without a place to write, it is compiled in every process
        return numba.njit(nogil=True, fastmath=_FAST)(function)


@numba.njit(inline="always")
def _quantize_row(row: Any, factors: Any, out: Any) -> Any:
    """Write a row, multiplied by factors, as unsigned numbers; returns its scale."""
    largest = _f32(1e-30)
    for i in range(len(row)):
        size = abs(row[i] * factors[i])
        largest = size if size > largest else largest
    inverse = _f32(LARGEST_INT8) / largest
    for i in range(len(row)):
        out[i] = np.uint8(np.int32(row[i] * factors[i] * inverse + _f32(_ZERO + 0.5)))
    return largest * _f32(1 / LARGEST_INT8)


@numba.njit(inline="always")
def _quantize_from(row: Any, least: Any, factors: Any, out: Any) -> Any:
    """Do the same with numbers that are not below -least, with that as 0 and the largest as 255."""
    largest = _f32(1e-30)
    for i in range(len(row)):
        row[i] = (row[i] + least) * factors[i]
        largest = row[i] if row[i] > largest else largest
    inverse = _f32(255) / largest
    for i in range(len(row)):
        out[i] = np.uint8(np.int32(row[i] * inverse + _f32(0.5)))
    return largest * _f32(1 / 255)


@numba.njit(inline="always")
def _normalize_row(row: Any, scales: Any, shifts: Any, eps: Any) -> None:
    """Give a row mean 0 and variance 1, then scale and shift it."""
    mean = _f32(0)
    for i in range(len(row)):
        mean += row[i]
    mean /= _f32(len(row))
    variance = _f32(0)
    for i in range(len(row)):
        distance = row[i] - mean
        variance += distance * distance
    factor = _f32(1) / np.sqrt(variance / _f32(len(row)) + eps)
    for i in range(len(row)):
        row[i] = (row[i] - mean) * factor * scales[i] + shifts[i]


@_compiled
def _quantize(x_TD, factors_D, out_TD, scales_T):  # type: ignore[no-untyped-def]
    for t in range(len(x_TD)):
        scales_T[t] = _quantize_row(x_TD[t], factors_D, out_TD[t])


@_compiled
def _scale(y_TO, scales_T, bias_O):  # type: ignore[no-untyped-def]
    for t in range(len(y_TO)):
        row, scale = y_TO[t], scales_T[t]
        for i in range(len(row)):
            row[i] = row[i] * scale + bias_O[i]


@_compiled
def _scale_gelu_quantize(y_TO, scales_T, bias_O, polynomial, factors_O, out_TO, out_scales_T):  # type: ignore[no-untyped-def]
    end, to_unit, least = _f32(_GELU_END), _f32(2 / _GELU_END**2), _f32(_GELU_LEAST)
    p0, p1, p2, p3, p4, p5, p6, p7, p8, p9, p10, p11, p12, p13 = polynomial
    for t in range(len(y_TO)):
        row, scale = y_TO[t], scales_T[t]
        for i in range(len(row)):
            x = row[i] * scale + bias_O[i]
            near = x if x < end else end
            near = near if near > -end else -end
            u = to_unit * near * near - _f32(1)
            odd = p7 + u * (p8 + u * (p9 + u * (p10 + u * (p11 + u * (p12 + u * p13)))))
            odd = p0 + u * (p1 + u * (p2 + u * (p3 + u * (p4 + u * (p5 + u * (p6 + u * odd))))))
            row[i] = _f32(0.5) * x * (_f32(1) + near * odd)
        out_scales_T[t] = _quantize_from(row, least, factors_O, out_TO[t])


@_compiled
def _scale_relu_quantize(y_TO, scales_T, bias_O, factors_O, out_TO, out_scales_T):  # type: ignore[no-untyped-def]
    for t in range(len(y_TO)):
        row, scale = y_TO[t], scales_T[t]
        for i in range(len(row)):
            x = row[i] * scale + bias_O[i]
            row[i] = x if x > _f32(0) else _f32(0)
        out_scales_T[t] = _quantize_from(row, _f32(0), factors_O, out_TO[t])


@_compiled
def _scale_add_normalize_quantize(  # type: ignore[no-untyped-def]
    y_TD, scales_T, bias_D, x_TD, norm_scales_D, norm_shifts_D, eps, factors_D, out_TD, out_scales_T
):
    for t in range(len(y_TD)):
        x, y, scale = x_TD[t], y_TD[t], scales_T[t]
        for i in range(len(x)):
            x[i] += y[i] * scale + bias_D[i]
        _normalize_row(x, norm_scales_D, norm_shifts_D, eps)
        out_scales_T[t] = _quantize_row(x, factors_D, out_TD[t])


@_compiled
def _add_normalize_round(y_TD, x_TD, norm_scales_D, norm_shifts_D, eps, out_TD):  # type: ignore[no-untyped-def]
    """Do the same for bfloat16, whose bits, as whole numbers, are the upper half of a float32's."""
    wide = np.empty(x_TD.shape[1], np.uint32)
    as_float = wide.view(np.float32)
    for t in range(len(y_TD)):
        x, y, out = x_TD[t], y_TD[t], out_TD[t]
        for i in range(len(x)):
            wide[i] = np.uint32(y[i]) << np.uint32(16)
        for i in range(len(x)):
            x[i] += as_float[i]
        _normalize_row(x, norm_scales_D, norm_shifts_D, eps)
        for i in range(len(x)):
            as_float[i] = x[i]
        for i in range(len(x)):  # to the nearest, and to an even number from the middle
            bits = wide[i]
            out[i] = np.uint16((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16))


@cache
def _gelu_polynomial(name: str) -> tuple[np.float32, ...]:
    """Return the odd part of a gelu divided by x, as a polynomial of 2 (x / end)^2 - 1, fitted to within 1e-6."""
    x = np.sqrt((np.cos(np.linspace(0, np.pi, 4_001)[:-1]) + 1) / 2) * _GELU_END
    wanted = 2 * activate(torch.from_numpy(x), name).numpy() / x - 1
    u = 2 * (x / _GELU_END) ** 2 - 1
    fitted = np.polynomial.chebyshev.chebfit(u, wanted / x, _GELU_DEGREE, w=x * x)
    return tuple(np.polynomial.chebyshev.cheb2poly(fitted).astype(np.float32))


# Linear layers. A product ends in one of three ways: as it is, activated, or added to x and normalised.


class Norm(NamedTuple):
    """The weights of a LayerNorm as compiled code takes them."""

    scales: NDArray[np.float32]
    shifts: NDArray[np.float32]
    eps: np.float32


class Product(Protocol):
    """A linear layer in low precision; `low` is an input as `lower` makes it."""

    def lower(self, x_TD: Tensor) -> Any:
        """Return float32 inputs in low precision."""

    def plain(self, low: Any) -> Tensor:
        """Return the outputs in float32, [T, O]."""

    def activated(self, low: Any, act: str, following: Any) -> Any:
        """Return the activated outputs as inputs of the product that follows."""

    def add_norm(self, low: Any, x_TD: Tensor, norm: Norm, following: Any) -> Any:
        """Add the outputs to x and normalise it, in place; returns x as inputs of the product that follows."""


class Int8(NamedTuple):
    """Inputs in int8: [T, D] unsigned, and a scale for each row."""

    values_TD: Tensor
    scales_T: NDArray[np.float32]


class Int8Linear:
    """A linear layer whose weights and inputs are int8.

    Args:
        linear: the layer in float32.
        factors_D: by what its inputs are multiplied before they are quantized, and its weights divided; None: 1.
        after: the activation that its inputs have gone through. They are stored from the least value that it has on,
            with all of 0 to 255, not 128 of them for negative numbers.
    """

    def __init__(self, linear: Linear, factors_D: Tensor | None = None, after: str | None = None) -> None:
        factors_D = torch.ones(linear.weight.shape[1]) if factors_D is None else factors_D
        values_OD, self.scales_O = quantize_weight(linear.weight.detach() / factors_D)
        self.weight = torch.ops.onednn.qlinear_prepack(values_OD, None)
        self.zeros_O = torch.zeros(len(values_OD), dtype=torch.int32)
        self.factors, self.zero = factors_D.numpy(), _ZERO if after is None else 0
        bias_O = linear.bias.detach().float()
        if after not in (None, "relu"):
            bias_O = bias_O - _GELU_LEAST * (values_OD.float() @ factors_D) * self.scales_O
        self.bias = bias_O.numpy()

    def lower(self, x_TD: Tensor) -> Int8:
        """Quantize rows."""
        low = _empty_int8(*x_TD.shape)
        _quantize(x_TD.numpy(), self.factors, low.values_TD.numpy(), low.scales_T)
        return low

    def _product(self, low: Int8) -> NDArray[np.float32]:
        out_TO: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            low.values_TD, 1.0, self.zero, self.weight, self.scales_O, self.zeros_O, None, 1.0, 0, torch.float32,
            "none", [], "",
        )  # fmt: skip
        return out_TO.numpy()

    def plain(self, low: Int8) -> Tensor:
        """Scale and add the bias."""
        y_TO = self._product(low)
        _scale(y_TO, low.scales_T, self.bias)
        return torch.from_numpy(y_TO)

    def activated(self, low: Int8, act: str, following: "Int8Linear") -> Int8:
        """Scale, add the bias, activate and quantize."""
        y_TO = self._product(low)
        out = _empty_int8(*y_TO.shape)
        made = following.factors, out.values_TD.numpy(), out.scales_T
        if act == "relu":
            _scale_relu_quantize(y_TO, low.scales_T, self.bias, *made)
        else:
            _scale_gelu_quantize(y_TO, low.scales_T, self.bias, _gelu_polynomial(act), *made)
        return out

    def add_norm(self, low: Int8, x_TD: Tensor, norm: Norm, following: "Int8Linear") -> Int8:
        """Scale, add the bias and x, normalise and quantize."""
        y_TD = self._product(low)
        out = _empty_int8(*y_TD.shape)
        _scale_add_normalize_quantize(
            y_TD, low.scales_T, self.bias, x_TD.numpy(), *norm, following.factors, out.values_TD.numpy(), out.scales_T
        )
        return out


def _empty_int8(num_rows: int, width: int) -> Int8:
    return Int8(torch.empty(num_rows, width, dtype=torch.uint8), np.empty(num_rows, np.float32))


class Bfloat16Linear:
    """A linear layer whose weights, inputs and outputs are bfloat16."""

    def __init__(self, linear: Linear) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().bfloat16())
        self.bias = linear.bias.detach().bfloat16()

    def lower(self, x_TD: Tensor) -> Tensor:
        """Round rows."""
        return x_TD.bfloat16()

    def _product(self, low_TD: Tensor, *then: Any) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise.default(low_TD, self.weight, self.bias, *then)

    def plain(self, low: Tensor) -> Tensor:
        """Multiply; the result is for attention, which is computed in bfloat16 only where there are matrix tiles."""
        y_TO = self._product(low, "none", [], "")
        return y_TO if "amx_bf16" in cpu_instructions() else y_TO.float()

    def activated(self, low: Tensor, act: str, following: Any) -> Tensor:  # noqa: ARG002 - all take bfloat16
        """Multiply and activate at once."""
        if act == "relu":
            return self._product(low, "relu", [], "")
        return self._product(low, "gelu", [], "tanh" if act == "gelu_new" else "none")

    def add_norm(self, low: Tensor, x_TD: Tensor, norm: Norm, following: Any) -> Tensor:  # noqa: ARG002
        """Multiply, add x, normalise and round."""
        y_TD = self._product(low, "none", [], "")
        out_TD = torch.empty_like(y_TD)
        bits = (part.view(torch.uint16).numpy() for part in (y_TD, out_TD))
        _add_normalize_round(next(bits), x_TD.numpy(), *norm, next(bits))
        return out_TD


# The encoder.


@torch.inference_mode()
def input_factors(net: Bert) -> list[tuple[Tensor, Tensor]]:
    """Return by what the inputs of each block's `qkv` and `up` are multiplied before they are quantized.

    A few channels of these inputs are tens of times as large as the others, whose steps would be as coarse. So the
    large ones are made smaller and their weights larger, as SmoothQuant does (Xiao et al., 2023): the error is shared.
    What is large hardly depends on the text; a few sequences of random pieces show it.
    """
    assert not net.training, "dropout would make its inputs others every time"
    rng, factors = np.random.default_rng(0), []
    lengths = [min(length, net.config.max_position_embeddings) for length in _SAMPLE_LENGTHS]
    x_TD, packing = net.begin(pack([rng.integers(0, net.config.vocab_size, length).tolist() for length in lengths]))
    block: Any
    for block in net.blocks:
        for_qkv = _factors(x_TD, block.qkv)
        attended_TD = attend(block.project(x_TD), packing, causal=block.causal)
        x_TD = block.attention_norm(x_TD + block.attention_out(attended_TD))
        factors.append((for_qkv, _factors(x_TD, block.up)))
        x_TD = block.norm(x_TD + block.down(activated(block.up, x_TD, block.act)))
    return factors


def _factors(x_TD: Tensor, linear: Linear) -> Tensor:
    largest_inputs, largest_weights = (each.abs().amax(0).clamp(min=1e-6) for each in (x_TD, linear.weight))
    factors_D = largest_weights ** (1 - _INPUTS_SHARE) / largest_inputs**_INPUTS_SHARE
    return (factors_D / factors_D.median()).clamp(1 / 64, 64)


class CpuEngine:
    """Computes the blocks of a BERT in bfloat16 or int8, for `Bert.engine`.

    Args:
        net: the network, in float32 on the CPU, in evaluation mode.
        dtype: of the matrix products: bfloat16 or int8.
        factors: of int8, what `input_factors` found when the weights were quantized; None: to be found.
    """

    @torch.no_grad()
    def __init__(self, net: Bert, dtype: str, factors: Sequence[tuple[Tensor, Tensor]] | None = None) -> None:
        if dtype == "bfloat16":
            check_tiles(torch.device("cpu"), torch.bfloat16)
        self.net, self.dtype = net, dtype
        if dtype == "int8":
            found = input_factors(net) if factors is None else factors
            self._blocks = [
                _LowBlock(block, *_in_int8(block, *some)) for block, some in zip(net.blocks, found, strict=True)
            ]
        else:
            self._blocks = [_LowBlock(block, *map(Bfloat16Linear, _linear_layers(block))) for block in net.blocks]

    def __call__(self, tokens: Tokens, places_S: Tensor | None = None) -> Tensor:
        """Return the last layer's output, [T, D], or only its rows `places_S`, [S, D]: one token of each sequence."""
        x_TD, packing = self.net.begin(tokens)
        if places_S is None:
            return packing.leave(self._through(x_TD, packing, None)[-1])
        rows_S, back_S = packing.rows_of(places_S)
        x_SD = self._through(x_TD, packing, rows_S)[-1]
        return x_SD if back_S is None else x_SD.index_select(0, back_S)

    def all_hidden(self, tokens: Tokens) -> list[Tensor]:
        """Return the output of the embeddings and of every layer, [T, D] each."""
        x_TD, packing = self.net.begin(tokens)
        first = packing.leave(x_TD.clone())
        return [first, *map(packing.leave, self._through(x_TD, packing, None, keep=True))]

    def _through(self, x_TD: Tensor, packing: Packing, rows_S: Tensor | None, keep: bool = False) -> list[Tensor]:
        """Return what comes out of the last block, or out of every one; x is overwritten."""
        assert packing.runs is not None, "on a CPU sequences are sorted by length"
        num_threads = min(torch.get_num_threads(), len(x_TD) // _MIN_TOKENS_PER_THREAD)
        parts = _parts(packing.runs, num_threads) if num_threads > 1 else [packing.runs]
        if len(parts) == 1:
            return self._part(x_TD, packing, rows_S, keep)
        ends = np.cumsum([sum(run.num_tokens for run in part) for part in parts]).tolist()
        starts = [0, *ends[:-1]]
        rows: list[Tensor | None] = [None] * len(parts)
        if rows_S is not None:
            counts = [sum(run.num_sequences for run in part) for part in parts]
            rows = [some - start for some, start in zip(torch.split(rows_S, counts), starts, strict=True)]
        some = torch.split(x_TD, [end - start for start, end in zip(starts, ends, strict=True)])
        packings = [packing._replace(runs=part) for part in parts]
        total = torch.get_num_threads()
        torch.set_num_threads(1)  # of MKL, whose number is one for all threads
        try:
            found = list(_pool(total).map(self._part, some, packings, rows, [keep] * len(parts)))
        finally:
            torch.set_num_threads(total)
        return [torch.cat(layer) for layer in zip(*found, strict=True)]

    @torch.inference_mode()
    def _part(self, x_TD: Tensor, packing: Packing, rows_S: Tensor | None, keep: bool) -> list[Tensor]:
        if not len(x_TD) or not self._blocks:
            x_TD = x_TD if rows_S is None else x_TD.index_select(0, rows_S)
            return [x_TD] * (len(self._blocks) if keep else 1)
        low, kept = self._blocks[0].qkv.lower(x_TD), []
        for number, block in enumerate(self._blocks, 1):
            is_last = number == len(self._blocks)
            following = block if is_last else self._blocks[number]
            x_TD, low = block(x_TD, low, packing, rows_S if is_last else None, following.qkv)
            if keep:
                kept.append(x_TD.clone())
        return kept if keep else [x_TD]


class _LowBlock:
    """A block whose products are in low precision."""

    def __init__(self, block: Any, qkv: Product, attention_out: Product, up: Product, down: Product) -> None:
        self.block: Block = block
        self.qkv, self.attention_out, self.up, self.down = qkv, attention_out, up, down
        self.attention_norm, self.norm = _norm(block.attention_norm), _norm(block.norm)

    def __call__(
        self, x_TD: Tensor, low: Any, packing: Packing, rows_S: Tensor | None, following: Product
    ) -> tuple[Tensor, Any]:
        """Return the block's output, and the same as inputs of the product that follows; or the rows `rows_S` alone."""
        block = self.block
        qkv_T3NH = self.qkv.plain(low).view(-1, 3, block.num_heads, block.head_width)
        if rows_S is None:
            attended_TD = attend(qkv_T3NH, packing, causal=block.causal)
        else:
            attended_TD = attend_from_one(qkv_T3NH[:, 0].index_select(0, rows_S), qkv_T3NH[:, 1:], packing)
            x_TD = x_TD.index_select(0, rows_S)
        low = self.attention_out.lower(attended_TD.float())
        low = self.attention_out.add_norm(low, x_TD, self.attention_norm, self.up)
        return x_TD, self.down.add_norm(self.up.activated(low, block.act, self.down), x_TD, self.norm, following)


def _linear_layers(block: Any) -> tuple[Linear, Linear, Linear, Linear]:
    return block.qkv, block.attention_out, block.up, block.down


def _in_int8(block: Any, qkv_factors: Tensor, up_factors: Tensor) -> Iterator[Int8Linear]:
    qkv, attention_out, up, down = _linear_layers(block)
    yield Int8Linear(qkv, qkv_factors)
    yield Int8Linear(attention_out)
    yield Int8Linear(up, up_factors)
    yield Int8Linear(down, after=block.act)


def _norm(norm: LayerNorm) -> Norm:
    return Norm(norm.weight.detach().float().numpy(), norm.bias.detach().float().numpy(), _f32(norm.eps))


def _parts(runs: Sequence[Run], count: int) -> list[tuple[Run, ...]]:
    """Cut runs into up to so many parts of about as many tokens, between sequences."""
    share = sum(run.num_tokens for run in runs) / count
    parts: list[list[Run]] = [[]]
    missing = share
    for run in runs:
        left = run.num_sequences
        while left:
            fitting = max(round(missing / run.length), 0 if parts[-1] else 1)
            taken = min(left, fitting) if len(parts) < count and run.places is None else left
            if taken:
                parts[-1].append(run if taken == run.num_sequences else Run(taken * run.length, taken, run.length))
                left, missing = left - taken, missing - taken * run.length
            if left:
                parts.append([])
                missing += share
    return [tuple(part) for part in parts if part]


@cache
def _pool(num_threads: int) -> ThreadPoolExecutor:
    """Return threads that compute with one thread each."""
    return ThreadPoolExecutor(num_threads, "bertworks-cpu", lambda: torch.set_num_threads(1))
