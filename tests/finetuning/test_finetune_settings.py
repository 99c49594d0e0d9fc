"""Settings of fine-tuning: the paper's where nothing is said, frozen layers, rates by layer, class weights, the end."""

import json
import random
import re
import statistics
import tomllib
from pathlib import Path

import pytest
import torch
from small_models import write_small_model
from toy_tasks import QUICK, SIZES, text_with, write_rows, write_task

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.finetuning import finetune as module
from bertworks.finetuning import session as session_module
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.network import rate_scales
from bertworks.finetuning.search import GridPlan, search
from bertworks.finetuning.session import order_of
from bertworks.finetuning.settings import TaskSettings, settings_for, without_effect
from bertworks.models.convert import convert
from bertworks.models.folder import read_rates
from bertworks.nn.bert import Bert, OutputHead
from bertworks.nn.config import BertConfig
from bertworks.tasks import find_task
from bertworks.tasks.task import Cut


@pytest.fixture
def task(tmp_path):
    model = write_small_model(tmp_path / "model", **(SIZES | {"num_hidden_layers": 2}))
    train, dev = write_task(tmp_path, "classify")
    return {"model": model, "train": train, "dev": dev, "device": "cpu"}


def test_settings_are_the_papers_unless_said_otherwise():
    """A.3: batches of 32, 3 epochs, rates between 2e-5 and 5e-5; the original code's Adam and warm-up."""
    settings = settings_for(find_task("sst2"), ["optim.lr=2e-5"])
    assert (settings.train.batch_size, settings.train.epochs) == (32, 3)
    optim = settings.optim
    assert (optim.name, optim.lr, optim.warmup, optim.schedule, optim.weight_decay) == (
        "adam",
        2e-5,
        0.1,
        "linear",
        0.01,
    )
    assert 2e-5 <= settings_for(find_task("mnli")).optim.lr <= 5e-5


@pytest.mark.parametrize(("overrides", "dropout"), [((), 0.25), (("task.dropout=0.125",), 0.125)])
def test_dropout_is_the_models_own_unless_said_otherwise(tmp_path, overrides, dropout):
    """The paper's models have 0.1, and bert_config.json is where the original code reads it too."""
    own = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.25}
    model = write_small_model(tmp_path / "model", **SIZES | own)
    train, dev = write_task(tmp_path, "classify")
    settings = ("task.max_length=16", "train.epochs=1", *overrides)
    finetune("classify", model=model, train=train, dev=dev, out=tmp_path / "run", overrides=settings, device="cpu")
    config = json.loads((tmp_path / "run" / "model" / "config.json").read_text())
    assert (config["hidden_dropout_prob"], config["attention_probs_dropout_prob"]) == (dropout, dropout)


@pytest.mark.parametrize(("overrides", "dropout"), [((), 0.375), (("task.dropout=0.125",), 0.125)])
def test_the_heads_dropout_is_classifier_dropout_where_config_json_says_so(tmp_path, monkeypatch, overrides, dropout):
    model = write_small_model(tmp_path / "model", **SIZES)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"classifier_dropout": 0.375}))
    train, dev = write_task(tmp_path, "classify")
    seen, forward = set(), OutputHead.forward
    monkeypatch.setattr(OutputHead, "forward", lambda head, rows: (seen.add(head.dropout), forward(head, rows))[1])
    settings = ("task.max_length=16", "train.epochs=1", *overrides)
    finetune("classify", model=model, train=train, dev=dev, out=tmp_path / "run", overrides=settings, device="cpu")
    assert seen == {dropout}


def test_a_rate_that_goes_by_the_clock_is_for_pretraining():
    with pytest.raises(UserError, match="optim: clock is for pre-training"):
        settings_for(find_task("sst2"), ["optim.clock=true", "train.max_minutes=5"])


def test_all_problems_of_overrides_are_told_at_once():
    with pytest.raises(UserError, match=r"(?s)train\.epoch: .*did you mean.*task\.freeze: -1 is too small"):
        settings_for(find_task("sst2"), ["task.freeze=-1", "train.epoch=2"])


