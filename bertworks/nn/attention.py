"""Packed tokens, and the one attention over them: each token looks at the tokens of its own sequence.

T tokens, N heads, H width of a head, D = N * H, G sequences of one length L, S sequences of a batch.

- Texts of different lengths are one row of tokens, without padding: a batch is its concatenated tokens and the
  places where each sequence starts. Everything but attention works token by token and needs no more than that.
- Attention needs to know which tokens belong together: flash attention on a GPU takes the starts as they are, and
  everywhere else sequences of one length are computed together. So that these are slices and not copies, sequences are
  sorted by length on entry to the encoder and put back at its end, once, not per layer.
- On CUDA in half precision attention is flash attention over cumulative lengths, or in training the kernels of
  `gpu_attention.py`; elsewhere torch's scaled dot product, once for every length that occurs. `causal` lets a token
  look only at itself and what lies before it.
- Texts that are computed together are of similar length, about as many tokens at a time (`batches`), so that none
  waits for a longer one.
"""

import itertools
import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn import layers
from bertworks.nn.config import Direction
from bertworks.nn.layers import dropped

_TOKENS_AT_ONCE = 2_048  # on a CPU more do not go faster, and their layers no longer fit its caches
_TOKENS_AT_ONCE_ON_DEVICE = 65_536
_MOST_WASTED = 2_500  # weights of attention of a run that lie between no two tokens: about what another run costs


