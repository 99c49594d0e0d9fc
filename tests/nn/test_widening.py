"""A widened network gives what the narrow one gives, nearly so with the noise by which its copies differ."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import filled, random_texts, small_config, small_net

import bertworks as bw
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.train.warm_start import can_widen, widened, wider

HEADS = {"mlm": 0, "nsp": 2, "classify": 3, "tag": 4, "span": 2}
TEXTS = [5, 1, 9, 16]
IN_COLUMNS = {"rows": 0.0, "table": 0.0}  # which no result shows
LONG_TEXT = """The river is cold in winter, and the people of the town cross it on a bridge of stone. In the morning
they go to the market to buy bread and fish, and in the evening they come back to their houses and sit by the fire."""


def widened_net(net, factor, seed=0, noise=IN_COLUMNS):
    wide = Bert(wider(net.config, factor), {name: HEADS[name] for name in net.heads}, pooler=net.pooler is not None)
    wide.load_state_dict(widened(dict(net.named_parameters()), factor, seed, **noise))
    return wide.eval()


def close(got, expected, tolerance=2e-5):
    torch.testing.assert_close(got, expected, atol=tolerance, rtol=tolerance)


@st.composite
def nets(draw):
    heads = draw(st.integers(1, 3))
    config = small_config(
        hidden_size=heads * draw(st.integers(4, 10)),
        num_attention_heads=heads,
        num_hidden_layers=draw(st.integers(0, 3)),
        intermediate_size=draw(st.integers(1, 40)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu"])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 0.1])),
        direction=draw(st.sampled_from(["both", "left_to_right", "right_to_left"])),
    )
    return filled(Bert(config, HEADS), 0.1, draw(st.integers(0, 99)))


@settings(max_examples=50, deadline=None)
@given(nets(), st.integers(2, 4), st.integers(0, 99))
@torch.no_grad()
def test_every_layer_and_every_head_gives_what_the_narrow_one_gives(net, factor, seed):
    wide = widened_net(net, factor, seed)
    tokens = pack(*random_texts(TEXTS, net.config, seed))
    narrow_hidden, wide_hidden = (of.encode(tokens, hidden=True).all_hidden for of in (net, wide))
    for narrow_TD, wide_TD in zip(narrow_hidden, wide_hidden, strict=True):
        close(wide_TD, narrow_TD.repeat(1, factor))
    pooled, wide_pooled = (of.pooled_of(tokens) for of in (net, wide))
    close(wide_pooled, pooled.repeat(1, factor))
    for head in ("nsp", "classify"):
        close(wide.scores(head, wide_pooled), net.scores(head, pooled))
    for head in ("tag", "span"):
        close(wide.scores(head, wide_hidden[-1]), net.scores(head, narrow_hidden[-1]))
    logits, wide_logits = (
        of.heads["mlm"](hidden[-1], of.embeddings.token.weight)
        for of, hidden in ((net, narrow_hidden), (wide, wide_hidden))
    )
    close(wide_logits, logits)


@torch.no_grad()
def test_attention_is_that_of_the_narrow_heads():
    net = small_net()
    tokens = pack(*random_texts(TEXTS, net.config))
    narrow, wide = (of.encode(tokens, attentions=True).attentions for of in (net, widened_net(net, 2)))
    for layer, wide_layer in zip(narrow, wide, strict=True):
        for weights_NLL, wide_NLL in zip(layer, wide_layer, strict=True):
            close(wide_NLL, weights_NLL.repeat(2, 1, 1))


@torch.no_grad()
def test_with_its_noise_a_model_guesses_much_as_before():
    """Every third piece of a text is masked; what the narrow network says of them diverges little from the wide one."""
    mini = bw.load("mini", device="cpu")
    weights = {name: weight.detach() for name, weight in mini.net.named_parameters()}
    wide = Bert(wider(mini.net.config, 2), {"mlm": 0, "nsp": 2}).eval()
    wide.load_state_dict(widened(weights, 2, 0))
    ids = mini.encode([LONG_TEXT])[0].ids
    masked = list(range(3, len(ids) - 1, 3))
    for place in masked:
        ids[place] = mini.tokenizer.id_of("[MASK]")
    tokens = mini.pack([ids], [[0] * len(ids)])
    narrow_MV = mini.mlm_logits(mini.net(tokens)[masked]).log_softmax(-1)
    wide_MV = wide.heads["mlm"](wide(tokens)[masked], wide.embeddings.token.weight).log_softmax(-1)
    divergence = (narrow_MV.exp() * (narrow_MV - wide_MV)).sum(-1).mean()
    assert 0.001 < float(divergence) < 0.18


def noise_of(wide, even):
    """Return the noise and its size as a share of what it was added to."""
    noise = wide - even
    return noise, float(noise.square().mean().sqrt() / even.square().mean().sqrt())


@pytest.mark.parametrize("factor", [2, 3])
@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("blocks.0.up.weight", 0.25),
        ("blocks.0.qkv.weight", 0.25),
        ("pooler.weight", 0.25),
        ("blocks.0.attention_out.weight", 0.56),
        ("blocks.1.down.weight", 0.56),
        ("embeddings.token.weight", 0.5),
    ],
)
def test_the_noise_is_a_share_of_what_it_is_added_to(factor, name, share):
    """In the layers that are added to the stream there is that of rows and of columns, 0.25 and 0.5."""
    weights = {name: weight.detach() for name, weight in small_net({"nsp": 2}).named_parameters()}
    noise, found = noise_of(
        widened(weights, factor, 0)[name], widened(weights, factor, 0, columns=0, rows=0, table=0)[name]
    )
    assert found == pytest.approx(share, rel=0.08)
    by_copy = noise.view(len(noise), factor, -1)
    if "embeddings" in name or share == 0.25:
        assert float(by_copy.sum(1).abs().max()) < 1e-6
    else:
        assert float(noise.view(factor, len(noise) // factor, factor, -1).sum((0, 2)).abs().max()) < 1e-6


def test_the_norm_of_embeddings_makes_up_for_the_noise():
    """What the three tables add up to has as much variance behind the norm as before."""
    net = small_net()
    tokens = pack(*random_texts([16] * 40, net.config))
    with torch.no_grad():
        narrow_TD, wide_TD = (
            of.embeddings(tokens) - of.embeddings.norm.bias for of in (net, widened_net(net, 2, noise={}))
        )
    halves_TkD = wide_TD.view(len(wide_TD), 2, -1)
    assert float(halves_TkD.mean(1).std()) == pytest.approx(float(narrow_TD.std()), rel=0.02)


def test_copies_part_in_two_steps():
    """Were columns divided evenly, every gradient of a copy would be that of the other, and they would stay copies.

    In the first step those of the masked-word head still are: they are compared with copies, whose gradients differ.
    """
    net = widened_net(small_net(HEADS), 2)  # by its columns alone; in evaluation mode, for dropout would part them too
    begun = {name: parameter.detach().clone() for name, parameter in net.named_parameters()}
    tokens, optimizer = pack(*random_texts(TEXTS, net.config)), torch.optim.SGD(net.parameters(), lr=1e-4)
    for _ in range(2):
        optimizer.zero_grad()
        logits = net.heads["mlm"](net(tokens), net.embeddings.token.weight)
        (logits.logsumexp(-1).sum() + net.scores("nsp", net.pooled_of(tokens)).square().sum()).backward()
        optimizer.step()
    width = net.config.hidden_size // 2
    for name in ("embeddings.token.weight", "embeddings.position.weight", "embeddings.norm.weight",
                 "blocks.0.attention_out.bias", "blocks.0.attention_norm.bias", "blocks.1.down.bias",
                 "blocks.1.norm.weight", "heads.mlm.dense.bias", "heads.mlm.norm.weight", "pooler.bias"):  # fmt: skip
        moved, least = net.get_parameter(name).detach() - begun[name], 1e-4 if name.startswith("heads.") else 0.1
        assert float((moved[..., :width] - moved[..., width:]).norm()) > least * float(moved.norm()), name


def test_the_seed_decides_and_nothing_else():
    weights = dict(small_net({"mlm": 0}).named_parameters())
    one, same, other = (widened(weights, 2, seed) for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in weights)
    assert not torch.equal(one["blocks.0.up.weight"], other["blocks.0.up.weight"])


def test_half_precision_is_widened_in_full():
    weights = {name: weight.detach() for name, weight in small_net({"mlm": 0}).named_parameters()}
    half = {name: weight.bfloat16() for name, weight in weights.items()}
    full = {name: weight.float() for name, weight in half.items()}
    found, expected = widened(half, 2, 0), widened(full, 2, 0)
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    assert {weight.dtype for weight in found.values()} == {torch.float32}


def test_what_cannot_be_widened_is_known():
    assert can_widen(small_config())
    assert not can_widen(small_config(positions="sinusoidal"))
