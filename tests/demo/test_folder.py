"""The demo's folder: made, used again, and never anybody else's."""

import errno
import os
import re

import pytest
from tiny_demo import in_miniature, shown

from bertworks.demo.run import OWNER_FILE, demo_folder
from bertworks.errors import UserError


def state_of(folder):
    """Every file with its content and times."""
    found = folder.rglob("*")
    return {path: (path.read_bytes() if path.is_file() else None, path.stat().st_mtime_ns) for path in found}


def untimed(text):
    """What was told but for seconds and speeds."""
    return [line for line in text.splitlines() if not re.search(r"\d s$|MB| min \d\d s", line)]


def test_a_new_folder_is_made_with_the_sentences_in_it(tmp_path):
    with demo_folder(tmp_path / "a/b") as folder:
        assert sorted(path.name for path in folder.iterdir()) == [OWNER_FILE, ".lock", "dev.tsv", "train.tsv"]
    assert len((folder / "train.tsv").read_text().splitlines()) == 261


def test_an_empty_folder_is_taken(tmp_path):
    with demo_folder(tmp_path) as folder:
        assert (folder / OWNER_FILE).is_file()


@pytest.mark.parametrize("name", ["thesis.txt", "report.html", "vocab.txt", ".hidden", "data/more"])
def test_a_folder_of_somebody_else_is_refused_and_not_touched(bertworks, tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    before = state_of(tmp_path)
    code, out, err = bertworks("demo", "--out", tmp_path)
    assert (code, out) == (2, "")
    assert err == f"error: {tmp_path} contains files that are not from a demo; choose another --out\n"
    assert state_of(tmp_path) == before


def test_a_file_and_a_name_that_no_folder_can_have_are_refused(tmp_path):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file/inside", f"{tmp_path}/a\0b"):
        with pytest.raises(UserError, match=r"cannot (make|write)|is not a usable path"), demo_folder(out):
            pass
    assert (tmp_path / "file").read_text() == "mine"


def test_its_own_files_are_replaced_and_what_lies_beside_them_stays(tmp_path):
    with demo_folder(tmp_path / "out") as folder:
        (folder / "run").mkdir()
        (folder / "run/old").write_text("old")
        (folder / "report.html").write_text("old")
        (folder / "train.tsv").write_text("changed")
    (folder / "my-run").mkdir()
    (folder / "my-run/precious").write_text("mine")
    with demo_folder(folder):
        assert not (folder / "run").exists()
        assert not (folder / "report.html").exists()
        assert (folder / "train.tsv").read_text() != "changed"
    assert (folder / "my-run/precious").read_text() == "mine"


def test_a_link_under_one_of_its_names_is_removed_and_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/precious").write_text("mine")
    with demo_folder(tmp_path / "out") as folder:
        (folder / "data").symlink_to(tmp_path / "elsewhere")
    with demo_folder(folder):
        assert not (folder / "data").is_symlink()
    assert (tmp_path / "elsewhere/precious").read_text() == "mine"


def test_two_demos_do_not_write_into_one_folder(tmp_path):
    """F19"""
    with demo_folder(tmp_path / "out"), pytest.raises(UserError, match="is in use by process"):  # noqa: SIM117
        with demo_folder(tmp_path / "out"):
            pass


def test_a_second_demo_in_the_same_folder_comes_to_the_same(demo):
    """P1: seeds are fixed."""
    logs = ["run/metrics.jsonl", "tuned/metrics.jsonl", "tuned/dev.json", "vocab.txt"]
    before = [(demo.folder / name).read_bytes() for name in logs]
    with in_miniature(demo.shipped):
        text = shown(out=demo.folder)
    assert [(demo.folder / name).read_bytes() for name in logs] == before
    assert untimed(text) == untimed(demo.text)


def test_no_checkpoints_of_the_larger_model_stay(demo):
    assert not (demo.folder / "tuned/checkpoints").exists()
    assert (demo.folder / "tuned/model/model.safetensors").is_file()


def test_a_disk_that_fills_up_is_named_with_what_to_do(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bertworks.files.os.fsync", full)
    with pytest.raises(UserError) as refused, demo_folder(tmp_path / "demo"):
        pass
    assert str(refused.value).startswith(f"cannot write {tmp_path / 'demo' / OWNER_FILE}: No space left on device (")
    assert str(refused.value).endswith(" bytes are free); free some or choose another disk")


def test_a_disk_without_room_for_the_lock_is_named_too(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("bertworks.files.os.pwrite", full)
    with (
        pytest.raises(UserError, match=r"^cannot write .*/\.lock: No space left on device \(.* free some or"),
        demo_folder(tmp_path),
    ):
        pass
