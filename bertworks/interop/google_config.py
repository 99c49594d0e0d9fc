"""bert_config.json of the original code, and config.json of a model folder.

The original says "gelu" and computes the tanh form of it, which Hugging Face calls "gelu_new"; its LayerNorm epsilon
of 1e-12 stands in its code alone. What a file does not say has the value that the original's code has for it.
"""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from bertworks.config import Settings, validate
from bertworks.errors import ConfigError, UserError
from bertworks.interop.folder import read_json

LAYER_NORM_EPS = 1e-12
_MAX_SIZE = 10_000_000
_TO_HUGGINGFACE = {"gelu": "gelu_new", "relu": "relu", "tanh": "tanh", "linear": "linear"}
# The tanh form has three names there; the other two of them compute it in other ways.
_TO_GOOGLE = {"gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu", "gelu": "gelu"} | {
    theirs: ours for ours, theirs in _TO_HUGGINGFACE.items()
}


class GoogleConfig(Settings):
    """A bert_config.json."""

    vocab_size: int = Field(ge=1, le=_MAX_SIZE)
    hidden_size: int = Field(default=768, ge=1, le=_MAX_SIZE)
    num_hidden_layers: int = Field(default=12, ge=1, le=1_000)
    num_attention_heads: int = Field(default=12, ge=1, le=10_000, validate_default=True)
    intermediate_size: int = Field(default=3072, ge=1, le=_MAX_SIZE)
    hidden_act: Literal["gelu", "relu", "tanh", "linear"] = "gelu"
    hidden_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    attention_probs_dropout_prob: float = Field(default=0.1, ge=0, lt=1)
    max_position_embeddings: int = Field(default=512, ge=1, le=_MAX_SIZE)
    type_vocab_size: int = Field(default=16, ge=1, le=_MAX_SIZE)
    initializer_range: float = Field(default=0.02, ge=0)
    # The multilingual and Chinese models have these; no code of the original reads them.
    directionality: str | None = None
    pooler_fc_size: int | None = None
    pooler_num_attention_heads: int | None = None
    pooler_num_fc_layers: int | None = None
    pooler_size_per_head: int | None = None
    pooler_type: str | None = None

    # On the field and not on the whole: so it is told together with whatever else is wrong.
    @field_validator("num_attention_heads")
    @classmethod
    def _heads_divide_the_width(cls, num_heads: int, info: ValidationInfo) -> int:
        width = info.data.get("hidden_size", num_heads)
        if width % num_heads:
            raise ValueError(f"{num_heads} heads do not divide hidden_size {width}")
        return num_heads

    def size(self, name: str | int) -> int:
        """Return a size by the name of its setting; a number stands for itself."""
        return name if isinstance(name, int) else int(getattr(self, name))


def read_google_config(path: Path) -> GoogleConfig:
    """Read a bert_config.json, or raise with all that is wrong in it."""
    if not path.exists():
        raise UserError(f"{path} is missing; it belongs beside the weights")
    return validate(GoogleConfig, read_json(path), str(path))


def to_huggingface(config: GoogleConfig, architecture: str, pad_id: int) -> dict[str, Any]:
    """Return the content of config.json for a model of the original code."""
    values = {name: value for name, value in config if value is not None}
    return values | {
        "architectures": [architecture],
        "model_type": "bert",
        "hidden_act": _TO_HUGGINGFACE[config.hidden_act],
        "layer_norm_eps": LAYER_NORM_EPS,
        "pad_token_id": pad_id,
        "dtype": "float32",
    }


def to_google(config: dict[str, Any], where: str) -> tuple[GoogleConfig, list[str]]:
    """Return the bert_config.json for a config.json, and what of it the original code will do differently."""
    _check_is_bert(config, where)
    values = {name: config[name] for name in GoogleConfig.model_fields if config.get(name) is not None}
    activation = values.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _TO_GOOGLE:
        raise UserError(
            f"{where}: the original code has no hidden_act {activation!r:.60}; only {', '.join(_TO_GOOGLE)}"
        )
    # Hugging Face's BERT has 2 segments where nothing is said, the original 16; all other defaults are the same.
    values = {"vocab_size": 30_522, "type_vocab_size": 2} | values | {"hidden_act": _TO_GOOGLE[activation]}
    return validate(GoogleConfig, values, where), _differences(config, activation)


def _check_is_bert(config: dict[str, Any], where: str) -> None:
    problems = []
    if config.get("model_type") != "bert":
        problems.append(f"model_type is {config.get('model_type')!r:.60}; Google's checkpoints hold 'bert'")
    if config.get("position_embedding_type") not in (None, "absolute"):
        problems.append(f"position_embedding_type {config['position_embedding_type']!r:.60} is not in Google's code")
    if config.get("is_decoder") or config.get("add_cross_attention"):
        problems.append("is_decoder: Google's code has no decoder")
    if problems:
        raise ConfigError(where, problems)


def _differences(config: dict[str, Any], activation: str) -> list[str]:
    differences = []
    if activation == "gelu":
        differences.append(
            "hidden_act is the exact (erf) gelu, which Google's config cannot say; the original code computes the tanh "
            "form for 'gelu' (results differ in the third digit)"
        )
    if config.get("layer_norm_eps", LAYER_NORM_EPS) != LAYER_NORM_EPS:
        differences.append(f"layer_norm_eps is {config['layer_norm_eps']!r:.60}; the original code has 1e-12 fixed")
    return differences
