"""What reads features that another model made: a mix of layers, a BiLSTM over them, attention between two texts.

T tokens, S sequences, D width of a feature, H width of a BiLSTM's output (twice its cells), L longest sequence.

`BiLstm` stands on frozen BERT layers (Table 7), on the left-to-right model (the last row of Table 5) and, with the
rest, on ELMo (`elmo_tasks.py`).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, FeatureConfig, layers_of
from bertworks.nn.layers import Linear
from bertworks.nn.packing import Packing

# LSTMs over packed tokens.
#
# T tokens, S sequences, D width, C cells, P numbers that cells are projected to.
#
# An LSTM takes the first token of every sequence, then every second token, and so on. torch wants the rows in just
# that order, longest sequence first, with the number of sequences that still go on at each step. So packed tokens
# need one gather before and one after it, and no padding. A backward LSTM gets every sequence from its end.


_NUM_GATES = 4  # torch's order: input, forget, cell, output
_FORGET_GATE = 1


class Steps(NamedTuple):
    """The tokens of a batch in the order of an LSTM's steps."""

    order_T: Tensor
    inverse_T: Tensor
    num_going_on: Tensor  # for each step; on the CPU, where torch wants it


def steps_of(packing: Packing, *, backwards: bool = False) -> Steps:
    """Order a batch's tokens by their distance from the beginning of their sequence, or from its end."""
    starts = packing.cumulative_lengths.cpu().numpy().astype(np.int64)
    lengths = np.diff(starts)
    sequence_T = np.repeat(np.arange(len(lengths)), lengths)
    step_T = np.arange(starts[-1]) - starts[sequence_T]
    if backwards:
        step_T = lengths[sequence_T] - 1 - step_T
    order_T = np.lexsort((sequence_T, -lengths[sequence_T], step_T))
    inverse_T = np.empty_like(order_T)
    inverse_T[order_T] = np.arange(len(order_T))
    device = packing.cumulative_lengths.device
    going_on = torch.from_numpy(np.bincount(step_T).astype(np.int64))
    return Steps(torch.from_numpy(order_T).to(device), torch.from_numpy(inverse_T).to(device), going_on)


def empty_lstm(num_in: int, num_cells: int, **options: int | float | bool) -> nn.LSTM:
    """Make torch's LSTM without values in its weights."""
    return nn.LSTM(num_in, num_cells, device="meta", **options).to_empty(device=torch.get_default_device())


def run_lstm(lstm: nn.LSTM, x_TD: Tensor, steps: Steps) -> Tensor:
    """Return an LSTM's output for every token, [T, P] for each direction."""
    if not len(x_TD):
        return x_TD.new_zeros(0, (lstm.proj_size or lstm.hidden_size) * (2 if lstm.bidirectional else 1))
    packed = PackedSequence(x_TD.index_select(0, steps.order_T), steps.num_going_on)
    return lstm(packed)[0].data.index_select(0, steps.inverse_T)


@torch.no_grad()
def fill_lstm(lstm: nn.LSTM, generator: torch.Generator) -> None:
    """Fill an LSTM's weights, drawn on the CPU.

    As in ELMo's original: every gate's matrices by Glorot's uniform, biases 0 but for the forget gate's, which is 1, so
    that a cell keeps what it has until it learns not to.
    """
    for name, parameter in lstm.named_parameters():
        values = torch.zeros(parameter.shape)
        if name.startswith("weight"):
            for matrix in values.chunk(1 if name.startswith("weight_hr") else _NUM_GATES):
                nn.init.xavier_uniform_(matrix, generator=generator)
        elif name.startswith("bias_ih"):  # torch adds two biases; one of them stays 0
            values.chunk(_NUM_GATES)[_FORGET_GATE].fill_(1.0)
        parameter.copy_(values)


class ScalarMix(nn.Module):
    """A weighted mean of layers, with learned weights, times a learned number."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return one [T, D] of many."""
        shares = self.weights.softmax(0)
        return self.gamma * sum(share * layer for share, layer in zip(shares, layers, strict=True))


