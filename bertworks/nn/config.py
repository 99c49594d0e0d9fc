"""The configurations of all networks, with their usual names, and the published sizes by name.

- `preset("base")` is the paper's BERT. `preset("4x256")` is 4 layers of width 256 with heads of width 64, as in the
  paper and in Google's compact models. `preset("6x768x3")` gives the number of heads too (the paper's Table 6 has such
  a row).
- GPT-1's settings have the names of its configuration files (`openai-gpt`); for the other networks there are no
  established names.
- `layers_of` translates the names of the paper's Table 7 to the numbers of the frozen layers that a tagger reads.
- Nothing here imports torch, so that a recipe can be checked quickly.
"""

import re
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings, heads_share, validate
from bertworks.errors import UserError, counted, did_you_mean

HEAD_WIDTH = 64
# Enough for any BERT that was ever trained, but small enough that a typing error does not fill the memory.
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
Segments = Literal["learned", "none"]
Summary = Literal["first", "last"]


class BertConfig(Settings):
    """The configuration of a BERT; the default is the paper's base."""

    vocab_size: int = Field(default=30_522, ge=1, le=_MAX_VOCABULARY)
    hidden_size: int = Field(default=768, ge=1, le=_MAX_WIDTH)
    num_hidden_layers: int = Field(default=12, ge=0, le=_MAX_LAYERS)
    num_attention_heads: Annotated[
        int, Field(ge=1, le=_MAX_WIDTH, validate_default=True), heads_share("hidden_size")
    ] = 12
    intermediate_size: int = Field(default=3_072, ge=1, le=16 * _MAX_WIDTH)
    hidden_act: Activation = "gelu"  # gelu_new is the tanh approximation, which the original code calls gelu
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1, le=_MAX_POSITIONS)
    type_vocab_size: int = Field(default=2, ge=1, le=65_536)
    initializer_range: float = Field(default=0.02, gt=0, le=10)
    layer_norm_eps: float = Field(default=1e-12, gt=0, le=1)
    direction: Direction = "both"  # a token attends to all tokens, or to itself and the tokens before it, or after it
    positions: Positions = "learned"
    segments: Segments = "learned"  # none: their embeddings are zeros that are not learnt
    summary: Summary = "first"  # the token that the pooler reads: [CLS]; or the last one, for left-to-right models

    @property
    def head_width(self) -> int:
        """The width of each head."""
        return self.hidden_size // self.num_attention_heads


