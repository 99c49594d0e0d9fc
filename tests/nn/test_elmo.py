"""ELMo reads words by their characters and texts from both ends, and its sampled softmax stands for the full one."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from bertworks.config import validate
from bertworks.errors import ConfigError, UserError
from bertworks.nn.attention import pack
from bertworks.nn.bilstm import ScalarMix
from bertworks.nn.config import ElmoConfig, elmo_preset
from bertworks.nn.elmo import PADDING, Elmo, WordSoftmax, draw_sample, initialise_elmo, log_expected

NUM_WORDS = 60
BEGIN_OF_WORD, END_OF_WORD = 259, 260  # as the authors of ELMo number characters
TEXTS = [[5, 6, 7, 8, 9, 10, 11, 5], [3], [], [50, 2, 2, 40], [1, 0, 59, 4, 4, 4, 1, 20]]


def small(**changes):
    sizes = {"num_filters": (3, 4, 5), "char_embedding_size": 6, "projection_size": 7, "cell_size": 9}
    return ElmoConfig(**{"vocab_size": NUM_WORDS, **sizes, **changes})


def spelled(word):
    inside = [BEGIN_OF_WORD, *(byte + 1 for byte in word.encode()), END_OF_WORD]
    return inside + [PADDING] * (50 - len(inside))


def table_of_words():
    """Words of one to 48 letters, as a table of 16-bit ids."""
    rng = np.random.default_rng(7)
    words = ["".join(rng.choice(list("abcé"), rng.integers(1, 12))) for _ in range(NUM_WORDS - 1)]
    return torch.from_numpy(np.array([spelled(word) for word in [*words, "z" * 48]], np.uint16))


def made(config=None, seed=3):
    """A model whose weights are so large that mistakes show."""
    model = Elmo(config or small(), characters_VK=table_of_words())
    initialise_elmo(model, seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith(("characters.filters", "from_")):
                parameter.mul_(2)
    return model.eval()


def reference_word(encoder, characters):
    """The character encoder in float64 numpy, one word, all of its 50 characters."""
    weights = {name: values.double().numpy() for name, values in encoder.state_dict().items()}
    x = weights["embedding.weight"][characters]
    answers = []
    for number in range(len(encoder.filters)):
        kernel, bias = weights[f"filters.{number}.weight"], weights[f"filters.{number}.bias"]
        width = kernel.shape[2]
        windows = np.stack([x[first : first + width].T for first in range(len(x) - width + 1)])
        answers.append(np.maximum((np.einsum("wek,fek->wf", windows, kernel) + bias).max(0), 0))
    y = np.concatenate(answers)
    for number in range(len(encoder.highways)):
        gate_in, change_in = (
            weights[f"highways.{number}.{part}.weight"] @ y + weights[f"highways.{number}.{part}.bias"]
            for part in ("gate", "change")
        )
        gate = 1 / (1 + np.exp(-gate_in))
        y = gate * np.maximum(change_in, 0) + (1 - gate) * y
    return weights["projection.weight"] @ y + weights["projection.bias"]


@torch.no_grad()
def test_character_encoder_equals_a_float64_reference():
    encoder, table = made().characters, table_of_words()
    got = encoder.words(torch.arange(NUM_WORDS), table).numpy()
    expected = np.stack([reference_word(encoder, row.numpy().astype(np.int64)) for row in table])
    np.testing.assert_allclose(got, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_padding_counts_as_in_a_full_word_however_little_of_it_is_read():
    """A filter that likes padding best answers the same for a short word alone and beside the longest one."""
    encoder, table = made().characters, table_of_words()
    encoder.embedding.weight[PADDING] = 3.0
    for conv in encoder.filters:
        conv.weight.abs_()
    short = int((table != PADDING).sum(1).argmin())
    got = encoder.words(torch.tensor([short]), table)[0].numpy()
    np.testing.assert_allclose(got, reference_word(encoder, table[short].long().numpy()), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_repeated_words_are_read_alike_and_by_id_as_by_characters():
    model, table, tokens = made(), table_of_words(), pack(TEXTS)
    by_id = model(tokens)
    by_characters = model.read(table[tokens.token_ids.tolist()], tokens.packing)
    for ours, theirs in zip(by_id, by_characters, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert torch.equal(by_id[0][0], by_id[0][7]), "word 5 stands at both places"


@torch.no_grad()
def test_layers_equal_plain_lstms_over_each_text_alone():
    model, table = made(), table_of_words()
    layers = model(pack(TEXTS))
    expected = [[] for _ in layers]
    for text in filter(None, TEXTS):
        words = model.characters.words(torch.tensor(text), table)
        left = model.from_left[0](words)[0]
        right = model.from_right[0](words.flip(0))[0]
        second_left = model.from_left[1](left)[0] + left
        second_right = model.from_right[1](right)[0] + right
        for layer, halves in zip(expected, [(words, words), (left, right.flip(0))], strict=False):
            layer.append(torch.cat(halves, 1))
        expected[2].append(torch.cat([second_left, second_right.flip(0)], 1))
    for got, texts in zip(layers, expected, strict=True):
        torch.testing.assert_close(got, torch.cat(texts), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_neither_direction_sees_what_the_other_reads():
    model = made()
    place, width = 4, model.config.projection_size
    changed = [[*TEXTS[0][:place], 33, *TEXTS[0][place + 1 :]], *TEXTS[1:]]
    num_words = len(TEXTS[0])
    for before, after in list(zip(model(pack(TEXTS)), model(pack(changed)), strict=True))[1:]:
        differs = (before != after)[:num_words]
        left, right = differs[:, :width].any(1), differs[:, width:].any(1)
        assert left.tolist() == [row >= place for row in range(num_words)]
        assert right.tolist() == [row <= place for row in range(num_words)]
        assert torch.equal(before[num_words:], after[num_words:])


@torch.no_grad()
def test_batch_neighbours_do_not_matter():
    model = made()
    together = [layer.split([len(text) for text in TEXTS]) for layer in model(pack(TEXTS))]
    for row, text in enumerate(TEXTS):
        for got, alone in zip(together, model(pack([text])), strict=True):
            torch.testing.assert_close(got[row], alone, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_both_losses_are_summed_over_the_neighbours_that_exist():
    model = made()
    loss, correct, count = model.lm_sums(model(pack(TEXTS)), pack(TEXTS))
    expected, num_right, num_guesses = 0.0, 0, 0
    for text in (text for text in TEXTS if len(text) > 1):
        left, right = model(pack([text]))[-1].double().chunk(2, 1)
        scores = model.softmax.weight.double().T
        num_guesses += 2 * (len(text) - 1)
        expected += F.cross_entropy(left[:-1] @ scores, torch.tensor(text[1:]), reduction="sum").item()
        expected += F.cross_entropy(right[1:] @ scores, torch.tensor(text[:-1]), reduction="sum").item()
        num_right += ((left[:-1] @ scores).argmax(1) == torch.tensor(text[1:])).sum().item()
        num_right += ((right[1:] @ scores).argmax(1) == torch.tensor(text[:-1])).sum().item()
    assert (correct.item(), count.item()) == (num_right, num_guesses)
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_words_that_fill_up_a_batch_do_not_count():
    model = made()
    alone, filled = pack(TEXTS[:1]), pack([TEXTS[0], [0, 0, 0]])
    weights = torch.tensor([1.0] * len(TEXTS[0]) + [0.0] * 3)
    expected = model.lm_sums(model(alone), alone)
    torch.testing.assert_close(model.lm_sums(model(filled), filled, weights), expected)


def seeded(texts, seed):
    return pack(texts)._replace(dropout_seed=torch.tensor(seed, dtype=torch.int32))


@pytest.mark.parametrize("num_negatives", [8_192, 40])
def test_every_weight_gets_a_gradient(num_negatives):
    model, tokens = made(small(num_negatives=num_negatives)).train(), seeded(TEXTS, 1)
    model.lm_sums(model(tokens), tokens).loss.backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


@pytest.mark.parametrize("num_negatives", [8_192, 30])
def test_a_few_steps_learn_a_pattern(num_negatives):
    torch.manual_seed(0)
    config = small(cell_size=32, projection_size=16, num_negatives=num_negatives, dropout=0)
    model = Elmo(config, characters_VK=table_of_words())
    initialise_elmo(model, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(40):
        tokens = seeded([[7, 8, 9, 10, 11], [20, 21, 22]], step - 20)
        loss = model.train().lm_sums(model(tokens), tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            total, _, count = model.eval().lm_sums(model(tokens), tokens)
        losses.append(total.item() / count.item())
    assert losses[0] == pytest.approx(math.log(NUM_WORDS), rel=0.15)
    assert losses[-1] < 0.5


def softmax_of(num_words, width, num_sampled, seed=0):
    head = WordSoftmax(num_words, width, num_sampled)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(0.0, 0.7, generator=torch.Generator().manual_seed(seed))
    return head


@torch.no_grad()
def test_sampling_all_words_is_the_full_softmax():
    head = softmax_of(50, 8, 49)
    rows, targets = torch.randn(20, 8), (torch.arange(20) * 2, torch.rand(20))
    torch.testing.assert_close(head.sampled(rows, targets, torch.arange(50), math.inf), head.full(rows, targets))


def test_a_sample_has_different_words_and_depends_on_the_seed_alone():
    (first, end), (same, same_end), (other, _) = (draw_sample(1_000, 300, seed) for seed in (1, 1, 2))
    assert len(first.unique()) == 300
    assert torch.equal(first, same)
    assert end == same_end
    assert not torch.equal(first, other)


def test_words_are_as_frequent_in_samples_as_expected():
    """Drawing words one by one, log-uniform by rank, until there are enough different ones gives the same counts."""
    num_words, num_sampled, num_draws = 40, 12, 3_000
    found = np.zeros(num_words)
    expected = np.zeros(num_words)
    for seed in range(num_draws):
        ids, end = draw_sample(num_words, num_sampled, seed)
        found[ids.numpy()] += 1
        expected += log_expected(torch.arange(num_words), end, num_words).exp().numpy()
    by_hand = np.zeros(num_words)
    rng = np.random.default_rng(0)
    log_uniform = np.log1p(1 / np.arange(1, num_words + 1)) / np.log(num_words + 1)
    for _ in range(num_draws):
        draws = rng.choice(num_words, 400, p=log_uniform)
        _, firsts = np.unique(draws, return_index=True)
        by_hand[draws[np.sort(firsts)[:num_sampled]]] += 1
    np.testing.assert_allclose(found / num_draws, expected / num_draws, atol=0.04)
    np.testing.assert_allclose(found / num_draws, by_hand / num_draws, atol=0.04)


def test_the_corrected_sum_over_a_sample_is_that_over_all_words_on_average():
    scores = np.exp(np.random.default_rng(0).normal(0, 1, 200))
    sums = []
    for seed in range(2_000):
        ids, end = draw_sample(200, 60, seed)
        expected = log_expected(ids, end, 200).exp().numpy()
        sums.append((scores[ids.numpy()] / expected).sum())
    deviation = np.std(sums) / math.sqrt(len(sums))
    assert abs(np.mean(sums) - scores.sum()) < 4 * deviation
    assert deviation < 0.01 * scores.sum()


def test_the_sampled_loss_is_least_where_the_full_one_is():
    """Where the scores are the words' true log frequencies, both losses pull nowhere on average; elsewhere they do."""
    num_words = 30
    truth = torch.softmax(
        torch.linspace(2, -2, num_words) + torch.randn(30, generator=torch.Generator().manual_seed(1)), 0
    )
    targets = (torch.arange(num_words), truth)

    def mean_pull(scores):
        head = WordSoftmax(num_words, 1, 10)
        with torch.no_grad():
            head.weight.zero_()
            head.bias.copy_(scores)
        for seed in range(800):
            head.sampled(torch.zeros(num_words, 1), targets, *draw_sample(num_words, 10, seed)).loss.backward()
        return head.bias.grad / 800

    assert mean_pull(truth.log()).abs().max() < 0.01
    assert mean_pull(torch.zeros(num_words)).abs().max() > 0.05


