"""GPT-1 computes what transformers' `openai-gpt` computes from the same weights, text by text."""

import math

import pytest
import torch
import torch.nn.functional as F
from transformers import (
    OpenAIGPTConfig,
    OpenAIGPTDoubleHeadsModel,
    OpenAIGPTForSequenceClassification,
    OpenAIGPTLMHeadModel,
    OpenAIGPTModel,
)

from bertworks.errors import ConfigError, CorruptFile
from bertworks.models.names import from_openai, to_openai
from bertworks.nn.attention import pack
from bertworks.nn.bert import guesses
from bertworks.nn.config import GptConfig, gpt_preset
from bertworks.nn.gpt import LM_WEIGHT, Gpt
from bertworks.nn.layers import Dropout, initialise

SIZES = [
    {"n_embd": 32, "n_layer": 2, "n_head": 4},
    {"n_embd": 24, "n_layer": 1, "n_head": 1, "layer_norm_epsilon": 1e-3},
    {"n_embd": 48, "n_layer": 5, "n_head": 12, "afn": "relu"},
]
VOCAB_SIZE = 97
TEXTS = [[5, 6, 7, 8, 9, 10, 11], [3], [90, 2, 2], [1, 0, 96, 4, 4, 4, 1], list(range(20))]


def small(**sizes):
    return GptConfig(vocab_size=VOCAB_SIZE, n_positions=20, **(sizes or SIZES[0]))


