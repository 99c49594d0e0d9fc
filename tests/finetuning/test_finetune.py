"""Fine-tuning: what is learnt, which model is kept, and that a run goes on as if it had never stopped."""

import json
import math
import shutil

import pytest
import torch
from small_models import write_small_model
from sweeps import IS_FULL
from tiny_runs import files_of, kill_until_through, lines_of
from toy_tasks import QUICK, SIZES, write_rows, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning import finetune as module
from bertworks.finetuning import session as session_module
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.session import prepare
from bertworks.finetuning.settings import FinetuneSettings
from bertworks.tasks.own_files import open_own
from bertworks.train.checkpoint import new_checkpoint
from bertworks.train.log import Progress
from bertworks.train.trainer import Trainer

LONGER = ("train.epochs=25", "optim.lr=4e-3", "task.dropout=0.0", "train.save_every=1000")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", **SIZES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    return {
        kind: dict(zip(("train", "dev"), write_task(folder / kind, kind), strict=True))
        for kind in ("classify", "regress", "multilabel", "choose", "tag", "answer")
    }


@pytest.fixture(scope="module")
def finished(model, files, tmp_path_factory):
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, finetune("classify", model=model, out=run, overrides=QUICK, device="cpu", **files["classify"])


@pytest.mark.parametrize(
    ("kind", "metric", "least"),
    [
        ("classify", "accuracy", 1.0),
        ("regress", "pearson", 0.98),
        ("multilabel", "f1", 0.9),
        ("choose", "accuracy", 0.95),
        ("tag", "f1", 0.95),
        ("answer", "f1", 95.0),
    ],
)
def test_a_separable_task_is_learnt(model, files, tmp_path, kind, metric, least):
    outcome = finetune(
        kind, model=model, out=tmp_path / "run", device="cpu", overrides=(*QUICK, *LONGER), **files[kind]
    )
    assert outcome.metric == metric
    assert outcome.score >= least
    assert outcome.reason == "steps"


def test_a_run_logs_evaluates_every_epoch_and_leaves_a_model(finished, model):
    run, outcome = finished
    evaluations = [line for line in lines_of(run) if "dev_accuracy" in line]
    assert [line["step"] for line in evaluations] == [6, 12, 18, 24, 30, 36]
    training = [line for line in lines_of(run) if "lr" in line]
    assert training[-1]["classify_loss"] < training[0]["classify_loss"]
    opened = bw.load(run)
    assert opened.labels == ["about cats", "about dogs"]
    assert opened.about["task"]["max_length"] == 16
    assert opened.about["metrics"]["dev_accuracy"] == outcome.score
    assert opened.about["provenance"]["start"]["model"] == str(model)
    assert set(opened.net.heads) == {"classify"}


def test_the_model_is_that_of_the_best_evaluation_not_of_the_last(model, files, tmp_path, monkeypatch):
    scores = iter([0.5, 0.9, 0.7, math.nan, 0.9, 0.8])
    real = session_module.evaluate

    def fixed(*arguments):
        return real(*arguments)._replace(metrics={"accuracy": next(scores), "f1_macro": 0.1, "loss": 1.0})

    monkeypatch.setattr(session_module, "evaluate", fixed)
    run = tmp_path / "run"
    outcome = finetune("classify", model=model, out=run, overrides=QUICK, device="cpu", **files["classify"])
    assert (outcome.score, outcome.step) == (0.9, 12)
    about = json.loads((run / "model/bertworks.json").read_text())
    assert about["provenance"]["steps"] == 12
    assert about["metrics"]["dev_accuracy"] == 0.9


def test_of_evaluations_with_the_same_score_that_with_the_lowest_loss_is_the_best(model, files, tmp_path, monkeypatch):
    measured = iter([(0.5, 0.1), (0.9, 0.8), (0.9, 0.6), (0.9, 0.7), (0.8, 0.2), (0.9, math.nan)])
    real = session_module.evaluate

    def fixed(*arguments):
        accuracy, loss = next(measured)
        return real(*arguments)._replace(metrics={"accuracy": accuracy, "f1_macro": 0.1, "loss": loss})

    monkeypatch.setattr(session_module, "evaluate", fixed)
    run = tmp_path / "run"
    outcome = finetune("classify", model=model, out=run, overrides=QUICK, device="cpu", **files["classify"])
    assert (outcome.score, outcome.step, outcome.metrics["loss"]) == (0.9, 18, 0.6)
    assert json.loads((run / "model/bertworks.json").read_text())["provenance"]["steps"] == 18


