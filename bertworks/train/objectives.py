"""What is learnt in pre-training: each objective a function of (network, batch) that gives sums, not means.

A loss is a sum over rows divided by the number of rows in the whole global batch, over all ranks and accumulated
parts. So it does not matter how a batch is cut. M masked positions, S sequences, T tokens, D width, V vocabulary.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor

from bertworks.nn.bert import Bert
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.nn.lm import Sums, sums_of
from bertworks.train.batch import TrainBatch


def mlm_and_nsp(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Masked pieces and next sentences, the paper's two tasks."""
    hidden_TD = net(batch.tokens)
    return {"mlm": _mlm(net, hidden_TD, batch), "nsp": _nsp(net, hidden_TD, batch)}


def mlm(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Masked pieces alone."""
    return {"mlm": _mlm(net, net(batch.tokens), batch)}


def neighbours(net: Bert | Gpt, batch: TrainBatch) -> dict[str, Sums]:
    """Every token's next one, or its previous one where a BERT reads from the right: the paper's "LTR & No NSP"."""
    return {"lm": net.lm_sums(net(batch.tokens), batch.tokens, batch.real_tokens())}


def both_neighbours(net: Elmo, batch: TrainBatch) -> dict[str, Sums]:
    """Every word's next one and, by another network, its previous one: ELMo's two language models."""
    return {"bilm": net.lm_sums(net(batch.tokens), batch.tokens, batch.real_tokens())}


def _mlm(net: Bert, hidden_TD: Tensor, batch: TrainBatch) -> Sums:
    masked_MD = hidden_TD.index_select(0, batch.masked_positions)
    logits_MV = net.heads["mlm"](masked_MD, net.embeddings.token.weight)
    return sums_of(logits_MV, batch.masked_ids, batch.masked_weights)


def _nsp(net: Bert, hidden_TD: Tensor, batch: TrainBatch) -> Sums:
    # The sequences that make up the padding at the end of a batch have no pair.
    pooled_SD = net.pooled(hidden_TD, batch.tokens.packing, len(batch.next_labels))
    logits_S2 = net.heads["nsp"](pooled_SD)
    return sums_of(logits_S2, batch.next_labels, batch.next_weights)


Objective = Callable[[Any, Any], dict[str, Sums]]
OBJECTIVES: dict[str, Objective] = {
    "mlm+nsp": mlm_and_nsp,
    "mlm": mlm,
    "ltr": neighbours,
    "rtl": neighbours,
    "bilm": both_neighbours,
}
