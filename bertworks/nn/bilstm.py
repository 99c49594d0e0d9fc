"""Networks that read the features of other networks: LSTMs, mixes, attention between texts; and BERTs side by side.

T tokens, S sequences, D width of a feature, C cells, H width of a BiLSTM's output (twice its cells), P width that cells
are projected to, L longest sequence, K labels, W width of the output of a `Compound`.

- An LSTM processes the first tokens of all sequences, then all second tokens, and so on. torch expects the rows in this
  order, longest sequence first, with the number of sequences that have a token at each step. So packed tokens need one
  gather before and one after the LSTM, and no padding. A backward LSTM gets every sequence from its end.
- On a CPU torch trains such rows in a time that grows with the square of the steps: the gradient of each step is a
  tensor of all of them, nearly all zeros. Padded sequences have no such cost, so those of about the same length are
  padded there: 64 sequences of 128 words through ELMo's LSTM take a tenth of the time.
- `FeatureReader` is a tagger on frozen layers: the paper's feature-based approach (section 5.3, Table 7). One or
  several layers of a frozen encoder, concatenated or summed with learned weights, are the input of a BiLSTM and a
  classification layer. It reads one row per word, that of the word's first piece, and one sentence at a time; the
  context of the document is already in the features. (The code of the paper's tagger was never published. The paper
  says that the first piece represents a word, and the taggers that it compares itself with read the words of a
  sentence.)
- `Compound` is the alternative to BERT's bidirectional attention in the paper: one or two encoders of one direction,
  whose outputs are concatenated for each token. A left-to-right and a right-to-left model together see the whole text,
  but neither sees both sides at once (section 5.1). A BiLSTM may be added on top, initialised at random and trained
  with the rest (the last row of Table 5). Pooler and heads are BERT's, adapted to the width of the output. The summary
  of a text comes from states that have read all of it: the BiLSTM's last state of each direction, or else one token of
  each encoder, the last of a left-to-right model and the first of a right-to-left one.
- The readers of ELMo's layers are made of the same parts, in `elmo.py`.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from bertworks.nn.attention import Packing, Tokens
from bertworks.nn.bert import Bert, Head, OutputHead, make_head
from bertworks.nn.config import BertConfig, CompoundConfig, FeatureConfig, layers_of
from bertworks.nn.layers import Linear, initialise, place_key

_NUM_GATES = 4  # torch's order: input, forget, cell, output
_FORGET_GATE = 1
_MOST_PADDED = 2  # rows for each token
HEAD = "tag"  # the name of the head for a reader of frozen layers
_PLACES = 1 << 16  # more than any encoder has dropouts, so that the encoders' dropout masks are independent


class Steps(NamedTuple):
    """The tokens of a batch in the order of an LSTM's steps."""

    order_T: Tensor
    inverse_T: Tensor
    num_active: Tensor  # the number of sequences with a token at each step; on the CPU, as torch requires


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


def run_lstm(lstm: nn.LSTM, x_TD: Tensor, packing: Packing, steps: Steps) -> Tensor:
    """Return an LSTM's output for every token, [T, P] for each direction; `steps` is the order of the first one."""
    if not len(x_TD):
        return x_TD.new_zeros(0, (lstm.proj_size or lstm.hidden_size) * (2 if lstm.bidirectional else 1))
    num_rows = len(steps.num_active) * int(steps.num_active[0])
    if x_TD.device.type == "cpu" and torch.is_grad_enabled() and num_rows <= _MOST_PADDED * len(x_TD):
        both = [steps, steps_of(packing, backwards=True)] if lstm.bidirectional else [steps]
        return _run_padded(lstm, x_TD, both, num_rows)
    packed = PackedSequence(x_TD.index_select(0, steps.order_T), steps.num_active)
    return lstm(packed)[0].data.index_select(0, steps.inverse_T)


def _run_padded(lstm: nn.LSTM, x_TD: Tensor, directions: Sequence[Steps], num_rows: int) -> Tensor:
    """Do the same with padding after the end of each sequence, one layer and direction after the other."""
    weights = iter(lstm.all_weights)
    for layer in range(lstm.num_layers):
        if layer:
            x_TD = F.dropout(x_TD, lstm.dropout, lstm.training)
        outputs = []
        for steps in directions:
            num_sequences = int(steps.num_active[0])
            step_T = torch.arange(len(steps.num_active)).repeat_interleave(steps.num_active)
            slot_T = torch.arange(len(x_TD)) - (steps.num_active.cumsum(0) - steps.num_active)[step_T]
            places_T = (step_T * num_sequences + slot_T)[steps.inverse_T]
            rows_LSD = x_TD.new_zeros(num_rows, x_TD.shape[1]).index_copy(0, places_T, x_TD)
            rows_LSD = rows_LSD.view(-1, num_sequences, x_TD.shape[1])
            state, cell = (x_TD.new_zeros(1, num_sequences, n or lstm.hidden_size) for n in (lstm.proj_size, 0))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "LSTM with projections")  # that oneDNN's is not used for them
                found = torch.lstm(
                    rows_LSD, (state, cell), tuple(next(weights)), True, 1, 0.0, lstm.training, False, False,
                )  # fmt: skip
            outputs.append(found[0].flatten(0, 1).index_select(0, places_T))
        x_TD = torch.cat(outputs, 1)
    return x_TD


