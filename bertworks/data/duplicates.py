"""Which documents were seen before, in about twenty bytes for each: 16 of its checksum, and some room.

Sixteen tables with open addressing, by the checksum's last bits: they grow one after another, so what growing needs for
a moment is a sixteenth of the whole. A Python set of the same checksums takes some hundred bytes for each.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.text.kernel import compiled

_NUM_TABLES = 16
_FIRST_ROWS = 1 << 10
_FULL = 0.9  # then it takes some five steps to find a free row
_GROWTH = 1.5
DIGEST_BYTES = 16


class SeenDigests:
    """A set of checksums of 16 bytes."""

    def __init__(self) -> None:
        self._tables = [np.zeros((_FIRST_ROWS, 2), np.uint64) for _ in range(_NUM_TABLES)]
        self._counts = [0] * _NUM_TABLES

    def add(self, digests: bytes) -> NDArray[np.bool_]:
        """Add checksums, end to end, and tell of each in turn whether it is there for the first time."""
        rows = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        is_new = np.zeros(len(rows), np.bool_)
        numbers = rows[:, 1] % np.uint64(_NUM_TABLES)
        for number in range(_NUM_TABLES):
            own = np.flatnonzero(numbers == number)
            self._make_room(number, len(own))
            is_new[own] = _insert(self._tables[number], rows[own])
            self._counts[number] += int(is_new[own].sum())
        return is_new

    @property
    def nbytes(self) -> int:
        """How much memory it takes."""
        return sum(table.nbytes for table in self._tables)

    def _make_room(self, number: int, more: int) -> None:
        table, needed = self._tables[number], self._counts[number] + more
        if needed <= len(table) * _FULL:
            return
        # By what is needed, not by what is there: a unit may have many documents, most of them seen before.
        larger = np.zeros((max(int(needed / _FULL) + 1, int(len(table) * _GROWTH)), 2), np.uint64)
        _insert(larger, table[table.any(axis=1)])
        self._tables[number] = larger


@compiled
def _insert(table: Any, digests: Any) -> Any:
    """Put checksums where there is a free row from their place on; tells which were not there. Zeros are free rows."""
    is_new = np.zeros(len(digests), np.bool_)
    for index in range(len(digests)):
        first, second = digests[index, 0], digests[index, 1]
        if first == 0 and second == 0:
            second = np.uint64(_NUM_TABLES)
        row = np.int64(first % np.uint64(len(table)))
        while (table[row, 0] != first or table[row, 1] != second) and (table[row, 0] != 0 or table[row, 1] != 0):
            row = (row + 1) % len(table)
        is_new[index] = table[row, 0] == 0 and table[row, 1] == 0
        table[row, 0], table[row, 1] = first, second
    return is_new
