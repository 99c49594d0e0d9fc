"""N6: each optimizer against its formula, number by number in float64; who is decayed; P6; state that comes back."""

import gc
import math

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from bertworks.errors import CorruptFile
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, ElmoConfig, ElmoReaderConfig, GptConfig
from bertworks.nn.elmo import Elmo, ElmoTasks
from bertworks.nn.gpt import Gpt
from bertworks.nn.layers import LayerNorm, Linear
from bertworks.recipe import OptimSettings
from bertworks.train.optim import Optimizer, decayed_names

NAMES = ("adam", "adamw", "lamb")
NUM_STEPS = 100
ELMO_SIZES = {"vocab_size": 9, "num_filters": (2, 2), "projection_size": 4, "cell_size": 8}


class SmallNet(nn.Module):
    """A matrix, a bias and a LayerNorm, and a matrix that no gradient reaches."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        self.dense, self.norm, self.unused = Linear(3, 4), LayerNorm(4, 1e-12), Linear(2, 2)
        generator = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
        self.to(dtype)

    def used(self):
        return {name: p for name, p in self.named_parameters() if not name.startswith("unused")}

    def give_gradients(self, step, scale=1.0):
        """Gradients that depend on the step and on nothing else."""
        generator = torch.Generator().manual_seed(step)
        for number, parameter in enumerate(self.used().values()):
            values = torch.randn(parameter.shape, generator=generator) * scale * 10.0 ** (number - 2)
            parameter.grad = values.to(parameter.dtype)


def rate_of(step):
    return 3e-3 * min(step / 10, 1 - step / 120)


def reference(settings, weights, all_grads, rates):
    """The three formulas over lists of Python numbers, which are float64: {name: (weights, m, v)} after all steps."""
    weights = {name: list(values) for name, values in weights.items()}
    m, v = ({name: [0.0] * len(values) for name, values in weights.items()} for _ in "mv")
    for step, (grads, rate) in enumerate(zip(all_grads, rates, strict=True), start=1):
        norm = math.sqrt(sum(g * g for values in grads.values() for g in values))
        scale = settings.clip / max(norm, settings.clip) if settings.clip else 1.0
        for name, values in weights.items():
            plain = name.endswith("bias") or name.startswith("norm")
            updates = []
            for i, weight in enumerate(values):
                grad = grads[name][i] * scale
                m[name][i] = settings.beta1 * m[name][i] + (1 - settings.beta1) * grad
                v[name][i] = settings.beta2 * v[name][i] + (1 - settings.beta2) * grad * grad
                first, second = m[name][i], v[name][i]
                if settings.name != "adam":
                    first, second = first / (1 - settings.beta1**step), second / (1 - settings.beta2**step)
                decay = 0.0 if plain else settings.weight_decay * weight
                updates.append(first / (math.sqrt(second) + settings.eps) + decay)
            if settings.name == "lamb" and not plain:
                lengths = [math.sqrt(sum(x * x for x in vector)) for vector in (values, updates)]
                ratio = lengths[0] / lengths[1] if all(lengths) else 1.0
                updates = [ratio * update for update in updates]
            weights[name] = [weight - rate * update for weight, update in zip(values, updates, strict=True)]
    return weights, m, v


def run(net, settings, steps=range(NUM_STEPS), optimizer=None, rate=rate_of, reach=0.0):
    optimizer = optimizer or Optimizer(net, settings, reach=reach)
    for step in steps:
        net.give_gradients(step)
        optimizer.step(rate(step), optimizer.gradient_norm())
    return optimizer


def numbers(tensors):
    return {name: tensor.detach().flatten().tolist() for name, tensor in tensors.items()}


def all_gradients(net):
    for step in range(NUM_STEPS):
        net.give_gradients(step)
        yield numbers({name: p.grad for name, p in net.used().items()})


def furthest(ours, theirs):
    """The largest difference in any tensor, as a share of the largest number in it."""
    return max(
        max(abs(a - b) for a, b in zip(ours[name], theirs[name], strict=True)) / max(map(abs, theirs[name]))
        for name in theirs
    )


@pytest.mark.parametrize("clip", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("dtype", "most"), [(torch.float64, 1e-7), (torch.float32, 3e-6)])
def test_a_hundred_steps_follow_the_formula(name, clip, dtype, most):
    """In float64 this is the formula to 1e-7; in float32 a hundred roundings of weights and betas are in it too."""
    settings = OptimSettings(name=name, clip=clip, weight_decay=0.1)
    net = SmallNet(dtype)
    expected = reference(settings, numbers(net.used()), all_gradients(net), map(rate_of, range(NUM_STEPS)))
    state = run(net, settings).state_dict()
    ours = [net.used(), *({n: state[f"{n}.adam_{slot}"] for n in net.used()} for slot in "mv")]
    apart = [furthest(numbers(tensors), theirs) for tensors, theirs in zip(ours, expected, strict=True)]
    print(f"{name} clip {clip} {dtype}: weights {apart[0]:.1e}, m {apart[1]:.1e}, v {apart[2]:.1e}")
    assert max(apart) < most
    assert state["global_step"] == NUM_STEPS


def test_adamw_is_torchs():
    ours, theirs = SmallNet(), SmallNet()
    run(ours, OptimSettings(name="adamw", clip=0.0, weight_decay=0.1), rate=lambda step: 1e-3)
    plain = [p for name, p in theirs.used().items() if name != "dense.weight"]
    groups = [{"params": [theirs.dense.weight], "weight_decay": 0.1}, {"params": plain, "weight_decay": 0.0}]
    torchs = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, fused=True)
    for step in range(NUM_STEPS):
        theirs.give_gradients(step)
        torchs.step()
    assert_equal(dict(theirs.named_parameters()), dict(ours.named_parameters()))


def assert_equal(ours, theirs):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_without_correction_the_first_update_is_small():
    """m / sqrt(v) is (1 - 0.9) / sqrt(1 - 0.999) of the rate, where corrected it is the rate itself."""
    moved = {}
    for name in ("adam", "adamw"):
        net = SmallNet(torch.float64)
        before = net.dense.bias.detach().clone()
        run(net, OptimSettings(name=name, clip=0.0, eps=1e-12), [0], rate=lambda step: 1e-2)
        moved[name] = (net.dense.bias - before).abs().tolist()
    assert moved["adam"] == pytest.approx([1e-2 * 0.1 / math.sqrt(0.001)] * 4)
    assert moved["adamw"] == pytest.approx([1e-2] * 4)


@pytest.mark.parametrize("name", NAMES)
def test_rate_0_fills_the_state_and_changes_no_weight(name):
    """The first update of a warm-up, in the original too."""
    net, before = SmallNet(), SmallNet()
    state = run(net, OptimSettings(name=name), [0], rate=lambda step: 0.0).state_dict()
    assert_equal(dict(net.named_parameters()), dict(before.named_parameters()))
    assert state["dense.weight.adam_m"].abs().min() > 0
    assert state["global_step"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_a_weight_without_gradient_is_neither_moved_nor_decayed(name):
    net, before = SmallNet(), SmallNet()
    state = run(net, OptimSettings(name=name)).state_dict()
    assert torch.equal(net.unused.weight, before.unused.weight)
    assert not state["unused.weight.adam_v"].any()


def test_without_any_gradient_nothing_happens():
    net = SmallNet()
    optimizer = Optimizer(net, OptimSettings())
    assert optimizer.gradient_norm() == 0
    optimizer.step(0.1, optimizer.gradient_norm())
    assert_equal(dict(net.named_parameters()), dict(SmallNet().named_parameters()))


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("clip", [0.0, 1.0])
@pytest.mark.parametrize("reach", [0.0, 2.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_gradient_that_is_not_finite_changes_nothing(name, reach, clip, bad):
    """P6: not the weights, not m and v nor means, not the number of updates; the next one is as if it had not been."""
    net, untouched = SmallNet(), SmallNet()
    settings = OptimSettings(name=name, clip=clip)
    optimizer, other = (run(each, settings, range(3), reach=reach) for each in (net, untouched))
    net.give_gradients(3)
    net.norm.bias.grad[1] = bad
    norm = optimizer.gradient_norm()
    optimizer.step(rate_of(3), norm)
    assert not norm.isfinite()
    for _ in range(2):
        assert_equal(dict(net.named_parameters()), dict(untouched.named_parameters()))
        assert_equal(optimizer.state_dict(), other.state_dict())
        assert (optimizer.idle, optimizer.idle_mean) == (other.idle, other.idle_mean)
        run(net, settings, [4], optimizer)
        run(untouched, settings, [4], other)


@pytest.mark.parametrize(("reach", "every"), [(0.5, 1), (4.0, 1), (30.5, 1), (512.0, 8), (1e6, 8)])
def test_the_mean_of_the_weights_follows_the_formula(reach, every):
    """A plain mean until there were as many updates as it goes over, and then each counts for one part of that many."""
    net, settings = SmallNet(torch.float64), OptimSettings(weight_decay=0.1)
    optimizer, means, idle, idle_mean = Optimizer(net, settings, reach=reach), {}, 1.0, 1.0
    for step in range(1, 52):
        run(net, settings, [step], optimizer)
        idle *= 1 - rate_of(step) * 0.1
        if step % every:
            continue
        share = max(every / step, every / max(1.0, reach))
        idle_mean += share * (idle - idle_mean)
        for name, weight in numbers(dict(net.named_parameters())).items():
            before = means.get(name, weight)
            means[name] = [old + share * (new - old) for old, new in zip(before, weight, strict=True)]
    state = optimizer.state_dict()
    assert furthest(numbers({name: state[f"{name}.mean"] for name in means}), means) < 1e-6
    assert float(optimizer.idle_mean) == pytest.approx(idle_mean, abs=1e-9)
    weights = {name: p.detach().clone() for name, p in net.named_parameters()}
    with optimizer.averaged():
        assert furthest(numbers(dict(net.named_parameters())), means) < 1e-6
        assert float(optimizer.idle) == pytest.approx(idle_mean, abs=1e-9)
    assert_equal(dict(net.named_parameters()), weights)
    assert float(optimizer.idle) == pytest.approx(idle, abs=1e-9)
    assert_equal(optimizer.state_dict(), state)


def test_without_a_mean_the_weights_stay_where_they_are():
    net = SmallNet()
    optimizer = run(net, OptimSettings(), range(3))
    before = {name: p.detach().clone() for name, p in net.named_parameters()}
    with optimizer.averaged():
        assert_equal(dict(net.named_parameters()), before)
    assert not any(name.endswith(".mean") for name in optimizer.state_dict())


def test_the_norm_is_that_of_all_gradients_as_one_vector():
    net = SmallNet(torch.float64)
    net.give_gradients(0)
    every = [g for values in numbers({n: p.grad for n, p in net.used().items()}).values() for g in values]
    assert Optimizer(net, OptimSettings()).gradient_norm().item() == pytest.approx(math.hypot(*every), rel=1e-12)


@pytest.mark.parametrize(("clip", "expected"), [(1.0, 1.0), (0.0, 1_000.0), (500.0, 500.0), (2_000.0, 1_000.0)])
@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_clipped_to_the_bound_and_left_alone_within_it(name, clip, expected):
    net = SmallNet()
    net.dense.bias.grad = torch.tensor([600.0, 0.0, 0.0, -800.0])
    optimizer = Optimizer(net, OptimSettings(name=name, clip=clip))
    norm = optimizer.gradient_norm()
    optimizer.step(1e-3, norm)
    assert norm == 1_000
    m = optimizer.state_dict()["dense.bias.adam_m"] / 0.1
    assert m.tolist() == pytest.approx([0.6 * expected, 0.0, 0.0, -0.8 * expected], rel=1e-6)


def test_lambs_step_is_as_long_as_the_weight_times_the_rate():
    net = SmallNet(torch.float64)
    before = net.dense.weight.detach().clone()
    run(net, OptimSettings(name="lamb"), [0], rate=lambda step: 0.01)
    assert (net.dense.weight - before).norm().item() == pytest.approx(0.01 * before.norm().item())


def test_lamb_moves_a_matrix_of_zeros():
    net = SmallNet()
    net.dense.weight.data.zero_()
    run(net, OptimSettings(name="lamb", eps=1e-12), [0], rate=lambda step: 0.01)
    assert net.dense.weight.abs().flatten().tolist() == pytest.approx([0.01] * 12, rel=1e-3)


SIZES = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8, "vocab_size": 9}


def test_bert_decays_matrices_and_embeddings_alone():
    net = Bert(BertConfig(**SIZES), {"mlm": 0, "nsp": 2})
    assert decayed_names(net) == {
        *(f"embeddings.{kind}.weight" for kind in ("token", "position", "segment")),
        *(f"blocks.0.{part}.weight" for part in ("qkv", "attention_out", "up", "down")),
        *("pooler.weight", "heads.mlm.dense.weight", "heads.nsp.out.weight"),
    }


@pytest.mark.parametrize(
    "make",
    [
        lambda: Bert(BertConfig(**SIZES), {"mlm": 0, "nsp": 2}),
        lambda: Gpt(GptConfig(vocab_size=9, n_embd=8, n_layer=1, n_head=2), {"classify": 2}),
        lambda: Elmo(ElmoConfig(**ELMO_SIZES)),
        lambda: ElmoTasks(ElmoConfig(**ELMO_SIZES), ElmoReaderConfig(pairs=True, num_cells=4), {"classify": 2}),
    ],
)
def test_in_every_network_vectors_are_plain_and_matrices_decayed(make):
    """Where a vector is a bias or in a LayerNorm; ELMo's few layer weights are neither, and the rule decays them."""
    net = make()
    decayed = decayed_names(net)
    assert decayed
    for name, parameter in net.named_parameters():
        assert (name in decayed) == (parameter.ndim > 1 or "mix" in name), name


