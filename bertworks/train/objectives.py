"""What is learnt in pre-training: each objective a function of (network, batch) that gives sums, not means.

A loss is a sum over rows divided by the number of rows in the whole global batch, over all ranks and accumulated
parts. So it does not matter how a batch is cut. M masked positions, S sequences, T tokens, D width, V vocabulary.
"""

from typing import NamedTuple

from torch import Tensor

from bertworks.nn.bert import Bert
from bertworks.train.batch import TrainBatch


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


OBJECTIVES = {"mlm+nsp": mlm_and_nsp, "mlm": mlm}
