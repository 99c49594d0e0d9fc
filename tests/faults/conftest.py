"""One thread: a forked child has no threads but its own, and tiny networks need no others."""

import sys
from pathlib import Path

import pytest
import tiny_runs
import torch

sys.path.append(str(Path(__file__).parents[1] / "train"))  # the tiny runs of other tests


@pytest.fixture(autouse=True, scope="package")
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return tiny_runs.write_data(tmp_path_factory.mktemp("tiny") / "run")