def preset(name: str, **changes: Any) -> BertConfig:
    """Return the configuration of a published size (`base`) or of layers x width (`4x256`), with `changes`."""
    size = _SIZE.fullmatch(NAMED_SIZES.get(name, name))
    if size is None:
        raise UserError(
            f"no size is called {name[:40]!r}{did_you_mean(name[:40], list(NAMED_SIZES))}; or give layers x width, "
            "such as 4x256"
        )
    width = int(size["width"])
    values = {
        "hidden_size": width,
        "num_hidden_layers": int(size["layers"]),
        "num_attention_heads": int(size["heads"] or max(1, width // HEAD_WIDTH)),
        "intermediate_size": 4 * width,
    }
    return validate(BertConfig, values | changes, f"model size {name}")


_MAX_FILTERS = 50  # filter number n has width n, and a word has only 50 characters


class GptConfig(Settings):
    """The configuration of a GPT-1; the default is the published one."""

    vocab_size: int = Field(default=40_478, ge=1, le=_MAX_VOCABULARY)  # 40,000 merges and their characters
    n_positions: int = Field(default=512, ge=1, le=_MAX_POSITIONS)
    n_embd: int = Field(default=768, ge=1, le=_MAX_WIDTH)
    n_layer: int = Field(default=12, ge=0, le=_MAX_LAYERS)
    n_head: Annotated[int, Field(ge=1, le=_MAX_WIDTH, validate_default=True), heads_share("n_embd")] = 12
    afn: Literal["gelu", "relu"] = "gelu"  # GPT-1's gelu is the tanh approximation
    resid_pdrop: float = Field(default=0.1, ge=0, lt=1)
    embd_pdrop: float = Field(default=0.1, ge=0, lt=1)
    attn_pdrop: float = Field(default=0.1, ge=0, lt=1)
    layer_norm_epsilon: float = Field(default=1e-5, gt=0, le=1)
    initializer_range: float = Field(default=0.02, gt=0, le=10)

    @property
    def max_position_embeddings(self) -> int:
        """The most tokens that it reads, under BERT's name."""
        return self.n_positions

    def as_bert(self) -> BertConfig:
        """Return the same sizes as a BertConfig: GPT-1's blocks are BERT's, with left-to-right attention."""
        return BertConfig(
            vocab_size=self.vocab_size,
            hidden_size=self.n_embd,
            num_hidden_layers=self.n_layer,
            num_attention_heads=self.n_head,
            intermediate_size=4 * self.n_embd,
            hidden_act="gelu_new" if self.afn == "gelu" else "relu",
            hidden_dropout_prob=self.resid_pdrop,
            attention_probs_dropout_prob=self.attn_pdrop,
            max_position_embeddings=self.n_positions,
            initializer_range=self.initializer_range,
            layer_norm_eps=self.layer_norm_epsilon,
            direction="left_to_right",
        )


class ElmoConfig(Settings):
    """The configuration of an ELMo; the default is the published one."""

    vocab_size: int = Field(default=793_471, ge=2, le=_MAX_VOCABULARY)  # words of the 1 Billion Word Benchmark
    char_embedding_size: int = Field(default=16, ge=1, le=_MAX_WIDTH)
    # The number of filters of width 1, 2, 3, ... Not strict, because a recipe has a list and not a tuple.
    num_filters: Annotated[tuple[int, ...], Field(strict=False, min_length=1, max_length=_MAX_FILTERS)] = (
        32, 32, 64, 128, 256, 512, 1024,
    )  # fmt: skip
    num_highway_layers: int = Field(default=2, ge=0, le=_MAX_LAYERS)
    projection_size: int = Field(default=512, ge=1, le=_MAX_WIDTH)
    cell_size: int = Field(default=4_096, ge=2, le=_MAX_WIDTH, validate_default=True)
    num_layers: int = Field(default=2, ge=1, le=_MAX_LAYERS)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    num_negatives: int = Field(default=8_192, ge=1, le=_MAX_VOCABULARY)

    @field_validator("num_filters")
    @classmethod
    def _filters_are_positive(cls, counts: tuple[int, ...]) -> tuple[int, ...]:
        if not all(1 <= count <= _MAX_WIDTH for count in counts):
            raise ValueError(f"{list(counts)[:8]}: each number of filters must be 1 to {_MAX_WIDTH:,}")
        return counts

    # A projection in torch's LSTM must have fewer numbers than cells.
    @field_validator("cell_size")
    @classmethod
    def _projection_is_smaller(cls, cells: int, info: ValidationInfo) -> int:
        projection = info.data.get("projection_size")
        if projection is not None and cells <= projection:
            raise ValueError(f"{cells} is too small; more than projection_size, which is {projection}")
        return cells


class ElmoReaderConfig(Settings):
    """The configuration of a task network on top of an ELMo; the default widths are those of GLUE's baselines."""

    pairs: bool = False  # whether a sequence has two texts
    num_cells: int = Field(default=1_500, ge=1, le=_MAX_WIDTH)  # of the BiLSTMs, in each direction
    hidden_size: int = Field(default=512, ge=1, le=_MAX_WIDTH)  # of the layer before the scores of texts
    dropout: float = Field(default=0.2, ge=0, lt=1)
    trains_elmo: bool = False  # whether the ELMo is trained too


class CompoundConfig(Settings):
    """The configuration of BERTs of one direction side by side, or with a BiLSTM on top."""

    encoders: Annotated[tuple[BertConfig, ...], Field(strict=False, min_length=1, max_length=2)]
    num_lstm_layers: int = Field(default=0, ge=0, le=16)  # 0: no BiLSTM
    num_cells: int = Field(default=768, ge=1, le=_MAX_WIDTH)  # of an LSTM, in each direction

    @property
    def vocab_size(self) -> int:
        """The number of pieces that all encoders know."""
        return min(encoder.vocab_size for encoder in self.encoders)

    @property
    def max_position_embeddings(self) -> int:
        """The most tokens that all encoders can read."""
        return min(encoder.max_position_embeddings for encoder in self.encoders)

    @property
    def type_vocab_size(self) -> int:
        """The number of segments that all encoders know."""
        return min(encoder.type_vocab_size for encoder in self.encoders)


# The first three were published with ELMo; "mini" trains on a CPU.
ELMO_SIZES: dict[str, dict[str, Any]] = {
    "original": {},
    "medium": {"cell_size": 2_048, "projection_size": 256, "num_highway_layers": 1},
    "small": {"cell_size": 1_024, "projection_size": 128, "num_highway_layers": 1},
    "mini": {
        "cell_size": 512,
        "projection_size": 128,
        "num_highway_layers": 1,
        "num_filters": (16, 16, 32, 64, 128),
        "num_negatives": 1_024,
    },
}


def gpt_preset(name: str, **changes: Any) -> GptConfig:
    """Return the configuration of a size by BERT's name (`base` is GPT-1's size) or layers x width, with `changes`."""
    size = preset(name)
    values = {"n_embd": size.hidden_size, "n_layer": size.num_hidden_layers, "n_head": size.num_attention_heads}
    return validate(GptConfig, values | changes, f"GPT size {name}")


def elmo_preset(name: str, **changes: Any) -> ElmoConfig:
    """Return the configuration of a size of ELMo by name, with `changes`."""
    if name not in ELMO_SIZES:
        raise UserError(f"no size of ELMo is called {name[:40]!r}{did_you_mean(name[:40], list(ELMO_SIZES))}")
    return validate(ElmoConfig, ELMO_SIZES[name] | changes, f"ELMo size {name}")


FeatureName = Literal["embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all"]
FEATURES: tuple[FeatureName, ...] = (
    "embeddings", "second-to-last", "last", "sum-last-four", "concat-last-four", "sum-all",
)  # fmt: skip


class FeatureConfig(Settings):
    """The configuration of a tagger on frozen layers; the default is the paper's."""

    features: FeatureName = "concat-last-four"
    lstm_cells: int = Field(default=768, ge=1, le=65_536)  # of each direction
    lstm_layers: int = Field(default=2, ge=1, le=512)
    lstm_dropout: float = Field(default=0.1, ge=0, lt=1)

    @property
    def is_mixed(self) -> bool:
        """Whether layers are summed with learned weights; otherwise they are concatenated."""
        return self.features.startswith("sum-")


def layers_of(features: FeatureName, num_layers: int) -> tuple[int, ...]:
    """Return the numbers of the layers to read; 0 is the embeddings, which "sum-all" does not include."""
    wanted = {
        "embeddings": range(1),
        "second-to-last": range(num_layers - 1, num_layers),
        "last": range(num_layers, num_layers + 1),
        "sum-all": range(1, num_layers + 1),
    }.get(features, range(num_layers - 3, num_layers + 1))
    least = {"embeddings": 0, "second-to-last": 2, "last": 1, "sum-all": 1}.get(features, 4)
    if num_layers < least:
        raise UserError(
            f"task.features={features} needs a model of at least {counted(least, 'layer')}, and this one has "
            f"{num_layers}"
        )
    return tuple(wanted)
