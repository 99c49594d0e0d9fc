"""BiLSTMs over packed tokens give what they give for each text alone, and so does the reader of pairs."""

import pytest
import torch
import torch.nn.functional as F

from bertworks.nn.bilstm import BiLstm, ElmoReader, attend_to_partner, initialise_readers, largest
from bertworks.nn.packing import pack_lengths
from bertworks.nn.recurrent import steps_of

WIDTH = 6
LENGTHS = [4, 1, 0, 7, 4, 2]


def features(lengths=LENGTHS, seed=0):
    return torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed))


def filled(model, seed=1):
    initialise_readers(model, seed)
    return model.eval()


def reader(pairs, **changes):
    return filled(ElmoReader(3, WIDTH, 4, pairs=pairs, **{"num_cells": 5, "num_hidden": 8, **changes}))


@pytest.mark.parametrize(("cells", "layers"), [(5, 2), (3, 1), (8, 3)])
@torch.no_grad()
def test_packed_texts_equal_each_text_through_a_plain_lstm(cells, layers):
    model = filled(BiLstm(WIDTH, cells, layers))
    got = model(features(), pack_lengths(LENGTHS))
    expected = torch.cat([model.lstm(text)[0] for text in features().split(LENGTHS) if len(text)])
    assert got.shape == (sum(LENGTHS), model.width) == (18, 2 * cells)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


def test_the_papers_bilstm_has_768_cells_in_two_layers():
    with torch.device("meta"):
        model = BiLstm(4 * 768)
    assert (model.lstm.hidden_size, model.lstm.num_layers, model.width) == (768, 2, 1_536)


@pytest.mark.parametrize("backwards", [False, True])
def test_steps_take_the_longest_text_first_and_go_back(backwards):
    steps = steps_of(pack_lengths([2, 0, 3]), backwards=backwards)
    assert steps.order_T.tolist() == ([4, 1, 3, 0, 2] if backwards else [2, 0, 3, 1, 4])
    assert steps.order_T[steps.inverse_T].tolist() == [0, 1, 2, 3, 4]
    assert steps.num_going_on.tolist() == [2, 2, 1]


@torch.no_grad()
def test_a_batch_without_tokens_has_no_output():
    assert filled(BiLstm(WIDTH, 5))(features([]), pack_lengths([0, 0])).shape == (0, 10)


@torch.no_grad()
def test_attention_gathers_the_other_text_as_a_loop_does():
    x, lengths = features(), [4, 1, 5, 2, 3, 3]
    got = attend_to_partner(x, pack_lengths(lengths))
    texts = x.split(lengths)
    expected = []
    for row, text in enumerate(texts):
        partner = texts[row + 1 if row % 2 == 0 else row - 1]
        expected.append(torch.softmax(text.double() @ partner.double().T, 1) @ partner.double())
    torch.testing.assert_close(got.double(), torch.cat(expected), atol=1e-5, rtol=1e-5)


def test_a_text_without_tokens_gives_zeros_and_no_nan():
    x = features([3, 0]).requires_grad_()
    packing = pack_lengths([3, 0])
    attended = attend_to_partner(x, packing)
    pooled = largest(x, packing)
    assert torch.equal(attended, torch.zeros(3, WIDTH))
    assert torch.equal(pooled, torch.stack([x.amax(0), torch.zeros(WIDTH)]))
    (attended.sum() + pooled.sum()).backward()
    assert torch.isfinite(x.grad).all()


@torch.no_grad()
def test_the_largest_values_are_those_of_each_text():
    got = largest(features() - 5, pack_lengths(LENGTHS))
    expected = [text.amax(0) if len(text) else torch.zeros(WIDTH) for text in (features() - 5).split(LENGTHS)]
    assert torch.equal(got, torch.stack(expected))


@pytest.mark.parametrize("pairs", [False, True])
@torch.no_grad()
def test_scores_do_not_depend_on_batch_neighbours(pairs):
    model, lengths = reader(pairs), [4, 1, 5, 2, 3, 3]
    layers = [features(seed=seed) for seed in range(3)]
    together = model(layers, pack_lengths(lengths))
    group = 2 if pairs else 1
    assert together.shape == (6 // group, 4)
    first = 0
    for row in range(0, 6, group):
        end = first + sum(lengths[row : row + group])
        alone = model([layer[first:end] for layer in layers], pack_lengths(lengths[row : row + group]))
        torch.testing.assert_close(together[row // group], alone[0], atol=1e-5, rtol=1e-5)
        first = end


def gathered(text, other):
    return torch.cat([text, torch.softmax(text @ other.T, 1) @ other], 1)


@torch.no_grad()
def test_a_pair_is_scored_as_the_paper_has_it():
    """Two BiLSTMs with attention in between, the largest values, [u; v; |u - v|; u * v]: step by step, one pair."""
    model, layers = reader(pairs=True), [features([4, 5], seed) for seed in range(3)]
    first, second = (model.reader.lstm(text)[0] for text in (sum(layers) / 3).split([4, 5]))
    u = model.pair_reader.lstm(gathered(first, second))[0].amax(0)
    v = model.pair_reader.lstm(gathered(second, first))[0].amax(0)
    expected = model.out(torch.tanh(model.hidden(torch.cat([u, v, (u - v).abs(), u * v]))))
    torch.testing.assert_close(model(layers, pack_lengths([4, 5]))[0], expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pairs", [False, True])
def test_every_weight_gets_a_gradient_and_a_few_steps_learn(pairs):
    torch.manual_seed(0)
    model, packing = reader(pairs).train(), pack_lengths([4, 1, 5, 2, 3, 3])
    layers = [features(seed=seed) for seed in range(3)]
    classes = torch.tensor([0, 3, 1]) if pairs else torch.tensor([0, 3, 1, 2, 2, 0])
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for _ in range(40):
        loss = F.cross_entropy(model(layers, packing), classes)
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_dropout_acts_in_training_alone():
    model, packing = filled(BiLstm(WIDTH, 5)), pack_lengths(LENGTHS)
    assert torch.equal(model(features(), packing), model(features(), packing))
    model.train()
    assert not torch.equal(model(features(), packing), model(features(), packing))


def test_weights_come_from_the_seed_and_forget_gates_begin_open():
    first, same, other = (ElmoReader(3, WIDTH, 4, pairs=True, num_cells=5) for _ in range(3))
    for model, seed in ((first, 1), (same, 1), (other, 2)):
        initialise_readers(model, seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.out.weight, other.out.weight)
    lstm = first.reader.lstm
    assert lstm.bias_ih_l1_reverse.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
    assert lstm.weight_hh_l0.abs().max() <= (6 / (5 + 5)) ** 0.5, "Glorot's bound for a gate of 5 x 5"


def test_names_of_weights_are_stable():
    """A saved reader opens later: these names are its file format."""
    names = set(reader(pairs=True).state_dict())
    assert {"mix.weights", "mix.gamma", "hidden.weight", "out.bias"} < names
    assert {"reader.lstm.weight_ih_l1_reverse", "pair_reader.lstm.weight_hh_l0"} < names
    assert len(names) == 2 + 4 + 16 + 8
