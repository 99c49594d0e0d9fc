"""Models of the repository whose weights lie in parts, as files over 25 MB must not: joined, checked, and the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from same_logits import check_logits_of_transformers
from small_models import write_small_model

import bertworks as bw
from bertworks.files import verify_manifest, write_manifest

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
REPOSITORY = Path(__file__).parents[2]
SMALL = REPOSITORY / "weights" / "small"
WEIGHTS = "model.safetensors"


def run_tool(*arguments):
    tool = REPOSITORY / "tools" / "weights_in_parts.py"
    return subprocess.run([sys.executable, tool, *arguments], capture_output=True, text=True)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    """A small model in twelve parts, and the folder that it was, with a card that was written since."""
    monkeypatch.syspath_prepend(REPOSITORY / "tools")
    import weights_in_parts

    whole = write_small_model(tmp_path / "whole")
    write_manifest(whole)
    (whole / "CARD.md").write_text("# whole\n")
    monkeypatch.setattr(weights_in_parts, "_PART_BYTES", -(-(whole / WEIGHTS).stat().st_size // 12))
    weights_in_parts.cut(whole, tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob(f"{WEIGHTS}.*"))) == 12
    return whole, tmp_path / "parts"


def test_parts_are_joined_to_the_folder_that_was_cut(parts, tmp_path):
    whole, folder = parts
    assert run_tool("join", folder, tmp_path / "joined").returncode == 0
    names = {path.name for path in whole.iterdir()}
    assert {path.name for path in (tmp_path / "joined").iterdir()} == names
    assert all((tmp_path / "joined" / name).read_bytes() == (whole / name).read_bytes() for name in names)


def lose(folder):
    (folder / f"{WEIGHTS}.03").unlink()


def alter(folder):
    part = folder / f"{WEIGHTS}.03"
    part.write_bytes(bytes([part.read_bytes()[0] ^ 1]) + part.read_bytes()[1:])


def lose_all(folder):
    for part in folder.glob(f"{WEIGHTS}.*"):
        part.unlink()


def lose_manifest(folder):
    (folder / "manifest.json").unlink()


@pytest.mark.parametrize(
    ("harm", "told"),
    [(lose, "bytes where"), (alter, "was altered"), (lose_all, "has 0 bytes"), (lose_manifest, "no model folder")],
)
def test_parts_that_are_not_whole_make_no_folder(harm, told, parts, tmp_path):
    _, folder = parts
    harm(folder)
    done = run_tool("join", folder, tmp_path / "joined")
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert told in done.stderr
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["parts", "whole"]


def test_no_folder_is_written_over(parts, tmp_path):
    (tmp_path / "joined").mkdir()
    done = run_tool("join", parts[1], tmp_path / "joined")
    assert done.returncode == 1
    assert "exists already" in done.stderr
    assert "no model folder" in run_tool("join", tmp_path / "nothing", tmp_path / "other").stderr


def test_no_part_in_the_repository_is_over_25_mb():
    assert max(path.stat().st_size for path in SMALL.iterdir()) <= 25_000_000


def test_small_is_what_the_results_are_of_and_the_same_in_transformers(tmp_path):
    """N7"""
    assert run_tool("join", SMALL, tmp_path / "small").returncode == 0
    entries = verify_manifest(tmp_path / "small")
    results = json.loads((REPOSITORY / "docs/results/compact.json").read_text())["models"]["small"]
    assert results["weights"] == {WEIGHTS: entries[WEIGHTS]["sha256"]}
    check_logits_of_transformers(tmp_path / "small", atol=1e-4)  # logits of up to some tens
    guesses = bw.load(tmp_path / "small", device="cpu").fill("paris is the capital of [MASK] .", top_k=3)[0]
    assert "france" in [guess["token"] for guess in guesses]
