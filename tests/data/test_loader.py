"""P2, F9: the batches of a loader are exact, endless and the same from any state and for any number of ranks."""

import itertools
import json
import os
import random
import shutil
import time
from collections import Counter

import numpy as np
import pytest
from numbered_corpus import (
    NUM_SPECIAL,
    epoch_of,
    instances_of,
    make_loader,
    ordinary_lengths,
    unpacked,
    write_corpus,
)

from bertworks.config import DataSettings
from bertworks.data.loader import Loader, State, shape_for
from bertworks.data.shards import ARRAYS, MANIFEST, Dataset
from bertworks.errors import CorruptFile, UserError
from bertworks.files import sha256_of


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("corpus"), ordinary_lengths(48), num_shards=4)


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    documents = ordinary_lengths(300, num_sentences=40, seed=1)
    return write_corpus(tmp_path_factory.mktemp("ordinary"), documents)


def take(loader, count, state=None):
    return list(itertools.islice(loader.batches(state), count))


def are_equal(some_slices, other_slices):
    return len(some_slices) == len(other_slices) and all(
        np.array_equal(some, other)
        for some_slice, other_slice in zip(some_slices, other_slices, strict=True)
        for some, other in zip(some_slice, other_slice, strict=True)
    )


def multiset(slices):
    return Counter((*i.original, i.label, *i.masked, *i.ids) for i in instances_of(slices))


# The sequence of batches


@pytest.mark.parametrize("settings", [{}, {"objective": "mlm"}, {"dupe_factor": 2}, {"objective": "ltr"}])
def test_a_fresh_loader_goes_on_from_any_state_kept_as_json(numbered, settings):
    behind = take(make_loader(numbered, slices=2, **settings), 120)
    assert behind[-1][1].epoch >= 2
    for index in random.Random(3).sample(range(119), 12):
        state = State(*json.loads(json.dumps(behind[index][1])))
        (slices, state_behind), *_ = take(make_loader(numbered, slices=2, **settings), 1, state)
        assert are_equal(slices, behind[index + 1][0])
        assert state_behind == behind[index + 1][1]


def test_a_state_is_made_of_plain_numbers_and_moves_forward(numbered):
    states = [state for _, state in take(make_loader(numbered), 100)]
    assert all(type(number) is int for state in states for number in state)
    assert states == sorted(set(states))


def test_any_number_of_ranks_gives_the_same_global_batches(numbered):
    alone = take(make_loader(numbered, slices=12, tokens=64), 20)
    assert alone[-1][1].epoch >= 1
    for world_size in (2, 3, 4, 6, 12):
        loaders = [
            make_loader(numbered, slices=12, tokens=64, rank=rank, world_size=world_size) for rank in range(world_size)
        ]
        for (slices, state), *shares in zip(alone, *(take(loader, 20) for loader in loaders), strict=True):
            together = [None] * 12
            for rank, (share, state_of_rank) in enumerate(shares):
                assert state_of_rank == state
                together[rank::world_size] = share
            assert are_equal(together, slices)


def test_ranks_may_change_at_any_state(numbered):
    """F9: four ranks, then two, then one."""
    alone = take(make_loader(numbered, slices=4), 9)
    state, position = None, 0
    for world_size in (4, 2, 1):
        loaders = [make_loader(numbered, slices=4, rank=rank, world_size=world_size) for rank in range(world_size)]
        for shares in list(zip(*(take(loader, 3, state) for loader in loaders), strict=True)):
            together = [None] * 4
            for rank, (share, _) in enumerate(shares):
                together[rank::world_size] = share
            assert are_equal(together, alone[position][0])
            state = shares[0][1]
            position += 1
    assert position == 9


def test_ranks_that_cannot_share_the_slices_are_a_user_error(numbered):
    with pytest.raises(UserError, match="5 ranks cannot share 12 micro-batches"):
        make_loader(numbered, slices=12, world_size=5)