class BiLstm(nn.Module):
    """LSTMs from both ends; from the second layer on they see each other's output."""

    def __init__(self, num_in: int, num_cells: int = 768, num_layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        # torch drops between layers alone, and warns where there is nothing between.
        between = dropout if num_layers > 1 else 0.0
        self.lstm = empty_lstm(num_in, num_cells, num_layers=num_layers, bidirectional=True, dropout=between)
        self.dropout = dropout
        self.width = 2 * num_cells

    def forward(self, x_TD: Tensor, packing: Packing) -> Tensor:
        """Return [T, H]."""
        return run_lstm(self.lstm, F.dropout(x_TD, self.dropout, self.training), steps_of(packing))


def attend_to_partner(x_TH: Tensor, packing: Packing) -> Tensor:
    """Return for each token the mean of the other text's tokens, [T, H], each weighted by how much it resembles it.

    Sequences 0 and 1 are partners, 2 and 3, and so on. A text without tokens gives its partner zeros.
    """
    slots_T, is_token_SL = _slots(packing)
    x_SLH = x_TH.new_zeros(is_token_SL.numel(), x_TH.shape[1]).index_copy(0, slots_T, x_TH)
    x_SLH = x_SLH.view(*is_token_SL.shape, -1)
    partners_S = torch.arange(len(x_SLH), device=x_TH.device) ^ 1
    partner_SLH, partner_is_token_SL = x_SLH[partners_S], is_token_SL[partners_S]
    scores_SLL = x_SLH @ partner_SLH.transpose(1, 2)
    # Not -inf: without a single token that would be no number, and rows of padding are zeros anyway.
    scores_SLL = scores_SLL.masked_fill(~partner_is_token_SL[:, None], torch.finfo(x_TH.dtype).min)
    return (scores_SLL.softmax(2) @ partner_SLH).flatten(0, 1).index_select(0, slots_T)


def largest(x_TH: Tensor, packing: Packing) -> Tensor:
    """Return each column's largest value in each sequence, [S, H]; zeros where there is no token."""
    slots_T, is_token_SL = _slots(packing)
    x_SLH = x_TH.new_full((is_token_SL.numel(), x_TH.shape[1]), -torch.inf).index_copy(0, slots_T, x_TH)
    largest_SH = x_SLH.view(*is_token_SL.shape, -1).amax(1)
    return largest_SH.masked_fill(~is_token_SL.any(1, keepdim=True), 0.0)


def _slots(packing: Packing) -> tuple[Tensor, Tensor]:
    """Return where each token stands in a table of S x L, laid end to end, and which places of it have a token."""
    lengths_S = packing.cumulative_lengths.diff()
    is_token_SL = torch.arange(packing.max_length, device=lengths_S.device) < lengths_S[:, None]
    return is_token_SL.flatten().nonzero().squeeze(1), is_token_SL


@torch.no_grad()
def initialise_readers(model: nn.Module, seed: int) -> None:
    """Fill LSTMs as `fill_lstm` does and linear maps by Glorot's uniform, drawn on the CPU; a mix has its values."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            fill_lstm(module, generator)
        elif isinstance(module, Linear):
            values = nn.init.xavier_uniform_(torch.empty(module.weight.shape), generator=generator)
            module.weight.copy_(values)
            module.bias.zero_()


# A tagger on frozen layers: the paper's feature-based approach (section 5.3, Table 7).
#
# T words, D width of the encoder, H width of the BiLSTM's output, K labels.
#
# One or several layers of a frozen encoder, side by side or summed with learned weights, go into a BiLSTM and from
# there into a classification layer. The BiLSTM reads words, each as its first piece, and a sentence at a time: what
# a document adds is in the features already. (The code of the paper's tagger was never published; the paper says
# that the first piece stands for a word, and the taggers it compares itself with read words of a sentence.)


HEAD = "tag"


class FeatureReader(nn.Module):
    """Scores the labels of words by some layers of theirs.

    Args:
        config: which layers, and how large a BiLSTM.
        encoder: the sizes of what makes the layers.
        num_outputs: the number of labels.

    Attributes:
        layers: which layers are read, 0 being the embeddings.
    """

    reads_pooled = False  # it is a head, if an unusual one: see `reader_of`

    def __init__(self, config: FeatureConfig, encoder: BertConfig, num_outputs: int) -> None:
        super().__init__()
        self.config = config
        self.layers = layers_of(config.features, encoder.num_hidden_layers)
        self.mix = ScalarMix(len(self.layers)) if config.is_mixed else None
        num_in = encoder.hidden_size * (1 if config.is_mixed else len(self.layers))
        self.lstm = BiLstm(num_in, config.lstm_cells, config.lstm_layers, config.lstm_dropout)
        self.out = Linear(self.lstm.width, num_outputs)

    def forward(self, layers: Sequence[Tensor], packing: Packing) -> Tensor:
        """Return scores [T, K] of words, given [T, D] of each layer and which words belong to one sentence."""
        # To the network's own type: features may be kept in half precision, and are learnt from in full.
        own = [layer.to(self.out.weight.dtype) for layer in layers]
        x_TD = self.mix(own) if self.mix is not None else own[0] if len(own) == 1 else torch.cat(own, 1)
        return self.out(F.dropout(self.lstm(x_TD, packing), self.config.lstm_dropout, self.training))


def feature_bert(encoder: Bert, reader: FeatureReader) -> Bert:
    """Make a reader of its layers the tag head of an encoder that has none."""
    encoder.heads[HEAD] = reader
    return encoder


def reader_of(net: Bert) -> FeatureReader | None:
    """Return the reader of a network that tags by frozen layers, or None."""
    heads = [head for head in net.heads.values() if isinstance(head, FeatureReader)]
    return heads[0] if heads else None
