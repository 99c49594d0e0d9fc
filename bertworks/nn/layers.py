"""Linear maps, embeddings, LayerNorm and dropout as BERT needs them, and the device on which they are computed.

- Weights are made without values: a model folder or `initialise` gives these, where torch's own layers would first fill
  hundreds of megabytes with random numbers that are then overwritten.
- A dropout mask is a function of (seed, place), not of a generator's state. Each place in the network where dropout
  stands has a number, each element of its input an index; a hash of both and of the step's seed says whether the
  element is kept. So there is no state to save for an exact resume, nor does it matter how a batch is spread over
  ranks; and since a hash is a few integer operations that are fused with what comes before and after, the backward pass
  makes the mask again instead of reading it. Philox, which torch uses, is several times as expensive.
- Without a seed masks are drawn: on a GPU by torch's own dropout, on a CPU from raw bits of a fast generator that
  torch's seeds anew every time. To ask torch for as many single decisions takes ten times as long, a tenth of a small
  step.
- Some virtual machines announce a CPU's matrix tiles (AMX) and hide how large they are. oneDNN, which multiplies
  matrices of bfloat16 for torch, trusts the announcement, and the process dies of an illegal instruction. So one
  product is tried in a child first (`check_tiles`).
"""

import contextlib
import faulthandler
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.errors import UserError

_SINUSOID_BASE = 10_000.0
# The multipliers of a well-known 32-bit mixing function, found by search for the least bias; as signed numbers.
_MULTIPLIER_1, _MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B - (1 << 32)
_PLACE_STEP = 0x9E3779B1 - (1 << 32)
_LOW_31 = 0x7FFFFFFF
_may_compute = ContextVar("threads that may compute while torch has one", default=0)
LARGEST_INT8 = 127  # of either sign
_CPU_FACTS = Path("/proc/cpuinfo")
_INSTRUCTIONS = {"bfloat16": {"avx512_bf16", "amx_bf16"}, "int8": {"avx512_vnni", "avx_vnni", "amx_int8"}}
_ISA, _WITHOUT_TILES = "ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16"
_log = logging.getLogger(__name__)


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
    """Freeze the weights of a model on the CPU for inference, which makes it faster."""
    # Builds without it multiply as always.
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return
    for module in model.modules():
        if isinstance(module, Linear) and module.weight.dtype == torch.float32:
            module.is_frozen = module.weight.device.type == "cpu"