def test_positions_that_are_not_learnt_have_no_state():
    net = Bert(BertConfig(**SIZES, positions="sinusoidal"))
    assert not any("position" in name for name in Optimizer(net, OptimSettings()).state_dict())


@pytest.mark.parametrize("reach", [0.0, 4.0])
@pytest.mark.parametrize("name", NAMES)
def test_a_state_that_was_saved_goes_on_bit_for_bit(tmp_path, name, reach):
    """P1, of the optimizer: 6 steps, or 3, a file, and 3 more."""
    whole, broken, settings = SmallNet(), SmallNet(), OptimSettings(name=name)
    expected = run(whole, settings, range(6), reach=reach).state_dict()
    save_file(run(broken, settings, range(3), reach=reach).state_dict(), tmp_path / "optimizer.safetensors")
    resumed = Optimizer(broken, settings, reach=reach)
    resumed.load_state_dict(load_file(tmp_path / "optimizer.safetensors"))
    run(broken, settings, range(3, 6), resumed)
    assert_equal(dict(broken.named_parameters()), dict(whole.named_parameters()))
    assert_equal(resumed.state_dict(), expected)


def test_a_loaded_state_is_a_copy():
    optimizer, other = (Optimizer(SmallNet(), OptimSettings()) for _ in range(2))
    state = {name: tensor.clone() + 1 for name, tensor in optimizer.state_dict().items()}
    other.load_state_dict(state)
    state["dense.bias.adam_m"].zero_()
    assert other.state_dict()["dense.bias.adam_m"].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda s: s.pop("dense.bias.adam_v"), "run/optimizer.safetensors has no tensor dense.bias.adam_v"),
        (lambda s: s.pop("global_step"), "has no tensor global_step"),
        (lambda s: s.update({"other.adam_m": torch.zeros(1)}), "a tensor that the network does not know: other.adam_m"),
        (
            lambda s: s.update({"dense.weight.adam_m": torch.zeros(3, 4)}),
            "dense.weight.adam_m is float32 [3, 4], but the network needs float32 [4, 3]",
        ),
        (lambda s: s.update({"norm.bias.adam_v": torch.zeros(4).half()}), "norm.bias.adam_v is float16 [4]"),
    ],
)
def test_a_state_of_another_network_is_refused_by_name_and_changes_nothing(change, said):
    optimizer = Optimizer(SmallNet(), OptimSettings())
    state = {name: tensor + 1 for name, tensor in optimizer.state_dict().items()}
    change(state)
    with pytest.raises(CorruptFile) as caught:
        optimizer.load_state_dict(state, "run/optimizer.safetensors")
    assert said in str(caught.value)
    assert not any(tensor.any() for tensor in optimizer.state_dict().values())


