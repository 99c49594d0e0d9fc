"""Sequences of similar lengths attended to together: the same numbers as each by itself, in few runs."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import scattered

from bertworks.nn.attention import attend, attend_from_one, pack_arrays, pack_lengths
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig

LENGTHS = st.lists(st.integers(0, 90), min_size=1, max_size=12).filter(any)


def rows(lengths, parts, seed=0):
    torch.manual_seed(seed)
    return torch.randn(sum(lengths), parts, 2, 8, dtype=torch.float64, requires_grad=True)


def entered(attention, lengths, *, merged):
    """Let attention see rows as the encoder would lay them, and put the result back."""
    packing = pack_lengths(lengths, merge_similar=merged)
    qkv = rows(lengths, 3)
    out = packing.leave(attention(packing.enter(qkv), packing))
    (out * torch.arange(out.numel()).view(out.shape).cos()).sum().backward()
    return out, qkv.grad


@settings(deadline=None, max_examples=40)
@given(LENGTHS, st.booleans())
def test_merged_runs_attend_as_single_lengths_do(lengths, causal):
    def attention(qkv, packing):
        return attend(qkv, packing, causal=causal)

    for one, other in zip(*(entered(attention, lengths, merged=merged) for merged in (False, True)), strict=True):
        torch.testing.assert_close(one, other)


@settings(deadline=None, max_examples=40)
@given(LENGTHS.map(lambda lengths: [length for length in lengths if length]))
def test_first_tokens_attend_alike(lengths):
    found = []
    for merged in (False, True):
        packing = pack_lengths(lengths, merge_similar=merged)
        qkv = packing.enter(rows(lengths, 3))
        firsts, back = packing.rows_of(packing.cumulative_lengths[:-1])
        out = attend_from_one(qkv[firsts, 0], qkv[:, 1:], packing)
        found.append(out if back is None else out[back])
    torch.testing.assert_close(*found)


@given(LENGTHS)
def test_every_token_has_a_place_of_its_own(lengths):
    packing = pack_lengths(lengths, merge_similar=True)
    assert sum(run.num_tokens for run in packing.runs) == sum(lengths)
    for run in packing.runs:
        if run.places is not None:
            assert len(set(run.places.tolist())) == run.num_tokens
            assert max(run.places.tolist()) < run.num_sequences * run.length


def test_short_texts_need_few_runs():
    lengths = np.random.default_rng(0).poisson(13, 32) + 2
    assert len(pack_lengths(lengths).runs) > 10
    assert len(pack_lengths(lengths, merge_similar=True).runs) <= 6


@pytest.mark.parametrize("direction", ["both", "left_to_right", "right_to_left"])
@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_a_network_computes_alike_in_every_direction(direction, dropout):
    lengths = np.array([5, 9, 3, 9, 14, 7])
    config = BertConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24,
        max_position_embeddings=16, direction=direction, hidden_dropout_prob=0.0, attention_probs_dropout_prob=dropout,
    )  # fmt: skip
    net = scattered(Bert(config)).train()
    ids = np.arange(lengths.sum()) % 30
    plain, merged = (pack_arrays(ids, ids * 0, lengths, merge_similar=merged) for merged in (False, True))
    if dropout:
        torch.manual_seed(1)
        out = net(merged)
        assert out.isfinite().all()
        torch.manual_seed(1)
        torch.testing.assert_close(out, net(merged), rtol=0, atol=0)
    else:
        torch.testing.assert_close(net(merged), net(plain), rtol=1e-4, atol=1e-5)


def test_dropped_attention_has_the_undropped_for_its_mean():
    torch.manual_seed(0)
    lengths = [3, 6, 6, 9]
    packing = pack_lengths(lengths, merge_similar=True)
    qkv = packing.enter(rows(lengths, 3).detach())
    mean = torch.stack([attend(qkv, packing, dropout=0.2) for _ in range(3_000)]).mean(0)
    torch.testing.assert_close(mean, attend(qkv, packing), rtol=0, atol=0.08)
