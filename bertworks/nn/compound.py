"""What the paper compares BERT's two-sided attention with: models of one direction, helped by what was there before.

T tokens, S sequences, D width of an encoder, W width of what comes out, C cells of an LSTM.

One or two encoders read a text, and each token is their outputs side by side: a left-to-right and a right-to-left model
together have seen all of it, though neither both sides at once (section 5.1). A BiLSTM may stand on top, drawn from a
seed and trained with the rest (the last row of Table 5). Pooler and heads are BERT's, of the width that comes out.

A text is summed up by what has read all of it: the BiLSTM's last state of each direction, or else each encoder's own
token, the last of a left-to-right model and the first of a right-to-left one.
"""

from collections.abc import Iterable, Iterator
from typing import cast

import torch
from torch import Tensor, nn

from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import BiLstm, initialise_readers
from bertworks.nn.config import CompoundConfig
from bertworks.nn.heads import Head, OutputHead, make_head
from bertworks.nn.layers import Linear, initialise, place_key
from bertworks.nn.packing import Packing, Tokens

_PLACES = 1 << 16  # of dropout in an encoder, more than any has: so the encoders' masks have nothing in common


class Compound(nn.Module):
    """Encoders, perhaps a BiLSTM on top of them, and the heads that a task asks for.

    Args:
        config: the sizes.
        heads: which heads to have and how many outputs each has, see `make_head`.
    """

    def __init__(self, config: CompoundConfig, heads: dict[str, int] | None = None) -> None:
        super().__init__()
        self.config = config
        self.encoders = nn.ModuleList(Bert(encoder, pooler=False) for encoder in config.encoders)
        first, drop = config.encoders[0], config.encoders[0].hidden_dropout_prob
        widths = [sum(encoder.hidden_size for encoder in config.encoders)]
        widths += [2 * config.num_cells] * config.num_lstm_layers
        # Layers of their own, so that what is dropped between them is drawn from the seed; cuDNN has its own numbers.
        self.bilstm = nn.ModuleList(BiLstm(width, config.num_cells, 1, drop) for width in widths[:-1])
        like = first.model_copy(update={"hidden_size": widths[-1]})
        self.heads: nn.ModuleDict = nn.ModuleDict(
            {name: make_head(name, like, num_outputs) for name, num_outputs in (heads or {}).items()}
        )
        has_pooler = any(head.reads_pooled for head in cast(Iterable[Head], self.heads.values()))
        self.pooler = Linear(widths[-1], widths[-1]) if has_pooler else None

    def forward(self, tokens: Tokens) -> Tensor:
        """Return what comes out for every token, [T, W]."""
        x_TW = torch.cat([encoder(own) for encoder, own in self._readings(tokens)], dim=1)
        for layer in cast(Iterable[BiLstm], self.bilstm):
            # In training the LSTMs stay in fp32, whatever the encoders compute in.
            x_TW = layer(x_TW.to(next(layer.parameters()).dtype), tokens.packing)
        return x_TW

    def _readings(self, tokens: Tokens) -> Iterator[tuple[Bert, Tokens]]:
        """Give each encoder the tokens, with a seed of its own."""
        for number, encoder in enumerate(cast(Iterable[Bert], self.encoders)):
            seed = tokens.dropout_seed
            yield encoder, tokens if seed is None else tokens._replace(dropout_seed=seed + place_key(number * _PLACES))

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return the pooled output of every sequence, [S, W]; none may be empty."""
        assert self.pooler is not None, "this model has no pooler"
        if self.bilstm:
            summary_SW = final_states(self(tokens), tokens.packing)
        else:
            summary_SW = torch.cat([encoder.summary_of(own) for encoder, own in self._readings(tokens)], dim=1)
        return torch.tanh(self.pooler(summary_SW.to(self.pooler.weight.dtype)))

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return what a head makes of rows of width W."""
        layer = cast(OutputHead, self.heads[head])
        return layer(rows.to(layer.out.weight.dtype))

    def stacks(self) -> list[list[tuple[str, ...]]]:
        """Return what the weights of each encoder's layers are called, from the embeddings up."""
        return [
            [tuple(f"encoders.{number}.{name}" for name in names) for names in stack]
            for number, encoder in enumerate(cast(Iterable[Bert], self.encoders))
            for stack in encoder.stacks()
        ]


def final_states(x_TW: Tensor, packing: Packing) -> Tensor:
    """Return a BiLSTM's last states, [S, W]: of the forward half at the last token, of the backward half at the first.

    No sequence may be empty.
    """
    num_cells, bounds = x_TW.shape[1] // 2, packing.cumulative_lengths
    forward_SC = x_TW[:, :num_cells].index_select(0, bounds[1:] - 1)
    return torch.cat([forward_SC, x_TW[:, num_cells:].index_select(0, bounds[:-1])], dim=1)


def initialise_compound(net: Compound, seed: int) -> None:
    """Draw all weights: those of the BiLSTM as LSTMs want it, all others as BERT's."""
    initialise(net, net.config.encoders[0].initializer_range, seed)
    initialise_readers(net.bilstm, seed)
