"""What stands on a frozen ELMo: each text as if alone, pairs against a plain reference, and who learns."""

import pytest
import torch
import torch.nn.functional as F
from small_elmo_tasks import PAIRS, TEXTS, small_net, tokens_of
from small_models import scattered

from bertworks.nn.attention import pack_lengths
from bertworks.nn.elmo import ElmoTasks, initialise_elmo_tasks
from bertworks.text.elmo_words import character_ids

SECONDS = [second for _, second in PAIRS]


def given(pairs):
    return (TEXTS, SECONDS) if pairs else (TEXTS, None)


# The same in any company


@pytest.mark.parametrize("pairs", [False, True])
@torch.no_grad()
def test_results_do_not_depend_on_batch_neighbours(pairs):
    """H21: packed, in any order, next to longer and shorter ones."""
    net, tokenizer = small_net({"classify": 3, "tag": 4}, pairs=pairs)
    first, second = given(pairs)
    together = tokens_of(tokenizer, first, second)
    pooled, rows = net.pooled_of(together), net(together)
    assert pooled.shape == (4, 7)
    assert rows.shape == (len(together.token_ids), 10)
    for number, row in enumerate(rows.split(together.packing.cumulative_lengths.diff().tolist())):
        alone = tokens_of(tokenizer, [first[number]], second and [second[number]])
        torch.testing.assert_close(net.pooled_of(alone)[0], pooled[number], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(net(alone), row, atol=1e-5, rtol=1e-5)
    backwards = tokens_of(tokenizer, first[::-1], second and second[::-1])
    torch.testing.assert_close(net.pooled_of(backwards).flip(0), pooled, atol=1e-5, rtol=1e-5)


# Against a reference that takes one text after the other


def mixed(net, words):
    """ELMo's layers of one text, in shares that are worked out here."""
    layers = net.elmo.read(torch.tensor(character_ids(words).astype("int64")), pack_lengths([len(words)]))
    shares = net.mix.weights.exp() / net.mix.weights.exp().sum()
    return net.mix.gamma * sum(share * layer for share, layer in zip(shares, layers, strict=True))


def read_twice(net, words):
    return net.second.lstm(net.first.lstm(mixed(net, words))[0])[0]


def gathered(text, other):
    rows = []
    for token in text:
        weights = [float(token @ partner) for partner in other]
        weights = torch.tensor(weights, dtype=torch.float64).softmax(0).float()
        rows.append(torch.cat([token, sum(weight * partner for weight, partner in zip(weights, other, strict=True))]))
    return torch.stack(rows)


def read_pair(net, first, second):
    texts = [read_twice(net, ["<S>", *words, "</S>"]) for words in (first, second)]
    return [net.third.lstm(gathered(text, other))[0] for text, other in (texts, texts[::-1])]


@torch.no_grad()
def test_a_pair_is_scored_as_glues_baseline_does_it():
    net, tokenizer = small_net({"classify": 3}, pairs=True)
    got = net.scores("classify", net.pooled_of(tokens_of(tokenizer, ["the cat sat"] * 2, ["a zebra", "zebra"])))
    u, v = (rows.amax(0) for rows in read_pair(net, ["the", "cat", "sat"], ["a", "zebra"]))
    hidden = torch.tanh(net.hidden(torch.cat([u, v, (u - v).abs(), u * v])))
    torch.testing.assert_close(got[0], net.heads["classify"].out(hidden), atol=1e-5, rtol=1e-5)
    assert (got[0] - got[1]).abs().max() > 1e-3


@torch.no_grad()
def test_the_rows_of_a_pair_are_those_of_its_tokens_and_the_sign_between_is_not_among_them():
    net, tokenizer = small_net({"span": 2}, pairs=True)
    rows = net(tokens_of(tokenizer, ["the cat", "far"], ["a zebra ran", "away"]))
    first, second = read_pair(net, ["the", "cat"], ["a", "zebra", "ran"])
    torch.testing.assert_close(rows[:8], torch.cat([first, second[1:]]), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_a_single_text_is_its_largest_values():
    net, tokenizer = small_net({"classify": 3}, pairs=False)
    got = net.pooled_of(tokens_of(tokenizer, ["the cat sat", "zebra"]))[1]
    u = read_twice(net, ["<S>", "zebra", "</S>"]).amax(0)
    torch.testing.assert_close(got, torch.tanh(net.hidden(u)), atol=1e-5, rtol=1e-5)


# Words


@torch.no_grad()
def test_words_outside_the_list_differ_by_their_characters_also_those_met_later():
    net, tokenizer = small_net({"classify": 3}, pairs=False)
    before = net.pooled_of(tokens_of(tokenizer, ["a zebra", "a giraffe", "a zebra"]))
    torch.testing.assert_close(before[0], before[2], atol=1e-6, rtol=1e-6)
    assert (before[0] - before[1]).abs().max() > 1e-4
    later = net.pooled_of(tokens_of(tokenizer, ["a quagga", "a zebra"]))
    torch.testing.assert_close(later[1], before[0], atol=1e-6, rtol=1e-6)
    assert (later[0] - before[0]).abs().max() > 1e-4


@torch.no_grad()
def test_other_numbers_for_the_same_words_change_nothing():
    net, tokenizer = small_net({"classify": 3}, pairs=False)
    expected = net.pooled_of(tokens_of(tokenizer, TEXTS))
    _, other = small_net({"classify": 3}, pairs=False)
    other.encode_batch(TEXTS[::-1])  # as many words, in another order
    net.read_words(other.met)
    assert torch.equal(net.pooled_of(tokens_of(other, TEXTS)), expected)


# Who learns


@pytest.mark.parametrize("trains_elmo", [False, True])
def test_a_frozen_elmo_has_neither_gradient_nor_dropout(trains_elmo):
    net, tokenizer = small_net({"classify": 3}, pairs=True, trains_elmo=trains_elmo)
    net.train()
    tokens = tokens_of(tokenizer, TEXTS, SECONDS)
    net.scores("classify", net.pooled_of(tokens)).square().sum().backward()
    learning = {name for name, parameter in net.named_parameters() if parameter.grad is not None}
    expected = {name for name, _ in net.named_parameters() if trains_elmo or not name.startswith("elmo.")}
    assert learning == expected
    layers = [net._layers(tokens) for _ in range(2)]
    assert torch.equal(layers[0][-1], layers[1][-1]) != trains_elmo
    assert layers[0][-1].requires_grad == trains_elmo
    assert not torch.equal(net.pooled_of(tokens), net.pooled_of(tokens)), "the readers drop in training"
    net.eval()
    assert torch.equal(net.pooled_of(tokens), net.pooled_of(tokens))


@pytest.mark.parametrize(("head", "num_outputs"), [("tag", 2), ("span", 2)])
def test_rows_of_tokens_learn_what_a_word_is_and_where_it_stands(head, num_outputs):
    """Tags of words that are spelt with a z; the place of that word in the second text."""
    torch.manual_seed(0)
    net, tokenizer = small_net({head: num_outputs}, pairs=head == "span", dropout=0.0, num_cells=8)
    initialise_elmo_tasks(net, 0)
    scattered(net.elmo)
    texts = ["zoo the cat", "the zebra sat far", "a lazy dog away", "far away zulu"]
    tokens = tokens_of(tokenizer, texts, ["where is it"] * 4 if head == "span" else None)
    is_z = torch.tensor(["z" in tokenizer.pieces[id] for id in tokens.token_ids.tolist()])
    optimizer = torch.optim.Adam([p for p in net.parameters() if p.requires_grad], lr=2e-2)
    for _ in range(100):
        scores = net.train().scores(head, net(tokens))
        if head == "tag":
            loss, is_right = F.cross_entropy(scores, is_z.long()), (scores.argmax(1) == is_z).all()
        else:
            parts = scores[:, 0].split(tokens.packing.cumulative_lengths.diff().tolist())
            places = [part.float().argmax() for part in is_z.split([len(part) for part in parts])]
            loss = sum(F.cross_entropy(part, place) for part, place in zip(parts, places, strict=True))
            is_right = all(part.argmax() == place for part, place in zip(parts, places, strict=True))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert is_right


def test_weights_come_from_the_seed():
    nets = [small_net({"classify": 3}, pairs=True)[0] for _ in range(3)]
    for net, seed in zip(nets, (1, 1, 2), strict=True):
        initialise_elmo_tasks(net, seed)
    first, same, other = nets
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    for name in ("elmo.from_left.0.weight_hh_l0", "third.lstm.weight_ih_l0", "heads.classify.out.weight"):
        assert not torch.equal(first.get_parameter(name), other.get_parameter(name)), name


def test_names_of_weights_are_stable():
    """A saved model opens later: these names are its file format."""
    names = set(small_net({"classify": 3}, pairs=True)[0].state_dict())
    readers = {f"{name}.lstm.weight_ih_l0_reverse" for name in ("first", "second", "third")}
    assert readers | {"mix.weights", "mix.gamma", "hidden.weight", "heads.classify.out.bias"} < names
    assert {name for name in names if not name.startswith("elmo.")} == names - {f"elmo.{n}" for n in elmo_names()}
    single = set(small_net({"tag": 3}, pairs=False)[0].state_dict())
    assert not [name for name in single if name.startswith(("third", "hidden"))]


def elmo_names():
    net, _ = small_net({"tag": 3}, pairs=False)
    return net.elmo.state_dict()


def test_the_readers_are_as_wide_as_glues_unless_said_otherwise():
    from bertworks.nn.config import ElmoConfig, ElmoReaderConfig

    with torch.device("meta"):
        net = ElmoTasks(ElmoConfig(), ElmoReaderConfig(pairs=True), {"classify": 3})
    assert (net.first.lstm.hidden_size, net.third.lstm.input_size, net.hidden.weight.shape) == (
        1_500,
        6_000,
        (512, 12_000),
    )
