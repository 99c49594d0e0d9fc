"""An exported file at work: `bw.load("m.onnx")` opens one, and ONNX Runtime computes the encoder of the `Model`.

- Files come from anywhere, so one is checked before ONNX Runtime sees it: that it is whole, that `bertworks export`
  wrote it, that it names no other file (ONNX can keep weights in files beside it, by any path) and has no operators but
  those that are written here. Its config.json and tokenizer are read as strictly as those of a folder.
- The graph computes the hidden states of the last layer. Heads are a few rows of work: torch computes them, with the
  weights that lie in the file. So every method is the one that a folder's model has.
- The layers themselves are not made again, and what needs them (attention weights, the features of other layers,
  fine-tuning, converting) is refused in a line.
- A graph pads. Sequences of a batch that are about as long are computed together, the others by themselves.
"""

import base64
import binascii
import json
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import CorruptFile, UserError, counted
from bertworks.files import safe_join
from bertworks.models.config_json import Source, labels_of, stated_problem
from bertworks.models.folder import CONFIG_FILE, MODULES_FILE, read_about, read_json
from bertworks.models.kinds import BERT, ModelFolder, num_labels
from bertworks.models.sentence_transformers import Pooling, read_pooling
from bertworks.nn.attention import Tokens
from bertworks.nn.bert import Bert
from bertworks.nn.layers import is_fast_on_cpu
from bertworks.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from onnx import ModelProto

_log = logging.getLogger(__name__)
FORMAT, FORMAT_KEY = 1, "bertworks"
_MOST_BYTES = (1 << 31) - 1
_MOST_METADATA = 1 << 28
_WASTED = 0.2  # of a batch for ONNX Runtime, at most: padding
_FATAL = 4  # of ONNX Runtime's levels of logging: its errors are raised too
_NO_LAYERS = "for the others, open the folder that it was exported from"


def check_installed() -> None:
    """Refuse to go on without the libraries of the extra."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise UserError(f'ONNX files need {error.name}: pip install "bertworks[export]"') from error


def open_session(path: Path) -> Any:
    """Open a file with ONNX Runtime, on as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = _FATAL
    # Without VNNI, sums of two products of bytes would overflow; with it, avoiding that takes twice the time.
    if not is_fast_on_cpu("int8"):
        options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        # It would print its errors and try the same again.
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"], enable_fallback=0)
    except Exception as error:  # it has many kinds
        raise CorruptFile(f"{path}: ONNX Runtime does not open it: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def padded(
    tokens: Tokens, rows: NDArray[np.int64], starts: NDArray[np.int32]
) -> tuple[dict[str, NDArray[np.int64]], NDArray[np.bool_]]:
    """Return the inputs of a graph for some sequences of a batch, and where they have tokens, [rows, length]."""
    lengths = starts[rows + 1] - starts[rows]
    is_token = np.arange(lengths.max(initial=0))[None, :] < lengths[:, None]
    places = _places(starts, rows)
    inputs = {"attention_mask": is_token.astype(np.int64)}
    for name, values in (("input_ids", tokens.token_ids), ("token_type_ids", tokens.segment_ids)):
        inputs[name] = np.zeros(is_token.shape, np.int64)
        inputs[name][is_token] = values.numpy()[places]
    return inputs, is_token


