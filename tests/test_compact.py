"""The benchmark of our compact models: results add up, bars are held, the table says what was measured."""

import argparse
import importlib
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import pytest
from small_glue import write_rte
from small_models import write_small_model
from toy_tasks import SIZES

from bertworks.errors import UserError
from bertworks.tasks import TASKS
from bertworks.train.run_folder import hold_run

_BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(_BENCHMARKS))
    yield
    for name in [name for name in sys.modules if name.startswith("compact")]:
        del sys.modules[name]


MINI = {"sizes": "4x256", "weights": {"model.safetensors": "ab"}}


def _result(task, metric, scores, *, test=None, notes=(), **others):
    scores = sorted(scores)
    return {
        "task": task, "metric": metric, "median": scores[len(scores) // 2], "min": scores[0], "max": scores[-1],
        "medians": {metric: scores[len(scores) // 2], **others}, "setting": {"lr": "3e-4"}, "notes": list(notes),
        "seeds": dict(enumerate(scores)),
        "test": test,
    }  # fmt: skip


def _cells(models, name="mini"):
    from compact_table import COLUMNS, rows

    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in rows(name, models[name])}


def test_results_of_several_commands_add_up():
    from compact_table import merged

    first = merged({}, "mini", MINI, "model", {"rte": 1, "cola": 2})
    second = merged(first, "mini", MINI, "random", {"rte": 3})
    third = merged(second, "mini", MINI, "model", {"cola": 4})
    assert third["mini"]["results"] == {"model": {"rte": 1, "cola": 4}, "random": {"rte": 3}}
    assert first["mini"]["results"] == {"model": {"rte": 1, "cola": 2}}, "what was there is not changed"


def test_two_models_are_not_put_under_one_name():
    from compact_table import merged

    there = merged({}, "mini", MINI, "model", {"rte": 1})
    with pytest.raises(UserError, match="other weights; choose another --name"):
        merged(there, "mini", MINI | {"weights": {"model.safetensors": "cd"}}, "model", {"cola": 2})


def test_files_are_joined_the_later_over_the_earlier():
    from compact_table import joined, merged

    files = [merged({}, "mini", MINI, "model", {"rte": number, str(number): 0}) for number in (1, 2)]
    assert joined(files)["mini"]["results"]["model"] == {"rte": 2, "1": 0, "2": 0}


@pytest.mark.parametrize(
    ("median", "said"),
    [(0.61, "yes"), (0.65, "yes"), (0.6096, "yes"), (0.6093, "no, 0.1 short"), (0.5, "no, 11.0 short")],
)
def test_a_bar_is_held_against_the_figure_that_is_shown(median, said):
    from compact_table import reached

    assert reached(_result("rte", "accuracy", [median]), 61.0) == said


def test_a_score_that_is_not_defined_reaches_no_bar():
    from compact_table import measured, reached

    result = _result("stsb", "spearman", [0.0]) | {"median": None}
    assert reached(result, 0.0) == "no"
    assert measured(result, ["spearman"]) == "not defined"


def test_every_bar_and_published_figure_is_of_a_task_and_metric_that_is_measured():
    from compact_table import BARS, GOOGLE
    from compact_task import WORKS

    assert all(work in WORKS for bars in BARS.values() for work in bars)
    for figures in GOOGLE.values():
        for work, metrics in figures.items():
            assert set(metrics) == set(TASKS[WORKS[work].task].metrics) - ({"accuracy"} if work == "cola" else set())


def test_bars_are_at_or_above_googles_models_of_the_same_size():
    from compact_table import BARS, GOOGLE

    for name, size in (("mini", "4x256"), ("small", "4x512")):
        for work, bar in BARS[name].items():
            assert bar >= GOOGLE[size][work][TASKS[work].metrics[0]], (name, work)


def test_every_test_split_and_source_that_is_named_is_there():
    from compact_task import WORKS

    order = list(WORKS)
    for name, work in WORKS.items():
        assert not work.test or work.test in TASKS[work.task].splits, name
        assert not work.source or order.index(work.source) < order.index(name), name


def test_the_tables_that_are_published_are_those_of_the_results():
    from compact_table import markdown

    results = _BENCHMARKS.parent / "docs/results"
    published = (results / "compact.md").read_text(encoding="utf-8")
    models = json.loads((results / "compact.json").read_text(encoding="utf-8"))["models"]
    assert set(models) == {"mini", "small", "mini-ko"}
    for name, model in models.items():
        _, table = markdown({name: model}).split("\n\n", 1)
        assert table in published, name


def test_the_table_has_median_spread_random_test_and_bar():
    from compact_table import merged

    test = {"metrics": {"f1": 0.8123, "accuracy": 0.75}}
    ours = _result("mrpc", "f1", [0.87, 0.86, 0.88], accuracy=0.8, test=test, notes=["dev: official"])
    models = merged({}, "mini", MINI, "model", {"mrpc": ours})
    models = merged(models, "mini", MINI, "random", {"mrpc": _result("mrpc", "f1", [0.81], accuracy=0.68)})
    row = _cells(models)["mrpc"]
    assert row["metric"] == "f1 / accuracy"
    assert row["ours, dev"] == "87.0 (86.0 to 88.0) / 80.0"
    assert row["random initialisation"] == "81.0 (one seed) / 68.0"
    assert row["ours, test"] == "81.2 / 75.0"
    assert row["Google's, test"] == "81.1 / 71.8"
    assert (row["bar"], row["reached"], row["notes"]) == ("86", "yes", "dev: official")


def test_answers_are_in_percent_already():
    from compact_table import merged

    models = merged({}, "mini", MINI, "model", {"squad1": _result("squad1", "f1", [71.25], exact_match=60.0)})
    assert _cells(models)["squad1"]["ours, dev"] == "71.2 (one seed) / 60.0"


@pytest.mark.parametrize(
    ("name", "task", "google", "bar"),
    [("rte-from-snli", "rte", "57.9", "61"), ("qnli-from-squad1", "qnli", "84.1", "84.1")],
)
def test_a_task_by_way_of_another_is_held_against_its_own_bar(name, task, google, bar):
    from compact_table import merged

    models = merged({}, "mini", MINI, "model", {name: _result(task, "accuracy", [float(bar) / 100 - 0.01])})
    row = _cells(models)[name]
    assert (row["Google's, test"], row["bar"], row["reached"]) == (google, bar, "no, 1.0 short")


def test_a_task_measured_from_random_weights_alone_is_in_the_table_without_a_verdict():
    from compact_table import markdown, merged

    models = merged({}, "mini", MINI, "random", {"rte": _result("rte", "accuracy", [0.9])})
    row = _cells(models)["rte"]
    assert (row["ours, dev"], row["reached"]) == ("–", "–")
    lines = markdown(models).splitlines()
    assert "### mini (4x256)" in lines
    assert "GLUE server's" in lines[0], "Google's are no dev scores, and the table says so"
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1


def _seed(seed, score, **others):
    metrics = {} if score is None else {"accuracy": score, "loss": 1.0}
    return {
        "seed": seed, "score": score, "metrics": metrics, "metric": "accuracy", "minutes": 2.0, "examples": 40,
        "notes": ["train: a part"], "test": {"of": seed}, **others,
    }  # fmt: skip


SEARCHED = {"values": {"lr": "3e-4"}, "scores": {"a": 0.9, "b": 0.8}, "minutes": 1.5, "examples": 10, "failed": 1}


def test_the_seeds_on_all_examples_count_and_the_best_is_the_one_on_test():
    from compact_runs import summary
    from compact_task import FULL

    found = summary("wnli", FULL.changed(["optim.lr=1"]), SEARCHED, [_seed(0, 0.7), _seed(1, 0.9), _seed(2, 0.6)])
    assert (found["median"], found["min"], found["max"]) == (0.7, 0.6, 0.9)
    assert (found["test"], found["medians"]) == ({"of": 1}, {"accuracy": 0.7, "loss": 1.0})
    assert found["search"] == {"examples": 10, "scores": {"a": 0.9, "b": 0.8}}
    assert (list(found["seeds"]), found["minutes"], found["failed_runs"]) == (["0", "1", "2"], 7.5, 1)
    assert found["notes"][0] == "train: a part"
    assert found["notes"][-1] == "with optim.lr=1"


def test_a_seed_without_a_score_is_not_the_best_and_has_no_part_in_the_median():
    from compact_runs import summary
    from compact_task import FULL

    found = summary("stsb", FULL, SEARCHED, [_seed(0, None), _seed(1, 0.5), _seed(2, 0.7)])
    assert (found["median"], found["test"], found["medians"]) == (0.6, {"of": 2}, {})
    assert summary("stsb", FULL, SEARCHED, [_seed(0, None)])["median"] is None


def test_seeds_have_the_settings_that_the_search_has_chosen():
    from compact_task import FULL, chosen

    from bertworks.finetuning.settings import points_of

    points = points_of(TASKS["rte"], FULL.overrides, is_grid=True)
    for point in points:
        (same,) = points_of(TASKS["rte"], [*FULL.overrides, *chosen(FULL.overrides, point.values)], is_grid=True)
        assert same == point


def test_a_search_goes_in_parts_that_are_together_the_whole_of_it():
    from compact_task import FULL, WORKS, points_for

    for name, num_points in (("rte", 4), ("qnli", 2)):
        search = FULL.of(WORKS[name])
        parts = [points_for(name, overrides) for overrides in search.searches(name)]
        assert [len(points) for points in parts] == [num_points] * 4
        assert [{point.settings.optim.lr for point in points} for points in parts] == [{3e-4}, {1e-4}, {5e-5}, {3e-5}]
        names = [point.name for points in parts for point in points]
        assert sorted(names) == sorted(point.name for point in points_for(name, search.on_some()))


def test_where_there_is_one_rate_another_axis_divides_a_search():
    from compact_task import FULL

    search = FULL.changed(["optim.lr=1e-4", "task.layer_decay=1"])
    assert [overrides[-1] for overrides in search.searches("rte")] == ["train.batch_size=16", "train.batch_size=32"]


def test_one_point_is_not_searched(tmp_path):
    from compact_runs import parts_of, read_search
    from compact_task import FULL

    search = FULL.changed(["optim.lr=1e-4", "task.layer_decay=1", "train.batch_size=32"])
    assert parts_of("rte", search) == ["seed-0", "seed-1", "seed-2"]
    found = read_search(tmp_path, "rte", search)
    assert found["values"] == {"batch_size": "32", "lr": "1e-4", "epochs": "4", "layer_decay": "1"}
    assert (found["scores"], found["minutes"]) == ({}, 0.0)


def _run(point, score, error=""):
    return {"point": point, "score": score, "values": {"of": point}, "minutes": 2.0, "error": error, "metrics": {}}


def test_a_part_has_the_points_that_are_asked_for():
    from compact_runs import asked_for
    from compact_task import QUICK, points_for

    points = points_for("rte", QUICK.on_some())
    runs = [_run(points[0].name, 0.6), _run("of an earlier start", 0.9)]
    found = asked_for({"runs": dict(enumerate(runs)), "examples": 2_490}, points)
    assert ([run["point"] for run in found["runs"]], found["examples"]) == ([points[0].name], 50)


def test_the_best_point_is_that_of_all_parts():
    from compact_runs import best_point

    parts = [{"runs": [_run("a", 0.6), _run("b", 0.7)], "examples": 50}, {"runs": [_run("c", 0.65)], "examples": 50}]
    found = best_point(parts)
    assert (found["point"], found["values"]) == ("b", {"of": "b"})
    assert (found["minutes"], found["failed"], found["examples"]) == (6.0, 0, 50)
    assert found["scores"] == {"a": 0.6, "b": 0.7, "c": 0.65}
    parts[0]["runs"] = [_run("b", None, "not finite")]
    found = best_point(parts)
    assert (found["point"], found["failed"]) == ("c", 1)
    parts[1]["runs"] = []
    with pytest.raises(UserError, match="no run of the search has a score; the last: not finite"):
        best_point(parts)


def test_seeds_do_not_begin_with_a_part_of_the_search(tmp_path):
    from compact_runs import read_search, result_path
    from compact_task import FULL

    for number in range(4):
        with pytest.raises(UserError, match="rte: a part of its search has no result"):
            read_search(tmp_path, "rte", FULL)
        part = {"runs": [_run(str(number), number / 10)], "examples": 9}
        result_path(tmp_path, "rte", f"search-{number}").write_text(json.dumps(part))
    assert read_search(tmp_path, "rte", FULL)["point"] == "3"


def test_seeds_wait_for_their_search_and_a_work_for_the_one_it_starts_from():
    from compact import Job, next_ready

    snli, rte, random = (
        Job("model", "snli", "search-0"), Job("model", "rte-from-snli", "search-0"), Job("random", "snli", "search-0"),
    )  # fmt: skip
    other = snli._replace(part="search-1")
    seeds = [snli._replace(part=f"seed-{number}") for number in range(2)]
    assert next_ready([snli, other, *seeds, rte], []) == snli
    assert next_ready([other, *seeds, rte], [snli]) == other
    assert next_ready([*seeds, rte], [snli]) is None
    assert next_ready([*seeds, rte], [other]) is None
    assert next_ready([rte._replace(part="seed-0")], [seeds[0]]) is None, "nothing was to be searched"
    assert next_ready([*seeds, rte], [random]) == seeds[0]
    assert next_ready([seeds[1], rte], [seeds[0]]) == seeds[1]
    assert next_ready([rte], [seeds[1]]) is None
    assert next_ready([rte], [random]) == rte


def test_what_starts_from_a_work_takes_its_best_seed_when_all_are_through(tmp_path):
    from compact_runs import result_path, source_model

    for number, score in enumerate((0.5, 0.7, None)):
        with pytest.raises(UserError, match="no finished runs of snli"):
            source_model(tmp_path, "snli", 3)
        found = {"score": score, "model": f"snli/run-{number}"}
        result_path(tmp_path, "snli", f"seed-{number}").write_text(json.dumps(found))
    assert source_model(tmp_path, "snli", 3) == str(tmp_path / "snli" / "run-1")


def test_runs_from_another_works_model_lie_apart_for_each_such_model(tmp_path):
    from compact_runs import place_of, result_path

    places = []
    for model in ("snli/quick-seed-0", "snli/real-seed-0"):
        result_path(tmp_path, "snli", "seed-0").write_text(json.dumps({"score": 0.5, "model": model}))
        places.append(place_of("rte-from-snli", "mini", tmp_path, tmp_path, "model", 1))
    assert [place.model for place in places] == [
        str(tmp_path / name) for name in ("snli/quick-seed-0", "snli/real-seed-0")
    ]
    assert places[0].path_of("search") != places[1].path_of("search")
    assert place_of("rte", "mini", tmp_path, tmp_path, "model", 1).path_of("search") == "rte/search"


def test_notes_say_which_file_but_not_where_it_lies(tmp_path, monkeypatch):
    from compact_runs import Place, run_seed
    from compact_task import QUICK

    run = {"score": 0.5, "metrics": {}, "minutes": 1.0, "seed": 0, "error": ""}
    notes = [f"train: left out: 3 rows (first: {tmp_path}/RTE/train.tsv:7)"]
    monkeypatch.setattr(Place, "grid", lambda *_: {"runs": {"a": run}, "metric": "f1", "examples": 9, "notes": notes})
    place, search = Place("rte", "mini", tmp_path, tmp_path, "model"), QUICK.changed(["optim.lr=1e-4"])
    assert run_seed(place, search, 0)["notes"] == ["train: left out: 3 rows (first: RTE/train.tsv:7)"]
    run["error"] = "the loss is not finite"
    with pytest.raises(UserError, match="seed-0: the loss is not finite"):
        run_seed(place, search, 0)


def test_how_many_examples_a_run_may_see_is_one_number():
    from compact_task import FULL

    assert FULL.on_some()[-1] == "task.max_examples=10000"
    assert FULL.changed(["task.max_examples=0"]).on_some()[-1] == "task.max_examples=10000"
    assert FULL.changed(["task.max_examples=64"]).most_examples() == 64
    with pytest.raises(UserError, match="give one number"):
        FULL.changed(["task.max_examples=10,20"]).on_some()


def test_a_metric_that_one_seed_does_not_have_is_not_in_the_table():
    from compact_table import measured

    result = _result("stsb", "spearman", [0.5])
    assert measured(result, ["spearman", "pearson"]) == "50.0 (one seed) / –"


def test_every_work_has_its_place_in_the_table():
    from compact_table import ORDER
    from compact_task import WORKS

    assert sorted(ORDER) == sorted(WORKS)


@pytest.fixture
def compact(tmp_path):
    """Starts the command on a task of a few lines, with a model of nothing."""
    write_rte(tmp_path / "data")
    model = write_small_model(tmp_path / "model", **SIZES)

    def start(*options):
        command = (_BENCHMARKS / "compact.py", model, "--data", tmp_path / "data", "--out", tmp_path / "out", "--quick",
                   "--tasks", "rte", "--set", "task.max_length=16", *options)  # fmt: skip
        return subprocess.Popen(
            [sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    return start


def test_a_folder_has_one_command_at_a_time(tmp_path, compact):
    with hold_run(tmp_path / "out"):
        process = compact()
        assert f"is in use by process {os.getpid()}" in process.communicate(timeout=100)[0]
    assert process.returncode == 2


@pytest.mark.nightly
def test_a_command_that_was_asked_to_end_goes_on_to_the_whole_result(tmp_path, compact):
    first = compact("--jobs", "2")
    assert "model/rte" in first.stdout.readline()
    assert all("search" in first.stdout.readline() for _ in range(2))  # its seeds are about to begin, or import
    first.terminate()
    said = first.stdout.read()  # not communicate(), which passes over what was read with a line before
    assert "the same command goes on" in said
    first.wait(timeout=100)
    assert first.returncode == 1
    assert not (tmp_path / "out/results.json").exists()
    third = compact("--jobs", "2")
    said = third.communicate(timeout=100)[0]
    assert third.returncode == 0, said
    found = json.loads((tmp_path / "out/results.json").read_text())["models"]["1x32-quick"]["results"]["model"]["rte"]
    assert (set(found["seeds"]), found["examples"], found["search"]["examples"]) == ({"0", "1"}, 32, 32)
    assert len(found["search"]["scores"]) == 2
    fourth = compact()
    assert "nothing to do" in fourth.communicate(timeout=100)[0]


def test_parts_for_which_there_was_no_time_are_told(compact):
    process = compact("--minutes", "0")
    assert "4 of the parts have not begun; the same command goes on" in process.communicate(timeout=100)[0]
    assert process.returncode == 1


def test_a_place_that_cannot_be_written_is_told_before_anything_is_run(tmp_path, compact):
    process = compact("--json", tmp_path / "nowhere/results.json")
    assert "compact.py: cannot write" in process.communicate(timeout=100)[0]
    assert process.returncode == 2
    assert not list((tmp_path / "out").glob("*"))


@pytest.mark.parametrize(("spec", "said"), [(": optim.lr=1", "has no name"), ("../runs:", "not a usable name")])
def test_a_candidate_has_a_name_that_is_a_folder_of_its_own(tmp_path, spec, said):
    (tmp_path / "kept").write_text("")
    command = [_BENCHMARKS / "candidates.py", "pretrain", spec, "--shards", tmp_path, "--out", tmp_path / "runs"]
    ended = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True)
    assert (ended.returncode, said in ended.stderr) == (2, True)
    assert (tmp_path / "kept").exists()


def _import_benchmarks():
    for path in sorted(_BENCHMARKS.glob("*.py")):
        importlib.import_module(path.stem)


def test_every_benchmark_finds_what_it_imports():
    child = multiprocessing.get_context("fork").Process(target=_import_benchmarks)  # which need not import torch again
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_task_is_on_the_board_when_its_last_part_is_through(tmp_path, monkeypatch):
    import compact
    from compact_task import FULL

    monkeypatch.setattr(compact, "about_model", lambda model: MINI)
    given = argparse.Namespace(json=None, out=tmp_path, model="mini", name=None, quick=False)
    board, job, search = compact.Board(given), compact.Job("model", "wnli", "seed-0"), FULL.changed(["optim.lr=1,2"])
    (tmp_path / "model").mkdir()
    parts = {f"search-{n}": {"runs": [_run(str(n), 0.4)], "examples": 9} for n in range(2)}
    parts |= {f"seed-{n}": _seed(n, 0.5, command="c", machine="m") for n in range(3)}
    for part, found in parts.items():
        assert board.add(job, search) is None
        assert not board.has("model", "wnli")
        board.path_of(job._replace(part=part)).write_text(json.dumps(found))
    assert board.add(job, search)["median"] == 0.5
    assert board.has("model", "wnli")
    assert not board.has("random", "wnli")


def test_settings_that_are_given_come_last_and_are_noted():
    from compact_task import FULL

    changed = FULL.changed(["task.max_examples=500"])
    assert changed.overrides == (*FULL.overrides, "task.max_examples=500")
    assert changed.notes == ("with task.max_examples=500",)
    assert FULL.changed([]) == FULL


def test_the_search_is_the_one_that_was_asked_for():
    from compact_task import FULL, WORKS

    from bertworks.finetuning.settings import points_of

    for name, decays, average in (("rte", (1.0, 0.6), 0.0), ("qnli", (1.0,), 0.25)):
        points = points_of(TASKS[name], FULL.of(WORKS[name]).overrides, is_grid=True)
        settings = [point.settings for point in points]
        tried = {(one.optim.lr, one.train.batch_size, one.task.layer_decay) for one in settings}
        assert tried == set(itertools.product((3e-4, 1e-4, 5e-5, 3e-5), (16, 32), decays))
        assert len(points) == len(tried)
        assert {(one.train.epochs, one.task.average) for one in settings} == {(4, average)}
    assert (FULL.seeds, FULL.on_some()[-1]) == (3, "task.max_examples=10000")
    assert FULL.changed(["task.max_examples=500"]).on_some()[-1] == "task.max_examples=500"
    assert FULL.changed(["task.max_examples=0"]).on_some()[-1] == "task.max_examples=10000"
    assert FULL.with_seeds(1)[2:] == (1, ("seeds: 1",))
