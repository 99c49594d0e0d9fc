"""GPT-1 as it is fine-tuned: both orders of a pair, what sums them up, and its language model over the same tokens."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import scattered

from bertworks.nn.attention import pack
from bertworks.nn.config import GptConfig
from bertworks.nn.gpt import Gpt, Reading, num_guesses, swapped

START, DELIMITER, END = 47, 48, 49
WORDS = st.lists(st.integers(0, 46), max_size=5)
PAIRS = st.lists(st.tuples(WORDS, st.none() | WORDS), min_size=1, max_size=5)


def laid(pairs):
    """Pairs, or single texts with None, as a batch."""
    ids, segments = [], []
    for first, second in pairs:
        if second is None:
            ids.append([START, *first, END])
            segments.append([0] * len(ids[-1]))
        else:
            ids.append([START, *first, DELIMITER, *second, END])
            segments.append([0] * (len(first) + 2) + [1] * (len(second) + 1))
    return pack(ids, segments)


def small(both_orders=False, **heads):
    sizes = {"vocab_size": 50, "n_positions": 16, "n_embd": 24, "n_layer": 2, "n_head": 3}
    drops = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    return scattered(Gpt(GptConfig(**sizes, **drops), heads or {"classify": 3}, both_orders=both_orders))


@settings(max_examples=60, deadline=None)
@given(PAIRS)
def test_the_other_order_is_that_of_the_texts_swapped_by_hand(pairs):
    other = swapped(laid(pairs))
    expected = laid([(first, None) if second is None else (second, first) for first, second in pairs])
    assert other.token_ids.tolist() == expected.token_ids.tolist()
    assert other.segment_ids.tolist() == expected.segment_ids.tolist()
    assert swapped(other).token_ids.tolist() == laid(pairs).token_ids.tolist()


@torch.no_grad()
def test_a_pair_has_the_same_scores_to_the_last_bit_in_either_order():
    net = small(both_orders=True)
    pairs = [([1, 2, 3], [4]), ([7, 7], [8, 9, 10]), ([], [5, 6])]
    scores = [net.scores("classify", net.pooled_of(laid([pair]))) for pair in pairs]
    turned = [net.scores("classify", net.pooled_of(laid([pair[::-1]]))) for pair in pairs]
    assert all(torch.equal(one, other) for one, other in zip(scores, turned, strict=True))
    plain = small()
    assert not torch.equal(plain.pooled_of(laid(pairs[:1])), plain.pooled_of(laid([pairs[0][::-1]])))


@torch.no_grad()
@pytest.mark.parametrize("both_orders", [False, True])
def test_the_summary_is_the_last_tokens_and_of_both_orders_their_sum(both_orders):
    net, pairs = small(both_orders), [([1, 2, 3], [4]), ([7, 7], [8, 9, 10])]
    expected = torch.stack([net(laid([pair]))[-1] for pair in pairs])
    if both_orders:
        expected += torch.stack([net(laid([pair[::-1]]))[-1] for pair in pairs])
    torch.testing.assert_close(net.pooled_of(laid(pairs)), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_later_token_changes_no_earlier_state_and_the_summary_depends_on_all():
    net, ids = small(), [START, 1, 2, 3, 4, 5, END]
    before, summary = net(pack([ids])), net.pooled_of(pack([ids]))
    for place in range(len(ids)):
        other = [*ids[:place], 30, *ids[place + 1 :]]
        after = net(pack([other]))
        assert torch.equal(after[:place], before[:place])
        assert (after[place:] - before[place:]).abs().amax(1).min() > 1e-4
        assert (net.pooled_of(pack([other])) - summary).abs().max() > 1e-4


@pytest.mark.parametrize("both_orders", [False, True])
@torch.no_grad()
def test_a_reading_gives_what_the_network_gives_and_the_language_models_loss(both_orders):
    net, pairs = small(both_orders, classify=3, tag=4), [([1, 2, 3], [4]), ([7, 7], [8, 9, 10])]
    tokens = laid(pairs)
    reading = Reading(net, tokens)
    torch.testing.assert_close(reading.pooled_of(tokens), net.pooled_of(tokens), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(reading(tokens), net(tokens), rtol=0, atol=0)
    torch.testing.assert_close(reading.scores("tag", net(tokens)), net.heads["tag"](net(tokens)))
    both = [*pairs, *(pair[::-1] for pair in pairs)] if both_orders else pairs
    logs = [net.lm_logits(net(one)).log_softmax(-1) for one in (laid([pair]) for pair in both)]
    ids = [laid([pair]).token_ids for pair in both]
    expected = -sum(log[:-1].gather(1, own[1:, None]).sum() for log, own in zip(logs, ids, strict=True))
    sums = reading.lm_sums()
    torch.testing.assert_close(sums.loss, expected, rtol=1e-5, atol=1e-4)
    assert int(sums.total) == sum(len(own) - 1 for own in ids) == num_guesses(tokens, both_orders=both_orders)


def test_rows_for_heads_have_the_gradients_of_the_plain_way():
    net, tokens = small(both_orders=True).train(), laid([([1, 2, 3], [4]), ([7], [8, 9, 10])])
    found = []
    for summary in (net.pooled_of, Reading(net, tokens).pooled_of):
        net.zero_grad()
        net.scores("classify", summary(tokens)).square().sum().backward()
        found.append({name: weight.grad for name, weight in net.named_parameters()})
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-4)


def test_both_orders_have_masks_of_their_own():
    tokens = laid([([1, 2], [3])])._replace(dropout_seed=torch.tensor(7, dtype=torch.int32))
    assert int(swapped(tokens).dropout_seed) != 7
