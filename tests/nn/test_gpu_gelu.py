"""Bias and gelu of training on a GPU, run by triton's interpreter where there is none, against torch's exact gelu."""

import importlib.util
import os

import pytest
import torch
import torch.nn.functional as F

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


@pytest.mark.parametrize(("num_rows", "width"), [(1, 8), (64, 256), (70, 300), (129, 32)])
def test_values_and_gradients_are_those_of_gelu(num_rows, width):
    from bertworks.nn.gpu_gelu import bias_gelu

    device = "cuda" if HAS_GPU else "cpu"
    torch.manual_seed(0)
    x, grad = 3 * torch.randn(num_rows, width, device=device), torch.randn(num_rows, width, device=device)
    bias = torch.randn(width, device=device)
    values, grads = [], []
    for gelu in (lambda x, bias: F.gelu(x + bias), bias_gelu):
        inputs = x.clone().requires_grad_(True), bias.clone().requires_grad_(True)
        values.append(gelu(*inputs))
        grads.append(torch.autograd.grad(values[-1], inputs, grad))
    torch.testing.assert_close(values[1], values[0], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(grads[1][0], grads[0][0], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(grads[1][1], grads[0][1], atol=1e-4, rtol=1e-4)


def test_far_from_0_nothing_is_lost():
    from bertworks.nn.gpu_gelu import bias_gelu

    device = "cuda" if HAS_GPU else "cpu"
    x = torch.tensor([[-200.0, -12.0, -5.0, 0.0, 5.0, 12.0, 200.0, 1e30]], device=device)
    out = bias_gelu(x, torch.zeros(8, device=device))
    torch.testing.assert_close(out, F.gelu(x), atol=1e-6, rtol=1e-6)
