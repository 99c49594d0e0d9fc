"""The encoder on a CPU in bfloat16 and int8, against float32 and against plain transcriptions of its arithmetic."""

import numpy as np
import pytest
import torch

from bertworks.nn import cpu, layers
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.layers import Linear, activate, initialise, is_fast_on_cpu, quantize_weight

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


@pytest.mark.parametrize(("dtype", "most"), [("bfloat16", 0.02), ("int8", 0.03)])
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


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_one_token_of_each_text_is_the_same_as_of_all(dtype):
    net, tokens = small(), pack(texts())
    net.engine = cpu.CpuEngine(net, dtype)
    with torch.inference_mode():
        whole, places = net(tokens), tokens.packing.cumulative_lengths[:-1]
        torch.testing.assert_close(net.summary_of(tokens), whole[places.long()], rtol=0, atol=2e-2)
        assert error(net.summary_of(tokens), whole[places.long()]) < 0.01


def test_int8_is_the_arithmetic_that_the_docstring_says():
    """A linear layer by numpy: every row of the weights and every token has a scale, the largest number being 127."""
    linear = Linear(48, 40)
    initialise(linear, 0.2, seed=3)
    linear.bias.data.normal_()
    x = torch.randn(11, 48) * torch.logspace(-2, 2, 11)[:, None]
    weight, inputs = linear.weight.detach().double().numpy(), x.double().numpy()
    weight_scales, scales = np.abs(weight).max(1) / 127, np.abs(inputs).max(1) / 127
    quantized = np.floor(inputs / scales[:, None] + 0.5) @ np.rint(weight / weight_scales[:, None]).T
    expected = quantized * scales[:, None] * weight_scales + linear.bias.detach().numpy()
    product = cpu.Int8Linear(linear)
    found = product.plain(product.lower(x)).numpy()
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-3 * np.abs(expected).max(1, keepdims=True).min())


@pytest.mark.parametrize("act", ["gelu", "gelu_new", "relu"])
def test_activated_inputs_are_stored_from_their_least_value_on(act):
    """By numpy: 0 is the least value of the activation, 255 the token's largest; the bias makes up for it."""
    torch.manual_seed(0)
    up, down = Linear(48, 40), Linear(40, 16)
    for linear in (up, down):
        initialise(linear, 0.3, seed=3)
        linear.bias.data.normal_()
    first, second = cpu.Int8Linear(up), cpu.Int8Linear(down, after=act)
    low = first.lower(torch.randn(9, 48))
    activations = activate(first.plain(low), act).double().numpy()
    least = 0 if act == "relu" else cpu._GELU_LEAST
    scales = (activations + least).max(1, keepdims=True) / 255
    stored = np.floor((activations + least) / scales + 0.5)
    values, weight_scales = quantize_weight(down.weight.detach())
    expected = (stored * scales - least) @ (
        values.numpy() * weight_scales.numpy()[:, None]
    ).T + down.bias.detach().numpy()
    found = second.plain(first.activated(low, act, second)).numpy()
    np.testing.assert_allclose(found, expected, atol=float(scales.max()) * 0.3)
    exact = down(activate(up(torch.zeros(1, 48)), act))
    zeros = second.plain(first.activated(first.lower(torch.zeros(1, 48)), act, second))
    assert error(zeros, exact) < 0.01


def test_inputs_and_weights_share_what_a_large_channel_costs():
    net, tokens = small(), pack(texts())
    for block in net.blocks:
        block.norm.weight.data[5] *= 40  # as a few channels of trained models are
        block.attention_norm.weight.data[7] *= 40
        block.qkv.weight.data[:, 5] /= 40  # and not all that follows is about them
        block.up.weight.data[:, 7] /= 40
    factors = cpu.input_factors(net)
    assert [(qkv.argmin().item(), up.argmin().item()) for qkv, up in factors[1:]] == [(5, 7)] * 2
    x, block = net.encode(tokens, hidden=True).all_hidden[1], net.blocks[1]
    plain, shared = (cpu.Int8Linear(block.qkv, some) for some in (None, factors[1][0]))
    errors = [error(product.plain(product.lower(x)), block.qkv(x)) for product in (plain, shared)]
    assert errors[1] < 0.5 * errors[0]
    found, again = cpu.CpuEngine(net, "int8")(tokens), cpu.CpuEngine(net, "int8", factors)(tokens)
    assert torch.equal(found, again)  # nothing in it is left to chance


def test_rows_of_zeros_and_of_huge_numbers_stay_finite():
    linear = Linear(32, 32)
    initialise(linear, 0.2, seed=3)
    product = cpu.Int8Linear(linear)
    x = torch.stack([torch.zeros(32), torch.full((32,), 1e30), torch.full((32,), 1e-30), torch.randn(32)])
    assert torch.isfinite(product.plain(product.lower(x))).all()


@pytest.mark.parametrize("name", ["gelu", "gelu_new"])
def test_the_polynomial_is_the_gelu(name):
    linear = Linear(64, 4_096)
    linear.weight.data.zero_()
    linear.bias.data = torch.linspace(-9, 9, 4_096)
    product, following = cpu.Int8Linear(linear), cpu.Int8Linear(Linear(4_096, 8), after=name)
    low = product.activated(product.lower(torch.ones(1, 64)), name, following)
    found = low.values_TD.float() * float(low.scales_T[0]) - cpu._GELU_LEAST
    expected = activate(linear.bias.detach(), name)
    assert float((found - expected).abs().max()) <= float(low.scales_T[0]) * 0.51 + 2e-6  # the rounding to int8 alone
    end, u = cpu._GELU_END, np.linspace(-1, 1, 999)
    x = torch.from_numpy(np.sqrt((u + 1) / 2) * end)
    fitted = 0.5 * x.numpy() * (1 + x.numpy() * np.polynomial.polynomial.polyval(u, cpu._gelu_polynomial(name)))
    assert np.abs(fitted - activate(x, name).numpy()).max() < 3e-6


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_answers_do_not_depend_on_threads_or_neighbours(dtype, monkeypatch):
    monkeypatch.setattr(cpu, "_MIN_TOKENS_PER_THREAD", 16)
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
