"""F15 and F16 in full: what is around a run does not change it. Fresh processes, from raw text to a trained model."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_runs

pytestmark = pytest.mark.faults
REPOSITORY = Path(__file__).resolve().parents[2]
WHOLE_WAY = """
import os, sys, time
from pathlib import Path

text, out, num_threads, jumps = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "jumps"
if jumps:  # the clock is set back a day every third time that somebody looks, the other one leaps an hour ahead
    looks, wall, steady = [0], time.time, time.monotonic
    def look():
        looks[0] += 1
        return looks[0]
    time.time = lambda: wall() - 86_400 * (look() // 3)
    time.monotonic = lambda: steady() + 3_600 * (look() // 50)

import torch
import tiny_runs
from bertworks.data.prepare import Options, prepare
from bertworks.text.corpus import Corpus
from bertworks.text.learn import learn_vocabulary
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.pretrain import pretrain

torch.set_num_threads(num_threads)
learned = learn_vocabulary(Corpus([text]), size=100, min_count=1, coverage=1.0, workers=2)
prepare(Corpus([text]), Tokenizer(learned.pieces), out / "data", holdout=0.2, workers=2)
changes = {"model__preset": "2x64x2", "data__max_length": 64, "train__max_steps": 30, "train__save_every": 10}
changes["train__save_minutes"] = 100_000  # saves by the clock are meant to depend on it
pretrain(tiny_runs.recipe(**changes), data=out / "data", out=out / "run", device="cpu")
"""
SURROUNDINGS = {
    "plain": {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    "again": {"PYTHONHASHSEED": "0", "TZ": "UTC", "LC_ALL": "C.UTF-8"},
    "elsewhere": {"PYTHONHASHSEED": "1", "TZ": "Asia/Seoul", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0"},
    "jumps": {"PYTHONHASHSEED": "random", "TZ": "America/St_Johns", "LC_ALL": "POSIX"},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    folder = tmp_path_factory.mktemp("text")
    tiny_runs.write_data(folder / "made")
    path = folder / "text.txt"
    path.write_text(
        (folder / "made/text.txt").read_text() + "\n\n나라 말 나라말 é ñ\nword1 word2 naïve.\n", encoding="utf-8"
    )
    return path


def whole_way(text, out, *, threads=1, around="plain"):
    """Vocabulary, shards, a run, in a process of its own; returns the sha256 of every file that must not differ."""
    out.mkdir()
    environment = {
        **os.environ,
        **SURROUNDINGS[around],
        "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}",
    }
    command = [sys.executable, "-c", WHOLE_WAY, str(text), str(out), str(threads), around]
    ended = subprocess.run(command, env=environment, cwd=out, capture_output=True, timeout=300)
    assert ended.returncode == 0, ended.stderr.decode()
    return {name: hashlib.sha256(content).hexdigest() for name, content in tiny_runs.files_of(out).items()}


@pytest.fixture(scope="module")
def plain(text, tmp_path_factory):
    out = tmp_path_factory.mktemp("plain") / "out"
    return whole_way(text, out), out


@pytest.mark.fault("F15")
@pytest.mark.parametrize("around", ["elsewhere", "jumps"])
def test_clock_locale_and_hash_seed_change_no_byte(text, plain, tmp_path, around):
    """F15: vocabulary, shards, losses, checkpoints and model."""
    found = whole_way(text, tmp_path / "out", around=around)
    assert {"data/vocab.txt", "data/train-00000.tokens.npy", "run/metrics.jsonl"} < found.keys()
    assert found == plain[0]


@pytest.mark.fault("F16")
def test_the_same_again_in_a_fresh_process(text, plain, tmp_path):
    """F16: to the last byte."""
    assert whole_way(text, tmp_path / "out", around="again") == plain[0]


@pytest.mark.fault("F16")
def test_two_threads_compute_nearly_the_same(text, plain, tmp_path, record_property):
    """F16: instances and vocabulary are the same; sums in another order may round otherwise, by little."""
    found = whole_way(text, tmp_path / "out", threads=2)
    assert all(found[name] == digest for name, digest in plain[0].items() if name.startswith("data/"))
    losses = [
        [line["loss"] for line in map(json.loads, (out / "run/metrics.jsonl").read_text().splitlines()) if "lr" in line]
        for out in (plain[1], tmp_path / "out")
    ]
    apart = max(abs(one - two) / one for one, two in zip(*losses, strict=True))
    assert apart < 1e-4
    same = "the same bytes" if found == plain[0] else f"losses within {apart:.0e} of each other"
    record_property("fault_note", f"F16: two threads instead of one, 30 steps: {same}")
