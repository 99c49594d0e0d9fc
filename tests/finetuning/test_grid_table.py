"""The table of a grid: mean and spread as numpy has them, the best marked, 100 columns, failures told."""

import numpy as np
import pytest

from bertworks.finetuning.search import Record, Result, grid_markdown, grid_text

ABOUT = {
    "task": "rte", "title": "RTE", "metric": "accuracy", "examples": 2490, "data": "ab", "model": "cd", "init": "model",
    "notes": [],
}  # fmt: skip


def results_of(tmp_path, runs, **state):
    record = Record(tmp_path, ABOUT, state.pop("search_examples", 0))
    record.runs = runs
    for name, value in state.items():
        setattr(record, name, value)
    return record.content()


def ended(point, seed, score, *, is_search=False, error="", **values):
    values = values or {"batch_size": "16", "lr": point}
    return Result(
        point=point, values=values, seed=seed, is_search=is_search, settings={}, score=score, step=10, minutes=1.25,
        error=error,
    )  # fmt: skip


@pytest.fixture
def results(tmp_path):
    runs = {f"a/seed-{seed}": ended("a", seed, score) for seed, score in enumerate([0.61, 0.64, 0.58])}
    runs |= {f"b/seed-{seed}": ended("b", seed, score) for seed, score in enumerate([0.66, 0.60])}
    runs["b/seed-2"] = ended("b", 2, None, error="out of memory on cuda with batches\nof 32 " + "and more " * 30)
    runs["c/seed-0"] = ended("c", 0, None, error="no room")
    return results_of(tmp_path, runs, model_of="b/seed-0")


def test_mean_and_spread_are_over_the_seeds_that_came_to_an_end(results):
    first, second, third = results["points"]
    assert first["mean"] == pytest.approx(np.mean([0.61, 0.64, 0.58]))
    assert first["std"] == pytest.approx(np.std([0.61, 0.64, 0.58], ddof=1))
    assert (second["mean"], second["failed"], third["mean"]) == (pytest.approx(0.63), 1, None)
    assert [point["is_best"] for point in results["points"]] == [False, True, False]


def test_the_table_fits_a_terminal_and_marks_the_best(results):
    lines = grid_text(results).splitlines()
    assert max(map(len, lines)) <= 100
    head, *rows = [line.split() for line in lines[2:6]]
    assert head == ["batch_size", "lr", "seeds", "mean", "std", "min..max", "minutes"]
    assert rows[0] == ["16", "a", "3", "0.6100", "0.0300", "0.5800..0.6400", "3.75"]
    assert rows[1][:4] == ["*", "16", "b", "2"]
    assert rows[2] == ["16", "c", "0", "of", "1", "failed", "–", "–", "1.25"]


def test_below_the_table_stand_failures_the_best_run_and_what_it_cost(results):
    text = grid_text(results)
    assert "b/seed-2 failed: out of memory on cuda with batches of 32" in text
    assert "model/ is from the best run, b/seed-0: accuracy 0.6600" in text
    assert text.endswith("7 runs, 2 of them failed, 8.75 minutes of training in all")


def test_markdown_has_the_same_rows_and_errors_in_full(results):
    text = grid_markdown(results)
    assert text.count("\n| ") == 4
    assert "|  | 16 | a | 3 | 0.6100 | 0.0300 | 0.5800..0.6400 | 3.75 |" in text
    assert text.count("and more") == 30


def test_a_search_has_a_table_of_its_own(tmp_path):
    runs = {f"search/{name}/seed-0": ended(name, 0, score, is_search=True) for name, score in (("a", 0.9), ("b", 0.8))}
    runs["a/seed-0"] = ended("a", 0, 0.7)
    results = results_of(tmp_path, runs, chosen="a", model_of="a/seed-0", search_examples=1_000)
    text = grid_text(results)
    assert "Search, on 1,000 of 2,490 examples:" in text
    assert text.index("0.9000") < text.index("At the best of these:") < text.index("0.7000")
    assert text.count("\n*  16") == 2


def test_many_axes_are_cut_and_not_wrapped(tmp_path):
    axes = {f"a_long_setting_{number}": "0.123456" for number in range(8)}
    results = results_of(tmp_path, {"a/seed-0": ended("a", 0, 0.5, **axes)}, model_of="a/seed-0")
    assert max(map(len, grid_text(results).splitlines())) == 100


def test_what_is_saved_is_read_back_the_same(tmp_path, results):
    record = Record(tmp_path, ABOUT)
    record.runs = {name: Result(**run) for name, run in results["runs"].items()}
    record.model_of = "b/seed-0"
    written = record.save()
    assert Record(tmp_path, ABOUT).content() == written == results
