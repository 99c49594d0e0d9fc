"""The encoder against a float64 transcription, packed against one by one, and what each direction may see."""

import bert_reference as reference
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_nets import filled, random_texts, small_config, small_net

from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.layers import dropped, freeze, initialise, sinusoids

DIRECTIONS = ("both", "left_to_right", "right_to_left")
LENGTHS = st.lists(st.integers(0, 16), min_size=1, max_size=6)


@st.composite
def configs(draw):
    heads = draw(st.integers(1, 4))
    return small_config(
        vocab_size=draw(st.integers(2, 50)),
        hidden_size=heads * draw(st.integers(8, 18)),
        num_attention_heads=heads,
        num_hidden_layers=draw(st.integers(0, 3)),
        intermediate_size=draw(st.integers(1, 40)),
        type_vocab_size=draw(st.integers(1, 3)),
        hidden_act=draw(st.sampled_from(["gelu", "gelu_new", "relu"])),
        layer_norm_eps=draw(st.sampled_from([1e-12, 1e-5, 0.1])),
        direction=draw(st.sampled_from(DIRECTIONS)),
        positions=draw(st.sampled_from(["learned", "sinusoidal"])),
    )


def close(got, expected, tolerance=1e-5):
    expected = torch.as_tensor(expected)
    torch.testing.assert_close(got.double(), expected.double(), atol=tolerance, rtol=tolerance)


@settings(max_examples=50, deadline=None)
@given(
    configs(), LENGTHS, st.integers(0, 99), st.sampled_from([(torch.float32, 0.1, 1e-5), (torch.float64, 0.5, 1e-9)])
)
@torch.no_grad()
def test_every_layer_equals_the_reference_in_float64(config, lengths, seed, precision):
    """N1: in fp32, and with larger weights in double precision, where rounding hides nothing."""
    dtype, std, tolerance = precision
    net = filled(Bert(config, {"mlm": 0}), std, seed).to(dtype)
    ids, segment_ids = random_texts(lengths, config, seed)
    tokens = pack(ids, segment_ids)
    encoded = net.encode(tokens, hidden=True)
    w = reference.weights_of(net)
    each = [reference.hidden_states(w, config, *text) for text in zip(ids, segment_ids, strict=True)]
    every = np.concatenate(each, axis=1)
    close(torch.stack(encoded.all_hidden), every, tolerance)
    close(net(tokens), encoded.hidden_TD, 0)
    close(encoded.all_hidden[-1], encoded.hidden_TD, 0)
    logits = net.heads["mlm"](encoded.hidden_TD, net.embeddings.token.weight)
    close(logits, reference.mlm_logits(w, config, every[-1]), tolerance)
    if sum(lengths):
        full = [place for place, length in enumerate(lengths) if length]
        firsts = np.stack([each[place][-1, 0] for place in full])
        close(net.pooled(encoded.hidden_TD, tokens.packing)[full], reference.pooled(w, firsts), tolerance)


@settings(max_examples=30, deadline=None)
@given(configs(), st.integers(1, 12), st.integers(0, 99))
@torch.no_grad()
def test_each_module_alone_equals_the_reference(config, length, seed):
    """N1."""
    net = filled(Bert(config), 0.1, seed)
    w = reference.weights_of(net)
    (ids,), (segment_ids,) = random_texts([length], config, seed)
    tokens = pack([ids], [segment_ids])
    close(net.embeddings(tokens), reference.embeddings(w, config, ids, segment_ids))
    x = torch.randn(length, config.hidden_size, generator=torch.Generator().manual_seed(seed))
    if config.direction != "right_to_left":  # whose blocks get their rows the other way round
        for layer, block in enumerate(net.blocks):
            close(block(x, tokens.packing), reference.block(w, config, layer, x.double().numpy()))


@settings(max_examples=50, deadline=None)
@given(LENGTHS, st.sampled_from(DIRECTIONS), st.integers(0, 9))
@torch.no_grad()
def test_packed_texts_equal_each_text_alone(lengths, direction, seed):
    """N3: with empty texts, texts of one token, equal and unsorted lengths."""
    net = small_net(direction=direction, seed=seed)
    ids, segment_ids = random_texts(lengths, net.config, seed)
    alone = [net(pack([text], [segments])) for text, segments in zip(ids, segment_ids, strict=True)]
    close(net(pack(ids, segment_ids)), torch.cat(alone))


