"""Weights in two files: whole for all readers, linked where an older file has the same bits, and written else."""

import os
import shutil

import pytest
import torch

from bertworks.models.weights import FROZEN_FILE, LEARNT_FILE, put_divided, read_tensors, read_weights

TENSORS = {"frozen.a": torch.arange(6.0).view(2, 3), "frozen.b": torch.tensor(0.0), "head": torch.ones(4)}


def put(folder, before=None, **changes):
    folder.mkdir()
    tensors = {**TENSORS, **{f"frozen.{name}": tensor for name, tensor in changes.items()}}
    put_divided(folder, tensors, lambda name: name.startswith("frozen."), before)
    found = read_tensors(folder, read_weights)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensors[name]) for name in found)
    return folder


def are_linked(*folders):
    return os.path.samefile(*(folder / FROZEN_FILE for folder in folders))


def test_what_is_frozen_is_the_older_file_and_outlives_it(tmp_path):
    old = put(tmp_path / "old")
    new = put(tmp_path / "new", old)
    assert are_linked(old, new)
    assert set(read_weights(new / LEARNT_FILE)) == {"head"}
    shutil.rmtree(old)
    assert torch.equal(read_tensors(new, read_weights)["frozen.a"], TENSORS["frozen.a"])


@pytest.mark.parametrize(
    "changes",
    [
        {"a": torch.arange(6.0).view(2, 3) + 1},
        {"a": torch.arange(6.0).view(3, 2)},
        {"a": torch.arange(6).view(2, 3)},
        {"b": torch.tensor(-0.0)},
        {"c": torch.ones(1)},
    ],
    ids=["numbers", "shape", "type", "sign of zero", "one more"],
)
def test_an_older_file_of_other_bits_is_not_linked(tmp_path, changes):
    old = put(tmp_path / "old")
    assert not are_linked(old, put(tmp_path / "new", old, **changes))


@pytest.mark.parametrize("place", [-1, 0])
def test_damage_of_an_older_file_is_not_passed_on(tmp_path, place):
    """Not in its numbers, and not in its header; the new file is whole."""
    old = put(tmp_path / "old")
    content = bytearray((old / FROZEN_FILE).read_bytes())
    content[place] ^= 1
    (old / FROZEN_FILE).write_bytes(content)
    assert not are_linked(old, put(tmp_path / "new", old))


def test_numbers_are_written_again_where_there_are_no_links_or_nothing_to_link(tmp_path, monkeypatch):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    (tmp_path / "empty").mkdir()
    old = put(tmp_path / "old", tmp_path / "empty")
    linked = put(tmp_path / "linked", old)
    monkeypatch.setattr(os, "link", refuse)
    written = put(tmp_path / "written", old)
    assert not are_linked(old, written)
    for path in linked.iterdir():
        assert path.read_bytes() == (written / path.name).read_bytes()
