"""A batch of the loader on the device where it is trained on."""

import hashlib
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bertworks.data.loader import Packed
from bertworks.nn.packing import Packing, Tokens, pack_lengths


class TrainBatch(NamedTuple):
    """T tokens, S sequences, M masked positions; what is padding has weight 0."""

    tokens: Tokens
    masked_positions: Tensor  # [M]
    masked_ids: Tensor  # [M]
    masked_weights: Tensor  # [M]
    next_labels: Tensor  # [S]
    next_weights: Tensor  # [S]

    def real_tokens(self) -> Tensor:
        """Return 1 for every token and 0 for the padding behind the last sequence, [T]."""
        token_ids, end = self.tokens.token_ids, self.tokens.packing.cumulative_lengths[len(self.next_labels)]
        return (torch.arange(len(token_ids), device=token_ids.device) < end).float()


def moved(small: Tensor, device: torch.device) -> Tensor:
    """Move a few numbers to a device; from pinned memory, for a plain copy would wait until the GPU is idle."""
    return small if device.type == "cpu" else small.pin_memory().to(device, non_blocking=True)


def dropout_seed(seed: int, step: int, number: int) -> Tensor:
    """Return the seed, one int32, of the dropout of a part of a step's batch."""
    key = hashlib.blake2b(f"{seed} {step} {number}".encode(), digest_size=4).digest()
    return torch.tensor(int.from_bytes(key, "little", signed=True), dtype=torch.int32)


def to_device(packed: Packed, device: torch.device, max_length: int, *, flash: bool) -> TrainBatch:
    """Move the arrays of a slice to a device and say how its sequences lie.

    `max_length` is that of the data and not of the slice, so that a compiled step sees one number. From pinned memory
    nothing here waits for the device.
    """
    moved = [torch.from_numpy(array).to(device, non_blocking=True) for array in packed]
    token_ids, segment_ids, position_ids, starts, positions, ids, weights, labels, label_weights = moved
    if flash:
        packing = Packing(starts, max_length, None)
    else:
        packing = pack_lengths(np.diff(packed.cumulative_lengths), device)
    tokens = Tokens(token_ids, segment_ids, position_ids, packing)
    return TrainBatch(tokens, positions.long(), ids.long(), weights, labels.long(), label_weights)
