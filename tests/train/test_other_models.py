"""GPT-1 and ELMo, pre-trained by the same trainer: what they learn, how they go on, and what does not go together."""

import itertools
import json
import math
from collections import Counter

import numpy as np
import pytest
import tiny_runs
import torch
from test_pretrain import files_of, lines_of

import bertworks as bw
from bertworks.data.shards import Dataset
from bertworks.errors import ConfigError, UserError
from bertworks.nn import config as baseline_config
from bertworks.nn.attention import pack
from bertworks.train.log import Progress
from bertworks.train.pretrain import Feed, pretrain, pretrain_dry

KINDS = ("gpt", "elmo")
ELMO = {
    "cell_size": 96,
    "projection_size": 48,
    "num_filters": (16, 16, 32),
    "num_highway_layers": 1,
    "num_negatives": 30,
}
SETTINGS = {
    "gpt": {"model__kind": "gpt", "data__objective": "ltr"},
    "elmo": {
        "model__kind": "elmo",
        "data__objective": "bilm",
        "model__preset": "tiny-elmo",
        "optim__name": "adamw",
        "optim__lr": 0.02,
    },
}
METRICS = {"gpt": "lm", "elmo": "bilm"}


@pytest.fixture(autouse=True)
def _tiny_elmo(monkeypatch):
    monkeypatch.setitem(baseline_config.ELMO_SIZES, "tiny-elmo", ELMO)


def recipe(kind, **changes):
    return tiny_runs.recipe(**(SETTINGS[kind] | changes))


def trainer_of(kind, other_data, **changes):
    return tiny_runs.trainer_of(recipe(kind, **changes), other_data[kind])


def first_parts(trainer):
    return next(trainer.task.batches(Progress()))[0]


def unigram_loss(data):
    """The loss of guessing every token by its frequency alone."""
    tokens = np.concatenate([shard.tokens for shard in Dataset(data).shards("train")])
    shares = np.array(list(Counter(tokens.tolist()).values())) / len(tokens)
    return -(shares * np.log(shares)).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_far_more_than_frequencies_and_its_model_opens(other_data, tmp_path, kind):
    run, name = tmp_path / "run", METRICS[kind]
    outcome = pretrain(recipe(kind, train__max_steps=70), data=other_data[kind], out=run, device="cpu")
    assert outcome.metrics[f"holdout_{name}_loss"] < unigram_loss(other_data[kind]) - 1
    assert outcome.metrics[f"holdout_{name}_accuracy"] > 0.4
    model = bw.load(run, device="cpu")
    assert model.methods == ["embed", "features", "next_words", "perplexity"]
    assert model.about["provenance"]["objective"] == SETTINGS[kind]["data__objective"]
    words = tiny_runs.WORDS if kind == "elmo" else tiny_runs.LETTERS
    guesses = [guess["token"].removesuffix("</w>") for guess in model.next_words(" ".join(words[5:11]), 3)]
    assert words[11] in guesses
    in_order, jumbled = " ".join(words[5:15]), " ".join(words[number * 7 % 40] for number in range(10))
    assert model.perplexity([in_order]) < 0.3 * model.perplexity([jumbled])
    opened = bw.load(run / "checkpoints/step-00000070", device="cpu")
    assert opened.next_words(in_order) == model.next_words(in_order)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_two_parts_equals_a_run_in_one(other_data, tmp_path, kind):
    """P1, F16: with dropout, and with a sampled softmax."""
    settings = {"optim__schedule": "constant", "train__log_every": 2}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, steps, resume in ((whole, 12, False), (parts, 5, False), (parts, 12, True)):
        outcome = pretrain(
            recipe(kind, **settings, train__max_steps=steps),
            data=other_data[kind],
            out=out,
            device="cpu",
            resume=resume,
        )
        assert outcome.progress.step == steps
    found, expected = files_of(parts), files_of(whole)
    for name in ("model/model.safetensors", "checkpoints/step-00000012/optimizer.safetensors", "model/config.json"):
        assert found[name] == expected[name], name
    assert [line for line in lines_of(parts) if line["step"] != 5] == lines_of(whole)


@pytest.mark.parametrize("kind", KINDS)
def test_a_dry_run_walks_the_whole_way(other_data, kind):
    assert pretrain_dry(recipe(kind), data=other_data[kind], device="cpu").progress.step == 1


