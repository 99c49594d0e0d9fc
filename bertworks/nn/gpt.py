"""GPT-1: the left-to-right Transformer that the paper's base model was made as large as.

T tokens, S sequences, D width, M rows, V vocabulary, K outputs.

Its blocks are BERT's, post-LN and all, in which a token sees itself and what is before it. What differs: embeddings are
the sum of piece and position and nothing else (no segments, no LayerNorm), the tanh form of gelu, and an output that is
the piece embedding alone. A text is summed up by its last token (`_classify_`), the only one that has seen all of it.

Fine-tuning adds the language model's loss over the same texts, weighted by `LM_WEIGHT` (the GPT paper's lambda).
"""

from collections.abc import Iterable
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.baseline_config import GptConfig
from bertworks.nn.bert import Block
from bertworks.nn.dropout import Dropout
from bertworks.nn.heads import tied_logits
from bertworks.nn.layers import Embedding
from bertworks.nn.lm import Sums, next_tokens, sums_in_parts, sums_of
from bertworks.nn.packing import Packing, Tokens
from bertworks.nn.recompute import called

LM_WEIGHT = 0.5


class GptHead(nn.Module):
    """K scores of a text from its last token, without bias: the GPT paper's W_y. One score: one choice of several."""

    reads_pooled = True

    def __init__(self, config: GptConfig, num_outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_outputs, config.n_embd))
        self.dropout = config.resid_pdrop

    def forward(self, rows_SD: Tensor) -> Tensor:
        """Return [S, K]."""
        return F.linear(F.dropout(rows_SD, self.dropout, self.training), self.weight)


class Gpt(nn.Module):
    """The decoder, its language model and the heads that a task asks for.

    Args:
        config: the sizes.
        heads: `classify` and its number of classes, or `choose` and 1.
    """

    def __init__(self, config: GptConfig, heads: dict[str, int] | None = None) -> None:
        super().__init__()
        assert set(heads or {}) <= {"classify", "choose"}, f"GPT has no head like one of {heads}"
        self.config = config
        self.token = Embedding(config.vocab_size, config.n_embd)
        self.position = Embedding(config.n_positions, config.n_embd)
        self.dropout = Dropout(config.embd_pdrop, place=0)
        self.blocks = nn.ModuleList(Block(config.as_bert(), number) for number in range(config.n_layer))
        self.heads = nn.ModuleDict({name: GptHead(config, num_outputs) for name, num_outputs in (heads or {}).items()})

    def all_heads(self) -> Iterable[GptHead]:
        """Return the heads."""
        return self.heads.values()  # type: ignore[return-value]

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the last layer's output, [T, D]; segments are not looked at."""
        x_TD = self._begin(tokens)
        for block in cast(Iterable[Block], self.blocks):
            x_TD = called(block, x_TD, tokens.packing, block.own_seed(tokens.dropout_seed))
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
        # As in BERT: in training the embeddings alone stay in fp32.
        if self.blocks:
            x_TD = x_TD.to(cast(Block, self.blocks[0]).norm.weight.dtype)
        return tokens.packing.enter(x_TD)

    def pooled(self, hidden_TD: Tensor, packing: Packing) -> Tensor:
        """Return the last token's output of every sequence, [S, D]."""
        # An empty sequence before the first token has no last one; whatever row it gets, its weight is 0.
        return hidden_TD.index_select(0, (packing.cumulative_lengths[1:] - 1).clamp(min=0))

    def lm_logits(self, hidden_MD: Tensor) -> Tensor:
        """Return the scores of the next piece, [M, V], with the extra columns of `tied_logits`."""
        return tied_logits(hidden_MD, self.token.weight)

    def lm_sums(self, hidden_TD: Tensor, tokens: Tokens, weights_T: Tensor | None = None) -> Sums:
        """Return the language model's sums over a batch; `weights_T` is 0 at tokens that fill it up."""
        embedding_VD = self.token.weight

        def sums(rows_MD: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
            return sums_of(tied_logits(rows_MD, embedding_VD), ids_M, weights_M)

        return sums_in_parts(sums, len(embedding_VD), hidden_TD, *next_tokens(tokens, weights_T))