def test_several_values_of_a_setting_are_told_to_need_a_grid():
    with pytest.raises(ConfigError) as refused:
        settings_for(find_task("sst2"), ["optim.lr=1e-4,2e-4", "train.epochs=x"])
    hint = "; several values are for `bertworks search` (in Python: bw.search)"
    assert refused.value.problems == [
        f"optim.lr: '1e-4,2e-4' is not a number{hint}",
        "train.epochs: 'x' is not a whole number",
    ]


def test_what_only_another_kind_of_task_reads_is_said_to_change_nothing(task, tmp_path):
    told = "task.doc_stride changes nothing: only tasks of kind answer have it, and classify is of kind classify"
    for more in ({}, {"plan": GridPlan(restarts=2)}):
        notes = []
        run = search if more else finetune
        overrides = (*QUICK, "train.epochs=1", "task.doc_stride=8", "task.max_length=16")
        run("classify", out=tmp_path / str(len(more)), overrides=overrides, note=notes.append, **task, **more)
        assert notes.count(told) == 1
        assert not [note for note in notes if "max_length" in note]
    assert without_effect(find_task("squad1"), ["task.doc_stride=8", "task.max_query=8"]) == []
    assert without_effect(find_task("conll2003"), ["task.stride=8", "task.context=sentence"]) == []


@pytest.mark.parametrize(("given", "shown"), [("foo", "'foo'"), ("1.5", "1.5"), ("true", "true")])
def test_a_key_that_may_be_a_number_or_a_word_has_one_problem(given, shown):
    with pytest.raises(ConfigError) as refused:
        settings_for(find_task("sst2"), [f"task.freeze={given}"])
    assert refused.value.problems == [f"task.freeze: {shown} is neither a whole number nor 'all'"]


@pytest.mark.parametrize(("freeze", "moved"), [(0, True), (1, True), ("all", False)])
def test_frozen_layers_stay_as_they_are_and_the_rest_learns(task, tmp_path, freeze, moved):
    run = tmp_path / "run"
    finetune("classify", out=run, overrides=(*QUICK, f"task.freeze={freeze}", "train.epochs=1"), **task)
    old, new = bw.load(task["model"]).net, bw.load(run).net
    assert torch.equal(old.embeddings.token.weight, new.embeddings.token.weight) == bool(freeze)
    assert torch.equal(old.blocks[0].up.weight, new.blocks[0].up.weight) == bool(freeze)
    assert torch.equal(old.blocks[1].up.weight, new.blocks[1].up.weight) != moved
    assert not torch.equal(old.pooler.weight, new.pooler.weight)


def test_more_frozen_layers_than_there_are_is_an_error(task, tmp_path):
    with pytest.raises(UserError, match="the model has 2 layers"):
        finetune("classify", out=tmp_path / "run", overrides=(*QUICK, "task.freeze=3"), **task)


def test_rates_fall_from_layer_to_layer():
    net = Bert(BertConfig(vocab_size=5, hidden_size=8, num_hidden_layers=2, num_attention_heads=2), {"classify": 2})
    scales = rate_scales(net, 0.5)
    assert (scales["blocks.1.up.weight"], scales["blocks.0.up.bias"], scales["embeddings.norm.weight"]) == (
        0.5,
        0.25,
        0.125,
    )
    assert not [name for name in scales if name.startswith(("pooler", "heads"))]
    assert rate_scales(net, 1.0) == {}


