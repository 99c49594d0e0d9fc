"""Products in int8, for graphs in ONNX: with ranges found while computing (dynamic) or known beforehand (static).

Weights are int8 with a scale for each output, as in `nn/layers.py`; embeddings, LayerNorm, softmax, gelu and heads stay
in float32. ONNX has one scale for the whole input of a product, where `nn/cpu.py` has one for each token. So two things
come before and after it, a twentieth of the time for a third to half of the error:

- A token's numbers are divided by the largest of them, and the product is multiplied by it. Only ONNX Runtime's fused
  attention takes its input as it is.
- A few channels of the inputs of `qkv` and `up` are tens of times as large as the others; these are made smaller and
  their weights larger, by the factors of `nn/cpu.py`.

The range of the input is found in one of two ways:

- Dynamic: from the largest and the smallest number, each time. It needs no data to prepare. In ONNX Runtime's own
  operators a product is one node.
- Static: once, from texts (`calibrate`), and each product stands between QuantizeLinear and DequantizeLinear, the form
  that OpenVINO, TensorRT and others read. A number outside the range is cut, and a range that holds the rarest numbers
  is coarse for all others; so of some ranges that one is chosen which rounds a sample of the inputs best.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto
from torch import Tensor

from bertworks.export.graph import MICROSOFT, Graph
from bertworks.nn.attention import Tokens
from bertworks.nn.bert import Bert, Block
from bertworks.nn.layers import quantize_weight

_SMALLEST = 1e-30  # of numbers that something is divided by
_LEVELS = 255  # of an unsigned byte
_SAMPLED = 4_096  # numbers of each input and batch
_SHARES = np.linspace(1.0, 0.3, 36)  # of the whole range, of which the best is chosen


Factors = Mapping[str, Tensor]  # by what the channels of a product's input are multiplied, by the product's name


def channel_factors(net: Bert) -> dict[str, Tensor]:
    """Return the factors of a network in evaluation mode."""
    from bertworks.nn.cpu import input_factors  # compiled code, of which this needs nothing else

    found = dict[str, Tensor]()
    for number, (for_qkv, for_up) in enumerate(input_factors(net)):
        found |= {f"blocks.{number}.qkv": for_qkv, f"blocks.{number}.up": for_up}
    return found


def _quantized(graph: Graph, x: str, name: str, weight_OI: Tensor, factors: Factors) -> tuple[str, str, str]:
    """Add a matrix in int8, [inputs, outputs]; returns the names of its input, of itself and of its scales."""
    if name in factors:
        x = graph.op("Mul", x, graph.weight(f"{name}.factors", factors[name]))
        weight_OI = weight_OI.detach() / factors[name]
    values, scales_O = quantize_weight(weight_OI.detach())
    return x, graph.weight(f"{name}.matrix", values.t().contiguous()), graph.weight(f"{name}.scales", scales_O)


def _scaled(graph: Graph, x: str) -> tuple[str, str]:
    """Scale each token's numbers so that the largest is 1 or -1; returns them, and how large it was."""
    sizes = graph.op("ReduceMax", graph.op("Abs", x), graph.constant([-1]), keepdims=1)
    sizes = graph.op("Max", sizes, graph.constant(_SMALLEST))
    return graph.op("Div", x, sizes), sizes


class Dynamic:
    """Products whose inputs are quantized when they are computed, by ONNX Runtime's operators or by standard ones."""

    def __init__(self, factors: Factors, *, portable: bool) -> None:
        self.factors, self.portable = factors, portable

    def multiply(self, graph: Graph, x: str, name: str, weight_OI: Tensor) -> str:
        """Return x W^T."""
        x, matrix, scales = _quantized(graph, x, name, weight_OI, self.factors)
        x, sizes = _scaled(graph, x)
        if self.portable:
            values, scale, zero = graph.op("DynamicQuantizeLinear", x, returns=3)
            y = graph.op("Cast", graph.op("MatMulInteger", values, matrix, zero), to=TensorProto.FLOAT)
            y = graph.op("Mul", y, graph.op("Mul", scales, scale))
        else:
            y = graph.op("DynamicQuantizeMatMul", x, matrix, scales, domain=MICROSOFT)
        return cast(str, graph.op("Mul", y, sizes))

    def attend(self, graph: Graph, x: str, mask: str, name: str, block: Block) -> str:
        """Return what ONNX Runtime's fused attention makes of x, with the projection to queries, keys and values."""
        x, matrix, scales = _quantized(graph, x, name, block.qkv.weight, self.factors)
        values, scale, zero = graph.op("DynamicQuantizeLinear", x, returns=3)
        bias = graph.weight(f"{name}.bias", block.qkv.bias)
        options: dict[str, Any] = {"domain": MICROSOFT, "num_heads": block.num_heads}
        return cast(str, graph.op("QAttention", values, matrix, bias, scale, scales, mask, zero, **options))


