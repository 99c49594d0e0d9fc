"""ELMo: two language models that read a text from either end, as features for other models; and what reads those.

T tokens (words), K characters of a word, U different words, E width of a character, F filters in all, D width of a word
or feature, V words (most frequent first), R sampled words, M rows, S sequences, H width of a BiLSTM's output (twice its
cells), W width before the scores.

- Words are read by their characters, so that none is unknown. A word is 50 ids: a begin-of-word sign, its bytes + 1, an
  end-of-word sign, then padding, which is a sign like the others. Filters of width 1, 2, ... slide over it, each keeps
  its largest answer, highway layers mix these, and a linear map makes a word of them. Two things change nothing but the
  time: a word that occurs often in a batch is read once, and of the padding no more is read than the widest filter
  sees.
- Over words two stacks of LSTMs run, one from the left, which guesses the next word, one from the right, which guesses
  the one before; they share the character encoder and the softmax, and never see each other. The second LSTM's output
  is added to its input. Cells are many and are projected down to the width of a word.
- What ELMo gives is all its layers, each [from the left; from the right], for a task to weigh (`ScalarMix`).
- Unlike the original: torch's LSTM cannot clip its cells and projections (at 3 there), so gradients alone are clipped;
  and each sequence starts from zero, where the original carried its state over from batch to batch of 20 words.

- A softmax over very many words is trained against a sample of them and measured against all. The sample has R
  different words; frequent ones are likelier to be in it (log-uniform by rank, as ELMo's authors have it). Each word
  waits an exponential time at a rate of its probability, and the R that come first are taken. Were words drawn one
  after another until R are different, the outcome would be just as likely. And it tells how often a word is expected in
  the sample: 1 - exp(-rate * time when the next one comes). Scores are corrected by the logarithm of that, so that the
  loss is least where the full softmax's is, and the corrected sum over the sample is that over all words on average.
  Drawing takes some 15 ms for 800,000 words.

`ElmoTasks` is the paper's ELMo baseline, as GLUE's BiLSTM+ELMo+Attn (Table 1):

- Of ELMo's layers a weighted mean is learnt, and two BiLSTMs read it. Of two texts each token then gathers what it
  resembles in the other one, and a third BiLSTM reads both together. A text becomes its largest values, and what stands
  before the scores sees [u; v; |u - v|; u * v]. Choices are scored as pairs. Tags are given, and answers found, by the
  rows of the last BiLSTM.
- A sequence is `<S>` text `</S>` text `</S>` in one piece, as for BERT; segment ids tell the texts apart. ELMo has
  learnt texts that begin with `<S>`, so the second one is given that sign here, and each is read by itself.
- The ELMo is frozen: no dropout in it, and no gradient through it. Only a network whose ELMo was drawn from a seed, not
  pre-trained, learns as a whole.
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

from bertworks.nn.attention import Packing, Tokens, pack_lengths
from bertworks.nn.bert import Sums, next_tokens, previous_tokens, sums_in_parts, sums_of
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
PADDING = 261  # after a word's end

_CARRY_BIAS = -2.0
_POOLED_HEADS = ("classify", "choose")  # read a text as a whole; "tag" and "span" read its tokens
_FILTER_RANGE = 0.05


class Highway(nn.Module):
    """A layer that lets through what it does not change: g * relu(A x) + (1 - g) * x, g = sigmoid(B x)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = Linear(width, width)
        self.change = Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Keep the width."""
        return torch.lerp(x, F.relu(self.change(x)), torch.sigmoid(self.gate(x)))


class CharacterEncoder(nn.Module):
    """From characters to words."""

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
        """Return [T, D] for words of a list, whose characters are the rows of a table of 16-bit numbers."""
        unique_U, inverse_T = torch.unique(word_ids_T, return_inverse=True)
        # torch picks rows of signed numbers alone; the ids are small enough to be read as such without a copy.
        characters_UK = characters_VK.view(torch.int16).index_select(0, unique_U)
        return F.embedding(inverse_T, self(characters_UK))

    def _without_idle_padding(self, characters_TK: Tensor) -> Tensor:
        used = (characters_TK != PADDING).any(0).nonzero()
        longest = int(used[-1]) + 1 if len(used) else 0
        return characters_TK[:, : longest + len(self.filters)]


@torch.no_grad()
def fill_characters(encoder: CharacterEncoder, generator: torch.Generator) -> None:
    """Fill the weights as ELMo's authors did; highways begin by letting nearly everything through."""
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
    """Draw different words to compare with, [R], and the time at which one more would have come, by a seed."""
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
    """Return the logarithm of how often each of these words is expected in a sample that ends at this time."""
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
        """Return the sums of guesses; in training those of a long list are compared with a sample, by the seed."""
        if self.training and self.num_sampled < len(self.weight):
            assert seed is not None, "a sampled softmax needs a seed"
            return self.sampled(x_MD, targets, *draw_sample(len(self.weight), self.num_sampled, seed))
        return self.full(x_MD, targets)

    def full(self, x_MD: Tensor, targets: tuple[Tensor, Tensor]) -> Sums:
        """Compare with all words."""
        weight, bias = self.weight, self.bias

        def sums(rows_MD: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
            return sums_of(F.linear(rows_MD, weight, bias), ids_M, weights_M)

        return sums_in_parts(sums, len(weight), x_MD, *targets)

    def sampled(self, x_MD: Tensor, targets: tuple[Tensor, Tensor], ids_R: Tensor, end: float) -> Sums:
        """Compare the right word with the sample's others; right is what beats these."""
        ids_M, ids_R = targets[0], ids_R.to(x_MD.device)
        # One look-up for both: each brings a gradient of the whole list's size.
        ids, sizes = torch.cat([ids_M, ids_R]), [len(ids_M), len(ids_R)]
        weight_MD, weight_RD = torch.split(F.embedding(ids, self.weight), sizes)
        bias_M, bias_R = torch.split(self.bias[ids] - log_expected(ids, end, len(self.weight)), sizes)
        right_M = (x_MD * weight_MD).sum(1) + bias_M

        def sums(rows_MD: Tensor, right_M: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
            others_MR = F.linear(rows_MD, weight_RD, bias_R).masked_fill(ids_R == ids_M[:, None], -torch.inf)
            return sums_of(torch.cat([right_M[:, None], others_MR], 1), torch.zeros_like(ids_M), weights_M)

        return sums_in_parts(sums, 1 + len(ids_R), x_MD, right_M, *targets)


class Elmo(nn.Module):
    """The two language models.

    Args:
        config: the sizes.
        softmax: whether to have the matrix that words are guessed with; without it there are layers but no loss.
        characters_VK: of each word of the list, as 16-bit numbers, for texts that are given by ids; not a weight.
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
        """Return the layers of words given by their ids, [T, 2 * D] each."""
        assert self.characters_VK is not None, "this model has no list of words"
        words_TD = self.characters.words(tokens.token_ids, self.characters_VK)
        return self.layers(words_TD, tokens.packing, tokens.dropout_seed)

    def read(self, characters_TK: Tensor, packing: Packing) -> list[Tensor]:
        """Return the layers of any words, given by their characters, [T, 2 * D] each."""
        unique_UK, inverse_T = torch.unique(characters_TK.to(torch.int16), dim=0, return_inverse=True)
        return self.layers(F.embedding(inverse_T, self.characters(unique_UK)), packing)

    def layers(self, words_TD: Tensor, packing: Packing, seed: Tensor | None = None) -> list[Tensor]:
        """Return the words themselves, twice, and what the LSTMs make of them, layer by layer."""
        drops = list(self.dropouts)
        left = self._run(self.from_left, drops[:-1:2], words_TD, steps_of(packing), seed)
        right = self._run(self.from_right, drops[1:-1:2], words_TD, steps_of(packing, backwards=True), seed)
        both = [torch.cat(pair, 1) for pair in zip(left, right, strict=True)]
        return [torch.cat([words_TD, words_TD], 1), *both]

    def _run(
        self, lstms: nn.ModuleList, drops: list[nn.Module], x_TD: Tensor, steps: Steps, seed: Tensor | None
    ) -> list[Tensor]:
        outputs: list[Tensor] = []
        for lstm, drop in zip(lstms, drops, strict=True):
            x_TD = drop(x_TD, seed)
            out_TD = run_lstm(lstm, x_TD, steps)  # type: ignore[arg-type]
            x_TD = out_TD + x_TD if outputs else out_TD
            outputs.append(x_TD)
        return outputs

    def lm_sums(self, layers: Sequence[Tensor], tokens: Tokens, weights_T: Tensor | None = None) -> Sums:
        """Return the sums of guesses of both language models.

        Args:
            layers: what `forward` gave.
            tokens: the words, by their ids. In training their seed also chooses the words that a sampled softmax
                compares with; both directions share them.
            weights_T: 0 at words that fill up a batch.
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
    """Fill all weights from a seed, drawn on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    fill_characters(model.characters, generator)
    for lstm in [*model.from_left, *model.from_right]:
        fill_lstm(lstm, generator)
    if model.softmax is not None:
        values = torch.empty(model.softmax.weight.shape)
        model.softmax.weight.copy_(values.normal_(0.0, values.shape[1] ** -0.5, generator=generator))
        model.softmax.bias.zero_()


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
        self.words: SeenWords | None = None
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

    def read_words(self, words: SeenWords) -> None:
        """Set what ids mean, before anything is computed; words that are added later are read too."""
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
        assert self.words is not None, "set the words before reading ids"
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