def test_evaluation_compares_with_all_words_and_training_needs_a_seed():
    head = softmax_of(50, 8, 10)
    rows, targets = torch.randn(6, 8), (torch.arange(6), torch.ones(6))
    assert torch.equal(head.eval()(rows, targets, None).loss, head.full(rows, targets).loss)
    with pytest.raises(AssertionError, match="needs a seed"):
        head.train()(rows, targets, None)


def gradients_of(head, sums):
    head.zero_grad()
    sums.loss.backward()
    return [parameter.grad.clone() for parameter in head.parameters()]


@pytest.mark.parametrize("sample", [None, draw_sample(50, 12, seed=4)])
@pytest.mark.parametrize("scores_at_once", [100, 150, 250])
def test_a_softmax_in_parts_is_the_softmax_and_so_are_its_gradients(monkeypatch, sample, scores_at_once):
    head = softmax_of(50, 8, 10)
    rows, targets = torch.randn(7, 8), (torch.arange(7), torch.rand(7))

    def found():
        sums = head.full(rows, targets) if sample is None else head.sampled(rows, targets, *sample)
        return sums, gradients_of(head, sums)

    whole = found()
    monkeypatch.setattr("bertworks.nn.bert._SCORES_AT_ONCE", scores_at_once)
    torch.testing.assert_close(found(), whole)


