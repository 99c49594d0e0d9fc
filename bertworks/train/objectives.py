"""Objectives of pre-training: each is a function of (network, batch) that gives sums, not means.

A loss is a sum over predictions divided by their number in the whole global batch, over all ranks and micro-batches. So
it does not matter how a batch is cut. `ModelWithLoss` puts a network and its objective together.
M masked positions, S sequences, T tokens, D width, V vocabulary.
"""

import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from bertworks.data.loader import Packed
from bertworks.nn.attention import Packing, Tokens, pack_lengths
from bertworks.nn.bert import Bert, Sums, sums_of
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt

# BERT's and GPT-1's embeddings; and cuDNN's LSTMs, which need their weights in place.
_KEPT_IN_FULL = re.compile(r"net\.((encoders\.\d+\.)?embeddings|token|position|bilstm)\.")


class TrainBatch(NamedTuple):
    """A batch of the loader on the device where it is trained on; what is padding has weight 0."""

    tokens: Tokens
    masked_positions: Tensor  # [M]
    masked_ids: Tensor  # [M]
    masked_weights: Tensor  # [M]
    next_labels: Tensor  # [S]
    next_weights: Tensor  # [S]

    def real_tokens(self) -> Tensor:
        """Return 1 for every token and 0 for the padding after the last sequence, [T]."""
        token_ids, end = self.tokens.token_ids, self.tokens.packing.cumulative_lengths[len(self.next_labels)]
        return (torch.arange(len(token_ids), device=token_ids.device) < end).float()


def moved(small: Tensor, device: torch.device) -> Tensor:
    """Move a few numbers to a device; from pinned memory, for a plain copy would wait until the GPU is idle."""
    return small if device.type == "cpu" else small.pin_memory().to(device, non_blocking=True)


def dropout_seed(seed: int, step: int, number: int) -> Tensor:
    """Return the seed, one int32, of the dropout of a micro-batch of a step."""
    key = hashlib.blake2b(f"{seed} {step} {number}".encode(), digest_size=4).digest()
    return torch.tensor(int.from_bytes(key, "little", signed=True), dtype=torch.int32)


def to_device(packed: Packed, device: torch.device, max_length: int, *, flash: bool) -> TrainBatch:
    """Move the arrays of a micro-batch to a device, packed.

    `max_length` is that of the data and not of the micro-batch, so that a compiled step sees one number. From pinned
    memory nothing here waits for the device.
    """
    moved = [torch.from_numpy(array).to(device, non_blocking=True) for array in packed]
    token_ids, segment_ids, position_ids, starts, positions, ids, weights, labels, label_weights = moved
    if flash:
        packing = Packing(starts, max_length, None)
    else:
        packing = pack_lengths(np.diff(packed.cumulative_lengths), device)
    tokens = Tokens(token_ids, segment_ids, position_ids, packing)
    return TrainBatch(tokens, positions.long(), ids.long(), weights, labels.long(), label_weights)


def mlm_and_nsp(net: Bert, batch: TrainBatch) -> dict[str, Sums]:
    """Masked pieces and next sentences, the paper's two tasks."""
    hidden_TD = net(batch.tokens)
    masked_pieces = _mlm(net, hidden_TD, batch)
    # The sequences that make up the padding at the end of a batch have no pair.
    pooled_SD = net.pooled(hidden_TD, batch.tokens.packing, len(batch.next_labels))
    logits_S2 = net.heads["nsp"](pooled_SD)
    return {"mlm": masked_pieces, "nsp": sums_of(logits_S2, batch.next_labels, batch.next_weights)}


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


Objective = Callable[[Any, Any], dict[str, Sums]]
OBJECTIVES: dict[str, Objective] = {
    "mlm+nsp": mlm_and_nsp,
    "mlm": mlm,
    "ltr": neighbours,
    "rtl": neighbours,
    "bilm": both_neighbours,
}


class ModelWithLoss(nn.Module):
    """A network with its objective as one module: what torch.compile sees.

    The weights are fp32 and stay so; they are the masters that the optimizer changes. In half precision each step works
    on copies of them, made inside the compiled step, and its whole residual stream is in half precision too. Embeddings
    are looked up in fp32: a frequent token's row gathers gradients from thousands of places, which bf16 would round
    away.

    Args:
        net: the network, in fp32.
        objective: gives the sums of its predictions.
        dtype: what to compute in.
    """

    def __init__(self, net: nn.Module, objective: Objective, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.inner = WithObjective(net, objective)
        self.dtype = dtype

    def forward(self, batch: Any, counts: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss and, for each kind of prediction, [kinds, (loss, correct, count)] in sums.

        Args:
            batch: what the objective reads.
            counts: how many predictions of each kind the global batch has.
        """
        if self.dtype == torch.float32:
            return self.inner(batch, counts)
        return functional_call(self.inner, self.copies(), (batch, counts))

    def copies(self) -> dict[str, Tensor]:
        """Return the weights as they are computed with."""
        return {
            name: weight if _KEPT_IN_FULL.match(name) else weight.to(self.dtype)
            for name, weight in self.inner.named_parameters()
        }


class WithObjective(nn.Module):
    """A network with its objective, computed with the weights as they are."""

    def __init__(self, net: nn.Module, objective: Objective) -> None:
        super().__init__()
        self.net = net
        self.objective = objective

    def forward(self, batch: Any, counts: Tensor) -> tuple[Tensor, Tensor]:
        """See `ModelWithLoss`."""
        kinds = self.objective(self.net, batch)
        losses = torch.stack([sums.loss for sums in kinds.values()])
        # At least 1: a batch without a prediction of some kind adds nothing to the loss, not a NaN.
        loss = (losses / counts.clamp(min=1)).sum()
        return loss, torch.stack([torch.stack(sums).detach() for sums in kinds.values()])


def figures_of(
    kinds: Sequence[str], sums: Sequence[Sequence[float]], num_random: float | None = None
) -> dict[str, float]:
    """Return the loss and accuracy of each kind of prediction, given [kinds, (loss, correct, count)].

    Of pairs, with the number of random ones, also the share of the larger class: what a constant answer scores.
    """
    values: dict[str, float] = {"loss": 0.0} if sums else {}
    for kind, (loss, correct, count) in zip(kinds, sums, strict=False):
        values[f"{kind}_loss"] = loss / max(count, 1)
        if kind != "regress":  # where nothing is right or wrong
            values[f"{kind}_accuracy"] = correct / max(count, 1)
        if kind == "nsp" and num_random is not None:
            values["nsp_larger_class"] = max(num_random, count - num_random) / max(count, 1)
        values["loss"] += loss / max(count, 1)
    return values
