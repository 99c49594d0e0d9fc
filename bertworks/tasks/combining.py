"""Several models that score the same examples, as one: the mean of their probabilities, or of their scores.

| kind                   | mean of                                           |
|------------------------|---------------------------------------------------|
| classify, choose, tag  | the probabilities of classes, endings or tags     |
| multilabel             | the probability of each label                     |
| regress                | the scores                                        |
| answer                 | the start and end scores, before any softmax      |

The mean comes back in the form of one model's scores (as logarithms of probabilities), so that whatever decodes and
measures one model does so for several.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.hidden_states import batches
from bertworks.tasks.items import Items, Laying, lay
from bertworks.tasks.kinds import Kind

_Row = NDArray[np.float32]


def combine_rows(kind: str, of_models: Sequence[Sequence[_Row]]) -> list[_Row]:
    """Return the scores of all items by several models together.

    Args:
        kind: of the task.
        of_models: for each model the scores of each item.
    """
    if len(of_models) == 1:
        return list(of_models[0])
    combine = _COMBINE[kind]
    return [combine(_stacked(rows)).float().numpy() for rows in zip(*of_models, strict=True)]


def _stacked(rows: Sequence[_Row]) -> Tensor:
    """Lay one item's scores by all models beside each other.

    Behind the endings of a choice stand as many -inf as its batch needed, and each model has batches of its own.
    """
    width = min(row.shape[-1] for row in rows)
    return torch.from_numpy(np.stack([row[..., :width] for row in rows])).double()


def _mean_of_shares(scores_M: Tensor) -> Tensor:
    """Return logarithms, so that a share too small for a number is not -inf: that says that an ending is not there."""
    return scores_M.log_softmax(-1).logsumexp(0) - math.log(len(scores_M))


def _mean_of_chances(scores_M: Tensor) -> Tensor:
    """Return the log-odds of the mean of probabilities of one label each."""
    likely, unlikely = (torch.nn.functional.logsigmoid(sign * scores_M).logsumexp(0) for sign in (1, -1))
    return likely - unlikely


_COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "classify": _mean_of_shares,
    "choose": _mean_of_shares,
    "tag": _mean_of_shares,
    "multilabel": _mean_of_chances,
    "regress": lambda scores_M: scores_M.mean(0),
    "answer": lambda scores_M: scores_M.mean(0),
}


def loss_of_rows(kind: Kind, items: Items, rows: Sequence[_Row], laying: Laying) -> float:
    """Return the mean loss of scores that no single network gave."""
    loss = total = 0.0
    for numbers in batches(items.lengths().tolist(), laying.device):
        scores = _laid([rows[number] for number in numbers]).to(laying.device)
        sums = kind.sums(scores, lay(items, numbers, laying))
        loss, total = loss + float(sums.loss), total + float(sums.total)
    return loss / max(total, 1.0)


def _laid(rows: Sequence[_Row]) -> Tensor:
    """Lay scores as a network gives them: those of tokens end to end, others beside each other, -inf for no ending."""
    tensors = [torch.from_numpy(row) for row in rows]
    if tensors[0].ndim == 2:
        return torch.cat(tensors)
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=-torch.inf)