def test_dropout_and_the_sample_are_functions_of_the_seed():
    """So that neither the number of ranks nor a resume changes what a step computes."""
    model = made(small(num_negatives=20, dropout=0.5)).train()

    def loss(seed):
        tokens = seeded(TEXTS, seed)
        return model.lm_sums(model(tokens), tokens).loss.item()

    first = loss(5)
    torch.manual_seed(99)
    assert loss(5) == first
    assert len({loss(seed) for seed in (-7, 5, 6, 7)}) == 4


def test_directions_and_layers_drop_different_numbers():
    """Each place of the network drops once, by a hash of its own."""
    model, tokens, called = made(small(dropout=0.5)).train(), seeded(TEXTS, 3), []
    for drop in model.dropouts:
        drop.register_forward_hook(lambda drop, *_: called.append(drop.place))
    model.lm_sums(model(tokens), tokens)
    assert sorted(called) == list(range(2 * model.config.num_layers + 1))


def test_a_mix_begins_as_the_mean_and_weighs_by_softmax():
    layers = [torch.full((2, 3), value) for value in (1.0, 2.0, 6.0)]
    mix = ScalarMix(3)
    torch.testing.assert_close(mix(layers), torch.full((2, 3), 3.0))
    with torch.no_grad():
        mix.weights.copy_(torch.tensor([0.0, math.log(2), 0.0]))
        mix.gamma.fill_(2.0)
    torch.testing.assert_close(mix(layers), torch.full((2, 3), 2 * (1 + 2 * 2 + 6) / 4))


