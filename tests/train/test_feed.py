"""Short sequences first, then long ones: where the change is, and that a resume meets it alike."""

import itertools

import pytest
import tiny_runs
import torch
from tiny_runs import files_of

from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.text.corpus import Corpus
from bertworks.train import pretrain as module
from bertworks.train.distributed import Ranks
from bertworks.train.log import Progress
from bertworks.train.pretrain import Feed, pretrain, pretrain_dry

TWO_LENGTHS = {"data__short_length": 16, "data__short_share": 0.5, "train__max_steps": 20}


def feed_of(data, **changes):
    recipe = tiny_runs.recipe(**changes)
    return Feed(recipe, Dataset(data), torch.device("cpu"), Ranks(), ("mlm", "nsp"), flash=False, seeded=False)


def first_batches(feed, count, place=None):
    with_share = feed.batches(place or Progress(), lambda step: step / feed.recipe.train.max_steps)
    return list(itertools.islice(with_share, count))


def test_the_first_share_of_the_steps_is_short_and_the_rest_long(data):
    feed = feed_of(data, **TWO_LENGTHS)
    batches = first_batches(feed, 20)
    assert [state["length"] for _, state in batches] == [16] * 10 + [32] * 10
    longest = [max(part.batch.tokens.packing.max_length for part in parts) for parts, _ in batches]
    assert max(longest[:10]) <= 16 < max(longest[10:]) <= 32
    assert {len(parts[0].batch.tokens.token_ids) for parts, _ in batches[:10]} == {8 * 16}
    assert {len(parts[0].batch.tokens.token_ids) for parts, _ in batches[10:]} == {8 * 32}


def test_short_sequences_may_be_more_in_a_batch_and_where_there_is_one_length_none_are(data):
    more = {"data__short_batch": 16}
    tokens = [
        len(parts[0].batch.tokens.token_ids) for parts, _ in first_batches(feed_of(data, **TWO_LENGTHS, **more), 20)
    ]
    assert tokens == [16 * 16] * 10 + [8 * 32] * 10
    ((part,), _), *_ = first_batches(feed_of(data, data__short_length=32, **more), 1)
    assert len(part.batch.tokens.token_ids) == 8 * 32


def test_long_sequences_begin_with_a_block_of_their_own(data):
    batches = first_batches(feed_of(data, **TWO_LENGTHS), 12)
    (_, last_short), (_, first_long) = batches[9:11]
    assert (first_long["epoch"], first_long["block"]) > (last_short["epoch"], last_short["block"])


@pytest.mark.parametrize("done", [1, 9, 10, 11, 15])
def test_batches_behind_a_place_are_those_of_a_run_that_was_never_interrupted(data, done):
    feed = feed_of(data, **TWO_LENGTHS)
    batches = first_batches(feed, 18)
    rest = first_batches(feed, 18 - done, Progress(step=done, data=batches[done - 1][1]))
    assert [state for _, state in rest] == [state for _, state in batches[done:]]
    for (parts, _), (expected, _) in zip(rest, batches[done:], strict=True):
        assert torch.equal(parts[0].batch.tokens.token_ids, expected[0].batch.tokens.token_ids)
        assert torch.equal(parts[0].batch.masked_ids, expected[0].batch.masked_ids)


def test_a_place_of_a_run_that_knew_one_length_is_understood(data):
    feed = feed_of(data)
    batches = first_batches(feed, 4)
    place = Progress(step=2, data={name: value for name, value in batches[1][1].items() if name != "length"})
    assert [state for _, state in first_batches(feed, 2, place)] == [state for _, state in batches[2:]]


def test_a_run_with_two_lengths_goes_on_exactly(data, tmp_path):
    """P1: also where the length changes."""
    whole = pretrain(tiny_runs.recipe(**TWO_LENGTHS), data=data, out=tmp_path / "whole", device="cpu")
    assert whole.progress.step == 20
    recipe = tiny_runs.recipe(**TWO_LENGTHS, train__max_tokens=10 * 8 * 16 - 200)
    pretrain(recipe, data=data, out=tmp_path / "parts", device="cpu")
    pretrain(tiny_runs.recipe(**TWO_LENGTHS), data=data, out=tmp_path / "parts", device="cpu", resume=True)
    ends = [files_of(tmp_path / name) for name in ("whole", "parts")]
    for name in ("model/model.safetensors", "checkpoints/step-00000020/optimizer.safetensors"):
        assert ends[0][name] == ends[1][name], name


