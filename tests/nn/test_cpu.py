"""The encoder on a CPU in bfloat16 and int8, against float32 and against plain transcriptions of its arithmetic."""

import itertools

import numpy as np
import pytest
import torch

from bertworks.nn import cpu, int8, layers
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import Linear, activate, initialise, is_fast_on_cpu, quantize_weight

NEEDS = {dtype: pytest.mark.skipif(not is_fast_on_cpu(dtype), reason=f"NOT TESTED: no instructions for {dtype} here")
         for dtype in ("bfloat16", "int8")}  # fmt: skip
DTYPES = [pytest.param(dtype, marks=mark) for dtype, mark in NEEDS.items()]
LENGTHS = (5, 1, 33, 7, 7, 64, 2, 18)
pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="NOT TESTED: this build of torch has no oneDNN"
)


def small(**changes):
    sizes = {
        "vocab_size": 200, "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4,
        "intermediate_size": 128, "max_position_embeddings": 128,
    }  # fmt: skip
    net = Bert(BertConfig(**sizes | changes), {"classify": 3})
    initialise(net, 0.1, seed=1)
    for name, parameter in net.named_parameters():  # biases and norms that matter
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
    return net.eval().requires_grad_(False)


def texts(lengths=LENGTHS):
    rng = np.random.default_rng(0)
    return [rng.integers(5, 200, length).tolist() for length in lengths]


def error(found, expected):
    return float(((found - expected).norm() / expected.norm()).detach())


@pytest.mark.parametrize(
    ("dtype", "most"),
    [pytest.param("bfloat16", 0.02, marks=NEEDS["bfloat16"]), pytest.param("int8", 0.03, marks=NEEDS["int8"])],
)
@pytest.mark.parametrize(
    "changes", [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"direction": "left_to_right"},
                {"direction": "right_to_left"}, {"num_hidden_layers": 0}],
    ids=["bert", "gelu_new", "relu", "left to right", "right to left", "no layers"],
)  # fmt: skip
def test_it_is_near_float32(changes, dtype, most):
    net, tokens = small(**changes), pack(texts())
    engine = cpu.CpuEngine(net, dtype)
    with torch.inference_mode():
        expected = net.encode(tokens, hidden=True)
        states = engine.all_hidden(tokens)
        assert len(states) == len(expected.all_hidden)
        for found, wanted in zip(states, expected.all_hidden, strict=True):
            assert error(found, wanted) < most
        assert torch.equal(engine(tokens), states[-1])


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_token_of_each_text_is_the_same_as_of_all(dtype):
    net, tokens = small(), pack(texts())
    net.engine = cpu.CpuEngine(net, dtype)
    with torch.inference_mode():
        whole, places = net(tokens), tokens.packing.cumulative_lengths[:-1]
        torch.testing.assert_close(net.summary_of(tokens), whole[places.long()], rtol=0, atol=2e-2)
        assert error(net.summary_of(tokens), whole[places.long()]) < 0.01


