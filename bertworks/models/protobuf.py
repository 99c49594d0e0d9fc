"""The little of Protocol Buffers that checkpoints and event files are made of: numbers, messages, checksums.

- Bytes come from outside, so each length is checked against what is there before anything is taken, and a number has
  one form only (no trailing zero groups): then a changed bit is a changed value.
- CRC-32C (Castagnoli) stands after every block and tensor of a TensorFlow checkpoint. Sixteen bytes a step go through
  sixteen tables of 256 entries: the bytes of a step do not wait for each other, which makes it 2.5 GB a second where a
  byte a step makes 0.45. The first call compiles it, in a fraction of a second.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import CorruptFile
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
