"""A pre-trained model measured on prepared text: the figures of its own run, told again from its folder alone."""

import itertools
import json
import shutil

import pytest
import tiny_runs
from small_models import write_small_elmo, write_small_model

from bertworks.data.loader import Loader, shape_for
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.inference import held_out
from bertworks.inference.held_out import measure_text
from bertworks.nn import config as baseline_config
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.pretrain import EVALUATION_SEED, pretrain

KINDS = {
    "mlm+nsp": ("bert", {}),
    "mlm": ("bert", {"data__objective": "mlm"}),
    "rtl": ("bert", {"data__objective": "rtl"}),
    "gpt": ("gpt", {"model__kind": "gpt", "data__objective": "ltr", "model__preset": "1x32x2"}),
    "elmo": (
        "elmo",
        {"model__kind": "elmo", "data__objective": "bilm", "model__preset": "tiny-elmo", "train__compile": False},
    ),
}
ELMO = {"num_filters": (4, 6), "char_embedding_size": 6, "num_highway_layers": 1, "projection_size": 16,
        "cell_size": 24, "num_negatives": 20}  # fmt: skip


def epoch_of(data, recipe):
    """The batches of one epoch over the documents kept aside, in the run's own shape."""
    settings = recipe.data
    shape = shape_for(settings, tokens=recipe.train.batch_size * settings.max_length)
    loader = Loader(Dataset(data), settings, shape, seed=EVALUATION_SEED, split="holdout")
    return [packed for (packed,), _ in itertools.takewhile(lambda made: not made[1].epoch, loader.batches())]


@pytest.fixture(scope="module", params=KINDS)
def measured(request, tmp_path_factory):
    """A run that measures each document kept aside once, its data and its figures."""
    kind, changes = KINDS[request.param]
    baseline_config.ELMO_SIZES.setdefault("tiny-elmo", ELMO)
    folder = tmp_path_factory.mktemp("held-out")
    data = tiny_runs.write_data(folder / "text", kind)
    epoch = epoch_of(data, tiny_runs.recipe(**changes))
    recipe = tiny_runs.recipe(**changes, train__eval_batches=len(epoch))
    outcome = pretrain(recipe, data=data, out=folder / "run", device="cpu")
    return folder / "run", data, outcome.metrics, epoch


@pytest.mark.parametrize("batch", [64, 8_192])
def test_a_model_has_the_figures_of_its_run(measured, batch, monkeypatch):
    run, data, of_run, epoch = measured
    monkeypatch.setattr(held_out, "_BATCH_TOKENS", batch)
    metrics, counts, _ = measure_text(run, data, max_length=32, device="cpu")
    shared = {name.removeprefix("holdout_"): value for name, value in of_run.items() if name != "holdout_loss"}
    assert shared, "the run measured something"
    assert {name: metrics[name] for name in shared} == pytest.approx(shared, rel=1e-5)
    assert counts["tokens"] == sum(int(packed.cumulative_lengths[len(packed.next_labels)]) for packed in epoch)


def test_the_sums_of_each_batch_add_up_to_the_figures(measured, monkeypatch):
    run, data, *_ = measured
    monkeypatch.setattr(held_out, "_BATCH_TOKENS", 64)
    found = []
    metrics, counts, _ = measure_text(run, data, max_length=32, device="cpu", each=found.append)
    assert len(found) > 1
    for kind in found[0]:
        loss, correct, weight = sum(sums[kind] for sums in found).tolist()
        assert metrics[f"{kind}_loss"] == pytest.approx(loss / weight)
        assert metrics[f"{kind}_accuracy"] == pytest.approx(correct / weight)
        assert counts[kind] == weight


@pytest.mark.parametrize("measured", ["mlm+nsp"], indirect=True)
def test_the_larger_class_is_that_of_the_pairs(measured):
    run, data, _, epoch = measured
    metrics, counts, _ = measure_text(run, data, max_length=32, device="cpu")
    pairs = [int(label) for packed in epoch for label in packed.next_labels[packed.next_weights > 0]]
    assert counts["nsp"] == len(pairs)
    assert metrics["nsp_larger_class"] == max(pairs.count(0), pairs.count(1)) / len(pairs)
    assert counts["mlm"] == sum(int(packed.masked_weights.sum()) for packed in epoch)


@pytest.mark.parametrize("measured", ["mlm+nsp"], indirect=True)
def test_the_command_says_the_same(measured, bertworks, monkeypatch):
    run, data, _, _ = measured
    asked = ("evaluate", run, "--data", data, "--max-length", 32, "--device", "cpu")
    code, out, err = bertworks(*asked)
    assert code == 0, err
    metrics, counts, _ = measure_text(run, data, max_length=32, device="cpu")
    assert out.splitlines() == [f"{name:<16} {value:.4f}" for name, value in metrics.items()]
    assert f"{counts['tokens']:,} tokens, {counts['mlm']:,} mlm, {counts['nsp']:,} nsp" in err
    told = json.loads(bertworks(*asked, "--json")[1])
    assert metrics | counts | {"max_length": 32} == {name: told[name] for name in told if name != "seconds"}
    train = json.loads(bertworks(*asked, "--json", "--split", "train")[1])
    assert train["tokens"] > 2 * counts["tokens"]
    monkeypatch.setattr(held_out, "_BATCH_TOKENS", 512)
    part = json.loads(bertworks(*asked, "--json", "--split", "train", "--max-tokens", 1_000)[1])
    assert 1_000 <= part["tokens"] < 1_512 < train["tokens"]


@pytest.mark.parametrize("measured", ["mlm+nsp"], indirect=True)
def test_what_cannot_be_measured_is_refused_with_a_way_out(measured, bertworks, tmp_path):
    run, data, _, _ = measured
    other = write_small_model(tmp_path / "other")
    headless = write_small_model(tmp_path / "headless", heads={"classify": 2})
    cased = shutil.copytree(run / "model", tmp_path / "cased")
    Tokenizer(Dataset(data).tokenizer.pieces, lowercase=False, strip_accents=False).save(cased)
    for arguments, words in (
        ((other, "--data", data), "another vocabulary"),
        ((cased, "--data", data), "other rules for case and accents"),
        ((headless, "--data", data), "--task"),
        ((write_small_elmo(tmp_path / "elmo"), "--data", data), "another vocabulary"),
        ((write_small_elmo(tmp_path / "bare", softmax=False), "--data", data), "cannot predict words"),
        ((run, "--data", data, "--max-length", 65), "at most 64 tokens"),
        ((run, run, "--data", data), "--task"),
        ((run, "--data", data, "--wrong", "wrong.csv"), "--task"),
        ((run, "--data", data, "--split", "dev"), "no dev data"),
        ((run, "--data", tmp_path), "--task"),
        ((run, "--data", data, "--task", "sst2", "--max-length", 32), "prepared text"),
    ):
        code, _, err = bertworks("evaluate", *arguments)
        assert (code, words in err) == (2, True), (arguments, err)
    with pytest.raises(UserError, match="max_length"):
        measure_text(run, data, max_length=4)
