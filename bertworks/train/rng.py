"""The state of torch's random numbers as text, so that dropout on a CPU goes on where it was.

Everything else that is random, dropout on a GPU too, is a hash of (seed, step, place) and has no state.
"""

import torch
from torch import Tensor

from bertworks.errors import CorruptFile


def restore_rng(state: str) -> None:
    """Set the CPU's generator to a state that `to_hex` wrote."""
    try:
        torch.set_rng_state(torch.frombuffer(bytearray.fromhex(state), dtype=torch.uint8))
    except (TypeError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"a checkpoint's state of random numbers is not one: {str(error)[:100]}") from error


def to_hex(state: Tensor) -> str:
    """Write what `torch.get_rng_state` returned."""
    return state.numpy().tobytes().hex()
