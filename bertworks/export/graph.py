"""The graph of a BERT in ONNX, written node by node from our own table of layers; no tracing, no optimizer.

- A tracer records every operation that torch happens to use, some 285 for six layers, and ONNX Runtime's optimizer no
  longer finds the attention in them. Here each layer is written as what it is: seven nodes of ONNX Runtime's own
  (`com.microsoft`), 46 for six layers. The portable form has standard operators alone (opset 20), 173 for six layers.
- Inputs are padded: `input_ids`, `attention_mask` and `token_type_ids`, [batch, length] each, as transformers calls
  them; padding stands on the right. Every graph gives `last_hidden_state`, and each head what it makes of it:

| head     | output                       | shape                                                 |
|----------|------------------------------|-------------------------------------------------------|
| mlm      | mlm_logits                   | [positions, pieces], of the input `masked_positions`  |
| nsp      | nsp_logits                   | [batch, 2]: B follows A, B is random                  |
| classify | logits                       | [batch, classes]; one: a regression                   |
| choose   | logits                       | [batch, 1]: each choice is a text of its own          |
| tag      | logits                       | [batch, length, tags]                                 |
| span     | start_logits, end_logits     | [batch, length]                                       |
| embed    | sentence_embedding           | [batch, width], pooled as the model's folder says     |

- `masked_positions` is [positions, 2], a text and a token each, which is what `numpy.argwhere(ids == mask_id)` gives:
  the scores of all pieces at all tokens would be a hundred times as much work.
- What multiplies matrices is handed in (`Products`), so int8 is a choice in one place.
"""

from typing import Any, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, ValueInfoProto
from onnx.helper import make_node, make_tensor_value_info
from torch import Tensor

from bertworks.models.sentence_transformers import Layer, Pooling
from bertworks.nn.bert import Bert, Block, MlmHead
from bertworks.nn.layers import LayerNorm

MICROSOFT = "com.microsoft"
OPSET = 20  # the first with Gelu
INPUTS = ("input_ids", "attention_mask", "token_type_ids")
POSITIONS, HIDDEN, EMBEDDING = "masked_positions", "last_hidden_state", "sentence_embedding"
# All that is written here; a file with another operator is not ours.
OPERATORS = {
    "": {
        "Abs", "Add", "Cast", "Concat", "CumSum", "DequantizeLinear", "Div", "DynamicQuantizeLinear", "Gather",
        "GatherND", "Gelu", "Gemm", "LayerNormalization", "MatMul", "MatMulInteger", "Max", "Mul", "QuantizeLinear",
        "ReduceL2", "ReduceMax", "ReduceSum", "Relu", "Reshape", "Shape", "Sigmoid", "Slice", "Softmax", "Split",
        "Sqrt", "Squeeze", "Sub", "Tanh", "Transpose", "Trilu", "Unsqueeze", "Where",
    },
    MICROSOFT: {
        "Attention", "BiasGelu", "DynamicQuantizeMatMul", "EmbedLayerNormalization", "FastGelu", "QAttention",
        "SkipLayerNormalization",
    },
}  # fmt: skip
_LEAST = -30_000.0  # added to the score of what is not there: below every score, and a number in half precision too
_NORM_EPS = 1e-5  # of a LayerNorm after the pooling, see `models/sentence_transformers.py`
_SHORTEST = 1e-12  # of a vector that is scaled to length 1


