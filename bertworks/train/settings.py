"""How weights are changed: the `[optim]` section of a recipe, with the paper's values."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings

OptimizerName = Literal["adam", "adamw", "lamb"]
Schedule = Literal["linear", "cosine", "wsd", "constant"]


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
    decay_share: float = Field(default=0.2, gt=0, le=1)  # of the run, at its end, in which wsd decays
    warmup: float = Field(default=10_000, ge=0)  # in steps; less than 1: as a share of the run
    clock: bool = False  # whether a run's share is that of its max_minutes instead of its steps

    # On a field and not on the whole section: so it is told together with whatever else is wrong there.
    @field_validator("warmup")
    @classmethod
    def _warmup_is_whole_and_ends_before_the_decay(cls, warmup: float, info: ValidationInfo) -> float:
        if warmup >= 1 and warmup != int(warmup):
            raise ValueError(f"{warmup} is neither a whole number of steps nor, less than 1, a share of the run")
        decay_share = info.data.get("decay_share", 0.0)
        if info.data.get("schedule") == "wsd" and warmup < 1 and warmup + decay_share > 1 + 1e-9:
            raise ValueError(f"{warmup} and decay_share {decay_share} are more than 1 together")
        return warmup