def test_a_model_of_another_language_is_told_by_what_its_vocabulary_does_not_know(model, tmp_path):
    rows = [{"text": f"고양이 {number}마리", "label": "cat" if number % 2 else "dog"} for number in range(40)]
    said, overrides = [], [*QUICK, "train.epochs=1"]
    train = write_rows(tmp_path / "train.jsonl", rows)
    finetune("classify", model=model, train=train, out=tmp_path / "run", overrides=overrides, note=said.append)
    assert any("of the tokens are [UNK]; is the vocabulary for this language?" in line for line in said)


def test_the_same_settings_give_the_same_bytes(finished, model, files, tmp_path):
    finetune("classify", model=model, out=tmp_path / "run", overrides=QUICK, device="cpu", **files["classify"])
    assert files_of(tmp_path / "run") == files_of(finished[0])


@pytest.mark.parametrize("trial", range(2 if IS_FULL else 1))
def test_resume_is_bit_exact_after_sigkill(finished, model, files, tmp_path, trial):
    """F1: killed at random instants until it is through; the best model survives too."""
    run = tmp_path / "run"
    options = {"overrides": QUICK, "device": "cpu", "resume": True, **files["classify"]}
    kill_until_through(lambda: finetune("classify", model=model, out=run, **options), trial)
    assert files_of(run) == files_of(finished[0])


def test_a_finished_run_that_is_resumed_says_its_best_again(finished, model, files):
    run, outcome = finished
    before = files_of(run)
    again = finetune("classify", model=model, out=run, overrides=QUICK, device="cpu", resume=True, **files["classify"])
    assert (again.score, again.step, again.metrics) == (outcome.score, outcome.step, outcome.metrics)
    assert files_of(run) == before


def test_a_run_goes_on_without_the_model_it_came_from_but_not_with_another(finished, model, files, tmp_path):
    options = {"out": finished[0], "overrides": QUICK, "device": "cpu", "resume": True, **files["classify"]}
    assert finetune("classify", model=tmp_path / "gone", **options).reason == "steps"
    other = write_small_model(tmp_path / "other", {}, hidden_size=8)
    with pytest.raises(UserError, match="whose weights are not those of"):
        finetune("classify", model=other, **options)


def test_a_run_does_not_go_on_with_another_dev_set_or_start(finished, model, files, tmp_path):
    options = {"model": model, "out": finished[0], "overrides": QUICK, "device": "cpu", "resume": True}
    rows = files["classify"]["dev"].read_text().splitlines()
    (tmp_path / "dev.jsonl").write_text("\n".join(rows[::-1]))
    with pytest.raises(UserError, match="was trained with other settings or data"):
        finetune("classify", train=files["classify"]["train"], dev=tmp_path / "dev.jsonl", **options)
    with pytest.raises(UserError, match="was started from a model's weights; leave out --init random"):
        finetune("classify", init="random", **files["classify"], **options)


def test_settings_and_overrides_are_not_given_together(model, files, tmp_path):
    options = {"model": model, "out": tmp_path / "run", "device": "cpu", **files["classify"]}
    with pytest.raises(UserError, match="give one of the two"):
        finetune("classify", settings=FinetuneSettings(), overrides=["train.epochs=2"], **options)
    assert not (tmp_path / "run").exists()


