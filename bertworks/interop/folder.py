"""A model folder in Hugging Face's form: config.json, model.safetensors and what lies beside them.

Weights are written by a few lines of our own, so that the same weights give the same bytes, and read by the names of
today: files of older versions say gamma and beta, leave "bert." out, or hold the output matrix a second time.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write
from bertworks.interop.names import modern_name

CONFIG_FILE, WEIGHTS_FILE, OPTIMIZER_FILE = "config.json", "model.safetensors", "optimizer.safetensors"
PROVENANCE_FILE = "bertworks.json"
_DTYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "BF16": np.uint16}  # what we read
_CODES = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}  # what we write
_BUFFERS = ("bert.embeddings.position_ids", "bert.embeddings.token_type_ids")
_WORDS, _BIAS = "bert.embeddings.word_embeddings.weight", "cls.predictions.bias"
_TIED = {"cls.predictions.decoder.weight": _WORDS, "cls.predictions.decoder.bias": _BIAS}


def write_safetensors(path: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write tensors in an order that depends on nothing but their types and names."""
    # The wide ones first: then each begins at a multiple of its width, as the format asks.
    names = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + tensors[name].nbytes
        code = _CODES[tensors[name].dtype]
        header[name] = {"dtype": code, "shape": list(tensors[name].shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with atomic_write(path, "wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            stream.write(np.asarray(tensors[name], order="C").reshape(-1).view(np.uint8).data)


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file; bfloat16 as float32, exactly."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy"):  # refuses a header that does not fit the file
            content = np.fromfile(path, np.uint8)
    except FileNotFoundError:
        raise UserError(f"{path} is missing") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except SafetensorError as error:
        raise CorruptFile(f"{path} is damaged: {error}") from error
    size = 8 + int.from_bytes(content[:8].tobytes(), "little")
    header = json.loads(content[8:size].tobytes())
    header.pop("__metadata__", None)
    return {name: _tensor(path, name, entry, content[size:]) for name, entry in header.items()}


def _tensor(path: Path, name: str, entry: dict[str, Any], content: NDArray[np.uint8]) -> NDArray[Any]:
    if entry["dtype"] not in _DTYPES:
        raise UserError(f"{path}: {name[:80]!r} is {entry['dtype']}; only {', '.join(_DTYPES)} can be converted")
    start, end = entry["data_offsets"]
    numbers = content[start:end].view(_DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return (numbers.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else numbers


def with_modern_names(tensors: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return tensors by the names of BertForPreTraining today, each once; a copy that is not one is an error."""
    bare = not any(name.startswith(("bert.", "cls.")) for name in tensors)
    named = {("bert." if bare else "") + modern_name(name): tensor for name, tensor in tensors.items()}
    if len(named) < len(tensors):
        raise UserError("the weights hold a LayerNorm's parameters twice, by their old and their new names")
    for copy, original in _TIED.items():
        if copy in named and not np.array_equal(named[copy], named.setdefault(original, named[copy])):
            raise UserError(
                f"{copy} is not the same as {original}; BERT has one matrix for both, so it cannot be written"
            )
    return {name: tensor for name, tensor in named.items() if name not in _TIED and name not in _BUFFERS}
