"""TensorFlow's checkpoint of named tensors ("tensor bundle", version 2), read and written without TensorFlow.

- `PREFIX.index` is a sorted table with each tensor's type, shape, position and checksum; the numbers are in
  `PREFIX.data-00000-of-00001` and further such files. A variable that was split over machines is stored as parts under
  keys of their own, and is returned whole here.
- The table is LevelDB's: blocks lie end to end: data blocks, a block about the table itself (empty here), and an index
  block whose values say where each data block lies; 48 bytes at the end say where the last two are. Each block is
  followed by its kind and a checksum of both. A block holds its entries in the order of their keys, each without the
  bytes that it shares with the key before.
- The messages are BundleHeaderProto (under the empty key) and BundleEntryProto of TensorFlow's tensor_bundle.proto.
- Reading is strict: blocks must fill the file without gap or overlap, checksums must hold, keys must ascend. So every
  byte is checked by something, and nothing can point in circles. What keys expand to is bounded, for sharing could make
  gigabytes of a small file. Types and shapes must agree with sizes, and parts must fill their whole as a grid, which is
  the only way TensorFlow splits a variable.
- Everything is checked against the real sizes of the files before memory is allocated, and each tensor against its
  checksum as it is read: in pieces that stay in the processor's cache, so that checking costs no second pass over
  memory.
- Tensors are read and not mapped: a mapped file that is cut short under its reader kills the process.
- It is written here because only TensorFlow itself reads these files.
- Messages are Protocol Buffers'. Bytes come from outside, so each length is checked against what is there before
  anything is taken, and a number has one form only (no trailing zero groups): then a changed bit is a changed value.
- CRC-32C (Castagnoli) stands after every block and tensor. Sixteen bytes a step go through sixteen tables of 256
  entries: the bytes of a step do not wait for each other, which makes it 2.5 GB a second where a byte a step makes
  0.45. The first call compiles it, in a fraction of a second.
"""

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import CorruptFile, UserError, did_you_mean
from bertworks.files import atomic_write
from bertworks.text.fast import compiled

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}
_POLYNOMIAL = 0x82F63B78  # bits reversed
_STEP = 16
_MASK_DELTA = 0xA282EAD8


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, below 2^64, and the position after it."""
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1  # nearly all of them
    value = 0
    for index, byte in enumerate(data[position : position + _MAX_VARINT_BYTES]):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if value >> 64 or (index and not byte):
                break
            return value, position + index + 1
    raise CorruptFile("a number that does not end, is too large or is not in its shortest form")


def write_varint(value: int) -> bytes:
    """Return a number of 0 or more, seven bits a byte."""
    assert value >= 0
    written = bytearray()
    while value >= 0x80:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    written.append(value)
    return bytes(written)


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Give each field of a message as its number and its value: unsigned, or bytes where it has a length."""
    position = 0
    while position < len(message):
        tag, position = read_varint(message, position)
        wire_type = tag & 7
        value: int | bytes
        if wire_type == VARINT:
            value, position = read_varint(message, position)
        elif wire_type in (*_FIXED_SIZES, BYTES):
            size = _FIXED_SIZES.get(wire_type, 0)
            if wire_type == BYTES:
                size, position = read_varint(message, position)
            if size > len(message) - position:
                raise CorruptFile(f"a field of {size:,} bytes where {len(message) - position:,} are left")
            content = message[position : position + size]
            value = content if wire_type == BYTES else int.from_bytes(content, "little")
            position += size
        else:
            raise CorruptFile(f"a field of the unknown kind {wire_type}")
        yield tag >> 3, value


def varint_field(number: int, value: int) -> bytes:
    """Return a field with a number of 0 or more; 0 is what an absent field means, and takes no bytes."""
    return write_varint(number << 3 | VARINT) + write_varint(value) if value else b""


def fixed32_field(number: int, value: int) -> bytes:
    """Return a field with four bytes."""
    return write_varint(number << 3 | FIXED32) + value.to_bytes(4, "little")


def fixed64_field(number: int, value: int) -> bytes:
    """Return a field with eight bytes."""
    return write_varint(number << 3 | FIXED64) + value.to_bytes(8, "little")


