"""A set of checksums in little memory says the same as a Python set."""

import hashlib
import random
import tracemalloc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.data import prepare as duplicates
from bertworks.data.prepare import DIGEST_BYTES, SeenDigests


def digest_of(number):
    return hashlib.blake2b(str(number).encode(), digest_size=DIGEST_BYTES).digest()


def first_seen(batches):
    seen, expected = set(), []
    for batch in batches:
        expected.append([])
        for digest in batch:
            expected[-1].append(digest not in seen)
            seen.add(digest)
    return expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 60), max_size=40), max_size=8))
def test_it_says_what_a_python_set_says(numbers):
    batches = [[digest_of(number) for number in batch] for batch in numbers]
    seen = SeenDigests()
    assert [seen.add(b"".join(batch)).tolist() for batch in batches] == first_seen(batches)


def test_growing_forgets_nothing():
    rng = random.Random(0)
    batches = [[digest_of(rng.randrange(60_000)) for _ in range(rng.choice((1, 100, 9_000)))] for _ in range(40)]
    seen = SeenDigests()
    assert [seen.add(b"".join(batch)).tolist() for batch in batches] == first_seen(batches)
    assert all(table.any(axis=1).sum() == count for table, count in zip(seen._tables, seen._counts, strict=True))


def test_checksums_that_fall_on_one_place_are_kept_apart():
    """The same first word, zeros among them, and places at the end of a table."""
    places = (0, 1, duplicates._FIRST_ROWS - 1, 2**64 - 1)
    batch = [np.array((place, 16 * number), np.uint64).tobytes() for place in places for number in range(1, 90)] * 2
    assert SeenDigests().add(b"".join(batch)).tolist() == first_seen([batch])[0]


def test_a_checksum_of_zeros_is_one_too():
    seen = SeenDigests()
    assert seen.add(bytes(DIGEST_BYTES)).tolist() == [True]
    assert seen.add(bytes(DIGEST_BYTES) + digest_of(1)).tolist() == [False, True]


def test_nothing_added_is_nothing_new():
    assert SeenDigests().add(b"").tolist() == []


def test_a_document_takes_less_than_thirty_bytes():
    """A Python set of the same takes some hundred."""
    seen, count = SeenDigests(), 400_000
    rng = np.random.default_rng(0)
    tracemalloc.start()
    worst = 0.0
    for number in range(1, 41):
        seen.add(rng.integers(0, 2**64, (count // 40, 2), np.uint64).tobytes())
        if number > 5:
            worst = max(worst, seen.nbytes / (number * count / 40))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert seen.nbytes == sum(table.nbytes for table in seen._tables)
    assert worst < 30
    assert peak / count < 40
