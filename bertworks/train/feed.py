"""What a run is fed with: the rank's parts of one batch after another, and the documents kept aside.

A run may begin with short sequences: attention costs less there, and most of what is to be learnt lies close by. Where
the length changes, the block of documents that was being read is left, and the next one is begun with the new length.
"""

import itertools
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch

from bertworks.data.loader import Loader, Packed, Shape, State, shape_for
from bertworks.data.shards import Dataset
from bertworks.data.workers import batches
from bertworks.errors import CorruptFile, UserError
from bertworks.recipe import Recipe
from bertworks.train.batch import dropout_seed, moved, to_device
from bertworks.train.distributed import Ranks
from bertworks.train.loop import Part, Place

EVALUATION_SEED = 1  # of the pairs and masks of the documents kept aside: the same for every run and model


class Feed:
    """Makes parts for one rank, on its device.

    Args:
        recipe: all settings.
        dataset: prepared data.
        device: where the parts go.
        ranks: which of all slices are this rank's.
        kinds: of predictions, to be counted.
        flash: whether attention is that of a GPU in half precision, which knows lengths by their sums alone.
        seeded: whether what is random in a step comes from a hash, not from torch's generator.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        device: torch.device,
        ranks: Ranks,
        kinds: tuple[str, ...],
        *,
        flash: bool,
        seeded: bool,
    ) -> None:
        self.recipe, self.dataset, self.device, self.ranks = recipe, dataset, device, ranks
        self.kinds, self.flash, self.seeded = kinds, flash, seeded
        # Told before a run starts, not when it comes to its long sequences or is to be measured.
        self._shapes = {length: _shape(recipe, length) for length in reversed(recipe.data.lengths())}
        for split in ("train", "holdout") if self._has_held_out() else ("train",):
            self._loader(recipe.data.max_length, EVALUATION_SEED, split)

    def length_at(self, share: float) -> int:
        """Return the length of sequences when this share of a run is over."""
        data = self.recipe.data
        return data.short_length if data.short_length and share < data.short_share else data.max_length

    def batches(
        self, place: Place, share: Callable[[int], float]
    ) -> Generator[tuple[list[Part], dict[str, int]], None, None]:
        """Yield the parts of the batches behind a place, each with the state of the data behind it.

        `share` says of a number of steps how much of the run is over then.
        """
        step = place.step
        state, length = self._opened(place.data)
        while True:
            now = self.length_at(share(step))
            if length not in (now, None):
                state = _next_block(state, len(self.dataset.shards("train")))
            length = now
            self.ranks.be_patient()  # a graph for this length may have to be compiled
            with closing(self._of_length(length, state)) as made:
                for slices, state in made:
                    yield self._parts(slices, step, length), {**state._asdict(), "length": length}
                    step += 1
                    if self.length_at(share(step)) != length:
                        break

    def _opened(self, data: dict[str, int] | None) -> tuple[State, int | None]:
        """Take apart what a checkpoint remembers; the first ones did not say the length, having but one."""
        if not data:
            return State(), None
        if data.keys() - {"length"} != set(State._fields) or data.get("length") not in (None, *self._shapes):
            raise CorruptFile(f"a checkpoint says that its data is at {str(data)[:80]}, which is no place in it")
        state = State(data["epoch"], data["block"], data["offset"])
        num_blocks = len(self.dataset.shards("train"))
        if self.dataset.skipped and state.block >= num_blocks:  # there were more when it was written
            state = State(state.epoch + 1)
        return state, data.get("length")

    def _of_length(self, length: int, state: State) -> Generator[tuple[list[Packed], State], None, None]:
        settings = self.recipe.train
        loader, pin = self._loader(length, settings.seed, "train"), self.device.type == "cuda"
        return batches(loader, state, workers=settings.loader_workers, pin=pin)  # type: ignore[return-value]

    def _loader(self, length: int, seed: int, split: str, ranks: Ranks | None = None) -> Loader:
        ranks = ranks or self.ranks
        return Loader(
            self.dataset,
            self.recipe.data.model_copy(update={"max_length": length}),
            self._shapes[length],
            seed=seed,
            split=split,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )

    def _has_held_out(self) -> bool:
        return bool(self.dataset.manifest["holdout"]["tokens"])

    def held_out(self, share: float, ranks: Ranks | None = None) -> Iterator[Part]:
        """Yield the rank's parts of the documents kept aside: for a length the same pairs and masks every time.

        They are measured once at most, however many batches are asked for.

        Other ranks than those of the run: `Ranks()` gives one of them all parts.
        """
        if not self._has_held_out():
            return
        length = self.length_at(share)
        loader = self._loader(length, EVALUATION_SEED, "holdout", ranks)
        batches = itertools.islice(loader.batches(), self.recipe.train.eval_batches)
        for number, (slices, state) in enumerate(batches):
            if number and state.epoch:  # all of them have been measured
                return
            for packed in slices:
                yield self._part(packed, 0, 0, length)

    def _parts(self, slices: list[Packed], step: int, length: int) -> list[Part]:
        # Slices are numbered as in the whole batch, so that dropout does not depend on the number of ranks.
        numbers = range(self.ranks.rank, self.recipe.train.slices, self.ranks.world_size)
        return [self._part(packed, step, number, length) for number, packed in zip(numbers, slices, strict=True)]

    def _part(self, packed: Packed, step: int, number: int, length: int) -> Part:
        """Move a slice to the device; its dropout is a function of the run's seed, the step and its number."""
        batch: Any = to_device(packed, self.device, length, flash=self.flash)
        seed = dropout_seed(self.recipe.train.seed, step, number)
        if self.seeded:
            batch = batch._replace(tokens=batch.tokens._replace(dropout_seed=moved(seed, self.device)))
        counts = [_count(kind, packed) for kind in self.kinds]
        num_tokens = int(packed.cumulative_lengths[len(packed.next_labels)])
        # A single slice is never shared: there the generator's own state goes on, as in runs of earlier versions.
        is_drawn = self.seeded or self.recipe.train.slices == 1
        num_random = float(packed.next_weights @ packed.next_labels) if "nsp" in self.kinds else None
        return Part(batch, counts, num_tokens, None if is_drawn else int(seed), num_random)


def _count(kind: str, packed: Packed) -> float:
    """Return how many predictions of a kind there are; of a text of n tokens n - 1 have a neighbour on a side."""
    if kind in ("lm", "bilm"):
        lengths = np.diff(packed.cumulative_lengths[: len(packed.next_labels) + 1])
        return float(np.maximum(lengths - 1, 0).sum()) * (2 if kind == "bilm" else 1)
    return float((packed.masked_weights if kind == "mlm" else packed.next_weights).sum())


def _next_block(state: State, num_blocks: int) -> State:
    at_end = state.block + 1 >= num_blocks
    return State(state.epoch + at_end, 0 if at_end else state.block + 1, 0)


def _shape(recipe: Recipe, length: int) -> Shape:
    settings = recipe.train
    tokens = recipe.batch_tokens(length)
    if tokens % settings.slices:
        raise UserError(f"train.slices {settings.slices} does not divide a batch of {tokens:,} tokens")
    data = recipe.data.model_copy(update={"max_length": length})
    return shape_for(data, tokens=tokens // settings.slices, slices=settings.slices)
