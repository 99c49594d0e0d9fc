"""The attention kernels of training, run by triton's interpreter where there is no GPU, against plain torch."""

import importlib.util
import os

import pytest
import torch

from bertworks.nn.layers import kept_pairs

HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ["TRITON_INTERPRET"] = "1"
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="NOT TESTED: triton is not installed (it comes with GPU builds)",
    ),
]
PLACE = 5


def plain(qkv, starts, seed, share, causal):
    """Attention as the formula has it, with the kernels' own mask."""
    outs = []
    num_tokens, _, num_heads, width = qkv.shape
    for first, end in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        q, k, v = qkv[first:end].permute(1, 2, 0, 3).unbind(0)
        scores = q @ k.transpose(1, 2) * width**-0.5
        places = torch.arange(end - first, dtype=torch.int32)
        if causal:
            scores = scores.masked_fill(places[None, :] > places[:, None], -torch.inf)
        weights = scores.softmax(-1)
        if share:
            keep = [
                kept_pairs(head * num_tokens + first + places, places, seed, PLACE, share) for head in range(num_heads)
            ]
            weights = torch.where(torch.stack(keep), weights / (1 - share), 0.0)
        outs.append((weights @ v).transpose(0, 1))
    return torch.cat(outs)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.1])
@pytest.mark.parametrize(
    ("max_length", "lengths", "width"),
    [(20, [5, 20, 0, 1, 17], 16), (128, [128, 100, 65], 24), (200, [200, 130, 3], 16)],
)
def test_values_and_gradients_are_those_of_the_formula(max_length, lengths, width, share, causal):
    from bertworks.nn.gpu_attention import gpu_attention

    device = "cuda" if HAS_GPU else "cpu"
    torch.manual_seed(0)
    starts = torch.tensor([0, *lengths]).cumsum(0).int()
    qkv = torch.randn(sum(lengths), 3, 2, width, requires_grad=True)
    seed = torch.tensor(1_234_567, dtype=torch.int32)
    grad = torch.randn(sum(lengths), 2, width)
    expected = plain(qkv, starts, seed, share, causal)
    (expected_grad,) = torch.autograd.grad(expected, qkv, grad)
    moved = qkv.detach().to(device).requires_grad_(True)
    out, _ = gpu_attention(moved, starts.to(device), seed.to(device), max_length, PLACE, share, causal)
    (out_grad,) = torch.autograd.grad(out, moved, grad.to(device))
    tolerance = 2e-2 if HAS_GPU else 1e-5  # a GPU multiplies in tf32
    torch.testing.assert_close(out.cpu(), expected, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(out_grad.cpu(), expected_grad, atol=tolerance, rtol=tolerance)