def _places(starts: NDArray[np.int32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where the tokens of some sequences lie."""
    lengths = starts[rows + 1] - starts[rows]
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(int(lengths.sum())) + np.repeat(starts[rows] - before, lengths))


class OnnxEngine:
    """Computes the encoder by ONNX Runtime, for `Bert.engine`."""

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.width, self.session = path, width, open_session(path)
        inputs = {one.name for one in self.session.get_inputs()}
        if not inputs.issuperset(("input_ids", "attention_mask", "token_type_ids")):
            raise CorruptFile(f"{path}: its graph does not read input_ids, attention_mask and token_type_ids")
        self.has_positions = "masked_positions" in inputs

    def __call__(self, tokens: Tokens, places_S: Tensor | None = None) -> Tensor:
        """Return the last layer's output, [T, D], or only its rows `places_S`, [S, D]: one token of each sequence."""
        starts = tokens.packing.cumulative_lengths.numpy()
        hidden_TD = torch.empty(len(tokens.token_ids), self.width)
        for rows in _together(np.diff(starts)):
            inputs, is_token = padded(tokens, rows, starts)
            if self.has_positions:  # whose scores are not asked for
                inputs["masked_positions"] = np.zeros((0, 2), np.int64)
            try:
                (states,) = self.session.run(["last_hidden_state"], inputs)
            except Exception as error:  # it has many kinds
                raise UserError(f"{self.path}: ONNX Runtime does not compute it: {_first_line(error)}") from error
            if states.shape != (*is_token.shape, self.width):
                raise CorruptFile(f"{self.path}: its graph gives hidden states of the shape {states.shape}")
            hidden_TD[_places(starts, rows)] = torch.from_numpy(states[is_token])
        return hidden_TD if places_S is None else hidden_TD.index_select(0, places_S)

    def all_hidden(self, tokens: Tokens) -> list[Tensor]:  # noqa: ARG002 -- as `Engine` has it
        """Refuse: a graph has the last layer alone."""
        raise UserError(f"{self.path} gives its last layer alone: --layers -1, in Python layers=-1; {_NO_LAYERS}")


def _together(lengths: NDArray[np.int32]) -> Iterator[NDArray[np.int64]]:
    """Yield the numbers of sequences that are computed together; empty ones are left out."""
    order = np.argsort(-lengths, kind="stable")
    order = order[: np.count_nonzero(lengths)]
    while len(order):
        sums = np.cumsum(lengths[order])
        is_wasteful = sums < (1 - _WASTED) * int(lengths[order[0]]) * np.arange(1, len(order) + 1)
        count = int(is_wasteful.argmax()) or len(order)
        yield order[:count]
        order = order[count:]


# Opening a file.


class Opened(NamedTuple):
    """What a file holds, as `Model` takes it."""

    folder: ModelFolder[Bert]
    tokenizer: Tokenizer
    pooling: Pooling
    dtype: str


def open_exported(path: Path) -> Opened:
    """Open a file that `export` wrote."""
    check_installed()
    model = _read(path)
    _check_text(path, model)
    facts = {entry.key: entry.value for entry in model.metadata_props}
    _check(path, model, facts)
    weights = _weights(path, model)
    del model  # hundreds of megabytes, before ONNX Runtime reads the file
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        try:
            _unpack(folder, facts)
            raw, about = read_json(folder / CONFIG_FILE), read_about(folder)
            if "task" not in about:
                about |= stated_problem(raw)
            config = BERT.read_config(Source(folder / CONFIG_FILE, raw, about))
            tokenizer = Tokenizer.from_folder(folder)
            pooling = read_pooling(folder) if (folder / MODULES_FILE).exists() else Pooling()
        except UserError as error:
            what = str(error).replace(f"{temporary}{os.sep}", "").replace(temporary, "its metadata")
            raise CorruptFile(f"{path}: {what}") from error
    if len(tokenizer) > config.vocab_size:
        raise CorruptFile(
            f"{path}: its vocabulary has {len(tokenizer):,} pieces and its {CONFIG_FILE} {config.vocab_size:,}"
        )
    outputs = {"mlm": "heads.mlm.dense.weight"} | {name: f"heads.{name}.out.weight" for name in BERT.heads[1:]}
    heads = {name: len(weights[weight]) for name, weight in outputs.items() if weight in weights}
    with torch.device("meta"):
        net = Bert(config, heads, pooler="pooler.weight" in weights).eval()
    wanted = {name for name in net.state_dict() if _is_of_head(name)}
    try:
        net.load_state_dict({name: weights[name] for name in wanted}, strict=False, assign=True)
    except (KeyError, RuntimeError) as error:
        raise CorruptFile(f"{path}: its weights do not fit its {CONFIG_FILE}: {_first_line(error)}") from error
    labels, count = labels_of(raw), num_labels(net)
    if labels and count != len(labels):
        raise CorruptFile(f"{path}: {CONFIG_FILE} names {counted(len(labels), 'label')}, and the head has {count}")
    net.engine = OnnxEngine(path, config.hidden_size)
    dtype = "int8" if facts.get("dtype") == "int8" else "float32"
    if dtype == "int8" and not is_fast_on_cpu("int8"):
        _log.warning("this processor has no instructions for int8 (VNNI or AMX); %s is right on it, but not fast", path)
    return Opened(ModelFolder(net, labels, about, []), tokenizer, pooling, dtype)


def _is_of_head(name: str) -> bool:
    """Tell whether a weight is one that torch needs here."""
    return name.startswith(("heads.", "pooler.")) or name == "embeddings.token.weight"


def _read(path: Path) -> "ModelProto":
    """Parse a file; what is no ONNX is refused."""
    import onnx
    from google.protobuf.message import DecodeError

    if path.stat().st_size > _MOST_BYTES:
        raise CorruptFile(f"{path} has {path.stat().st_size:,} bytes; an ONNX file has at most {_MOST_BYTES:,}")
    try:
        return onnx.load_model_from_string(path.read_bytes())
    except DecodeError as error:
        raise CorruptFile(f"{path} is not an ONNX file, or was cut off; export the model again") from error


def _check_text(path: Path, model: "ModelProto") -> None:
    """Refuse names and metadata that are no UTF-8: protobuf gives them as bytes."""
    graph = model.graph
    texts: list[object] = [text for entry in model.metadata_props for text in (entry.key, entry.value)]
    texts += [one.name for one in (*graph.initializer, *graph.input, *graph.output)]
    for node in graph.node:
        texts += [node.name, node.op_type, node.domain, *node.input, *node.output]
        texts += [attribute.name for attribute in node.attribute]
    if not all(isinstance(text, str) for text in texts):
        raise CorruptFile(f"{path} has names or metadata that are not UTF-8; export the model again")


def _check(path: Path, model: "ModelProto", facts: dict[str, str]) -> None:
    """Refuse a file that is not ours, or that reaches for another file."""
    from onnx import TensorProto

    from bertworks.export.graph import OPERATORS

    graph = model.graph
    tensors = [*graph.initializer, *(one.t for node in graph.node for one in node.attribute if one.HasField("t"))]
    for tensor in tensors:
        if tensor.data_location == TensorProto.EXTERNAL or tensor.external_data:
            found = {entry.key: entry.value for entry in tensor.external_data}.get("location", "another file")
            raise UserError(f"{path}: weights in a file beside it, {found[:80]!r}, are refused; one file has them all")
    if FORMAT_KEY not in facts:
        by = f" (by {model.producer_name[:40]})" if model.producer_name else ""
        raise UserError(
            f"{path} was not written by `bertworks export`{by}, so it has no tokenizer; open the model's folder instead"
        )
    if facts[FORMAT_KEY] != str(FORMAT):
        raise UserError(
            f"{path} has form {facts[FORMAT_KEY][:20]!r}, and this version reads {FORMAT}; export the model again"
        )
    for node in graph.node:
        if node.op_type not in OPERATORS.get(node.domain, ()) or any(
            one.HasField("g") or one.graphs or one.tensors or one.HasField("sparse_tensor") for one in node.attribute
        ):
            raise CorruptFile(f"{path} has an operator {node.op_type[:40]!r}, which `bertworks export` does not write")
    if model.functions or graph.sparse_initializer or model.training_info:
        raise CorruptFile(f"{path} has parts that `bertworks export` does not write; export the model again")
    if "last_hidden_state" not in {output.name for output in graph.output}:
        raise CorruptFile(f"{path}: its graph has no output last_hidden_state; export the model again")


def _weights(path: Path, model: "ModelProto") -> dict[str, Tensor]:
    """Return the weights that torch needs."""
    from onnx import TensorProto

    found = {}
    for tensor in model.graph.initializer:
        if _is_of_head(tensor.name):
            values = np.frombuffer(tensor.raw_data, np.float32) if len(tensor.raw_data) % 4 == 0 else np.empty(0)
            if tensor.data_type != TensorProto.FLOAT or values.size != np.prod(tensor.dims, dtype=object):
                raise CorruptFile(f"{path}: {tensor.name!r} is not float32 numbers of its shape")
            found[tensor.name] = torch.from_numpy(values.reshape(tuple(tensor.dims)).copy())
    return found


def _unpack(folder: Path, facts: dict[str, str]) -> None:
    """Write the files of the model folder that stand in the metadata."""
    if sum(map(len, facts.values())) > _MOST_METADATA:
        raise CorruptFile("its metadata are too large")
    for name, content in facts.items():
        if "." not in name:  # a fact
            continue
        file = safe_join(folder, name)
        file.parent.mkdir(exist_ok=True)
        try:
            data = base64.b64decode(content, validate=True) if file.suffix == ".safetensors" else content.encode()
        except (binascii.Error, ValueError) as error:
            raise CorruptFile(f"{name} in its metadata is damaged") from error
        file.write_bytes(data)
    if not (folder / CONFIG_FILE).exists():
        raise CorruptFile(f"{CONFIG_FILE} is missing in its metadata; {json.dumps(sorted(facts))[:80]}")
