"""The paper's ELMo baselines: a frozen ELMo, the BiLSTMs that read its layers, and a head for the task.

T tokens, S sequences, D width of a feature, H width of a BiLSTM's output (twice its cells), W width before the scores.

As in GLUE's BiLSTM+ELMo+Attn (Table 1): of ELMo's layers a weighted mean is learnt, and two BiLSTMs read it. Of two
texts each token then gathers what it resembles in the other one, and a third BiLSTM reads both together. A text becomes
its largest values, and what stands before the scores sees [u; v; |u - v|; u * v]. Choices are scored as pairs. Tags are
given, and answers found, by the rows of the last BiLSTM.

A sequence is `<S>` text `</S>` text `</S>` in one piece, as for BERT; segment ids tell the texts apart. ELMo has learnt
texts that begin with `<S>`, so the second one is given that sign here, and each is read by itself.

The ELMo is frozen: no dropout in it, and no gradient through it. Only a network whose ELMo was drawn from a seed, not
pre-trained, learns as a whole.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bertworks.nn.baseline_config import ElmoConfig, ElmoReaderConfig
from bertworks.nn.bilstm import BiLstm, ScalarMix, attend_to_partner, initialise_readers, largest
from bertworks.nn.elmo import Elmo, initialise_elmo
from bertworks.nn.layers import Linear
from bertworks.nn.packing import Tokens, pack_lengths
from bertworks.text.spelt_words import BEGIN_ID, MetWords

_POOLED_HEADS = ("classify", "choose")  # read a text as a whole; "tag" and "span" read its tokens


class Texts(NamedTuple):
    """The texts of a batch, each by itself; where sequences are pairs, two and two of them belong together."""

    tokens: Tokens
    places_T: Tensor  # where the tokens of the batch are among them


class ElmoTaskHead(nn.Module):
    """A linear map from each row to a few outputs, with dropout before it."""

    def __init__(self, num_in: int, num_outputs: int, dropout: float) -> None:
        super().__init__()
        self.out = Linear(num_in, num_outputs)
        self.dropout, self.num_outputs = dropout, num_outputs

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows to outputs."""
        return self.out(F.dropout(rows, self.dropout, self.training))


class ElmoTasks(nn.Module):
    """An ELMo with what reads it for a task.

    Args:
        config: the ELMo's sizes.
        reader: those of what stands on it.
        heads: which heads to have and how many outputs each has.

    Attributes:
        words: what ids mean, see `read_words`.
    """

    def __init__(self, config: ElmoConfig, reader: ElmoReaderConfig, heads: dict[str, int]) -> None:
        super().__init__()
        self.config, self.reader = config, reader
        self.words: MetWords | None = None
        cells, dropout = reader.num_cells, reader.dropout
        self.elmo = Elmo(config, softmax=False)
        self.mix = ScalarMix(config.num_layers + 1)
        # Layer by layer, not two in one LSTM: what cuDNN drops between its layers no seed of ours can repeat.
        self.first = BiLstm(2 * config.projection_size, cells, 1, dropout)
        self.second = BiLstm(self.first.width, cells, 1, dropout)
        self.third = BiLstm(2 * self.first.width, cells, 1, dropout) if reader.pairs else None
        is_pooled = any(name in _POOLED_HEADS for name in heads)
        num_features = self.first.width * (4 if reader.pairs else 1)
        self.hidden = Linear(num_features, reader.hidden_size) if is_pooled else None
        self.heads: nn.ModuleDict = nn.ModuleDict(
            {
                name: ElmoTaskHead(reader.hidden_size if name in _POOLED_HEADS else self.first.width, count, dropout)
                for name, count in heads.items()
            }
        )
        # Without a weight that wants a gradient no graph is kept of a frozen ELMo.
        self.elmo.requires_grad_(reader.trains_elmo)

    def read_words(self, words: MetWords) -> None:
        """Say what ids mean, before anything is computed; words that are met later are read too."""
        self.words = words
        self.elmo.characters_VK = None

    def stacks(self) -> list[list[tuple[str, ...]]]:
        """Return what the weights of layers begin with: the ELMo is frozen as one, or not at all."""
        return [[("elmo.",)]]

    def train(self, mode: bool = True) -> "ElmoTasks":
        """Switch dropout on or off; in a frozen ELMo it stays off."""
        super().train(mode)
        self.elmo.train(mode and self.reader.trains_elmo)
        return self

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the rows of all tokens, [T, H]."""
        texts = self._texts(tokens)
        return self._rows(texts).index_select(0, texts.places_T)

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return what the scores of each text, or pair, are made of, [S, W]."""
        assert self.hidden is not None, "this model has no head for whole texts"
        texts = self._texts(tokens)
        features = largest(self._rows(texts), texts.tokens.packing)
        if self.reader.pairs:
            u, v = features.view(-1, 2, features.shape[1]).unbind(1)
            features = torch.cat([u, v, (u - v).abs(), u * v], 1)
        return torch.tanh(self.hidden(F.dropout(features, self.reader.dropout, self.training)))

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return what a head makes of rows."""
        return self.heads[head](rows)

    def _rows(self, texts: Texts) -> Tensor:
        packing = texts.tokens.packing
        x_TH = self.second(self.first(self.mix(self._layers(texts.tokens)), packing), packing)
        if self.third is None:
            return x_TH
        return self.third(torch.cat([x_TH, attend_to_partner(x_TH, packing)], 1), packing)

    def _layers(self, tokens: Tokens) -> list[Tensor]:
        """Return ELMo's layers, [T, D] each."""
        assert self.words is not None, "nobody has said what ids mean"
        known = self.elmo.characters_VK
        if known is None or len(known) < len(self.words):
            table = torch.from_numpy(self.words.characters().view("int16"))
            self.elmo.characters_VK = table.to(tokens.token_ids.device)
        return self.elmo(tokens)

    def _texts(self, tokens: Tokens) -> Texts:
        """Tell the texts of pairs apart, and have the second one begin with `<S>` too."""
        num_tokens, device = len(tokens.token_ids), tokens.token_ids.device
        places_T = torch.arange(num_tokens, device=device)
        if not self.reader.pairs:
            return Texts(tokens, places_T)
        lengths_S = tokens.packing.cumulative_lengths.diff().long()
        numbers_T = torch.repeat_interleave(lengths_S)  # of each token's sequence; so many signs lie before it
        places_T = places_T + numbers_T + tokens.segment_ids
        seconds_S = torch.zeros_like(lengths_S).index_add(0, numbers_T, tokens.segment_ids)
        lengths = torch.stack([lengths_S - seconds_S, seconds_S + 1], 1).flatten().cpu().numpy()
        ids = tokens.token_ids.new_full((num_tokens + len(lengths_S),), BEGIN_ID)
        ids = ids.index_copy(0, places_T, tokens.token_ids)
        nothing = torch.zeros_like(ids)  # ELMo knows neither segments nor positions
        laid = Tokens(ids, nothing, nothing, pack_lengths(lengths, device), tokens.dropout_seed)
        return Texts(laid, places_T)


def initialise_elmo_tasks(net: ElmoTasks, seed: int) -> None:
    """Fill all weights from a seed, drawn on the CPU."""
    initialise_readers(net, seed)
    initialise_elmo(net.elmo, seed)
