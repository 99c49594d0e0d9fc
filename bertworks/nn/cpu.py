"""BERT's encoder on a CPU in bfloat16 or int8: two to four times as fast as in float32, for inference.

T tokens, S sequences, D width, O outputs of a linear layer.

Only the inputs of the four matrix products of a block have fewer bits. The sum of a block's inputs and outputs, which
runs through all layers, its normalisation, the softmax and the gelu are float32, and so are embeddings and heads.

- bfloat16 needs AMX or AVX512-BF16. Weights and inputs are rounded, products are summed in float32. oneDNN, called
  through torch, computes them, with weights in the order that it wants.
- int8 needs VNNI. Every row of a weight matrix has a scale, its largest number being 127, and so has every token's
  input, found when it is computed (dynamic quantization). A token's result therefore depends on nothing beside it, and
  no data is needed to prepare a model. Inputs are stored as 0 to 255 with 128 for zero, since the processors'
  instructions multiply unsigned by signed numbers; what comes out of a gelu, as 0 to 255 from its least value on.
  Channels of inputs that are much larger than the others are made smaller, see `input_factors`. `int8.py` computes it.
- With several threads a batch in bfloat16 is cut into as many parts, each computed by one thread from the first layer
  to the last. In int8 threads share the work of each layer, and meet inside the compiled code.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn import int8
from bertworks.nn.attention import Packing, Run, Tokens, attend, attend_from_one, pack
from bertworks.nn.bert import Bert, Block
from bertworks.nn.int8 import compiled, from_bfloat16, normalize, to_bfloat16
from bertworks.nn.layers import LayerNorm, Linear, activated, check_tiles, cpu_instructions, torch_on_one_thread

_MIN_TOKENS_PER_THREAD = {"bfloat16": 128, "int8": 16}  # fewer are not worth a thread of their own
_SAMPLE_LENGTHS = (8, 16, 40, 64)  # of the sequences that show which inputs are large
_INPUTS_SHARE = 0.6  # of the difference between large and small inputs, what goes into the weights
_f32 = np.float32


class CpuEngine:
    """Computes the blocks of a BERT in bfloat16 or int8, for `Bert.engine`.

    Args:
        net: the network, in float32 on the CPU, in evaluation mode.
        dtype: of the matrix products: bfloat16 or int8.
        factors: of int8, what `input_factors` found when the weights were quantized; None: to be found.
    """

    @torch.no_grad()
    def __init__(self, net: Bert, dtype: str, factors: Sequence[tuple[Tensor, Tensor]] | None = None) -> None:
        self.net, self.dtype = net, dtype
        self._through: _Int8Layers | _Bfloat16Layers
        if dtype == "int8":
            self._through = _Int8Layers(net, input_factors(net) if factors is None else factors)
        else:
            check_tiles(torch.device("cpu"), torch.bfloat16)
            self._through = _Bfloat16Layers(net)

    def __call__(self, tokens: Tokens, places_S: Tensor | None = None) -> Tensor:
        """Return the last layer's output, [T, D], or only its rows `places_S`, [S, D]: one token of each sequence."""
        with torch_on_one_thread(when=self.dtype == "int8"):
            x_TD, packing = self.net.begin(tokens)
            if not len(x_TD) or not len(self.net.blocks):
                x_TD = packing.leave(x_TD)
                return x_TD if places_S is None else x_TD.index_select(0, places_S.long())
            if places_S is None:
                return packing.leave(self._through(x_TD, packing, None, None))
            rows_S, back_S = packing.rows_of(places_S)
            x_SD = self._through(x_TD, packing, rows_S, None)
            return x_SD if back_S is None else x_SD.index_select(0, back_S)

    def all_hidden(self, tokens: Tokens) -> list[Tensor]:
        """Return the output of the embeddings and of every layer, [T, D] each."""
        with torch_on_one_thread(when=self.dtype == "int8"):
            x_TD, packing = self.net.begin(tokens)
            found = [x_TD.clone()]
            if len(x_TD) and len(self.net.blocks):
                self._through(x_TD, packing, None, found)
            return [packing.leave(x_TD) for x_TD in found]


# int8: all layers are one call of compiled code.


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


