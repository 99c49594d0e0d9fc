"""GPT-1: the left-to-right Transformer whose size the paper chose for BERT base.

T tokens, S sequences, D width, M rows, V vocabulary, K outputs.

- Its blocks are BERT's (post-LN), except that a token attends only to itself and the tokens before it. Other
  differences: embeddings are the sum of piece and position (no segments, no LayerNorm), gelu is the tanh approximation,
  and the output layer is just the piece embedding. A text is represented by its last token (`_classify_`), the only one
  that has seen all of it.
- Fine-tuning adds the language model's loss on the same texts, weighted by `LM_WEIGHT` (the GPT paper's lambda).
  `Reading` computes a batch once, for both the task's head and the language model. It has the interface of the network,
  so a task can use it in its place with the same tokens.
- If two texts have no natural order, as in paraphrase tasks, both orders are read and their representations are added.
  A sequence is `start a delimiter b end`; its segment ids are 0 up to the delimiter and 1 after it; a single text has
  only 0. The other order has the same tokens at other positions, so a sequence keeps its range in the batch.
"""

from collections.abc import Iterable, Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.attention import Packing, Tokens
from bertworks.nn.bert import Block, Sums, call_block, guesses, next_tokens, rows_of_blocks, tied_logits, total_of
from bertworks.nn.config import GptConfig
from bertworks.nn.layers import Dropout, Embedding, place_key

LM_WEIGHT = 0.5
HEADS = ("classify", "choose", "tag", "span")
_OTHER_ORDER = 1 << 20  # more than any network has dropouts, so that the dropout masks of both orders are independent


def orders_of(tokens: Tokens, *, both: bool) -> list[Tokens]:
    """Return the tokens as they are and, if requested, with the two texts of every sequence swapped."""
    return [tokens, swapped(tokens)] if both else [tokens]


def swapped(tokens: Tokens) -> Tokens:
    """Return the tokens with the two texts of every sequence in the other order; single texts stay as they are."""
    bounds_S, positions_T, seed = tokens.packing.cumulative_lengths.long(), tokens.position_ids, tokens.dropout_seed
    sequence_T = torch.repeat_interleave(bounds_S.diff(), output_size=len(positions_T))
    starts_T, lengths_T = bounds_S[sequence_T], bounds_S.diff()[sequence_T]
    num_after_S = torch.zeros_like(bounds_S[1:]).index_add_(0, sequence_T, tokens.segment_ids)
    seconds_T = num_after_S[sequence_T] - 1  # the length of the second text, without the end piece
    firsts_T = lengths_T - seconds_T - 3
    sources_T = torch.where(positions_T <= seconds_T, firsts_T + 1 + positions_T, positions_T - seconds_T - 1)
    sources_T = torch.where(positions_T == seconds_T + 1, firsts_T + 1, sources_T)
    is_fixed_T = (positions_T == 0) | (positions_T == lengths_T - 1) | (seconds_T < 0)
    sources_T = starts_T + torch.where(is_fixed_T, positions_T, sources_T)
    return tokens._replace(
        token_ids=tokens.token_ids.index_select(0, sources_T),
        segment_ids=((seconds_T >= 0) & (positions_T > seconds_T + 1)).long(),
        dropout_seed=None if seed is None else seed + place_key(_OTHER_ORDER),
    )


def add_up(rows: Sequence[Tensor]) -> Tensor:
    """Return the sum of the rows of one order, or of both."""
    return rows[0] if len(rows) == 1 else rows[0] + rows[1]


