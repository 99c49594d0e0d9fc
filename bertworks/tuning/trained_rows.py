"""Only those rows of the token embedding that occur in a train set are trained as such.

A row that never occurs has no gradient, so Adam moves it by weight decay alone: w (1 - r1 d)(1 - r2 d) ... over the
rates of all updates. That is one number for all such rows, kept in float64 and applied when the table is looked at. The
optimizer is spared the rest, which for most tasks is most of the table.

The network holds the rows in use, and its feed numbers ids accordingly. `whole` puts the table together again, to
measure texts with other tokens and to write models. A checkpoint has the rows at rest as they were in the beginning,
for those of its model have been rounded.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.nn.bert import Bert

TABLE = "embeddings.token.weight"
_AT_REST = "embeddings.token.at_rest"


class TrainedRows:
    """Cuts a network's table down to the rows of some ids.

    Args:
        net: the network, new and on the CPU; its table is cut from now on.
        ids: all that will be trained on.

    Attributes:
        rows: the row in the cut table of each id that is in it.
        at_rest: the rest of the table, as it was in the beginning.
        factor: by which the rest has shrunk so far; set it before training.
    """

    def __init__(self, net: Bert, ids: NDArray[np.int32]) -> None:
        self._embedding = net.embeddings.token
        table = self._embedding.weight.detach()
        is_used = np.zeros(len(table), bool)
        is_used[ids] = True
        self._used, self._unused = (torch.from_numpy(np.flatnonzero(mask)) for mask in (is_used, ~is_used))
        self.rows = np.cumsum(is_used, dtype=np.int32) - 1
        self.at_rest = table[self._unused]
        self.factor: Callable[[], float] = lambda: 1.0
        self._embedding.weight = nn.Parameter(table[self._used])

    def cut(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a whole network with the table cut."""
        return {**weights, TABLE: weights[TABLE][self._used]}

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Have the whole table in the network for a while."""
        cut = self._embedding.weight
        self._embedding.weight = nn.Parameter(self._put_together(cut.detach()), requires_grad=False)
        try:
            yield
        finally:
            self._embedding.weight = cut

    def _put_together(self, cut: Tensor) -> Tensor:
        table = cut.new_empty(len(self._used) + len(self._unused), cut.shape[1])
        table[self._used.to(cut.device)] = cut
        table[self._unused.to(cut.device)] = (self.at_rest * self.factor()).to(cut.device)
        return table

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold to go on."""
        return {_AT_REST: self.at_rest}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what a checkpoint holds."""
        self.at_rest = tensors[_AT_REST].clone()
