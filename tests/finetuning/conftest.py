import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """One thread: these networks are too small for two."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
