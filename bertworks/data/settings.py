"""How instances and batches are made: the `[data]` section of a recipe, with the paper's values."""

from typing import Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings

Objective = Literal["mlm+nsp", "mlm", "ltr", "rtl", "bilm"]
# By kind of tokens the objectives that they are learnt by, the usual one first, each with its kinds of predictions.
OBJECTIVES: dict[str, dict[str, tuple[str, ...]]] = {
    "wordpiece": {"mlm+nsp": ("mlm", "nsp"), "mlm": ("mlm",), "ltr": ("lm",), "rtl": ("lm",)},
    "gpt-bpe": {"ltr": ("lm",)},
    "words": {"bilm": ("bilm",)},
}


class DataSettings(Settings):
    """How instances are made; the defaults are those of the paper and the original script."""

    objective: Objective = Field(default="mlm+nsp", description="The pre-training objective.")
    max_length: int = Field(default=128, ge=8, le=65_536, description="The longest sequence, in tokens.")
    short_length: int | None = Field(
        default=None, ge=8, le=65_536, description="The longest sequence in the first part of a run, if it has one."
    )
    short_share: float = Field(default=0.9, ge=0, le=1, description="That part's share of a run's steps, or time.")
    short_batch: int | None = Field(
        default=None, ge=1, le=10**15, description="Sequences of a batch in that part; not set: train.batch_size."
    )
    short_seq_prob: float = Field(default=0.1, ge=0, le=1, description="The share of instances of random length.")
    mask_rate: float = Field(default=0.15, gt=0, lt=1, description="The share of tokens that are to be predicted.")
    mask_share: float = Field(default=0.8, ge=0, le=1, description="The share of those that become [MASK].")
    random_share: float = Field(
        default=0.1, ge=0, le=1, description="The share that becomes a random piece; the rest stay as they are."
    )
    whole_word: bool = Field(default=False, description="Mask all pieces of a word, or none.")
    max_predictions: int | None = Field(
        default=None, ge=1, le=65_536, description="The most per sequence; not set: as many as the rate gives."
    )
    dupe_factor: int = Field(
        default=0, ge=0, le=10**15, description="Pairs and masks repeat after so many epochs; 0: never."
    )

    def lengths(self) -> list[int]:
        """Return the lengths of sequences that a run has, the short one first."""
        return sorted({self.short_length or self.max_length, self.max_length})

    # On fields and not on the whole section: so they are reported together with whatever else is wrong there.
    @field_validator("short_length")
    @classmethod
    def _short_is_not_long(cls, short_length: int | None, info: ValidationInfo) -> int | None:
        max_length = info.data.get("max_length")
        if short_length is not None and max_length is not None and short_length > max_length:
            raise ValueError(f"{short_length} is more than max_length {max_length}")
        return short_length

    @field_validator("short_batch")
    @classmethod
    def _short_batch_has_a_length(cls, short_batch: int | None, info: ValidationInfo) -> int | None:
        if short_batch is not None and "short_length" in info.data and info.data["short_length"] is None:
            raise ValueError(
                f"{short_batch} is for batches of short_length, which is not set; train.batch_size is for all"
            )
        return short_batch

    @field_validator("random_share")
    @classmethod
    def _shares_fit(cls, random_share: float, info: ValidationInfo) -> float:
        mask_share = info.data.get("mask_share", 0.0)
        if mask_share + random_share > 1 + 1e-9:
            raise ValueError(f"{random_share} and mask_share {mask_share} are more than 1 together")
        return random_share
