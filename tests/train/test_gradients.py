"""Gradients are added up over ranks while the backward pass goes on: what is sent, in which order, and when."""

import pytest
import torch
from torch import nn

from bertworks.train import distributed as module
from bertworks.train.distributed import GradientSums, buckets_of


class TwoRanks:
    """Two ranks of which the other does the same as this one; notes what is sent."""

    world_size = 2

    def __init__(self):
        self.events = []

    def add_up(self, tensor):
        self.events.append(("sent", tensor.numel()))

        def wait():
            self.events.append(("waited", tensor.numel()))
            tensor.mul_(2)

        return wait


class Chain(nn.Module):
    """Five matrices one after the other, and a weight that nothing uses."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(4, 4, bias=False) for _ in range(5))
        self.unused = nn.Parameter(torch.zeros(7))

    def forward(self, x):
        for step in self.steps:
            x = torch.tanh(step(x))
        return x.sum()


@pytest.fixture
def small_buckets(monkeypatch):
    """Two matrices in a bucket."""
    monkeypatch.setattr(module, "_BUCKET_NUMBERS", 32)


def own_gradients(net, slices):
    for rows in slices:
        net(rows).backward()
    found = [weight.grad for weight in net.parameters()]
    net.zero_grad()
    return found


def summed_gradients(net, weights, slices, ranks):
    sums = GradientSums(ranks, weights)
    for number, rows in enumerate(slices):
        if number == len(slices) - 1:
            sums.begin()
        net(rows).backward()
    total = torch.ones(2, 3)
    own = sums.finish(total)
    assert total.tolist() == [[2] * 3] * 2
    sums.close()
    return own


@pytest.mark.parametrize("num_slices", [1, 3])
def test_all_ranks_gradients_are_added_up_once_a_batch(small_buckets, num_slices):
    net, ranks = Chain(), TwoRanks()
    slices = [torch.randn(3, 4) for _ in range(num_slices)]
    expected = own_gradients(net, slices)
    own = summed_gradients(net, list(net.parameters()), slices, ranks)
    for weight, wanted in zip(net.parameters(), expected, strict=True):
        assert (weight.grad is None) == (wanted is None)
        assert wanted is None or torch.equal(weight.grad, 2 * wanted)
    assert own.isfinite()
    # The last weights first, two matrices at a time, without what has no gradient; then the batch's own sums.
    sizes = [32, 32, 16, 6]
    assert ranks.events == [("sent", size) for size in sizes] + [("waited", size) for size in sizes]


def test_a_bucket_is_sent_while_the_backward_pass_goes_on(small_buckets):
    net, ranks = Chain(), TwoRanks()
    net.steps[0].weight.register_post_accumulate_grad_hook(lambda _: ranks.events.append(("first matrix", 0)))
    weights = [step.weight for step in net.steps]
    summed_gradients(net, weights, [torch.randn(3, 4)], ranks)
    assert ranks.events[:3] == [("sent", 32), ("sent", 32), ("first matrix", 0)]


def test_nothing_is_sent_before_the_last_slice(small_buckets):
    net, ranks = Chain(), TwoRanks()
    sums = GradientSums(ranks, list(net.parameters()))
    net(torch.randn(3, 4)).backward()
    assert ranks.events == []
    sums.close()
    sums.begin()
    net(torch.randn(3, 4)).backward()
    assert ranks.events == []


@pytest.mark.parametrize("place", ["loss", "gradient"])
def test_it_is_known_whether_this_rank_s_own_numbers_were_finite(small_buckets, place):
    net, rows = Chain(), torch.randn(3, 4)
    sums = GradientSums(TwoRanks(), list(net.parameters()))
    if place == "gradient":
        net.steps[2].weight.register_hook(lambda grad: grad * float("inf"))
    sums.begin()
    net(rows).backward()
    assert not sums.finish(torch.full((1, 3), float("nan") if place == "loss" else 1.0)).isfinite()


@pytest.mark.parametrize("sizes", [[], [1], [3, 4, 5], [1 << 24, 1, 1 << 23, 1 << 23, 1]])
def test_buckets_hold_everything_in_order_and_are_bounded(sizes):
    tensors = [torch.empty(size) for size in sizes]
    buckets = list(buckets_of(tensors))
    assert [id(tensor) for bucket in buckets for tensor in bucket] == [id(tensor) for tensor in tensors]
    assert all(len(bucket) == 1 or sum(tensor.numel() for tensor in bucket) <= 1 << 24 for bucket in buckets)
