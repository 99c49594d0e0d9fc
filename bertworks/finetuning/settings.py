"""The settings of fine-tuning, and the points of a grid over them.

Settings that are not given are the paper's (A.3), and the others as in pre-training. In a grid `optim.lr=3e-4,1e-4` is
an axis. Batch size, learning rate and epochs have the paper's ranges by default (A.3; for the rate those of its GLUE
runs, or what the model recommends); a list or a single value replaces its range. A point is named by its values as the
settings read them, so 0.00003 and 3e-5 are the same point.
"""

import itertools
import math
from collections.abc import Sequence
from operator import attrgetter
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator

from bertworks.config import Settings, check_overrides, from_overrides, shorten
from bertworks.errors import ConfigError, UserError
from bertworks.nn.config import FeatureName
from bertworks.recipe import MOST, OptimSettings, TrainSettings
from bertworks.tasks.task import Context, Cut, Task

_WARMUP = 0.1  # of the run, as the original code has it for fine-tuning
# Of a BiLSTM that starts from nothing. The paper does not say how its own was trained.
_FEATURES_RATE, _FEATURES_EPOCHS = 1e-3, 10
PAPER_AXES = {
    "train.batch_size": ("16", "32"),
    "optim.lr": ("5e-5", "4e-5", "3e-5", "2e-5"),
    "train.epochs": ("2", "3", "4"),
}
MOST_POINTS = 1_000
_SEED = "train.seed"
_SMALL = 0.001  # below it a power of ten is easier to read
_OF_ONE_KIND = {"context": "tag", "stride": "tag", "doc_stride": "answer", "max_query": "answer"}


class FinetuneTrainSettings(TrainSettings):
    """How long and how a model is fine-tuned; what is not set here is as in pre-training."""

    max_steps: int = Field(
        default=1_000_000_000, ge=1, le=MOST, description="Steps after which a run ends; the epochs end it sooner."
    )
    epochs: int = Field(default=3, ge=1, le=10_000, description="Passes over the train set.")
    batch_size: int = Field(default=32, ge=1, le=MOST, description="Examples in a batch.")
    eval_every: int = Field(
        default=0, ge=0, le=MOST, description="Steps between evaluations, besides the end of every epoch; 0: only then."
    )
    keep: int = Field(default=1, ge=1, le=MOST, description="Number of checkpoints to keep.")


class TaskSettings(Settings):
    """Settings of fine-tuning alone: the `[task]` section."""

    max_length: int = Field(
        default=128, ge=3, le=65_536, description="Longer texts are cut, the longer one of a pair first."
    )
    max_examples: int = Field(
        default=0, ge=0, le=MOST, description="Number of training examples to use, always the same ones; 0: all."
    )
    context: Context = Field(default="document", description="Tagging: read sentences within their document, or alone.")
    stride: int | None = Field(
        default=None, ge=1, le=MOST, description="Tagging: stride of windows, in tokens; not set: half a window."
    )
    doc_stride: int = Field(default=128, ge=1, le=MOST, description="Answering: stride of windows, in tokens.")
    max_query: int = Field(
        default=64, ge=1, le=MOST, description="Answering: the longest question, in tokens; longer ones are cut."
    )
    dropout: float | None = Field(
        default=None, ge=0, lt=1, description="Dropout of all layers; not set: as in pre-training."
    )
    cells: int = Field(
        default=0, ge=0, le=65_536, description="Cells of BiLSTMs over an ELMo or frozen layers; 0: by the task."
    )
    class_weights: bool = Field(default=False, description="Whether rare classes count as much as frequent ones.")
    features: FeatureName | None = Field(
        default=None, description="Of tagging: frozen layers that a BiLSTM reads, instead of fine-tuning."
    )
    freeze: int | Literal["all"] = Field(
        default=0, description="Number of lowest layers to freeze, embeddings included; or all."
    )
    layer_decay: float = Field(
        default=1.0, gt=0, le=1, description="Factor of the learning rate, from each layer to the one below."
    )
    average: float = Field(
        default=0.0, ge=0, le=1000, description="Epochs over which weights are averaged; 0: not at all."
    )
    bilstm: bool = Field(default=False, description="A BiLSTM on top of the encoder, initialised from the seed.")
    lm_weight: float | None = Field(
        default=None, ge=0, le=100, description="Weight of GPT-1's language-model loss; not set: its paper's 0.5."
    )
    early_stopping: int = Field(
        default=0, ge=0, le=MOST, description="Stop after so many evaluations without a better model; 0: never."
    )

    def cut(self) -> Cut:
        """Return the limits to which examples are cut."""
        return Cut(self.max_length, self.context, self.stride, self.doc_stride, self.max_query)

    @field_validator("freeze")
    @classmethod
    def _freeze_is_a_number_of_layers(cls, freeze: int | str) -> int | str:
        if isinstance(freeze, int) and freeze < 0:
            raise ValueError(f"{freeze} is too small; at least 0, or all")
        if isinstance(freeze, int) and freeze > MOST:
            raise ValueError(f"{shorten(freeze)} is too large; at most the number of layers, or all")
        return freeze


