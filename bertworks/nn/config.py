"""The sizes and choices of a BERT, under the names that the field knows, and the published sizes by name.

`preset("base")` is the paper's; `preset("4x256")` is 4 layers of width 256 with a head for every 64 of it, as in all of
the paper's and Google's compact models; `preset("6x768x3")` names the heads too (the paper's Table 6 has one such row).
"""

import re
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings, validate
from bertworks.errors import UserError, did_you_mean

HEAD_WIDTH = 64
# Enough for any BERT that was ever trained, too little to fill a machine's memory by a typing error.
_MAX_WIDTH, _MAX_LAYERS, _MAX_POSITIONS, _MAX_VOCABULARY = 65_536, 512, 1 << 20, 10_000_000

NAMED_SIZES = {
    "tiny": "2x128",
    "mini": "4x256",
    "small": "4x512",
    "medium": "8x512",
    "base": "12x768",
    "large": "24x1024",
}
_SIZE = re.compile(r"(?P<layers>\d{1,3})x(?P<width>\d{2,5})(x(?P<heads>\d{1,4}))?", re.ASCII)

Activation = Literal["gelu", "gelu_new", "relu"]
Direction = Literal["both", "left_to_right", "right_to_left"]
Positions = Literal["learned", "sinusoidal"]
Summary = Literal["first", "last"]


class BertConfig(Settings):
    """What it takes to build a BERT; the paper's base unless said otherwise."""

    vocab_size: int = Field(default=30_522, ge=1, le=_MAX_VOCABULARY)
    hidden_size: int = Field(default=768, ge=1, le=_MAX_WIDTH)
    num_hidden_layers: int = Field(default=12, ge=0, le=_MAX_LAYERS)
    num_attention_heads: int = Field(default=12, ge=1, le=_MAX_WIDTH, validate_default=True)
    intermediate_size: int = Field(default=3_072, ge=1, le=16 * _MAX_WIDTH)
    hidden_act: Activation = "gelu"  # gelu_new is the tanh form, which the original code calls gelu
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1, le=_MAX_POSITIONS)
    type_vocab_size: int = Field(default=2, ge=1, le=65_536)
    initializer_range: float = Field(default=0.02, gt=0, le=10)
    layer_norm_eps: float = Field(default=1e-12, gt=0, le=1)
    direction: Direction = "both"  # what a token attends to: all, itself and what is before it, or after it
    positions: Positions = "learned"
    summary: Summary = "first"  # the token that the pooler reads: [CLS]; or the last, for those that look left

    # On a field and not on the whole section: so it is told together with whatever else is wrong there.
    @field_validator("num_attention_heads")
    @classmethod
    def _heads_share_the_width(cls, heads: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size")
        if width is not None and width % heads:
            raise ValueError(f"{heads} heads cannot share hidden_size {width}; choose a divisor of it")
        return heads

    @property
    def head_width(self) -> int:
        """How many numbers each head works on."""
        return self.hidden_size // self.num_attention_heads


def preset(name: str, **changes: Any) -> BertConfig:
    """Return a published size by name (`base`) or as layers x width (`4x256`), with `changes` on top."""
    size = _SIZE.fullmatch(NAMED_SIZES.get(name, name))
    if size is None:
        raise UserError(
            f"no size is called {name[:40]!r}{did_you_mean(name[:40], list(NAMED_SIZES))}; any layers x width is one "
            "too, such as 4x256"
        )
    width = int(size["width"])
    values = {
        "hidden_size": width,
        "num_hidden_layers": int(size["layers"]),
        "num_attention_heads": int(size["heads"] or max(1, width // HEAD_WIDTH)),
        "intermediate_size": 4 * width,
    }
    return validate(BertConfig, values | changes, f"model size {name}")