class GptHead(nn.Module):
    """K scores of a row, without bias: the GPT paper's W_y. The row is a text's last token, or any token to tag."""

    def __init__(self, config: GptConfig, num_outputs: int) -> None:
        super().__init__()
        self.num_outputs = num_outputs
        self.weight = nn.Parameter(torch.empty(num_outputs, config.n_embd))
        self.dropout = config.resid_pdrop

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows of width D to K outputs."""
        return F.linear(F.dropout(rows, self.dropout, self.training), self.weight)


class Gpt(nn.Module):
    """The decoder, its language model and the heads that a task needs.

    Args:
        config: the sizes.
        heads: which heads to have and how many outputs each has, see `HEADS`.
        both_orders: whether pairs of texts are read in both orders.
    """

    def __init__(self, config: GptConfig, heads: dict[str, int] | None = None, *, both_orders: bool = False) -> None:
        super().__init__()
        assert set(heads or {}) <= set(HEADS), f"GPT has no head like one of {heads}"
        self.config, self.both_orders = config, both_orders
        self.token = Embedding(config.vocab_size, config.n_embd)
        self.position = Embedding(config.n_positions, config.n_embd)
        self.dropout = Dropout(config.embd_pdrop, place=0)
        self.blocks = nn.ModuleList(Block(config.as_bert(), number) for number in range(config.n_layer))
        self.heads = nn.ModuleDict({name: GptHead(config, num_outputs) for name, num_outputs in (heads or {}).items()})

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the last layer's output, [T, D]; segments are ignored."""
        x_TD = self._begin(tokens)
        for block in cast(Iterable[Block], self.blocks):
            x_TD = call_block(block, x_TD, tokens.packing, block.own_seed(tokens.dropout_seed))
        return tokens.packing.leave(x_TD)

    def all_hidden(self, tokens: Tokens) -> list[Tensor]:
        """Return the embeddings and every layer's output, [T, D] each."""
        rows = [self._begin(tokens)]
        for block in cast(Iterable[Block], self.blocks):
            rows.append(block(rows[-1], tokens.packing, block.own_seed(tokens.dropout_seed)))
        return [tokens.packing.leave(x_TD) for x_TD in rows]

    def _begin(self, tokens: Tokens) -> Tensor:
        x_TD = self.token(tokens.token_ids) + self.position(tokens.position_ids)
        x_TD = self.dropout(x_TD, tokens.dropout_seed)
        # As in BERT: in training only the embeddings stay in fp32.
        if self.blocks:
            x_TD = x_TD.to(cast(Block, self.blocks[0]).norm.weight.dtype)
        return tokens.packing.enter(x_TD)

    def pooled(self, hidden_TD: Tensor, packing: Packing) -> Tensor:
        """Return the last token's output of every sequence, [S, D]."""
        # An empty first sequence has no last token; it gets some row, which has weight 0.
        return hidden_TD.index_select(0, (packing.cumulative_lengths[1:] - 1).clamp(min=0))

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return the representation of every sequence, [S, D], from tokens; no sequence may be empty."""
        return add_up([self._last_of(order) for order in orders_of(tokens, both=self.both_orders)])

    def _last_of(self, tokens: Tokens) -> Tensor:
        x_TD, lasts_S = self._begin(tokens), tokens.packing.cumulative_lengths[1:] - 1
        return rows_of_blocks(self.blocks, x_TD, tokens.packing, tokens.dropout_seed, lasts_S)

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return what a head makes of rows of width D."""
        return cast(GptHead, self.heads[head])(rows)

    def stacks(self) -> list[list[tuple[str, ...]]]:
        """Return the prefixes of the names of weights, layer by layer from the embeddings up, for its one encoder."""
        return [[("token.", "position."), *((f"blocks.{number}.",) for number in range(len(self.blocks)))]]

    def lm_logits(self, hidden_MD: Tensor) -> Tensor:
        """Return the scores of the next piece, [M, V], with the extra columns of `tied_logits`."""
        return tied_logits(hidden_MD, self.token.weight)

    def lm_sums(self, hidden_TD: Tensor, tokens: Tokens, weights_T: Tensor | None = None) -> Sums:
        """Return the language model's sums over a batch; `weights_T` is 0 for tokens that fill it up."""
        return guesses(hidden_TD, self.token.weight, None, *next_tokens(tokens, weights_T))


class Reading:
    """The output of a network for some tokens, and for their other order if it reads both.

    Args:
        net: the network.
        tokens: its input.
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
        """Return the representation of every sequence, [S, D]."""
        assert tokens is self._tokens, "other tokens were read"
        return add_up([self._net.pooled(hidden_TD, tokens.packing) for hidden_TD in self._hidden])

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return what a head makes of rows of width D."""
        return self._net.scores(head, rows)

    def lm_sums(self) -> Sums:
        """Return the language model's sums over all orders."""
        return total_of(self._net.lm_sums(*read) for read in zip(self._hidden, self._orders, strict=True))


def num_guesses(tokens: Tokens, *, both_orders: bool) -> int:
    """Return how many tokens `lm_sums` predicts; no sequence may be empty."""
    num_sequences = len(tokens.packing.cumulative_lengths) - 1
    return (len(tokens.token_ids) - num_sequences) * (2 if both_orders else 1)
