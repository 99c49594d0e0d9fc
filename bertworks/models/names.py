"""The names of weights: BERT's as we, Hugging Face and Google call them, with their shapes; and GPT-1's published ones.

- BERT: one table in three columns. Ours are shorter, and one matrix makes queries, keys and values together where the
  others have three: rows of the same name of ours are its parts, in order. Shapes are Google's, in terms of the
  configuration. Google's matrices of dense layers ("kernel") are [in, out], all others' are [out, in], so these alone
  are transposed. The output matrix of the masked-word head is the word embedding and has no row of its own.
- GPT-1 (`openai-gpt`): the published files keep matrices the other way round (in x out), the output matrix is the piece
  embedding and may or may not be there again, old files carry the attention mask as if it were a weight, and the first
  of them lack the prefix `transformer.`.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from bertworks.errors import CorruptFile

if TYPE_CHECKING:
    from torch import Tensor


SLOTS = ("adam_m", "adam_v")
GLOBAL_STEP = "global_step"
POOLER, MASKED_WORD_HEAD, NEXT_SENTENCE_HEAD = "bert/pooler/", "cls/predictions/", "cls/seq_relationship/"
OPTIONAL = (POOLER, MASKED_WORD_HEAD, NEXT_SENTENCE_HEAD)  # by Google's names; each is there in full or not at all
QUERY, KEY, VALUE = "attention.self.query", "attention.self.key", "attention.self.value"
INTERMEDIATE = "intermediate.dense"
# The matrices of a BERT's layers by Hugging Face's names: what a folder of int8 has in int8.
LAYER_MATRIX = re.compile(
    r"(?:bert\.)?encoder\.layer\.(?P<layer>\d+)\.(?P<part>attention\.self\.(?:query|key|value)"
    r"|attention\.output\.dense|intermediate\.dense|output\.dense)\.weight"
)
AnyTensor = TypeVar("AnyTensor")


class Parameter(NamedTuple):
    """A parameter by its three names; its shape as Google has it, in numbers or names of settings."""

    ours: str
    huggingface: str
    google: str
    shape: tuple[str | int, ...]

    @property
    def is_transposed(self) -> bool:
        """Tell whether Google has rows where the others have columns."""
        return "kernel" in self.google.split("/")

    def slots(self) -> "list[Parameter]":
        """Return the state that Adam keeps for it, which has its shape and layout."""
        return [
            self._replace(google=f"{self.google}/{slot}", huggingface=f"{self.huggingface}.{slot}") for slot in SLOTS
        ]


def _dense(ours: str, huggingface: str, google: str, num_in: str, num_out: str) -> tuple[Parameter, Parameter]:
    return (
        Parameter(f"{ours}.weight", f"{huggingface}.weight", f"{google}/kernel", (num_in, num_out)),
        Parameter(f"{ours}.bias", f"{huggingface}.bias", f"{google}/bias", (num_out,)),
    )


def _norm(ours: str, huggingface: str, google: str) -> tuple[Parameter, Parameter]:
    return (
        Parameter(f"{ours}.weight", f"{huggingface}.weight", f"{google}/gamma", ("hidden_size",)),
        Parameter(f"{ours}.bias", f"{huggingface}.bias", f"{google}/beta", ("hidden_size",)),
    )


def _embedding(ours: str, theirs: str, num_rows: str) -> Parameter:
    names = f"embeddings.{ours}.weight", f"bert.embeddings.{theirs}.weight", f"bert/embeddings/{theirs}"
    return Parameter(*names, (num_rows, "hidden_size"))


_WIDTH, _INNER_WIDTH = "hidden_size", "intermediate_size"
_EMBEDDINGS = (
    _embedding("token", "word_embeddings", "vocab_size"),
    _embedding("position", "position_embeddings", "max_position_embeddings"),
    _embedding("segment", "token_type_embeddings", "type_vocab_size"),
    *_norm("embeddings.norm", "bert.embeddings.LayerNorm", "bert/embeddings/LayerNorm"),
)
_LAYER = (  # names below blocks.N., bert.encoder.layer.N. and bert/encoder/layer_N/
    *_dense("qkv", "attention.self.query", "attention/self/query", _WIDTH, _WIDTH),
    *_dense("qkv", "attention.self.key", "attention/self/key", _WIDTH, _WIDTH),
    *_dense("qkv", "attention.self.value", "attention/self/value", _WIDTH, _WIDTH),
    *_dense("attention_out", "attention.output.dense", "attention/output/dense", _WIDTH, _WIDTH),
    *_norm("attention_norm", "attention.output.LayerNorm", "attention/output/LayerNorm"),
    *_dense("up", "intermediate.dense", "intermediate/dense", _WIDTH, _INNER_WIDTH),
    *_dense("down", "output.dense", "output/dense", _INNER_WIDTH, _WIDTH),
    *_norm("norm", "output.LayerNorm", "output/LayerNorm"),
)
_WORD_HEAD = "cls.predictions.transform", "cls/predictions/transform"
_HEADS = (
    *_dense("pooler", "bert.pooler.dense", "bert/pooler/dense", _WIDTH, _WIDTH),
    *_dense("heads.mlm.dense", f"{_WORD_HEAD[0]}.dense", f"{_WORD_HEAD[1]}/dense", _WIDTH, _WIDTH),
    *_norm("heads.mlm.norm", f"{_WORD_HEAD[0]}.LayerNorm", f"{_WORD_HEAD[1]}/LayerNorm"),
    Parameter("heads.mlm.bias", "cls.predictions.bias", "cls/predictions/output_bias", ("vocab_size",)),
    Parameter(
        "heads.nsp.out.weight", "cls.seq_relationship.weight", "cls/seq_relationship/output_weights", (2, _WIDTH)
    ),
    Parameter("heads.nsp.out.bias", "cls.seq_relationship.bias", "cls/seq_relationship/output_bias", (2,)),
)
# The heads of fine-tuning: every script of Google's has names of its own for them.
_FINE_TUNED = {"heads.classify.out": "classifier", "heads.choose.out": "classifier", "heads.tag.out": "classifier",
               "heads.span.out": "qa_outputs"}  # fmt: skip
# What Hugging Face's files may hold a second time: the matrix and the bias of the MLM head, which are tied to these.
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
COUNTERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")  # 0, 1, 2, ... and zeros
_OF_A_BARE_ENCODER = ("embeddings.", "encoder.", "pooler.")  # whose files leave "bert." out
_OLD_ENDINGS = {".LayerNorm.gamma": ".LayerNorm.weight", ".LayerNorm.beta": ".LayerNorm.bias"}
_LAYER_NUMBER = re.compile(r"\.(\d+)\.")


def parameters(num_layers: int) -> Iterator[Parameter]:
    """Give every parameter of a model with so many layers and both pre-training heads."""
    yield from _EMBEDDINGS
    for layer in range(num_layers):
        yield from (_in_layer(layer, parameter) for parameter in _LAYER)
    yield from _HEADS


def _in_layer(layer: int | str, parameter: Parameter) -> Parameter:
    return Parameter(
        f"blocks.{layer}.{parameter.ours}",
        f"bert.encoder.layer.{layer}.{parameter.huggingface}",
        f"bert/encoder/layer_{layer}/{parameter.google}",
        parameter.shape,
    )


def _by_ours() -> dict[str, tuple[str, ...]]:
    """Return Hugging Face's names of each of ours; `#` stands for a layer's number."""
    parts: dict[str, tuple[str, ...]] = {}
    for parameter in (*_EMBEDDINGS, *(_in_layer("#", parameter) for parameter in _LAYER), *_HEADS):
        parts[parameter.ours] = (*parts.get(parameter.ours, ()), parameter.huggingface)
    for ours, theirs in _FINE_TUNED.items():
        parts |= {f"{ours}.{kind}": (f"{theirs}.{kind}",) for kind in ("weight", "bias")}
    return parts


_BY_OURS = _by_ours()


def huggingface_names(ours: str) -> tuple[str, ...]:
    """Return Hugging Face's names of the tensors, in order, that one of our parameters is made of."""
    layer = _LAYER_NUMBER.search(ours)
    names = _BY_OURS[_LAYER_NUMBER.sub(".#.", ours)]
    return tuple(name.replace(".#.", f".{layer[1]}.") for name in names) if layer else names


