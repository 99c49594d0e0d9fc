"""The points of a grid: every combination of the values that settings are given.

With a grid, `optim.lr=3e-4,1e-4` is an axis. Batch size, learning rate and epochs have the paper's ranges (A.3, and for
the rate those of its GLUE runs, or what a model recommends) where nothing is said of them; whatever is said of one, a
list or a single value, takes the place of its range. A point is named by its values as the settings read them, so
0.00003 and 3e-5 are one.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

from bertworks.config import check_overrides
from bertworks.errors import UserError
from bertworks.tasks.task import Task
from bertworks.tuning.settings import FinetuneSettings, settings_for

PAPER_AXES = {
    "train.batch_size": ("16", "32"),
    "optim.lr": ("5e-5", "4e-5", "3e-5", "2e-5"),
    "train.epochs": ("2", "3", "4"),
}
MOST_POINTS = 1_000
_SEED = "train.seed"
_SMALL = 0.001  # below it a power of ten is easier to read


class Point(NamedTuple):
    """One combination of settings.

    Attributes:
        name: also that of its folder.
        values: of each axis, by the last part of its key, as they are written.
        settings: all of them.
    """

    name: str
    values: dict[str, str]
    settings: FinetuneSettings


def points_of(task: Task, overrides: Sequence[str], *, is_grid: bool) -> list[Point]:
    """Return the points that overrides ask for; without a grid the one of the settings as they are."""
    check_overrides(overrides)
    axes, fixed = _axes(overrides) if is_grid else (dict.fromkeys(PAPER_AXES, ("",)), list(overrides))
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > MOST_POINTS:
        raise UserError(f"a grid of {count:,} points is too large; at most {MOST_POINTS:,}")
    points: dict[str, Point] = {}
    for values in itertools.product(*axes.values()):
        chosen = [f"{key}={value}" for key, value in zip(axes, values, strict=True) if is_grid]
        point = _point(settings_for(task, [*fixed, *chosen]), list(axes))
        points.setdefault(point.name, point)
    return list(points.values())


def _axes(overrides: Sequence[str]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Divide overrides into axes, the paper's first, and those that hold for every point."""
    axes, fixed = dict(PAPER_AXES), []
    for override in overrides:
        key, _, text = (part.strip() for part in override.partition("="))
        values = tuple(value.strip() for value in text.split(","))
        if key == _SEED and len(values) > 1:
            raise UserError(f"{override[:60]}: seeds are no axis; --restarts N takes N of them, from {_SEED} on")
        if key in axes or len(values) > 1:  # the last that is said of a setting counts
            axes[key] = values
        else:
            fixed.append(override)
    return axes, fixed


def _point(settings: FinetuneSettings, keys: Sequence[str]) -> Point:
    values = {key.rpartition(".")[2]: written(_value(settings, key)) for key in keys}
    return Point("-".join(f"{name}{value}" for name, value in values.items()), values, settings)


def _value(settings: FinetuneSettings, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(settings, section), name)


def written(value: Any) -> str:
    """Write a value as people do: 3e-5, not 3e-05 or 0.00003."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if value and abs(value) < _SMALL:
        digits, _, power = f"{value:.9e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:.10g}"
