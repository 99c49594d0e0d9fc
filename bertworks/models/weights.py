"""A folder's weights in safetensors files, read strictly, without copying, as torch's tensors or numpy's; and written.

- A file is eight bytes of length, a JSON header (name -> type, shape, byte range) and the bytes. Everything that the
  header says is checked against the file before a tensor is made, so that no file, whatever it holds, can do more than
  be refused: ranges follow each other without overlap or hole and end where the file ends.
- Files are mapped: pages are read when they are used, and writing to a tensor does not reach the file.
- The same weights give the same bytes: wide types first, so that each tensor begins at a multiple of its width, then by
  name. Tensors can be announced first and written one after another, each being dropped before the next is made.
- The package `safetensors` reads these files, and the tests compare with it. It is not used here: it needs all tensors
  in memory at once and writes to a path, not atomically; it orders types of one width, such as bfloat16 and float16,
  differently, so bytes would change; it returns unaligned numbers unaligned; and for numpy it copies, without bfloat16.
- A folder's weights lie in one file, or in several that an index names; pickles are refused.
- Weights of which some do not learn are divided, so that these are written once and not with every checkpoint:

    model.safetensors.index.json       which tensor lies in which file
    model-00001-of-00002.safetensors   what learns
    model-00002-of-00002.safetensors   what is frozen: the file of an older folder, if it has the same bits, by a link

  Hugging Face divides large models in the same form, so other libraries read it. A hard link is a file like any other:
  the folder stays whole if it is moved or if the older one is deleted. The bits are compared before linking, so that a
  damaged older file does not get a new checksum. If a disk has no links, the numbers are written again.
"""

import contextlib
import json
import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from bertworks.errors import CorruptFile, UserError
from bertworks.files import atomic_write, parse_json, read_object, safe_join

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

NUM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
_TORCH_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
_NUMPY_NAMES = {"F32": "float32", "F16": "float16", "I64": "int64", "BF16": "uint16"}  # numpy has no bfloat16
WEIGHTS_FILE, INDEX_FILE, OPTIMIZER_FILE = (
    "model.safetensors", "model.safetensors.index.json", "optimizer.safetensors",
)  # fmt: skip
LEARNT_FILE, FROZEN_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
_PICKLE_ENDINGS = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".joblib", ".npy", ".npz")
PICKLE_STARTS = (b"\x80", b"PK\x03\x04")  # a pickle by itself, and torch's archive with one in it
_LENGTH_BYTES = 8
# A BERT of 512 layers has 8,000 tensors and a header of 1 MB; the format's own limit of 100 MB takes seconds to read.
_MAX_HEADER_BYTES = 10_000_000
_MAX_TENSORS = 50_000
_MAX_DIMENSIONS = 8
_ALIGNMENT = 8
_METADATA = "__metadata__"
# Endings of the names of a matrix in int8, of the scales of its rows, and of the factors of its inputs.
_INT8, _SCALE, _FACTORS = "_int8", "_scale", "_input_factors"
AnyTensor = TypeVar("AnyTensor")
Announced = tuple[str, str, tuple[int, ...]]  # name, type and shape of a tensor to be written


class Entry(NamedTuple):
    """What a tensor is (its type by the format's name) and where it lies in its file."""

    type: str
    shape: tuple[int, ...]
    first_byte: int
    num_bytes: int

    @property
    def is_aligned(self) -> bool:
        """Tell whether its numbers lie at multiples of their width; other writers end a header anywhere."""
        return self.first_byte % NUM_BYTES[self.type] == 0


def read_header(path: str | os.PathLike[str]) -> dict[str, Entry]:
    """Return what a file holds, checked; byte ranges count from the start of the file."""
    with _opened(path) as stream:
        return _read_header(path, stream)


def map_file(path: str | os.PathLike[str]) -> tuple[mmap.mmap, dict[str, Entry]]:
    """Return a file's bytes, mapped, and what lies where."""
    with _opened(path) as stream:
        entries = _read_header(path, stream)
        try:
            end = max((entry.first_byte + entry.num_bytes for entry in entries.values()), default=1)
            return mmap.mmap(stream.fileno(), end, access=mmap.ACCESS_COPY), entries
        except ValueError as error:
            raise CorruptFile(f"{path} was cut off while it was read") from error


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
        if start.startswith(PICKLE_STARTS):
            raise CorruptFile(f"refused: pickle. {path} is not a safetensors file, and opening it could run code")
        raise CorruptFile(f"{path} is not a safetensors file: a header of {length} bytes where {room} fit")
    try:
        header = _parse(stream.read(length))
        entries = {name: _entry(name, fields, _LENGTH_BYTES + length) for name, fields in header.items()}
        position = _LENGTH_BYTES + length
        for name, entry in sorted(entries.items(), key=lambda item: item[1].first_byte):
            if entry.num_bytes and entry.first_byte != position:
                raise ValueError(f"{name[:60]!r} overlaps another tensor or leaves a hole")
            position = max(position, entry.first_byte + entry.num_bytes)
        if position != file_bytes:
            raise ValueError(f"its tensors end at byte {position} and the file at {file_bytes}")
        return entries
    except (ValueError, KeyError, TypeError, AttributeError, CorruptFile) as error:
        message = f"{error.args[0]!r:.60} is missing" if isinstance(error, KeyError) else str(error)[:200]
        raise CorruptFile(f"{path} is not a sound safetensors file: {message}") from error


