"""One demo in miniature, run once for all tests here."""

from types import SimpleNamespace

import pytest
from small_models import write_small_model
from tiny_demo import in_miniature, shown

TOLD = {"language": "en", "trained_on": "tales of a cat", "mlm_accuracy": 0.5123}


@pytest.fixture(scope="session")
def fake_shipped(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shipped")
    for name in ("mini", "mini-ko"):
        write_small_model(folder / name, about={"shipped": TOLD}, max_position_embeddings=128)
    return folder


@pytest.fixture(scope="session")
def demo(tmp_path_factory, fake_shipped):
    """A demo that is over: its folder, and what it wrote."""
    folder = tmp_path_factory.mktemp("demo") / "bertworks-demo"
    with in_miniature(fake_shipped):
        text = shown(out=folder)
    return SimpleNamespace(folder=folder, text=text, shipped=fake_shipped, page=folder / "report.html")
