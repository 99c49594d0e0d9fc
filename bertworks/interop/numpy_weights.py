"""safetensors files as numpy's arrays, for what works without torch."""

import mmap
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.interop.safetensors_format import Announced, Entry, in_file_order, map_file, write_file

_TYPES = {"F32": np.float32, "F16": np.float16, "I64": np.int64, "BF16": np.uint16}  # numpy has no bfloat16
_TYPE_NAMES = {np.dtype(np.float32): "F32", np.dtype(np.int64): "I64"}  # what we write


def read_arrays(path: str | os.PathLike[str]) -> dict[str, NDArray[Any]]:
    """Return the tensors of a file, as views of it where that can be; bfloat16 as float32, exactly."""
    mapped, entries = map_file(path)
    for name, entry in entries.items():
        if entry.type not in _TYPES:
            raise UserError(f"{path}: {name[:80]!r} is {entry.type}; only {', '.join(_TYPES)} can be converted")
    return {name: _array(mapped, entry) for name, entry in entries.items()}


def _array(mapped: mmap.mmap, entry: Entry) -> NDArray[Any]:
    content = np.frombuffer(mapped, np.uint8)[entry.first_byte : entry.first_byte + entry.num_bytes]
    numbers = (content if entry.is_aligned else content.copy()).view(_TYPES[entry.type]).reshape(entry.shape)
    return (numbers.astype(np.uint32) << 16).view(np.float32) if entry.type == "BF16" else numbers


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, NDArray[Any]]) -> None:
    """Write arrays; the same arrays give the same bytes."""
    ordered = in_file_order(announced(name, array.dtype, array.shape) for name, array in arrays.items())
    write_in_order(path, ordered, (arrays[tensor.name] for tensor in ordered))


def announced(name: str, dtype: Any, shape: tuple[int, ...]) -> Announced:
    """Say what an array to be written will be: float32 or int64."""
    return Announced(name, _TYPE_NAMES[np.dtype(dtype)], shape)


def write_in_order(path: str | os.PathLike[str], tensors: Sequence[Announced], arrays: Iterable[NDArray[Any]]) -> None:
    """Write arrays that come one after another, as they were announced."""
    write_file(path, tensors, (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays))
