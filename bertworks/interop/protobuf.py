"""The little of Protocol Buffers that checkpoints and event files are made of: numbers, and messages in messages.

Bytes come from outside, so each length is checked against what is there before anything is taken, and a number has
one form only (no trailing zero groups): then a changed bit is a changed value.
"""

from collections.abc import Iterator

from bertworks.errors import CorruptFile

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_FIXED_SIZES = {FIXED64: 8, FIXED32: 4}


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    """Return the number at a position, below 2^64, and the position behind it."""
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
        elif wire_type in _FIXED_SIZES:
            value = int.from_bytes(_take(message, position, _FIXED_SIZES[wire_type]), "little")
            position += _FIXED_SIZES[wire_type]
        elif wire_type == BYTES:
            size, position = read_varint(message, position)
            value = _take(message, position, size)
            position += size
        else:
            raise CorruptFile(f"a field of the unknown kind {wire_type}")
        yield tag >> 3, value


def _take(message: bytes, position: int, size: int) -> bytes:
    if size > len(message) - position:
        raise CorruptFile(f"a field of {size:,} bytes where {len(message) - position:,} are left")
    return message[position : position + size]


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
