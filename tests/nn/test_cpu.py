"""The encoder on a CPU in bfloat16 and int8, against float32 and against plain transcriptions of its arithmetic."""

import contextlib
import faulthandler
import functools
import itertools
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

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
    room = int8._room_to_attend(net, heads, found, starts)
    int8._attend_heads(net, heads, found, starts, every, 0, len(lengths) * num_heads, room)
    of_chosen = np.empty((len(lengths), num_heads * width), np.float32)
    int8._attend_heads(net, heads, of_chosen, starts, chosen, 0, len(lengths) * num_heads, room)
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


# Threads in int8.


def computed(engine, given, num_threads):
    """Return all that an engine computes of texts: of all tokens, of the first of each text, and of every layer."""
    usual, tokens = torch.get_num_threads(), pack(given)
    torch.set_num_threads(num_threads)
    try:
        with torch.inference_mode():
            firsts = engine(tokens, tokens.packing.cumulative_lengths[:-1])
            found = [engine(tokens), firsts, *engine.all_hidden(tokens)]
        assert torch.get_num_threads() == num_threads
        return found
    finally:
        torch.set_num_threads(usual)


def are_same(found, expected):
    return len(found) == len(expected) and all(map(torch.equal, found, expected))


@pytest.fixture
def without_hanging():
    """End the tests, with every thread's stack, if threads wait for each other for a minute."""
    faulthandler.dump_traceback_later(60, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@NEEDS["int8"]
@pytest.mark.usefixtures("without_hanging")
@pytest.mark.parametrize("is_low", [False, pytest.param(True, marks=NEEDS["bfloat16"])], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes", [{}, {"direction": "left_to_right"}, {"direction": "right_to_left"}, {"num_hidden_layers": 1},
                {"hidden_size": 78, "num_attention_heads": 3, "intermediate_size": 100}],
    ids=["bert", "left to right", "right to left", "one layer", "odd widths"],
)  # fmt: skip
def test_bits_in_int8_do_not_depend_on_threads(changes, is_low, monkeypatch):
    monkeypatch.setattr(cpu, "_MIN_TOKENS_PER_THREAD", {"int8": 1})
    monkeypatch.setattr(int8, "room_for", functools.partial(int8.room_for, is_low=is_low))
    engine = cpu.CpuEngine(small(**changes), "int8")
    for lengths in ((1,), (2,), (16,), (17,), (64,), (128,), (127, 3), (100, 1, 50, 49), (5,) * 41, LENGTHS):
        expected = computed(engine, texts(lengths), 1)
        for num_threads in (2, 3, 4 * os.cpu_count()):
            for _ in range(3):
                assert are_same(computed(engine, texts(lengths), num_threads), expected), (lengths, num_threads)


@NEEDS["int8"]
@pytest.mark.usefixtures("without_hanging")
def test_several_callers_in_int8_share_threads():
    engines = [cpu.CpuEngine(small(), "int8"), cpu.CpuEngine(small(num_hidden_layers=5), "int8")]
    expected = [computed(engine, texts(), 1) for engine in engines]

    def compute(number):
        return all(are_same(computed(engines[number % 2], texts(), 3), expected[number % 2]) for _ in range(40))

    with ThreadPoolExecutor(4) as callers:
        assert all(callers.map(compute, range(4)))


class NoThreads:
    """A pool whose threads never begin."""

    def submit(self, *_):
        return Future()


class Refusing:
    def submit(self, *_):
        raise RuntimeError("can't start new thread")


class Late(ThreadPoolExecutor):
    """A pool whose threads begin when all is computed."""

    def submit(self, function, *given):
        self.last = super().submit(lambda: (time.sleep(0.05), function(*given)))
        return Future()


@NEEDS["int8"]
@pytest.mark.usefixtures("without_hanging")
@pytest.mark.parametrize("make", [NoThreads, Refusing, Late])
def test_int8_does_not_wait_for_threads_that_do_not_begin(make, monkeypatch):
    engine, pool = cpu.CpuEngine(small(), "int8"), make()
    expected = computed(engine, texts(), 1)
    monkeypatch.setattr(cpu, "_pool", lambda *_, **__: pool)
    found = computed(engine, texts(), 3)
    if make is Late:
        pool.last.result(10)  # which finds nothing to do, and changes nothing
        pool.shutdown()
    assert are_same(found, expected)


@NEEDS["int8"]
@pytest.mark.usefixtures("without_hanging")
def test_int8_computes_after_a_fork():
    engine = cpu.CpuEngine(small(), "int8")
    expected = computed(engine, texts(), 3)

    def work():
        signal.alarm(30)
        assert cpu._pool.cache_info().currsize == 0  # threads that a child does not have
        assert are_same(computed(engine, texts(), 3), expected)
        assert cpu._pool.cache_info().currsize == 1

    assert layers.survives(work)
    assert are_same(computed(engine, texts(), 3), expected)


@NEEDS["int8"]
def test_more_threads_than_processors_neither_hang_nor_wait_long_and_end_with_the_program():
    program = """if True:
        import os
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        from tests.nn.test_cpu import are_same, computed, cpu, small, texts
        engine = cpu.CpuEngine(small(), "int8")
        expected = computed(engine, texts(), 1)
        assert all(are_same(computed(engine, texts(), 4), expected) for _ in range(100))
    """
    subprocess.run([sys.executable, "-c", program], cwd=Path(__file__).parents[2], check=True, timeout=60)


@NEEDS["int8"]
def test_torch_has_one_thread_while_int8_is_computed(monkeypatch):
    """Its threads would spin for milliseconds on the processors that ours need."""
    net, seen = small(), []
    begin = net.begin
    engine = cpu.CpuEngine(net, "int8")
    monkeypatch.setattr(net, "begin", lambda tokens: seen.append(torch.get_num_threads()) or begin(tokens))
    computed(engine, texts(), 3)
    assert seen == [1, 1, 1]
    usual = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        with contextlib.suppress(KeyError), layers.torch_on_one_thread() as outer:
            with layers.torch_on_one_thread() as inner:
                assert (outer, inner, torch.get_num_threads()) == (3, 3, 1)
            assert torch.get_num_threads() == 1
            raise KeyError
        assert torch.get_num_threads() == 3
        with layers.torch_on_one_thread() as again:
            assert again == 3
    finally:
        torch.set_num_threads(usual)


@pytest.mark.parametrize("num_threads", [1, 2, 3, 16])
def test_parts_of_a_stage_have_everything_once(num_threads):
    for num_rows in (*range(1, 150), 1024, 2047):
        count = int8._num_parts(num_rows, num_threads)
        parts = [int8._rows_of_part(part, count, num_rows) for part in range(count)]
        assert [first for first, _ in parts] == [0, *(end for _, end in parts[:-1])]
        assert parts[-1][1] == num_rows
        sizes = [end - first for first, end in parts]
        assert max(sizes) <= int8._TOKENS_AT_ONCE
        assert max(sizes) - min(sizes[:-1], default=max(sizes)) <= int8._GROUP
        assert min(sizes) > 0
    for lengths in (LENGTHS, (9,) * 31, (1, 500), (3,)):
        starts = np.cumsum([0, *lengths])
        places = int8._cut_by_cost(starts, 4, num_threads)
        assert (places[0], places[-1]) == (0, 4 * len(lengths))
        assert (np.diff(places) >= 0).all()
        costs = np.repeat([length * (length + int8._COST_OF_TOKEN) for length in lengths], 4)
        each = [costs[first:end].sum() for first, end in itertools.pairwise(places)]
        assert max(each) <= costs.sum() / len(each) + costs.max()


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
