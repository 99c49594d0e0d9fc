"""Language modelling over packed tokens: every token guesses the next one of its own sequence, or the one before.

T tokens, M rows, V vocabulary.

All T rows are scored, and those without a neighbour count 0: shapes stay the same from batch to batch, and a sequence
wastes one row. A loss is a sum and the number of guesses in it, never a mean.

The scores of a whole batch would take gigabytes, so they are made for some thousands of rows at a time, and again in
the backward pass.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bertworks.nn.packing import Tokens

_SCORES_AT_ONCE = 1 << 28  # 8,192 rows of BERT's vocabulary: half a gigabyte in bf16


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


class Sums(NamedTuple):
    """Of one kind of prediction: the summed loss, how many were right, and of how many."""

    loss: Tensor
    correct: Tensor
    total: Tensor  # of the weights: how many predictions there were


def sums_of(logits_MV: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
    """Return the sums of predictions whose right outcomes are `ids_M`."""
    scores = logits_MV.float()
    best = scores.detach().amax(-1)
    chosen = scores.gather(1, ids_M[:, None]).squeeze(1)
    losses = scores.sub(best[:, None]).exp().sum(-1).log() + best - chosen
    # The best score was needed anyway, so it costs nothing to see whether it was the right one.
    return Sums((losses * weights_M).sum(), ((chosen >= best) * weights_M).sum().detach(), weights_M.sum())


def sums_in_parts(sums: Callable[..., Sums], num_scores: int, *per_row: Tensor) -> Sums:
    """Add up sums over as many rows at a time as memory should hold the scores of.

    Args:
        sums: gives those of some rows. It must hold on to the weights that it needs: in half precision a module has
            others by the time of the backward pass, when the scores are made again.
        num_scores: of a row.
        per_row: what `sums` reads, cut into parts of the same rows.
    """
    num_rows = 1 << (_SCORES_AT_ONCE // num_scores).bit_length() - 1
    parts = zip(*(torch.split(column, num_rows) for column in per_row), strict=True)
    found = [checkpoint(sums, *part, use_reentrant=False) for part in parts]
    return Sums(*(torch.stack(column).sum() for column in zip(*found, strict=True)))
