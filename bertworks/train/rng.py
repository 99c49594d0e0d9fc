"""What it takes to get the same numbers again: the state of torch's random numbers as text, and ordered sums on a GPU.

The state is for dropout on a CPU, to go on where it was. Everything else that is random, dropout on a GPU too, is a
hash of (seed, step, place) and has no state.
"""

import os

import torch
from torch import Tensor

from bertworks.errors import CorruptFile


def be_deterministic() -> None:
    """Have torch add up in the same order every time; where it cannot, it raises an error that names the operation."""
    # cuBLAS splits sums over buffers as it likes unless it is told, before its first use, how many there are.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True)


def restore_rng(state: str) -> None:
    """Set the CPU's generator to a state that `to_hex` wrote."""
    try:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"a checkpoint's state of random numbers is not one: {str(error)[:100]}") from error


def to_hex(state: Tensor) -> str:
    """Write what `torch.get_rng_state` returned."""
    return state.numpy().tobytes().hex()