def bytes_field(number: int, value: bytes) -> bytes:
    """Return a field with a text or a message in it, empty ones too."""
    return write_varint(number << 3 | BYTES) + write_varint(len(value)) + value


def _make_tables() -> NDArray[np.uint32]:
    """Return table k, by byte: what the byte does to the remainder with k zero bytes after it."""
    tables = np.zeros((_STEP, 256), np.uint32)
    tables[0] = np.arange(256)
    for _ in range(8):
        tables[0] = (tables[0] >> 1) ^ np.where(tables[0] & 1, np.uint32(_POLYNOMIAL), np.uint32(0))
    for k in range(1, _STEP):
        tables[k] = (tables[k - 1] >> 8) ^ tables[0][tables[k - 1] & 0xFF]
    return tables


_TABLES = _make_tables()


@compiled
def _update(state: Any, data: Any, tables: Any) -> Any:
    whole = len(data) - len(data) % _STEP
    for start in range(0, whole, _STEP):
        # Unsigned positions: numba would ask of each signed one whether it counts from the end.
        at = np.uint64(start)
        mixed = np.uint32(0)
        for k in range(4):
            byte = data[at + np.uint64(k)] ^ np.uint8((state >> np.uint32(8 * k)) & np.uint32(0xFF))
            mixed ^= tables[_STEP - 1 - k, byte]
        for k in range(4, _STEP):
            mixed ^= tables[_STEP - 1 - k, data[at + np.uint64(k)]]
        state = mixed
    for index in range(whole, len(data)):
        state = (state >> np.uint32(8)) ^ tables[0, np.uint8(state & np.uint32(0xFF)) ^ data[index]]
    return state


def crc32c(data: NDArray[np.uint8] | bytes, before: int = 0) -> int:
    """Return the checksum of bytes, or of bytes that follow others whose checksum is `before`."""
    # A copy of bytes, which are small here: for an array that cannot be written numba would compile once more.
    array = np.frombuffer(data, np.uint8).copy() if isinstance(data, bytes) else data
    return int(_update(np.uint32(before ^ 0xFFFFFFFF), array, _TABLES)) ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    """Return a checksum as it is stored: turned and shifted, because a checksum of checksums is weak."""
    return ((crc >> 15 | crc << 17) + _MASK_DELTA) & 0xFFFFFFFF


# The largest BERT with its optimizer's state has 1,200 tensors, in 0.1 MB; this many are read in half a second.
MAX_TABLE_BYTES, _MAX_ENTRIES = 1 << 20, 20_000
_MAX_KEY_BYTES = 1 << 12
_MAX_EXPANSION = 8
_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_UNCOMPRESSED = 0
FULL_EXTENT = -1  # as a length: everything along this axis
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
_PIECE_BYTES = 1 << 18
_TYPE_NUMBERS = {dtype: number for number, dtype in NUMPY_TYPES.items() if number != BFLOAT16}
_HEADER = varint_field(1, 1) + bytes_field(3, varint_field(1, 1))  # one data file; written by format version 1


def read_table(table: bytes) -> list[tuple[bytes, bytes]]:
    """Return all keys with their values, or raise CorruptFile with the reason."""
    if len(table) > MAX_TABLE_BYTES:
        raise CorruptFile(f"{len(table):,} bytes are too many for an index; at most {MAX_TABLE_BYTES:,}")
    footer = table[-_FOOTER_BYTES:]
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise CorruptFile("it does not end as an index does: truncated, or another kind of file")
    metaindex, position = _read_handle(footer, 0)
    index, position = _read_handle(footer, position)
    if position > _FOOTER_BYTES - len(_MAGIC) or any(footer[position : -len(_MAGIC)]):
        raise CorruptFile("its last bytes do not say where its blocks are")
    blocks = [_read_handle(value, 0)[0] for _, value in _entries(_read_block(table, index))]
    position = 0
    for handle in (*blocks, metaindex, index):
        if handle[0] != position:
            raise CorruptFile("its blocks do not lie end to end")
        position += handle[1] + _TRAILER_BYTES
    if position != len(table) - _FOOTER_BYTES:
        raise CorruptFile("its blocks do not fill it")
    _read_block(table, metaindex)
    entries: list[tuple[bytes, bytes]] = []
    expanded = 0
    for block in blocks:
        for key, value in _entries(_read_block(table, block)):
            expanded += len(key)
            if entries and key <= entries[-1][0]:
                raise CorruptFile("its keys are not in ascending order")
            if expanded > _MAX_EXPANSION * len(table) or len(entries) == _MAX_ENTRIES:
                raise CorruptFile(f"its keys are more than {_MAX_ENTRIES:,}, or expand to far more than the file holds")
            entries.append((key, value))
    return entries


