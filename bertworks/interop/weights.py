"""safetensors files as torch's tensors, without copying: views of the mapped file."""

import mmap
import os
from collections.abc import Mapping

import torch
from torch import Tensor

from bertworks.interop.safetensors_format import Announced, Entry, in_file_order, map_file, write_file

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_TYPE_NAMES = {dtype: name for name, dtype in _TYPES.items()}


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a file as views of the mapped file."""
    mapped, entries = map_file(path)
    return {name: view_of(mapped, entry) for name, entry in entries.items()}


def view_of(mapped: mmap.mmap, entry: Entry) -> Tensor:
    """Return a tensor whose numbers lie in a mapped file."""
    dtype = _TYPES[entry.type]
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    if not entry.is_aligned:  # a view from there would be slow, or no view at all
        data = bytearray(mapped[entry.first_byte : entry.first_byte + entry.num_bytes])
        return torch.frombuffer(data, dtype=dtype).view(entry.shape)
    count = entry.num_bytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.first_byte).view(entry.shape)


def write_weights(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; the same weights give the same bytes."""
    ordered = in_file_order(
        Announced(name, _TYPE_NAMES[tensor.dtype], tuple(tensor.shape)) for name, tensor in tensors.items()
    )
    write_file(path, ordered, (_bytes_of(tensors[tensor.name]) for tensor in ordered))


def _bytes_of(tensor: Tensor) -> memoryview:
    if not tensor.numel():
        return memoryview(b"")
    return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data
