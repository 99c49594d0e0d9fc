"""What fine-tuning is fed with: the items of a train set, shuffled anew in every epoch.

The order of an epoch is that of a hash of (seed, epoch, item), so the state of the data is {epoch, offset} and a seek
costs nothing. The last batch of an epoch is as short as it comes out: every item is seen once in an epoch.
"""

import math
from collections.abc import Callable, Generator

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import CorruptFile
from bertworks.tasks.items import Items, Laying, TaskBatch, lay
from bertworks.train.batch import dropout_seed
from bertworks.train.distributed import Ranks
from bertworks.train.loop import Part, Place
from bertworks.tuning.settings import FinetuneTrainSettings

_BATCHES_SORTED = 50
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def order_of(num_items: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order in which an epoch goes through the items."""
    key = _mixed(np.array([seed, epoch], np.uint64))
    numbers = np.arange(num_items, dtype=np.uint64)
    keys = _mixed(_mixed(numbers ^ key[0]) ^ _mixed(key[1:]))
    return np.argsort(keys, kind="stable")


def alike_order_of(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return an order of an epoch in which the items of a batch are of similar length, for an LSTM.

    Its steps are as many as the longest sentence has words, each a product with all weights for however few sentences
    go on: with batches as they come it takes 1.7 times as long. Lengths are sorted among some tens of batches, and
    batches then go in an order of their own; the last one, which is short, stays last.
    """
    order = order_of(len(lengths), seed, epoch)
    num_sorted = _BATCHES_SORTED * batch_size
    pools = [order[first : first + num_sorted] for first in range(0, len(order), num_sorted)]
    order = np.concatenate([order[:0], *(pool[np.argsort(lengths[pool], kind="stable")] for pool in pools)])
    whole = order[: len(order) // batch_size * batch_size].reshape(-1, batch_size)
    return np.concatenate([whole[order_of(len(whole), seed, epoch)].ravel(), order[whole.size :]])


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit numbers so that each depends on all."""
    with np.errstate(over="ignore"):
        numbers = numbers + _ODD
        numbers = (numbers ^ (numbers >> np.uint64(30))) * _MULTIPLIERS[0]
        numbers = (numbers ^ (numbers >> np.uint64(27))) * _MULTIPLIERS[1]
    found: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return found


def steps_per_epoch(num_items: int, settings: FinetuneTrainSettings) -> int:
    """Return how many batches hold all items once; the last may be short."""
    return math.ceil(num_items / settings.batch_size)


class TaskFeed:
    """Makes parts of batches for one rank, on its device.

    Args:
        items: the train set.
        settings: batch size, slices and seed.
        laying: how tokens are laid for the network.
        ranks: which parts are this rank's.
        counts: how many predictions of each kind a batch has; else the task's alone, by their weights.
        alike: whether batches are of items of similar length.
    """

    def __init__(
        self,
        items: Items,
        settings: FinetuneTrainSettings,
        laying: Laying,
        ranks: Ranks,
        counts: Callable[[TaskBatch], list[float]] = lambda batch: [float(batch.weights.sum())],
        *,
        alike: bool = False,
    ) -> None:
        self._items, self._settings, self._laying, self._ranks, self._counts = items, settings, laying, ranks, counts
        self._lengths, self._alike = items.lengths(), alike
        self.steps_per_epoch = steps_per_epoch(len(items), settings)
        # As many for every rank, and numbered as in the whole batch, so that all ranks draw different dropout.
        self._num_parts = math.ceil(settings.slices / ranks.world_size) * ranks.world_size

    def batches(self, place: Place) -> Generator[tuple[list[Part], dict[str, int]], None, None]:
        """Yield the rank's parts of the batches behind a place, each with the state of the data behind it."""
        state = place.data or {"epoch": 0, "offset": 0}
        if state.keys() != {"epoch", "offset"}:
            raise CorruptFile(f"a checkpoint says that its data is at {str(state)[:80]}, which is no place in it")
        epoch, offset, step = state["epoch"], state["offset"], place.step
        while True:
            order = self._order(epoch)
            while offset < len(order):
                numbers = order[offset : offset + self._settings.batch_size]
                offset += len(numbers)
                yield self._parts(numbers, step), {"epoch": epoch, "offset": offset}
                step += 1
            epoch, offset = epoch + 1, 0

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self._alike:
            return order_of(len(self._items), self._settings.seed, epoch)
        return alike_order_of(self._lengths, self._settings.batch_size, self._settings.seed, epoch)

    def _parts(self, numbers: NDArray[np.int64], step: int) -> list[Part]:
        own = range(self._ranks.rank, self._num_parts, self._ranks.world_size)
        return [self._part(numbers, step, number) for number in own]

    def _part(self, numbers: NDArray[np.int64], step: int, number: int) -> Part:
        chosen = numbers[number :: self._num_parts]
        batch = lay(self._items, chosen if len(chosen) else numbers[:1], self._laying)
        if not len(chosen):  # of a short batch there is nothing left for this part, and a rank must take part
            batch = batch._replace(weights=torch.zeros_like(batch.weights))
        on_gpu = self._laying.flash or self._laying.device.type == "cuda"
        # A single part on a CPU is never shared: there the generator's own state goes on, as in earlier versions' runs.
        is_seeded = on_gpu or self._num_parts > 1
        seed = int(dropout_seed(self._settings.seed, step, number)) if is_seeded else None
        return Part(batch, self._counts(batch), int(self._lengths[chosen].sum()), seed)
