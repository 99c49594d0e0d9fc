"""Pickled weights, `pytorch_model.bin`: read on request only, and as data.

A pickle can run any code when it is opened, so nothing here opens one. A process with limits finds out where the
tensors lie (`pickle_machine.py`, which can look up no name and call no function); their numbers are then read from the
file like those of any other. A file that asks for more than tensors is refused, and there is no second way to try.
"""

import json
import mmap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.errors import CorruptFile, UserError
from bertworks.files import MANIFEST_NAME
from bertworks.models.folder import CONFIG_FILE, WEIGHTS_FILE, copy_small_files, read_json, read_sharded
from bertworks.models.kinds import read_model
from bertworks.models.names import EMBEDDING, OUTPUT, TIED
from bertworks.models.weights import NUM_BYTES, Entry, view_of, write_weights

PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX_FILE = "pytorch_model.bin.index.json"
_TIMEOUT_S = 60
_COPIES = {**TIED, OUTPUT: EMBEDDING}  # of a BERT and of a GPT-1
_TYPES = {
    "DoubleStorage": "F64", "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8", "ByteStorage": "U8",
    "BoolStorage": "BOOL",
}  # fmt: skip


def read_pickle_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a file that `torch.save` wrote, as views of the mapped file; no code in it is run."""
    described = _describe(Path(path))
    if not described:
        return {}
    try:
        with open(path, "rb") as stream:
            mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY)
        return {name: _tensor(mapped, *description) for name, description in described.items()}
    except (OSError, ValueError, RuntimeError) as error:
        raise CorruptFile(f"{path} was changed while it was read: {str(error)[:120]}") from error


def _describe(path: Path) -> dict[str, list[Any]]:
    command = [sys.executable, "-P", "-m", "bertworks.models.pickle_machine", os.fspath(path.absolute())]
    try:
        # Our own module and a path, without a shell.
        ended = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False)  # noqa: S603
    except subprocess.TimeoutExpired:
        raise UserError(f"refused: pickle {path} takes longer than {_TIMEOUT_S} s to look through") from None
    try:
        answer = json.loads(ended.stdout)
    except ValueError:
        raise UserError(f"refused: pickle {path} takes more time or memory to look through than weights do") from None
    if "refused" in answer:
        raise UserError(f"refused: pickle {path} {answer['refused']}")
    if "damaged" in answer:
        raise CorruptFile(f"refused: pickle {path} is damaged ({answer['damaged']})")
    return answer["tensors"]  # type: ignore[no-any-return]


def _tensor(mapped: mmap.mmap, kind: str, first_byte: int, num_items: int, *view: Any) -> Tensor:
    type_name = _TYPES[kind]
    storage = view_of(mapped, Entry(type_name, (num_items,), first_byte, num_items * NUM_BYTES[type_name]))
    offset, size, stride = view
    return storage.as_strided(size, stride, offset)


def read_pickled_folder(folder: Path) -> dict[str, Tensor]:
    """Return the weights, each once, of a folder with pytorch_model.bin, or with several such files and their index."""
    if (folder / PICKLE_FILE).is_file():
        tensors = read_pickle_weights(folder / PICKLE_FILE)
    elif (folder / PICKLE_INDEX_FILE).is_file():
        tensors = read_sharded(folder / PICKLE_INDEX_FILE, read_pickle_weights)
    else:
        raise UserError(f"{folder} has neither {PICKLE_FILE} nor {PICKLE_INDEX_FILE}")
    # Where they are said not to be tied, transformers wants both, though they be equal.
    is_tied = read_json(folder / CONFIG_FILE).get("tie_word_embeddings") is not False
    return {name: tensor for name, tensor in tensors.items() if not (is_tied and _is_copy(name, tensors))}


def _is_copy(name: str, tensors: dict[str, Tensor]) -> bool:
    """Tell whether a tensor repeats the one that it is tied to, whose name in old files lacks its first part."""
    if name not in _COPIES:
        return False
    originals = (_COPIES[name], _COPIES[name].partition(".")[2])
    return any(one in tensors and torch.equal(tensors[name], tensors[one]) for one in originals)


def write_unpickled(folder: Path, source: Path, tensors: dict[str, Tensor]) -> list[str]:
    """Write the weights of `source` and copies of its small files; returns the names of files that are left out."""
    copy_small_files(source, folder)
    write_weights(folder / WEIGHTS_FILE, tensors)
    read_model(folder)  # or raise: what does not open is no result
    names = (path.name for path in source.iterdir() if not path.name.startswith("pytorch_model"))
    return sorted(name for name in names if not (folder / name).exists() and name != MANIFEST_NAME)