def test_a_run_ends_early_when_nothing_gets_better_and_stays_ended(task, tmp_path, monkeypatch):
    scores = iter([0.6, 0.5, 0.6, 0.9])
    real = session_module.evaluate

    def fixed(*arguments):
        return real(*arguments)._replace(metrics={"accuracy": next(scores), "f1_macro": 0.0, "loss": 1.0})

    monkeypatch.setattr(session_module, "evaluate", fixed)
    overrides = (*QUICK, "task.early_stopping=2")
    outcome = finetune("classify", out=tmp_path / "run", overrides=overrides, **task)
    assert (outcome.reason, outcome.progress.step, outcome.step) == ("early", 18, 6)
    again = finetune("classify", out=tmp_path / "run", overrides=overrides, resume=True, **task)
    assert (again.reason, again.progress.step, again.score) == ("early", 18, 0.6)


def test_evaluations_may_come_more_often_than_epochs_end(task, tmp_path):
    finetune("classify", out=tmp_path / "run", overrides=(*QUICK, "train.epochs=2", "train.eval_every=4"), **task)
    lines = [line for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines() if "dev_accuracy" in line]
    assert [int(line.split('"step": ')[1].split(",")[0]) for line in lines] == [4, 6, 8, 12]


def test_weighted_classes_count_alike(tmp_path):
    rng = random.Random(0)
    rows = [{"text": text_with("cat", rng), "label": "x"} for _ in range(30)]
    rows += [{"text": text_with("dog", rng), "label": "y"} for _ in range(10)]
    dataset = module.find_data("classify", None, {"train": write_rows(tmp_path / "t.jsonl", rows)}, lambda _: None)
    settings = settings_for(dataset.task, [*QUICK, "task.class_weights=true"])
    model, kind = write_small_model(tmp_path / "model", **SIZES), module.kind_of(dataset.task)
    start = module.open_task_start(model, tmp_path / "run", dataset.task, kind, settings.task, seed=0, is_random=False)
    items = module.prepare(settings, dataset, start).items
    by_class = [float(items.weights[items.targets == number].sum()) for number in range(2)]
    assert by_class[0] == pytest.approx(by_class[1], rel=1e-5)
    assert items.weights.mean() == pytest.approx(1)


def test_a_regression_has_no_classes_to_weigh(tmp_path, task):
    train, dev = write_task(tmp_path / "scores", "regress")
    options = task | {"train": train, "dev": dev}
    with pytest.raises(UserError, match="has no weights of classes"):
        finetune("regress", out=tmp_path / "run", overrides=(*QUICK, "task.class_weights=true"), **options)


def test_every_epoch_has_another_order_of_all_items_and_a_seed_decides_it():
    first, second, other = order_of(1000, 0, 0), order_of(1000, 0, 1), order_of(1000, 1, 0)
    for order in (first, second, other):
        assert sorted(order) == list(range(1000))
    assert (first == order_of(1000, 0, 0)).all()
    for one, another in ((first, second), (first, other), (second, other)):
        assert (one == another).sum() < 10


def test_what_is_not_said_of_windows_is_what_a_model_takes_without_settings():
    """`Cut` is what a model's folder without such keys is read with."""
    assert TaskSettings(max_length=7).cut() == Cut(7)
    assert set(Cut._fields) < set(TaskSettings.model_fields)


@pytest.mark.parametrize("start", [finetune, search])
def test_overrides_that_are_one_text_are_refused(task, tmp_path, start):
    with pytest.raises(UserError, match=r"overrides are a list, not one text; write overrides=\['train.epochs=1'\]"):
        start("classify", out=tmp_path / "run", overrides="train.epochs=1", **task)


RATES = {"lr": 2e-4, "lr_grid": [1e-3, 2e-4]}


@pytest.fixture(scope="module")
def rated(tmp_path_factory):
    """A model whose folder says at which rates it is best fine-tuned."""
    folder = tmp_path_factory.mktemp("rated")
    train, dev = write_task(folder, "classify", num_train=16, num_dev=8)
    about = {"finetune": RATES}
    model = write_small_model(folder / "model", **(SIZES | {"num_hidden_layers": 1}), about=about)
    return {"model": model, "train": train, "dev": dev, "device": "cpu"}


QUICKEST = ("task.max_length=16", "train.epochs=1")