def test_by_the_clock_the_change_comes_with_the_time(data):
    feed = feed_of(data, data__short_length=16)
    over = [0.2]
    made = feed.batches(Progress(), lambda step: over[0])
    lengths = [next(made)[1]["length"] for _ in range(3)]
    over[0] = 0.95
    lengths += [next(made)[1]["length"] for _ in range(2)]
    assert lengths == [16] * 3 + [32] * 2


def test_short_sequences_are_not_longer_than_long_ones():
    with pytest.raises(UserError, match="short_length: 64 is more than max_length 32"):
        tiny_runs.recipe(data__short_length=64)


def test_held_out_documents_are_measured_at_the_length_of_the_time(data):
    feed = feed_of(data, **TWO_LENGTHS)
    (short,), (long,) = (list(feed.held_out(share)) for share in (0.1, 0.9))
    assert len(short.batch.tokens.token_ids) == 8 * 16
    assert len(long.batch.tokens.token_ids) == 8 * 32


def test_a_dry_run_has_a_step_of_each_length(data, monkeypatch):
    lengths, real = [], module.batches

    def noted(loader, state, **options):
        lengths.append(loader._settings.max_length)
        return real(loader, state, **options)

    monkeypatch.setattr(module, "batches", noted)
    limits = {"train__max_minutes": 1, "train__max_tokens": 30}
    recipe = tiny_runs.recipe(**TWO_LENGTHS, optim__clock=True, **limits)
    assert pretrain_dry(recipe, data=data, device="cpu").progress.step == 2
    assert lengths == [16, 32]


def test_one_document_kept_aside_is_told_before_the_run(tmp_path):
    data = tiny_runs.write_data(tmp_path / "one", holdout=0.015)
    assert Dataset(data).manifest["holdout"]["documents"] == 1
    with pytest.raises(
        UserError, match=r"the data has one held out; prepare it with another --holdout, or set data.obj"
    ):
        feed_of(data)
    assert len(list(feed_of(data, data__objective="mlm").held_out(0.5))) == 1


def test_one_document_is_told_before_a_run_has_a_folder(tmp_path):
    (tmp_path / "one.txt").write_text("word1 word2. word3 word4.\nword5 word6.\n")
    prepare(Corpus([tmp_path / "one.txt"]), tiny_runs.tokenizer_of("bert"), tmp_path / "data", workers=1)
    recipe, out = tiny_runs.recipe(train__max_steps=1), tmp_path / "run"
    with pytest.raises(UserError, match=r"the data has one; set data\.objective=mlm"):
        pretrain(recipe, data=tmp_path / "data", out=out, device="cpu")
    assert not out.exists()
    alone = tiny_runs.recipe(train__max_steps=1, data__objective="mlm")
    assert pretrain(alone, data=tmp_path / "data", out=out, device="cpu").progress.step == 1


def test_a_batch_of_short_sequences_needs_their_length():
    with pytest.raises(UserError, match="short_batch: 4 is for batches of short_length, which is not set"):
        tiny_runs.recipe(data__short_batch=4)


def test_slices_that_cannot_hold_the_long_sequences_are_told_before_the_run(data):
    with pytest.raises(UserError, match="a micro-batch of 16 tokens holds no sequence of max_length 32"):
        feed_of(data, data__short_length=8, train__slices=16)
    with pytest.raises(UserError, match=r"train.slices 5 does not divide a batch of 128 tokens"):
        feed_of(data, data__max_length=40, model__max_positions=64, data__short_length=16, train__slices=5)


def test_documents_kept_aside_are_measured_once_however_many_batches_are_asked_for(data):
    parts = [len(list(feed_of(data, train__eval_batches=count).held_out(1.0))) for count in (1, 10**15)]
    tokens = Dataset(data).manifest["holdout"]["tokens"]
    assert parts[0] == 1
    assert 1 <= parts[1] <= 2 * tokens / (8 * 32) + 2
