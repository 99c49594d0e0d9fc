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

from bertworks.nn.lm import Targets, loss_sum

_MAX_LOGITS = 1 << 26  # of the full softmax at a time: 256 MB


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

    def forward(self, x_MD: Tensor, targets: Targets, seed: int | None) -> tuple[Tensor, Tensor]:
        """Return the summed loss and the number of guesses; in training a long list is sampled, by the seed."""
        if self.training and self.num_sampled < len(self.weight):
            assert seed is not None, "a sampled softmax needs a seed"
            return self.sampled_loss(x_MD, targets, draw_sample(len(self.weight), self.num_sampled, seed))
        return self.full_loss(x_MD, targets)

    def full_loss(self, x_MD: Tensor, targets: Targets) -> tuple[Tensor, Tensor]:
        """Compare with all words, some rows at a time."""
        num_rows = max(1, _MAX_LOGITS // len(self.weight))
        losses = []
        for first in range(0, len(x_MD), num_rows):
            rows = slice(first, first + num_rows)
            logits_MV = F.linear(x_MD[rows], self.weight, self.bias)
            losses.append(loss_sum(logits_MV, Targets(targets.ids_M[rows], targets.weights_M[rows]))[0])
        return torch.stack(losses).sum(), targets.weights_M.sum()

    def sampled_loss(self, x_MD: Tensor, targets: Targets, sample: Sample) -> tuple[Tensor, Tensor]:
        """Compare the right word with the sample's others."""
        num_words, ids_M, ids_R = len(self.weight), targets.ids_M, sample.ids_R.to(x_MD.device)
        right_M = (x_MD * F.embedding(ids_M, self.weight)).sum(1) + self.bias[ids_M]
        right_M = right_M - log_expected(ids_M, sample, num_words)
        bias_R = self.bias[ids_R] - log_expected(ids_R, sample, num_words)
        others_MR = F.linear(x_MD, F.embedding(ids_R, self.weight), bias_R)
        others_MR = others_MR.masked_fill(ids_R == ids_M[:, None], -torch.inf)
        logits = torch.cat([right_M[:, None], others_MR], 1)
        return loss_sum(logits, Targets(torch.zeros_like(ids_M), targets.weights_M))
