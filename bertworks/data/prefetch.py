"""Batches made ahead of time in a thread, so that whoever trains never waits for one.

Filling a batch is compiled code that lets other threads run, and one core makes more tokens than a GPU takes: there is
no need of worker processes, and so nothing that could die alone. The state comes with its batch: what was made ahead
and not used is no part of it.
"""

import queue
import threading
from collections.abc import Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")
_CHECK_S = 0.2  # how often the thread looks whether anybody still wants its items


class _Ended(Generic[Item]):
    """The last thing in the queue: the items are at an end, or making one failed."""

    def __init__(self, error: BaseException | None) -> None:
        self.error = error


def prefetch(items: Iterator[Item], depth: int = 4) -> Iterator[Item]:
    """Give the same items in the same order, up to `depth` of them made ahead; an error comes where it arose."""
    ready: queue.Queue[Item | _Ended[Item]] = queue.Queue(depth)
    is_wanted = threading.Event()
    is_wanted.set()
    threading.Thread(target=_make_ahead, args=(items, ready, is_wanted), name="prefetch", daemon=True).start()
    try:
        while not isinstance(item := ready.get(), _Ended):
            yield item
        if item.error:
            raise item.error
    finally:
        is_wanted.clear()


def _make_ahead(items: Iterator[Item], ready: "queue.Queue[Item | _Ended[Item]]", is_wanted: threading.Event) -> None:
    try:
        for item in items:
            if not _put(item, ready, is_wanted):
                return
        _put(_Ended(None), ready, is_wanted)
    except BaseException as error:  # whatever it is, it belongs to the one who waits for the item
        _put(_Ended(error), ready, is_wanted)


def _put(item: Item | _Ended[Item], ready: "queue.Queue[Item | _Ended[Item]]", is_wanted: threading.Event) -> bool:
    while is_wanted.is_set():
        try:
            ready.put(item, timeout=_CHECK_S)
        except queue.Full:
            continue
        return True
    return False
