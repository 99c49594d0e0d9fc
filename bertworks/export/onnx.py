"""A BERT as one ONNX file: its graph and weights, and in the metadata all that a model folder has beside weights.

- The metadata hold the files of the model folder (config.json, vocab.txt, tokenizer.json, bertworks.json and those of
  sentence-transformers) under their names, so that one file is the whole model. What another program may want is there
  in plain words too: `task`, `labels`, `max_length`.
- The file is written as it is read: weights go from the network's memory to the file, so a base model takes a second
  and no copy of itself. Equal weights give equal bytes.
- Nothing is left in place unchecked: ONNX Runtime opens the file, and every output is compared with torch's on texts,
  on random tokens and on padding. In float32 they differ by at most 1e-4, or there is no file. Of an output with
  numbers above 1 that is a share of the largest: torch itself is so far from the exact scores of 30,000 pieces.
"""

import base64
import copy
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks import __version__
from bertworks.errors import UserError
from bertworks.export.runtime import FORMAT, FORMAT_KEY, OnnxEngine, check_installed, open_session, padded
from bertworks.files import atomic_write, check_can_write, usable_path
from bertworks.models.folder import num_positions
from bertworks.models.kinds import BERT, kind_of_network, write_model
from bertworks.models.sentence_transformers import Pooling, write_pooling
from bertworks.nn.attention import Tokens, batches, pack
from bertworks.nn.bert import Bert, MlmHead
from bertworks.nn.layers import is_fast_on_cpu
from bertworks.text.tokenizer import Encoding, Tokenizer

if TYPE_CHECKING:
    from bertworks.export.graph import Written

LARGEST_DIFFERENCE = 1e-4
_MOST_BYTES = (1 << 31) - 1  # of a message of protobuf
_IR_VERSION = 9  # that of opset 20
_RANDOM_LENGTHS = (3, 17, 40)
_MOST_CHECKED, _MOST_CALIBRATED = 4, 512  # texts
_LONGEST_CALIBRATED = 128  # tokens
_TEXTS = (
    "The river rose in the night, and by morning the road to the village was gone.",
    "Is that so?",
    "그는 아침 일찍 시장에 가서 사과와 배를 샀다.",
)
Embed = Callable[[Sequence[Encoding]], NDArray[np.float32]]


class Exported(NamedTuple):
    """What was written."""

    out: str
    dtype: str  # float32 or int8
    form: str  # "ONNX Runtime", "standard"
    nodes: int
    megabytes: float  # of 1,000,000 bytes
    outputs: list[str]
    difference: float  # the largest of any output from torch's, as a share of the output's largest number if above 1
    cosine: float  # of hidden states and torch's: the mean over tokens
    notes: list[str]


def export(
    net: Any,
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    *,
    labels: list[str],
    about: Mapping[str, Any],
    pooling: Pooling,
    embed: Embed,
    int8: bool = False,
    portable: bool = False,
    texts: Sequence[str] | None = None,
) -> Exported:
    """Write a BERT to an ONNX file, and compare it with torch.

    Args:
        net: the network.
        tokenizer: of its texts.
        out: the file, whose name ends in .onnx.
        labels: of its classes or tags.
        about: what the folder's bertworks.json says.
        pooling: how its folder wants texts embedded.
        embed: returns what the model makes of encoded texts, to compare with.
        int8: whether matrices are multiplied in int8.
        portable: whether the graph has standard operators only.
        texts: to find the ranges of static int8, whose graph is portable; None: int8 is dynamic.
    """
    check_installed()
    out = check_out(out)
    _check(net, int8, texts)
    from bertworks.export.graph import Float32, Products, write_graph
    from bertworks.export.int8 import Dynamic, Static, calibrate, channel_factors

    net, notes = _plain(net), list[str]()
    products: Products = Float32()
    factors = channel_factors(net) if int8 else {}
    if texts is not None:
        ranges = calibrate(net, factors, _some_tokens(tokenizer, texts, net, pooling))
        portable, products = True, Static(factors, ranges)
    elif int8:
        products = Dynamic(factors, portable=portable)
    if int8 and not is_fast_on_cpu("int8"):
        notes.append("this processor has no instructions for int8 (VNNI or AMX): results are right, but not faster")
    stated = pooling if pooling.is_stated else None
    if stated is not None and not stated.include_prompt and any(stated.prompts.values()):
        stated = None
        notes.append("no output sentence_embedding: the folder pools without the prompt, which a graph does not know")
    written = write_graph(net, products, stated, portable=portable)
    metadata = _metadata(net, tokenizer, labels, about, pooling, "int8" if int8 else "float32")
    with atomic_write(out, "wb") as stream:
        size = _write(stream, written, metadata)
        stream.flush()
        difference, cosine = _compared(Path(stream.name), net, tokenizer, written, embed if stated else None, texts)
        if not difference <= LARGEST_DIFFERENCE and not int8:  # also where it is not a number
            raise UserError(
                f"{out} is not written: its results differ from torch's by {difference:.1e}, more than "
                f"{LARGEST_DIFFERENCE:.0e}; check the model's weights for numbers that are not finite"
            )
    graph, outputs = written.graph, [output.name for output in written.outputs]
    form = "standard" if written.domains == ("",) else "ONNX Runtime"
    dtype = "int8" if int8 else "float32"
    return Exported(str(out), dtype, form, len(graph.nodes), size / 1e6, outputs, difference, cosine, notes)