def test_seeds_and_epochs_differ_and_one_seed_repeats(numbered):
    firsts = [take(make_loader(numbered, seed=seed), 1)[0][0] for seed in (0, 1, 2**40, -1)]
    assert not any(are_equal(some, other) for some, other in itertools.combinations(firsts, 2))
    assert are_equal(firsts[1], take(make_loader(numbered, seed=1), 1)[0][0])
    epochs = [multiset(epoch_of(make_loader(numbered), epoch)) for epoch in range(3)]
    for some, other in itertools.combinations(epochs, 2):
        assert (some & other).total() < 0.1 * some.total()


def test_dupe_factor_says_after_how_many_epochs_pairs_and_masks_repeat(numbered):
    loader = make_loader(numbered, dupe_factor=1)
    first, second = epoch_of(loader, 0), epoch_of(loader, 1)
    assert multiset(first) == multiset(second)
    assert instances_of(first) != instances_of(second)  # in another order
    epochs = [multiset(epoch_of(make_loader(numbered, dupe_factor=2), epoch)) for epoch in range(4)]
    assert epochs[0] == epochs[2] != epochs[1] == epochs[3]
    assert (epochs[0] & epochs[1]).total() < 0.1 * epochs[0].total()


def test_every_planned_instance_comes_exactly_once_an_epoch_whatever_the_slices(numbered):
    per_epoch = [multiset(epoch_of(make_loader(numbered, tokens=tokens))) for tokens in (64, 256, 4096)]
    assert per_epoch[0] == per_epoch[1] == per_epoch[2]
    assert max(per_epoch[0].values()) == 1
    # A of the pairs starts every sentence at most once, and the first of every document.
    starts = [instance.parts()[0][0] - NUM_SPECIAL for instance in instances_of(epoch_of(make_loader(numbered)))]
    assert len(starts) == len(set(starts))


def test_a_slice_never_mixes_blocks_and_blocks_come_in_another_order_each_epoch(numbered):
    orders = []
    for epoch in range(6):
        order = []
        for packed in epoch_of(make_loader(numbered), epoch):
            shards = {numbered.shard_of(instance.parts()[0][0] - NUM_SPECIAL) for instance in unpacked(packed)}
            assert len(shards) == 1
            order += shards - {order[-1] if order else None}
        assert sorted(order) == [0, 1, 2, 3]
        orders.append(tuple(order))
    assert len(set(orders)) > 2


def test_instances_of_a_block_are_shuffled(ordinary):
    starts = [i.parts()[0][0] for i in instances_of(epoch_of(make_loader(ordinary, tokens=1024)))]
    assert abs(np.corrcoef(np.arange(len(starts)), starts)[0, 1]) < 4 / np.sqrt(len(starts))


def test_a_state_of_other_data_is_a_user_error(numbered):
    for state in (State(0, 4, 0), State(-1, 0, 0), State(0, 0, -3)):
        with pytest.raises(UserError, match="does not belong to this data, which has 4 blocks"):
            next(make_loader(numbered).batches(state))


def test_a_seek_deep_into_the_epochs_replays_nothing(numbered):
    state = State(epoch=1_000_000_000, block=3, offset=11)
    take(make_loader(numbered), 1)
    before = time.process_time()
    take(make_loader(numbered), 1, state)
    assert time.process_time() - before < 1


# Shapes


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "ltr"])
def test_all_batches_have_the_same_shapes_and_padding_weighs_nothing(numbered, objective):
    loader = make_loader(numbered, objective=objective, tokens=300)
    pad = numbered.tokenizer.id_of("[PAD]")
    shapes = set()
    for (packed,), _ in take(loader, 120):
        shapes.add(tuple((array.shape, array.dtype.name) for array in packed))
        starts, num_sequences = packed.cumulative_lengths, len(packed.next_labels)
        used = starts[num_sequences]
        assert starts[0] == 0
        assert starts[-1] == 300
        assert np.all(np.diff(starts) >= 0)
        assert np.diff(starts).max() <= 32  # the tail too: attention is over sequences of at most max_length
        assert np.all(packed.token_ids[used:] == pad)
        assert not packed.segment_ids[used:].any()
        assert not packed.position_ids[used:].any()
        is_used = np.diff(starts[: num_sequences + 1]) > 0
        assert np.array_equal(packed.next_weights > 0, is_used & (objective == "mlm+nsp"))
        assert not packed.next_labels[~is_used].any()
        for weights in (packed.masked_weights, packed.next_weights):
            assert set(weights) <= {0.0, 1.0}
            assert np.all(np.diff(weights) <= 0)
        is_masked = packed.masked_weights > 0
        assert np.all(packed.masked_positions[is_masked] < used)
        assert not packed.masked_positions[~is_masked].any()
        assert not packed.masked_ids[~is_masked].any()
    assert len(shapes) == 1


