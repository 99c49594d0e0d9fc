"""Language modelling over packed tokens: every token guesses the next one of its own sequence, or the one before.

T tokens, M rows, V vocabulary.

All T rows are scored, and those without a neighbour count 0: shapes stay the same from batch to batch, and a sequence
wastes one row. A loss is a sum and the number of guesses in it, never a mean.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.nn.packing import Tokens


class Targets(NamedTuple):
    """What each row shall guess, and how much that counts."""

    ids_M: Tensor
    weights_M: Tensor


def next_tokens(tokens: Tokens, weights_T: Tensor | None = None) -> Targets:
    """Return the token after each; `weights_T` is 0 at tokens that fill up a batch and shall not learn."""
    return _neighbours(tokens, ~_begins(tokens)[1:], -1, weights_T)


def previous_tokens(tokens: Tokens, weights_T: Tensor | None = None) -> Targets:
    """Return the token before each."""
    return _neighbours(tokens, ~_begins(tokens)[:-1], 1, weights_T)


def _begins(tokens: Tokens) -> Tensor:
    """Say of each of T + 1 places whether a sequence begins or ends there."""
    places = torch.zeros(len(tokens.token_ids) + 1, dtype=torch.bool, device=tokens.token_ids.device)
    return places.index_fill(0, tokens.packing.cumulative_lengths.long(), True)


def _neighbours(tokens: Tokens, is_there_T: Tensor, shift: int, weights_T: Tensor | None) -> Targets:
    counted_T = is_there_T.float() if weights_T is None else is_there_T * weights_T
    return Targets(tokens.token_ids.roll(shift).long(), counted_T)


def loss_sum(logits_MV: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
    """Return the summed cross entropy and the number of guesses that counted."""
    losses_M = F.cross_entropy(logits_MV.float(), targets.ids_M, reduction="none")
    return (losses_M * targets.weights_M).sum(), targets.weights_M.sum()
