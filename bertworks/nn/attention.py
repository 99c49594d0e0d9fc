"""The one attention of the house: each token looks at the tokens of its own sequence.

T tokens, N heads, H width of a head, D = N * H, G sequences of one length L.

On CUDA in half precision it is flash attention over cumulative lengths, or in training the kernels of
`gpu_attention.py`; elsewhere torch's scaled dot product, once for every length that occurs. `causal` lets a token look
only at itself and what lies before it.
"""

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from bertworks.nn.config import Direction
from bertworks.nn.packing import Packing, Run


def attend(
    qkv_T3NH: Tensor,
    packing: Packing,
    *,
    causal: bool = False,
    dropout: float = 0.0,
    seed: Tensor | None = None,
    place: int = 0,
) -> Tensor:
    """Return the attended values, [T, N * H]; `seed` and `place` are those of `dropout.py`."""
    if packing.runs is None:
        if seed is not None:
            from bertworks.nn.gpu_attention import gpu_attention  # needs triton, which only GPU builds of torch bring

            longest = packing.max_length
            out_TNH, _ = gpu_attention(qkv_T3NH, packing.cumulative_lengths, seed, longest, place, dropout, causal)
            return out_TNH.flatten(1)
        return _flash(qkv_T3NH, packing, causal, dropout)
    if len(packing.runs) == 1 and packing.runs[0].num_sequences * packing.runs[0].length == len(qkv_T3NH):
        return _of_run(qkv_T3NH, packing.runs[0], causal, dropout)
    if not packing.runs:  # only empty sequences
        return qkv_T3NH[:, 0].flatten(1)
    return torch.cat([_of_run(qkv_T3NH, run, causal, dropout) for run in packing.runs])


def _of_run(qkv_T3NH: Tensor, run: Run, causal: bool, dropout: float) -> Tensor:
    _, _, num_heads, width = qkv_T3NH.shape
    q_GNLH, k_GNLH, v_GNLH = _heads(qkv_T3NH, run).unbind(0)
    out_GNLH = F.scaled_dot_product_attention(q_GNLH, k_GNLH, v_GNLH, dropout_p=dropout, is_causal=causal)
    return out_GNLH.transpose(1, 2).reshape(run.num_sequences * run.length, num_heads * width)


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
    outputs, first = [], 0
    for run in packing.runs:
        k_GNLH, v_GNLH = _heads(kv_T2NH, run).unbind(0)
        q_GN1H = q_SNH[first : first + run.num_sequences, :, None]
        outputs.append(F.scaled_dot_product_attention(q_GN1H, k_GNLH, v_GNLH, dropout_p=dropout).flatten(1))
        first += run.num_sequences
    return torch.cat(outputs)


def _heads(qkv_T3NH: Tensor, run: Run) -> Tensor:
    """View the tokens of a run as [3, G, N, L, H], or [2, ...] of keys and values."""
    rows = qkv_T3NH[run.first_token : run.first_token + run.num_sequences * run.length]
    return rows.view(run.num_sequences, run.length, *qkv_T3NH.shape[1:]).permute(2, 0, 3, 1, 4)


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