@pytest.mark.parametrize(("max_length", "objective"), [(128, "mlm+nsp"), (512, "mlm+nsp"), (128, "mlm"), (512, "ltr")])
def test_ordinary_text_fills_ninety_eight_percent_of_a_slice(ordinary, max_length, objective):
    loader = make_loader(ordinary, max_length=max_length, objective=objective, tokens=64 * max_length)
    filled = [
        packed.cumulative_lengths[len(packed.next_labels)] / (64 * max_length)
        for packed in epoch_of(loader)[:-1]  # the last of a block is what was left
    ]
    assert np.mean(filled) > 0.98


def test_a_slice_takes_as_many_instances_as_fit(numbered):
    loader = make_loader(numbered, tokens=256)
    shape = loader._shape
    slices = epoch_of(loader)
    for packed, following in itertools.pairwise(slices):
        if is_same_block(numbered, packed, following):
            now, coming = unpacked(packed), unpacked(following)[0]
            tokens = sum(len(instance.ids) for instance in [*now, coming])
            masked = sum(len(instance.masked) for instance in [*now, coming])
            assert tokens > shape.tokens or masked > shape.masked or len(now) == shape.sequences


def is_same_block(numbered, *slices):
    firsts = [unpacked(packed)[0].parts()[0][0] - NUM_SPECIAL for packed in slices]
    return len({numbered.shard_of(first) for first in firsts}) == 1


@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm", "ltr"])
@pytest.mark.parametrize("sequences", [1, 8, 50])
def test_every_slice_of_so_many_sequences_has_them_but_a_block_s_last(numbered, sequences, objective):
    settings = DataSettings(max_length=32, objective=objective, mask_rate=0.14)
    shape = shape_for(settings, sequences=sequences, slices=3)
    assert shape[:2] == (32 * sequences, sequences)
    last_of_block, num_blocks = 0, 8
    behind = State()
    for slices, state in Loader(numbered.dataset, settings, shape, seed=7).batches():
        if state.epoch == 2:
            break
        assert len({array.shape for packed in slices for array in packed[:3]}) == 1
        last_of_block += sum(len(unpacked(packed)) < sequences for packed in slices)
        assert all(len(unpacked(packed)) <= sequences for packed in slices)
        assert state > behind
        behind = state
    assert last_of_block <= num_blocks


def test_many_masks_do_not_end_a_slice_of_sequences(ordinary):
    for settings in ({"mask_rate": 0.99}, {"mask_rate": 0.01}, {"max_predictions": 2}, {"whole_word": True}):
        data_settings = DataSettings(max_length=16, **settings)
        loader = Loader(ordinary.dataset, data_settings, shape_for(data_settings, sequences=9))
        assert all(len(unpacked(packed)) == 9 for packed in epoch_of(loader)[:-1])


def test_the_size_of_a_slice_is_given_once():
    for sizes in ({}, {"tokens": 512, "sequences": 4}):
        with pytest.raises(UserError, match="give exactly one of them"):
            shape_for(DataSettings(), **sizes)
    with pytest.raises(UserError, match="a micro-batch of 0 sequences is empty"):
        shape_for(DataSettings(), sequences=0)


@pytest.mark.parametrize("mask_rate", [0.01, 0.15, 0.99])
@pytest.mark.parametrize("max_length", [8, 128, 512])
def test_the_least_shape_holds_the_longest_sequence(ordinary, mask_rate, max_length):
    for whole_word in (False, True):
        loader = make_loader(
            ordinary, max_length=max_length, mask_rate=mask_rate, tokens=max_length, whole_word=whole_word
        )
        assert len(take(loader, 50)) == 50


