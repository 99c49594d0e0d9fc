import pytest
import tiny_runs
import torch


@pytest.fixture(autouse=True)
def _one_thread():
    """One thread: these networks are too small for two, and forked children must not meet a pool of threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    return tiny_runs.write_data(tmp_path_factory.mktemp("tiny") / "run")


@pytest.fixture(scope="session")
def other_data(data, tmp_path_factory):
    """Prepared data by the kind of model that reads it."""
    folder = tmp_path_factory.mktemp("others")
    return {"bert": data} | {kind: tiny_runs.write_data(folder / kind, kind) for kind in ("gpt", "elmo")}