class Range(NamedTuple):
    """From which to which number a product's input is quantized; 0 is among them."""

    low: float
    high: float

    @property
    def scale(self) -> float:
        """The difference of two neighbouring levels."""
        return max(self.high - self.low, 1e-12) / _LEVELS

    @property
    def zero(self) -> int:
        """The level that stands for 0."""
        return round(-self.low / self.scale)


class Static:
    """Products whose inputs have ranges that are known, by their names."""

    def __init__(self, factors: Factors, ranges: Mapping[str, Range]) -> None:
        self.factors, self.ranges = factors, ranges

    def multiply(self, graph: Graph, x: str, name: str, weight_OI: Tensor) -> str:
        """Return x W^T."""
        found = self.ranges[name]
        scale = graph.weight(f"{name}.input_scale", np.array(found.scale, np.float32))
        zero = graph.weight(f"{name}.input_zero", np.array(found.zero, np.uint8))
        x, matrix, scales = _quantized(graph, x, name, weight_OI, self.factors)
        zeros = graph.weight(f"{name}.zeros", np.zeros(len(weight_OI), np.int8))
        x, sizes = _scaled(graph, x)
        x = graph.op("DequantizeLinear", graph.op("QuantizeLinear", x, scale, zero), scale, zero)
        y = graph.op("MatMul", x, graph.op("DequantizeLinear", matrix, scales, zeros, axis=1))
        return cast(str, graph.op("Mul", y, sizes))

    def attend(self, graph: Graph, x: str, mask: str, name: str, block: Block) -> str:
        """Is never asked for: the static form has standard operators."""
        raise NotImplementedError


@torch.inference_mode()
def calibrate(net: Bert, factors: Factors, batches: Iterable[Tokens]) -> dict[str, Range]:
    """Return the range of every product's input, by the product's name, as it is in texts."""
    samples: dict[str, list[NDArray[np.float32]]] = {}
    hooks = []

    def watch(name: str) -> Any:
        def look(_: Any, inputs: tuple[Tensor, ...]) -> None:
            x = inputs[0] * factors[name] if name in factors else inputs[0]
            x = (x / x.abs().amax(-1, keepdim=True).clamp(min=_SMALLEST)).flatten()
            step = max(len(x) // _SAMPLED, 1) | 1  # odd: it meets every column of a matrix
            ends = torch.stack([x.amin(), x.amax()])
            samples.setdefault(name, []).append(torch.cat([x[::step], ends]).numpy())

        return look

    for number, block in enumerate(cast(Iterable[Block], net.blocks)):
        for product in ("qkv", "attention_out", "up", "down"):
            linear = getattr(block, product)
            hooks.append(linear.register_forward_pre_hook(watch(f"blocks.{number}.{product}")))
    try:
        for tokens in batches:
            net(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return {name: best_range(np.concatenate(parts)) for name, parts in samples.items()}


def best_range(sample: NDArray[np.float32]) -> Range:
    """Return the part of a sample's range by which its numbers are rounded with the least squared error."""
    low, high = min(float(sample.min()), 0.0), max(float(sample.max()), 0.0)
    best, least = Range(low, high), np.inf
    for share in _SHARES:
        tried = Range(low * share, high * share)
        levels = np.clip(np.rint(sample / np.float32(tried.scale)) + tried.zero, 0, _LEVELS)
        error = float(np.square((levels - tried.zero) * np.float32(tried.scale) - sample).sum())
        if error < least:
            best, least = tried, error
    return best