def test_a_slice_too_small_for_one_sequence_is_a_user_error():
    with pytest.raises(UserError, match="a micro-batch of 127 tokens holds no sequence of max_length 128"):
        shape_for(DataSettings(), tokens=127)


# Odd texts


@pytest.mark.parametrize(
    "documents",
    [[[1]] * 50, [[5000], [1]], [[7] * 900, [3]], [[40, 1, 300, 2]] * 9, [[2, 3], [4]]],
    ids=["one word each", "one giant sentence", "one giant document", "sentences over max_length", "two documents"],
)
@pytest.mark.parametrize("objective", ["mlm+nsp", "mlm"])
@pytest.mark.parametrize("max_length", [8, 512])
def test_odd_documents_are_instances_too(tmp_path, documents, objective, max_length):
    numbered = write_corpus(tmp_path, documents)
    found = instances_of(epoch_of(make_loader(numbered, objective=objective, max_length=max_length, tokens=1024)))
    first_tokens = {numbered.document_of(instance.original[1] - NUM_SPECIAL) for instance in found}
    assert first_tokens == set(range(len(documents)))
    assert all(len(instance.ids) <= max_length for instance in found)
    assert all(len(instance.masked) >= 1 for instance in found)


def test_a_single_document_says_what_to_do_instead(tmp_path):
    numbered = write_corpus(tmp_path, [[5, 5, 5]])
    with pytest.raises(UserError, match=r"needs two documents, and the data has one; set data.objective=mlm"):
        make_loader(numbered)
    assert instances_of(epoch_of(make_loader(numbered, objective="mlm")))


# Corrupt shards: a random B is taken from shards that have not had their turn to be checked


@pytest.fixture
def altered(numbered, tmp_path):
    """Gives a function that writes an array of one shard anew, with the size that the manifest says."""

    def alter(kind, change, *, in_manifest=False):
        folder = tmp_path / kind
        shutil.copytree(numbered.dataset.folder, folder)
        path = sorted(folder.glob(f"train-*.{kind}.npy"))[2]
        array = np.load(path)
        change(array)
        np.save(path, array)
        if in_manifest:
            manifest = json.loads((folder / MANIFEST).read_text())
            manifest["files"][path.name]["sha256"] = sha256_of(path)
            (folder / MANIFEST).write_text(json.dumps(manifest))
        return numbered._replace(dataset=Dataset(folder))

    return alter


def set_in_the_middle(value):
    def change(array):
        array[1:-1] = value

    return change


def check_ids_of_an_epoch(loader):
    for (packed,), state in loader.batches():
        assert state.epoch == 0
        assert packed.token_ids.max() < loader._dataset.vocab_size


@pytest.mark.parametrize(
    ("kind", "value"), [("tokens", 65_535), ("sentences", 2**63 + 5), ("sentences", 0), ("documents", 10**15)]
)
@pytest.mark.parametrize("in_manifest", [False, True])
def test_a_corrupt_shard_is_found_wherever_it_is_used_first(altered, kind, value, in_manifest):
    assert kind in ARRAYS
    for seed in range(4):
        loader = make_loader(altered(kind, set_in_the_middle(value), in_manifest=in_manifest), seed=seed)
        with pytest.raises(CorruptFile):
            check_ids_of_an_epoch(loader)
        shutil.rmtree(loader._dataset.folder)


def test_a_shard_altered_within_bounds_is_found_when_it_is_entered(altered):
    def change(array):
        array[:2] = array[1::-1]

    with pytest.raises(CorruptFile, match=r"train-\d+\.tokens\.npy was altered"):
        epoch_of(make_loader(altered("tokens", change), objective="mlm"))


# Bad shards left out


