"""TensorFlow's checkpoint of named tensors ("tensor bundle", version 2), read without TensorFlow.

`PREFIX.index` is a sorted table that tells of each tensor its type, shape, place and checksum; the numbers lie in
`PREFIX.data-00000-of-00001` and its like. A variable that was split over machines is stored as parts under keys of
their own, and is given whole here.

Everything is checked against the real sizes of the files before memory is asked for, and each tensor against its
checksum as it is read: in pieces that stay in the processor's cache, so that checking costs no second pass over memory.
Tensors are read and not mapped: a mapped file that is cut short under its reader kills the process.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import CorruptFile, UserError, did_you_mean
from bertworks.interop.bundle_index import BFLOAT16, NUMPY_TYPES, TYPE_NAMES, Entry, read_index
from bertworks.interop.crc32c import crc32c, masked

_PIECE_BYTES = 1 << 18


class Bundle:
    """A checkpoint that was opened: its index is read and checked, its tensors are read when asked for."""

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
            last_shard, end, size = entry.shard, 0, _size_of(shard_path(entry.shard))
        if entry.offset < end or entry.offset + entry.size > size:
            fault = "overlaps another tensor" if entry.offset < end else f"goes past its end, {size:,} bytes"
            raise CorruptFile(f"{shard_path(last_shard)} is damaged or not of this index: {name[:80]!r} {fault}")
        end = entry.offset + entry.size


def _size_of(path: Path) -> int:
    if not path.is_file():
        raise CorruptFile(f"{path} is missing, but the checkpoint's index refers to it")
    return path.stat().st_size
