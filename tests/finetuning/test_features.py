"""Feature-based training: what is learnt on frozen layers, the model that comes out of it, and exact resume."""

import json
import shutil
import tomllib

import numpy as np
import pytest
import torch
from calm_models import write_calm_model
from conll_files import write_conll
from tiny_runs import files_of, kill_until_through, lines_of
from toy_tasks import write_task

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.session import alike_order_of
from bertworks.finetuning.settings import settings_for
from bertworks.finetuning.table7 import table7
from bertworks.inference.evaluate import measure_models
from bertworks.inference.predict import Ensemble
from bertworks.nn.config import FEATURES, layers_of

QUICK = ("optim.lr=1e-2", "task.cells=32", "task.dropout=0.02", "task.max_length=18", "train.batch_size=8",
         "train.epochs=4", "train.log_every=5", "train.save_every=7")  # fmt: skip
LAST = (*QUICK, "task.features=last")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_calm_model(tmp_path_factory.mktemp("model") / "calm")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_conll(tmp_path_factory.mktemp("conll"))


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, finetune("conll2003", model=model, data=data, out=run, overrides=LAST, device="cpu")


def test_a_tagger_on_the_last_layer_learns_and_its_folder_tags(finished):
    run, outcome = finished
    assert (outcome.metric, outcome.reason) == ("f1", "steps")
    assert outcome.score > 0.85  # all O, or all alike, gives 0
    opened = bw.load(run, device="cpu")
    config = json.loads((run / "model/config.json").read_text())
    assert (config["model_type"], config["features"], config["lstm_cells"]) == ("bertworks-features", "last", 32)
    found = opened.tag("the cat sat on the mat")
    assert [(entity["type"], entity["text"]) for entity in found] == [("PER", "cat")]
    assert opened.tag(["", "."]) == [[], []]
    assert opened.features(["the cat"])[0].hidden.shape == (5, 4, 16)


def test_evaluate_gives_what_was_measured_in_training(finished, data):
    """The cache, the encoder at work and the windows of prediction all say the same."""
    run, outcome = finished
    metrics = measure_models(Ensemble([bw.load(run, device="cpu")], ["run"]), "conll2003", data).metrics
    for name in ("f1", "precision", "recall", "loss"):
        assert metrics[name] == pytest.approx(outcome.metrics[name], rel=1e-5)


def test_only_the_reader_learns(finished, model):
    run, _ = finished
    before, after = (dict(bw.load(place, device="cpu").net.named_parameters()) for place in (model, run))
    encoder = [name for name in after if not name.startswith("heads.")]
    assert len(encoder) == len(before) - 2  # all but the pooler, which nobody reads
    assert all(torch.equal(before[name], after[name]) for name in encoder)


def test_the_same_settings_give_the_same_bytes_with_any_cache(finished, model, data, tmp_path):
    run = tmp_path / "run"
    finetune("conll2003", model=model, data=data, out=run, cache=tmp_path / "c", overrides=LAST, device="cpu")
    shutil.copytree(finished[0], tmp_path / "other", ignore=shutil.ignore_patterns("features"))
    assert files_of(run) == files_of(tmp_path / "other")


def test_resume_is_bit_exact_after_sigkill(finished, model, data, tmp_path):
    """F1: killed at random instants, among them while features are computed, until it is through."""
    run = tmp_path / "run"
    options = {"model": model, "data": data, "out": run, "overrides": LAST, "device": "cpu", "resume": True}
    kill_until_through(lambda: finetune("conll2003", **options), 3)
    assert files_of(run) == files_of(finished[0])


def test_a_run_goes_on_without_its_model_and_without_its_cache(model, data, tmp_path):
    run, control = tmp_path / "run", tmp_path / "control"
    options = {"data": data, "device": "cpu", "resume": True}
    finetune("conll2003", model=model, out=run, overrides=[*LAST, "train.max_steps=9"], **options)
    shutil.copytree(run, control)
    shutil.rmtree(run / "features")
    short = [*LAST, "train.max_steps=20"]
    for place, source in ((run, tmp_path / "gone"), (control, model)):
        assert finetune("conll2003", model=source, out=place, overrides=short, **options).progress.step == 20
    assert (run / "model/model.safetensors").read_bytes() == (control / "model/model.safetensors").read_bytes()


def test_features_of_other_numbers_cannot_go_on_with_a_run(finished, model, data, tmp_path, monkeypatch):
    run = tmp_path / "run"
    shutil.copytree(finished[0], run, ignore=shutil.ignore_patterns("features"))
    from bertworks.finetuning import features as feature_cache

    real = feature_cache.compute_rows
    monkeypatch.setattr(
        feature_cache, "compute_rows",
        lambda *arguments: {layer: rows + 1e-6 for layer, rows in real(*arguments).items()},
    )  # fmt: skip
    with pytest.raises(UserError, match=r"or data \(the settings are the same, so it is the data\); use the same"):
        finetune("conll2003", model=model, data=data, out=run, overrides=LAST, device="cpu", resume=True)