def _read_handle(data: bytes, position: int) -> tuple[tuple[int, int], int]:
    """Return where a block lies and how large it is, and where the next number begins."""
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return (offset, size), position


def _read_block(table: bytes, handle: tuple[int, int]) -> bytes:
    (offset, size), end = handle, sum(handle) + _TRAILER_BYTES
    if end > len(table) - _FOOTER_BYTES:
        raise CorruptFile(f"a block at {offset:,} of {size:,} bytes goes past its end")
    block = table[offset : offset + size]
    kind, checksum = table[end - _TRAILER_BYTES], table[end - 4 : end]
    if masked(crc32c(block + bytes([kind]))) != int.from_bytes(checksum, "little"):
        raise CorruptFile(f"the checksum of the block at {offset:,} is wrong")
    if kind != _UNCOMPRESSED:
        raise CorruptFile(f"the block at {offset:,} is compressed (kind {kind}); TensorFlow never does that")
    return block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give a block's keys and values; the list of restarts after them serves binary search only."""
    end = len(block) - 4 * (1 + int.from_bytes(block[-4:], "little"))
    if len(block) < 4 or end < 0:
        raise CorruptFile("a block has no room for its list of restarts")
    block, position, key = block[:end], 0, b""
    while position < end:
        shared, position = read_varint(block, position)
        fresh, position = read_varint(block, position)
        size, position = read_varint(block, position)
        if shared > len(key) or shared + fresh > _MAX_KEY_BYTES or fresh + size > end - position:
            raise CorruptFile("an entry does not fit its block")
        key = key[:shared] + block[position : position + fresh]
        position += fresh
        yield key, block[position : position + size]
        position += size