def quantize_weight(weight_OD: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix as int8 and a scale for each of its rows, float32."""
    scales_O = weight_OD.abs().amax(1).float().clamp(min=1e-30) / LARGEST_INT8
    return (weight_OD / scales_O[:, None]).round_().clamp_(-LARGEST_INT8, LARGEST_INT8).to(torch.int8), scales_O


class Embedding(nn.Module):
    """A row for every id; `sinusoidal` ones and `zeros` are tables that are not learnt."""

    def __init__(self, num_rows: int, width: int, *, sinusoidal: bool = False, zeros: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_rows, width), requires_grad=not (sinusoidal or zeros))
        self.sinusoidal, self.zeros = sinusoidal, zeros

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
        from bertworks.nn.gpu_gelu import bias_gelu

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
        if isinstance(module, Embedding) and module.zeros:
            module.weight.zero_()


def sinusoids(num_positions: int, width: int) -> Tensor:
    """Return the Transformer's fixed position table: sines in even, cosines in odd columns, ever longer waves."""
    angles = torch.arange(num_positions, dtype=torch.float64)[:, None] * torch.pow(
        _SINUSOID_BASE, -torch.arange(0, width, 2, dtype=torch.float64) / width
    )
    table = torch.zeros(num_positions, width, dtype=torch.float64)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : width // 2]
    return table.float()


class Dropout(nn.Module):
    """Sets a share of its input to 0 in training and scales up the rest.

    Args:
        share: how much is dropped.
        place: the number of this place in its network.
    """

    def __init__(self, share: float, place: int) -> None:
        super().__init__()
        self.share = share
        self.place = place

    def forward(self, x: Tensor, seed: Tensor | None) -> Tensor:
        """Drop, by the hash if there is a seed (one int32)."""
        if not self.training or not self.share:
            return x
        if seed is None:
            return dropped(x, self.share)
        keep = keep_mask(x.numel(), seed, self.place, self.share, x.device).view(x.shape)
        return torch.where(keep, x * (1 / (1 - self.share)), 0)


def dropped(x: Tensor, share: float) -> Tensor:
    """Set a share of the elements to 0, and scale up the rest."""
    if x.device.type != "cpu":
        return F.dropout(x, share)
    generator = np.random.SFC64(int(torch.randint(1 << 62, ())))
    bits = generator.random_raw(-(-x.numel() // 4)).view(np.uint16)[: x.numel()]
    keep = torch.from_numpy(bits >= round(share * (1 << 16))).view(x.shape)
    return x * keep.to(x.dtype).mul_(1 / (1 - share))


def keep_mask(count: int, seed: Tensor, place: int, share: float, device: torch.device) -> Tensor:
    """Return which of `count` elements are kept."""
    index = torch.arange(count, dtype=torch.int32, device=device)
    number = (index ^ ((index >> 16) & 0xFFFF)) * _MULTIPLIER_1 + _mixed(seed + place_key(place))
    return (_mixed(number) & _LOW_31) >= int(share * (1 << 31))


def kept_pairs(rows: Tensor, columns: Tensor, seed: Tensor, place: int, share: float) -> Tensor:
    """Return which attention weights are kept, [rows, columns], by the numbers (int32) of their queries and keys."""
    key = seed + place_key(place)
    row_keys, column_keys = _mixed(rows + key), _mixed(columns ^ key)
    number = (row_keys | 1)[:, None] * column_keys[None, :] + _mixed(row_keys)[:, None]
    return (number.long() & 0xFFFFFFFF) >= int(share * (1 << 32))


def _mixed(number: Tensor) -> Tensor:
    number = (number ^ ((number >> 16) & 0xFFFF)) * _MULTIPLIER_1
    number = (number ^ ((number >> 15) & 0x1FFFF)) * _MULTIPLIER_2
    return number ^ ((number >> 16) & 0xFFFF)


def place_key(place: int) -> int:
    """Return a place's share of the key."""
    return wrapped(place * _PLACE_STEP)


def wrapped(number: int) -> int:
    """Bring a whole number into the range of int32, as the arithmetic of that type would."""
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


# Where it is computed.


def find_device(name: str) -> torch.device:
    """Return the device of that name; `auto` is a GPU where there is one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).cpu()  # refused by `meta` too, a device without memory
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"the device {name[:40]!r} is not there; choose auto or cpu") from error
    return device


def check_tiles(device: torch.device, dtype: torch.dtype) -> None:
    """Keep torch from tiles that do not work; to be called before anything is computed in `dtype` on `device`."""
    if device.type == "cpu" and dtype == torch.bfloat16:
        _check_once()


@cache
def _check_once() -> None:
    if not _announces_tiles() or _survives_a_product():
        return
    os.environ.setdefault(_ISA, _WITHOUT_TILES)
    if not _survives_a_product():  # oneDNN reads its environment once, and has been used in this process
        torch.backends.mkldnn.set_flags(False)  # type: ignore[no-untyped-call]
        _log.warning(
            "this machine announces matrix tiles (AMX) that do not work, so bfloat16 is computed slowly; set %s=%s "
            "before the program starts",
            _ISA,
            _WITHOUT_TILES,
        )


@cache
def cpu_instructions() -> frozenset[str]:
    """Return the names of the processor's instruction sets, as Linux gives them; none elsewhere."""
    lines = _CPU_FACTS.read_text().splitlines() if _CPU_FACTS.is_file() else []
    flags = next((line for line in lines if line.startswith("flags")), "")
    return frozenset(flags.partition(":")[2].split())


def is_fast_on_cpu(dtype: str) -> bool:
    """Tell whether this processor has instructions for products in bfloat16 or int8, and torch is built to use them."""
    return bool(_INSTRUCTIONS[dtype] & cpu_instructions()) and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]


@contextlib.contextmanager
def torch_on_one_thread(*, when: bool = True) -> Iterator[int]:
    """Have torch use one thread inside the block, which gets how many threads may compute. It may be entered again.

    The threads of OpenMP spin for some milliseconds after each of torch's operations, on the processors that other
    threads of ours need.

    Args:
        when: whether to do so at all.
    """
    total = _may_compute.get() or torch.get_num_threads()
    if not when or torch.get_num_threads() == 1:
        yield total
        return
    token = _may_compute.set(total)
    torch.set_num_threads(1)  # of MKL too, whose number is one for all threads
    try:
        yield total
    finally:
        torch.set_num_threads(total)
        _may_compute.reset(token)


def _announces_tiles() -> bool:
    return "amx_tile" in cpu_instructions()


def _survives_a_product() -> bool:
    matrix = torch.ones(64, 64, dtype=torch.bfloat16)
    return survives(lambda: torch.mm(matrix, matrix))


def survives(work: Callable[[], object]) -> bool:
    """Tell whether a child process can do something, where a processor might not know an instruction that it names."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which the child does not wait for
        child = os.fork()
    if child == 0:
        faulthandler.disable()
        signal.signal(signal.SIGILL, signal.SIG_DFL)
        torch.set_num_threads(1)
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0
