"""Pickled weights, `pytorch_model.bin`: read on request only, and as data.

A pickle can run any code when it is opened, so nothing here opens one. A process with limits finds out where the
tensors lie (`pickle_machine.py`, which can look up no name and call no function); their numbers are then read from the
file like those of any other. A file that asks for more than tensors is refused, and there is no second way to try.
"""

import json
import mmap
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_folder, safe_join
from bertworks.interop.huggingface import WEIGHTS_FILE, read_folder, read_weight_map
from bertworks.interop.weights import Entry, view_of, write_weights

PICKLE_FILE = "pytorch_model.bin"
PICKLE_INDEX_FILE = "pytorch_model.bin.index.json"
_TIMEOUT_S = 60
_TYPES = {
    "DoubleStorage": torch.float64, "FloatStorage": torch.float32, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8, "BoolStorage": torch.bool,
}  # fmt: skip
_SMALL_FILES = (
    "config.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "bertworks.json",
    "modules.json", "sentence_bert_config.json", "1_Pooling/config.json",
)  # fmt: skip


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
    command = [sys.executable, "-P", "-m", "bertworks.interop.pickle_machine", os.fspath(path.absolute())]
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
    dtype = _TYPES[kind]
    storage = view_of(mapped, Entry(dtype, (num_items,), first_byte, num_items * dtype.itemsize))
    offset, size, stride = view
    return storage.as_strided(size, stride, offset)


def pickle_to_folder(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> None:
    """Write a model folder with the weights of one whose weights are pickled, and copies of its other small files.

    Args:
        source: a folder with pytorch_model.bin, or with several such files and their index.
        destination: a folder that is not there yet; it appears only if it opens as a model.
    """
    source = Path(source)
    tensors = _read_all(source)
    with atomic_folder(destination) as temporary:
        for name in _SMALL_FILES:
            if (source / name).is_file():
                (temporary / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(source / name, temporary / name)
        write_weights(temporary / WEIGHTS_FILE, tensors)
        read_folder(temporary)


def _read_all(folder: Path) -> dict[str, Tensor]:
    if (folder / PICKLE_FILE).is_file():
        return read_pickle_weights(folder / PICKLE_FILE)
    index = folder / PICKLE_INDEX_FILE
    if not index.is_file():
        raise UserError(f"{folder} has neither {PICKLE_FILE} nor {PICKLE_INDEX_FILE}")
    names = read_weight_map(index)
    tensors: dict[str, Tensor] = {}
    for file_name in sorted(set(names.values())):
        tensors |= read_pickle_weights(safe_join(folder, file_name))
    if missing := sorted(set(names) - set(tensors)):
        raise CorruptFile(f"{index} lists {missing[0]!r:.80}, which its file does not hold")
    return tensors