class Run(NamedTuple):
    """Sequences that lie together and are attended to in one go.

    Attributes:
        num_tokens: of all of them.
        num_sequences: how many they are.
        length: of the longest.
        places: the position of each token in the padded layout [sequences, length]; None where all sequences have that
            length.
    """

    num_tokens: int
    num_sequences: int
    length: int
    places: Tensor | None = None

    def lengths(self) -> list[int]:
        """Return the length of each sequence."""
        if self.places is None:
            return [self.length] * self.num_sequences
        counts: list[int] = np.bincount(self.places.numpy() // self.length, minlength=self.num_sequences).tolist()
        return counts


class Packing(NamedTuple):
    """Which tokens of a batch belong together. T tokens, S sequences, the last of which ends at T."""

    cumulative_lengths: Tensor  # [S + 1], int32, on the device
    max_length: int
    runs: tuple[Run, ...] | None  # None: attention takes the cumulative lengths
    order: Tensor | None = None  # [T]: the tokens as attention wants them; None: as they are
    inverse: Tensor | None = None  # [T]: and back again

    def enter(self, rows: Tensor) -> Tensor:
        """Reorder a batch's rows as attention needs them."""
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
        """Reverse everything, so that what comes after a token comes before it."""
        if self.order is None or self.inverse is None:
            order = inverse = torch.arange(num_tokens, device=self.cumulative_lengths.device).flip(0)
        else:
            order, inverse = self.order.flip(0), num_tokens - 1 - self.inverse
        runs = self.runs and tuple(map(_reversed, reversed(self.runs)))
        return Packing(num_tokens - self.cumulative_lengths.flip(0), self.max_length, runs, order, inverse)


def _reversed(run: Run) -> Run:
    """Reverse a run; padding stays after the tokens of a row."""
    if run.places is None:
        return run
    return _run(np.array(run.lengths()[::-1]))


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
    merge_similar: bool = False,
) -> Packing:
    """Return the packing of concatenated sequences of these lengths.

    Args:
        lengths: of each sequence; 0 is allowed.
        device: where the tokens are.
        flash: whether attention will be flash attention, which takes them as they are.
        merge_similar: whether attention computes sequences of similar lengths together. Training wants that: each run
            takes a dozen operations, which cost more than what they compute where sequences are short.
    """
    counts = np.asarray(lengths, np.int64)
    starts = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    cumulative = torch.from_numpy(starts.astype(np.int32)).to(device, non_blocking=True)
    longest = int(counts.max(initial=0))
    if flash:
        return Packing(cumulative, longest, None)
    by_length = np.argsort(counts, kind="stable")
    runs = _merged_runs(counts[by_length]) if merge_similar else _runs(counts[by_length])
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
    """Concatenate sequences of ids; positions count from 0 in each."""
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
    merge_similar: bool = False,
) -> Tokens:
    """Pack sequences of these lengths that lie end to end already."""
    positions = np.arange(len(token_ids)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = (array.astype(np.int64, copy=False) for array in (token_ids, segment_ids, positions))
    rows = [torch.from_numpy(array).to(device) for array in columns]
    return Tokens(rows[0], rows[1], rows[2], pack_lengths(lengths, device, flash=flash, merge_similar=merge_similar))


def _joined(sequences: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    return np.fromiter((value for sequence in sequences for value in sequence), np.int64)


def batches(lengths: Sequence[int], device: torch.device) -> Iterator[list[int]]:
    """Give the numbers of texts of similar length, about as many tokens at a time."""
    most = _TOKENS_AT_ONCE if device.type == "cpu" else _TOKENS_AT_ONCE_ON_DEVICE
    numbers: list[int] = []
    size = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if numbers and size + lengths[number] > most:
            yield numbers
            numbers, size = [], 0
        numbers.append(number)
        size += lengths[number]
    if numbers:
        yield numbers


def attend(
    qkv_T3NH: Tensor,
    packing: Packing,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    place: int = 0,
) -> Tensor:
    """Return the attended values, [T, N * H]; `seed` and `place` are those of `layers.py`."""
    if packing.runs is None:
        if seed is not None:
            from bertworks.nn.gpu_attention import gpu_attention  # needs triton, which only GPU builds of torch bring

            longest = packing.max_length
            out_TNH, _ = gpu_attention(qkv_T3NH, packing.cumulative_lengths, seed, longest, place, dropout, causal)
            return out_TNH.flatten(1)
        return _flash(qkv_T3NH, packing, causal, dropout)
    if len(packing.runs) == 1 and packing.runs[0].num_tokens == len(qkv_T3NH):
        return _of_run(qkv_T3NH, packing.runs[0], causal, dropout)
    if not packing.runs:  # only empty sequences
        return qkv_T3NH[:, 0].flatten(1)
    # Split at once: a slice for each run would have a backward pass over all tokens for each.
    parts = zip(torch.split(qkv_T3NH, [run.num_tokens for run in packing.runs]), packing.runs, strict=True)
    return torch.cat([_of_run(rows, run, causal, dropout) for rows, run in parts])


def _of_run(qkv_T3NH: Tensor, run: Run, causal: bool, dropout: float) -> Tensor:
    q_GNLH, k_GNLH, v_GNLH = _heads(qkv_T3NH, run).unbind(0)
    # Padding comes after a row's tokens: causal attention does not reach it.
    mask = None if causal else _mask(run, qkv_T3NH.dtype)
    out_GNLH = _attended(q_GNLH, k_GNLH, v_GNLH, mask, dropout, causal)
    out_PD = out_GNLH.transpose(1, 2).flatten(0, 1).flatten(1)
    return out_PD if run.places is None else Unpadded.apply(out_PD, run.places)  # type: ignore[no-untyped-call]


def attend_from_one(q_SNH: Tensor, kv_T2NH: Tensor, packing: Packing, dropout: float = 0.0) -> Tensor:
    """Return what one token of every sequence attends to, [S, N * H]; all of its tokens are keys and values."""
    if packing.runs is None:
        k_TNH, v_TNH = kv_T2NH.unbind(1)
        starts, longest = packing.cumulative_lengths, packing.max_length
        one_each = torch.arange(len(starts), dtype=torch.int32, device=starts.device)
        out_SNH = torch.ops.aten._flash_attention_forward(
            q_SNH, k_TNH, v_TNH, one_each, starts, 1, longest, dropout, False, False
        )[0]
        return out_SNH.reshape(len(q_SNH), -1)
    keys = torch.split(kv_T2NH, [run.num_tokens for run in packing.runs])
    queries = torch.split(q_SNH, [run.num_sequences for run in packing.runs])
    parts = zip(queries, keys, packing.runs, strict=True)
    return torch.cat([_from_one(q_GNH, kv_R2NH, run, dropout) for q_GNH, kv_R2NH, run in parts])


def _from_one(q_GNH: Tensor, kv_R2NH: Tensor, run: Run, dropout: float) -> Tensor:
    k_GNLH, v_GNLH = _heads(kv_R2NH, run).unbind(0)
    return _attended(q_GNH[:, :, None], k_GNLH, v_GNLH, _mask(run, q_GNH.dtype), dropout).flatten(1)


def prepare_to_compile_for_cpu() -> None:
    """Have compiled code call what draws dropout's masks on a CPU, and attention over a run of sequences.

    numpy's bits cannot be traced, and runs are of other lengths in every batch: torch would warn of it, compile again
    for each batch until it gives up, and draw other masks than without compiling. What else is random is torch's own.
    """
    from torch._inductor import config  # seconds

    config.fallback_random = True
    for module, name in ((layers, "dropped"), (sys.modules[__name__], "_of_run"), (sys.modules[__name__], "_from_one")):
        function = getattr(module, name)
        if not hasattr(function, "_torchdynamo_disable"):  # by an earlier run of this process
            setattr(module, name, torch.compiler.disable(function))  # type: ignore[no-untyped-call]


def _attended(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float, causal: bool = False) -> Tensor:
    """Attend, [G, N, L, H] each; with dropout as torch's plain way does it too, but for its dropout."""
    if not dropout or q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, mask, dropout, is_causal=causal)
    scores_GNLL = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2)
    if mask is not None:
        scores_GNLL = scores_GNLL + mask
    if causal:
        scores_GNLL = scores_GNLL.masked_fill(_hidden(scores_GNLL[0], "left_to_right"), -torch.inf)
    return dropped(scores_GNLL.softmax(-1), dropout) @ v