def _parse(header: bytes) -> dict[str, Any]:
    # Before it is parsed: a tensor takes three brackets, and each costs 60 bytes of memory and more.
    if header.count(b"[") + header.count(b"{") > 3 * _MAX_TENSORS:
        raise ValueError(f"more than {_MAX_TENSORS:,} tensors")
    parsed = parse_json(header, "its header", strict=True, unique=True)
    if not isinstance(parsed, dict):
        raise ValueError("its header is no object")
    metadata = parsed.pop(_METADATA, {})
    if not all(isinstance(text, str) for pair in metadata.items() for text in pair):
        raise ValueError("its metadata is not text")
    return parsed


def _entry(name: str, fields: dict[str, Any], base: int) -> Entry:
    kind, shape, (first, end) = fields["dtype"], fields["shape"], fields["data_offsets"]
    if kind not in NUM_BYTES:
        raise ValueError(f"{name[:60]!r} has the type {str(kind)[:20]!r}, which is not read here")
    if not isinstance(shape, list) or len(shape) > _MAX_DIMENSIONS:
        raise ValueError(f"{name[:60]!r} has no shape of up to {_MAX_DIMENSIONS} numbers")
    if not all(type(number) is int and 0 <= number < 1 << 48 for number in [*shape, first, end]):
        raise ValueError(f"{name[:60]!r} has a shape or range of other things than whole numbers")
    if end - first != math.prod(shape) * NUM_BYTES[kind]:
        raise ValueError(f"{name[:60]!r} has {end - first} bytes for a shape of {shape}"[:160])
    return Entry(kind, tuple(shape), base + first, end - first)


def in_file_order(tensors: Iterable[Announced]) -> list[Announced]:
    """Return tensors in an order that depends on nothing but their types and names."""
    return sorted(tensors, key=lambda tensor: (-NUM_BYTES[tensor[1]], tensor[0]))


