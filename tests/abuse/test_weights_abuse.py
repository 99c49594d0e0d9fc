"""S4: hostile and damaged weight files cost little and end in a clear error; good ones of all kinds come back."""

import contextlib
import json
import os
import struct
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from bertworks.errors import CorruptFile
from bertworks.models.weights import read_arrays, read_header, read_weights, write_weights

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def file_of(header, data=b"\0" * 24, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def one(**changes):
    return file_of({"w": ENTRY | changes})


def two(first, second, data=b"\0" * 48):
    entries = {name: ENTRY | {"data_offsets": offsets} for name, offsets in (("a", first), ("b", second))}
    return file_of(entries, data)


HOSTILE = {
    "empty file": b"",
    "seven bytes": b"\1" * 7,
    "header length 0": file_of(b"", length=0),
    "header length 7 of 8": file_of(b"{}      ", b"", length=9),
    "header length 2**63": file_of(b"{}", length=1 << 63),
    "header length beyond the limit": file_of(b"{}" + b" " * 10_000_001, b""),
    "header past the end": file_of({"w": ENTRY}, b"", length=9_999),
    "not JSON": file_of(b"hello, world", b""),
    "not UTF-8": file_of(b'{"\xff\xfe": 1}', b""),
    "a list": file_of([1, 2], b""),
    "a number": file_of(b"17", b""),
    "deeply nested": file_of(b'{"w":' * 30_000 + b"1" + b"}" * 30_000, b""),
    "overlap": two([0, 24], [12, 36]),
    "the same range twice": two([0, 24], [0, 24], b"\0" * 24),
    "a hole": two([0, 24], [30, 54], b"\0" * 54),
    "a hole at the start": two([8, 32], [32, 56], b"\0" * 56),
    "bytes behind the last": two([0, 24], [24, 48], b"\0" * 49),
    "offset past the end": one(data_offsets=[0, 24], shape=[2, 3])[:-1],
    "offsets backwards": one(data_offsets=[24, 0]),
    "one offset": one(data_offsets=[24]),
    "three offsets": one(data_offsets=[0, 12, 24]),
    "negative offset": one(data_offsets=[-24, 0]),
    "negative sizes": one(shape=[-2, -3]),
    "shape too large for its bytes": one(shape=[2, 4]),
    "shape times type overflows": one(shape=[1 << 62, 1 << 62, 4]),
    "a shape of 60,000 dimensions": one(shape=[(1 << 47)] * 60_000),
    "a fraction in a shape": one(shape=[2.0, 3]),
    "true in a shape": one(shape=[True, 6]),
    "a shape that is text": one(shape="23"),
    "no shape": file_of({"w": {"dtype": "F32", "data_offsets": [0, 24]}}),
    "an unknown type": one(dtype="F8_E4M3"),
    "a type that is a list": one(dtype=["F32"]),
    "an entry that is text": file_of({"w": "F32"}),
    "100,000 tensors": file_of({f"w{n}": ENTRY | {"shape": [0], "data_offsets": [0, 0]} for n in range(100_000)}, b""),
    "a million empty lists": file_of(b'{"w":[' + b"[]," * 1_000_000 + b"[]]}", b""),
    "two million texts": file_of(b'{"w":[' + b'"ab",' * 1_990_000 + b"1]}", b""),
    "duplicate names": file_of(b'{"w":%b,"w":%b}' % ((json.dumps(ENTRY).encode(),) * 2)),
    "NaN in the metadata": file_of(b'{"__metadata__":{"a":NaN},"w":%b}' % json.dumps(ENTRY).encode()),
    "a list as metadata": file_of({"__metadata__": ["a"], "w": ENTRY}),
    "numbers as metadata": file_of({"__metadata__": {"a": 1}, "w": ENTRY}),
    "an integer of 5,000 digits": file_of(b'{"w":' + b"9" * 5_000 + b"}", b""),
}


@pytest.mark.parametrize("read", [read_weights, read_arrays])
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_file_is_corrupt_within_a_second(tmp_path, grown, kind, read):
    """S4."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(HOSTILE[kind])
    started = time.process_time()
    with pytest.raises(CorruptFile, match="safetensors"):
        read(path)
    assert time.process_time() - started < 1
    assert grown() < 200_000_000


def test_the_hostile_files_differ_from_a_good_one_in_one_thing(tmp_path):
    path = tmp_path / "model.safetensors"
    for data in (one(), two([0, 24], [24, 48]), two([24, 48], [0, 24]), file_of({"__metadata__": {"a": "b"}}, b"")):
        path.write_bytes(data)
        assert all(tensor.shape == (2, 3) for tensor in read_weights(path).values())


def test_a_file_cut_off_while_it_is_opened_is_corrupt(tmp_path, monkeypatch):
    """S4: between the look at its size and the mapping."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(one())
    fstat = os.fstat

    def then_cut(descriptor):
        found = fstat(descriptor)
        os.truncate(path, 90)
        return found

    monkeypatch.setattr(os, "fstat", then_cut)
    with pytest.raises(CorruptFile):
        read_weights(path)


def test_any_cut_and_any_flipped_byte_of_the_header_is_refused_or_harmless(tmp_path):
    path = tmp_path / "model.safetensors"
    write_weights(path, {"a": torch.arange(5.0), "b": torch.ones(2, 2, dtype=torch.bfloat16)})
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptFile):
            read_header(path)
    for place in range(len(data) - 28):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with contextlib.suppress(CorruptFile):
            read_weights(path)  # a letter of a name may change


