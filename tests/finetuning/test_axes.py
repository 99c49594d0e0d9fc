"""The points of a grid: the paper's ranges, lists over them, and names that are the same for the same values."""

import pytest

from bertworks.errors import UserError
from bertworks.finetuning.settings import points_of
from bertworks.tasks import find_task

SST2 = find_task("sst2")


def settings_of(points):
    return {(p.settings.train.batch_size, p.settings.optim.lr, p.settings.train.epochs) for p in points}


def test_the_ranges_are_the_papers_where_nothing_is_said():
    """A.3, with the rates of the paper's GLUE runs."""
    points = points_of(SST2, [], is_grid=True)
    assert len(points) == 24
    rates = (5e-5, 4e-5, 3e-5, 2e-5)
    assert settings_of(points) == {(size, rate, epochs) for size in (16, 32) for rate in rates for epochs in (2, 3, 4)}


def test_a_list_or_a_value_takes_the_place_of_the_papers_range():
    overrides = ["optim.lr=3e-4, 1e-4", "train.epochs=4", "task.max_length=64"]
    points = points_of(SST2, overrides, is_grid=True)
    assert settings_of(points) == {(size, rate, 4) for size in (16, 32) for rate in (3e-4, 1e-4)}
    assert {point.settings.task.max_length for point in points} == {64}


def test_any_setting_may_be_an_axis_and_is_in_the_name():
    points = points_of(
        SST2, ["task.freeze=0,all", "train.batch_size=8", "optim.lr=1e-4", "train.epochs=1"], is_grid=True
    )
    assert [point.name for point in points] == [
        "batch_size8-lr1e-4-epochs1-freeze0",
        "batch_size8-lr1e-4-epochs1-freezeall",
    ]
    assert points[1].values == {"batch_size": "8", "lr": "1e-4", "epochs": "1", "freeze": "all"}


@pytest.mark.parametrize("key", ["task.layer_decay", "optim.lr"])
@pytest.mark.parametrize(("said", "left"), [(("0.5,0.6", "0.7"), {0.7}), (("0.7", "0.5,0.6"), {0.5, 0.6})])
def test_the_last_that_is_said_of_a_setting_counts(key, said, left):
    section, name = key.split(".")
    points = points_of(SST2, [f"{key}={values}" for values in said], is_grid=True)
    assert {getattr(getattr(point.settings, section), name) for point in points} == left


@pytest.mark.parametrize(
    ("text", "name"),
    [("0.00003", "3e-5"), ("3e-05", "3e-5"), ("2.5e-4", "2.5e-4"), ("0.001", "0.001"), ("1", "1")],
)
def test_a_point_has_one_name_however_its_values_are_written(text, name):
    (point,) = points_of(SST2, [f"optim.lr={text}", "train.epochs=2", "train.batch_size=16"], is_grid=True)
    assert point.name == f"batch_size16-lr{name}-epochs2"


def test_values_that_are_the_same_are_one_point():
    assert len(points_of(SST2, ["optim.lr=3e-5,0.00003", "train.epochs=2"], is_grid=True)) == 2


def test_without_a_grid_there_is_one_point_and_a_list_is_no_value():
    (point,) = points_of(SST2, ["train.epochs=1"], is_grid=False)
    assert point.name == "batch_size32-lr3e-5-epochs1"
    with pytest.raises(UserError, match="'3e-4,1e-4' is not a number"):
        points_of(SST2, ["optim.lr=3e-4,1e-4"], is_grid=False)


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optim.lr=3e-4,x", "optim.lr: 'x' is not a number"),
        ("optim.lr=3e-4,", "optim.lr: '' is not a value"),
        ("optim.rate=1,2", "optim.rate: unknown key"),
        ("task.freeze=0,-1", "too small"),
        ("train.seed=1,2", "--restarts N"),
        ("train.log_every=" + ",".join(map(str, range(1, 200))), "4,776 points is too large"),
    ],
)
def test_mistakes_are_told_before_anything_runs(override, said):
    with pytest.raises(UserError, match=said):
        points_of(SST2, [override], is_grid=True)
