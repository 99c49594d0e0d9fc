"""A network's numbers by formula are those of the network that is built."""

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from bertworks.errors import ConfigError, UserError
from bertworks.nn.attention import Tokens, pack_lengths
from bertworks.nn.bert import Bert
from bertworks.nn.config import elmo_preset, gpt_preset, preset
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.planning.costs import network_of
from bertworks.recipe import load_recipe

SIZES = ["tiny", "mini", "small", "medium", "base", "large", "3x768", "6x768x3", "12x1024", "1x32x2", "0x64"]


def recipe(*overrides):
    return load_recipe("base", overrides)


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


@pytest.mark.parametrize("vocab_size", [100, 30_522, 119_547])
@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "ltr", "rtl"])
@pytest.mark.parametrize("size", SIZES)
def test_berts_parameters_are_those_of_the_network_part_by_part(size, objective, vocab_size):
    heads = {"mlm": 0, "nsp": 2} if "nsp" in objective else {"mlm": 0}
    with torch.device("meta"):
        net = Bert(preset(size, vocab_size=vocab_size), heads, pooler="nsp" in objective)
    network = network_of(recipe(f'model.preset="{size}"', f"data.objective={objective}"), vocab_size)
    parts = {"embeddings": count(net.embeddings), "layers": count(net.blocks), "mlm head": count(net.heads["mlm"])}
    if net.pooler is not None:
        parts |= {"pooler": count(net.pooler), "nsp head": count(net.heads["nsp"])}
    assert network.parts == parts
    assert network.num_trained == network.num_parameters == count(net)


@pytest.mark.parametrize("max_positions", [512, 2_048])
def test_sinusoidal_positions_are_parameters_that_are_not_trained(max_positions):
    with torch.device("meta"):
        net = Bert(preset("mini", positions="sinusoidal", max_position_embeddings=max_positions), {"mlm": 0, "nsp": 2})
    changes = ("model.preset=mini", "model.positions=sinusoidal", f"model.max_positions={max_positions}")
    network = network_of(recipe(*changes), 30_522)
    assert network.num_parameters == count(net)
    assert network.num_trained == sum(p.numel() for p in net.parameters() if p.requires_grad)


@pytest.mark.parametrize("max_positions", [512, 1_024])
@pytest.mark.parametrize("size", SIZES)
def test_gpts_parameters_are_those_of_the_network(size, max_positions):
    with torch.device("meta"):
        net = Gpt(gpt_preset(size, vocab_size=40_478, n_positions=max_positions))
    changes = ("model.kind=gpt", "data.objective=ltr", f'model.preset="{size}"', f"model.max_positions={max_positions}")
    network = network_of(recipe(*changes), 40_478)
    assert network.num_parameters == count(net)
    assert network.parts["layers"] == count(net.blocks)


@pytest.mark.parametrize("vocab_size", [1_000, 793_471])
@pytest.mark.parametrize("size", ["original", "medium", "small", "mini"])
def test_elmos_parameters_are_those_of_the_network_part_by_part(size, vocab_size):
    with torch.device("meta"):
        net = Elmo(elmo_preset(size, vocab_size=vocab_size))
    network = network_of(recipe("model.kind=elmo", "data.objective=bilm", f"model.preset={size}"), vocab_size)
    assert network.parts == {
        "characters": count(net.characters),
        "lstms": count(net.from_left) + count(net.from_right),
        "softmax": count(net.softmax),
    }


def sequences(num, length):
    """Some packed sequences of one length."""
    ids = torch.arange(num * length) % 90
    positions = torch.arange(length).repeat(num)
    return Tokens(ids, torch.zeros_like(ids), positions, pack_lengths([length] * num, "cpu"))


def counted(function):
    with FlopCounterMode(display=False) as counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize(("size", "length"), [("2x64", 32), ("3x32x4", 96)])
def test_operations_are_those_that_torch_counts_in_a_forward_pass(size, length):
    net = Bert(preset(size, vocab_size=100), {"mlm": 0}, pooler=False).eval()
    tokens = sequences(5, length)
    masked = torch.arange(0, 5 * length, 8)  # an eighth
    network = network_of(recipe(f"model.preset={size}", "data.objective=mlm", "data.mask_rate=0.125"), 100)

    def forward():
        net.heads["mlm"](net(tokens)[masked], net.embeddings.token.weight)

    assert counted(forward) == pytest.approx(5 * length * network.flops(length) / 3)


def test_operations_of_gpt_are_those_that_torch_counts_but_for_what_lies_ahead():
    net = Gpt(gpt_preset("2x64", vocab_size=100)).eval()
    network = network_of(recipe("model.kind=gpt", "model.preset=2x64", "data.objective=ltr"), 100)
    tokens = sequences(4, 32)
    masked_out = 4 * 32 * network.attention_flops(32)  # torch multiplies both halves, a kernel one
    assert counted(lambda: net.lm_logits(net(tokens))) == pytest.approx(4 * 32 * network.flops(32) / 3 + masked_out)


def test_max_predictions_limits_what_is_scored():
    network = network_of(recipe("data.max_predictions=51"), 30_522)
    assert network.scored_share == pytest.approx(51 / 512)
    assert network_of(recipe("data.max_predictions=500"), 30_522).scored_share == 0.15


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["data.objective=bilm"], "model.kind bert cannot learn data.objective bilm; choose mlm"),
        (["model.kind=gpt"], "choose ltr"),
        (["model.kind=elmo"], "choose bilm"),
        (["data.max_length=600"], "more than model.max_positions"),
        (["model.preset=huge"], "no size is called 'huge'"),
        (["model.kind=elmo", "data.objective=bilm"], "no size of ELMo is called 'base'"),
    ],
)
def test_what_cannot_be_built_is_a_user_error(overrides, said):
    with pytest.raises(UserError, match=said):
        network_of(recipe(*overrides), 30_522)


def test_an_impossible_vocabulary_is_a_user_error():
    with pytest.raises(ConfigError, match="vocab_size: -1 is too small"):
        network_of(recipe(), -1)
