"""A sorted table of keys and values in one file, as LevelDB made it and TensorFlow uses it for a checkpoint's index.

Blocks lie end to end: data blocks, a block about the table itself (empty here), and an index block whose values say
where each data block lies; 48 bytes at the end say where the last two are. Each block is followed by its kind and a
checksum of both. A block holds its entries in the order of their keys, each without the bytes that it shares with the
key before.

Reading is strict: blocks must fill the file without gap or overlap, checksums must hold, keys must ascend. So every
byte is checked by something, and nothing can point in circles. What keys expand to is bounded, for sharing could make
gigabytes of a small file.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bertworks.errors import CorruptFile
from bertworks.interop.crc32c import crc32c, masked
from bertworks.interop.protobuf import read_varint, write_varint

# The largest BERT with its optimizer's state has 1,200 tensors, in 0.1 MB; this many are read in half a second.
MAX_TABLE_BYTES, _MAX_ENTRIES = 1 << 20, 20_000
_MAX_KEY_BYTES = 1 << 12
_MAX_EXPANSION = 8
_MAGIC = 0xDB4775248B80FB57.to_bytes(8, "little")
_FOOTER_BYTES = 48
_TRAILER_BYTES = 5
_UNCOMPRESSED = 0


class _Handle(NamedTuple):
    offset: int
    size: int

    @property
    def end(self) -> int:
        return self.offset + self.size + _TRAILER_BYTES


def read_table(table: bytes) -> list[tuple[bytes, bytes]]:
    """Return all keys with their values, or raise CorruptFile with the reason."""
    if len(table) > MAX_TABLE_BYTES:
        raise CorruptFile(f"{len(table):,} bytes are too many for an index; at most {MAX_TABLE_BYTES:,}")
    metaindex, index = _read_footer(table[-_FOOTER_BYTES:])
    blocks = [_read_handle(value, 0)[0] for _, value in _entries(_read_block(table, index))]
    _check_tiling([*blocks, metaindex, index], len(table) - _FOOTER_BYTES)
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


def _read_footer(footer: bytes) -> tuple[_Handle, _Handle]:
    if len(footer) < _FOOTER_BYTES or not footer.endswith(_MAGIC):
        raise CorruptFile("it does not end as an index does: truncated, or another kind of file")
    metaindex, position = _read_handle(footer, 0)
    index, position = _read_handle(footer, position)
    if position > _FOOTER_BYTES - len(_MAGIC) or any(footer[position : -len(_MAGIC)]):
        raise CorruptFile("its last bytes do not say where its blocks are")
    return metaindex, index


def _read_handle(data: bytes, position: int) -> tuple[_Handle, int]:
    offset, position = read_varint(data, position)
    size, position = read_varint(data, position)
    return _Handle(offset, size), position


def _check_tiling(handles: Sequence[_Handle], end: int) -> None:
    position = 0
    for handle in handles:
        if handle.offset != position:
            raise CorruptFile("its blocks do not lie end to end")
        position = handle.end
    if position != end:
        raise CorruptFile("its blocks do not fill it")


def _read_block(table: bytes, handle: _Handle) -> bytes:
    if handle.end > len(table) - _FOOTER_BYTES:
        raise CorruptFile(f"a block at {handle.offset:,} of {handle.size:,} bytes goes past its end")
    block = table[handle.offset : handle.offset + handle.size]
    kind, checksum = table[handle.end - _TRAILER_BYTES], table[handle.end - 4 : handle.end]
    if masked(crc32c(block + bytes([kind]))) != int.from_bytes(checksum, "little"):
        raise CorruptFile(f"the checksum of the block at {handle.offset:,} is wrong")
    if kind != _UNCOMPRESSED:
        raise CorruptFile(f"the block at {handle.offset:,} is compressed (kind {kind}); TensorFlow never does that")
    return block


def _entries(block: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Give a block's keys and values; the list of restarts behind them serves only those who search by halving."""
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
    index = _write_block([(entries[-1][0], _handle_bytes(0, data))])
    footer = _handle_bytes(len(data), metaindex) + _handle_bytes(len(data) + len(metaindex), index)
    return data + metaindex + index + footer.ljust(_FOOTER_BYTES - len(_MAGIC), b"\0") + _MAGIC


def _handle_bytes(offset: int, block: bytes) -> bytes:
    return write_varint(offset) + write_varint(len(block) - _TRAILER_BYTES)


def _write_block(entries: Sequence[tuple[bytes, bytes]]) -> bytes:
    block, restarts = bytearray(), [0] * (not entries)  # LevelDB expects one restart at least
    for key, value in entries:
        restarts.append(len(block))
        block += write_varint(0) + write_varint(len(key)) + write_varint(len(value)) + key + value
    for number in (*restarts, len(restarts)):
        block += number.to_bytes(4, "little")
    block.append(_UNCOMPRESSED)
    return bytes(block) + masked(crc32c(bytes(block))).to_bytes(4, "little")
