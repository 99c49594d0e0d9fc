"""Grids: every point with every seed, the best kept, killed and gone on with, and what fails leaves the rest alone."""

import gc
import json
from contextlib import contextmanager

import pytest
import torch
from calm_models import write_calm_model
from conll_files import write_conll
from small_models import write_small_model
from tiny_runs import files_of, kill_until_through
from toy_tasks import SIZES, write_task

import bertworks as bw
from bertworks.errors import CannotResume
from bertworks.finetuning import features as feature_cache
from bertworks.finetuning import search as grid_runs
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.search import GridPlan, search
from bertworks.nn.bert import Bert
from bertworks.train.trainer import Trainer

FEW = ("task.max_length=16", "train.epochs=2", "train.batch_size=16", "optim.lr=3e-3,1e-3", "train.save_every=3")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A model and files, as all runs here take them."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("task")
    train, dev = write_task(folder, "classify", num_train=64)
    model = write_small_model(folder / "model", **SIZES)
    return {"task": "classify", "model": model, "train": train, "dev": dev, "device": "cpu", "overrides": FEW}


@pytest.fixture(scope="module")
def finished(task, tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "grid"
    return out, search(out=out, plan=GridPlan(restarts=2), **task)


def test_every_point_is_run_with_every_seed_and_the_best_is_the_model(finished, task, tmp_path):
    out, outcome = finished
    runs = outcome.results["runs"]
    points = [f"batch_size16-lr{rate}-epochs2" for rate in (0.003, 0.001)]
    assert set(runs) == {f"{point}/seed-{seed}" for point in points for seed in (0, 1)}
    best = runs[outcome.results["model_of"]]
    assert best["score"] == max(run["score"] for run in runs.values())
    finetune(
        "classify", model=task["model"], train=task["train"], dev=task["dev"], out=tmp_path / "alone", device="cpu",
        overrides=[*FEW[:3], f"optim.lr={best['values']['lr']}",
                   f"train.seed={best['seed']}", "train.save_every=3"],
    )  # fmt: skip
    assert files_of(out / "model") == files_of(tmp_path / "alone/model")
    assert bw.load(out).about["metrics"]["dev_accuracy"] == best["score"]


def test_of_a_run_that_has_ended_only_logs_and_settings_are_kept(finished):
    out, outcome = finished
    for folder in outcome.results["runs"]:
        kept = {path.name for path in (out / folder).iterdir()}
        logs = {"metrics.jsonl", "timing.jsonl", "starts.jsonl", "recipe.toml", "tensorboard"}
        assert kept == logs | {"dev.json", "report.html"}
    assert (out / "grid.md").read_text().startswith("# ")
    assert json.loads((out / "grid.json").read_text()) == outcome.results


def test_features_are_computed_once_for_all_runs_and_not_kept_when_these_have_ended(tmp_path, monkeypatch):
    """They take far more time and disk than all else of a run; nobody reads them again."""
    (tmp_path / "data").mkdir()
    computed, real = [], feature_cache.compute_rows
    monkeypatch.setattr(feature_cache, "compute_rows", lambda *given: computed.append(1) or real(*given))
    overrides = ("task.features=last", "task.cells=4", "task.max_length=18", "train.batch_size=8", "train.epochs=1")
    outcome = search(
        "conll2003", model=write_calm_model(tmp_path / "model"), data=write_conll(tmp_path / "data"), device="cpu",
        out=tmp_path / "grid", overrides=(*overrides, "optim.lr=1e-2,1e-3"),
    )  # fmt: skip
    assert (len(outcome.results["runs"]), outcome.results["failed"]) == (2, 0)
    assert len(computed) == 2  # of the train set and of the dev set
    assert not list((tmp_path / "grid").rglob("features"))


def told(results):
    """What a grid says, but for the time it took."""
    runs = {folder: {**run, "minutes": 0} for folder, run in results["runs"].items()}
    return results | {"minutes": 0, "points": [{**point, "minutes": 0} for point in results["points"]], "runs": runs}


def test_a_grid_that_is_killed_at_any_instant_goes_on_to_the_same_results(finished, task, tmp_path):
    """F1: killed at random instants until it is through."""
    out = tmp_path / "grid"
    kill_until_through(lambda: search(out=out, plan=GridPlan(restarts=2), resume=True, **task), 0)
    assert told(json.loads((out / "grid.json").read_text())) == told(finished[1].results)
    assert files_of(out / "model") == files_of(finished[0] / "model")
    assert not list(out.rglob("checkpoints"))


def test_other_settings_end_a_grid_and_leave_the_run_under_way_as_it_was(task, tmp_path):
    out, point = tmp_path / "grid", "batch_size16-lr0.003-epochs2/seed-0"
    files = {name: task[name] for name in ("model", "train", "dev", "device")}
    begun = [*FEW[:3], "optim.lr=3e-3", "train.save_every=3", "train.max_steps=4"]
    finetune("classify", out=out / point, overrides=begun, **files)
    for name in ("starts.jsonl", "timing.jsonl"):  # as if it had taken ten minutes
        lines = [json.loads(line) | {"seconds": 600.0} for line in (out / point / name).read_text().splitlines()]
        (out / point / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = files_of(out / point)
    with pytest.raises(CannotResume, match="was trained with other settings or data"):
        search(out=out, resume=True, **(task | {"overrides": (*FEW, "task.max_length=12")}))
    assert files_of(out / point) == before
    outcome = search(out=out, resume=True, **task)
    assert (len(outcome.results["runs"]), outcome.results["failed"]) == (2, 0)
    assert outcome.results["runs"][point]["minutes"] == pytest.approx(10, abs=1)


def test_a_model_says_what_was_left_out_of_its_train_set_as_after_a_run_alone(task, tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_text(task["train"].read_text() + json.dumps({"text": "of no kind", "label": ""}) + "\n")
    given = task | {"train": train, "overrides": [*FEW[:3], "optim.lr=1e-3"]}
    search(out=tmp_path / "grid", plan=GridPlan(grid=False), **given)
    finetune(out=tmp_path / "alone", **given)
    notes = [bw.load(tmp_path / run).about["provenance"]["notes"] for run in ("grid", "alone")]
    assert notes[0] == notes[1]
    assert any("left out" in note for note in notes[0])


def test_part_of_the_examples_is_learnt_from_in_a_search(task, tmp_path):
    plan = GridPlan(restarts=1, restart_best=True, search_examples=20)
    overrides = (*FEW[:2], "train.batch_size=16,32", "optim.lr=1e-3")
    search(out=tmp_path / "grid", plan=plan, **(task | {"overrides": overrides}))
    steps = {}
    for log in (tmp_path / "grid").rglob("metrics.jsonl"):
        steps[log.parent.relative_to(tmp_path / "grid").as_posix()] = json.loads(log.read_text().splitlines()[-1])[
            "step"
        ]
    assert steps.pop("search/batch_size16-lr0.001-epochs2/seed-0") == 4
    assert steps.pop("search/batch_size32-lr0.001-epochs2/seed-0") == 2
    assert list(steps.values()) in ([8], [4])
    assert bw.load(tmp_path / "grid").about["provenance"]["examples"] == 64


def test_no_run_leaves_its_network_in_memory_for_the_next(task, tmp_path, monkeypatch):
    """Where every run keeps its own, a GPU is full after some of them; one that ran out of memory is no exception."""
    alive, real_train, real_free = [], Trainer.train, grid_runs._free_memory

    def train(*arguments):
        if len(alive) == 0:
            raise torch.OutOfMemoryError("no memory")
        return real_train(*arguments)

    def free():
        real_free()
        alive.append(sum(type(thing) is Bert for thing in gc.get_objects()))

    gc.collect()
    before = sum(type(thing) is Bert for thing in gc.get_objects())
    monkeypatch.setattr(Trainer, "train", train)
    monkeypatch.setattr(grid_runs, "_free_memory", free)
    outcome = search(out=tmp_path / "grid", **task)
    assert (outcome.results["failed"], alive) == (1, [before, before])


def test_the_panel_of_a_run_says_which_it_is(task, tmp_path):
    titles = []

    @contextmanager
    def watched():
        yield lambda news, status: titles.append(status.about.title)

    search(out=tmp_path / "grid", views=watched, **(task | {"overrides": [*FEW[:3], "optim.lr=1e-3"]}))
    assert set(titles) == {"run 1 of 1, batch_size16-lr0.001-epochs2/seed-0"}


@pytest.mark.parametrize(("kind", "metric"), [("tag", "f1"), ("answer", "f1")])
def test_tagging_and_answering_are_searched_as_all_else(task, tmp_path, kind, metric):
    train, dev = write_task(tmp_path, kind, num_train=40, num_dev=10)
    overrides = ("task.max_length=16", "task.doc_stride=4", "train.batch_size=16", "train.epochs=1", "optim.lr=1e-3")
    outcome = search(
        kind, model=task["model"], train=train, dev=dev, out=tmp_path / "grid", overrides=overrides, device="cpu",
        plan=GridPlan(restart_best=True, search_examples=20),
    )  # fmt: skip
    assert (outcome.results["metric"], outcome.results["failed"], len(outcome.results["runs"])) == (metric, 0, 2)
    assert bw.load(tmp_path / "grid", device="cpu").about["task"]["kind"] == kind