def spoil(folder, way):
    """Spoil the second and the last of four shards."""
    second, last = (sorted(folder.glob("train-*.tokens.npy"))[number] for number in (1, 3))
    if way == "missing":
        second.unlink()
    elif way == "cut":
        os.truncate(second, second.stat().st_size - 1)
    elif way == "altered":
        second.write_bytes(second.read_bytes()[:-2] + b"\xff\xff")
    elif way == "offsets":
        path = folder / second.name.replace("tokens", "documents")
        path.write_bytes(path.read_bytes()[:-16] + b"\xff" * 8 + path.read_bytes()[-8:])
    last.unlink()


@pytest.mark.parametrize("way", ["missing", "cut", "altered", "offsets"])
def test_bad_shards_are_left_out_with_a_warning_each_when_asked(numbered, tmp_path, way, caplog):
    """F7."""
    folder = shutil.copytree(numbered.dataset.folder, tmp_path / "data")
    spoil(folder, way)
    with pytest.raises(CorruptFile, match=r"train-0000[13]"):
        epoch_of(make_loader(numbered._replace(dataset=Dataset(folder))))
    caplog.clear()
    datasets = [Dataset(folder, skip_bad_shards=True) for _ in range(2)]
    loaders = [make_loader(numbered._replace(dataset=dataset)) for dataset in datasets]
    first, second = (take(loader, 60) for loader in loaders)
    assert all(are_equal(some, other) for (some, _), (other, _) in zip(first, second, strict=True))
    found = instances_of(epoch_of(loaders[0]))
    tokens = {token - NUM_SPECIAL for instance in found for part in instance.parts() for token in part}
    assert {numbered.shard_of(token) for token in tokens} == {0, 2}
    datasets[0].shards("train")
    for dataset in datasets:
        assert len(dataset.skipped) == 2
        assert "train-00001" in dataset.skipped[0]
        assert "train-00003.tokens.npy is missing" in dataset.skipped[1]
    messages = [f"bad shard left out: {reason}" for dataset in datasets for reason in dataset.skipped]
    assert [record.getMessage() for record in caplog.records] == messages


def test_the_batches_are_those_of_data_without_the_bad_shards(numbered, tmp_path):
    folder = shutil.copytree(numbered.dataset.folder, tmp_path / "data")
    spoil(folder, "altered")
    skipping = numbered._replace(dataset=Dataset(folder, skip_bad_shards=True))
    for path in [*folder.glob("train-00001.*"), *folder.glob("train-00003.*")]:
        path.unlink(missing_ok=True)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"] = {name: entry for name, entry in manifest["files"].items() if (folder / name).exists()}
    manifest["train"]["tokens"] = sum(len(np.load(path)) for path in folder.glob("train-*.tokens.npy"))
    (folder / MANIFEST).write_text(json.dumps(manifest))
    without = numbered._replace(dataset=Dataset(folder))
    for (some, _), (other, _) in zip(take(make_loader(skipping), 60), take(make_loader(without), 60), strict=True):
        assert are_equal(some, other)


def test_good_data_is_the_same_with_and_without_skipping(numbered):
    skipping = numbered._replace(dataset=Dataset(numbered.dataset.folder, skip_bad_shards=True))
    assert are_equal(take(make_loader(skipping), 1)[0][0], take(make_loader(numbered), 1)[0][0])
    assert skipping.dataset.skipped == []


def test_nothing_but_bad_shards_is_an_error_with_a_reason(numbered, tmp_path):
    folder = shutil.copytree(numbered.dataset.folder, tmp_path / "data")
    for path in folder.glob("train-*.tokens.npy"):
        path.unlink()
    with pytest.raises(CorruptFile, match=r"every train shard is bad; the last: .*train-00003.tokens.npy is missing"):
        make_loader(numbered._replace(dataset=Dataset(folder, skip_bad_shards=True)))


def test_a_shard_that_goes_bad_later_is_an_error_although_bad_ones_are_skipped(numbered, tmp_path):
    """F8: the order of batches would no longer be what the state says."""
    folder = shutil.copytree(numbered.dataset.folder, tmp_path / "data")
    loader = make_loader(numbered._replace(dataset=Dataset(folder, skip_bad_shards=True)), objective="mlm")
    spoil(folder, "missing")
    with pytest.raises(CorruptFile, match=r"train-0000[13]"):
        epoch_of(loader)
