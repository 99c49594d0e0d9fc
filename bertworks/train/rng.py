"""The state of torch's random numbers as text, so that dropout goes on where it was.

Everything else that is random comes from a hash of (seed, epoch, place) and has no state. A checkpoint holds a list
with one entry for each rank.
"""

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from bertworks.errors import CorruptFile


def rng_state(device: torch.device) -> dict[str, str]:
    """Return the states of the CPU's generator and, on a GPU, of the device's, in hex."""
    state = {"cpu": _to_hex(torch.get_rng_state())}
    if device.type == "cuda":
        state["cuda"] = _to_hex(torch.cuda.get_rng_state(device))
    return state


def restore_rng(state: Mapping[str, Any], device: torch.device) -> None:
    """Set the generators to what `rng_state` returned."""
    try:
        torch.set_rng_state(_from_hex(state["cpu"]))
        if device.type == "cuda" and "cuda" in state:
            torch.cuda.set_rng_state(_from_hex(state["cuda"]), device)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"a checkpoint's state of random numbers is not one: {str(error)[:100]}") from error
    if device.type == "cuda" and "cuda" not in state:
        logging.getLogger(__name__).warning("the run was on a CPU before; on a GPU its dropout is not the same")


def _to_hex(state: Tensor) -> str:
    return state.numpy().tobytes().hex()


def _from_hex(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)