def check_out(out: str | os.PathLike[str]) -> Path:
    """Refuse a file that cannot be written, before any work."""
    out = usable_path(out)
    if out.suffix != ".onnx":
        raise UserError(f"cannot export to {out}; give a name that ends in .onnx")
    if os.path.lexists(out):
        raise UserError(f"{out} exists already; choose another name or remove it")
    check_can_write(out)
    return out


def _check(net: Any, int8: bool, texts: Sequence[str] | None) -> None:
    """Refuse what cannot be exported, before any work."""
    if texts is not None and not int8:
        raise UserError("texts to calibrate with are for int8; ask for it with --int8, in Python with int8=True")
    if texts is not None and not any(text.strip() for text in texts):
        raise UserError("there is no text to calibrate with; give some hundreds, one on each line")
    kind = kind_of_network(net)
    if kind is not BERT:
        also = " and in transformers" if kind.name == "gpt" else ""
        raise UserError(
            f"only BERTs are exported to ONNX, and this is {kind.title}; its folder opens here{also} as it is"
        )
    if isinstance(net.engine, OnnxEngine):
        raise UserError("this model is an ONNX file already; export the folder that it was made of")


def _plain(net: Bert) -> Bert:
    """Return a network in float32 on the CPU, computed by torch; its weights are those of the given one if possible."""
    first = next(net.parameters())
    if first.device.type != "cpu" or any(parameter.dtype != torch.float32 for parameter in net.parameters()):
        return copy.deepcopy(net).to("cpu", torch.float32)
    plain = copy.copy(net)
    plain.engine = None
    return plain


# The file. Numbers of fields are those of onnx.proto: a model's graph is 7, a graph's weight 5, a weight's bytes 9.


def _write(stream: IO[bytes], written: "Written", metadata: Mapping[str, str]) -> int:
    """Write the file, weights from where they lie; returns how many bytes it has."""
    import onnx
    from onnx.helper import make_graph, make_model, make_opsetid

    graph = make_graph(written.graph.nodes, "bert", written.inputs, written.outputs)
    parts: list[tuple[bytes, NDArray[Any]]] = []
    for name, values in written.graph.weights.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
        header = onnx.TensorProto(dims=values.shape, data_type=kind, name=name).SerializeToString(deterministic=True)
        header += _field(9, values.nbytes)
        parts.append((_field(5, len(header) + values.nbytes) + header, values))
    start = graph.SerializeToString(deterministic=True)
    size = len(start) + sum(len(header) + values.nbytes for header, values in parts)
    versions = [make_opsetid(domain, _opset(domain)) for domain in written.domains]
    model = make_model(
        make_graph([], "", [], []), opset_imports=versions, ir_version=_IR_VERSION,
        producer_name="bertworks", producer_version=__version__,
    )  # fmt: skip
    model.ClearField("graph")
    onnx.helper.set_model_props(model, dict(metadata))
    before = model.SerializeToString(deterministic=True) + _field(7, size) + start
    total = len(before) - len(start) + size
    if total > _MOST_BYTES:
        raise UserError(f"the model would take {total / 1e9:.1f} GB, and an ONNX file holds 2.1; export it with --int8")
    stream.write(before)
    for header, values in parts:
        stream.write(header)
        stream.write(np.ascontiguousarray(values).reshape(-1).view(np.uint8).data)
    return total


def _opset(domain: str) -> int:
    from bertworks.export.graph import OPSET

    return 1 if domain else OPSET


def _field(number: int, length: int) -> bytes:
    """Return how protobuf announces a field of so many bytes."""
    found = bytearray([number << 3 | 2])
    while length > 0x7F:
        found.append(length & 0x7F | 0x80)
        length >>= 7
    return bytes([*found, length])