@pytest.fixture
def one_rank():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    gc.collect()  # its threads end here, and not in a forked child, which would wait for them for ever


@pytest.mark.parametrize("name", NAMES)
def test_a_network_spread_by_fsdp_takes_the_same_steps(name, one_rank):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor, distribute_tensor

    whole, spread, settings = SmallNet(), SmallNet(), OptimSettings(name=name)
    expected = run(whole, settings, range(5)).state_dict()
    fully_shard(spread, mesh=init_device_mesh("cpu", (1,)))
    optimizer = Optimizer(spread, settings)
    source = SmallNet()
    for step in range(5):
        source.give_gradients(step)
        for key, parameter in spread.used().items():
            grad = source.get_parameter(key).grad
            parameter.grad = distribute_tensor(grad, parameter.device_mesh, parameter.placements)
        optimizer.step(rate_of(step), optimizer.gradient_norm())
    state = optimizer.state_dict()
    assert isinstance(state["dense.weight.adam_m"], DTensor)
    assert_equal({key: p.full_tensor() for key, p in spread.named_parameters()}, dict(whole.named_parameters()))
    assert_equal({key: getattr(t, "full_tensor", lambda t=t: t)() for key, t in state.items()}, expected)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED ON A GPU: there is none")
@pytest.mark.parametrize("reach", [0.0, 4.0])
@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_on_a_gpu_an_update_waits_for_nothing_and_is_the_cpus(name, reach):
    """P6 there too: the fourth gradient is not finite, and the device alone knows."""
    settings, nets = OptimSettings(name=name), (SmallNet(), SmallNet().cuda())
    optimizers = [Optimizer(net, settings, reach=reach) for net in nets]
    for step in range(20):
        nets[0].give_gradients(step)
        if step == 3:
            nets[0].dense.bias.grad[0] = math.nan
        for key, parameter in nets[0].used().items():
            nets[1].get_parameter(key).grad = parameter.grad.cuda()
        optimizers[0].step(rate_of(step), optimizers[0].gradient_norm())
        torch.cuda.set_sync_debug_mode("error")
        optimizers[1].step(rate_of(step), optimizers[1].gradient_norm())
        torch.cuda.set_sync_debug_mode("default")
    for key, tensor in optimizers[0].state_dict().items():
        torch.testing.assert_close(optimizers[1].state_dict()[key].cpu(), tensor, rtol=1e-5, atol=1e-7)
    for key, parameter in nets[0].named_parameters():
        torch.testing.assert_close(nets[1].get_parameter(key).cpu(), parameter, rtol=1e-5, atol=1e-7)
