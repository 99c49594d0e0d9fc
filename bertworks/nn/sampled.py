"""A softmax over very many words: trained against a sample of them, measured against all.

M rows, D width, V words, most frequent first, R sampled words.

The sample has R different words; frequent ones are likelier to be in it (log-uniform by rank, as ELMo's authors have
it). Each word waits an exponential time at a rate of its probability, and the R that come first are taken. Were words
drawn one after another until R are different, the outcome would be just as likely. And it tells how often a word is
expected in the sample: 1 - exp(-rate * time when the next one comes). Scores are corrected by the logarithm of that, so
that the loss is least where the full softmax's is, and the corrected sum over the sample is that over all words on
average. Drawing takes some 15 ms for 800,000 words.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.nn.lm import Sums, Targets, sums_in_parts, sums_of


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
