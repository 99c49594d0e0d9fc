"""Dropout by a hash: the right share, no pattern, and the same mask for the same seed and place."""

import math

import pytest
import torch

from bertworks.nn.layers import Dropout, dropped, keep_mask, kept_pairs, place_key, wrapped

COUNT = 1 << 20


def seed_of(number):
    return torch.tensor(number, dtype=torch.int32)


def mask_of(seed=0, place=0, share=0.1, count=COUNT):
    return keep_mask(count, seed_of(seed), place, share, torch.device("cpu"))


def correlation(first, second):
    return torch.corrcoef(torch.stack([first.float(), second.float()]))[0, 1].item()


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_the_share_asked_for(share):
    error = math.sqrt(share * (1 - share) / COUNT)
    assert mask_of(share=share).float().mean().item() == pytest.approx(1 - share, abs=4 * error)


def test_places_seeds_and_neighbours_have_nothing_to_do_with_each_other():
    mask = mask_of(seed=5, place=3)
    limit = 5 / math.sqrt(COUNT)
    for other in (mask_of(5, 4), mask_of(6, 3), mask_of(4, 4), mask_of(-5, 3)):
        assert abs(correlation(mask, other)) < limit
    for lag in (1, 2, 3, 64, 128, 256, 768, 1024, 3072):
        assert abs(correlation(mask[lag:], mask[:-lag])) < limit


def test_rows_and_columns_of_wide_inputs_keep_their_share():
    kept = mask_of(seed=9).view(-1, 1024).float()
    for means, count in ((kept.mean(0), 1024), (kept.mean(1), 1024)):
        assert means.std().item() == pytest.approx(math.sqrt(0.09 / count), rel=0.1)


def test_a_mask_is_a_function_of_seed_and_place():
    assert torch.equal(mask_of(7, 2), mask_of(7, 2))
    assert not torch.equal(mask_of(7, 2), mask_of(8, 2))
    assert not torch.equal(mask_of(7, 2), mask_of(7, 3))


def test_kept_elements_are_scaled_and_others_are_zero_also_in_the_gradient():
    x = torch.randn(64, 32, requires_grad=True)
    dropped = Dropout(0.25, place=1).train()(x, seed_of(3))
    keep = mask_of(3, 1, 0.25, x.numel()).view(x.shape)
    assert torch.allclose(dropped, torch.where(keep, x / 0.75, torch.zeros(())))
    assert torch.equal(dropped != 0, keep)
    (gradient,) = torch.autograd.grad(dropped.sum(), x)
    assert torch.allclose(gradient, keep / 0.75)


def test_evaluation_and_a_share_of_zero_leave_the_input_alone():
    x = torch.randn(8)
    assert Dropout(0.5, 0).eval()(x, seed_of(1)) is x
    assert Dropout(0.0, 0).train()(x, seed_of(1)) is x


def test_without_a_seed_torchs_generator_decides():
    x = torch.ones(1_000)
    drawn = []
    for seed in (4, 4, 5):
        torch.manual_seed(seed)
        drawn.append(Dropout(0.3, 0).train()(x, None))
    again = Dropout(0.3, 0).train()(x, None)
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    assert not torch.equal(drawn[2], again)


@pytest.mark.parametrize("share", [0.1, 0.5])
@pytest.mark.parametrize("shape", [(5,), (3, 7, 11), (400, 1_000)])
def test_drawn_masks_drop_their_share_and_scale_up_the_rest(shape, share):
    torch.manual_seed(0)
    x = torch.rand(shape) + 1
    x.requires_grad_()
    y = dropped(x, share)
    kept = y != 0
    torch.testing.assert_close(y[kept], x[kept] / (1 - share))
    if x.numel() > 1_000:
        assert kept.float().mean().item() == pytest.approx(1 - share, abs=5 * math.sqrt(share / x.numel()))
        neighbours = (kept[:, 1:] & kept[:, :-1]).float().mean().item()
        assert neighbours == pytest.approx((1 - share) ** 2, abs=0.005)
    y.sum().backward()
    torch.testing.assert_close(x.grad, kept / (1 - share))


def test_attention_weights_are_dropped_without_a_pattern_in_rows_or_columns():
    columns = torch.arange(512, dtype=torch.int32)
    rows = torch.arange(2_048, dtype=torch.int32)
    kept = kept_pairs(rows, columns, seed_of(11), 4, 0.1).float()
    assert kept.mean().item() == pytest.approx(0.9, abs=4 * math.sqrt(0.09 / kept.numel()))
    for side, count in ((kept, 512), (kept.T, 2_048)):
        between = torch.corrcoef(side).fill_diagonal_(0)
        # The spread is that of independent coins, and no pair stands out.
        assert between.std().item() == pytest.approx(1 / math.sqrt(count), rel=0.03)
        assert between.abs().max().item() < 7 / math.sqrt(count)


@pytest.mark.parametrize("number", [0, 1, -1, 2**31 - 1, 2**31, 2**32, -(2**31) - 1, 12345678901])
def test_numbers_wrap_as_int32_does(number):
    assert wrapped(number) == (torch.tensor(number % 2**32) - (2**32 if number % 2**32 >= 2**31 else 0)).item()
    assert -(2**31) <= place_key(number % 1000) < 2**31
