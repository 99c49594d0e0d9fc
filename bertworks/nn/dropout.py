"""Dropout whose mask is a function of (seed, place), not of a generator's state.

Each place in the network where dropout stands has a number, each element of its input an index; a hash of both and of
the step's seed says whether the element is kept. So there is no state to save for an exact resume, nor does it matter
how a batch is spread over ranks; and since a hash is a few integer operations that are fused with what comes before and
after, the backward pass makes the mask again instead of reading it. Philox, which torch uses, is several times dearer.

Without a seed masks are drawn: on a GPU by torch's own dropout, on a CPU from raw bits of a fast generator that torch's
seeds anew every time. To ask torch for as many single decisions takes ten times as long, a tenth of a small step.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

# The multipliers of a well-known 32-bit mixing function, found by search for the least bias; as signed numbers.
_MULTIPLIER_1, _MULTIPLIER_2 = 0x7FEB352D, 0x846CA68B - (1 << 32)
_PLACE_STEP = 0x9E3779B1 - (1 << 32)
_LOW_31 = 0x7FFFFFFF


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