@pytest.mark.parametrize(
    ("changes", "rate"),
    [
        ((), 2e-4),
        (("optim.lr=5e-5",), 5e-5),
        (("optim.lr = 5e-5", "optim.warmup=0"), 5e-5),
        (("optim.warmup=0",), 2e-4),
    ],
)
def test_a_model_is_fine_tuned_at_the_rate_that_its_folder_says(rated, tmp_path, changes, rate):
    """Said where it is taken; a run, and what is made of it, says the same rates."""
    notes, overrides = [], [*QUICKEST, *changes]
    finetune("classify", **rated, out=tmp_path / "run", overrides=overrides, note=notes.append)
    assert tomllib.loads((tmp_path / "run/recipe.toml").read_text())["optim"]["lr"] == rate
    said = f"optim.lr=2e-4, as {rated['model']} recommends; for BERT base it would be 3e-5"
    assert (said in notes) == (rate == 2e-4)
    bw.load(tmp_path / "run", device="cpu").save(tmp_path / "saved")
    convert(tmp_path / "run", tmp_path / "half", dtype="bfloat16")
    for made in ("saved", "half"):
        assert bw.load(tmp_path / made, device="cpu").about["finetune"] == RATES
    if not changes:  # resumed without the model, and a model of a run as the model of another
        again = rated | {"model": tmp_path / "gone", "overrides": overrides, "resume": True}
        notes.clear()
        finetune("classify", **again, out=tmp_path / "run", note=notes.append)
        assert said not in notes, "once is enough"
        finetune("classify", **(rated | {"model": tmp_path / "run"}), out=tmp_path / "more", overrides=QUICKEST)
        assert tomllib.loads((tmp_path / "more/recipe.toml").read_text())["optim"]["lr"] == 2e-4


def test_a_grid_tries_the_rates_that_the_model_names(rated, tmp_path):
    few = (*QUICKEST, "train.batch_size=16")
    outcome = search("classify", **rated, out=tmp_path / "grid", overrides=few)
    assert [point["values"]["lr"] for point in outcome.results["points"]] == ["0.001", "2e-4"]
    outcome = search("classify", **rated, out=tmp_path / "own", overrides=[*few, "optim.lr=3e-5"])
    assert [point["values"]["lr"] for point in outcome.results["points"]] == ["3e-5"]


@pytest.mark.parametrize("said", [5, [], {}, {"lr": "x"}, {"lr": float("inf")}, {"lr": True}, {"lr": -1},
                                  {"lr": 1e-4, "lr_grid": 5}, {"lr": 1e-4, "lr_grid": [None]}])  # fmt: skip
def test_rates_that_are_none_are_an_error(rated, tmp_path, said):
    model = write_small_model(tmp_path / "model", **SIZES)
    (model / "bertworks.json").write_text(json.dumps({"finetune": said}))
    with pytest.raises(UserError, match=r"bertworks\.json: finetune[^\n]*$"):
        finetune("classify", **(rated | {"model": model}), out=tmp_path / "run", overrides=QUICKEST)


@pytest.mark.parametrize("name", ["mini", "mini-ko", "small"])
def test_the_shipped_models_name_the_rates_that_were_measured(name):
    """Those of the search in docs/results; the first one is the median of the rates that were best."""
    root = Path(bw.__file__).parents[1]
    folder = root / "weights/small" if name == "small" else root / "bertworks/shipped" / name
    rates = read_rates(json.loads((folder / "bertworks.json").read_text()))
    assert rates == {"lr": 1e-4, "lr_grid": [3e-4, 1e-4, 5e-5, 3e-5]}
    section = (root / "docs/results/compact.md").read_text().partition(f"### {name} (")[2].partition("\n### ")[0]
    best = [float(rate) for rate in re.findall(r"\| batch_size \d+, lr (\S+), epochs 4", section)]
    assert statistics.median(best) == rates["lr"]
    assert "`finetune` takes 1e-4" in (folder / "CARD.md").read_text()
