"""LSTMs over packed tokens.

T tokens, S sequences, D width, C cells, P numbers that cells are projected to.

An LSTM takes the first token of every sequence, then every second token, and so on. torch wants the rows in just that
order, longest sequence first, with the number of sequences that still go on at each step. So packed tokens need one
gather before and one after it, and no padding. A backward LSTM gets every sequence from its end.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertworks.nn.packing import Packing

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
