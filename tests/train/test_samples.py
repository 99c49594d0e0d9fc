"""What the model is asked is what was held out, and what it is said to answer is what it computes."""

import json

import numpy as np
import pytest
import tiny_runs
import torch

from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.models.kinds import build_model
from bertworks.nn.attention import pack
from bertworks.nn.config import GptConfig
from bertworks.nn.gpt import Gpt
from bertworks.nn.layers import initialise
from bertworks.report.page import SAMPLES_FILE, read_samples, write_samples
from bertworks.train.distributed import Ranks
from bertworks.train.guesses import take_samples
from bertworks.train.pretrain import Feed


@pytest.fixture(scope="module")
def dataset(data):
    return Dataset(data)


def made(dataset, objective="mlm+nsp", **changes):
    """An untrained network whose guesses are far from even, and its recipe."""
    recipe = tiny_runs.recipe(data__objective=objective, **changes)
    net = build_model(recipe, dataset, None)
    initialise(net, 0.5, 3)
    return net, recipe


def held_out(recipe, dataset):
    feed = Feed(recipe, dataset, torch.device("cpu"), Ranks(), ("mlm", "nsp"), flash=False, seeded=False)
    return [part.batch for part in feed.held_out(1.0)]


def tokens_of(sample, dataset, *, seen):
    """The ids of each text of a sample: as the model saw them, or as they are."""
    texts = []
    for spans in sample.texts:
        tokens = []
        for span in spans:
            if span.blank is None:
                tokens += dataset.tokenizer.tokenize(span.text)
            else:
                blank = sample.blanks[span.blank]
                tokens.append(blank.seen if seen else blank.piece)
        texts.append([dataset.tokenizer.id_of(token) for token in tokens])
    return texts


def as_instance(texts, tokenizer):
    cls, sep = tokenizer.id_of("[CLS]"), tokenizer.id_of("[SEP]")
    ids, segments = [cls], [0]
    for number, text in enumerate(texts):
        ids += [*text, sep]
        segments += [number] * (len(text) + 1)
    return ids, segments


@torch.no_grad()
def shares_of(net, tokens):
    return net.heads["mlm"](net(tokens), net.embeddings.token.weight).softmax(-1)


def check_guesses(guesses, shares, pieces):
    expected = sorted(range(len(pieces)), key=lambda id: -shares[id])[:5]
    assert [guess.piece for guess in guesses] == [pieces[id] for id in expected]
    for guess, id in zip(guesses, expected, strict=True):
        assert guess.probability == pytest.approx(float(shares[id]), abs=2e-5)


@torch.no_grad()
def test_guesses_are_those_of_the_network_for_the_instance_by_itself(dataset):
    net, recipe = made(dataset)
    samples = take_samples(net, dataset, recipe.data).samples
    assert len(samples) == 6
    net.eval()
    for sample in samples:
        ids, segments = as_instance(tokens_of(sample, dataset, seen=True), dataset.tokenizer)
        tokens = pack([ids], [segments])
        shares = shares_of(net, tokens)
        truth = as_instance(tokens_of(sample, dataset, seen=False), dataset.tokenizer)[0]
        places = blank_places(sample, dataset)
        assert [dataset.tokenizer.pieces[truth[place]] for place in places] == [b.piece for b in sample.blanks]
        for place, blank in zip(places, sample.blanks, strict=True):
            check_guesses(blank.guesses, shares[place], dataset.tokenizer.pieces)
        follows = net.heads["nsp"](net.pooled(net(tokens), tokens.packing)).softmax(-1)[0, 0]
        assert sample.follows_probability == pytest.approx(float(follows), abs=2e-5)


def blank_places(sample, dataset):
    places, at = [], 1
    for spans in sample.texts:
        for span in spans:
            if span.blank is not None:
                places.append(at)
            at += 1 if span.blank is not None else len(dataset.tokenizer.tokenize(span.text))
        at += 1
    return places


def test_the_texts_are_held_out_and_masked_as_in_training(dataset):
    net, recipe = made(dataset)
    samples = take_samples(net, dataset, recipe.data).samples
    assert all(0 < len(sample.blanks) <= 6 for sample in samples)
    assert {blank.seen for sample in samples for blank in sample.blanks} >= {"[MASK]"}
    assert {sample.follows for sample in samples} <= {True, False}
    held_out_ids = " ".join(map(str, np.concatenate([shard.tokens for shard in dataset.shards("holdout")])))
    for sample in samples:
        assert len(sample.texts) == 2
        for text in tokens_of(sample, dataset, seen=False):
            assert " ".join(map(str, text)) in held_out_ids