def modern_name(name: str) -> str:
    """Return a Hugging Face name as it is spelt today: with "bert." before it, weight and bias for gamma and beta."""
    for old, new in _OLD_ENDINGS.items():
        if name.endswith(old):
            name = name.removesuffix(old) + new
    return f"bert.{name}" if name.startswith(_OF_A_BARE_ENCODER) else name


def by_modern_names(tensors: Mapping[str, AnyTensor], where: object) -> dict[str, AnyTensor]:
    """Return tensors by the names of today; what is there only as the copy of another gets the other's name too."""
    named = {modern_name(name): tensor for name, tensor in tensors.items()}
    if len(named) < len(tensors):
        raise CorruptFile(f"{where} has the same tensor under two names, an old and a new one")
    for copy, original in TIED.items():
        if copy in named:
            named.setdefault(original, named[copy])
    return named


_PREFIX = "transformer."
EMBEDDING, OUTPUT = "transformer.tokens_embed.weight", "lm_head.weight"
_GPT_EMBEDDINGS = {"token.weight": "tokens_embed.weight", "position.weight": "positions_embed.weight"}
_BLOCK = {
    "qkv": "attn.c_attn",
    "attention_out": "attn.c_proj",
    "attention_norm": "ln_1",
    "up": "mlp.c_fc",
    "down": "mlp.c_proj",
    "norm": "ln_2",
}
_BLOCK_BACK = {theirs: ours for ours, theirs in _BLOCK.items()}
# transformers has no GPT-1 that tags or answers; those names are ours.
HEADS = {
    "classify": "score.weight",
    "choose": "multiple_choice_head.summary.weight",
    "tag": "tag_head.weight",
    "span": "span_head.weight",
}
_GPT_HEADS = {f"heads.{head}.weight": theirs for head, theirs in HEADS.items()}
# A bias that all choices share changes no choice, so ours has none.
_CHOICE_BIAS = "multiple_choice_head.summary.bias"
_IGNORED = re.compile(r"lm_head\.weight|position_ids|h\.\d+\.attn\.(bias|masked_bias)|" + re.escape(_CHOICE_BIAS))
_OUR_BLOCK = re.compile(r"blocks\.(?P<layer>\d+)\.(?P<part>\w+)\.(?P<kind>weight|bias)")
_THEIR_BLOCK = re.compile(r"h\.(?P<layer>\d+)\.(?P<part>[\w.]+)\.(?P<kind>weight|bias)")