class Graph:
    """Nodes in the order in which they are computed, and weights by their names."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, NDArray[Any]] = {}

    def op(self, kind: str, *inputs: str, domain: str = "", returns: int = 1, **attributes: Any) -> Any:
        """Add a node; returns the name of its output, or their names."""
        assert kind in OPERATORS[domain], kind
        outputs = [f"{kind}_{len(self.nodes)}{f'_{n}' * bool(n)}" for n in range(returns)]
        name = f"{len(self.nodes)}_{kind}"
        self.nodes.append(make_node(kind, inputs, outputs, name=name, domain=domain, **attributes))
        return outputs[0] if returns == 1 else outputs

    def weight(self, name: str, values: Tensor | NDArray[Any]) -> str:
        """Add a weight; returns its name."""
        self.weights[name] = values.detach().numpy() if isinstance(values, Tensor) else values
        return name

    def constant(self, value: float | int | list[int]) -> str:
        """Add a small constant: float32, or int64 for whole numbers; returns its name."""
        kind = np.float32 if isinstance(value, float) else np.int64
        return self.weight(f"constant_{str(value).replace(' ', '')}", np.array(value, kind))

    def call(self, value: str, name: str) -> str:
        """Give the output of the last node another name, by which it leaves the graph."""
        outputs = self.nodes[-1].output
        outputs[list(outputs).index(value)] = name
        return name


class Products(Protocol):
    """How matrices are multiplied; biases are added by what follows."""

    def multiply(self, graph: Graph, x: str, name: str, weight_OI: Tensor) -> str:
        """Return x W^T."""

    def attend(self, graph: Graph, x: str, mask: str, name: str, block: Block) -> str:
        """Return what ONNX Runtime's fused attention makes of x, with the projection to queries, keys and values."""


class Float32:
    """Products in float32."""

    def multiply(self, graph: Graph, x: str, name: str, weight_OI: Tensor) -> str:
        """Return x W^T."""
        return cast(str, graph.op("MatMul", x, graph.weight(f"{name}.matrix", weight_OI.detach().t().contiguous())))

    def attend(self, graph: Graph, x: str, mask: str, name: str, block: Block) -> str:
        """Return what ONNX Runtime's fused attention makes of x, with the projection to queries, keys and values."""
        matrix = graph.weight(f"{name}.matrix", block.qkv.weight.detach().t().contiguous())
        bias = graph.weight(f"{name}.bias", block.qkv.bias)
        options: dict[str, Any] = {"num_heads": block.num_heads, "mask_filter_value": _LEAST}
        return cast(str, graph.op("Attention", x, matrix, bias, mask, domain=MICROSOFT, **options))


class Written(NamedTuple):
    """A graph with what goes into it and what comes out."""

    graph: Graph
    inputs: list[ValueInfoProto]
    outputs: list[ValueInfoProto]
    domains: tuple[str, ...]


def write_graph(net: Bert, products: Products, pooling: Pooling | None, *, portable: bool) -> Written:
    """Write the graph of a BERT whose weights are float32 on the CPU.

    Args:
        net: the network, with the heads that `nn/bert.py` makes.
        products: how matrices are multiplied.
        pooling: how texts are embedded; None: the graph has no output for it.
        portable: with standard operators only.
    """
    graph, shapes = Graph(), dict[str, tuple[int | str, ...]]()
    text: tuple[str, ...] = ("batch",)
    tokens: tuple[str, ...] = ("batch", "length")
    hidden = _encoder(graph, net, products) if portable else _fused_encoder(graph, net, products)
    width = net.config.hidden_size
    shapes[HIDDEN] = (*tokens, width)
    if net.pooler is not None and any(head.reads_pooled for head in net.all_heads()):
        pooled = graph.op("Tanh", _gemm(graph, _summary(graph, net, hidden), "pooler", net.pooler))
    inputs = [make_tensor_value_info(name, TensorProto.INT64, tokens) for name in INPUTS]
    for name, head in zip(net.heads, net.all_heads(), strict=True):
        place = f"heads.{name}"
        if isinstance(head, MlmHead):
            inputs.append(make_tensor_value_info(POSITIONS, TensorProto.INT64, ("positions", 2)))
            graph.call(_mlm(graph, head, hidden), "mlm_logits")
            shapes["mlm_logits"] = ("positions", net.config.vocab_size)
        elif head.reads_pooled:
            output = "nsp_logits" if name == "nsp" else "logits"
            graph.call(_gemm(graph, pooled, f"{place}.out", head.out), output)
            shapes[output] = (*text, head.num_outputs)
        else:
            matrix = graph.op("Transpose", graph.weight(f"{place}.out.weight", head.out.weight), perm=[1, 0])
            scores = graph.op("MatMul", hidden, matrix)
            scores = graph.op("Add", scores, graph.weight(f"{place}.out.bias", head.out.bias))
            if name == "span":
                both = graph.op("Split", scores, returns=2, axis=2, num_outputs=2)
                for one, output in zip(both, ("start_logits", "end_logits"), strict=True):
                    graph.op("Squeeze", one, graph.constant([2]))
                    graph.call(graph.nodes[-1].output[0], output)
                    shapes[output] = tokens
            else:
                graph.call(scores, "logits")
                shapes["logits"] = (*tokens, head.num_outputs)
    if pooling is not None:
        vectors, num_out = _pooled(graph, hidden, pooling, width)
        graph.call(vectors, EMBEDDING)
        shapes[EMBEDDING] = (*text, num_out)
    # The answer of a head first: programs that do not ask by name take the first.
    names = [*(name for name in shapes if name != HIDDEN), HIDDEN]
    outputs = [make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in names]
    domains = tuple(sorted({node.domain for node in graph.nodes}))
    return Written(graph, inputs, outputs, domains)


