"""What a checkpoint's index says: for each tensor its type, shape, place and checksum, or the parts it is split into.

The messages are BundleHeaderProto (under the empty key) and BundleEntryProto of TensorFlow's tensor_bundle.proto.
Types and shapes must agree with sizes, and parts must fill their whole as a grid, which is the only way TensorFlow
splits a variable; both are known before any tensor is read.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertworks.errors import CorruptFile, UserError
from bertworks.interop.ordered_code import FULL_EXTENT, slice_key
from bertworks.interop.protobuf import read_fields
from bertworks.interop.table import MAX_TABLE_BYTES, read_table

STRING, BFLOAT16 = 7, 14
# By the numbers of types.proto: the type that an array has here.
NUMPY_TYPES: dict[int, np.dtype[Any]] = {
    number: np.dtype(name).newbyteorder("<")
    for number, name in {
        1: "float32", 2: "float64", 3: "int32", 4: "uint8", 9: "int64", 10: "bool", BFLOAT16: "float32", 19: "float16",
    }.items()
}  # fmt: skip
TYPE_NAMES = {STRING: "text", 5: "int16", 6: "int8", 8: "complex64", 17: "uint16", 22: "uint32", 23: "uint64"}
_MAX_RANK = 32
_MAX_ELEMENTS = 1 << 40
_MAX_SHARDS = 100_000
_BIG_ENDIAN = 1

Place = tuple[tuple[int, int], ...]  # a start and a length for each axis


class Entry(NamedTuple):
    """A tensor or a part of one: what it is and where it lies."""

    type_number: int
    shape: tuple[int, ...]
    shard: int
    offset: int
    size: int
    checksum: int
    parts: tuple[tuple[Place, "Entry"], ...] = ()

    @property
    def num_elements(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


def read_index(path: Path) -> tuple[dict[str, Entry], int]:
    """Return the tensors of an index by name, and the number of data files; raise CorruptFile with what is wrong."""
    try:
        if path.stat().st_size > MAX_TABLE_BYTES:
            raise CorruptFile(f"{path} has {path.stat().st_size:,} bytes: too large for a checkpoint's index")
        content = path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for a path with a NUL
        reason = error.strerror if isinstance(error, OSError) else error
        raise UserError(f"cannot read the checkpoint's index {path}: {reason}") from error
    try:
        return _read_entries(content)
    except CorruptFile as error:
        raise CorruptFile(f"{path} is damaged: {error}") from error


def _read_entries(content: bytes) -> tuple[dict[str, Entry], int]:
    raw = dict(read_table(content))
    num_shards = _read_header(raw.pop(b"", None))
    entries = {}
    for key, value in raw.items():
        if not key.startswith(b"\0"):
            name = _text(key)
            entry, places = _read_entry(value, num_shards)
            entries[name] = _with_parts(name, entry, places, raw, num_shards) if places else _checked(name, entry)
    return entries, num_shards


def _text(key: bytes) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError as error:
        raise CorruptFile(f"the name {key[:80]!r} is not UTF-8") from error


def _read_header(header: bytes | None) -> int:
    if header is None:
        raise CorruptFile("it has no header")
    fields = _Fields(header)
    if fields.number(2) == _BIG_ENDIAN:
        raise CorruptFile("its numbers are big-endian, which is not supported; write it again on a usual machine")
    num_shards = fields.number(1)
    if not 1 <= num_shards <= _MAX_SHARDS:
        raise CorruptFile(f"{num_shards:,} data files are not possible")
    return num_shards


def _read_entry(message: bytes, num_shards: int) -> tuple[Entry, list[Place]]:
    """Return what an entry says, and the places of its parts as they are written, with lengths of FULL_EXTENT."""
    fields = _Fields(message)
    shape = tuple(_Fields(dim).number(1) for part in fields.messages(2) for dim in _Fields(part).messages(2))
    places = [
        tuple(
            (numbers.number(1), numbers.number(2, FULL_EXTENT)) for numbers in map(_Fields, _Fields(part).messages(1))
        )
        for part in fields.messages(7)
    ]
    entry = Entry(fields.number(1), shape, fields.number(3), fields.number(4), fields.number(5), fields.number(6))
    if entry.shard >= num_shards:
        raise CorruptFile(f"data file {entry.shard:,} of {num_shards:,}")
    if len(shape) > _MAX_RANK or math.prod(max(dim, 1) for dim in shape) > _MAX_ELEMENTS:
        raise CorruptFile(f"a tensor of {len(shape)} axes and {math.prod(shape):.3g} elements")
    return entry, places


class _Fields:
    """The fields of a message by number; those that nobody asks for are let be."""

    def __init__(self, message: bytes) -> None:
        self._fields: dict[int, list[int | bytes]] = {}
        for number, value in read_fields(message):
            self._fields.setdefault(number, []).append(value)

    def number(self, number: int, default: int = 0) -> int:
        """Return a number of 0 or more, or what its absence means; of several the last one counts."""
        value = self._fields.get(number, (default,))[-1]
        if not isinstance(value, int) or value >= 1 << 63:
            raise CorruptFile(f"field {number} is not a number of 0 or more")
        return value

    def messages(self, number: int) -> list[bytes]:
        """Return the messages or texts of a field that may stand several times."""
        found = [value for value in self._fields.get(number, ()) if isinstance(value, bytes)]
        if len(found) < len(self._fields.get(number, ())):
            raise CorruptFile(f"field {number} is not a message")
        return found


def _checked(name: str, entry: Entry) -> Entry:
    if entry.type_number in NUMPY_TYPES:
        stored_bytes = 2 if entry.type_number == BFLOAT16 else NUMPY_TYPES[entry.type_number].itemsize
        if entry.size != entry.num_elements * stored_bytes:
            raise CorruptFile(f"{name[:80]!r} of shape {list(entry.shape)} has {entry.size:,} bytes")
    return entry


def _with_parts(name: str, whole: Entry, places: list[Place], raw: dict[bytes, bytes], num_shards: int) -> Entry:
    """Look up the parts of a partitioned variable and check that they make it up."""
    parts = []
    for written in places:
        part_bytes = raw.get(slice_key(name, written))
        if part_bytes is None or len(written) != len(whole.shape):
            raise CorruptFile(f"a part of {name[:80]!r} is missing")
        place = tuple(
            (start, dim if length == FULL_EXTENT else length)
            for (start, length), dim in zip(written, whole.shape, strict=True)
        )
        part = _checked(name, _read_entry(part_bytes, num_shards)[0])
        if part.shape != tuple(length for _, length in place) or part.type_number != whole.type_number:
            raise CorruptFile(f"a part of {name[:80]!r} has another shape or type than its whole says")
        parts.append((place, part))
    if not _is_grid([place for place, _ in parts], whole.shape):
        raise CorruptFile(f"the parts of {name[:80]!r} do not make up its shape {list(whole.shape)}")
    return whole._replace(parts=tuple(parts))


def _is_grid(places: list[Place], shape: tuple[int, ...]) -> bool:
    """Tell whether places are all cells of one grid over a shape, each once."""
    num_cells = 1
    for axis, dim in enumerate(shape):
        end, lines = 0, sorted({place[axis] for place in places})
        for start, length in lines:
            if start != end:
                return False
            end += length
        if end != dim:
            return False
        num_cells *= len(lines)
    return len(set(places)) == len(places) == num_cells