def scattered(model, seed=0):
    """Random weights large enough that a mistake shows, LayerNorms and biases included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def pair_of_models(their_class, sizes, heads=None, **more):
    """A transformers model with random weights and ours with the same."""
    config = small(**sizes)
    theirs = scattered(their_class(OpenAIGPTConfig(**config.model_dump(), **more)))
    ours = Gpt(config, heads)
    ours.load_state_dict(from_openai(theirs.state_dict()))
    return theirs, ours.eval()


def alone(text):
    return torch.tensor([text])


@pytest.mark.parametrize("sizes", SIZES)
@torch.no_grad()
def test_every_layer_equals_transformers(sizes):
    theirs, ours = pair_of_models(OpenAIGPTModel, sizes)
    expected = [theirs(alone(text), output_hidden_states=True).hidden_states for text in TEXTS]
    for layer, rows in enumerate(ours.all_hidden(pack(TEXTS))):
        torch.testing.assert_close(rows, torch.cat([text[layer][0] for text in expected]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("sizes", SIZES)
@torch.no_grad()
def test_hidden_states_and_logits_equal_transformers(sizes):
    theirs, ours = pair_of_models(OpenAIGPTLMHeadModel, sizes)
    hidden = ours(pack(TEXTS))
    logits = ours.lm_logits(hidden)
    their_hidden = torch.cat([theirs.transformer(alone(text)).last_hidden_state[0] for text in TEXTS])
    their_logits = torch.cat([theirs(alone(text)).logits[0] for text in TEXTS])
    torch.testing.assert_close(hidden, their_hidden, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits, their_logits, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_files_without_prefix_and_with_masks_open_too():
    theirs = scattered(OpenAIGPTModel(OpenAIGPTConfig(**small().model_dump())))
    old_file = theirs.state_dict() | {"h.0.attn.bias": torch.ones(1, 1, 20, 20), "h.1.attn.bias": torch.ones(1, 1, 1)}
    ours = Gpt(small())
    ours.load_state_dict(from_openai(old_file))
    torch.testing.assert_close(ours.eval()(pack(TEXTS[:1])), theirs(alone(TEXTS[0])).last_hidden_state[0])


@pytest.mark.parametrize("their_class", [OpenAIGPTLMHeadModel, OpenAIGPTDoubleHeadsModel])
def test_names_go_there_and_back_and_transformers_misses_none(their_class):
    heads = {"choose": 1} if their_class is OpenAIGPTDoubleHeadsModel else None
    ours = scattered(Gpt(small(), heads))
    published = to_openai(ours.state_dict())
    back = from_openai(published)
    assert back.keys() == ours.state_dict().keys()
    assert all(torch.equal(back[name], values) for name, values in ours.state_dict().items())
    theirs = their_class(OpenAIGPTConfig(**small().model_dump(), num_labels=1))
    missing, unexpected = theirs.load_state_dict(published, strict=False)
    assert (missing, unexpected) == (["lm_head.weight"], [])
    assert all(values.is_contiguous() for values in published.values())


@pytest.mark.parametrize("name", ["h.0.attn.c_query.weight", "bert.embeddings.weight", "h.x.ln_1.bias"])
def test_a_weight_that_gpt_does_not_have_is_a_user_error(name):
    with pytest.raises(CorruptFile, match="no weight of GPT-1"):
        from_openai({name: torch.zeros(1)})


@torch.no_grad()
def test_classes_come_from_the_last_token_as_in_transformers():
    theirs, ours = pair_of_models(OpenAIGPTForSequenceClassification, SIZES[0], {"classify": 3}, num_labels=3)
    tokens = pack(TEXTS)
    scores = ours.heads["classify"](ours.pooled(ours(tokens), tokens.packing))
    expected = torch.cat([theirs(alone(text)).logits for text in TEXTS])
    torch.testing.assert_close(scores, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_choices_are_scored_as_in_transformers_up_to_what_they_share():
    theirs, ours = pair_of_models(OpenAIGPTDoubleHeadsModel, SIZES[0], {"choose": 1}, num_labels=1)
    tokens = pack([TEXTS[0], TEXTS[3]])
    scores = ours.heads["choose"](ours.pooled(ours(tokens), tokens.packing))[:, 0]
    expected = theirs(torch.tensor([[TEXTS[0], TEXTS[3]]]), mc_token_ids=torch.tensor([[6, 6]])).mc_logits[0]
    torch.testing.assert_close(scores.softmax(0), expected.softmax(0), atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_later_tokens_and_batch_neighbours_do_not_matter():
    model = scattered(Gpt(small()))
    whole = model(pack([TEXTS[4]]))
    changed = model(pack([[1, 2], [*TEXTS[4][:7], 50, *TEXTS[4][8:]]]))[2:]
    torch.testing.assert_close(changed[:7], whole[:7], atol=1e-6, rtol=1e-5)
    assert (changed[7:] - whole[7:]).abs().amax(1).min() > 1e-3


@torch.no_grad()
def test_lm_loss_is_the_sum_of_the_texts_losses_and_counts_its_guesses():
    theirs, ours = pair_of_models(OpenAIGPTLMHeadModel, SIZES[0])
    tokens = pack([[], *TEXTS, []])
    loss, correct, count = ours.lm_sums(ours(tokens), tokens)
    guessing = [text for text in TEXTS if len(text) > 1]
    means = [theirs(alone(text), labels=alone(text)).loss.item() for text in guessing]
    expected = math.fsum(mean * (len(text) - 1) for mean, text in zip(means, guessing, strict=True))
    best = [theirs(alone(text)).logits[0, :-1].argmax(1).tolist() for text in guessing]
    assert count.item() == sum(len(text) - 1 for text in guessing)
    assert correct.item() == sum(
        a == b for row, text in zip(best, guessing, strict=True) for a, b in zip(row, text[1:], strict=True)
    )
    assert loss.item() == pytest.approx(expected, rel=1e-5)


@torch.no_grad()
def test_tokens_that_fill_up_a_batch_do_not_count():
    model = scattered(Gpt(small()))
    alone_loss = model.lm_sums(model(pack(TEXTS[:1])), pack(TEXTS[:1]))
    filled = pack([TEXTS[0], [0, 0, 0, 0]])
    filled = filled._replace(token_ids=filled.token_ids.int())  # as a loader may have them
    filled_loss = model.lm_sums(model(filled), filled, torch.tensor([1.0] * 7 + [0.0] * 4))
    torch.testing.assert_close(filled_loss, alone_loss)


def test_a_few_steps_learn_texts_and_their_classes():
    torch.manual_seed(0)
    model = Gpt(small(**SIZES[0], resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), {"classify": 2})
    initialise(model, 0.02, seed=1, cut=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    tokens, classes = pack([[1, 2, 3, 4, 5], [7, 8, 9, 10]]), torch.tensor([1, 0])
    losses = []
    for _ in range(60):
        hidden = model(tokens)
        lm_sum, _, num_guesses = model.lm_sums(hidden, tokens)
        scores = model.heads["classify"](model.pooled(hidden, tokens.packing))
        loss = F.cross_entropy(scores, classes) + LM_WEIGHT * lm_sum / num_guesses
        optimizer.zero_grad()
        loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] == pytest.approx(math.log(2) + LM_WEIGHT * math.log(VOCAB_SIZE), rel=0.05)
    assert losses[-1] < 0.3


def test_weights_come_from_the_seed_and_are_normal():
    first, same, other = (Gpt(small(), {"classify": 2}) for _ in range(3))
    for model, seed in ((first, 1), (same, 1), (other, 2)):
        initialise(model, 0.02, seed, cut=False)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), same.parameters(), strict=True))
    assert not torch.equal(first.token.weight, other.token.weight)
    assert first.token.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert first.token.weight.abs().max() > 0.05, "a normal that is cut at two deviations ends at 0.04"


def test_dropout_acts_in_training_alone():
    model = scattered(Gpt(small())).train()
    tokens = pack(TEXTS)
    assert not torch.equal(model(tokens), model(tokens))
    model.eval()
    assert torch.equal(model(tokens), model(tokens))


@pytest.mark.parametrize("has_bias", [False, True])
def test_the_gradient_made_with_the_loss_is_that_of_a_plain_cross_entropy(monkeypatch, has_bias):
    rows, embedding, bias = (torch.randn(*size, dtype=torch.float64) for size in [(9, 5), (7, 5), (7,)])
    inputs = [one.requires_grad_() for one in (rows, embedding, bias)[: 2 + has_bias]]
    ids, weights = torch.randint(7, (9,)), torch.tensor([1.0, 0.0, 2.0] * 3)
    logits = rows @ embedding.t() + (bias if has_bias else 0)
    losses = F.cross_entropy(logits, ids, reduction="none") * weights
    expected = torch.autograd.grad(losses.sum() / 4, inputs)
    monkeypatch.setattr("bertworks.nn.bert._SCORES_AT_ONCE", 4 * 7)
    sums = guesses(rows, embedding, bias if has_bias else None, ids, weights)
    torch.testing.assert_close(sums.loss, losses.sum().float())
    assert (sums.total, sums.correct) == (weights.sum(), weights[logits.argmax(1) == ids].sum())
    found = torch.autograd.grad(sums.loss / 4, inputs)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(guesses(rows, embedding, bias if has_bias else None, ids, weights), sums)


def test_guesses_are_counted_in_full_precision():
    ones = torch.ones(301, dtype=torch.bfloat16)
    sums = guesses(torch.randn(301, 4), torch.randn(6, 4), None, torch.zeros(301, dtype=torch.long), ones)
    assert sums.total.item() == 301  # which bfloat16 does not have


@pytest.mark.parametrize("rows_at_once", [1, 4, 32])
def test_scores_of_some_rows_at_a_time_give_the_same_loss_and_gradients(monkeypatch, rows_at_once):
    model, tokens = scattered(Gpt(small())), pack(TEXTS)

    def found():
        model.zero_grad()
        sums = model.lm_sums(model(tokens), tokens)
        sums.loss.backward()
        return sums, [parameter.grad.clone() for parameter in model.parameters()]

    whole = found()
    monkeypatch.setattr("bertworks.nn.bert._SCORES_AT_ONCE", rows_at_once * VOCAB_SIZE)
    torch.testing.assert_close(found(), whole, atol=1e-4, rtol=1e-4)


def test_the_scores_of_a_batch_are_not_kept_for_the_backward_pass(monkeypatch):
    """They would be most of the memory; not even those of the rows that are scored at once are kept."""
    vocab_size = 5_000
    model, tokens = Gpt(GptConfig(vocab_size=vocab_size, n_positions=20, **SIZES[0])), pack(TEXTS * 4)
    initialise(model, 0.02, seed=0)
    monkeypatch.setattr("bertworks.nn.bert._SCORES_AT_ONCE", 8 * vocab_size)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: (kept.append(tensor.numel()), tensor)[1], lambda t: t):
        model.lm_sums(model(tokens), tokens).loss.backward()
    assert max(kept) == model.token.weight.numel() < len(tokens.token_ids) * vocab_size


def test_with_a_seed_dropout_is_a_function_of_it_at_every_place_but_attention():
    model = scattered(Gpt(small(**SIZES[0], attn_pdrop=0.0))).train()
    first, same, other = (
        pack(TEXTS)._replace(dropout_seed=torch.tensor(seed, dtype=torch.int32)) for seed in (3, 3, 4)
    )
    assert torch.equal(model(first), model(same))
    assert not torch.equal(model(first), model(other))
    own = [module.place for module in model.blocks[0].modules() if isinstance(module, Dropout)]
    places = [model.dropout.place, *(block.first_place + place for block in model.blocks for place in own)]
    assert len(set(places)) == len(places) == 1 + 2 * model.config.n_layer


def test_the_published_size_has_116_million_parameters():
    with torch.device("meta"):
        model = Gpt(GptConfig())
    assert sum(parameter.numel() for parameter in model.parameters()) == 116_534_784
    assert gpt_preset("base") == GptConfig()


def test_a_wrong_size_names_every_problem():
    with pytest.raises(ConfigError) as caught:
        gpt_preset("4x256", n_head=5, n_layers=3, afn="swish")
    assert len(caught.value.problems) == 3
    assert "5 heads cannot share n_embd 256" in str(caught.value)
    assert "did you mean 'n_layer'?" in str(caught.value)
