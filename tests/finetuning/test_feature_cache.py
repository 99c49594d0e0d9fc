"""Frozen features on disk: the numbers of `Model.features`, and never a part that is not what it should be."""

import json
import os
import signal
import time

import numpy as np
import pytest
import torch
from calm_models import write_calm_model
from conll_files import conll_documents
from patience import wait_until

import bertworks as bw
from bertworks.errors import UserError
from bertworks.files import exclusive
from bertworks.finetuning import features as module
from bertworks.finetuning.features import FeatureCache
from bertworks.tasks.evaluation import WordRows, sentence_items, some_at_a_time
from bertworks.tasks.heads import BatchLayout
from bertworks.tasks.task import words_example
from bertworks.tasks.windows import encode_tags
from bertworks.train.distributed import Ranks

CPU = BatchLayout(torch.device("cpu"))
LABELS = ("O", "B-PER", "B-ORG", "B-LOC", "I-LOC")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return bw.load(write_calm_model(tmp_path_factory.mktemp("model") / "calm"), device="cpu")


@pytest.fixture
def small_parts(monkeypatch):
    monkeypatch.setattr(module, "_PART_TOKENS", 32)


def examples(seed=1, count=12):
    return [
        words_example(f"{number}-{place}", [word for word, _ in words], [tag for _, tag in words], number)
        for number, sentences in enumerate(conll_documents(count, seed))
        for place, words in enumerate(sentences)
    ]


def windows(model, **options):
    return encode_tags(model.tokenizer, examples(**options), LABELS, max_length=18)


def cache_of(folder, model, layers=(0, 4), *, kept=None, note=lambda _: None):
    return FeatureCache(folder, model.net, layers, kept or layers, CPU, Ranks(), note)


def rows_of(parts, layers=(0, 4)):
    rows = WordRows(parts)
    return torch.stack(rows.layers(torch.arange(len(rows)), layers))


def computed(model, encoded, folder):
    """How many parts a look into a cache computes."""
    count, real = [0], module.compute_rows

    def counted(*arguments):
        count[0] += 1
        return real(*arguments)

    module.compute_rows = counted
    try:
        rows = rows_of(cache_of(folder, model).find(encoded))
    finally:
        module.compute_rows = real
    return count[0], rows


def test_features_are_those_of_the_model_bit_for_bit(model, tmp_path):
    texts = [" ".join(word for word, _ in words) for document in conll_documents(9, 4) for words in document[:1]]
    encoded = encode_tags(
        model.tokenizer,
        [words_example(str(number), text.split(), None, number) for number, text in enumerate(texts)],
        max_length=18,
    )
    found = rows_of(cache_of(tmp_path, model, (0, 2, 4)).find(encoded), (0, 2, 4))
    wanted = np.concatenate(
        [
            one.hidden[[0, 2, 4]][:, window.positions]
            for one, window in zip(model.features(texts), encoded.windows, strict=True)
        ],
        axis=1,
    )
    assert np.array_equal(found.numpy(), wanted)


def test_half_precision_is_kept_bit_for_bit(tmp_path, model):
    net = bw.load(write_calm_model(tmp_path / "calm"), device="cpu").net.bfloat16()
    encoded = windows(model)
    found = rows_of(FeatureCache(tmp_path / "c", net, (1, 4), (1, 4), CPU, Ranks(), print).find(encoded), (1, 4))
    assert found.dtype == torch.bfloat16
    wanted = module.compute_rows(net, encoded.windows, (1, 4), CPU)
    assert torch.equal(found, torch.stack([wanted[1], wanted[4]]))


def test_a_cache_that_is_there_is_not_computed_again(model, tmp_path, small_parts):
    encoded = windows(model)
    first, rows = computed(model, encoded, tmp_path)
    again, same = computed(model, encoded, tmp_path)
    assert first > 3
    assert again == 0
    assert torch.equal(rows, same)


@pytest.mark.parametrize("change", ["weights", "data", "cut", "dtype"])
def test_another_model_or_other_texts_have_another_cache(model, tmp_path, change):
    cache_of(tmp_path / "c", model).find(windows(model))
    other, encoded = model, windows(model)
    if change == "weights":
        other = bw.load(write_calm_model(tmp_path / "other", seed=1), device="cpu")
    elif change == "dtype":
        other = bw.load(write_calm_model(tmp_path / "other"), device="cpu")
        other.net.bfloat16()
    elif change == "data":
        encoded = windows(model, seed=2)
    else:
        encoded = encode_tags(model.tokenizer, examples(), LABELS, max_length=12)
    assert computed(other, encoded, tmp_path / "c")[0] > 0
    assert len(list((tmp_path / "c").iterdir())) == 2
    assert computed(model, windows(model), tmp_path / "c")[0] == 0


