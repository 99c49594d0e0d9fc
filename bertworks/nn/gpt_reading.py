"""A batch that GPT-1 has read, for a task's head and for its language model alike: every token is computed once.

To a task it looks like the network itself, called with the same tokens.
"""

import torch
from torch import Tensor

from bertworks.nn.gpt import Gpt
from bertworks.nn.lm import Sums
from bertworks.nn.orders import add_up, orders_of
from bertworks.nn.packing import Tokens


class Reading:
    """What a network made of some tokens, and of their other order where it reads both.

    Args:
        net: the network.
        tokens: what it reads.
    """

    def __init__(self, net: Gpt, tokens: Tokens) -> None:
        self._net, self._tokens = net, tokens
        self._orders = orders_of(tokens, both=net.both_orders)
        self._hidden = [net(order) for order in self._orders]

    def __call__(self, tokens: Tokens) -> Tensor:
        """Return the last layer's output, [T, D]."""
        assert tokens is self._tokens, "other tokens were read"
        return self._hidden[0]

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return what sums up every sequence, [S, D]."""
        assert tokens is self._tokens, "other tokens were read"
        return add_up([self._net.pooled(hidden_TD, tokens.packing) for hidden_TD in self._hidden])

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return what a head makes of rows of width D."""
        return self._net.scores(head, rows)

    def lm_sums(self) -> Sums:
        """Return the language model's sums over all that was read."""
        sums = [self._net.lm_sums(*read) for read in zip(self._hidden, self._orders, strict=True)]
        return Sums(*(torch.stack(column).sum() for column in zip(*sums, strict=True)))


def num_guesses(tokens: Tokens, *, both_orders: bool) -> int:
    """Return how many tokens `lm_sums` guesses; no sequence may be empty."""
    num_sequences = len(tokens.packing.cumulative_lengths) - 1
    return (len(tokens.token_ids) - num_sequences) * (2 if both_orders else 1)
