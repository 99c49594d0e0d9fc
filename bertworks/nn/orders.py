"""Two texts in both orders, for a network that reads them in one direction: GPT-1's input for tasks of likeness.

T tokens, S sequences, D width.

A sequence is `start a delimiter b end`, its segment ids 0 up to the delimiter and 1 behind it; a single text has no 1.
The other order has the same tokens in other places, so the sequences lie in the batch as they did.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from bertworks.nn.dropout import place_key
from bertworks.nn.packing import Tokens

_OTHER_ORDER = 1 << 20  # a place of dropout that no network has: both orders have masks of their own


def orders_of(tokens: Tokens, *, both: bool) -> list[Tokens]:
    """Return the tokens as they are and, if asked for, with the two texts of every sequence swapped."""
    return [tokens, swapped(tokens)] if both else [tokens]


def swapped(tokens: Tokens) -> Tokens:
    """Return the tokens with the two texts of every sequence in the other order; single texts stay as they are."""
    bounds_S, places_T, seed = tokens.packing.cumulative_lengths.long(), tokens.position_ids, tokens.dropout_seed
    sequence_T = torch.repeat_interleave(bounds_S.diff(), output_size=len(places_T))
    starts_T, lengths_T = bounds_S[sequence_T], bounds_S.diff()[sequence_T]
    num_behind_S = torch.zeros_like(bounds_S[1:]).index_add_(0, sequence_T, tokens.segment_ids)
    seconds_T = num_behind_S[sequence_T] - 1  # how long the second text is: the end is behind the delimiter too
    firsts_T = lengths_T - seconds_T - 3
    sources_T = torch.where(places_T <= seconds_T, firsts_T + 1 + places_T, places_T - seconds_T - 1)
    sources_T = torch.where(places_T == seconds_T + 1, firsts_T + 1, sources_T)
    is_fixed_T = (places_T == 0) | (places_T == lengths_T - 1) | (seconds_T < 0)
    sources_T = starts_T + torch.where(is_fixed_T, places_T, sources_T)
    return tokens._replace(
        token_ids=tokens.token_ids.index_select(0, sources_T),
        segment_ids=((seconds_T >= 0) & (places_T > seconds_T + 1)).long(),
        dropout_seed=None if seed is None else seed + place_key(_OTHER_ORDER),
    )


def add_up(rows: Sequence[Tensor]) -> Tensor:
    """Return the sum of what was made of each order."""
    return rows[0] if len(rows) == 1 else rows[0] + rows[1]
