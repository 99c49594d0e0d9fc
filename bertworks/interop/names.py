"""One table of BERT's parameters: Google's name, Hugging Face's name, and the shape in terms of the configuration.

Google's matrices of dense layers ("kernel") are [in, out]; Hugging Face's are [out, in], so these alone are transposed.
The next-sentence weights are [2, hidden] in both. The output matrix of the masked-word head is the word embedding and
has no entry of its own.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

SLOTS = ("adam_m", "adam_v")
GLOBAL_STEP = "global_step"
POOLER, MASKED_WORD_HEAD, NEXT_SENTENCE_HEAD = "bert/pooler/", "cls/predictions/", "cls/seq_relationship/"
OPTIONAL = (POOLER, MASKED_WORD_HEAD, NEXT_SENTENCE_HEAD)  # by Google's names; each is there in full or not at all


class Parameter(NamedTuple):
    """A parameter by both names; its shape as Google has it, in numbers or names of settings."""

    google: str
    huggingface: str
    shape: tuple[str | int, ...]

    @property
    def is_transposed(self) -> bool:
        """Tell whether the one has rows where the other has columns."""
        return "kernel" in self.google.split("/")

    def slots(self) -> "list[Parameter]":
        """Return the state that Adam keeps for it, which has its shape and layout."""
        return [
            self._replace(google=f"{self.google}/{slot}", huggingface=f"{self.huggingface}.{slot}") for slot in SLOTS
        ]


def _dense(google: str, huggingface: str, num_in: str, num_out: str) -> tuple[Parameter, Parameter]:
    return (
        Parameter(f"{google}/kernel", f"{huggingface}.weight", (num_in, num_out)),
        Parameter(f"{google}/bias", f"{huggingface}.bias", (num_out,)),
    )


def _norm(google: str, huggingface: str) -> tuple[Parameter, Parameter]:
    return (
        Parameter(f"{google}/LayerNorm/gamma", f"{huggingface}.LayerNorm.weight", ("hidden_size",)),
        Parameter(f"{google}/LayerNorm/beta", f"{huggingface}.LayerNorm.bias", ("hidden_size",)),
    )


def _embedding(kind: str, num_rows: str) -> Parameter:
    return Parameter(f"bert/embeddings/{kind}", f"bert.embeddings.{kind}.weight", (num_rows, "hidden_size"))


_EMBEDDINGS = (
    _embedding("word_embeddings", "vocab_size"),
    _embedding("position_embeddings", "max_position_embeddings"),
    _embedding("token_type_embeddings", "type_vocab_size"),
    *_norm("bert/embeddings", "bert.embeddings"),
)
_LAYER = (  # names below bert/encoder/layer_N/ and bert.encoder.layer.N.
    *_dense("attention/self/query", "attention.self.query", "hidden_size", "hidden_size"),
    *_dense("attention/self/key", "attention.self.key", "hidden_size", "hidden_size"),
    *_dense("attention/self/value", "attention.self.value", "hidden_size", "hidden_size"),
    *_dense("attention/output/dense", "attention.output.dense", "hidden_size", "hidden_size"),
    *_norm("attention/output", "attention.output"),
    *_dense("intermediate/dense", "intermediate.dense", "hidden_size", "intermediate_size"),
    *_dense("output/dense", "output.dense", "intermediate_size", "hidden_size"),
    *_norm("output", "output"),
)
_HEADS = (
    *_dense("bert/pooler/dense", "bert.pooler.dense", "hidden_size", "hidden_size"),
    *_dense("cls/predictions/transform/dense", "cls.predictions.transform.dense", "hidden_size", "hidden_size"),
    *_norm("cls/predictions/transform", "cls.predictions.transform"),
    Parameter("cls/predictions/output_bias", "cls.predictions.bias", ("vocab_size",)),
    Parameter("cls/seq_relationship/output_weights", "cls.seq_relationship.weight", (2, "hidden_size")),
    Parameter("cls/seq_relationship/output_bias", "cls.seq_relationship.bias", (2,)),
)


def parameters(num_layers: int) -> Iterator[Parameter]:
    """Give every parameter of a model with so many layers and both pre-training heads."""
    yield from _EMBEDDINGS
    for layer in range(num_layers):
        for google, huggingface, shape in _LAYER:
            prefixes = f"bert/encoder/layer_{layer}/", f"bert.encoder.layer.{layer}."
            yield Parameter(prefixes[0] + google, prefixes[1] + huggingface, shape)
    yield from _HEADS


def modern_name(name: str) -> str:
    """Return a Hugging Face name as it is spelt today; old files say gamma and beta for a LayerNorm's parameters."""
    for old, new in ((".LayerNorm.gamma", ".LayerNorm.weight"), (".LayerNorm.beta", ".LayerNorm.bias")):
        if name.endswith(old):
            return name.removesuffix(old) + new
    return name


def turned(tensor: NDArray[Any], parameter: Parameter) -> NDArray[np.float32]:
    """Return a tensor of either side as the other side has it, in float32."""
    return np.ascontiguousarray(tensor.T if parameter.is_transposed else tensor, dtype=np.float32)