def write_table(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    """Return a table of entries in ascending order: one data block, nothing shared between keys."""
    assert all(before[0] < after[0] for before, after in itertools.pairwise(entries))
    data, metaindex = _write_block(entries), _write_block([])
    handles = [
        write_varint(offset) + write_varint(len(block) - _TRAILER_BYTES)
        for offset, block in ((0, data), (len(data), metaindex))
    ]
    index = _write_block([(entries[-1][0], handles[0])])
    footer = handles[1] + write_varint(len(data) + len(metaindex)) + write_varint(len(index) - _TRAILER_BYTES)
    return data + metaindex + index + footer.ljust(_FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC


def _write_block(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    block, restarts = bytearray(), [0] * (not entries)  # LevelDB expects one restart at least
    for key, value in entries:
        restarts.append(len(block))
        block += write_varint(0) + write_varint(len(key)) + write_varint(len(value)) + key + value
    for number in (*restarts, len(restarts)):
        block += number.to_bytes(4, "little")
    block.append(_UNCOMPRESSED)
    return bytes(block) + masked(crc32c(bytes(block))).to_bytes(4, "little")


def slice_key(name: str, extents: Sequence[tuple[int, int]]) -> bytes:
    """Return the key of the part of a variable that begins at each start and has each length.

    The code is made so that comparing bytes compares names and numbers. That is not needed here, but the key must be
    TensorFlow's, byte for byte. A key begins with a zero byte, unlike any variable's name.
    """

    def unsigned(number: int) -> bytes:
        size = (number.bit_length() + 7) // 8
        return bytes([size]) + number.to_bytes(size, "big")

    def signed(number: int) -> bytes:
        # As many leading ones as there are bytes, then the number; a negative one has every bit turned.
        size = (number if number >= 0 else ~number).bit_length() // 7 + 1
        bits = number & (1 << 8 * size) - 1
        return (bits ^ ((1 << size) - 1) << 7 * size).to_bytes(size, "big")

    # The code escapes zero bytes and bytes of 255, and no UTF-8 has the latter.
    text = name.encode().replace(b"\0", b"\0\xff") + b"\0\1"
    numbers = b"".join(signed(number) for extent in extents for number in extent)
    return unsigned(0) + text + unsigned(len(extents)) + numbers


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
    if b"" not in raw:
        raise CorruptFile("it has no header")
    header = _Fields(raw.pop(b""))
    if header.number(2) == _BIG_ENDIAN:
        raise CorruptFile("its numbers are big-endian, which is not supported; write it again on a usual machine")
    num_shards = header.number(1)
    if not 1 <= num_shards <= _MAX_SHARDS:
        raise CorruptFile(f"{num_shards:,} data files are not possible")
    entries = {}
    for key, value in raw.items():
        if not key.startswith(b"\0"):
            try:
                name = key.decode()
            except UnicodeDecodeError as error:
                raise CorruptFile(f"the name {key[:80]!r} is not UTF-8") from error
            entry, places = _read_entry(name, value, num_shards)
            entries[name] = _with_parts(name, entry, places, raw, num_shards) if places else entry
    return entries, num_shards


def _read_entry(name: str, message: bytes, num_shards: int, *, is_part: bool = False) -> tuple[Entry, list[Place]]:
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
    if (is_part or not places) and entry.type_number in NUMPY_TYPES:
        stored_bytes = 2 if entry.type_number == BFLOAT16 else NUMPY_TYPES[entry.type_number].itemsize
        if entry.size != entry.num_elements * stored_bytes:
            raise CorruptFile(f"{name[:80]!r} of shape {list(entry.shape)} has {entry.size:,} bytes")
    return entry, places


class _Fields:
    """The fields of a message by number; unknown ones are ignored."""

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
        part, _ = _read_entry(name, part_bytes, num_shards, is_part=True)
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


class Bundle:
    """A checkpoint that was opened: its index is read and checked, its tensors are read on demand."""

    def __init__(self, prefix: str | os.PathLike[str]) -> None:
        """Open a checkpoint by what its files' names begin with, such as "model/bert_model.ckpt"."""
        self.prefix = Path(prefix)
        self._entries, self._num_shards = read_index(self.prefix.with_name(self.prefix.name + ".index"))
        _check_places(self._parts(), self._shard_path)

    def names(self) -> list[str]:
        """Return the names of all tensors of numbers, in order."""
        return [name for name, entry in self._entries.items() if entry.type_number in NUMPY_TYPES]

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of a tensor, of a partitioned one the whole."""
        return self._entry(name).shape

    def dtype(self, name: str) -> np.dtype[Any]:
        """Return the type that `read` gives: bfloat16, which numpy does not know, comes as float32."""
        return NUMPY_TYPES[self._entry(name).type_number]

    def read(self, name: str) -> NDArray[Any]:
        """Return a tensor as an array of its own, or raise CorruptFile if its checksum is wrong."""
        entry = self._entry(name)
        if not entry.parts:
            return self._read_part(name, entry)
        whole = np.empty(entry.shape, NUMPY_TYPES[entry.type_number])
        for place, part in entry.parts:
            whole[tuple(slice(start, start + length) for start, length in place)] = self._read_part(name, part)
        return whole

    def files(self) -> list[Path]:
        """Return the files that the checkpoint consists of."""
        shards = sorted({entry.shard for _, entry in self._parts()})
        return [self.prefix.with_name(self.prefix.name + ".index"), *map(self._shard_path, shards)]

    def _entry(self, name: str) -> Entry:
        if name not in self._entries:
            raise UserError(f"{self.prefix} has no tensor {name!r}{did_you_mean(name, self.names())}")
        entry = self._entries[name]
        if entry.type_number not in NUMPY_TYPES:
            kind = TYPE_NAMES.get(entry.type_number, f"values of type {entry.type_number}")
            raise UserError(f"{self.prefix}: {name[:80]!r} holds {kind}, not numbers")
        return entry

    def _parts(self) -> list[tuple[str, Entry]]:
        whole = [(name, entry) for name, entry in self._entries.items() if not entry.parts]
        return whole + [(name, part) for name, entry in self._entries.items() for _, part in entry.parts]

    def _shard_path(self, shard: int) -> Path:
        return self.prefix.with_name(f"{self.prefix.name}.data-{shard:05d}-of-{self._num_shards:05d}")

    def _read_part(self, name: str, entry: Entry) -> NDArray[Any]:
        stored = NUMPY_TYPES[entry.type_number]
        # bfloat16 is the upper half of a float32: room for the latter, and the former read into the end of it.
        room = np.empty(entry.num_elements * stored.itemsize, np.uint8)
        raw = room[len(room) - entry.size :]
        self._fill(raw, name, entry)
        if entry.type_number == BFLOAT16:
            _widen_in_place(room)
        numbers = room != 0 if stored == np.bool_ else room.view(stored)
        return numbers.reshape(entry.shape)

    def _fill(self, raw: NDArray[np.uint8], name: str, entry: Entry) -> None:
        path = self._shard_path(entry.shard)
        checksum = 0
        try:
            with open(path, "rb", buffering=0) as stream:
                stream.seek(entry.offset)
                for start in range(0, entry.size, _PIECE_BYTES):
                    piece = raw[start : start + _PIECE_BYTES]
                    if stream.readinto(piece.data) != len(piece):
                        raise CorruptFile(f"{path} ends inside {name[:80]!r}")
                    checksum = crc32c(piece, checksum)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror}") from error
        if masked(checksum) != entry.checksum:
            raise CorruptFile(f"{path} is damaged: the checksum of {name[:80]!r} is wrong")


def _widen_in_place(room: NDArray[np.uint8]) -> None:
    """Make float32 of the bfloat16 in the upper half, from the front: what is written never passes what is read."""
    wide = room.view(np.uint32)
    narrow = room.view(np.uint16)[len(wide) :]
    for start in range(0, len(wide), _PIECE_BYTES // 4):
        piece = slice(start, start + _PIECE_BYTES // 4)
        wide[piece] = narrow[piece].astype(np.uint32) << 16


def _check_places(parts: list[tuple[str, Entry]], shard_path: Callable[[int], Path]) -> None:
    """Refuse tensors outside their file or on each other: so all together they need no more memory than the files."""
    last_shard, end, size = -1, 0, 0
    for name, entry in sorted(parts, key=lambda part: (part[1].shard, part[1].offset, part[1].size)):
        if entry.shard != last_shard:
            if not (path := shard_path(entry.shard)).is_file():
                raise CorruptFile(f"{path} is missing, but the checkpoint's index refers to it")
            last_shard, end, size = entry.shard, 0, path.stat().st_size
        if entry.offset < end or entry.offset + entry.size > size:
            fault = "overlaps another tensor" if entry.offset < end else f"goes past its end, {size:,} bytes"
            raise CorruptFile(f"{shard_path(last_shard)} is damaged or not of this index: {name[:80]!r} {fault}")
        end = entry.offset + entry.size


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
        for key, name in sorted((name.encode(), name) for name in tensors):
            if not name or name.startswith("\0"):
                raise UserError(f"{name[:80]!r} cannot be the name of a tensor")
            numbers = np.asarray(tensors[name])
            stored = numbers.dtype.newbyteorder("<")
            if stored not in _TYPE_NUMBERS:
                known = ", ".join(sorted(dtype.name for dtype in _TYPE_NUMBERS))
                raise UserError(f"{name[:80]!r} has the type {numbers.dtype}; a checkpoint is written of {known}")
            raw = np.asarray(numbers, stored, order="C").reshape(-1).view(np.uint8)
            stream.write(raw.data)
            shape = b"".join(bytes_field(2, varint_field(1, dim)) for dim in numbers.shape)
            entries.append((key, b"".join([
                varint_field(1, _TYPE_NUMBERS[stored]), bytes_field(2, shape), varint_field(4, offset),
                varint_field(5, len(raw)), fixed32_field(6, masked(crc32c(raw))),
            ])))  # fmt: skip
            offset += len(raw)
    with atomic_write(index_path, "wb") as stream:
        stream.write(write_table(entries))