class FinetuneSettings(Settings):
    """Every section of a fine-tuning run."""

    task: TaskSettings = TaskSettings()
    optim: OptimSettings = OptimSettings()
    train: FinetuneTrainSettings = FinetuneTrainSettings()

    @field_validator("optim")
    @classmethod
    def _goes_by_epochs(cls, optim: OptimSettings) -> OptimSettings:
        if optim.clock:
            raise ValueError("clock is for pre-training; here the rate goes by train.epochs")
        return optim


def settings_for(task: Task, overrides: Sequence[str] = ()) -> FinetuneSettings:
    """Return the paper's settings for a task, with `section.key=value` over them."""
    where = f"fine-tuning for {task.name}"
    usual: dict[str, dict[str, Any]] = {
        "task": {"max_length": task.defaults.max_length},
        "optim": {"lr": task.defaults.learning_rate, "warmup": _WARMUP},
        "train": {"epochs": task.defaults.epochs, "batch_size": task.defaults.batch_size},
    }
    try:
        settings = from_overrides(FinetuneSettings, overrides, where, usual)
    except ConfigError as error:
        lists = {key.strip() for key, _, text in (override.partition("=") for override in overrides) if "," in text}
        hint = "; several values are for `bertworks search` (in Python: bw.search)"
        problems = [text + hint * (text.partition(":")[0] in lists) for text in error.problems]
        raise ConfigError(error.where, problems) from error
    if not settings.task.features:
        return settings
    usual["optim"]["lr"], usual["train"]["epochs"] = _FEATURES_RATE, _FEATURES_EPOCHS
    return from_overrides(FinetuneSettings, overrides, where, usual)


def without_effect(task: Task, overrides: Sequence[str]) -> list[str]:
    """Return a line for each setting without effect, because only tasks of another kind read it."""
    given = {override.partition("=")[0].strip() for override in overrides}
    return [
        f"task.{key} changes nothing: only tasks of kind {kind} have it, and {task.name} is of kind {task.kind}"
        for key, kind in _OF_ONE_KIND.items()
        if f"task.{key}" in given and task.kind != kind
    ]


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
    """Return the points of a grid; without a grid the one point of the settings as they are."""
    check_overrides(overrides)
    axes: dict[str, tuple[str, ...]] = dict(PAPER_AXES) if is_grid else dict.fromkeys(PAPER_AXES, ("",))
    fixed: list[str] = []
    for override in overrides:
        key, _, text = (part.strip() for part in override.partition("="))
        values = tuple(value.strip() for value in text.split(","))
        if is_grid and key == _SEED and len(values) > 1:
            raise UserError(f"{override[:60]}: seeds are no axis; --restarts N takes N of them, from {_SEED} on")
        if is_grid and (key in axes or len(values) > 1):  # the last value given for a setting counts
            axes[key] = values
        else:
            fixed.append(override)
    count = math.prod(map(len, axes.values()))
    if count > MOST_POINTS:
        raise UserError(f"a grid of {count:,} points is too large; at most {MOST_POINTS:,}")
    points: dict[str, Point] = {}
    for values in itertools.product(*axes.values()):
        chosen = [f"{key}={value}" for key, value in zip(axes, values, strict=True)] if is_grid else []
        settings = settings_for(task, [*fixed, *chosen])
        shown = {key.rpartition(".")[2]: written(attrgetter(key)(settings)) for key in axes}
        name = "-".join(f"{axis}{value}" for axis, value in shown.items())
        points.setdefault(name, Point(name, shown, settings))
    return list(points.values())


def written(value: Any) -> str:
    """Write a value as people do: 3e-5, not 3e-05 or 0.00003."""
    if isinstance(value, bool) or not isinstance(value, float):
        return str(value).lower() if isinstance(value, bool) else str(value)
    if value and abs(value) < _SMALL:
        digits, _, power = f"{value:.9e}".partition("e")
        return f"{digits.rstrip('0').rstrip('.')}e{int(power)}"
    return f"{value:.10g}"
