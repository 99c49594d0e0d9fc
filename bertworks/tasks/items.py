"""Examples as a network reads them: all token ids of a split end to end, and what is to be learnt of each item.

An item is what a batch counts: a text or a pair of texts, a choice with a sequence for each ending, a part of a long
context. Columns of numbers, not objects: 400,000 pairs take 100 MB. A batch is packed, so that padding never meets a
weight matrix.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.packing import Tokens, pack_arrays
from bertworks.tasks.examples import Skipped
from bertworks.text.encoding import Encoding

_LEAST_STEP = 32


@dataclass(frozen=True)
class Items:
    """N items with S sequences of tokens together."""

    ids: NDArray[np.int32]
    segment_ids: NDArray[np.uint8]
    bounds: NDArray[np.int64]  # [S + 1]: where sequences begin and end
    firsts: NDArray[np.int64]  # [N + 1]: the first sequence of each item, and behind the last
    targets: NDArray[Any]  # [N, ...]: what is to be learnt; meaningless where it is not known
    weights: NDArray[np.float32]  # [N, ...]: how much each target counts
    source: Any = None  # the windows that they are, where they are parts of something longer
    left_out: Skipped = field(default_factory=Skipped)  # what nothing can be learnt from

    def __len__(self) -> int:
        return len(self.firsts) - 1

    def lengths(self) -> NDArray[np.int64]:
        """Return how many tokens each item has."""
        return np.diff(self.bounds[self.firsts])

    def digest(self) -> str:
        """Return a checksum of all of it."""
        found = hashlib.sha256()
        for column in (self.ids, self.segment_ids, self.bounds, self.firsts, self.targets, self.weights):
            found.update(f"{column.dtype} {column.shape}".encode())
            found.update(np.ascontiguousarray(column).data)
        return found.hexdigest()


class TaskBatch(NamedTuple):
    """Some items on a device: B of them with S sequences."""

    tokens: Tokens
    counts: Tensor  # [B]: how many sequences each item has
    most: int  # the largest of them
    targets: Tensor  # [B, ...]
    weights: Tensor  # [B, ...]


class Laying(NamedTuple):
    """How tokens are laid for a network.

    Attributes:
        device: where.
        flash: whether attention takes cumulative lengths.
        rows: the row of the embedding table for each id, where it holds those of the train set alone.
        merged: sequences of similar lengths are attended to together, see `pack_lengths`.
        filled: batches are filled up to few numbers of tokens by an item of weight 0; the longest sequence there is.
    """

    device: torch.device
    flash: bool = False
    rows: NDArray[np.int32] | None = None
    filled: int = 0
    merged: bool = False


def make_items(
    encodings: Sequence[Encoding],
    targets: NDArray[Any],
    weights: NDArray[np.float32] | None = None,
    counts: Sequence[int] | None = None,
) -> Items:
    """Lay encodings end to end.

    Args:
        encodings: of all sequences.
        targets: of each item.
        weights: of each target; 1 where they are not given.
        counts: how many sequences each item has; one where they are not given.
    """
    lengths = np.fromiter(map(len, encodings), np.int64, len(encodings))
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    ids, segment_ids = np.empty(bounds[-1], np.int32), np.empty(bounds[-1], np.uint8)
    for number, encoding in enumerate(encodings):
        place = slice(bounds[number], bounds[number + 1])
        ids[place], segment_ids[place] = encoding.ids, encoding.segment_ids
    per_item = np.ones(len(encodings), np.int64) if counts is None else np.asarray(counts, np.int64)
    firsts = np.concatenate([[0], np.cumsum(per_item)])
    return Items(ids, segment_ids, bounds, firsts, targets, _weights(targets) if weights is None else weights)


def _weights(targets: NDArray[Any]) -> NDArray[np.float32]:
    return np.ones(targets.shape, np.float32)


def lay(items: Items, numbers: Sequence[int] | NDArray[np.int64], laying: Laying) -> TaskBatch:
    """Return the items of these numbers as a batch."""
    chosen = np.asarray(numbers, np.int64)
    counts = items.firsts[chosen + 1] - items.firsts[chosen]
    sequences = _ranges(items.firsts[chosen], counts)
    lengths = items.bounds[sequences + 1] - items.bounds[sequences]
    places = _ranges(items.bounds[sequences], lengths)
    columns: list[NDArray[Any]] = [
        items.ids[places],
        items.segment_ids[places],
        items.targets[chosen],
        items.weights[chosen],
    ]
    if laying.filled:
        fill = _missing(int(lengths.sum()), laying.filled)
        columns = [_longer(column, by) for column, by in zip(columns, (fill, fill, 1, 1), strict=True)]
        columns[0][-fill:] = columns[0][0]  # a token of which the table has a row
        lengths, counts = np.append(lengths, fill), np.append(counts, 1)
    ids, segment_ids, targets, weights = columns
    ids = ids if laying.rows is None else laying.rows[ids]
    tokens = pack_arrays(ids, segment_ids, lengths, laying.device, flash=laying.flash, merged=laying.merged)
    if laying.filled:
        tokens = tokens._replace(packing=tokens.packing._replace(max_length=laying.filled))
    others = [torch.from_numpy(column).to(laying.device) for column in (targets, weights)]
    return TaskBatch(tokens, torch.from_numpy(counts).to(laying.device), int(counts.max()), *others)


def _missing(num_tokens: int, longest: int) -> int:
    """Return how many tokens to fill up with, at least one, so that batches have few sizes and little is wasted.

    Sizes are multiples of a power of two that is about a sixteenth of them; what fills up is one sequence.
    """
    step = min(max(num_tokens // 16, _LEAST_STEP), longest)
    step = 1 << (step.bit_length() - 1)
    return step - num_tokens % step


def _longer(column: NDArray[Any], count: int) -> NDArray[Any]:
    """Return a column with some more rows of zeros."""
    return np.concatenate([column, np.zeros_like(column, shape=(count, *column.shape[1:]))])


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the numbers from each start on, so many of each, end to end."""
    ends = np.cumsum(lengths)
    found: NDArray[np.int64] = np.arange(ends[-1] if len(ends) else 0) + np.repeat(starts - (ends - lengths), lengths)
    return found
