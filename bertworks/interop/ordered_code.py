"""The key under which a part of a partitioned variable is stored: its name and its place, in an order-keeping code.

The code is made so that comparing bytes compares names and numbers; nobody needs that here, but the key must be
byte for byte the one that TensorFlow writes. A key begins with a zero byte, which no variable's name does.
"""

from collections.abc import Sequence

FULL_EXTENT = -1  # as a length: everything along this axis


def slice_key(name: str, extents: Sequence[tuple[int, int]]) -> bytes:
    """Return the key of the part of a variable that begins at each start and has each length."""
    numbers = b"".join(_signed(number) for extent in extents for number in extent)
    # The code escapes zero bytes and bytes of 255, and no UTF-8 has the latter.
    text = name.encode().replace(b"\0", b"\0\xff") + b"\0\1"
    return _unsigned(0) + text + _unsigned(len(extents)) + numbers


def _unsigned(number: int) -> bytes:
    size = (number.bit_length() + 7) // 8
    return bytes([size]) + number.to_bytes(size, "big")


def _signed(number: int) -> bytes:
    """As many leading ones as there are bytes, then the number; a negative one has every bit turned."""
    size = (number if number >= 0 else ~number).bit_length() // 7 + 1
    bits = number & (1 << 8 * size) - 1
    return (bits ^ ((1 << size) - 1) << 7 * size).to_bytes(size, "big")