@torch.no_grad()
def fill_lstm(lstm: nn.LSTM, generator: torch.Generator) -> None:
    """Initialise an LSTM's weights, drawn on the CPU.

    As in the original ELMo: Glorot's uniform distribution for the matrices of every gate, and zero biases, except for
    the forget gate's, which is 1, so that a cell keeps its state until it learns to forget.
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
    """A weighted mean of layers, with learned weights, times a learned factor."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(num_layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Sequence[Tensor]) -> Tensor:
        """Return the mix of several [T, D], as one [T, D]."""
        shares = self.weights.softmax(0)
        return self.gamma * sum(share * layer for share, layer in zip(shares, layers, strict=True))


class BiLstm(nn.Module):
    """LSTMs in both directions; from the second layer on, each reads the outputs of both."""

    def __init__(self, num_in: int, num_cells: int = 768, num_layers: int = 2, dropout: float = 0.1) -> None:
        super().__init__()
        # torch applies dropout only between layers, and warns if there is a single layer.
        between = dropout if num_layers > 1 else 0.0
        self.lstm = empty_lstm(num_in, num_cells, num_layers=num_layers, bidirectional=True, dropout=between)
        self.dropout = dropout
        self.width = 2 * num_cells

    def forward(self, x_TD: Tensor, packing: Packing) -> Tensor:
        """Return [T, H]."""
        x_TD = F.dropout(x_TD, self.dropout, self.training)
        return run_lstm(self.lstm, x_TD, packing, steps_of(packing))


def attend_to_partner(x_TH: Tensor, packing: Packing) -> Tensor:
    """Return for each token the mean of the other text's tokens, [T, H], weighted by their similarity to it.

    Sequences 0 and 1 are partners, 2 and 3, and so on. For an empty partner the result is zeros.
    """
    slots_T, is_token_SL = _slots(packing)
    x_SLH = x_TH.new_zeros(is_token_SL.numel(), x_TH.shape[1]).index_copy(0, slots_T, x_TH)
    x_SLH = x_SLH.view(*is_token_SL.shape, -1)
    partners_S = torch.arange(len(x_SLH), device=x_TH.device) ^ 1
    partner_SLH, partner_is_token_SL = x_SLH[partners_S], is_token_SL[partners_S]
    scores_SLL = x_SLH @ partner_SLH.transpose(1, 2)
    # Not -inf, which would give NaN for an empty partner; rows of padding are zeros anyway.
    scores_SLL = scores_SLL.masked_fill(~partner_is_token_SL[:, None], torch.finfo(x_TH.dtype).min)
    return (scores_SLL.softmax(2) @ partner_SLH).flatten(0, 1).index_select(0, slots_T)


def largest(x_TH: Tensor, packing: Packing) -> Tensor:
    """Return each column's largest value in each sequence, [S, H]; zeros for an empty sequence."""
    slots_T, is_token_SL = _slots(packing)
    x_SLH = x_TH.new_full((is_token_SL.numel(), x_TH.shape[1]), -torch.inf).index_copy(0, slots_T, x_TH)
    largest_SH = x_SLH.view(*is_token_SL.shape, -1).amax(1)
    return largest_SH.masked_fill(~is_token_SL.any(1, keepdim=True), 0.0)


def _slots(packing: Packing) -> tuple[Tensor, Tensor]:
    """Return the position of each token in the flattened padded layout, S x L, and which positions have a token."""
    lengths_S = packing.cumulative_lengths.diff()
    is_token_SL = torch.arange(packing.max_length, device=lengths_S.device) < lengths_S[:, None]
    return is_token_SL.flatten().nonzero().squeeze(1), is_token_SL


@torch.no_grad()
def initialise_readers(model: nn.Module, seed: int) -> None:
    """Initialise LSTMs by `fill_lstm` and linear maps by Glorot's uniform, drawn on the CPU; mixes are already set."""
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.LSTM):
            fill_lstm(module, generator)
        elif isinstance(module, Linear):
            values = nn.init.xavier_uniform_(torch.empty(module.weight.shape), generator=generator)
            module.weight.copy_(values)
            module.bias.zero_()


