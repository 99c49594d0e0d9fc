"""BiLSTMs over packed tokens give what they give for each text alone; attention and maxima, what a loop gives."""

import pytest
import torch

from bertworks.nn import bilstm
from bertworks.nn.attention import pack_lengths
from bertworks.nn.bilstm import BiLstm, attend_to_partner, initialise_readers, largest, run_lstm, steps_of

WIDTH = 6
LENGTHS = [4, 1, 0, 7, 4, 2]
run_padded = bilstm._run_padded


def features(lengths=LENGTHS, seed=0):
    return torch.randn(sum(lengths), WIDTH, generator=torch.Generator().manual_seed(seed))


def filled(model, seed=1):
    initialise_readers(model, seed)
    return model.eval()


@pytest.mark.parametrize(("cells", "layers"), [(5, 2), (3, 1), (8, 3)])
@torch.no_grad()
def test_packed_texts_equal_each_text_through_a_plain_lstm(cells, layers):
    model = filled(BiLstm(WIDTH, cells, layers))
    got = model(features(), pack_lengths(LENGTHS))
    expected = torch.cat([model.lstm(text)[0] for text in features().split(LENGTHS) if len(text)])
    assert got.shape == (sum(LENGTHS), model.width) == (18, 2 * cells)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("lengths", [[5, 5, 5], [4, 0, 6, 5], LENGTHS, [9, 1, 1, 1, 1]], ids=str)
@pytest.mark.parametrize("projected", [0, 3])
def test_gradients_equal_those_of_each_text_alone(lengths, projected, monkeypatch, recwarn):
    """Those of about the same length are padded on a CPU, which torch trains in a fraction of the time."""
    torch.manual_seed(0)
    padded = []
    monkeypatch.setattr(bilstm, "_run_padded", lambda *given: padded.append(1) or run_padded(*given))
    options = {"proj_size": projected} if projected else {"num_layers": 2, "bidirectional": True}
    lstm, x_TD = torch.nn.LSTM(WIDTH, 5, **options), features(lengths).requires_grad_()
    packing = pack_lengths(lengths)
    got = run_lstm(lstm, x_TD, packing, steps_of(packing))
    assert not recwarn.list
    weights = torch.randn(got.shape)
    own = torch.autograd.grad((got * weights).sum(), [x_TD, *lstm.parameters()])
    expected = torch.cat([lstm(text)[0] for text in x_TD.split(lengths) if len(text)])
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-5)
    plain = torch.autograd.grad((expected * weights).sum(), [x_TD, *lstm.parameters()])
    torch.testing.assert_close(own, plain, atol=1e-5, rtol=1e-5)
    assert bool(padded) == (max(lengths) * sum(map(bool, lengths)) <= 2 * sum(lengths))


def test_the_papers_bilstm_has_768_cells_in_two_layers():
    with torch.device("meta"):
        model = BiLstm(4 * 768)
    assert (model.lstm.hidden_size, model.lstm.num_layers, model.width) == (768, 2, 1_536)


@pytest.mark.parametrize("backwards", [False, True])
def test_steps_take_the_longest_text_first_and_go_back(backwards):
    steps = steps_of(pack_lengths([2, 0, 3]), backwards=backwards)
    assert steps.order_T.tolist() == ([4, 1, 3, 0, 2] if backwards else [2, 0, 3, 1, 4])
    assert steps.order_T[steps.inverse_T].tolist() == [0, 1, 2, 3, 4]
    assert steps.num_active.tolist() == [2, 2, 1]


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


def test_dropout_acts_in_training_alone():
    model, packing = filled(BiLstm(WIDTH, 5)), pack_lengths(LENGTHS)
    assert torch.equal(model(features(), packing), model(features(), packing))
    model.train()
    assert not torch.equal(model(features(), packing), model(features(), packing))


def test_weights_come_from_the_seed_and_forget_gates_begin_open():
    first, same, other = (BiLstm(WIDTH, 5) for _ in range(3))
    for model, seed in ((first, 1), (same, 1), (other, 2)):
        initialise_readers(model, seed)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.lstm.weight_ih_l0, other.lstm.weight_ih_l0)
    assert first.lstm.bias_ih_l1_reverse.tolist() == [0.0] * 5 + [1.0] * 5 + [0.0] * 10
    assert first.lstm.weight_hh_l0.abs().max() <= (6 / (5 + 5)) ** 0.5, "Glorot's bound for a gate of 5 x 5"