@pytest.mark.parametrize("objective", ["ltr", "rtl"])
def test_a_model_of_one_direction_is_asked_for_what_it_comes_to(dataset, objective):
    net, recipe = made(dataset, objective)
    samples = take_samples(net, dataset, recipe.data).samples
    net.eval()
    back = -1 if objective == "ltr" else 1
    for sample in samples:
        assert (sample.follows, len(sample.texts)) == (None, 1)
        assert 1 <= len(sample.blanks) <= 8
        ids, _ = as_instance(tokens_of(sample, dataset, seen=False), dataset.tokenizer)
        shares = shares_of(net, pack([ids]))
        for place, blank in zip(blank_places(sample, dataset), sample.blanks, strict=True):
            assert blank.seen is None
            check_guesses(blank.guesses, shares[place + back], dataset.tokenizer.pieces)


def test_mlm_alone_has_single_texts(dataset):
    net, recipe = made(dataset, "mlm")
    samples = take_samples(net, dataset, recipe.data)
    assert samples.next_majority is None
    assert all(len(sample.texts) == 1 and sample.follows is None for sample in samples.samples)


def test_the_majority_is_counted_over_the_pairs_of_the_evaluation(dataset):
    net, recipe = made(dataset, train__eval_batches=3)
    batches = held_out(recipe, dataset)
    labels = np.concatenate([batch.next_labels[batch.next_weights > 0].numpy() for batch in batches])
    expected = max(labels.mean(), 1 - labels.mean())
    turned = [batch._replace(next_labels=1 - batch.next_labels) for batch in batches]
    for either in (batches, turned):
        assert take_samples(net, dataset, recipe.data, either).next_majority == pytest.approx(expected)
    assert take_samples(net, dataset, recipe.data).next_majority is None


def test_the_network_is_left_as_it_was(dataset):
    """Neither its mode nor the random numbers of a run that goes on."""
    net, recipe = made(dataset, model__dropout=0.5)
    net.train()
    state = torch.get_rng_state()
    first = take_samples(net, dataset, recipe.data)
    assert net.training
    assert torch.equal(torch.get_rng_state(), state)
    assert take_samples(net, dataset, recipe.data) == first


def test_long_texts_are_cut_to_what_a_person_reads(data, tmp_path):
    dataset = Dataset(data)
    net, recipe = made(dataset, data__max_length=512, model__max_positions=512, train__batch_size=2)
    for sample in take_samples(net, dataset, recipe.data).samples:
        assert sum(len(text) for text in tokens_of(sample, dataset, seen=False)) <= 125


@torch.no_grad()
def test_gpt_is_asked_through_its_own_head(dataset):
    recipe = tiny_runs.recipe(data__objective="ltr")
    net = Gpt(GptConfig(vocab_size=dataset.vocab_size, n_embd=32, n_layer=1, n_head=2, n_positions=64))
    initialise(net, 0.5, 1)
    sample = take_samples(net, dataset, recipe.data).samples[0]
    net.eval()
    ids, _ = as_instance(tokens_of(sample, dataset, seen=False), dataset.tokenizer)
    shares = net.lm_logits(net(pack([ids]))).softmax(-1)
    for place, blank in zip(blank_places(sample, dataset), sample.blanks, strict=True):
        check_guesses(blank.guesses, shares[place - 1], dataset.tokenizer.pieces)


def test_other_networks_and_data_without_a_holdout_give_counts_alone(dataset, tmp_path):
    other = take_samples(torch.nn.Linear(2, 2), dataset, tiny_runs.recipe().data)
    assert (other.samples, other.counts["train"]["documents"] > 0) == ([], True)
    without = Dataset(tiny_runs.write_data(tmp_path / "without", holdout=0.0))
    net, recipe = made(without)
    assert take_samples(net, without, recipe.data).samples == []


def test_samples_come_back_from_a_run_folder(dataset, tmp_path):
    net, recipe = made(dataset)
    samples = take_samples(net, dataset, recipe.data, held_out(recipe, dataset))
    assert read_samples(tmp_path) is None
    write_samples(tmp_path, samples)
    assert read_samples(tmp_path) == samples
    assert (samples.data, samples.vocab_size) == ("data", dataset.vocab_size)


@pytest.mark.parametrize(
    "content", ["[]", "{", '{"data": 3}', json.dumps({"data": "x" * 100, "samples": [{"texts": 1}]})]
)
def test_samples_that_are_none_are_a_user_error_with_the_file(tmp_path, content):
    (tmp_path / SAMPLES_FILE).write_text(content)
    with pytest.raises(UserError, match=SAMPLES_FILE):
        read_samples(tmp_path)
