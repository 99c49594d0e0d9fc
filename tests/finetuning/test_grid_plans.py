"""Which runs a grid makes, with stand-ins for the runs: order, search and restarts, what fails, what goes on."""

import json
import signal
from types import SimpleNamespace

import pytest
import torch
from small_models import write_small_model
from toy_tasks import SIZES, write_task

from bertworks.errors import CannotResume, UserError
from bertworks.files import exclusive, verify_manifest
from bertworks.finetuning import search as grid_runs
from bertworks.finetuning import search as module
from bertworks.finetuning.search import GridPlan, GridProgress, Result, search
from bertworks.finetuning.session import Finetuned
from bertworks.train.log import Progress


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    """A model and files, which are read though nothing is learnt from them."""
    folder = tmp_path_factory.mktemp("task")
    train, dev = write_task(folder, "classify", num_train=64)
    model = write_small_model(folder / "model", **SIZES, max_position_embeddings=128)
    return {"task": "classify", "model": model, "train": train, "dev": dev, "device": "cpu"}


class Fake:
    """Stands in for a run: scores by what it is told of settings, a folder as a run leaves it, and notes the calls."""

    def __init__(self, score=lambda settings: settings.optim.lr, reason=lambda settings: "steps"):
        self.calls, self.score, self.reason = [], score, reason

    def __call__(self, dataset, settings, *, run, **_):
        key = (settings.optim.lr, settings.train.seed, settings.task.max_examples)
        self.calls.append(key)
        for name in ("model", "checkpoints"):
            (run / name).mkdir(parents=True, exist_ok=True)
            (run / name / "config.json").write_text(json.dumps(key))
        score, reason = self.score(settings), self.reason(settings)
        metrics = {} if score is None else {"accuracy": score}
        stopped_by = signal.SIGINT if reason == "signal" else 0
        return Finetuned("accuracy", score, 7, metrics, Progress(step=9), reason, 0.5, stopped_by)


@pytest.fixture
def fake(monkeypatch):
    def use(**rules):
        made = Fake(**rules)
        monkeypatch.setattr(module, "tune", made)
        monkeypatch.setattr(grid_runs, "_free_memory", lambda: None)  # there is none to free, and it takes its time
        return made

    return use


RATES = ("train.epochs=2", "train.batch_size=16", "optim.lr=0.1,0.3,0.2", "train.seed=5")


def run(task, out, plan=None, **changes):
    return search(out=out, plan=plan or GridPlan(), **(task | {"overrides": RATES} | changes))


def model_of(out):
    return json.loads((out / "model/config.json").read_text())


def test_points_come_before_seeds_and_seeds_count_from_the_settings(task, tmp_path, fake):
    made = fake()
    run(task, tmp_path / "grid", GridPlan(restarts=2))
    assert made.calls == [(rate, seed, 0) for seed in (5, 6) for rate in (0.1, 0.3, 0.2)]
    assert model_of(tmp_path / "grid") == [0.3, 5, 0]


def test_restarts_without_a_grid_are_one_point(task, tmp_path, fake):
    made = fake(score=lambda settings: settings.train.seed / 100)
    outcome = run(task, tmp_path / "grid", GridPlan(grid=False, restarts=3), overrides=["optim.lr=0.1"])
    assert made.calls == [(0.1, seed, 0) for seed in range(3)]
    (point,) = outcome.results["points"]
    assert (point["mean"], point["std"], point["min"], point["max"]) == (0.01, 0.01, 0.0, 0.02)
    assert model_of(tmp_path / "grid") == [0.1, 2, 0]


def test_a_search_sees_some_examples_and_its_best_is_run_on_all_of_them(task, tmp_path, fake):
    made = fake(score=lambda settings: settings.optim.lr if settings.task.max_examples else settings.train.seed / 100)
    outcome = run(task, tmp_path / "grid", GridPlan(restarts=3, restart_best=True, search_examples=50))
    assert made.calls == [(0.1, 5, 50), (0.3, 5, 50), (0.2, 5, 50), (0.3, 5, 0), (0.3, 6, 0), (0.3, 7, 0)]
    # Of those that saw all examples, though one of the search scored higher.
    assert model_of(tmp_path / "grid") == [0.3, 7, 0]
    best = [point for point in outcome.results["points"] if point["is_best"]]
    assert [(point["is_search"], len(point["seeds"])) for point in best] == [(True, 1), (False, 3)]


