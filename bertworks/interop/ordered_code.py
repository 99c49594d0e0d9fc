"""The key under which a part of a partitioned variable is stored: its name and its place, in an order-keeping code.

The code is made so that comparing bytes compares names and numbers; nobody needs that here, but the key must be
byte for byte the one that TensorFlow writes. A key begins with a zero byte, which no variable's name does.
"""

from collections.abc import Sequence

FULL_EXTENT = -1  # as a length: everything along this axis


def slice_key(name: str, extents: Sequence[tuple[int, int]]) -> bytes:
    """Return the key of the part of a variable that begins at each start and has each length."""
    numbers = b"".join(_signed(number) for extent in extents for number in extent)
    return _unsigned(0) + _text(name.encode()) + _unsigned(len(extents)) + numbers


def _unsigned(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _text(text: bytes) -> bytes:
    # In one pass: the second of two replacements would meet what the first has put in.
    escapes = {0x00: b"\x00\xff", 0xFF: b"\xff\x00"}
    return b"".join(escapes.get(byte, bytes([byte])) for byte in text) + b"\x00\x01"


def _signed(number: int) -> bytes:
    """As many leading ones as there are bytes, then the number; a negative one has every bit turned."""
    size = (number if number >= 0 else ~number).bit_length() // 7 + 1
    bits = number & (1 << 8 * size) - 1
    return (bits ^ ((1 << size) - 1) << 7 * size).to_bytes(size, "big")