@pytest.mark.parametrize(
    "lengths", [[], [0], [0, 0], [1], [1, 1, 1], [0, 3, 0], [5, 5, 5], [7, 2, 7, 1, 0], [0, 16, 0]]
)
@pytest.mark.parametrize("direction", DIRECTIONS)
@torch.no_grad()
def test_odd_batches_keep_their_shape_and_their_neighbours(lengths, direction):
    """N3."""
    net = small_net(direction=direction)
    ids, segment_ids = random_texts(lengths, net.config)
    tokens = pack(ids, segment_ids)
    encoded = net.encode(tokens, hidden=True, attentions=True)
    assert encoded.hidden_TD.shape == (sum(lengths), 24)
    assert [[tuple(each.shape) for each in layer] for layer in encoded.attentions] == [[(3, n, n) for n in lengths]] * 2
    alone = [net(pack([text], [segments])) for text, segments in zip(ids, segment_ids, strict=True)]
    close(encoded.hidden_TD, torch.cat([torch.empty(0, 24), *alone]))


@pytest.mark.parametrize("padding", [0, 1, 7, 64])
@torch.no_grad()
def test_a_long_neighbour_changes_nothing(padding):
    """N3: what would be padding elsewhere is a neighbour here."""
    net = small_net(max_position_embeddings=80)
    (text, _), segment_ids = random_texts([9, 9 + padding], net.config)
    both, _ = random_texts([9, 9 + padding], net.config)
    close(net(pack(both, segment_ids))[:9], net(pack([text], segment_ids[:1])))


@pytest.mark.parametrize(("direction", "sees_before", "sees_after"),
                         [("both", 1, 1), ("left_to_right", 1, 0), ("right_to_left", 0, 1)])  # fmt: skip
@torch.no_grad()
def test_a_token_sees_only_what_its_direction_shows(direction, sees_before, sees_after):
    """Each token of a text is exchanged, and who notices is who may see it, in a batch of unsorted lengths."""
    net = small_net(direction=direction)
    ids, segment_ids = random_texts([6, 9, 3], net.config)
    before = net(pack(ids, segment_ids))
    for place in range(9):
        changed = [ids[0], [*ids[1]], ids[2]]
        changed[1][place] = (ids[1][place] + 1) % net.config.vocab_size
        moved = (net(pack(changed, segment_ids)) - before).abs().amax(-1)
        assert not moved[:6].any()
        assert not moved[15:].any()
        assert moved[6 + place] > 1e-3
        assert bool(moved[6 + place + 1 : 15].any()) == bool(sees_before and place < 8)
        assert bool(moved[6 : 6 + place].any()) == bool(sees_after and place > 0)


@torch.no_grad()
def test_right_to_left_is_left_to_right_on_the_reversed_text():
    forwards, backwards = small_net(direction="left_to_right"), small_net(direction="right_to_left")
    for net in (forwards, backwards):
        net.embeddings.position.weight.zero_()  # positions would tell the two apart
    ids, segment_ids = random_texts([5, 1, 8, 0, 5], forwards.config)
    reversed_hidden = forwards(pack([text[::-1] for text in ids], [text[::-1] for text in segment_ids]))
    expected = [part.flip(0) for part in reversed_hidden.split([5, 1, 8, 0, 5])]
    close(backwards(pack(ids, segment_ids)), torch.cat(expected))


@pytest.mark.parametrize("direction", DIRECTIONS)
@torch.no_grad()
def test_attention_weights_are_shares_and_make_the_blocks_output(direction):
    net = small_net(direction=direction)
    ids, segment_ids = random_texts([4, 7], net.config)
    encoded = net.encode(pack(ids, segment_ids), hidden=True, attentions=True)
    w = reference.weights_of(net)
    for layer in range(2):
        for number, rows in enumerate(encoded.all_hidden[layer].split([4, 7])):
            weights = encoded.attentions[layer][number]
            close(weights.sum(-1), torch.ones(3, len(rows)))
            attended, expected = reference.attention(w, net.config, layer, rows.double().numpy())
            close(weights, expected)
            values = net.blocks[layer].project(rows)[:, 2].transpose(0, 1)
            close((weights @ values).transpose(0, 1).flatten(1), attended)


def test_dropout_acts_in_training_only_and_on_every_sublayer():
    heads = {"mlm": 0, "nsp": 2, "classify": 3, "choose": 1, "tag": 4, "span": 2}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    tokens = pack(*random_texts([9, 5], small_config()))
    expected = small_net()(tokens)
    assert torch.equal(small_net(heads).train(False)(tokens), expected)
    assert torch.equal(small_net(**none).train()(tokens), expected)
    for only in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        net = small_net(**(none | {only: 0.5})).train()
        torch.manual_seed(0)
        assert (net(tokens) - expected).abs().mean() > 0.05
    net = small_net(heads, hidden_dropout_prob=0.5, attention_probs_dropout_prob=0.0).train()
    zeros = {name: bool((head(torch.ones(64, 24)) - head.eval()(torch.ones(64, 24))).abs().max() > 1e-4)
             for name, head in net.heads.items() if name != "mlm"}  # fmt: skip
    assert zeros == {"nsp": False, "classify": True, "choose": True, "tag": True, "span": False}  # as in the original


