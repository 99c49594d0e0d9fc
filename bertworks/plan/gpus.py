"""GPUs by name, with what their vendor says of them.

Matrix rates are dense ones (the doubled figures of data sheets are for sparse matrices), with sums in fp32; of cards
that come in several forms it is the fastest, SXM. A card without bf16 can be planned for in fp32.
"""

import re
from typing import NamedTuple

from bertworks.errors import UserError, did_you_mean

TERA = 1e12
CPU = "cpu"  # this machine's: its memory is known, its speed is not
MEASURED = "h200"  # the GPU that the formulas of `speed.py` were fitted on


class Gpu(NamedTuple):
    """A GPU's memory and peak rates; its GB are taken as 10^9 bytes, though most have 7 % more."""

    memory_gb: float
    bf16_tflops: float | None  # of matrix products; None: the card has no bf16
    fp32_tflops: float  # without TF32, as torch multiplies unless told otherwise
    terabytes_per_s: float  # of its memory


GPUS = {
    "h200": Gpu(141, 989, 67, 4.8),
    "h100": Gpu(80, 989, 67, 3.35),
    "a100-80": Gpu(80, 312, 19.5, 2.039),
    "a100-40": Gpu(40, 312, 19.5, 1.555),
    "l40s": Gpu(48, 362, 91.6, 0.864),
    "l4": Gpu(24, 121, 30.3, 0.3),
    "rtx-4090": Gpu(24, 165.2, 82.6, 1.008),
    "rtx-3090": Gpu(24, 71, 35.6, 0.936),
    "v100-32": Gpu(32, None, 15.7, 0.9),
    "t4": Gpu(16, None, 8.1, 0.32),
}


def find_gpu(name: str) -> Gpu:
    """Return a GPU by its name, in capital letters or not."""
    known = name.lower()
    if known == "cpu":
        raise UserError(f"cpu has no rates that are known; choose --gpu {', '.join(GPUS)}")
    if known not in GPUS:
        # "a100" is nearer to a100-80 than to h100.
        near = [other for other in GPUS if known and other.startswith(known)]
        hint = f" (did you mean {' or '.join(map(repr, near))}?)" if near else did_you_mean(name[:40], list(GPUS))
        raise UserError(f"no GPU {name[:40]!r} is known{hint}")
    return GPUS[known]


def named_by_driver(device_name: str) -> str | None:
    """Return the name here of what a driver calls "NVIDIA A100-SXM4-80GB" or the like; None if it is not known."""
    words = set(re.split(r"[^a-z0-9]+", device_name.lower()))
    for name in GPUS:
        if all(part in words or f"{part}gb" in words for part in name.split("-")):
            return name
    return None


def peak_flops(name: str, *, half: bool) -> float:
    """Return how many operations a second a GPU's matrix products could take, in bf16 or in fp32."""
    gpu = find_gpu(name)
    if not half:
        return gpu.fp32_tflops * TERA
    if gpu.bf16_tflops is None:
        able = ", ".join(other for other, numbers in GPUS.items() if numbers.bf16_tflops)
        raise UserError(f"{name} has no bf16; choose --gpu {able}, or plan in fp32 with train.dtype=float32")
    return gpu.bf16_tflops * TERA
