"""What reads features that another model made: a mix of layers, a BiLSTM over them, attention between two texts.

T tokens, S sequences, D width of a feature, H width of a BiLSTM's output (twice its cells), L longest sequence.

`BiLstm` stands on frozen BERT layers (Table 7), on the left-to-right model (the last row of Table 5) and, with the
rest, on ELMo (`elmo_tasks.py`).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.layers import Linear
from bertworks.nn.packing import Packing
from bertworks.nn.recurrent import empty_lstm, fill_lstm, run_lstm, steps_of


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