def test_dropout_follows_the_embeddings_and_both_parts_of_every_block(monkeypatch):
    counts = []

    def counted(x, share):
        counts.append(share)
        return dropped(x, share)

    monkeypatch.setattr("bertworks.nn.layers.dropped", counted)
    net = small_net(num_hidden_layers=3, hidden_dropout_prob=0.25).train()
    net(pack(*random_texts([4], net.config)))
    assert counts == [0.25] * (1 + 2 * 3)
    net.eval()(pack(*random_texts([4], net.config)))
    assert len(counts) == 1 + 2 * 3


@pytest.mark.parametrize("name", ["mlm", "tag", "span", "nsp", "classify", "choose"])
def test_heads_over_cls_bring_the_pooler_along(name):
    with_pooler = Bert(small_config(), {name: 2}, pooler=False).pooler is not None
    assert with_pooler == (name in ("nsp", "classify", "choose"))


def test_without_segments_their_embeddings_are_zeros_that_are_not_learnt():
    net = Bert(small_config(segments="none"), {"mlm": 0})
    initialise(net, 0.02, seed=0)
    assert not net.embeddings.segment.weight.any()
    assert not net.embeddings.segment.weight.requires_grad
    learned = Bert(small_config(), {"mlm": 0})
    initialise(learned, 0.02, seed=0)
    assert torch.equal(net.embeddings.token.weight, learned.embeddings.token.weight)  # all else begins the same


def test_sinusoidal_positions_are_the_transformers_and_are_not_learnt():
    config = small_config(positions="sinusoidal")
    net, learned = Bert(config), Bert(small_config())
    initialise(net, 0.02, seed=3)
    initialise(learned, 0.02, seed=3)
    table = net.embeddings.position.weight
    expected = [[(np.sin if i % 2 == 0 else np.cos)(p / 10_000 ** (2 * (i // 2) / 24)) for i in range(24)]
                for p in range(16)]  # fmt: skip
    close(table, np.array(expected), 1e-6)
    assert not table.requires_grad
    assert learned.embeddings.position.weight.requires_grad
    others = {name: value for name, value in learned.state_dict().items() if "position" not in name}
    assert all(torch.equal(net.state_dict()[name], value) for name, value in others.items())


@pytest.mark.parametrize("width", [1, 2, 5])
def test_sinusoids_of_any_width(width):
    assert sinusoids(4, width).shape == (4, width)
    assert sinusoids(4, width)[0].tolist() == [0.0 if column % 2 == 0 else 1.0 for column in range(width)]


def test_initial_weights_are_the_originals_and_depend_on_the_seed_alone():
    nets = [Bert(small_config(hidden_size=120, vocab_size=500), {"mlm": 0, "nsp": 2}) for _ in range(3)]
    for net, seed in zip(nets, (1, 1, 2), strict=True):
        torch.manual_seed(id(net) % 1_000)
        initialise(net, 0.02, seed)
    first, again, other = (dict(net.named_parameters()) for net in nets)
    for name, values in first.items():
        assert torch.equal(values, again[name])
        if values.ndim == 1:
            assert (values == (1.0 if name.endswith("norm.weight") else 0.0)).all()
        elif values.numel() > 9_000:
            assert not torch.equal(values, other[name])
            assert values.abs().max() <= 0.04
            assert values.std().item() == pytest.approx(0.02 * 0.8796, rel=0.1)  # of a normal cut at two deviations
            assert abs(values.mean().item()) < 3 * 0.02 / values.numel() ** 0.5


@pytest.mark.parametrize("lengths", [[1], [3, 1, 16, 16], [16] * 40, [0]])
def test_a_frozen_net_gives_the_same(lengths):
    net = small_net(num_hidden_layers=2).eval()
    tokens = pack(*random_texts(lengths, net.config))
    with torch.no_grad():
        expected = net(tokens)
        freeze(net)
        close(net(tokens), expected)
        close(net(tokens), expected)


def test_frozen_layers_still_have_gradients():
    net = small_net(num_hidden_layers=1).eval()
    freeze(net)
    net(pack(*random_texts([5], net.config))).sum().backward()
    assert net.blocks[0].up.weight.grad is not None