def test_the_same_ids_divided_into_other_words_have_another_cache(model, tmp_path):
    """Only first pieces are kept, so which they are belongs to the name."""
    for number, words in enumerate((["cat.", "dog"], ["cat", ".dog"])):
        encoded = encode_tags(model.tokenizer, [words_example("0", words, None, 0)], max_length=18)
        assert len(rows_of(cache_of(tmp_path, model).find(encoded))[0]) == len(words)
        assert len(list(tmp_path.iterdir())) == number + 1


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing", "no manifest", "half written"])
def test_a_part_that_is_not_whole_is_computed_again_and_no_other(model, tmp_path, small_parts, damage):
    """T-like faults of a file: cut, changed, gone; and what a kill leaves."""
    encoded = windows(model)
    _, rows = computed(model, encoded, tmp_path)
    part = next(tmp_path.iterdir()) / "part-00001"
    file = part / "layer-04.npy"
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-4])
    elif damage == "altered":
        file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    elif damage == "missing":
        file.unlink()
    elif damage == "no manifest":
        (part / "manifest.json").unlink()
    else:
        part.rename(part.with_name(".tmp-part-00001-" + "0" * 32))
    count, again = computed(model, encoded, tmp_path)
    assert count == 1
    assert torch.equal(again, rows)
    assert sorted(path.name for path in part.parent.iterdir()) == [
        f"part-{n:05}" for n in range(len(list(part.parent.iterdir())))
    ]


def test_a_kill_in_the_middle_leaves_whole_parts_to_go_on_with(model, tmp_path, small_parts, monkeypatch):
    """F1 of the cache."""
    encoded = windows(model)
    num_parts, rows = computed(model, encoded, tmp_path / "whole")
    real = module.compute_rows

    def slow(*arguments):
        time.sleep(0.05)
        return real(*arguments)

    child = os.fork()
    if not child:
        try:
            module.compute_rows = slow
            cache_of(tmp_path / "c", model).find(encoded)
        finally:
            os._exit(0)
    wait_until(lambda: len(list(tmp_path.glob("c/*/part-*"))) >= 2)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    there = len(list(tmp_path.glob("c/*/part-*")))
    assert 2 <= there < num_parts
    count, again = computed(model, encoded, tmp_path / "c")
    assert count == num_parts - there
    assert torch.equal(again, rows)


def test_layers_that_are_asked_for_later_come_beside_those_that_are_there(model, tmp_path):
    encoded = windows(model)
    before = rows_of(cache_of(tmp_path, model, (4,)).find(encoded), (4,))
    both = cache_of(tmp_path, model, (1,))
    found = rows_of(both.find(encoded), (1,))
    assert computed_layers(tmp_path) == {"layer-01.npy", "layer-04.npy"}
    assert torch.equal(rows_of(cache_of(tmp_path, model, (4,)).find(encoded), (4,)), before)
    assert not torch.equal(found, before)
    assert len(both.checksums) == 1


def computed_layers(folder):
    manifest = json.loads(next(folder.glob("*/part-00000/manifest.json")).read_text())
    return set(manifest["files"])


def test_a_shared_cache_keeps_all_layers_and_says_the_checksums_of_those_it_gives(model, tmp_path):
    encoded, notes = windows(model), []
    shared = cache_of(tmp_path, model, (4,), kept=range(5), note=notes.append)
    shared.find(encoded)
    assert len(computed_layers(tmp_path)) == 5
    alone = cache_of(tmp_path / "alone", model, (4,))
    alone.find(encoded)
    assert shared.checksums == alone.checksums
    assert "5 layers: computing 1 of 1 parts" in notes[0]


def test_only_as_many_layers_are_computed_as_are_wanted(model, tmp_path, monkeypatch):
    def refused(*_):
        raise AssertionError("the embeddings need no block")

    monkeypatch.setattr(type(model.net.blocks[0]), "forward", refused)
    assert len(rows_of(cache_of(tmp_path, model, (0,)).find(windows(model)), (0,))[0])


def test_two_at_once_are_told_of_each_other_where_something_is_to_be_computed(model, tmp_path):
    encoded = windows(model)
    cache_of(tmp_path, model).find(encoded)
    with exclusive(next(tmp_path.iterdir())):
        assert computed(model, encoded, tmp_path)[0] == 0
        with pytest.raises(UserError, match="in use by process"):
            cache_of(tmp_path, model, (1,)).find(encoded)


def test_a_full_disk_is_told_before_the_work(model, tmp_path, monkeypatch):
    import shutil

    full = shutil.disk_usage(tmp_path)._replace(free=100)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(UserError, match=r"bytes, .* should be free, and 100"):
        cache_of(tmp_path, model).find(windows(model))


def test_sentences_are_the_rows_of_their_words_in_order(model):
    encoded = windows(model)
    given, items = examples(), sentence_items(encoded, first_row=7)
    assert len(items) == len(given)
    assert items.ids[0] == 7
    for number, example in enumerate(given):
        length = items.bounds[number + 1] - items.bounds[number]
        assert [LABELS[target] for target in items.targets[number, :length]] == list(example.tags)
        assert (items.weights[number, length:] == 0).all()


def test_what_is_predicted_at_a_time_ends_between_sentences(model, monkeypatch):
    from bertworks.tasks import evaluation as word_features

    monkeypatch.setattr(word_features, "_WORDS_AT_ONCE", 1)
    encoded = windows(model)
    some = list(some_at_a_time(encoded))
    assert len(some) > 2
    assert [window for one in some for window in one.windows] == encoded.windows
    assert sum(len(sentence_items(one)) for one in some) == len(sentence_items(encoded))