# The encoder in ONNX Runtime's operators.


def _fused_encoder(graph: Graph, net: Bert, products: Products) -> str:
    tables, config = net.embeddings, net.config
    ids, segments = (graph.op("Cast", name, to=TensorProto.INT32) for name in ("input_ids", "token_type_ids"))
    # Without weights of its own, the mask that it could make is not needed: attention takes the mask as it is.
    x, _ = graph.op(
        "EmbedLayerNormalization",
        *(ids, segments),
        *(graph.weight(f"embeddings.{name}.weight", getattr(tables, name).weight)
          for name in ("token", "position", "segment", "norm")),
        graph.weight("embeddings.norm.bias", tables.norm.bias),
        domain=MICROSOFT, returns=2, epsilon=config.layer_norm_eps,
    )  # fmt: skip
    mask = ""
    if net.blocks:
        seen = "attention_mask" if config.direction == "both" else _seen(graph, net)
        mask = graph.op("Cast", seen, to=TensorProto.INT32)
    for number, block in enumerate(_blocks(net)):
        place = f"blocks.{number}"
        attended = products.attend(graph, x, mask, f"{place}.qkv", block)
        y = products.multiply(graph, attended, f"{place}.attention_out", block.attention_out.weight)
        x = _fused_norm(graph, y, x, f"{place}.attention_norm", block.attention_norm, f"{place}.attention_out", block)
        y = products.multiply(graph, x, f"{place}.up", block.up.weight)
        bias = graph.weight(f"{place}.up.bias", block.up.bias)
        if block.act == "relu":
            y = graph.op("Relu", graph.op("Add", y, bias))
        else:
            y = graph.op("FastGelu" if block.act == "gelu_new" else "BiasGelu", y, bias, domain=MICROSOFT)
        y = products.multiply(graph, y, f"{place}.down", block.down.weight)
        x = _fused_norm(graph, y, x, f"{place}.norm", block.norm, f"{place}.down", block)
    return graph.call(x, HIDDEN)


def _fused_norm(graph: Graph, y: str, x: str, name: str, norm: LayerNorm, linear: str, block: Block) -> str:
    """Add a product's bias and x to it, and normalise."""
    bias = graph.weight(f"{linear}.bias", getattr(block, linear.rpartition(".")[2]).bias)
    scale, shift = graph.weight(f"{name}.weight", norm.weight), graph.weight(f"{name}.bias", norm.bias)
    return cast(str, graph.op("SkipLayerNormalization", y, x, scale, shift, bias, domain=MICROSOFT, epsilon=norm.eps))


def _blocks(net: Bert) -> list[Block]:
    return cast(list[Block], list(net.blocks))


# The encoder in standard operators.


