"""A recipe: all settings of a run by section, with the paper's values as defaults."""

import os
from collections.abc import Sequence
from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import DataSettings, Settings, TokenizerSettings, VocabSettings, is_like, read_recipe
from bertworks.errors import UserError
from bertworks.nn.config import Activation, Positions, Segments

OptimizerName = Literal["adam", "adamw", "lamb"]
Schedule = Literal["linear", "cosine", "wsd", "constant"]

_DECAY_SHARE = 0.2
MOST = 10**15  # of any count: more than anybody could train, and small enough to be exact in a float
_FURTHER = "continue"  # the recipe without a model's size


class ModelSettings(Settings):
    """What is trained: the `[model]` section of a recipe. The size of the vocabulary comes from the data."""

    kind: Literal["bert", "gpt", "elmo"] = Field(default="bert", description="The kind of network.")
    preset: str = Field(default="base", description="A published size, or layers x width as 4x256.")
    hidden_act: Activation = Field(default="gelu", description="The activation of feed-forward layers.")
    dropout: float = Field(default=0.1, ge=0, lt=1, description="The dropout of all layers, attention included.")
    max_positions: int = Field(default=512, ge=8, le=65_536, description="The longest text, in tokens.")
    positions: Positions = Field(default="learned", description="How positions are encoded.")
    segments: Segments = Field(
        default="learned", description="Whether a BERT is told which of two texts a token is of; none: it is not."
    )

    @property
    def tokens(self) -> Literal["wordpiece", "gpt-bpe", "words"]:
        """The kind of tokens that this kind of model reads."""
        return {"bert": "wordpiece", "gpt": "gpt-bpe", "elmo": "words"}[self.kind]  # type: ignore[return-value]


class OptimSettings(Settings):
    """Adam and its learning rate as in the paper and the original code, unless set otherwise: the `[optim]` section."""

    name: OptimizerName = Field(default="adam", description="adam is without bias correction, as the original.")
    lr: float = Field(default=1e-4, gt=0, le=100, description="The highest learning rate.")
    weight_decay: float = Field(default=0.01, ge=0, le=1, description="Weight decay, except for biases and LayerNorms.")
    beta1: float = Field(default=0.9, ge=0, lt=1, description="The decay of Adam's mean of gradients.")
    beta2: float = Field(default=0.999, ge=0, lt=1, description="The decay of Adam's mean of squared gradients.")
    eps: float = Field(
        default=1e-6, gt=0, le=1, description="Added to the square root of the mean of squared gradients."
    )
    clip: float = Field(
        default=1.0,
        ge=0,
        description="The largest norm of all gradients together; larger ones are scaled down; 0: no limit.",
    )
    schedule: Schedule = Field(default="linear", description="How the learning rate falls after the warm-up.")
    decay_share: float = Field(
        default=_DECAY_SHARE, gt=0, le=1, description="The last share of a run, in which the schedule wsd decays."
    )
    warmup: float = Field(
        default=10_000.0, ge=0, le=MOST, description="Warm-up in steps; less than 1: a share of the run."
    )
    clock: bool = Field(default=False, description="Whether the schedule follows max_minutes instead of max_steps.")

    # On fields and not on the whole section: so they are reported together with whatever else is wrong there.
    @field_validator("decay_share")
    @classmethod
    def _only_wsd_has_a_decay_share(cls, decay_share: float, info: ValidationInfo) -> float:
        schedule = info.data.get("schedule", "wsd")
        if schedule != "wsd" and decay_share != _DECAY_SHARE:  # every run's recipe.toml has the default
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


