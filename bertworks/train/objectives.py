"""What is learnt in pre-training: each objective a function of (network, batch) that gives sums, not means.

A loss is a sum over rows divided by the number of rows in the whole global batch, over all ranks and accumulated
parts. So it does not matter how a batch is cut. M masked positions, S sequences, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from bertworks.nn.bert import Bert
from bertworks.nn.lm import Targets, next_tokens, previous_tokens
from bertworks.nn.packing import Tokens
from bertworks.nn.recompute import as_it_is
from bertworks.train.batch import TrainBatch

_ROWS_AT_ONCE = 8_192


class Sums(NamedTuple):
    """Of one kind of prediction: the summed loss, how many were right, and of how many."""

    loss: Tensor
    correct: Tensor
    total: Tensor  # of the weights: how many predictions there were


def mlm_and_nsp(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Masked pieces and next sentences, the paper's two tasks."""
    hidden_TD = net(batch.tokens)
    return {"mlm": _mlm(net, hidden_TD, batch), "nsp": _nsp(net, hidden_TD, batch)}


def mlm(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Masked pieces alone."""
    return {"mlm": _mlm(net, net(batch.tokens), batch)}


def next_words(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Every token's next one, for a left-to-right model: the paper's "LTR & No NSP"."""
    return {"lm": _lm(net, batch, next_tokens)}


def previous_words(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Every token's previous one, for a right-to-left model."""
    return {"lm": _lm(net, batch, previous_tokens)}


def _lm(net: Bert, batch: TrainBatch, neighbours: Callable[[Tokens, Tensor], Targets]) -> Sums:
    """Score all tokens, some thousands of rows at a time: the scores of a whole batch would take gigabytes."""
    hidden_TD = net(batch.tokens)
    targets = neighbours(batch.tokens, batch.real_tokens())
    scores, embedding_VD = as_it_is(net.heads["mlm"]), net.embeddings.token.weight

    def sums(hidden_MD: Tensor, ids_M: Tensor, weights_M: Tensor) -> Sums:
        return _sums(scores(hidden_MD, embedding_VD), ids_M, weights_M)

    rows = zip(*(part.split(_ROWS_AT_ONCE) for part in (hidden_TD, *targets)), strict=True)
    parts = [checkpoint(sums, *some, use_reentrant=False) for some in rows]
    return Sums(*(torch.stack(column).sum() for column in zip(*parts, strict=True)))


def _mlm(net: Bert, hidden_TD: Tensor, batch: TrainBatch) -> Sums:
    masked_MD = hidden_TD.index_select(0, batch.masked_positions)
    logits_MV = net.heads["mlm"](masked_MD, net.embeddings.token.weight)
    return _sums(logits_MV, batch.masked_ids, batch.masked_weights)


def _nsp(net: Bert, hidden_TD: Tensor, batch: TrainBatch) -> Sums:
    # The sequences that make up the padding at the end of a batch have no pair.
    packing = batch.tokens.packing
    firsts = packing._replace(cumulative_lengths=packing.cumulative_lengths[: len(batch.next_labels) + 1])
    logits_S2 = net.heads["nsp"](net.pooled(hidden_TD, firsts))
    return _sums(logits_S2, batch.next_labels, batch.next_weights)


def _sums(logits: Tensor, targets: Tensor, weights: Tensor) -> Sums:
    scores = logits.float()
    best = scores.detach().amax(-1)
    chosen = scores.gather(1, targets[:, None]).squeeze(1)
    losses = scores.sub(best[:, None]).exp().sum(-1).log() + best - chosen
    # The best score was needed anyway, so it costs nothing to see whether it was the right one.
    return Sums((losses * weights).sum(), ((chosen >= best) * weights).sum().detach(), weights.sum())


OBJECTIVES = {"mlm+nsp": mlm_and_nsp, "mlm": mlm, "ltr": next_words, "rtl": previous_words}