@pytest.mark.parametrize("search_examples", [0, 64, 1_000])
def test_a_search_that_saw_all_examples_is_not_repeated(task, tmp_path, fake, search_examples):
    made = fake()
    outcome = run(task, tmp_path / "grid", GridPlan(restarts=3, restart_best=True, search_examples=search_examples))
    assert made.calls == [(0.1, 5, 0), (0.3, 5, 0), (0.2, 5, 0), (0.3, 6, 0), (0.3, 7, 0)]
    assert [point["is_best"] for point in outcome.results["points"]] == [False, True, False]


def test_the_chosen_point_stays_the_best_if_more_seeds_bring_its_mean_down(task, tmp_path, fake):
    fake(score=lambda settings: settings.optim.lr if settings.train.seed == 5 else 0.0)
    outcome = run(task, tmp_path / "grid", GridPlan(restarts=3, restart_best=True))
    assert [point["name"] for point in outcome.results["points"] if point["is_best"]] == ["batch_size16-lr0.3-epochs2"]


def failing(rates, error):
    def score(settings):
        if settings.optim.lr in rates:
            raise error
        return settings.optim.lr

    return score


@pytest.mark.parametrize("error", [UserError("not finite at step 3"), torch.OutOfMemoryError("no memory")])
def test_a_run_that_fails_is_told_in_the_table_and_the_rest_goes_on(task, tmp_path, fake, error):
    made = fake(score=failing({0.3}, error))
    outcome = run(task, tmp_path / "grid")
    assert (len(made.calls), outcome.results["failed"], outcome.is_failed) == (3, 1, False)
    assert f"batch_size16-lr0.3-epochs2/seed-5 failed: {error}" in str(outcome)
    assert model_of(tmp_path / "grid") == [0.2, 5, 0]
    assert not list((tmp_path / "grid").rglob("checkpoints"))


def test_what_failed_is_tried_again_and_what_is_finished_is_not(task, tmp_path, fake):
    fake(score=failing({0.3}, UserError("no room")))
    run(task, tmp_path / "grid")
    made = fake()
    outcome = run(task, tmp_path / "grid", resume=True)
    assert (made.calls, outcome.results["failed"]) == ([(0.3, 5, 0)], 0)
    assert model_of(tmp_path / "grid") == [0.3, 5, 0]


def test_a_grid_in_which_all_fails_says_so_and_has_no_model(task, tmp_path, fake):
    fake(score=failing({0.1, 0.2, 0.3}, UserError("no room")))
    for plan in (GridPlan(), GridPlan(restart_best=True, restarts=2)):
        outcome = run(task, tmp_path / "grid", plan, resume=True)
        assert (outcome.is_failed, outcome.results["model_of"]) == (True, None)
    assert not (tmp_path / "grid/model").exists()


def test_a_score_that_is_not_defined_is_lower_than_all(task, tmp_path, fake):
    fake(score=lambda settings: None if settings.optim.lr == 0.1 else -settings.optim.lr)
    outcome = run(task, tmp_path / "grid")
    assert (model_of(tmp_path / "grid"), outcome.is_failed) == ([0.2, 5, 0], False)


@pytest.mark.parametrize("how", ["signal", "interrupt"])
def test_a_signal_ends_a_grid_which_goes_on_with_the_run_it_met(task, tmp_path, fake, how):
    interrupt = failing({0.3}, KeyboardInterrupt()) if how == "interrupt" else lambda settings: settings.optim.lr
    reason = lambda settings: "signal" if settings.optim.lr == 0.3 else "steps"  # noqa: E731
    fake(score=interrupt, reason=reason)
    outcome = run(task, tmp_path / "grid")
    assert (outcome.signal, list(outcome.results["runs"])) == (signal.SIGINT, ["batch_size16-lr0.1-epochs2/seed-5"])
    made = fake()
    assert run(task, tmp_path / "grid", resume=True).signal == 0
    assert [rate for rate, *_ in made.calls] == [0.3, 0.2]


def test_a_grid_may_grow(task, tmp_path, fake):
    fake()
    run(task, tmp_path / "grid")
    made = fake()
    more = ("train.epochs=2", "train.batch_size=16", "optim.lr=0.3,0.4", "train.seed=5")
    outcome = run(task, tmp_path / "grid", GridPlan(restarts=2), resume=True, overrides=more)
    assert made.calls == [(0.4, 5, 0), (0.3, 6, 0), (0.4, 6, 0)]
    assert len(outcome.results["points"]) == 4