def _encoder(graph: Graph, net: Bert, products: Products) -> str:
    tables, config = net.embeddings, net.config
    table = {name: graph.weight(f"embeddings.{name}.weight", getattr(tables, name).weight)
             for name in ("token", "position", "segment")}  # fmt: skip
    length = graph.op("Shape", "input_ids", start=1, end=2)
    positions = graph.op("Slice", table["position"], graph.constant([0]), length, graph.constant([0]))
    x = graph.op("Gather", table["token"], "input_ids")
    x = graph.op("Add", x, graph.op("Gather", table["segment"], "token_type_ids"))
    x = _norm(graph, graph.op("Add", x, positions), "embeddings.norm", tables.norm)
    if net.blocks:
        axes = [1, 2] if config.direction == "both" else [1]
        seen = _mask(graph) if config.direction == "both" else _seen(graph, net)
        hidden = graph.op("Mul", graph.op("Sub", graph.constant(1.0), seen), graph.constant(_LEAST))
        mask = graph.op("Unsqueeze", hidden, graph.constant(axes))
    for number, block in enumerate(_blocks(net)):
        place, width = f"blocks.{number}", block.head_width
        qkv = _biased(graph, products.multiply(graph, x, f"{place}.qkv", block.qkv.weight), f"{place}.qkv", block)
        by_head = graph.constant([0, 0, block.num_heads, width])
        parts = graph.op("Split", qkv, returns=3, axis=2, num_outputs=3)
        q, k, v = (graph.op("Reshape", part, by_head) for part in parts)
        q, v = (graph.op("Transpose", part, perm=[0, 2, 1, 3]) for part in (q, v))
        scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 2, 3, 1]))
        scores = graph.op("Add", graph.op("Mul", scores, graph.constant(float(np.float32(width**-0.5)))), mask)
        attended = graph.op("MatMul", graph.op("Softmax", scores, axis=-1), v)
        attended = graph.op("Transpose", attended, perm=[0, 2, 1, 3])
        attended = graph.op("Reshape", attended, graph.constant([0, 0, config.hidden_size]))
        y = products.multiply(graph, attended, f"{place}.attention_out", block.attention_out.weight)
        y = _biased(graph, y, f"{place}.attention_out", block)
        x = _norm(graph, graph.op("Add", y, x), f"{place}.attention_norm", block.attention_norm)
        y = _biased(graph, products.multiply(graph, x, f"{place}.up", block.up.weight), f"{place}.up", block)
        y = _activated(graph, y, block.act)
        y = _biased(graph, products.multiply(graph, y, f"{place}.down", block.down.weight), f"{place}.down", block)
        x = _norm(graph, graph.op("Add", y, x), f"{place}.norm", block.norm)
    return graph.call(x, HIDDEN)


def _biased(graph: Graph, y: str, name: str, block: Block) -> str:
    linear = getattr(block, name.rpartition(".")[2])
    return cast(str, graph.op("Add", y, graph.weight(f"{name}.bias", linear.bias)))


def _norm(graph: Graph, x: str, name: str, norm: LayerNorm) -> str:
    weights = graph.weight(f"{name}.weight", norm.weight), graph.weight(f"{name}.bias", norm.bias)
    return cast(str, graph.op("LayerNormalization", x, *weights, epsilon=norm.eps))


def _activated(graph: Graph, x: str, act: str) -> str:
    if act == "relu":
        return cast(str, graph.op("Relu", x))
    return cast(str, graph.op("Gelu", x, approximate="tanh" if act == "gelu_new" else "none"))


def _mask(graph: Graph) -> str:
    """Return 1 for tokens and 0 for padding, [batch, length]."""
    return cast(str, graph.op("Cast", "attention_mask", to=TensorProto.FLOAT))


def _seen(graph: Graph, net: Bert) -> str:
    """Return which tokens a token attends to in a model of one direction, [batch, from, to]."""
    mask = _mask(graph)
    both = (graph.op("Unsqueeze", mask, graph.constant([axis])) for axis in (1, 2))
    return cast(str, graph.op("Trilu", graph.op("Mul", *both), upper=int(net.config.direction == "right_to_left")))


# Heads.


