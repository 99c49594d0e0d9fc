"""Prefetching changes when items are made, and nothing else."""

import threading
import time

import pytest
from patience import wait_until

from bertworks.data.workers import prefetch_batches as prefetch
from bertworks.errors import CorruptFile


def prefetch_threads():
    return [thread for thread in threading.enumerate() if thread.name == "prefetch"]


@pytest.mark.parametrize("depth", [1, 8])
def test_the_same_items_come_in_the_same_order(depth):
    assert list(prefetch(iter(range(1000)), depth)) == list(range(1000))


def test_items_are_made_ahead_but_not_more_than_the_depth():
    made = []

    def items():
        for number in range(100):
            made.append(number)
            yield number

    ahead = prefetch(items(), depth=3)
    assert next(ahead) == 0
    wait_until(lambda: len(made) >= 4)
    time.sleep(0.05)
    assert len(made) <= 5  # one used, three in the queue, one in the thread's hand


def test_an_error_comes_behind_the_items_before_it():
    def items():
        yield 1
        raise CorruptFile("shard 7 was altered")

    ahead = prefetch(items())
    assert next(ahead) == 1
    with pytest.raises(CorruptFile, match="shard 7"):
        next(ahead)


def test_the_thread_ends_when_nobody_wants_more():
    ahead = prefetch(iter(int, 1), depth=2)
    next(ahead)
    assert prefetch_threads()
    ahead.close()
    wait_until(lambda: not prefetch_threads())
