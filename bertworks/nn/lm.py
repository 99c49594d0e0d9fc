"""Language modelling over packed tokens: every token guesses the next one of its own sequence, or the one before.

T tokens, M rows, D width, V vocabulary (of `WordSoftmax`: words, most frequent first), R sampled words.

- All T rows are scored, and those without a neighbour count 0: shapes stay the same from batch to batch, and a sequence
  wastes one row. A loss is a sum and the number of guesses in it, never a mean.
- The scores of a whole batch would take gigabytes, so they are made for some thousands of rows at a time, and again in
  the backward pass.
- A softmax over very many words is trained against a sample of them and measured against all. The sample has R
  different words; frequent ones are likelier to be in it (log-uniform by rank, as ELMo's authors have it). Each word
  waits an exponential time at a rate of its probability, and the R that come first are taken. Were words drawn one
  after another until R are different, the outcome would be just as likely. And it tells how often a word is expected in
  the sample: 1 - exp(-rate * time when the next one comes). Scores are corrected by the logarithm of that, so that the
  loss is least where the full softmax's is, and the corrected sum over the sample is that over all words on average.
  Drawing takes some 15 ms for 800,000 words.
"""

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from bertworks.nn.packing import Tokens

_SCORES_AT_ONCE = 1 << 28  # 8,192 rows of BERT's vocabulary: half a gigabyte in bf16


class Targets(NamedTuple):
    """What each row shall guess, and how much that counts."""

    ids_M: Tensor
    weights_M: Tensor


def next_tokens(tokens: Tokens, weights_T: Tensor | None = None) -> Targets:
    """Return the token after each; `weights_T` is 0 at tokens that fill up a batch and shall not learn."""
    return _neighbours(tokens, ~_begins(tokens)[1:], -1, weights_T)


def previous_tokens(tokens: Tokens, weights_T: Tensor | None = None) -> Targets:
    """Return the token before each."""
    return _neighbours(tokens, ~_begins(tokens)[:-1], 1, weights_T)


def _begins(tokens: Tokens) -> Tensor:
    """Say of each of T + 1 places whether a sequence begins or ends there."""
    places = torch.zeros(len(tokens.token_ids) + 1, dtype=torch.bool, device=tokens.token_ids.device)
    return places.index_fill(0, tokens.packing.cumulative_lengths.long(), True)


def _neighbours(tokens: Tokens, is_there_T: Tensor, shift: int, weights_T: Tensor | None) -> Targets:
    counted_T = is_there_T.float() if weights_T is None else is_there_T * weights_T
    return Targets(tokens.token_ids.roll(shift).long(), counted_T)


class Sums(NamedTuple):
    """Of one kind of prediction: the summed loss, how many were right, and of how many."""

    loss: Tensor
    correct: Tensor
    total: Tensor  # of the weights: how many predictions there were


def sums_of(logits_MV: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
    """Return the sums of predictions whose right outcomes are `ids_M`."""
    scores = logits_MV.float()
    best = scores.detach().amax(-1)
    chosen = scores.gather(1, ids_M[:, None]).squeeze(1)
    losses = scores.sub(best[:, None]).exp().sum(-1).log() + best - chosen
    # The best score was needed anyway, so it costs nothing to see whether it was the right one.
    return Sums((losses * weights_M).sum(), ((chosen >= best) * weights_M).sum().detach(), weights_M.sum())


def sums_in_parts(sums: Callable[..., Sums], num_scores: int, *per_row: Tensor) -> Sums:
    """Add up sums over as many rows at a time as memory should hold the scores of.

    Args:
        sums: gives those of some rows. It must hold on to the weights that it needs: in half precision a module has
            others by the time of the backward pass, when the scores are made again.
        num_scores: of a row.
        per_row: what `sums` reads, cut into parts of the same rows.
    """
    num_rows = 1 << (_SCORES_AT_ONCE // num_scores).bit_length() - 1
    parts = zip(*(torch.split(column, num_rows) for column in per_row), strict=True)
    found = [checkpoint(sums, *part, use_reentrant=False) for part in parts]
    return Sums(*(torch.stack(column).sum() for column in zip(*found, strict=True)))


class Sample(NamedTuple):
    """Words to compare with, and the time at which one more would have come."""

    ids_R: Tensor
    end: float


def draw_sample(num_words: int, num_sampled: int, seed: int) -> Sample:
    """Draw different words, the same for the same seed."""
    assert num_sampled < num_words
    waits_V = np.random.default_rng(seed).standard_exponential(num_words, np.float32)
    times_V = waits_V / _rates(num_words)
    earliest = np.argpartition(times_V, num_sampled)[: num_sampled + 1]
    return Sample(torch.from_numpy(np.sort(earliest[:-1])), float(times_V[earliest[-1]]))


@lru_cache(maxsize=2)
def _rates(num_words: int) -> NDArray[np.float32]:
    rates_V = np.log1p(1.0 / np.arange(1, num_words + 1)) / math.log(num_words + 1)
    return rates_V.astype(np.float32)


def log_expected(ids: Tensor, sample: Sample, num_words: int) -> Tensor:
    """Return the logarithm of how often each of these words is expected in such a sample."""
    rates = torch.log1p(1.0 / (ids + 1)) / math.log(num_words + 1)
    return torch.log(-torch.expm1(-rates * sample.end))


class WordSoftmax(nn.Module):
    """Scores every word of a list: x W^T + b."""

    def __init__(self, num_words: int, width: int, num_sampled: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_words, width))
        self.bias = nn.Parameter(torch.empty(num_words))
        self.num_sampled = num_sampled

    def forward(self, x_MD: Tensor, targets: Targets, seed: int | None) -> Sums:
        """Return the sums of guesses; in training those of a long list are compared with a sample, by the seed."""
        if self.training and self.num_sampled < len(self.weight):
            assert seed is not None, "a sampled softmax needs a seed"
            return self.sampled(x_MD, targets, draw_sample(len(self.weight), self.num_sampled, seed))
        return self.full(x_MD, targets)

    def full(self, x_MD: Tensor, targets: Targets) -> Sums:
        """Compare with all words."""
        weight, bias = self.weight, self.bias

        def sums(rows_MD: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
            return sums_of(F.linear(rows_MD, weight, bias), ids_M, weights_M)

        return sums_in_parts(sums, len(weight), x_MD, *targets)

    def sampled(self, x_MD: Tensor, targets: Targets, sample: Sample) -> Sums:
        """Compare the right word with the sample's others; right is what beats these."""
        ids_M, ids_R = targets.ids_M, sample.ids_R.to(x_MD.device)
        # One look-up for both: each brings a gradient of the whole list's size.
        ids, sizes = torch.cat([ids_M, ids_R]), [len(ids_M), len(ids_R)]
        weight_MD, weight_RD = torch.split(F.embedding(ids, self.weight), sizes)
        bias_M, bias_R = torch.split(self.bias[ids] - log_expected(ids, sample, len(self.weight)), sizes)
        right_M = (x_MD * weight_MD).sum(1) + bias_M

        def sums(rows_MD: Tensor, right_M: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
            others_MR = F.linear(rows_MD, weight_RD, bias_R).masked_fill(ids_R == ids_M[:, None], -torch.inf)
            return sums_of(torch.cat([right_M[:, None], others_MR], 1), torch.zeros_like(ids_M), weights_M)

        return sums_in_parts(sums, 1 + len(ids_R), x_MD, right_M, *targets)