def test_tensors_of_every_type_and_shape_come_back(tmp_path):
    types = (
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
        torch.uint8,
        torch.bool,
    )
    tensors = {f"{dtype}/{n}": torch.arange(n * 3).to(dtype).view(n, 3) for dtype in types for n in (0, 1, 5)}
    tensors |= {"scalar": torch.tensor(2.5), "turned": torch.arange(6.0).view(2, 3).t(), "한": torch.ones(1)}
    for write in (
        lambda path: write_weights(path, tensors),
        lambda path: save_file({n: t.contiguous() for n, t in tensors.items()}, path),
    ):
        write(tmp_path / "w.safetensors")
        for found in (read_weights(tmp_path / "w.safetensors"), load_file(tmp_path / "w.safetensors")):
            assert set(found) == set(tensors)
            assert all(found[name].dtype == t.dtype and torch.equal(found[name], t) for name, t in tensors.items())


@pytest.mark.parametrize("first_byte", range(0x78, 0x90))
def test_a_header_of_any_length_is_no_pickle(tmp_path, first_byte):
    """A header of 128 bytes begins as a pickle does."""
    text = json.dumps({"w": ENTRY}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(file_of(text.ljust(first_byte + 512)))
    assert read_weights(path)["w"].shape == (2, 3)


@pytest.mark.parametrize("extra", range(8))
def test_tensors_lie_where_their_type_wants_them(tmp_path, extra):
    """Other writers end a header anywhere; a number that straddles an address is slow, or fatal on some machines."""
    text = json.dumps({"w": ENTRY}).encode()
    path = tmp_path / "w.safetensors"
    path.write_bytes(file_of(text.ljust(len(text) + extra), struct.pack("<6f", *range(6))))
    found, array = read_weights(path)["w"], read_arrays(path)["w"]
    assert found.data_ptr() % 4 == array.ctypes.data % 4 == 0
    assert found.flatten().tolist() == array.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_writing_to_a_tensor_does_not_reach_the_file(tmp_path):
    path = tmp_path / "w.safetensors"
    write_weights(path, {"a": torch.zeros(4)})
    before = path.read_bytes()
    read_weights(path)["a"].fill_(7)
    assert path.read_bytes() == before