class _Int8Layers:
    """The blocks of a BERT in int8."""

    def __init__(self, net: Bert, factors: Sequence[tuple[Tensor, Tensor]]) -> None:
        blocks: Any = net.blocks
        self.num_layers, self.num_heads = len(blocks), net.config.num_attention_heads
        self.layers = int8.prepare(blocks, factors) if blocks else None
        if not int8.is_compiled():
            print("compiling int8 for this processor, once: some twenty seconds", file=sys.stderr, flush=True)

    @torch.inference_mode()
    def __call__(self, x_TD: Tensor, packing: Packing, rows_S: Tensor | None, kept: list[Tensor] | None) -> Tensor:
        """Return what comes out of the last block, or the rows `rows_S` of it; x is overwritten."""
        lengths = [length for run in packing.runs or () for length in run.lengths()]
        x, places_S = x_TD.numpy(), np.empty(0, np.int64) if rows_S is None else rows_S.numpy()
        out = x if rows_S is None else np.empty((len(places_S), x.shape[1]), np.float32)
        states_LTD = np.empty((0 if kept is None else self.num_layers, *x.shape), np.float32)
        with torch_on_one_thread() as most:
            num_threads = _num_threads("int8", len(x), most)
        heads, attended = int8.room_for(len(x), self.num_heads, x.shape[1] // self.num_heads), torch.empty_like(x_TD)
        counts, starts_S = int8.new_counts(self.num_layers), np.cumsum([0, *lengths])
        work: tuple[Any, ...] = (
            self.layers, x, out, heads, attended.numpy(), starts_S, places_S, states_LTD, counts, num_threads
        )  # fmt: skip
        helpers: list[Future[None]] = []
        with contextlib.suppress(RuntimeError):  # the system gives no more threads: those that there are compute all
            for _ in range(num_threads - 1):
                helpers.append(_pool(most - 1, uses_torch=False).submit(int8.layers, *work))
        int8.layers(*work)
        for helper in helpers:
            helper.cancel()  # one that has not begun is not needed any more
        if kept is not None:
            kept.extend(torch.from_numpy(states_LTD))
        return x_TD if rows_S is None else torch.from_numpy(out)


# bfloat16: matrix products by oneDNN.


class Norm(NamedTuple):
    """The weights of a LayerNorm as compiled code takes them."""

    scales: NDArray[np.float32]
    shifts: NDArray[np.float32]
    eps: np.float32


class _Bfloat16Layers:
    """The blocks of a BERT in bfloat16."""

    def __init__(self, net: Bert) -> None:
        self.blocks = [_Bfloat16Block(block) for block in net.blocks]

    def __call__(self, x_TD: Tensor, packing: Packing, rows_S: Tensor | None, kept: list[Tensor] | None) -> Tensor:
        """Return what comes out of the last block, or the rows `rows_S` of it; x is overwritten."""
        assert packing.runs is not None, "on a CPU sequences are sorted by length"
        num_threads = _num_threads("bfloat16", len(x_TD), torch.get_num_threads())
        parts = _parts(packing.runs, num_threads) if num_threads > 1 else [packing.runs]
        ends = np.cumsum([sum(run.num_tokens for run in part) for part in parts]).tolist()
        starts = [0, *ends[:-1]]
        rows: list[Tensor | None] = [None] * len(parts)
        if rows_S is not None:
            counts = [sum(run.num_sequences for run in part) for part in parts]
            rows = [some - start for some, start in zip(torch.split(rows_S, counts), starts, strict=True)]
        some = torch.split(x_TD, [end - start for start, end in zip(starts, ends, strict=True)])
        packings = [packing._replace(runs=part) for part in parts]
        states: list[list[Tensor] | None] = [None if kept is None else [] for _ in parts]
        with torch_on_one_thread(when=len(parts) > 1):
            found = _on_threads(self._part, some, packings, rows, states)
        if kept is not None:
            kept.extend(torch.cat(layer) for layer in zip(*filter(None, states), strict=True))
        return torch.cat(found) if len(found) > 1 else found[0]

    @torch.inference_mode()
    def _part(self, x_TD: Tensor, packing: Packing, rows_S: Tensor | None, kept: list[Tensor] | None) -> Tensor:
        low_TD = x_TD.bfloat16()
        for block in self.blocks:
            x_TD, low_TD = block(x_TD, low_TD, packing, rows_S if block is self.blocks[-1] else None)
            if kept is not None:
                kept.append(x_TD.clone())
        return x_TD


class _Bfloat16Block:
    """A block whose products are in bfloat16."""

    def __init__(self, block: Any) -> None:
        self.block: Block = block
        self.qkv, self.attention_out, self.up, self.down = map(
            _Bfloat16Linear, (block.qkv, block.attention_out, block.up, block.down)
        )
        self.attention_norm, self.norm = _norm(block.attention_norm), _norm(block.norm)

    def __call__(self, x_TD: Tensor, low_TD: Tensor, packing: Packing, rows_S: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the block's output, and the same in bfloat16; or the rows `rows_S` alone."""
        block = self.block
        qkv_T3NH = self.qkv(low_TD).view(-1, 3, block.num_heads, block.head_width)
        if "amx_bf16" not in cpu_instructions():  # attention is computed in bfloat16 only where there are matrix tiles
            qkv_T3NH = qkv_T3NH.float()
        if rows_S is None:
            attended_TD = attend(qkv_T3NH, packing, causal=block.causal)
        else:
            attended_TD = attend_from_one(qkv_T3NH[:, 0].index_select(0, rows_S), qkv_T3NH[:, 1:], packing)
            x_TD = x_TD.index_select(0, rows_S)
        low_TD = self._add_norm(self.attention_out(attended_TD.bfloat16()), x_TD, self.attention_norm)
        up: tuple[Any, ...] = (
            ("relu", [], "") if block.act == "relu" else ("gelu", [], "tanh" if block.act == "gelu_new" else "none")
        )
        return x_TD, self._add_norm(self.down(self.up(low_TD, *up)), x_TD, self.norm)

    @staticmethod
    def _add_norm(y_TD: Tensor, x_TD: Tensor, norm: Norm) -> Tensor:
        out_TD = torch.empty_like(y_TD)
        bits = (part.view(torch.uint16).numpy() for part in (y_TD, out_TD))
        _add_normalize_round(next(bits), x_TD.numpy(), *norm, next(bits))
        return out_TD


class _Bfloat16Linear:
    """A linear layer whose weights, inputs and outputs are bfloat16."""

    def __init__(self, linear: Linear) -> None:
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach().bfloat16())
        self.bias = linear.bias.detach().bfloat16()

    def __call__(self, low_TD: Tensor, *then: Any) -> Tensor:
        out_TO: Tensor = torch.ops.mkldnn._linear_pointwise.default(
            low_TD, self.weight, self.bias, *(then or ("none", [], ""))
        )
        return out_TO


def _norm(norm: LayerNorm) -> Norm:
    return Norm(norm.weight.detach().float().numpy(), norm.bias.detach().float().numpy(), _f32(norm.eps))


@compiled
def _add_normalize_round(y_TD, x_TD, norm_scales_D, norm_shifts_D, eps, out_TD):  # type: ignore[no-untyped-def]
    """Add y to x, give x mean 0 and variance 1, scale and shift it, and round it; y and the output are bfloat16."""
    for t in range(len(y_TD)):
        x, y, out = x_TD[t], y_TD[t], out_TD[t]
        for i in range(len(x)):
            x[i] += from_bfloat16(y[i])
        normalize(x, norm_scales_D, norm_shifts_D, eps)
        for i in range(len(x)):
            out[i] = to_bfloat16(x[i])


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


# Threads.


def _num_threads(dtype: str, num_tokens: int, most: int) -> int:
    return max(1, min(most, num_tokens // _MIN_TOKENS_PER_THREAD[dtype]))


def _on_threads(function: Callable[..., Any], *each: Sequence[Any]) -> list[Any]:
    """Map, with all calls at once: the first in this thread and each other in one of its own."""
    first, *others = zip(*each, strict=True)
    running = [_pool(len(others), uses_torch=True).submit(function, *arguments) for arguments in others]
    return [function(*first), *(one.result() for one in running)]


@cache
def _pool(num_threads: int, *, uses_torch: bool) -> ThreadPoolExecutor:
    """Return threads that stay, in each of which torch has one thread if it is used there."""
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child process has none of them
    alone = (lambda: torch.set_num_threads(1)) if uses_torch else None
    return ThreadPoolExecutor(num_threads, "bertworks-cpu", alone)
