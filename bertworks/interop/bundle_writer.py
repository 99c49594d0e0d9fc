"""Write a checkpoint that TensorFlow opens: one data file, and an index with the checksum of every tensor."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.interop.bundle_index import BFLOAT16, NUMPY_TYPES
from bertworks.interop.crc32c import crc32c, masked
from bertworks.interop.protobuf import bytes_field, fixed32_field, varint_field
from bertworks.interop.table import write_table

_TYPE_NUMBERS = {dtype: number for number, dtype in NUMPY_TYPES.items() if number != BFLOAT16}
_HEADER = varint_field(1, 1) + bytes_field(3, varint_field(1, 1))  # one data file; written by format version 1


def write_bundle(prefix: str | os.PathLike[str], tensors: Mapping[str, NDArray[Any]]) -> None:
    """Write PREFIX.data-00000-of-00001 and then PREFIX.index, without which the former is not a checkpoint.

    Raises UserError where there is a checkpoint of that name already: two files cannot be replaced at once.
    """
    prefix = Path(prefix)
    index_path, data_path = (prefix.with_name(prefix.name + end) for end in (".index", ".data-00000-of-00001"))
    if index_path.exists() or data_path.exists():
        raise UserError(f"there is a checkpoint {prefix} already; choose another name or remove it")
    entries, offset = [(b"", _HEADER)], 0
    with atomic_write(data_path, "wb") as stream:
        for key, name in sorted((_key(name), name) for name in tensors):
            numbers = _plain(name, tensors[name])
            raw = numbers.reshape(-1).view(np.uint8)
            stream.write(raw.data)
            entries.append((key, _entry(numbers, offset, masked(crc32c(raw)))))
            offset += len(raw)
    with atomic_write(index_path, "wb") as stream:
        stream.write(write_table(entries))


def _key(name: str) -> bytes:
    if not name or name.startswith("\0"):
        raise UserError(f"{name[:80]!r} cannot be the name of a tensor")
    return name.encode()


def _plain(name: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """Return a tensor as it is stored: row by row, the low byte first."""
    numbers = np.asarray(tensor)
    stored = numbers.dtype.newbyteorder("<")
    if stored not in _TYPE_NUMBERS:
        known = ", ".join(sorted(dtype.name for dtype in _TYPE_NUMBERS))
        raise UserError(f"{name[:80]!r} has the type {numbers.dtype}; a checkpoint is written of {known}")
    return np.asarray(numbers, stored, order="C")


def _entry(numbers: NDArray[Any], offset: int, checksum: int) -> bytes:
    shape = b"".join(bytes_field(2, varint_field(1, dim)) for dim in numbers.shape)
    return (
        varint_field(1, _TYPE_NUMBERS[numbers.dtype.newbyteorder("<")])
        + bytes_field(2, shape)
        + varint_field(4, offset)
        + varint_field(5, numbers.nbytes)
        + fixed32_field(6, checksum)
    )