def _heads(qkv_R3NH: Tensor, run: Run) -> Tensor:
    """Return the tokens of a run in the padded layout [3, G, N, L, H], or [2, ...] of keys and values."""
    rows = qkv_R3NH
    if run.places is not None:
        rows = Padded.apply(qkv_R3NH, run.places, run.num_sequences * run.length)  # type: ignore[no-untyped-call]
    return rows.view(run.num_sequences, run.length, *qkv_R3NH.shape[1:]).permute(2, 0, 3, 1, 4)


def _mask(run: Run, dtype: torch.dtype) -> Tensor | None:
    """Return -inf where a row of a run has no token, [G, 1, 1, L]."""
    if run.places is None:
        return None
    mask_P = torch.full((run.num_sequences * run.length,), -torch.inf, dtype=dtype)
    return mask_P.index_fill_(0, run.places, 0.0).view(run.num_sequences, 1, 1, run.length)


class Padded(torch.autograd.Function):
    """Scatters rows into a longer tensor of zeros. No position is taken twice, so nothing adds up."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor, count: int) -> Tensor:
        """Return `count` rows."""
        ctx.save_for_backward(places)
        return rows.new_zeros(count, *rows.shape[1:]).index_copy_(0, places, rows)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Take them from there."""
        (places,) = ctx.saved_tensors
        return grads[0].index_select(0, places), None, None


class Unpadded(torch.autograd.Function):
    """Gathers rows by position: the inverse."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, places: Tensor) -> Tensor:
        """Return as many rows as places."""
        ctx.save_for_backward(places)
        ctx.count = len(rows)
        return rows.index_select(0, places)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        """Scatter the gradients."""
        (places,) = ctx.saved_tensors
        return grads[0].new_zeros(ctx.count, *grads[0].shape[1:]).index_copy_(0, places, grads[0]), None


def can_flash(head_width: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Tell whether a GPU has flash attention for a model: half precision, heads of a width that its kernel takes."""
    if device.type != "cuda" or dtype == torch.float32:
        return False
    return head_width % 8 == 0 and head_width <= 256 and torch.cuda.get_device_capability(device) >= (8, 0)


def _flash(qkv_T3NH: Tensor, packing: Packing, causal: bool, dropout: float) -> Tensor:
    q_TNH, k_TNH, v_TNH = qkv_T3NH.unbind(1)
    starts, longest = packing.cumulative_lengths, packing.max_length
    # The public varlen_attn has no dropout; this is the operator below it.
    out_TNH = torch.ops.aten._flash_attention_forward(
        q_TNH, k_TNH, v_TNH, starts, starts, longest, longest, dropout, causal, False
    )[0]
    return out_TNH.reshape(len(qkv_T3NH), -1)


def attention_weights(qkv_T3NH: Tensor, starts: list[int], direction: Direction) -> list[Tensor]:
    """Return how much each token of a sequence looks at each other: [N, L, L] for every sequence that starts there."""
    weights = []
    for first, end in itertools.pairwise(starts):
        q_NLH, k_NLH, _ = qkv_T3NH[first:end].permute(1, 2, 0, 3).float().unbind(0)
        scores_NLL = q_NLH @ k_NLH.transpose(1, 2) * q_NLH.shape[-1] ** -0.5
        weights.append(scores_NLL.masked_fill(_hidden(scores_NLL, direction), -torch.inf).softmax(-1))
    return weights


def _hidden(scores_NLL: Tensor, direction: Direction) -> Tensor:
    everything = torch.ones(scores_NLL.shape[1:], dtype=torch.bool, device=scores_NLL.device)
    if direction == "both":
        return ~everything
    return everything.triu(1) if direction == "left_to_right" else everything.tril(-1)
