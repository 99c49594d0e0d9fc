"""Texts of different lengths as one row of tokens, without padding.

A batch is its tokens laid end to end and the places where each sequence starts. Everything but attention works token by
token and needs no more than that. Attention needs to know which tokens belong together: flash attention on a GPU takes
the starts as they are, and everywhere else sequences of one length are computed together. So that these are slices and
not copies, sequences are laid in order of length on entry to the encoder and put back at its end, once, not per layer.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_MOST_WASTED = 2_500  # weights of attention of a run that lie between no two tokens: about what another run costs


class Run(NamedTuple):
    """Sequences that lie together and are attended to in one go.

    Attributes:
        num_tokens: of all of them.
        num_sequences: how many they are.
        length: of the longest.
        places: where a token is laid on [sequences, length]; None where all sequences have that length.
    """

    num_tokens: int
    num_sequences: int
    length: int
    places: Tensor | None = None


class Packing(NamedTuple):
    """Which tokens of a batch belong together. T tokens, S sequences, the last of which ends at T."""

    cumulative_lengths: Tensor  # [S + 1], int32, on the device
    max_length: int
    runs: tuple[Run, ...] | None  # None: attention takes the cumulative lengths
    order: Tensor | None = None  # [T]: the tokens as attention wants them; None: as they are
    inverse: Tensor | None = None  # [T]: and back again

    def enter(self, rows: Tensor) -> Tensor:
        """Lay a batch's rows as attention wants them."""
        return rows if self.order is None else rows.index_select(0, self.order)

    def leave(self, rows: Tensor) -> Tensor:
        """Put rows back to where the batch has them."""
        return rows if self.inverse is None else rows.index_select(0, self.inverse)

    def rows_of(self, places_S: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return where one token of each sequence lies, in the order that attention wants, and how to put them back.

        Args:
            places_S: where the batch has them; no sequence may be empty.
        """
        if self.inverse is None:
            return places_S.long(), None
        rows, order = self.inverse.index_select(0, places_S).sort()
        return rows, order.argsort()

    def backwards(self, num_tokens: int) -> "Packing":
        """Lay everything the other way round, so that what comes after a token lies before it."""
        if self.order is None or self.inverse is None:
            order = inverse = torch.arange(num_tokens, device=self.cumulative_lengths.device).flip(0)
        else:
            order, inverse = self.order.flip(0), num_tokens - 1 - self.inverse
        runs = self.runs and tuple(map(_reversed, reversed(self.runs)))
        return Packing(num_tokens - self.cumulative_lengths.flip(0), self.max_length, runs, order, inverse)


def _reversed(run: Run) -> Run:
    """Lay a run the other way round; what is not filled of a row is still behind its tokens."""
    if run.places is None:
        return run
    lengths = np.bincount(run.places.numpy() // run.length, minlength=run.num_sequences)
    return _run(lengths[::-1])


class Tokens(NamedTuple):
    """What the encoder reads."""

    token_ids: Tensor  # [T]
    segment_ids: Tensor  # [T]
    position_ids: Tensor  # [T]
    packing: Packing
    dropout_seed: Tensor | None = None  # one int32; None: dropout draws from torch's generator


def pack_lengths(
    lengths: Sequence[int] | NDArray[np.integer],
    device: torch.device | str = "cpu",
    *,
    flash: bool = False,
    merged: bool = False,
) -> Packing:
    """Say how sequences of these lengths lie end to end.

    Args:
        lengths: of each sequence; 0 is allowed.
        device: where the tokens are.
        flash: whether attention will be flash attention, which takes them as they are.
        merged: whether sequences of similar lengths are attended to together. Training wants that: it asks for a dozen
            operations for each run, which cost more than what they compute where sequences are short.
    """
    counts = np.asarray(lengths, np.int64)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    cumulative = torch.from_numpy(starts.astype(np.int32)).to(device, non_blocking=True)
    longest = int(counts.max(initial=0))
    if flash:
        return Packing(cumulative, longest, None)
    by_length = np.argsort(counts, kind="stable")
    runs = _merged_runs(counts[by_length]) if merged else _runs(counts[by_length])
    if np.array_equal(by_length, np.arange(len(counts))):
        return Packing(cumulative, longest, runs)
    order = np.concatenate([np.arange(starts[row], starts[row + 1]) for row in by_length])
    inverse = np.empty_like(order)
    inverse[order] = np.arange(len(order))
    return Packing(cumulative, longest, runs, torch.from_numpy(order).to(device), torch.from_numpy(inverse).to(device))


def _runs(lengths: NDArray[np.int64]) -> tuple[Run, ...]:
    """Find the runs of lengths that ascend."""
    values = zip(*np.unique(lengths[lengths > 0], return_counts=True), strict=True)
    return tuple(Run(int(length * count), int(count), int(length)) for length, count in values)


def _merged_runs(lengths: NDArray[np.int64]) -> tuple[Run, ...]:
    """Make runs of lengths that ascend, each as long as it does not waste much."""
    real, found = lengths[lengths > 0], list[Run]()
    end = len(real)
    while end:
        wasted = np.cumsum(real[end - 1] ** 2 - real[:end][::-1] ** 2)
        count = int(np.searchsorted(wasted, _MOST_WASTED, "right"))
        found.insert(0, _run(real[end - count : end]))
        end -= count
    return tuple(found)


def _run(lengths: NDArray[np.int64]) -> Run:
    length, total = int(lengths.max()), int(lengths.sum())
    if length * len(lengths) == total:
        return Run(total, len(lengths), length)
    rows = np.repeat(np.arange(len(lengths)) * length, lengths)
    columns = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return Run(total, len(lengths), length, torch.from_numpy(rows + columns))


def pack(
    ids: Sequence[Sequence[int]],
    segment_ids: Sequence[Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
    *,
    flash: bool = False,
) -> Tokens:
    """Lay sequences of ids end to end; positions count from 0 in each."""
    token_ids = _joined(ids)
    segments = _joined(segment_ids) if segment_ids is not None else np.zeros_like(token_ids)
    return pack_arrays(token_ids, segments, np.fromiter(map(len, ids), np.int64), device, flash=flash)


def pack_arrays(
    token_ids: NDArray[np.integer],
    segment_ids: NDArray[np.integer],
    lengths: NDArray[np.int64],
    device: torch.device | str = "cpu",
    *,
    flash: bool = False,
    merged: bool = False,
) -> Tokens:
    """Pack sequences of these lengths that lie end to end already."""
    positions = np.arange(len(token_ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = (array.astype(np.int64, copy=False) for array in (token_ids, segment_ids, positions))
    rows = [torch.from_numpy(array).to(device) for array in columns]
    return Tokens(rows[0], rows[1], rows[2], pack_lengths(lengths, device, flash=flash, merged=merged))


def _joined(sequences: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.fromiter((value for sequence in sequences for value in sequence), np.int64)
