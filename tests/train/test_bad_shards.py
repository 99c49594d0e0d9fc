"""F7: a run over data with bad shards names them, or goes on without them if it is told to."""

import pytest
import tiny_runs
import torch

from bertworks.data import prepare as units
from bertworks.data.loader import State
from bertworks.data.shards import Dataset
from bertworks.errors import CorruptFile
from bertworks.train.distributed import Ranks
from bertworks.train.pretrain import Feed, pretrain


@pytest.fixture
def shards(tmp_path, monkeypatch):
    """Data in several shards; the tokens of each but the first can be spoilt."""
    monkeypatch.setattr(units, "UNIT_BYTES", 4_000)
    data = tiny_runs.write_data(tmp_path / "made")
    return data, sorted(data.glob("train-*.tokens.npy"))


def spoil(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_run_names_the_bad_shard_or_leaves_it_out(bertworks, shards, tmp_path, caplog):
    data, files = shards
    assert len(files) >= 3
    spoil(files[1])
    settings = tiny_runs.recipe(train__max_steps=30)
    with pytest.raises(CorruptFile, match=rf"{files[1].name} was altered"):
        pretrain(settings, data=data, out=tmp_path / "stopped", device="cpu")
    outcome = pretrain(settings, data=data, out=tmp_path / "run", device="cpu", skip_bad_shards=True)
    assert outcome.progress.step == 30
    assert f"bad shard left out: {files[1]} was altered" in caplog.text
    arguments = ("pretrain", tmp_path / "run/recipe.toml", "--data", data, "--out", tmp_path / "run", "--resume")
    code, out, _ = bertworks(*arguments, "--skip-bad-shards")
    assert (code, "finished after 30 steps" in out) == (0, True)


def test_a_run_that_meets_a_bad_shard_may_go_on_without_it(shards, tmp_path):
    data, files = shards
    settings = tiny_runs.recipe(train__max_steps=60, train__save_every=1)
    spoil(files[-1])
    with pytest.raises(CorruptFile, match=files[-1].name):
        pretrain(settings, data=data, out=tmp_path / "run", device="cpu", resume=True)
    outcome = pretrain(settings, data=data, out=tmp_path / "run", device="cpu", resume=True, skip_bad_shards=True)
    assert outcome.progress.step == 60


def test_a_place_in_a_block_that_is_no_more_goes_on_with_the_next_epoch(shards):
    data, files = shards
    spoil(files[1])
    dataset = Dataset(data, skip_bad_shards=True)
    feed = Feed(tiny_runs.recipe(), dataset, torch.device("cpu"), Ranks(), ("mlm", "nsp"), flash=False, seeded=False)
    last = {"epoch": 3, "block": len(files) - 1, "offset": 2, "length": 32}
    assert feed._opened(last) == (State(4, 0, 0), 32)
    assert feed._opened(last | {"block": 0}) == (State(3, 0, 2), 32)