@pytest.mark.parametrize("fails", [False, True])
def test_minutes_of_all_starts_of_a_run_are_counted_once(task, tmp_path, fake, fails):
    run_folder = tmp_path / "grid/batch_size16-lr0.1-epochs2/seed-5"
    run_folder.mkdir(parents=True)
    starts = [(1, 20.0), (1, 60.0), (2, 30.0), (2, 90.0)]
    lines = [json.dumps({"step": 1, "start": start, "seconds": seconds, "devices": 1}) for start, seconds in starts]
    (run_folder / "starts.jsonl").write_text("\n".join(lines) + "\n")
    fake(score=failing({0.1} if fails else {}, UserError("not finite")))
    outcome = run(task, tmp_path / "grid", resume=True, overrides=[*RATES, "optim.lr=0.1"])
    # A run that ends says itself what all of its starts took; of one that fails its log tells.
    assert outcome.results["minutes"] == (2.5 if fails else 0.5)


def test_what_no_run_can_do_anything_about_ends_the_grid_and_costs_no_run_its_checkpoints(task, tmp_path, fake):
    """As a full disk, or settings that a run under way does not have."""
    fake(score=failing({0.3}, CannotResume("no room")))
    with pytest.raises(CannotResume, match="no room"):
        run(task, tmp_path / "grid")
    assert (tmp_path / "grid/batch_size16-lr0.3-epochs2/seed-5/checkpoints").is_dir()
    made = fake()
    outcome = run(task, tmp_path / "grid", resume=True)
    assert ([rate for rate, *_ in made.calls], outcome.results["failed"]) == ([0.3, 0.2], 0)


def test_a_search_sees_no_more_examples_than_the_runs_after_it(task, tmp_path, fake):
    made = fake()
    plan = GridPlan(restarts=1, restart_best=True, search_examples=50)
    run(task, tmp_path / "grid", plan, overrides=(*RATES, "task.max_examples=20"))
    assert {examples for _, _, examples in made.calls} == {20}


def test_after_a_search_a_grid_of_all_points_has_its_own_best(task, tmp_path, fake):
    fake(score=lambda settings: settings.optim.lr if settings.train.seed == 5 else 1 - settings.optim.lr)
    run(task, tmp_path / "grid", GridPlan(restarts=2, restart_best=True))
    outcome = run(task, tmp_path / "grid", GridPlan(restarts=3), resume=True)
    means = {point["name"]: point["mean"] for point in outcome.results["points"]}
    (best,) = [point["name"] for point in outcome.results["points"] if point["is_best"]]
    assert best == max(means, key=means.get) == "batch_size16-lr0.1-epochs2"


def test_words_for_people_may_change_between_two_starts(task, tmp_path, fake):
    fake()
    run(task, tmp_path / "grid")
    path = tmp_path / "grid/grid.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"title": "other words", "notes": ["more of them"]}))
    made = fake()
    assert run(task, tmp_path / "grid", resume=True).results["title"] != "other words"
    assert not made.calls


def test_what_changes_no_result_may_change_between_two_starts(task, tmp_path, fake):
    fake()
    run(task, tmp_path / "grid")
    made = fake()
    run(task, tmp_path / "grid", resume=True, overrides=(*RATES, "train.save_minutes=5", "train.on_nonfinite=skip"))
    assert not made.calls


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"overrides": (*RATES, "task.max_length=16")}, "was run with other settings"),
        ({"overrides": (*RATES, "train.max_steps=3")}, "was run with other settings"),
        ({"init": "random"}, "has runs of another init"),
        ({"resume": False}, "is not empty; continue it with --resume"),
    ],
)
def test_other_settings_cannot_go_on_with_a_grid(task, tmp_path, fake, changes, said):
    fake()
    run(task, tmp_path / "grid")
    with pytest.raises(UserError, match=said):
        run(task, tmp_path / "grid", **({"resume": True} | changes))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("task.freeze=0,9", "task.freeze=9: the model has 1 layer; choose 0 to 1, or all"),
        ("task.max_length=16,999", "task.max_length 999 is more than the 128 positions"),
    ],
)
def test_what_the_model_cannot_do_is_refused_once_and_no_run_is_begun(task, tmp_path, fake, wrong, said):
    made = fake()
    with pytest.raises(UserError, match=said):
        run(task, tmp_path / "grid", overrides=(*RATES, wrong))
    assert not made.calls
    assert not (tmp_path / "grid").exists()