class TrainSettings(Settings):
    """How long and how: the `[train]` section of a recipe."""

    max_steps: int = Field(default=1_000_000, ge=1, le=MOST, description="Steps after which a run ends.")
    max_tokens: int | None = Field(default=None, ge=1, le=MOST, description="Tokens after which a run ends.")
    max_minutes: float | None = Field(default=None, gt=0, le=MOST, description="Minutes after which it ends.")
    batch_size: int = Field(default=256, ge=1, le=MOST, description="Batch size, in sequences of max_length.")
    slices: int = Field(default=1, ge=1, le=MOST, description="Number of micro-batches that a batch is split into.")
    log_every: int = Field(default=10, ge=1, le=MOST, description="Steps between lines of the logs.")
    eval_every: int = Field(default=1_000, ge=1, le=MOST, description="Steps between evaluations.")
    eval_batches: int = Field(default=4, ge=1, le=MOST, description="Batches of an evaluation.")
    save_every: int = Field(default=1_000, ge=1, le=MOST, description="Steps between checkpoints.")
    save_minutes: float = Field(
        default=15.0,
        gt=0,
        le=MOST,
        description="Most minutes between checkpoints, which is the most work that a kill can cost.",
    )
    keep: int = Field(default=2, ge=1, le=MOST, description="Number of checkpoints to keep.")
    seed: int = Field(default=0, ge=0, lt=1 << 62, description="The seed of weights, masks, order and dropout.")
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto", description="The number type of computations; auto: bfloat16 on a GPU, else float32."
    )
    compile: bool | None = Field(default=None, description="Whether to compile the network; not set: only on a GPU.")
    recompute: bool = Field(
        default=False, description="Keep only each block's input and recompute the rest, to save memory."
    )
    shard: bool = Field(default=False, description="Spread weights and optimizer over the ranks (FSDP2).")
    rank_timeout: float = Field(default=25.0, gt=0, le=600, description="Seconds to wait for a rank that hangs.")
    deterministic: bool = Field(
        default=False, description="On a GPU: the same numbers every time, but somewhat slower."
    )
    on_nonfinite: Literal["stop", "skip"] = Field(
        default="stop", description="What to do about gradients that are not finite."
    )
    max_skips: int = Field(
        default=10, ge=1, le=MOST, description="With on_nonfinite=skip: the most steps to skip in a run."
    )
    on_save_error: Literal["stop", "continue"] = Field(
        default="stop", description="What to do when a checkpoint cannot be written."
    )
    loader_workers: int = Field(
        default=0, ge=0, le=64, description="Number of processes that make batches; 0: a thread makes them."
    )
    check_memory: bool = Field(default=True, description="On a CPU: refuse a run that needs more memory than is free.")


class Recipe(Settings):
    """Every section; the defaults are the paper's values."""

    tokenizer: TokenizerSettings = TokenizerSettings()
    vocab: VocabSettings = VocabSettings()
    model: ModelSettings = ModelSettings()
    data: DataSettings = DataSettings()
    optim: OptimSettings = OptimSettings()
    train: TrainSettings = TrainSettings()

    def sequences_of(self, length: int) -> int:
        """Return how many whole sequences of a given length a batch holds."""
        data = self.data
        is_short = length == data.short_length and length < data.max_length
        return data.short_batch if is_short and data.short_batch else self.train.batch_size

    def batch_tokens(self, length: int) -> int:
        """Return how many tokens a batch of sequences of a given length has."""
        return self.sequences_of(length) * length


def load_recipe(name_or_path: str, overrides: Sequence[str] = ()) -> Recipe:
    """Return a shipped recipe by name, or your own by path, changed by `section.key=value` overrides."""
    return read_recipe(Recipe, name_or_path, overrides)


def as_recipe(recipe: Recipe | str | os.PathLike[str], overrides: Sequence[str] = ()) -> Recipe:
    """Return a recipe unchanged, or load the one of that name or path and apply the overrides."""
    if not isinstance(recipe, Recipe):
        return load_recipe(os.fspath(recipe), overrides)
    if overrides:
        raise UserError("overrides are for a recipe that is given by its name or path; this one has all its settings")
    return recipe


def check_has_model(recipe: Recipe | str | os.PathLike[str]) -> None:
    """Refuse the recipe `continue`, and recipes like it, when no model was given to train further."""
    if not isinstance(recipe, Recipe) and is_like(os.fspath(recipe), _FURTHER):
        raise UserError(
            f"the recipe {_named(os.fspath(recipe))} trains a model further; give the model with --from MODEL"
        )


def check_has_sizes(recipe: str, settings: Recipe) -> None:
    """Refuse to plan with a recipe that does not give the model's size."""
    if is_like(recipe, _FURTHER) and "preset" not in settings.model.model_fields_set:
        raise UserError(
            f"the recipe {_named(recipe)} takes the model's size from --from MODEL; to plan, give a size such as "
            "model.preset=base"
        )


def _named(recipe: str) -> str:
    return recipe if recipe == _FURTHER else f"{recipe}, which is like {_FURTHER},"
