"""A recipe: all the settings of a run by section, shipped with the package under a name or lying under a path."""

import os
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings, TokenizerSettings, VocabSettings, is_like, read_recipe
from bertworks.data.settings import DataSettings
from bertworks.errors import UserError
from bertworks.nn.config import Activation, Positions

# The sections of a recipe that are about training: what is trained, how weights are changed, and for how long.


OptimizerName = Literal["adam", "adamw", "lamb"]
Schedule = Literal["linear", "cosine", "wsd", "constant"]

_DECAY_SHARE = 0.2
MOST = 10**15  # of what is counted: more than all computers could train, few enough to be counted exactly


class OptimSettings(Settings):
    """Adam and its learning rate as in the paper and the original code, unless said otherwise."""

    name: OptimizerName = "adam"  # without bias correction; adamw and lamb have it
    lr: float = Field(default=1e-4, gt=0, le=100)
    weight_decay: float = Field(default=0.01, ge=0, le=1)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.999, ge=0, lt=1)
    eps: float = Field(default=1e-6, gt=0, le=1)  # added outside the root
    clip: float = Field(default=1.0, ge=0)  # the largest norm of all gradients together; 0: whatever it is
    schedule: Schedule = "linear"
    decay_share: float = Field(default=_DECAY_SHARE, gt=0, le=1)  # of the run, at its end, in which wsd decays
    warmup: float = Field(default=10_000.0, ge=0, le=MOST)  # in steps; less than 1: as a share of the run
    clock: bool = False  # whether a run's share is that of its max_minutes instead of its steps

    # On fields and not on the whole section: so they are told together with whatever else is wrong there.
    @field_validator("decay_share")
    @classmethod
    def _only_wsd_has_a_decay_share(cls, decay_share: float, info: ValidationInfo) -> float:
        schedule = info.data.get("schedule", "wsd")
        if schedule != "wsd" and decay_share != _DECAY_SHARE:  # which the recipe of a run says, whatever its schedule
            raise ValueError(f"{decay_share} is for schedule wsd, and the schedule is {schedule}; leave it out")
        return decay_share

    @field_validator("warmup")
    @classmethod
    def _warmup_is_whole_and_ends_before_the_decay(cls, warmup: float, info: ValidationInfo) -> float:
        if warmup >= 1 and warmup != int(warmup):
            raise ValueError(f"{warmup} is neither a whole number of steps nor, less than 1, a share of the run")
        decay_share = info.data.get("decay_share", 0.0)
        if info.data.get("schedule") == "wsd" and warmup < 1 and warmup + decay_share > 1 + 1e-9:
            raise ValueError(f"{warmup} and decay_share {decay_share} are more than 1 together")
        return warmup


class ModelSettings(Settings):
    """What is trained: the `[model]` section of a recipe. The vocabulary's size is the data's."""

    kind: Literal["bert", "gpt", "elmo"] = "bert"
    preset: str = "base"  # a published size, or layers x width as 4x256
    hidden_act: Activation = "gelu"
    dropout: float = Field(default=0.1, ge=0, lt=1)  # of all layers, attention included
    max_positions: int = Field(default=512, ge=8, le=65_536)
    positions: Positions = "learned"

    @property
    def tokens(self) -> Literal["wordpiece", "gpt-bpe", "words"]:
        """Which kind of tokens such a model reads."""
        return {"bert": "wordpiece", "gpt": "gpt-bpe", "elmo": "words"}[self.kind]  # type: ignore[return-value]


class TrainSettings(Settings):
    """How long and how: the `[train]` section of a recipe."""

    max_steps: int = Field(default=1_000_000, ge=1, le=MOST)
    max_tokens: int | None = Field(default=None, ge=1, le=MOST)
    max_minutes: float | None = Field(default=None, gt=0, le=MOST)
    batch_size: int = Field(
        default=256, ge=1, le=MOST
    )  # sequences of max_length: a batch holds as many tokens as they do
    slices: int = Field(default=1, ge=1, le=MOST)  # parts that a batch is computed in, one after the other
    log_every: int = Field(default=10, ge=1, le=MOST)
    eval_every: int = Field(default=1_000, ge=1, le=MOST)
    eval_batches: int = Field(default=4, ge=1, le=MOST)
    save_every: int = Field(default=1_000, ge=1, le=MOST)
    save_minutes: float = Field(default=15.0, gt=0, le=MOST)  # that a kill may cost at most, where steps take long
    keep: int = Field(default=2, ge=1, le=MOST)
    seed: int = Field(default=0, ge=0, lt=1 << 62)
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # auto: bfloat16 on a GPU
    compile: bool | None = None  # None: on a GPU
    recompute: bool = False  # keep only what goes into each block, for the backward pass to compute the rest again
    shard: bool = False  # each of several ranks keeps a part of weights, gradients and optimizer (FSDP2)
    rank_timeout: float = Field(default=25.0, gt=0, le=600)  # seconds until a rank that does not come is given up
    deterministic: bool = False  # on a GPU: the same numbers every time, somewhat slower
    on_nonfinite: Literal["stop", "skip"] = "stop"
    max_skips: int = Field(default=10, ge=1, le=MOST)  # in a whole run
    on_save_error: Literal["stop", "continue"] = "stop"  # when the disk refuses a checkpoint
    loader_workers: int = Field(default=0, ge=0, le=64)
    check_memory: bool = True  # on a CPU: whether a run that needs much more memory than is free is refused


_FURTHER = "continue"  # the recipe that says nothing of a model's sizes


class Recipe(Settings):
    """Every section, with the paper's values where a recipe does not say otherwise."""

    tokenizer: TokenizerSettings = TokenizerSettings()
    vocab: VocabSettings = VocabSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    optim: OptimSettings = OptimSettings()
    train: TrainSettings = TrainSettings()

    def sequences_of(self, length: int) -> int:
        """Return how many whole sequences of one of a run's lengths a batch has room for."""
        data = self.data
        is_short = length == data.short_length and length < data.max_length
        return data.short_batch if is_short and data.short_batch else self.train.batch_size

    def batch_tokens(self, length: int) -> int:
        """Return how many tokens those sequences have."""
        return self.sequences_of(length) * length


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a shipped recipe by its name or one of your own by its path, with `section.key=value` overrides on top."""
    return read_recipe(Recipe, name_or_path, overrides)


def as_recipe(recipe: Recipe | str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe as it is, or the one of that name or path with overrides on top."""
    if not isinstance(recipe, Recipe):
        return load_recipe(os.fspath(recipe), overrides)
    if overrides:
        raise UserError("overrides are for a recipe that is given by its name or path; this one has all its settings")
    return recipe


def check_has_model(recipe: Recipe | str | os.PathLike[str]) -> None:
    """Refuse, where no model is given, the recipe that is for training one further, and those that are like it."""
    if not isinstance(recipe, Recipe) and is_like(os.fspath(recipe), _FURTHER):
        raise UserError(f"the recipe {_named(os.fspath(recipe))} trains a model further; say which with --from MODEL")


def check_has_sizes(recipe: str, settings: Recipe) -> None:
    """Refuse to count with such a recipe where nothing says how large the model is."""
    if is_like(recipe, _FURTHER) and "preset" not in settings.model.model_fields_set:
        raise UserError(
            f"the recipe {_named(recipe)} has the sizes of the model it is given; say them: model.preset=base"
        )


def _named(recipe: str) -> str:
    return recipe if recipe == _FURTHER else f"{recipe}, which is like {_FURTHER},"
