"""Encoders of one direction: what sums up a text has seen all of it, side by side, under a BiLSTM, or alone."""

import pytest
import torch
from small_models import scattered

from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import Compound, final_states, initialise_compound
from bertworks.nn.config import BertConfig, CompoundConfig

SIZES = {"vocab_size": 50, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3,
         "intermediate_size": 40, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
         "attention_probs_dropout_prob": 0.0}  # fmt: skip
LTR = BertConfig(**SIZES, direction="left_to_right", summary="last")
RTL = BertConfig(**SIZES, direction="right_to_left")
BOTH = BertConfig(**SIZES)
KINDS = {
    "bilstm": CompoundConfig(encoders=(LTR,), num_lstm_layers=2, num_cells=10),
    "two": CompoundConfig(encoders=(LTR, RTL)),
    "two and bilstm": CompoundConfig(encoders=(LTR, RTL), num_lstm_layers=1, num_cells=10),
}
LENGTHS = [5, 2, 9, 5, 1]


def texts(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(50, (length,), generator=generator).tolist() for length in lengths]


def changed(sequences, sequence, place):
    """The same texts with another token at a place."""
    copies = [list(one) for one in sequences]
    copies[sequence][place] = (copies[sequence][place] + 1) % 50
    return copies


def small(config, **heads):
    return scattered(Compound(config, heads or {"classify": 3}))


@torch.no_grad()
@pytest.mark.parametrize("config", [LTR, RTL, BOTH], ids=lambda config: config.direction)
def test_every_token_of_a_text_has_an_influence_on_its_summary_and_on_no_other(config):
    net = scattered(Bert(config, {"classify": 3}))
    before = net.pooled_of(pack(texts()))
    for sequence, length in enumerate(LENGTHS):
        for place in range(length):
            moved = (net.pooled_of(pack(changed(texts(), sequence, place))) - before).abs().amax(1)
            assert moved[sequence] > 1e-4
            assert moved.index_fill(0, torch.tensor([sequence]), 0.0).max() < 1e-6


@torch.no_grad()
def test_cls_of_a_left_to_right_model_has_seen_nothing():
    """Why the last token is taken: with the first as its summary all texts that begin alike are the same."""
    net = scattered(Bert(LTR.model_copy(update={"summary": "first"}), {"classify": 3}))
    torch.testing.assert_close(net.pooled_of(pack([[2, 7, 8, 3]])), net.pooled_of(pack([[2, 9, 9, 9, 3]])))


@pytest.mark.parametrize("config", [LTR, RTL, BOTH], ids=lambda config: config.direction)
@pytest.mark.parametrize("summary", ["first", "last"])
def test_the_summary_is_that_row_of_all_and_has_its_gradients(config, summary):
    net = scattered(Bert(config.model_copy(update={"summary": summary}), {"classify": 3})).train()
    tokens, found = pack(texts()), []
    bounds = tokens.packing.cumulative_lengths
    places = bounds[1:] - 1 if summary == "last" else bounds[:-1]
    for rows in (lambda: net(tokens)[places.long()], lambda: net.summary_of(tokens)):
        net.zero_grad()
        values = rows()
        (values * torch.arange(values.numel()).view(values.shape).sin()).sum().backward()
        gradients = [weight.grad for name, weight in net.named_parameters() if name.startswith(("emb", "blocks"))]
        found.append((values.detach(), gradients))
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_every_token_has_an_influence_on_the_summary_of_a_compound(kind):
    net = small(KINDS[kind])
    before = net.pooled_of(pack(texts()))
    for sequence, length in enumerate(LENGTHS):
        for place in range(length):
            moved = (net.pooled_of(pack(changed(texts(), sequence, place))) - before).abs().amax(1)
            assert moved[sequence] > 1e-5
            assert moved.index_fill(0, torch.tensor([sequence]), 0.0).max() < 1e-6


@torch.no_grad()
def test_a_later_token_changes_no_earlier_state_without_a_bilstm_and_all_with_one():
    """Side by side each half has one direction; a BiLSTM lets every token see both sides."""
    plain, lstm = small(KINDS["two"], tag=2), small(KINDS["bilstm"], tag=2)
    one, other = pack([texts()[2]]), pack(changed([texts()[2]], 0, 6))
    moved = (plain(one) - plain(other)).abs()
    assert (moved[:6, :24] == 0).all()
    assert (moved[7:, 24:] == 0).all()
    assert (moved[6:, :24].amax(1) > 1e-4).all()
    assert (moved[:7, 24:].amax(1) > 1e-4).all()
    assert ((lstm(one) - lstm(other)).abs().amax(1) > 1e-6).all()


@torch.no_grad()
def test_tokens_of_two_encoders_are_their_outputs_side_by_side():
    net, tokens = small(KINDS["two"]), pack(texts())
    expected = torch.cat([encoder(tokens) for encoder in net.encoders], 1)
    torch.testing.assert_close(net(tokens), expected, rtol=0, atol=0)


@torch.no_grad()
def test_a_packed_batch_gives_what_each_text_gives_alone():
    for config in KINDS.values():
        net = small(config)
        alone = torch.cat([net.pooled_of(pack([text])) for text in texts()])
        torch.testing.assert_close(net.pooled_of(pack(texts())), alone, rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_the_last_states_are_those_that_torch_returns_as_such():
    """h_n of torch's own LSTM, text by text."""
    net = small(KINDS["two and bilstm"])
    (layer,) = net.bilstm
    for text in texts():
        tokens = pack([text])
        x = torch.cat([encoder(tokens) for encoder in net.encoders], 1)
        _, (states, _) = layer.lstm(x[:, None])
        torch.testing.assert_close(final_states(net(tokens), tokens.packing)[0], states.flatten(), rtol=1e-5, atol=1e-6)


def test_all_parts_learn():
    for config in KINDS.values():
        net = small(config)
        net.train().scores("classify", net.pooled_of(pack(texts()))).sum().backward()
        unmoved = [name for name, weight in net.named_parameters() if weight.grad is None or not weight.grad.any()]
        assert unmoved == []


def test_a_seed_decides_all_weights_and_lstms_begin_with_open_forget_gates():
    first, same, other = (Compound(KINDS["two and bilstm"], {"tag": 2}) for _ in range(3))
    for net, seed in ((first, 1), (same, 1), (other, 2)):
        initialise_compound(net, seed)
    drawn = {name: weight for name, weight in first.named_parameters() if weight.ndim > 1}
    for name, weight in drawn.items():
        assert torch.equal(weight, same.get_parameter(name))
        assert not torch.equal(weight, other.get_parameter(name)), name
    bias = first.bilstm[0].lstm.bias_ih_l0
    assert bias.sum() == 10  # the forget gate's of ten cells
    assert not torch.equal(first.encoders[0].blocks[0].up.weight, first.encoders[1].blocks[0].up.weight)


def test_encoders_drop_different_places():
    """Of two equal encoders that get one seed: their masks must not be the same."""
    noisy = LTR.model_copy(update={"hidden_dropout_prob": 0.5})
    net = small(CompoundConfig(encoders=(noisy, noisy)), tag=2).train()
    net.encoders[1].load_state_dict(net.encoders[0].state_dict())
    tokens = pack(texts())._replace(dropout_seed=torch.tensor(5, dtype=torch.int32))
    found = net(tokens)
    torch.testing.assert_close(found, net(tokens), rtol=0, atol=0)
    assert (found[:, :24] != found[:, 24:]).float().mean() > 0.5