def test_weights_come_from_the_seed():
    first, same, other = made(seed=1), made(seed=1), made(seed=2)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.softmax.weight, other.softmax.weight)
    assert not torch.equal(first.from_left[0].weight_hh_l0, first.from_right[0].weight_hh_l0)


@pytest.mark.parametrize(("name", "millions"), [("original", 93.6), ("medium", 28.0), ("small", 13.6)])
def test_published_sizes_have_their_parameters_but_for_torchs_second_bias(name, millions):
    with torch.device("meta"):
        model = Elmo(elmo_preset(name), softmax=False)
    biases = [values for key, values in model.named_parameters() if "bias_hh" in key]
    count = sum(parameter.numel() for parameter in model.parameters()) - sum(bias.numel() for bias in biases)
    assert round(count / 1e6, 1) == millions


def test_a_recipe_gives_filters_as_a_list_and_hears_of_every_problem():
    assert validate(ElmoConfig, {"num_filters": [4, 4]}, "recipe").num_filters == (4, 4)
    with pytest.raises(ConfigError) as caught:
        validate(ElmoConfig, {"num_filters": [4, 0], "projection_size": 64, "cell_size": 64, "cells": 1}, "recipe")
    assert len(caught.value.problems) == 3
    with pytest.raises(UserError, match="did you mean 'medium'"):
        elmo_preset("mediun")


def test_names_of_weights_are_stable():
    """A saved ELMo opens later: these names are its file format."""
    names = set(made().state_dict())
    assert {"characters.embedding.weight", "characters.filters.2.bias", "characters.projection.weight"} < names
    assert {"characters.highways.1.gate.bias", "characters.highways.0.change.weight", "softmax.bias"} < names
    assert {"from_left.1.weight_hr_l0", "from_right.0.bias_hh_l0"} < names
    assert len(names) == 1 + 6 + 8 + 2 + 4 * 5 + 2