def test_all_six_rows_are_learnt_from_one_cache_and_make_a_table(model, data, tmp_path):
    notes = []
    options = {"model": model, "data": data, "device": "cpu", "note": notes.append}
    rows = table7("conll2003", out=tmp_path / "six", overrides=QUICK, **options)
    assert [row.features for row in rows] == list(FEATURES)
    assert min(row.outcome.score for row in rows) > 0.85
    assert len([note for note in notes if "computed in" in note]) == 2  # train and dev, once for all six
    table = (tmp_path / "six/table7.md").read_text().splitlines()
    assert "| Embeddings | 91.0 |" in table[4]
    assert "| Concat Last Four Hidden | 96.1 |" in table[8]
    before = files_of(tmp_path / "six")
    again = table7("conll2003", out=tmp_path / "six", overrides=QUICK, resume=True, **options)
    assert [row.facts()["f1"] for row in again] == [row.facts()["f1"] for row in rows]
    assert files_of(tmp_path / "six").keys() == before.keys()
    with pytest.raises(UserError, match="is not empty"):
        table7("conll2003", out=tmp_path / "six", overrides=QUICK, **options)


def test_a_row_of_the_table_may_be_the_mean_of_restarts_and_equal_rows_are_trained_once(
    bertworks, model, data, tmp_path
):
    few = [*QUICK, "train.epochs=1", "train.seed=3"]
    command = ("finetune", "conll2003", "--model", model, "--data", data, "--out", tmp_path / "six", "--device", "cpu")
    code, out, _ = bertworks(*command, "--features", "table7", "--restarts", 2, *few, "--json")
    rows = {row["features"]: row for row in json.loads(out)["rows"]}
    assert (code, list(rows)) == (0, list(FEATURES))
    for row in rows.values():
        assert len(row["restarts"]) == 2
        assert row["f1"] == pytest.approx(sum(row["restarts"]) / 2, abs=0.011)
    seeds = {
        run.name: tomllib.loads((run / "recipe.toml").read_text())["train"]["seed"] for run in tmp_path.glob("six/*-*")
    }
    assert (seeds["sum-last-four"], seeds["sum-last-four-seed4"]) == (3, 4)
    assert "(2 restarts):" in (tmp_path / "six/table7.md").read_text().splitlines()[0]
    # The model has four layers.
    same = [{**rows[name], "features": "", "title": "", "paper": 0} for name in ("sum-last-four", "sum-all")]
    assert same[0] == same[1]
    assert not list(tmp_path.glob("six/sum-all*"))


def test_a_model_of_three_layers_is_refused_before_a_row_is_trained(data, tmp_path):
    model = write_calm_model(tmp_path / "three", num_hidden_layers=3)
    with pytest.raises(UserError, match="at least 4 layers, and this one has 3"):
        table7("conll2003", model=model, data=data, out=tmp_path / "six", overrides=QUICK, device="cpu")
    assert not list(tmp_path.glob("six/*/model"))


def test_names_mean_the_papers_layers():
    chosen = {name: layers_of(name, 12) for name in FEATURES}
    assert chosen == {
        "embeddings": (0,),
        "second-to-last": (11,),
        "last": (12,),
        "sum-last-four": (9, 10, 11, 12),
        "concat-last-four": (9, 10, 11, 12),
        "sum-all": tuple(range(1, 13)),
    }


def test_what_is_not_tagging_is_told_of_freezing(model, tmp_path):
    train, dev = write_task(tmp_path, "classify")
    overrides = ["task.features=last", "task.max_length=16"]
    with pytest.raises(UserError, match=r"task\.freeze=all trains a head"):
        finetune("classify", model=model, train=train, dev=dev, out=tmp_path / "run", overrides=overrides)


def test_settings_without_a_meaning_are_told_together(model, data, tmp_path):
    overrides = [*LAST, "task.freeze=2", "task.layer_decay=0.9", "train.compile=true"]
    with pytest.raises(ConfigError) as caught:
        finetune("conll2003", model=model, data=data, out=tmp_path / "run", overrides=overrides, device="cpu")
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "task.freeze", "task.layer_decay", "train.compile",
    ]  # fmt: skip


def test_a_bilstm_has_defaults_of_its_own():
    from bertworks.tasks import find_task

    task = find_task("conll2003")
    assert settings_for(task).optim.lr == task.defaults.learning_rate
    assert settings_for(task, ["task.features=last"]).optim.lr == 1e-3
    assert settings_for(task, ["task.features=last", "optim.lr=2e-3"]).optim.lr == 2e-3
    with pytest.raises(ConfigError, match="sum-all"):
        settings_for(task, ["task.features=lats"])


@pytest.mark.parametrize("count", [1, 8, 100, 999])
def test_batches_of_like_length_go_through_every_item_once_in_another_order_each_epoch(count):
    lengths = np.random.default_rng(0).integers(1, 60, count)
    orders = [alike_order_of(lengths, 8, 5, epoch) for epoch in (0, 1)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(count))
    assert count <= 8 or not np.array_equal(*orders)
    batches = [lengths[orders[0][first : first + 8]] for first in range(0, count - 7, 8)]
    assert count <= 8 or np.mean([batch.max() - batch.min() for batch in batches]) < 10