@NEEDS["int8"]
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 128), (4, 64), (26, 5), (312, 100), (3, 65)])
@pytest.mark.parametrize("rows", [1, 5, 6, 7, 12, 13, 16, 17, 33, 48, 64])
@pytest.mark.parametrize("in_tiles", [False, True], ids=["vectors", "tiles"])
def test_a_product_in_int8_is_exact(inputs, outputs, rows, in_tiles):
    tiles = int8.tiles() if in_tiles else np.empty(0, np.uint8)
    if in_tiles and not len(tiles):
        pytest.skip("NOT TESTED: this processor has no matrix tiles")
    rng = np.random.default_rng(rows)
    x, linear = rng.integers(0, 256, (rows, inputs), np.uint8), Linear(inputs, outputs)
    linear.weight.data = torch.from_numpy(rng.integers(-127, 128, (outputs, inputs)).astype(np.float32))
    linear.weight.data[:, 0], linear.bias.data = 127, torch.arange(float(outputs))  # so that scales are 1
    for after, zero in ((None, 128), ("gelu", 0)):
        weights, starts, scales, bias = int8._linear(linear, after=after)
        low = np.full((rows, -(-inputs // 4) * 4), 99, np.uint8)
        low[:, :inputs] = x
        sums = np.empty((rows, len(starts)), np.int32)
        int8._product(low, rows, weights, starts, sums, tiles)
        weight = linear.weight.detach().numpy().astype(np.int64)
        assert np.array_equal(sums[:, :outputs], (x.astype(np.int64) - zero) @ weight.T)
        assert (scales == 1).all()
        least = 0 if after is None else int8._GELU_LEAST
        np.testing.assert_allclose(bias, np.arange(outputs) - least * weight.sum(1), rtol=1e-5, atol=1e-4)


def test_rows_are_quantized_by_their_largest_number():
    rng = np.random.default_rng(0)
    factors = rng.random(48).astype(np.float32) + 0.5
    for row in (rng.normal(size=48) * 1e3, rng.normal(size=48) * 1e-8, np.zeros(48), np.full(48, 1e30)):
        row, out = row.astype(np.float32), np.empty(48, np.uint8)
        scale = int8._quantize(row, factors, out)
        assert scale == pytest.approx(max(np.abs(row * factors).max(), 1e-30) / 127, rel=1e-5)
        assert np.abs((out.astype(float) - 128) * scale - row * factors).max() <= 0.501 * scale


@pytest.mark.parametrize("name", ["gelu", "gelu_new", "relu"])
def test_activations_are_stored_from_their_least_value_on(name):
    sums, out = np.arange(-9_000, 9_000, dtype=np.int32), np.empty(18_000, np.uint8)
    scales, bias = np.full(18_000, 0.5, np.float32), np.full(18_000, 0.25, np.float32)
    polynomial = np.zeros(0, np.float32) if name == "relu" else int8.gelu_polynomial(name)
    row = np.empty(18_000, np.float32)
    scale = int8._activate_and_quantize(sums, np.float32(2e-3), scales, bias, polynomial, row, out)
    expected = activate(torch.from_numpy(sums * 1e-3 + 0.25), name).numpy()
    least = 0 if name == "relu" else int8._GELU_LEAST
    assert scale == pytest.approx((expected.max() + least) / 255, rel=1e-4)
    assert np.abs(out * float(scale) - least - expected).max() <= 0.5 * scale + 4e-4


@NEEDS["int8"]
@pytest.mark.parametrize("is_low", [False, pytest.param(True, marks=NEEDS["bfloat16"])], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("width", [4, 16, 26, 33, 64])
def test_attention_is_that_of_torch(width, is_causal, is_low):
    """Products hold queries, keys and values as whole numbers here, multiplied by scales of their own."""
    lengths, num_heads = (1, 5, 17, 40, 41, 70), 3
    starts, rng = np.cumsum([0, *lengths]), np.random.default_rng(0)
    total, num_outputs = starts[-1], 3 * num_heads * width
    sums = np.zeros((total, 4 * num_outputs), np.int32)
    sums[:, :num_outputs] = rng.integers(-900, 900, (total, num_outputs))
    scales, output_scales = rng.uniform(1e-3, 2e-3, (2, max(total, num_outputs))).astype(np.float32)
    output_scales[: num_outputs // 3] *= np.float32(1.4426950408889634 / width**0.5)
    bias = rng.normal(size=num_outputs).astype(np.float32) * (np.arange(num_outputs) >= num_outputs // 3)
    heads = int8.room_for(total, num_heads, width, is_low=is_low)
    for first in range(0, total, 7):  # as threads may do it, in no particular order
        first = total // 7 * 7 - first
        count = min(7, total - first)
        scales_here = output_scales[:num_outputs] * 1_000
        int8._divide(scales_here, bias, sums[first:], scales[first:], count, heads, first)
    qkv = sums[:, :num_outputs] * scales[:total, None].astype(np.float64) * scales_here + bias
    q, k, v = qkv.reshape(total, 3, num_heads, width).transpose(1, 2, 0, 3)
    found = np.empty((total, num_heads * width), np.float32)
    every, chosen = np.empty(0, np.int64), starts[1:] - 1
    net = int8.prepare(small().blocks, cpu.input_factors(small()))._replace(num_heads=num_heads, is_causal=is_causal)
    int8._attend_all(net, heads, found, starts, every, 0, total)
    of_chosen = np.empty((len(lengths), num_heads * width), np.float32)
    int8._attend_all(net, heads, of_chosen, starts, chosen, 0, len(lengths))
    for start, end in itertools.pairwise(starts):
        some = [torch.from_numpy(each[:, start:end]) for each in (q, k, v)]
        some = [each.bfloat16().double() for each in some] if is_low else some
        expected = torch.nn.functional.scaled_dot_product_attention(*some, is_causal=is_causal, scale=np.log(2))
        np.testing.assert_allclose(found[start:end], expected.transpose(0, 1).flatten(1), atol=8e-3 if is_low else 1e-5)
    np.testing.assert_allclose(of_chosen, found[chosen], atol=1e-3 if is_low else 1e-6)


@NEEDS["int8"]
def test_inputs_and_weights_share_what_a_large_channel_costs():
    net, tokens = small(), pack(texts())
    for block in net.blocks:
        block.norm.weight.data[5] *= 40  # as a few channels of trained models are
        block.attention_norm.weight.data[7] *= 40
        block.qkv.weight.data[:, 5] /= 40  # and not all that follows is about them
        block.up.weight.data[:, 7] /= 40
    factors = cpu.input_factors(net)
    assert [(qkv.argmin().item(), up.argmin().item()) for qkv, up in factors[1:]] == [(5, 7)] * 2
    x, linear = net.encode(tokens, hidden=True).all_hidden[1].numpy(), net.blocks[1].qkv
    errors = []
    for some in (torch.ones(64), factors[1][0]):
        weights, starts, scales, bias = int8._linear(linear, some)
        low, sums = np.empty((len(x), 64), np.uint8), np.empty((len(x), len(starts)), np.int32)
        row_scales = np.array([int8._quantize(row, some.numpy(), out) for row, out in zip(x, low, strict=True)])
        int8._product(low, len(x), weights, starts, sums, int8.tiles())
        errors.append(
            error(
                torch.from_numpy((sums[:, :192] * row_scales[:, None] * scales + bias).astype(np.float32)),
                linear(torch.from_numpy(x)),
            )
        )
    assert errors[1] < 0.5 * errors[0]
    found, again = cpu.CpuEngine(net, "int8")(tokens), cpu.CpuEngine(net, "int8", factors)(tokens)
    assert torch.equal(found, again)  # nothing in it is left to chance


@pytest.mark.parametrize("dtype", DTYPES)
def test_answers_do_not_depend_on_threads_or_neighbours(dtype, monkeypatch):
    monkeypatch.setattr(cpu, "_MIN_TOKENS_PER_THREAD", {"bfloat16": 16, "int8": 16})
    net, given = small(), texts()
    engine, threads = cpu.CpuEngine(net, dtype), torch.get_num_threads()
    most = 0 if dtype == "int8" else 2e-2  # whole numbers are summed exactly, in any order
    with torch.inference_mode():
        try:
            torch.set_num_threads(1)
            together = engine(pack(given))
            torch.set_num_threads(3)
            in_parts, firsts = engine(pack(given)), engine(pack(given), pack(given).packing.cumulative_lengths[:-1])
            assert torch.get_num_threads() == 3
        finally:
            torch.set_num_threads(threads)
        assert float((in_parts - together).abs().max()) <= most
        assert float((firsts - together[pack(given).packing.cumulative_lengths[:-1].long()]).abs().max()) <= 3e-2
        starts = np.cumsum([0, *LENGTHS])
        for number in (2, 5):
            alone = engine(pack([given[number]]))
            assert float((alone - together[starts[number] : starts[number + 1]]).abs().max()) <= most


def test_parts_have_all_sequences_and_about_as_many_tokens():
    for lengths in (LENGTHS, (9,) * 31, (1, 500), (3,)):
        runs = pack(texts(lengths)).packing.runs
        for count in (2, 3, 8):
            parts = cpu._parts(runs, count)
            assert len(parts) <= count
            assert sum(run.num_sequences for part in parts for run in part) == len(lengths)
            assert sorted(run.length for part in parts for run in part for _ in range(run.num_sequences)) == sorted(
                lengths
            )
            sizes = [sum(run.num_tokens for run in part) for part in parts]
            assert max(sizes) <= sum(lengths) / count + max(lengths)


def test_weights_in_int8_are_within_half_a_step():
    weight = torch.randn(7, 100) * torch.logspace(-3, 3, 7)[:, None]
    values, scales = quantize_weight(weight)
    assert values.dtype == torch.int8
    assert (values.abs().amax(1) == 127).all()
    assert ((values.float() * scales[:, None] - weight).abs() <= 0.501 * scales[:, None]).all()
    again, _ = quantize_weight(values.float() * scales[:, None])
    assert torch.equal(again, values)


def test_a_processor_is_known_by_its_instructions(tmp_path, monkeypatch):
    facts = tmp_path / "cpuinfo"
    monkeypatch.setattr(layers, "_CPU_FACTS", facts)
    for flags, fast in (("fpu avx2", []), ("avx512f avx512_vnni", ["int8"]), ("avx_vnni", ["int8"]),
                        ("avx512_bf16 avx512_vnni", ["bfloat16", "int8"]), (None, [])):  # fmt: skip
        facts.unlink(missing_ok=True)
        if flags:
            facts.write_text(f"processor : 0\nflags\t\t: {flags}\nbugs : avx512_bf16\n")
        layers.cpu_instructions.cache_clear()
        assert [dtype for dtype in ("bfloat16", "int8") if is_fast_on_cpu(dtype)] == fast
    monkeypatch.undo()
    layers.cpu_instructions.cache_clear()