def merged(parts):
    """The texts of several parts as one batch."""
    texts = []
    for part in parts:
        tokens, count = part.batch.tokens, len(part.batch.next_labels)
        starts = tokens.packing.cumulative_lengths[: count + 1].tolist()
        texts += [tokens.token_ids[first:end].tolist() for first, end in itertools.pairwise(starts)]
    labels = torch.zeros(len(texts), dtype=torch.int64)
    return parts[0].batch._replace(tokens=pack(texts), next_labels=labels)


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_in_two_slices_has_the_gradient_of_one(other_data, monkeypatch, kind):
    """N5: against the same texts as one batch; ELMo with all words, for each slice has a sample of its own."""
    monkeypatch.setitem(baseline_config.ELMO_SIZES, "tiny-elmo", ELMO | {"num_negatives": 8_192})
    trainer = trainer_of(kind, other_data, train__slices=2, model__dropout=0.0, train__batch_size=16)
    parts = first_parts(trainer)
    counts = [sum(column) for column in zip(*(part.counts for part in parts), strict=True)]
    sums = 0
    for part in parts:
        loss, own = trainer.model(part.batch, torch.tensor(counts))
        loss.backward()
        sums = sums + own
    found = {name: weight.grad.clone() for name, weight in trainer.net.named_parameters()}
    trainer.net.zero_grad()
    loss, of_whole = trainer.model(merged(parts), torch.tensor(counts))
    loss.backward()
    torch.testing.assert_close(sums, of_whole, rtol=1e-5, atol=1e-3)
    assert counts == sums[:, 2].tolist()
    for name, weight in trainer.net.named_parameters():
        torch.testing.assert_close(found[name], weight.grad, atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_every_neighbour_is_counted_once_for_each_direction(other_data, kind):
    trainer = trainer_of(kind, other_data)
    (part,) = first_parts(trainer)
    lengths = part.batch.tokens.packing.cumulative_lengths[: len(part.batch.next_labels) + 1].diff()
    neighbours = int((lengths - 1).clamp(min=0).sum())
    assert part.counts == [neighbours * (2 if kind == "elmo" else 1)]
    sums = trainer.task.objective(trainer.net, part.batch)[METRICS[kind]]
    assert sums.total.item() == part.counts[0]


def test_elmo_is_measured_against_all_words_and_trained_against_a_sample(other_data):
    trainer = trainer_of("elmo", other_data, model__dropout=0.0)
    (part,) = first_parts(trainer)
    trainer.net.eval()
    full = trainer.task.objective(trainer.net, part.batch)["bilm"]
    layers = trainer.net(part.batch.tokens)
    without_seed = part.batch.tokens._replace(dropout_seed=None)
    expected = trainer.net.lm_sums(layers, without_seed, part.batch.real_tokens())
    assert full.loss.item() == expected.loss.item()
    assert full.loss.item() / full.total.item() == pytest.approx(math.log(44), rel=0.1)
    trainer.net.train()
    sampled = trainer.task.objective(trainer.net, part.batch)["bilm"]
    assert sampled.loss.item() != full.loss.item()


class OneOfTwo:
    """One of two ranks, without the other."""

    world_size = 2

    def __init__(self, rank):
        self.rank = rank

    def be_patient(self):
        """Nobody is waiting."""


def test_what_is_random_in_elmo_depends_on_step_and_slice_but_not_on_ranks(other_data):
    """P2: on a CPU too, where BERT's dropout comes from a generator."""
    settings, dataset = recipe("elmo", train__slices=2), Dataset(other_data["elmo"])

    def seeds(ranks):
        feed = Feed(settings, dataset, torch.device("cpu"), ranks, ("bilm",), flash=False, seeded=True)
        made = feed.batches(Progress(), lambda step: 0.0)
        return [[int(part.batch.tokens.dropout_seed) for part in next(made)[0]] for _ in range(4)]

    alone = seeds(trainer_of("elmo", other_data, train__slices=2).ranks)
    assert len({seed for parts in alone for seed in parts}) == 8
    assert [[first, second] for [first], [second] in zip(seeds(OneOfTwo(0)), seeds(OneOfTwo(1)), strict=True)] == alone


def test_gpt_learns_in_half_precision_too(other_data, tmp_path):
    """Its embeddings stay in float32; every weight gets its gradient there."""
    trainer = trainer_of("gpt", other_data, train__dtype="bfloat16")
    (part,) = first_parts(trainer)
    loss, _ = trainer.model(part.batch, torch.tensor(part.counts))
    loss.backward()
    grads = {name: weight.grad for name, weight in trainer.net.named_parameters()}
    assert {grad.dtype for grad in grads.values()} == {torch.float32}
    assert all(grad.abs().sum() > 0 for grad in grads.values())
    copies = {name.removeprefix("net."): weight.dtype for name, weight in trainer.model.copies().items()}
    assert {name for name, dtype in copies.items() if dtype == torch.float32} == {"token.weight", "position.weight"}
    settings = recipe("gpt", train__dtype="bfloat16", train__max_steps=30)
    outcome = pretrain(settings, data=other_data["gpt"], out=tmp_path / "run", device="cpu")
    assert outcome.metrics["holdout_lm_loss"] < unigram_loss(other_data["gpt"]) - 0.5


def test_settings_reach_the_networks(other_data):
    changes = {
        "model__dropout": 0.25,
        "model__hidden_act": "relu",
        "model__max_positions": 40,
        "model__preset": "2x48x3",
    }
    config = trainer_of("gpt", other_data, **changes).net.config
    assert (config.resid_pdrop, config.embd_pdrop, config.attn_pdrop) == (0.25, 0.25, 0.25)
    assert (config.afn, config.n_positions, config.n_layer, config.n_embd, config.n_head) == ("relu", 40, 2, 48, 3)
    assert config.vocab_size == 42
    weight = trainer_of("gpt", other_data).net.token.weight
    assert weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert weight.abs().max() > 0.05, "a normal that is cut at two deviations, as BERT's, ends at 0.04"
    elmo = trainer_of("elmo", other_data, model__dropout=0.25).net
    assert (elmo.config.dropout, elmo.config.vocab_size) == (0.25, 44)
    assert {drop.share for drop in elmo.dropouts} == {0.25}


@pytest.mark.parametrize(
    ("kind", "tokens", "changes", "words"),
    [
        ("gpt", "bert", {}, ["it reads gpt-bpe tokens", "has wordpiece", "--tokens gpt-bpe, or set model.kind=bert"]),
        ("elmo", "gpt", {}, ["it reads words tokens", "has gpt-bpe", "--tokens words, or set model.kind=gpt"]),
        ("gpt", "gpt", {"data__objective": "rtl"}, ["data.objective=rtl: it learns by ltr"]),
        ("gpt", "gpt", {"data__objective": "mlm"}, ["data.objective=mlm: it learns by ltr"]),
        ("elmo", "elmo", {"data__objective": "ltr"}, ["data.objective=ltr: it learns by bilm"]),
        (
            "gpt",
            "gpt",
            {"data__max_length": 128, "model__positions": "sinusoidal"},
            ["data.max_length 128 is more than model.max_positions 64", "model.positions=sinusoidal"],
        ),
        (
            "elmo",
            "elmo",
            {"train__dtype": "bfloat16", "train__compile": True, "model__hidden_act": "relu"},
            ["train.dtype=bfloat16", "train.compile=true", "model.hidden_act=relu"],
        ),
    ],
)
def test_what_does_not_go_together_is_told_all_at_once(other_data, tmp_path, kind, tokens, changes, words):
    with pytest.raises(ConfigError) as caught:
        pretrain(recipe(kind, **changes), data=other_data[tokens], out=tmp_path / "run", device="cpu")
    assert all(word in str(caught.value) for word in words)
    assert len(caught.value.problems) == max(1, len(changes))
    assert not (tmp_path / "run").exists()


def test_a_bert_does_not_learn_from_other_tokens(other_data, tmp_path):
    """It would leave a folder that cannot be opened."""
    settings = tiny_runs.recipe(data__objective="ltr")
    with pytest.raises(ConfigError, match=r"it reads wordpiece tokens, and .* has gpt-bpe"):
        pretrain(settings, data=other_data["gpt"], out=tmp_path / "run", device="cpu")


@pytest.mark.parametrize(
    ("kind", "preset", "words"),
    [
        ("gpt", "bsae", r"did you mean 'base'\?"),
        ("elmo", "base", r"no size of ELMo is called 'base' \(known: original, medium, small, mini"),
        ("elmo", "orignal", r"did you mean 'original'\?"),
    ],
)
def test_a_size_that_a_kind_does_not_have_is_told(other_data, tmp_path, kind, preset, words):
    with pytest.raises(UserError, match=words):
        pretrain(recipe(kind, model__preset=preset), data=other_data[kind], out=tmp_path / "run", device="cpu")


def test_elmo_reads_texts_longer_than_any_position(other_data):
    """model.max_positions says nothing to it."""
    trainer = trainer_of("elmo", other_data, data__max_length=100, train__slices=1)
    assert max(part.batch.tokens.packing.max_length for part in first_parts(trainer)) > 64


def test_the_command_names_what_was_guessed(bertworks, other_data, tmp_path):
    path = tmp_path / "gpt.toml"
    path.write_text(
        '[model]\nkind = "gpt"\npreset = "1x32x2"\nmax_positions = 32\n[data]\nobjective = "ltr"\nmax_length = 32\n'
        "[train]\nbatch_size = 8\nmax_steps = 2\n"
    )
    code, out, err = bertworks("pretrain", path, "--data", other_data["gpt"], "--out", tmp_path / "run", "--json")
    assert (code, err) == (0, "")
    assert {"holdout_lm_loss", "holdout_lm_accuracy"} <= set(json.loads(out))
    code, out, _ = bertworks("inspect", tmp_path / "run")
    assert code == 0
    assert out.startswith("GPT-1: 1 layer of width 32, 2 heads, gelu\n42 pieces, up to 32 tokens")