def test_a_run_evaluates_every_epoch_and_its_model_says_what_it_is(finished):
    run, outcome = finished
    assert len([line for line in lines_of(run) if "dev_f1" in line]) == 4
    about = bw.load(run, device="cpu").about
    assert about["task"]["kind"] == "tag"
    assert about["metrics"]["dev_f1"] == outcome.score
    assert about["provenance"]["start"]["drawn"][0].startswith("heads.tag.")


def test_your_own_files_are_tagged_on_frozen_layers_too(model, tmp_path):
    train, dev = write_task(tmp_path, "tag")
    overrides = [*LAST, "train.epochs=8"]
    outcome = finetune(
        "tag", model=model, train=train, dev=dev, out=tmp_path / "run", overrides=overrides, device="cpu"
    )
    assert outcome.score > 0.9
    found = bw.load(tmp_path / "run", device="cpu").tag(["a big dog sat"])
    assert [entity["type"] for entity in found[0]] == ["SIZE", "ANIMAL"]


def test_the_command_trains_a_row_tags_with_it_and_prints_the_table(bertworks, model, data, tmp_path):
    few = [*QUICK, "train.epochs=1"]
    command = ("finetune", "conll2003", "--model", model, "--data", data, "--device", "cpu", "--cache", tmp_path / "c")
    code, out, _ = bertworks(*command, "--out", tmp_path / "one", "--features", "sum-all", *few, "--json")
    assert (code, json.loads(out)["reason"]) == (0, "steps")
    assert not (tmp_path / "one/features").exists()
    code, out, _ = bertworks("tag", tmp_path / "one", "the cat sat")
    assert code == 0
    code, out, _ = bertworks("evaluate", tmp_path / "one", "--task", "conll2003", "--data", data, "--json")
    assert code == 0
    assert "f1" in json.loads(out)
    code, out, _ = bertworks(*command, "--out", tmp_path / "six", "--features", "table7", *few, "--json")
    assert [row["paper"] for row in json.loads(out)["rows"]] == [91.0, 95.6, 94.9, 95.9, 96.1, 95.5]
    code, out, _ = bertworks(*command, "--out", tmp_path / "six", "--features", "table7", *few, "--resume")
    assert code == 0
    assert (tmp_path / "six/table7.md").read_text() in out
    code, _, err = bertworks(*command, "--out", tmp_path / "no", "--features", "first", *few)
    assert (code, "sum-all" in err) == (2, True)


def test_a_run_on_frozen_layers_starts_another_but_is_not_fine_tuned(finished, data, tmp_path):
    """Its encoder is as good as the model's own; a run without `task.features` is told what it is."""
    options = {"data": data, "device": "cpu", "overrides": [*QUICK, "train.epochs=1"]}
    finetune("conll2003", model=finished[0], out=tmp_path / "again", **options | {"overrides": LAST})
    again = (tmp_path / "again/model/model.safetensors").read_bytes()
    assert again == (finished[0] / "model/model.safetensors").read_bytes()
    with pytest.raises(UserError, match="model of kind features, which cannot be fine-tuned"):
        finetune("conll2003", model=finished[0], out=tmp_path / "no", **options)


def test_a_random_encoder_is_drawn_once_and_goes_on(model, data, tmp_path):
    options = {"model": model, "data": data, "out": tmp_path / "run", "device": "cpu", "init": "random"}
    finetune("conll2003", overrides=[*LAST, "train.max_steps=5"], **options)
    drawn = bw.load(tmp_path / "run", device="cpu").net.state_dict()["embeddings.token.weight"].clone()
    outcome = finetune("conll2003", overrides=[*LAST, "train.max_steps=20"], resume=True, **options)
    assert outcome.progress.step == 20
    assert torch.equal(bw.load(tmp_path / "run", device="cpu").net.state_dict()["embeddings.token.weight"], drawn)
    assert not torch.equal(drawn, bw.load(model, device="cpu").net.state_dict()["embeddings.token.weight"])


def test_many_runs_take_layers_but_no_table_and_no_shared_cache(bertworks, model, data, tmp_path):
    command = ("finetune", "conll2003", "--model", model, "--data", data, "--out", tmp_path / "run", "--device", "cpu")
    few = [*QUICK, "train.epochs=1"]
    for more in (("--grid", "--features", "table7"), ("--features", "last", "--cache", tmp_path / "c")):
        code, _, err = bertworks(*command, "--restarts", 2, *more, *few)
        assert (code, "but not with --cache; --features table7 can only be used with --restarts" in err) == (2, True)
    code, _, _ = bertworks(*command, "--restarts", 2, "--features", "last", *few, "--json")
    assert code == 0
    assert json.loads((tmp_path / "run/model/config.json").read_text())["model_type"] == "bertworks-features"