def test_other_data_or_another_model_cannot_go_on_with_a_grid(task, tmp_path, fake):
    fake()
    run(task, tmp_path / "grid")
    _, other_dev = write_task(tmp_path / "other", "classify", num_dev=20)
    other_model = write_small_model(tmp_path / "model", hidden_size=8, max_position_embeddings=128)
    with pytest.raises(UserError, match="another data"):
        run(task, tmp_path / "grid", resume=True, dev=other_dev)
    with pytest.raises(UserError, match="another model"):
        run(task, tmp_path / "grid", resume=True, model=other_model)


def test_a_record_that_is_none_is_told(task, tmp_path, fake):
    fake()
    run(task, tmp_path / "grid")
    path = tmp_path / "grid/grid.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"runs": {"a": {"score": 1}}}))
    with pytest.raises(UserError, match=r"grid\.json: runs\.a\.point: not set; .*; and 4 problems more$"):
        run(task, tmp_path / "grid", resume=True)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (GridPlan(restarts=0), "--restarts 0 is not possible"),
        (GridPlan(grid=False, restart_best=True), "give --grid too"),
        (GridPlan(search_examples=10), "with --grid and --restart-best"),
        (GridPlan(restart_best=True, search_examples=-1), "a number above 0"),
    ],
)
def test_plans_that_make_no_sense_are_told(task, tmp_path, plan, said):
    with pytest.raises(UserError, match=said):
        run(task, tmp_path / "grid", plan)


def test_a_person_sees_which_run_of_how_many_the_best_so_far_and_the_time_left(task, tmp_path, fake):
    said = []
    fake()
    run(task, tmp_path / "grid", note=said.append)
    runs = [line for line in said if line.startswith("run ")]
    assert [line.split(",")[0] for line in runs] == [f"run {number} of 3" for number in range(1, 4)]
    assert ["best so far 0.1000" in line for line in runs] == [True, False, False]
    assert ["left" in line for line in runs] == [True, True, False]


def test_time_left_goes_by_epochs_and_examples(task):
    said = []
    progress = GridProgress(num_runs=3, work=600.0, note=said.append)
    assert progress.seconds_left is None
    progress.pass_over(100.0)  # by an earlier start, whose pace is not known
    assert progress.seconds_left is None
    result = Result(point="a", values={}, seed=0, is_search=False, settings={}, score=0.5)
    progress.end("a/seed-0", result, SimpleNamespace(best_run=lambda: result, about={"metric": "f1"}), 100.0, 7.0)
    assert progress.seconds_left == pytest.approx(28.0)
    assert said == ["run 2 of 3, a/seed-0: f1 0.5000 at step 0, 0.00 minutes; best so far 0.5000; about 0:00:28 left"]


def test_the_model_is_whole_and_what_a_kill_left_of_a_finished_run_is_cleared(task, tmp_path, fake):
    fake()
    run(task, tmp_path / "grid")
    verify_manifest(tmp_path / "grid/model")
    left = tmp_path / "grid/batch_size16-lr0.1-epochs2/seed-5/checkpoints/step-00000009"
    left.mkdir(parents=True)  # the kill came between the record and the clearing
    run(task, tmp_path / "grid", resume=True)
    assert not left.parent.exists()


def test_a_kill_between_the_model_and_the_record_is_made_good(task, tmp_path, fake, monkeypatch):
    made, real = fake(), grid_runs.GridRuns.write
    write = lambda self: pytest.fail("killed") if self.record.runs else real(self)  # noqa: E731
    monkeypatch.setattr(grid_runs.GridRuns, "write", write)
    with pytest.raises(pytest.fail.Exception):
        run(task, tmp_path / "grid")
    monkeypatch.undo()
    again = fake()
    outcome = run(task, tmp_path / "grid", resume=True)
    assert (len(made.calls), len(again.calls)) == (1, 3)
    assert (outcome.results["model_of"], model_of(tmp_path / "grid")) == (
        "batch_size16-lr0.3-epochs2/seed-5",
        [0.3, 5, 0],
    )


def test_two_grids_do_not_write_into_one_folder(task, tmp_path, fake):
    fake()
    (tmp_path / "grid").mkdir()
    with exclusive(tmp_path / "grid"), pytest.raises(UserError, match="is in use by process"):
        run(task, tmp_path / "grid", resume=True)


def test_several_ranks_are_refused(task, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="without torchrun"):
        run(task, tmp_path / "grid")


def test_a_model_or_a_file_that_is_not_there_is_told_before_any_run(task, tmp_path, fake):
    made = fake()
    for changes in ({"model": tmp_path / "none"}, {"train": tmp_path / "none.csv"}):
        with pytest.raises(UserError, match="none"):
            run(task, tmp_path / "grid", **changes)
    assert not made.calls