def write_file(
    path: str | os.PathLike[str],
    tensors: Sequence[Announced],
    contents: Iterable[memoryview],
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write tensors whose types and shapes are known before their numbers are; each is dropped when it is written.

    `facts` are written beside them, in the file's header.
    """
    header: dict[str, Any] = {_METADATA: {"format": "pt", **(facts or {})}}  # transformers refuses a file without "pt"
    position = 0
    for name, kind, shape in tensors:
        end = position + math.prod(shape) * NUM_BYTES[kind]
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [position, end]}
        position = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with atomic_write(path, "wb") as stream:
        stream.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
        for (name, kind, shape), content in zip(tensors, contents, strict=True):
            assert content.nbytes == math.prod(shape) * NUM_BYTES[kind], f"{name} is not what was announced"
            stream.write(content)


def read_weights(path: str | os.PathLike[str]) -> "dict[str, Tensor]":
    """Return the tensors of a file as views of the mapped file."""
    mapped, entries = map_file(path)
    return {name: view_of(mapped, entry) for name, entry in entries.items()}


def view_of(mapped: mmap.mmap, entry: Entry) -> "Tensor":
    """Return a tensor whose numbers lie in a mapped file."""
    import torch

    dtype: Any = getattr(torch, _TORCH_NAMES[entry.type])
    if not entry.num_bytes:
        return torch.empty(entry.shape, dtype=dtype)
    if not entry.is_aligned:  # a view from there would be slow, or no view at all
        data = bytearray(mapped[entry.first_byte : entry.first_byte + entry.num_bytes])
        return torch.frombuffer(data, dtype=dtype).view(entry.shape)
    count = entry.num_bytes // dtype.itemsize
    return torch.frombuffer(mapped, dtype=dtype, count=count, offset=entry.first_byte).view(entry.shape)


def write_weights(path: str | os.PathLike[str], tensors: "Mapping[str, Tensor]") -> None:
    """Write tensors; the same weights give the same bytes."""
    import torch

    type_names = {f"torch.{name}": type_name for type_name, name in _TORCH_NAMES.items()}
    ordered = in_file_order(
        (name, type_names[str(tensor.dtype)], tuple(tensor.shape)) for name, tensor in tensors.items()
    )

    def contents() -> Iterator[memoryview]:
        for name, *_ in ordered:
            flat = tensors[name].detach().cpu().contiguous().view(-1)
            yield flat.view(torch.uint8).numpy().data if len(flat) else memoryview(b"")

    write_file(path, ordered, contents())


def read_arrays(path: str | os.PathLike[str]) -> "dict[str, NDArray[Any]]":
    """Return the tensors of a file, as views of it where that can be; bfloat16 as float32, exactly."""
    import numpy as np

    mapped, entries = map_file(path)
    arrays: dict[str, NDArray[Any]] = {}
    for name, entry in entries.items():
        if entry.type not in _NUMPY_NAMES:
            raise UserError(f"{path}: {name[:80]!r} is {entry.type}; only {', '.join(_NUMPY_NAMES)} can be converted")
        content = np.frombuffer(mapped, np.uint8)[entry.first_byte : entry.first_byte + entry.num_bytes]
        content = content if entry.is_aligned else content.copy()
        numbers = content.view(_NUMPY_NAMES[entry.type]).reshape(entry.shape)
        is_half = entry.type == "BF16"
        arrays[name] = (numbers.astype(np.uint32) << 16).view(np.float32) if is_half else numbers
    return arrays


def write_arrays(path: str | os.PathLike[str], arrays: "Mapping[str, NDArray[Any]]") -> None:
    """Write arrays; the same arrays give the same bytes."""
    ordered = in_file_order(announced(name, array.dtype, array.shape) for name, array in arrays.items())
    write_in_order(path, ordered, (arrays[name] for name, *_ in ordered))


def announced(name: str, dtype: Any, shape: tuple[int, ...]) -> Announced:
    """Say what an array to be written will be: float32 or int64."""
    import numpy as np

    return name, {"float32": "F32", "int64": "I64"}[np.dtype(dtype).name], shape


def write_in_order(
    path: str | os.PathLike[str],
    tensors: Sequence[Announced],
    arrays: "Iterable[NDArray[Any]]",
    facts: Mapping[str, str] | None = None,
) -> None:
    """Write arrays that come one after another, as they were announced; `facts` as `write_file` does."""
    import numpy as np

    contents = (np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays)
    write_file(path, tensors, contents, facts)


# The weights of a folder.


def read_tensors(folder: Path, read: Callable[[Path], dict[str, AnyTensor]]) -> dict[str, AnyTensor]:
    """Return a folder's weights, each file of them read by `read`."""
    if (folder / WEIGHTS_FILE).exists():
        return read(folder / WEIGHTS_FILE)
    if (folder / INDEX_FILE).exists():
        return read_sharded(folder / INDEX_FILE, read)
    raise UserError(no_weights(folder))


def quantized(tensors: "Mapping[str, Tensor]", factors: "Mapping[str, Tensor | None]") -> "dict[str, Tensor]":
    """Return the same tensors, some matrices as int8 with a scale for each row; no library takes them for others.

    `factors` are, by the names of the matrices, those of their inputs, by which the weights are divided; or None.
    """
    from bertworks.nn.layers import quantize_weight

    changed = dict(tensors)
    for name, factors_D in factors.items():
        weight = changed.pop(name).float()
        if factors_D is not None:
            weight, changed[name + _FACTORS] = weight / factors_D, factors_D
        changed[name + _INT8], changed[name + _SCALE] = quantize_weight(weight)
    return changed


def dequantized(tensors: "Mapping[str, Tensor]") -> "tuple[dict[str, Tensor], dict[str, Tensor]]":
    """Return the same tensors, those that `quantized` changed as float32; and the factors that it was given."""
    import torch

    changed, factors = dict(tensors), {}
    for name in [name.removesuffix(_INT8) for name in tensors if name.endswith(_INT8)]:
        values, scales = changed.pop(name + _INT8), changed.pop(name + _SCALE, None)
        if values.dtype != torch.int8 or values.ndim != 2 or scales is None or scales.shape != values.shape[:1]:
            raise UserError(f"{name + _INT8:.80} is no int8 matrix with a scale for each row; convert the model again")
        changed[name] = values.float() * scales.float()[:, None]
        if name + _FACTORS in changed:
            found = factors[name] = changed.pop(name + _FACTORS).float()
            if found.shape != values.shape[1:] or not bool((found > 0).all()):
                raise UserError(f"{name + _FACTORS:.80} is not a positive number an input; convert the model again")
            changed[name] *= found
    return changed, factors


def no_weights(folder: Path) -> str:
    """Return what to do with a folder without safetensors: read its pickle, or copy weights there."""
    if pickles := pickles_in(folder):
        return refusal(pickles[0])
    return f"{folder} has no {WEIGHTS_FILE} and no other weights that are read here; copy them from where it comes from"


def read_sharded(index: Path, read: Callable[[Path], dict[str, AnyTensor]]) -> dict[str, AnyTensor]:
    """Return the tensors of several files, of which an index says which tensor lies in which."""
    names = read_object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
        raise CorruptFile(f"{index} has no weight_map of names")
    index = index.absolute()
    # In Hugging Face's cache a snapshot's files are links into the folder of blobs, two levels up.
    in_cache = index.parent.parent.name == "snapshots"
    root, prefix = (index.parents[2], f"snapshots/{index.parent.name}/") if in_cache else (index.parent, "")
    tensors: dict[str, AnyTensor] = {}
    for file_name in sorted(set(names.values())):
        tensors |= read(safe_join(root, prefix + file_name))
    if missing := sorted(set(names) - set(tensors)):
        raise CorruptFile(f"{index} lists {missing[0]!r:.80}, which its file does not hold")
    return tensors


def has_safetensors(folder: Path) -> bool:
    """Tell whether a folder has weights, in one file or several, that are no pickle."""
    return (folder / WEIGHTS_FILE).exists() or (folder / INDEX_FILE).exists()


def pickles_in(folder: Path) -> list[Path]:
    """Return the pickles that a folder has for weights: none if it has safetensors."""
    if has_safetensors(folder):
        return []
    return sorted(path for path in folder.iterdir() if path.suffix in (*_PICKLE_ENDINGS, ".ckpt") and is_pickle(path))


def is_pickle(path: Path) -> bool:
    """Tell whether a file is a pickle by its ending or, as torch and TensorFlow share .ckpt, by its first bytes."""
    if path.suffix in _PICKLE_ENDINGS or not path.is_file():
        return path.suffix in _PICKLE_ENDINGS
    with open(path, "rb") as stream:
        return stream.read(4).startswith(PICKLE_STARTS)


def refusal(pickle: Path) -> str:
    """Say why a pickle is not opened, and what can be done."""
    return (
        f"refused: pickle. {pickle} could run code when it is opened; `bertworks convert {pickle.parent} NEW "
        "--allow-pickle` reads the tensors of a pytorch_model.bin and nothing else"
    )


def put_whole(folder: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Write a folder's weights into one file."""
    write_weights(folder / WEIGHTS_FILE, tensors)


def put_divided(
    folder: Path, tensors: "Mapping[str, Tensor]", is_frozen: Callable[[str], bool], before: Path | None
) -> None:
    """Write a folder's weights into two files and an index.

    Args:
        folder: is there.
        tensors: all of them, by their names in the folder.
        is_frozen: tells by its name which does not learn.
        before: a folder that may have the frozen ones.
    """
    frozen = {name: tensor for name, tensor in tensors.items() if is_frozen(name)}
    write_weights(folder / LEARNT_FILE, {name: tensor for name, tensor in tensors.items() if name not in frozen})
    if before is None or not _link(before / FROZEN_FILE, folder / FROZEN_FILE, frozen):
        write_weights(folder / FROZEN_FILE, frozen)
    files = {name: FROZEN_FILE if name in frozen else LEARNT_FILE for name in sorted(tensors)}
    size = sum(tensor.nbytes for tensor in tensors.values())
    with atomic_write(folder / INDEX_FILE) as stream:
        json.dump({"metadata": {"total_size": size}, "weight_map": files}, stream, indent=1)


def _link(source: Path, target: Path, tensors: "Mapping[str, Tensor]") -> bool:
    """Link a file that holds these tensors, bit by bit, and no others; returns whether it does and could be."""
    import torch

    def bits(tensor: "Tensor") -> "Tensor":  # for which -0.0 is not 0.0 and a NaN is what it is
        return tensor.detach().cpu().contiguous().view(-1).view(torch.uint8)

    try:
        there = read_weights(source)
        if there.keys() != tensors.keys():
            return False
        for name, one in there.items():
            other = tensors[name]
            if (one.dtype, one.shape) != (other.dtype, other.shape) or not torch.equal(bits(one), bits(other)):
                return False
        os.link(source, target)
    except (UserError, OSError):
        return False
    return True