def _metadata(
    net: Bert, tokenizer: Tokenizer, labels: list[str], about: Mapping[str, Any], pooling: Pooling, dtype: str
) -> dict[str, str]:
    """Return the entries of a file: plain facts, and the small files of the model folder under their names."""
    task = (about.get("task") or {}).get("kind") or about.get("problem") or next(iter(net.heads), "embed")
    length = min(pooling.max_length or 1 << 30, net.config.max_position_embeddings)
    facts = {FORMAT_KEY: str(FORMAT), "task": str(task), "dtype": dtype, "max_length": str(length)}
    if labels:
        facts["labels"] = json.dumps(labels, ensure_ascii=False)
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_model(folder, net, labels=labels, about=about, put=lambda *_: None)
        tokenizer.save(folder, max_length=num_positions(folder))
        if pooling.is_stated:
            write_pooling(folder, pooling, net.config.hidden_size)
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            data = path.read_bytes()
            is_text = path.suffix != ".safetensors"
            facts[path.relative_to(folder).as_posix()] = data.decode() if is_text else base64.b64encode(data).decode()
    return facts


# The comparison with torch.


def _some_tokens(tokenizer: Tokenizer, texts: Sequence[str], net: Bert, pooling: Pooling) -> Iterator[Tokens]:
    """Yield batches of texts, as many as calibration reads."""
    most = min(_LONGEST_CALIBRATED, net.config.max_position_embeddings, pooling.max_length or 1 << 30)
    given = [text for text in texts if text.strip()][:_MOST_CALIBRATED]
    encodings = tokenizer.encode_batch(given, None, most)
    for numbers in batches([len(one) for one in encodings], torch.device("cpu")):
        yield _packed([encodings[number] for number in numbers])


def _packed(encodings: Sequence[Encoding]) -> Tokens:
    return pack([one.ids for one in encodings], [one.segment_ids for one in encodings])


@torch.inference_mode()
def _compared(
    path: Path,
    net: Bert,
    tokenizer: Tokenizer,
    written: "Written",
    embed: Embed | None,
    texts: Sequence[str] | None,
) -> tuple[float, float]:
    """Return the largest difference between outputs of the file and torch's, and the cosine of the hidden states."""
    session = open_session(path)
    random, most = np.random.default_rng(0), net.config.max_position_embeddings
    lengths = [min(length, most) for length in _RANDOM_LENGTHS]
    ids = [random.integers(len(tokenizer), size=length).tolist() for length in lengths]
    segments = [(np.arange(n) > n // 2).astype(int) * (net.config.type_vocab_size > 1) for n in lengths]
    given = [text for text in texts or _TEXTS if text.strip()][:_MOST_CHECKED]
    real = tokenizer.encode_batch(given, None, most)
    ids += [list(one.ids) for one in real]
    tokens = pack(ids, [*(one.tolist() for one in segments), *(one.segment_ids for one in real)])
    hidden_TD, starts = net(tokens), tokens.packing.cumulative_lengths.numpy()
    feeds, is_token = padded(tokens, np.arange(len(ids)), starts)
    places = np.argwhere(is_token)[:: max(len(hidden_TD) // 16, 1)]
    names = [output.name for output in written.outputs]
    if any(one.name == "masked_positions" for one in written.inputs):
        feeds["masked_positions"] = places
    found = dict(zip(names, session.run(names, feeds), strict=True))
    right = {"last_hidden_state": hidden_TD}
    for name, head in net.heads.items():
        if isinstance(head, MlmHead):
            rows = torch.from_numpy(starts[places[:, 0]] + places[:, 1])
            right["mlm_logits"] = head(hidden_TD[rows], net.embeddings.token.weight)
        elif name == "span":
            right["start_logits"], right["end_logits"] = net.scores(name, hidden_TD).unbind(1)
        else:
            rows = net.pooled(hidden_TD, tokens.packing) if head.reads_pooled else hidden_TD
            right["nsp_logits" if name == "nsp" else "logits"] = net.scores(name, rows)
    if embed is not None:
        right["sentence_embedding"] = torch.from_numpy(embed(real))
        found["sentence_embedding"] = found["sentence_embedding"][len(lengths) :]
    assert set(right) == set(found)
    difference = 0.0
    for name, values in found.items():
        values = values[is_token] if values.shape[:2] == is_token.shape else values  # of tokens, without padding
        assert values.shape == tuple(right[name].shape), name
        wanted = right[name].numpy()
        largest = max(1.0, float(np.abs(wanted).max(initial=0.0)))  # float32 rounds large numbers more coarsely
        difference = float(np.maximum(difference, np.abs(values - wanted).max(initial=0.0) / largest))  # keeps a NaN
    states = torch.from_numpy(found["last_hidden_state"][is_token])
    return difference, float(torch.cosine_similarity(states, hidden_TD, dim=1).mean())
