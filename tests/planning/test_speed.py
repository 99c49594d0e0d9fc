"""Time by formula: within a tenth of what was measured, and sensible where nothing was."""

import itertools

import pytest

from bertworks.errors import UserError
from bertworks.planning.costs import GPUS, MicroBatch, find_gpu, network_of, peak_flops
from bertworks.planning.plan import LOOP_S, gradient_seconds, update_seconds
from bertworks.recipe import load_recipe

# Whole training steps on one H200, in thousand tokens/s (docs/log.md): size, sequences, length.
MEASURED = [("base", 512, 128, 797), ("base", 128, 512, 693), ("large", 256, 128, 254), ("small", 1024, 128, 3_641),
            ("mini", 1024, 128, 8_454)]  # fmt: skip


def network(size, *overrides):
    return network_of(load_recipe("base", [f"model.preset={size}", *overrides]), 30_522)


def step_seconds(net, tokens, length=128, recompute=False, gpu="h200"):
    part = MicroBatch(tokens, True, recompute)
    return gradient_seconds(net, part, length, gpu) + update_seconds(net, part, gpu)


@pytest.mark.parametrize(("size", "batch", "length", "thousands"), MEASURED)
def test_steps_measured_on_an_h200_are_predicted_within_a_tenth(size, batch, length, thousands):
    tokens = batch * length
    assert tokens / step_seconds(network(size), tokens, length) / 1e3 == pytest.approx(thousands, rel=0.1)


def test_attention_grows_with_length_as_its_kernels_do():
    """A layer of base, 65,536 tokens, forward and backward (docs/log.md): 600 us at length 128, 1,492 us at 512."""
    short, long = (gradient_seconds(network("base"), MicroBatch(65_536, True, False), n, "h200") for n in (128, 512))
    assert (long - short) / 12 == pytest.approx(1_492e-6 - 600e-6, rel=0.1)


def test_a_whole_pretraining_of_mini_is_predicted_within_a_tenth():
    tokens = 1024 * 128
    assert tokens / (step_seconds(network("mini"), tokens) + LOOP_S) / 1e3 == pytest.approx(7_100, rel=0.1)


def test_more_of_anything_takes_longer():
    sizes = [network(size) for size in ("tiny", "mini", "small", "medium", "base", "large")]
    assert all(step_seconds(a, 65_536) < step_seconds(b, 65_536) for a, b in itertools.pairwise(sizes))
    base = network("base")
    for tokens in (512, 8_192, 65_536):
        assert step_seconds(base, tokens) < step_seconds(base, 2 * tokens)
        assert step_seconds(base, tokens, 128) < step_seconds(base, tokens, 512) < step_seconds(base, tokens, 2_048)
    assert step_seconds(base, 65_536) < step_seconds(network("base", "data.objective=ltr"), 65_536)


@pytest.mark.parametrize("size", ["mini", "base", "large"])
def test_recompute_costs_a_fifth_to_a_third(size):
    net = network(size)
    assert 1.2 < step_seconds(net, 65_536, recompute=True) / step_seconds(net, 65_536) < 1.4


def test_a_step_is_not_shorter_than_the_start_of_its_kernels():
    for size, layers in (("tiny", 2), ("large", 24)):
        assert step_seconds(network(size), 8) > 26 * layers * 5e-6


def test_a_gpu_is_slower_where_its_vendor_says_so():
    net, part = network("base"), MicroBatch(65_536, True, False)
    seconds = {name: gradient_seconds(net, part, 128, name) for name, gpu in GPUS.items() if gpu.bf16_tflops}
    assert sorted(seconds, key=seconds.__getitem__) == [
        "h200", "h100", "a100-80", "a100-40", "l40s", "rtx-4090", "rtx-3090", "l4",
    ]  # fmt: skip


def test_a_gpu_is_found_whatever_the_case_of_its_name():
    assert find_gpu("H200") == find_gpu("h200")
    assert peak_flops("RTX-4090", half=True) == 165.2e12


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cpu", "the speed of a CPU is not known; choose --gpu h200, "),
        ("a100", "did you mean 'a100-80' or 'a100-40'?"),
        ("h20", "did you mean 'h200'?"),
        ("rtx4090", "did you mean 'rtx-4090'?"),
        ("x" * 1_000, "no GPU 'xxxxx"),
        ("", "known: h200"),
    ],
)
def test_an_unknown_gpu_names_the_known(name, said):
    with pytest.raises(UserError) as caught:
        find_gpu(name)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("name", ["t4", "v100-32"])
def test_a_gpu_without_bf16_says_so_and_counts_in_fp32(name):
    with pytest.raises(UserError, match=rf"{name} has no bf16; choose --gpu h200, .*train.dtype=float32"):
        peak_flops(name, half=True)
    assert 0 < peak_flops(name, half=False) < peak_flops("h200", half=True) / 20