def test_a_run_that_says_no_start_cannot_go_on_and_is_named(model, files, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    with new_checkpoint(run, 1, {}, {}, model_bytes=0, keep=1) as folder:
        shutil.copytree(model, folder, dirs_exist_ok=True)
    with pytest.raises(UserError, match=r"the run in .*run was started from other weights than those of .*model"):
        finetune("classify", model=model, out=run, resume=True, device="cpu", overrides=QUICK, **files["classify"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("optim.lr=1e-3", "optim.lr was 0.003, not 0.001"),
        ("task.class_weights=true", "task.class_weights was False, not True"),
        ("train.seed=3", "train.seed was 0, not 3"),
    ],
)
def test_other_settings_cannot_go_on_with_a_run(finished, model, files, change, said):
    with pytest.raises(UserError, match=rf"other settings or data \({said}\); use the same to resume"):
        finetune(
            "classify", model=model, out=finished[0], overrides=[*QUICK, change], resume=True, device="cpu",
            **files["classify"],
        )  # fmt: skip


def test_a_random_start_takes_the_sizes_and_the_vocabulary_alone(model, files, tmp_path):
    said = []
    run = tmp_path / "run"
    finetune(
        "classify", model=model, out=run, overrides=[*QUICK, "train.epochs=1"], init="random", device="cpu",
        note=said.append, **files["classify"],
    )  # fmt: skip
    drawn = bw.load(run).about["provenance"]["start"]["drawn"]
    assert "embeddings.token.weight" in drawn


def trainer_of(model, files, tmp_path, kind="classify", overrides=QUICK):
    dataset = open_own(kind, files[kind])
    settings = module.settings_for(dataset.task, overrides)
    start = module.open_task_start(
        model, tmp_path / "run", dataset.task, module.kind_of(dataset.task), settings.task, seed=0, is_random=False
    )
    task = prepare(settings, dataset, start)
    return Trainer(task, task.settings, tmp_path / "run", torch.device("cpu"))


def test_the_encoder_is_taken_over_and_only_the_head_is_drawn(model, files, tmp_path):
    trainer = trainer_of(model, files, tmp_path)
    old = bw.load(model).net
    assert trainer.task.start.about["drawn"] == ["heads.classify.out.bias", "heads.classify.out.weight"]
    torch.testing.assert_close(trainer.net.blocks[0].qkv.weight, old.blocks[0].qkv.weight, rtol=0, atol=0)


def test_a_new_head_begins_with_the_mean_score_and_one_that_has_learnt_stays(model, tmp_path):
    said, start = {}, model
    for name, scores in (("first", (21.0, 27.0)), ("second", (1.0, 3.0))):
        rows = [{"text": "a cat", "score": scores[0]}, {"text": "a dog", "score": scores[1]}] * 8
        train = write_rows(tmp_path / f"{name}.jsonl", rows)
        finetune(
            "regress", model=start, train=train, dev=train, out=tmp_path / name, device="cpu",
            overrides=[*QUICK, "train.epochs=1", "optim.lr=1e-9"],
        )  # fmt: skip
        start = tmp_path / name
        said[name] = bw.load(start).classify(["a cat", "a dog"])
    assert [one["score"] for one in said["first"]] == pytest.approx([24.0, 24.0], abs=1)
    assert said["second"] == [{"score": pytest.approx(one["score"], abs=1e-3)} for one in said["first"]]


@pytest.mark.parametrize("kind", ["classify", "regress", "multilabel", "choose", "tag", "answer"])
def test_a_batch_in_slices_has_the_gradient_of_the_whole(model, files, tmp_path, kind):
    gradients = []
    for slices in (1, 3):
        overrides = (*QUICK, f"train.slices={slices}", "task.dropout=0.0", "train.batch_size=10")
        trainer = trainer_of(model, files, tmp_path, kind, overrides)
        parts, state = next(trainer.task.batches(Progress()))
        assert (len(parts), state) == (slices, {"epoch": 0, "offset": 10})
        counts = [sum(part.counts[0] for part in parts)]
        for part in parts:
            trainer.model(part.batch, torch.tensor(counts))[0].backward()
        gradients.append([parameter.grad for parameter in trainer.net.parameters()])
    for whole, sliced in zip(*gradients, strict=True):
        torch.testing.assert_close(whole, sliced, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"text": "a cat", "label": "x"}], "has 1 label; there must be at least 2"),
        ([{"text": "", "label": "x"}, {"text": " ", "label": "y"}], "left out: 2 rows without a text"),
    ],
)
def test_what_nothing_can_be_learnt_from_is_told_in_a_line(model, tmp_path, rows, said):
    train = write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(UserError, match=said):
        finetune("classify", model=model, train=train, out=tmp_path / "run", device="cpu")


def test_what_was_left_out_is_told_once_where_dev_is_split_off(model, files, tmp_path):
    train, said = tmp_path / "train.jsonl", []
    train.write_text(files["classify"]["train"].read_text() + json.dumps({"text": "of no kind", "label": ""}) + "\n")
    overrides = [*QUICK, "train.epochs=1"]
    finetune(
        "classify", model=model, train=train, out=tmp_path / "run", device="cpu", overrides=overrides, note=said.append
    )
    assert [line.partition(": ")[0] for line in said if "left out" in line] == ["train"]


def test_a_dev_set_is_split_off_where_there_is_none_and_that_is_said(model, files, tmp_path):
    said = []
    finetune(
        "classify", model=model, train=files["classify"]["train"], out=tmp_path / "run", device="cpu",
        overrides=[*QUICK, "train.epochs=1"], note=said.append,
    )  # fmt: skip
    assert any("split off" in line for line in said)


def test_a_length_beyond_the_model_is_told_before_anything_is_trained(model, files, tmp_path):
    with pytest.raises(UserError, match="max_length 128 is more than the 20 positions"):
        finetune("classify", model=model, out=tmp_path / "run", device="cpu", **files["classify"])


def test_batches_that_do_not_fit_the_memory_are_refused_unless_that_is_overruled(model, files, tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.planning.costs.free_memory", lambda: 100_000)
    options = {"model": model, "out": tmp_path / "run", "device": "cpu", **files["classify"]}
    with pytest.raises(UserError, match=r"^a step needs about .*; change train.slices .*; train.check_memory=false"):
        finetune("classify", overrides=QUICK, **options)
    assert not (tmp_path / "run").exists()
    assert finetune("classify", overrides=[*QUICK, "train.max_steps=1", "train.check_memory=false"], **options)
