"""ELMo: two language models in opposite directions, whose layers are features for tasks; and the task network on them.

T tokens (words), K characters of a word, U different words, E width of a character, F number of all filters, D width of
a word or feature, V words (most frequent first), R sampled words, M rows, S sequences, H width of a BiLSTM's output
(twice its cells), W width of the layer before the scores.

- Words are read by their characters, so no word is unknown. A word is 50 ids: a begin-of-word id, its bytes + 1, an
  end-of-word id, then padding, which has an embedding like the other ids. Convolutions of width 1, 2, ... with
  max-pooling, highway layers and a linear map turn them into a word vector. Two optimisations do not change results: a
  word that occurs several times in a batch is computed once, and only as much padding is read as the widest filter
  needs.
- Two stacks of LSTMs read the words: one from the left predicts the next word, one from the right the previous word.
  They share the character encoder and the softmax, but not their states. The second LSTM has a residual connection. The
  many cells are projected down to the width of a word.
- ELMo's output is all its layers, each [from the left; from the right]; a task learns their weights (`ScalarMix`).
- Unlike the original, cells and projections are not clipped (at 3 there), because torch's LSTM cannot do that, so only
  gradients are clipped; and each sequence starts with a zero state, whereas the original kept its state between batches
  of 20 words.

- The softmax over very many words is trained with a sample of them and evaluated with all. The sample has R different
  words; frequent ones are more likely to be in it (log-uniform by rank, as in the original ELMo). Each word gets a
  random waiting time, exponential with its probability as the rate, and the R words with the shortest times are taken.
  This has the same distribution as drawing words one by one until R are different. It also gives the expected count of
  a word in the sample: 1 - exp(-rate * time of the next word). Scores are corrected by the logarithm of this count, so
  that the loss has its minimum where that of the full softmax has it, and the corrected sum over the sample is on
  average the sum over all words. Drawing takes about 15 ms for 800,000 words.

`ElmoTasks` is the paper's ELMo baseline, GLUE's BiLSTM+ELMo+Attn (Table 1):

- Two BiLSTMs read a learned weighted mean of ELMo's layers. With two texts, each token then attends to the other text,
  and a third BiLSTM reads the tokens with their attention outputs. A text is represented by max-pooling, and a pair by
  [u; v; |u - v|; u * v], the input of the layer before the scores. Choices are scored as pairs. Tags and answers are
  scored from the rows of the last BiLSTM.
- A sequence is `<S>` text `</S>` text `</S>`, as for BERT; segment ids separate the texts. ELMo was trained on texts
  that begin with `<S>`, so an `<S>` is added to the second text here, and each text is read separately.
- The ELMo is frozen: it has no dropout and no gradients. It is only trained if it was initialised at random and not
  pre-trained.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertworks.nn.attention import Packing, Tokens, pack_lengths
from bertworks.nn.bert import Sums, guesses, next_tokens, previous_tokens, rows_at_once, sums_of, total_of
from bertworks.nn.bilstm import (
    BiLstm,
    ScalarMix,
    Steps,
    attend_to_partner,
    empty_lstm,
    fill_lstm,
    initialise_readers,
    largest,
    run_lstm,
    steps_of,
)
from bertworks.nn.config import ElmoConfig, ElmoReaderConfig
from bertworks.nn.layers import Dropout, Embedding, Linear
from bertworks.text.elmo_words import BEGIN_ID, SeenWords

NUM_CHARACTERS = 262
PADDING = 261  # fills up a word after its end

_CARRY_BIAS = -2.0
_POOLED_HEADS = ("classify", "choose")  # these score whole texts; "tag" and "span" score tokens
_FILTER_RANGE = 0.05


class Highway(nn.Module):
    """A highway layer: g * relu(A x) + (1 - g) * x, with the gate g = sigmoid(B x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Linear(width, width)
        self.change = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return a tensor of the same shape."""
        return torch.lerp(x, F.relu(self.change(x)), torch.sigmoid(self.gate(x)))


class CharacterEncoder(nn.Module):
    """Computes word vectors from characters."""

    def __init__(self, config: ElmoConfig) -> None:
        super().__init__()
        total = sum(config.num_filters)
        self.embedding = Embedding(NUM_CHARACTERS, config.char_embedding_size)
        self.filters = nn.ModuleList(
            nn.Conv1d(config.char_embedding_size, count, width, device="meta").to_empty(
                device=torch.get_default_device()
            )
            for width, count in enumerate(config.num_filters, start=1)
        )
        self.highways = nn.ModuleList(Highway(total) for _ in range(config.num_highway_layers))
        self.projection = Linear(total, config.projection_size)

    def forward(self, characters_TK: Tensor) -> Tensor:
        """Return [T, D]."""
        x_TEK = self.embedding(self._without_idle_padding(characters_TK).int()).transpose(1, 2)
        x_TF = torch.cat([F.relu(slide(x_TEK).amax(2)) for slide in self.filters], 1)
        for highway in self.highways:
            x_TF = highway(x_TF)
        return self.projection(x_TF)

    def words(self, word_ids_T: Tensor, characters_VK: Tensor) -> Tensor:
        """Return [T, D] for word ids; the rows of a table of 16-bit numbers are the characters of each word."""
        unique_U, inverse_T = torch.unique(word_ids_T, return_inverse=True)
        # torch indexes only signed types; the ids are small enough to be viewed as signed without a copy.
        characters_UK = characters_VK.view(torch.int16).index_select(0, unique_U)
        return F.embedding(inverse_T, self(characters_UK))

    def _without_idle_padding(self, characters_TK: Tensor) -> Tensor:
        used = (characters_TK != PADDING).any(0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        return characters_TK[:, : longest + len(self.filters)]


@torch.no_grad()
def fill_characters(encoder: CharacterEncoder, generator: torch.Generator) -> None:
    """Initialise the weights as in the original ELMo; highway layers start by passing most of their input through."""
    for name, parameter in encoder.named_parameters():
        values = torch.zeros(parameter.shape)
        if name == "embedding.weight":
            values.uniform_(-1.0, 1.0, generator=generator)
        elif name.startswith("filters") and parameter.ndim > 1:
            values.uniform_(-_FILTER_RANGE, _FILTER_RANGE, generator=generator)
        elif parameter.ndim > 1:
            values.normal_(0.0, parameter.shape[1] ** -0.5, generator=generator)
        elif name.endswith("gate.bias"):
            values.fill_(_CARRY_BIAS)
        parameter.copy_(values)


def draw_sample(num_words: int, num_sampled: int, seed: int) -> tuple[Tensor, float]:
    """Draw R different words by a seed; returns their ids, [R], and the waiting time of the next word."""
    assert num_sampled < num_words
    waits_V = np.random.default_rng(seed).standard_exponential(num_words, np.float32)
    times_V = waits_V / _rates(num_words)
    earliest = np.argpartition(times_V, num_sampled)[: num_sampled + 1]
    return torch.from_numpy(np.sort(earliest[:-1])), float(times_V[earliest[-1]])


@lru_cache(maxsize=2)
def _rates(num_words: int) -> NDArray[np.float32]:
    rates_V = np.log1p(1.0 / np.arange(1, num_words + 1)) / math.log(num_words + 1)
    return rates_V.astype(np.float32)


def log_expected(ids: Tensor, end: float, num_words: int) -> Tensor:
    """Return the logarithm of each word's expected count in a sample that ends at the time `end`."""
    rates = torch.log1p(1.0 / (ids + 1)) / math.log(num_words + 1)
    return torch.log(-torch.expm1(-rates * end))


class WordSoftmax(nn.Module):
    """Scores every word of a list: x W^T + b."""

    def __init__(self, num_words: int, width: int, num_sampled: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_words, width))
        self.bias = nn.Parameter(torch.empty(num_words))
        self.num_sampled = num_sampled

    def forward(self, x_MD: Tensor, targets: tuple[Tensor, Tensor], seed: int | None) -> Sums:
        """Return the sums over predictions; in training with many words, against a sample drawn by the seed."""
        if self.training and self.num_sampled < len(self.weight):
            assert seed is not None, "a sampled softmax needs a seed"
            return self.sampled(x_MD, targets, *draw_sample(len(self.weight), self.num_sampled, seed))
        return self.full(x_MD, targets)

    def full(self, x_MD: Tensor, targets: tuple[Tensor, Tensor]) -> Sums:
        """Return the sums with the softmax over all words."""
        return guesses(x_MD, self.weight, self.bias, *targets)

    def sampled(self, x_MD: Tensor, targets: tuple[Tensor, Tensor], ids_R: Tensor, end: float) -> Sums:
        """Return the sums with the softmax over the right word and a sample; correct means better than the sample."""
        ids_M, ids_R = targets[0], ids_R.to(x_MD.device)
        # A single lookup for both, because each lookup makes a gradient of the size of the whole matrix.
        ids, sizes = torch.cat([ids_M, ids_R]), [len(ids_M), len(ids_R)]
        weight_MD, weight_RD = torch.split(F.embedding(ids, self.weight), sizes)
        bias_M, bias_R = torch.split(self.bias[ids] - log_expected(ids, end, len(self.weight)), sizes)
        right_M = (x_MD * weight_MD).sum(1) + bias_M

        def sums(rows_MD: Tensor, right_M: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
            others_MR = F.linear(rows_MD, weight_RD, bias_R).masked_fill(ids_R == ids_M[:, None], -torch.inf)
            return sums_of(torch.cat([right_M[:, None], others_MR], 1), torch.zeros_like(ids_M), weights_M)

        parts = rows_at_once(1 + len(ids_R), x_MD, right_M, *targets)
        return total_of(checkpoint(sums, *part, use_reentrant=False) for part in parts)


class Elmo(nn.Module):
    """The two language models.

    Args:
        config: the sizes.
        softmax: whether to have the output matrix; without it there are layers but no loss.
        characters_VK: the characters of each word of the vocabulary, as 16-bit numbers, for texts given by ids; not a
            weight.
    """

    def __init__(self, config: ElmoConfig, *, softmax: bool = True, characters_VK: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.characters = CharacterEncoder(config)
        self.from_left = nn.ModuleList(_projected_lstm(config) for _ in range(config.num_layers))
        self.from_right = nn.ModuleList(_projected_lstm(config) for _ in range(config.num_layers))
        self.softmax = WordSoftmax(config.vocab_size, config.projection_size, config.num_negatives) if softmax else None
        self.dropouts = nn.ModuleList(Dropout(config.dropout, place) for place in range(2 * config.num_layers + 1))
        self.characters_VK: Tensor | None
        self.register_buffer("characters_VK", characters_VK, persistent=False)

    def forward(self, tokens: Tokens) -> list[Tensor]:
        """Return the layers for words given by ids, [T, 2 * D] each."""
        assert self.characters_VK is not None, "this model has no list of words"
        words_TD = self.characters.words(tokens.token_ids, self.characters_VK)
        return self.layers(words_TD, tokens.packing, tokens.dropout_seed)

    def read(self, characters_TK: Tensor, packing: Packing) -> list[Tensor]:
        """Return the layers for any words, given by characters, [T, 2 * D] each."""
        unique_UK, inverse_T = torch.unique(characters_TK.to(torch.int16), dim=0, return_inverse=True)
        return self.layers(F.embedding(inverse_T, self.characters(unique_UK)), packing)

    def layers(self, words_TD: Tensor, packing: Packing, seed: Tensor | None = None) -> list[Tensor]:
        """Return the word vectors, concatenated with themselves, and then the output of each layer of LSTMs."""
        drops = list(self.dropouts)
        left = self._run(self.from_left, drops[:-1:2], words_TD, packing, steps_of(packing), seed)
        from_end = steps_of(packing, backwards=True)
        right = self._run(self.from_right, drops[1:-1:2], words_TD, packing, from_end, seed)
        both = [torch.cat(pair, 1) for pair in zip(left, right, strict=True)]
        return [torch.cat([words_TD, words_TD], 1), *both]

    def _run(
        self,
        lstms: nn.ModuleList,
        drops: list[nn.Module],
        x_TD: Tensor,
        packing: Packing,
        steps: Steps,
        seed: Tensor | None,
    ) -> list[Tensor]:
        outputs: list[Tensor] = []
        for lstm, drop in zip(lstms, drops, strict=True):
            x_TD = drop(x_TD, seed)
            out_TD = run_lstm(lstm, x_TD, packing, steps)  # type: ignore[arg-type]
            x_TD = out_TD + x_TD if outputs else out_TD
            outputs.append(x_TD)
        return outputs

    def lm_sums(self, layers: Sequence[Tensor], tokens: Tokens, weights_T: Tensor | None = None) -> Sums:
        """Return the sums over the predictions of both language models.

        Args:
            layers: what `forward` gave.
            tokens: the words, as ids. In training their dropout seed also draws the sample of the softmax, which both
                directions share.
            weights_T: 0 for words that fill up a batch.
        """
        assert self.softmax is not None, "this model has no softmax"
        rows_MD = self.dropouts[-1](torch.cat(layers[-1].chunk(2, 1)), tokens.dropout_seed)
        ids, weights = zip(next_tokens(tokens, weights_T), previous_tokens(tokens, weights_T), strict=True)
        seed = None if tokens.dropout_seed is None else int(tokens.dropout_seed) % (1 << 32)
        return self.softmax(rows_MD, (torch.cat(ids), torch.cat(weights)), seed)


def _projected_lstm(config: ElmoConfig) -> nn.LSTM:
    return empty_lstm(config.projection_size, config.cell_size, proj_size=config.projection_size)


@torch.no_grad()
def initialise_elmo(model: Elmo, seed: int) -> None:
    """Initialise all weights by a seed, drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    fill_characters(model.characters, generator)
    for lstm in [*model.from_left, *model.from_right]:
        fill_lstm(lstm, generator)
    if model.softmax is not None:
        values = torch.empty(model.softmax.weight.shape)
        model.softmax.weight.copy_(values.normal_(0.0, values.shape[1] ** -0.5, generator=generator))
        model.softmax.bias.zero_()


class Texts(NamedTuple):
    """The texts of a batch, one per sequence; the two texts of a pair follow each other."""

    tokens: Tokens
    positions_T: Tensor  # the index of each token of the batch in `tokens`


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
    """An ELMo with a task network on top.

    Args:
        config: the ELMo's sizes.
        reader: the sizes of the task network.
        heads: which heads to have and how many outputs each has.

    Attributes:
        words: the words that ids stand for, see `read_words`.
    """

    def __init__(self, config: ElmoConfig, reader: ElmoReaderConfig, heads: dict[str, int]) -> None:
        super().__init__()
        self.config, self.reader = config, reader
        self.words: SeenWords | None = None
        cells, dropout = reader.num_cells, reader.dropout
        self.elmo = Elmo(config, softmax=False)
        self.mix = ScalarMix(config.num_layers + 1)
        # Separate layers, not one LSTM of two layers: cuDNN's dropout between layers cannot be reproduced by our seeds.
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
        # Without trainable weights no graph is kept for a frozen ELMo.
        self.elmo.requires_grad_(reader.trains_elmo)

    def read_words(self, words: SeenWords) -> None:
        """Set the words that ids stand for, before anything is computed; words may be added to it later."""
        self.words = words
        self.elmo.characters_VK = None

    def stacks(self) -> list[list[tuple[str, ...]]]:
        """Return the prefixes of the weights' names by layer; the ELMo is one layer, frozen as a whole or not."""
        return [[("elmo.",)]]

    def train(self, mode: bool = True) -> "ElmoTasks":
        """Switch dropout on or off; in a frozen ELMo it stays off."""
        super().train(mode)
        self.elmo.train(mode and self.reader.trains_elmo)
        return self

    def forward(self, tokens: Tokens) -> Tensor:
        """Return the rows of all tokens, [T, H]."""
        texts = self._texts(tokens)
        return self._rows(texts).index_select(0, texts.positions_T)

    def pooled_of(self, tokens: Tokens) -> Tensor:
        """Return the row from which each text, or pair, is scored, [S, W]."""
        assert self.hidden is not None, "this model has no head for whole texts"
        texts = self._texts(tokens)
        features = largest(self._rows(texts), texts.tokens.packing)
        if self.reader.pairs:
            u, v = features.view(-1, 2, features.shape[1]).unbind(1)
            features = torch.cat([u, v, (u - v).abs(), u * v], 1)
        return torch.tanh(self.hidden(F.dropout(features, self.reader.dropout, self.training)))

    def scores(self, head: str, rows: Tensor) -> Tensor:
        """Return a head's scores for rows."""
        return self.heads[head](rows)

    def _rows(self, texts: Texts) -> Tensor:
        packing = texts.tokens.packing
        x_TH = self.second(self.first(self.mix(self._layers(texts.tokens)), packing), packing)
        if self.third is None:
            return x_TH
        return self.third(torch.cat([x_TH, attend_to_partner(x_TH, packing)], 1), packing)

    def _layers(self, tokens: Tokens) -> list[Tensor]:
        """Return ELMo's layers, [T, D] each."""
        assert self.words is not None, "set the words before reading ids"
        known = self.elmo.characters_VK
        if known is None or len(known) < len(self.words):
            table = torch.from_numpy(self.words.characters().view("int16"))
            self.elmo.characters_VK = table.to(tokens.token_ids.device)
        return self.elmo(tokens)

    def _texts(self, tokens: Tokens) -> Texts:
        """Split pairs into texts, and add an `<S>` to the second one."""
        num_tokens, device = len(tokens.token_ids), tokens.token_ids.device
        positions_T = torch.arange(num_tokens, device=device)
        if not self.reader.pairs:
            return Texts(tokens, positions_T)
        lengths_S = tokens.packing.cumulative_lengths.diff().long()
        numbers_T = torch.repeat_interleave(lengths_S)  # each token's sequence number; so many `<S>` come before it
        positions_T = positions_T + numbers_T + tokens.segment_ids
        seconds_S = torch.zeros_like(lengths_S).index_add(0, numbers_T, tokens.segment_ids)
        lengths = torch.stack([lengths_S - seconds_S, seconds_S + 1], 1).flatten().cpu().numpy()
        ids = tokens.token_ids.new_full((num_tokens + len(lengths_S),), BEGIN_ID)
        ids = ids.index_copy(0, positions_T, tokens.token_ids)
        nothing = torch.zeros_like(ids)  # ELMo uses neither segments nor positions
        by_text = Tokens(ids, nothing, nothing, pack_lengths(lengths, device), tokens.dropout_seed)
        return Texts(by_text, positions_T)


def initialise_elmo_tasks(net: ElmoTasks, seed: int) -> None:
    """Initialise all weights by a seed, drawn on the CPU."""
    initialise_readers(net, seed)
    initialise_elmo(net.elmo, seed)