def _gemm(graph: Graph, x: str, name: str, linear: Any) -> str:
    """Map rows; the matrix lies as in the network."""
    weights = graph.weight(f"{name}.weight", linear.weight), graph.weight(f"{name}.bias", linear.bias)
    return cast(str, graph.op("Gemm", x, *weights, transB=1))


def _summary(graph: Graph, net: Bert, hidden: str) -> str:
    """Return the token that the pooler reads, [batch, width]."""
    if net.config.summary == "first":
        return cast(str, graph.op("Gather", hidden, graph.constant(0), axis=1))
    return _last(graph, hidden)


def _last(graph: Graph, hidden: str) -> str:
    count = graph.op("ReduceSum", "attention_mask", graph.constant([1]))
    return cast(str, graph.op("GatherND", hidden, graph.op("Sub", count, graph.constant(1)), batch_dims=1))


def _mlm(graph: Graph, head: MlmHead, hidden: str) -> str:
    rows = _gemm(graph, graph.op("GatherND", hidden, POSITIONS), "heads.mlm.dense", head.dense)
    rows = _norm(graph, _activated(graph, rows, head.act), "heads.mlm.norm", head.norm)
    bias = graph.weight("heads.mlm.bias", head.bias)
    return cast(str, graph.op("Gemm", rows, "embeddings.token.weight", bias, transB=1))


def _pooled(graph: Graph, hidden: str, pooling: Pooling, width: int) -> tuple[str, int]:
    """Return a vector for each text, and how many numbers it has."""
    mask = graph.op("Unsqueeze", _mask(graph), graph.constant([2]))
    parts = [_pool(graph, hidden, mask, mode) for mode in pooling.modes]
    vectors, width = graph.op("Concat", *parts, axis=1) if len(parts) > 1 else parts[0], width * len(parts)
    for number, step in enumerate(pooling.steps):
        if not isinstance(step, Layer):
            size = graph.op("ReduceL2", vectors, graph.constant([1]))
            vectors = graph.op("Div", vectors, graph.op("Max", size, graph.constant(_SHORTEST)))
            continue
        names = [graph.weight(f"pooling.{number}.weight", step.weight)]
        bias = np.zeros(len(step.weight), np.float32) if step.bias is None else step.bias
        names.append(graph.weight(f"pooling.{number}.bias", bias))
        if step.kind == "LayerNorm":
            vectors = graph.op("LayerNormalization", vectors, *names, epsilon=_NORM_EPS)
            continue
        vectors, width = graph.op("Gemm", vectors, *names, transB=1), len(step.weight)
        if step.activation != "Identity":
            vectors = graph.op("Relu" if step.activation == "ReLU" else step.activation, vectors)
    if pooling.truncate_dim is not None and pooling.truncate_dim < width:
        ends = (graph.constant([value]) for value in (0, pooling.truncate_dim, 1))
        vectors, width = graph.op("Slice", vectors, *ends), pooling.truncate_dim
    return vectors, width


def _pool(graph: Graph, hidden: str, mask: str, mode: str) -> str:
    """Reduce the tokens of each text, [batch, length, width], to a vector."""
    axis = graph.constant([1])
    if mode == "cls":
        return cast(str, graph.op("Gather", hidden, graph.constant(0), axis=1))
    if mode == "last":
        return _last(graph, hidden)
    if mode == "max":
        is_there = graph.op("Cast", mask, to=TensorProto.BOOL)
        kept = graph.op("Where", is_there, hidden, graph.constant(_LEAST))
        return cast(str, graph.op("ReduceMax", kept, axis, keepdims=0))
    if mode == "weightedmean":  # by a token's number, from 1
        mask = graph.op("Mul", graph.op("CumSum", mask, graph.constant(1)), mask)
    total = graph.op("ReduceSum", graph.op("Mul", hidden, mask), axis, keepdims=0)
    count = graph.op("ReduceSum", mask, axis, keepdims=0)
    if mode == "mean_sqrt_len_tokens":
        count = graph.op("Sqrt", count)
    return cast(str, graph.op("Div", total, count))