class FeatureReader(nn.Module):
    """Scores the labels of words, given layers of an encoder.

    Args:
        config: which layers are read, and the size of the BiLSTM.
        encoder: the configuration of the encoder that makes the layers.
        num_outputs: the number of labels.

    Attributes:
        layers: the numbers of the layers that are read; 0 is the embeddings.
    """

    reads_pooled = False  # it takes the place of a head, see `reader_of`

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
        # Convert to the network's type: features may be stored in half precision, but training is in full precision.
        own = [layer.to(self.out.weight.dtype) for layer in layers]
        x_TD = self.mix(own) if self.mix is not None else own[0] if len(own) == 1 else torch.cat(own, 1)
        return self.out(F.dropout(self.lstm(x_TD, packing), self.config.lstm_dropout, self.training))


def feature_bert(encoder: Bert, reader: FeatureReader) -> Bert:
    """Make a reader the tag head of an encoder that has none."""
    encoder.heads[HEAD] = reader
    return encoder


def reader_of(net: Bert) -> FeatureReader | None:
    """Return the reader of a network that tags with frozen layers, or None."""
    heads = [head for head in net.heads.values() if isinstance(head, FeatureReader)]
    return heads[0] if heads else None


class Compound(nn.Module):
    """Encoders, optionally a BiLSTM on top of them, and the heads that a task needs.

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
        # Separate layers, so that the dropout between them is drawn from the seed; cuDNN would use its own generator.
        self.bilstm = nn.ModuleList(BiLstm(width, config.num_cells, 1, drop) for width in widths[:-1])
        like = first.model_copy(update={"hidden_size": widths[-1]})
        self.heads: nn.ModuleDict = nn.ModuleDict(
            {name: make_head(name, like, num_outputs) for name, num_outputs in (heads or {}).items()}
        )
        has_pooler = any(head.reads_pooled for head in cast(Iterable[Head], self.heads.values()))
        self.pooler = Linear(widths[-1], widths[-1]) if has_pooler else None

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the output for every token, [T, W]."""
        x_TW = torch.cat([encoder(own) for encoder, own in self._readings(tokens)], dim=1)
        for layer in cast(Iterable[BiLstm], self.bilstm):
            # In training the LSTMs stay in fp32, whatever the type of the encoders' computation.
            x_TW = layer(x_TW.to(next(layer.parameters()).dtype), tokens.packing)
        return x_TW

    def _readings(self, tokens: Tokens) -> Iterator[tuple[Bert, Tokens]]:
        """Yield each encoder with the tokens, with a separate dropout seed."""
        for number, encoder in enumerate(cast(Iterable[Bert], self.encoders)):
            seed = tokens.dropout_seed
            yield encoder, tokens if seed is None else tokens._replace(dropout_seed=seed + place_key(number * _PLACES))

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return the pooled output of every sequence, [S, W]; no sequence may be empty."""
        assert self.pooler is not None, "this model has no pooler"
        if self.bilstm:
            summary_SW = final_states(self(tokens), tokens.packing)
        else:
            summary_SW = torch.cat([encoder.summary_of(own) for encoder, own in self._readings(tokens)], dim=1)
        return torch.tanh(self.pooler(summary_SW.to(self.pooler.weight.dtype)))

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return a head's scores for rows of width W."""
        layer = cast(OutputHead, self.heads[head])
        return layer(rows.to(layer.out.weight.dtype))

    def stacks(self) -> list[list[tuple[str, ...]]]:
        """Return the prefixes of the names of each encoder's weights, layer by layer from the embeddings up."""
        return [
            [tuple(f"encoders.{number}.{name}" for name in names) for names in stack]
            for number, encoder in enumerate(cast(Iterable[Bert], self.encoders))
            for stack in encoder.stacks()
        ]


def final_states(x_TW: Tensor, packing: Packing) -> Tensor:
    """Return a BiLSTM's last states, [S, W]: the forward half at the last token, the backward half at the first.

    No sequence may be empty.
    """
    num_cells, bounds = x_TW.shape[1] // 2, packing.cumulative_lengths
    forward_SC = x_TW[:, :num_cells].index_select(0, bounds[1:] - 1)
    return torch.cat([forward_SC, x_TW[:, num_cells:].index_select(0, bounds[:-1])], dim=1)


def initialise_compound(net: Compound, seed: int) -> None:
    """Initialise all weights: those of the BiLSTM as for LSTMs, all others as for BERT."""
    initialise(net, net.config.encoders[0].initializer_range, seed)
    initialise_readers(net.bilstm, seed)
