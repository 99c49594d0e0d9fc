"""One thread for the demo's small models: on a busy machine two took 100 to 244 ms for a step that one does in 26."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute with one thread while the block runs."""
    import torch

    usual = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(usual)
