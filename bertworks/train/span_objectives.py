"""What is learnt when a model is fine-tuned to tag or to answer: windows as a batch, and sums of their losses.

T tokens, S sequences, L longest, M labelled tokens, K labels.

Tagging is cross-entropy over the labels at the first piece of each unit. Answering is cross-entropy over all tokens of
a sequence, the question's and [CLS] among them as in the original, once for the start and once for the end; the two are
averaged, and a sequence is right where both are.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.bert import Bert
from bertworks.nn.lm import Sums, sums_of
from bertworks.nn.packing import Packing, Tokens, pack
from bertworks.tasks.answer_windows import AnswerWindow
from bertworks.tasks.tag_windows import UNKNOWN, TagWindow


class TagBatch(NamedTuple):
    """Windows of sentences; a label that is not known has weight 0."""

    tokens: Tokens
    places: Tensor  # [M], in the tokens of the batch
    targets: Tensor  # [M]
    weights: Tensor  # [M]


class SpanBatch(NamedTuple):
    """Windows of questions."""

    tokens: Tokens
    starts: Tensor  # [S], in the tokens of each sequence
    ends: Tensor  # [S]
    weights: Tensor  # [S]


def collate_tags(windows: Sequence[TagWindow], device: torch.device | str = "cpu", *, flash: bool = False) -> TagBatch:
    """Lay windows end to end."""
    tokens = _tokens(windows, device, flash)
    begins = np.cumsum([0, *(len(window.ids) for window in windows)])[:-1]
    places = [window.places + begin for window, begin in zip(windows, begins, strict=True)]
    targets = _joined([window.targets for window in windows])
    weights = torch.from_numpy((targets != UNKNOWN).astype(np.float32))
    columns = torch.from_numpy(_joined(places)), torch.from_numpy(targets.clip(min=0)), weights
    return TagBatch(tokens, *(column.to(device) for column in columns))


def collate_spans(
    windows: Sequence[AnswerWindow], device: torch.device | str = "cpu", *, flash: bool = False
) -> SpanBatch:
    """Lay windows end to end."""
    starts, ends = ([getattr(window, name) for window in windows] for name in ("start", "end"))
    columns = torch.tensor(starts), torch.tensor(ends), torch.ones(len(windows))
    return SpanBatch(_tokens(windows, device, flash), *(column.to(device) for column in columns))


def _tokens(windows: Sequence[TagWindow] | Sequence[AnswerWindow], device: torch.device | str, flash: bool) -> Tokens:
    ids, segment_ids = [window.ids.tolist() for window in windows], [window.segment_ids.tolist() for window in windows]
    return pack(ids, segment_ids, device, flash=flash)


def _joined(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def tag_logits(net: Bert, batch: TagBatch) -> Tensor:
    """Return the scores of the labels at the labelled tokens, [M, K]."""
    return net.heads["tag"](net(batch.tokens).index_select(0, batch.places))


def span_logits(net: Bert, batch: SpanBatch) -> Tensor:
    """Return the scores of a start and an end at every token, [T, 2]."""
    return net.heads["span"](net(batch.tokens))


def tag(net: Bert, batch: TagBatch) -> dict[str, Sums]:
    """The labels of units."""
    return {"tag": sums_of(tag_logits(net, batch), batch.targets, batch.weights)}


def span(net: Bert, batch: SpanBatch) -> dict[str, Sums]:
    """The start and the end of answers."""
    targets_S2 = torch.stack([batch.starts, batch.ends], dim=1)
    return {"span": span_sums(span_logits(net, batch), batch.tokens.packing, targets_S2, batch.weights)}


def span_sums(logits_T2: Tensor, packing: Packing, targets_S2: Tensor, weights_S: Tensor) -> Sums:
    """Return the sums of sequences whose right start and end are `targets_S2`, in the tokens of each."""
    logits_SL2 = by_sequence(logits_T2.float(), packing)
    losses_S = F.cross_entropy(logits_SL2, targets_S2, reduction="none").mean(1)
    is_right_S = (logits_SL2.argmax(1) == targets_S2).all(1)
    return Sums((losses_S * weights_S).sum(), (is_right_S * weights_S).sum(), weights_S.sum())


def by_sequence(rows_TK: Tensor, packing: Packing) -> Tensor:
    """Lay the rows of each sequence beside each other, [S, L, K]; behind a sequence's end stands the lowest number.

    Not -inf, so that an empty sequence, whose weight is 0, has no NaN for a loss.
    """
    starts_S = packing.cumulative_lengths[:-1].long()
    places_L = torch.arange(packing.max_length, device=rows_TK.device)
    is_there_SL = places_L < packing.cumulative_lengths.diff()[:, None]
    places_SL = (starts_S[:, None] + places_L).clamp(max=len(rows_TK) - 1)
    return rows_TK[places_SL].masked_fill(~is_there_SL[..., None], torch.finfo(rows_TK.dtype).min)
