"""The memory of a running loader does not grow with what it has given."""

import collections
import itertools
import sys
from pathlib import Path

import pytest
from numbered_corpus import make_loader, ordinary_lengths, write_corpus

from bertworks.data.workers import batches

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def last_state(found, count):
    (last,) = collections.deque(itertools.islice(found, count), maxlen=1)
    return last[1]


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("objective", ["mlm+nsp", "ltr"])
def test_memory_does_not_grow_over_thousands_of_batches_and_many_epochs(tmp_path, objective, workers):
    """A leak of one slice a batch, some 20 kB here, would be 60 MB."""
    numbered = write_corpus(tmp_path, ordinary_lengths(48), num_shards=4)
    found = batches(make_loader(numbered, tokens=1024, objective=objective), workers=workers)
    state_before = last_state(found, 500)
    before = resident_bytes()
    state = last_state(found, 3_000)
    grown = resident_bytes() - before
    found.close()
    assert state.epoch > state_before.epoch + 100
    assert grown < 4_000_000