def is_weight(name: str) -> bool:
    """Tell whether a published tensor is a weight of its own, and neither a copy, a mask nor of no effect."""
    return _IGNORED.fullmatch(name.removeprefix(_PREFIX)) is None


def by_published_names(tensors: "Mapping[str, Tensor]", where: object) -> "dict[str, Tensor]":
    """Return tensors with the prefix that the first files lack; the embedding may be there as the output matrix."""
    outside = (OUTPUT, _CHOICE_BIAS, *_GPT_HEADS.values())
    named = {name if name in outside else _PREFIX + name.removeprefix(_PREFIX): tensors[name] for name in tensors}
    if len(named) < len(tensors):
        raise CorruptFile(f"{where} has the same tensor under two names, with and without {_PREFIX}")
    if OUTPUT in named:
        named.setdefault(EMBEDDING, named[OUTPUT])
    return named


def to_openai(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return weights of `Gpt` under the published names; the output matrix is left out, being the embedding."""
    renamed = {}
    for name, values in state.items():
        block = _OUR_BLOCK.fullmatch(name)
        if block:
            theirs = f"h.{block['layer']}.{_BLOCK[block['part']]}.{block['kind']}"
            renamed[_PREFIX + theirs] = _turned(values, theirs)
        elif name in _GPT_EMBEDDINGS:
            renamed[_PREFIX + _GPT_EMBEDDINGS[name]] = values
        else:
            renamed[_GPT_HEADS[name]] = values
    if _GPT_HEADS["heads.choose.weight"] in renamed:
        renamed[_CHOICE_BIAS] = renamed[_GPT_HEADS["heads.choose.weight"]].new_zeros(1)
    return renamed


def from_openai(state: "Mapping[str, Tensor]") -> "dict[str, Tensor]":
    """Return published weights under the names of `Gpt`, or raise CorruptFile for a name that GPT-1 does not have."""
    plain = {theirs: ours for ours, theirs in (_GPT_EMBEDDINGS | _GPT_HEADS).items()}
    renamed = {}
    for name, values in state.items():
        theirs = name.removeprefix(_PREFIX)
        block = _THEIR_BLOCK.fullmatch(theirs)
        if _IGNORED.fullmatch(theirs):
            continue
        if theirs in plain:
            renamed[plain[theirs]] = values
        elif block and block["part"] in _BLOCK_BACK:
            ours = f"blocks.{block['layer']}.{_BLOCK_BACK[block['part']]}.{block['kind']}"
            renamed[ours] = _turned(values, theirs)
        else:
            raise CorruptFile(f"{name[:80]!r} is no weight of GPT-1; is this a model of another kind?")
    return renamed


def _turned(values: "Tensor", theirs: str) -> "Tensor":
    """Turn a matrix of a block round; LayerNorms and biases have nothing to turn."""
    return values.t().contiguous() if ".c_" in theirs and theirs.endswith(".weight") else values
