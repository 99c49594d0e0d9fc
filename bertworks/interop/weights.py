"""safetensors files, read strictly and without copying.

The format is eight bytes of length, a JSON header (name -> type, shape, byte range) and the bytes. Everything that the
header says is checked against the file before a tensor is made, so that no file, whatever it holds, can do more than be
refused: ranges follow each other without overlap or hole and end where the file ends. Tensors are views of the mapped
file; pages are read when they are used, and writing to a tensor does not reach the file.
"""

import contextlib
import json
import math
import mmap
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write, safe_join

_LENGTH_BYTES = 8
# A BERT of 512 layers has 8,000 tensors and a header of 1 MB; the format's own limit of 100 MB takes seconds to read.
_MAX_HEADER_BYTES = 10_000_000
_MAX_TENSORS = 50_000
_MAX_DIMENSIONS = 8
_PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a pickle by itself, and torch's archive with one in it
_ALIGNMENT = 8
METADATA = "__metadata__"

_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip
_TYPE_NAMES = {dtype: name for name, dtype in _TYPES.items()}


class Entry(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    first_byte: int
    num_bytes: int


def read_header(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Return what a file holds, checked; byte ranges count from the start of the file."""
    with _opened(path) as stream:
        return _read_header(path, stream)


@contextlib.contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    try:
        with open(path, "rb") as stream:
            yield stream
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


def _read_header(path: str | os.PathLike[str], stream: IO[bytes]) -> dict[str, Entry]:
    file_bytes = os.fstat(stream.fileno()).st_size
    start = stream.read(_LENGTH_BYTES)
    length = int.from_bytes(start, "little")
    room = max(0, min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES))
    if not 2 <= length <= room:
        if start.startswith(_PICKLE_STARTS):
            raise CorruptFile(f"refused: pickle. {path} is not a safetensors file, and opening it could run code")
        raise CorruptFile(f"{path} is not a safetensors file: a header of {length} bytes where {room} fit")
    try:
        return _entries(_parse(stream.read(length)), _LENGTH_BYTES + length, file_bytes)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CorruptFile(f"{path} is not a sound safetensors file: {_said(error)}") from error


def _said(error: Exception) -> str:
    return f"{error.args[0]!r:.60} is missing" if isinstance(error, KeyError) else str(error)[:200]


def _parse(header: bytes) -> dict[str, Any]:
    # Before it is parsed: a tensor takes three brackets, and each costs 60 bytes of memory and more.
    if header.count(b"[") + header.count(b"{") > 3 * _MAX_TENSORS:
        raise ValueError(f"more than {_MAX_TENSORS:,} tensors")
    parsed = json.loads(header, object_pairs_hook=_unique, parse_constant=_refuse_constant)
    if not isinstance(parsed, dict):
        raise ValueError("its header is no object")
    metadata = parsed.pop(METADATA, {})
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise ValueError("its metadata is not text")
    return parsed


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name occurs twice")
    return dict(pairs)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} in its header")


def _entries(header: dict[str, Any], first_byte: int, end: int) -> dict[str, Entry]:
    entries = {name: _entry(name, fields, first_byte) for name, fields in header.items()}
    place = first_byte
    for name, entry in sorted(entries.items(), key=lambda item: item[1].first_byte):
        if entry.num_bytes and entry.first_byte != place:
            raise ValueError(f"{name[:60]!r} overlaps another tensor or leaves a hole")
        place = max(place, entry.first_byte + entry.num_bytes)
    if place != end:
        raise ValueError(f"its tensors end at byte {place} and the file at {end}")
    return entries


def _entry(name: str, fields: dict[str, Any], base: int) -> Entry:
    shape, (first, end) = fields["shape"], fields["data_offsets"]
    if fields["dtype"] not in _TYPES:
        raise ValueError(f"{name[:60]!r} has the type {str(fields['dtype'])[:20]!r}, which is not read here")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{name[:60]!r} has no shape of up to {_MAX_DIMENSIONS} numbers")
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in [*shape, first, end]):
        raise ValueError(f"{name[:60]!r} has a shape or range of other things than whole numbers")
    dtype = _TYPES[fields["dtype"]]
    if end - first != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name[:60]!r} has {end - first} bytes for a shape of {shape}"[:160])
    return Entry(dtype, tuple(shape), base + first, end - first)


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Return the tensors of a file as views of the mapped file."""
    with _opened(path) as stream:
        entries = _read_header(path, stream)
        try:
            end = max((entry.first_byte + entry.num_bytes for entry in entries.values()), default=1)
            mapped = mmap.mmap(stream.fileno(), end, access=mmap.ACCESS_COPY)
        except ValueError as error:
            raise CorruptFile(f"{path} was cut off while it was read") from error
    return {name: view_of(mapped, entry) for name, entry in entries.items()}


def view_of(mapped: mmap.mmap, entry: Entry) -> Tensor:
    """Return a tensor whose numbers lie in a mapped file."""
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=entry.dtype)
    if entry.first_byte % entry.dtype.itemsize:
        # A header need not end at a multiple of eight; a view from there would be slow, or no view at all.
        data = bytearray(mapped[entry.first_byte : entry.first_byte + entry.num_bytes])
        return torch.frombuffer(data, dtype=entry.dtype).view(entry.shape)
    count = entry.num_bytes // entry.dtype.itemsize
    return torch.frombuffer(mapped, dtype=entry.dtype, count=count, offset=entry.first_byte).view(entry.shape)


def write_weights(path: str | os.PathLike[str], tensors: Mapping[str, Tensor]) -> None:
    """Write tensors in the order of their names; the same weights give the same bytes."""
    names = sorted(tensors)
    entries = [(name, tensors[name].dtype, tuple(tensors[name].shape)) for name in names]
    write_in_order(path, entries, (tensors[name] for name in names))


def write_in_order(
    path: str | os.PathLike[str],
    entries: Sequence[tuple[str, torch.dtype, tuple[int, ...]]],
    tensors: Iterable[Tensor],
) -> None:
    """Write tensors whose names, types and shapes are known before they are; each is dropped when it is written."""
    header: dict[str, Any] = {METADATA: {"format": "pt"}}  # transformers refuses a file that does not say this
    place = 0
    for name, dtype, shape in entries:
        end = place + math.prod(shape) * dtype.itemsize
        header[name] = {"dtype": _TYPE_NAMES[dtype], "shape": list(shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with atomic_write(path, "wb") as stream:
        stream.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for (name, dtype, shape), tensor in zip(entries, tensors, strict=True):
            assert (tensor.dtype, tuple(tensor.shape)) == (dtype, shape), f"{name} is not what was announced"
            if tensor.numel():
                stream.write(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().data)


def read_sharded(index: Path, names: Mapping[str, str]) -> dict[str, Tensor]:
    """Return the tensors of several files, of which an index says which tensor lies in which."""
    index = index.absolute()
    # In Hugging Face's cache a snapshot's files are links into the folder of blobs, two levels up.
    in_cache = index.parent.parent.name == "snapshots"
    root, place = (index.parents[2], f"snapshots/{index.parent.name}/") if in_cache else (index.parent, "")
    tensors: dict[str, Tensor] = {}
    for file_name in sorted(set(names.values())):
        tensors |= read_weights(safe_join(root, place + file_name))
    missing = sorted(set(names) - set(tensors))
    if missing:
        raise CorruptFile(f"{index} lists {missing[0]!r}, which its file does not hold")
    return tensors
