"""Checkpoints of TensorFlow's form: what other code wrote is read, what we write is read by other code's rules."""

import numpy as np
import pytest
from bundle_builder import TYPES, build, crc_by_bits, entry, header, mask, part_key, some_tensors, table

from bertworks.errors import CorruptFile, UserError
from bertworks.models.tf_bundle import Bundle, crc32c, slice_key, write_bundle


def assert_same(bundle, tensors):
    assert bundle.names() == sorted(tensors)
    for name, expected in tensors.items():
        found = bundle.read(name)
        assert found.dtype == bundle.dtype(name) == expected.dtype
        assert found.shape == bundle.shape(name) == expected.shape
        assert found.tobytes() == expected.tobytes()
        assert found.flags.owndata or found.base.flags.owndata  # memory of its own, not of the file


@pytest.mark.parametrize("num_shards", [1, 2, 3])
@pytest.mark.parametrize("layout", [{"per_block": 1}, {"per_block": 4, "restart_interval": 2}, {"per_block": 99}])
def test_every_type_from_any_number_of_files_and_blocks(tmp_path, num_shards, layout):
    tensors = some_tensors()
    assert_same(Bundle(build(tmp_path / "model.ckpt-1", tensors, num_shards=num_shards, **layout)), tensors)


def test_partitioned_variables_are_given_whole(tmp_path):
    random = np.random.default_rng(2)
    tensors = {
        "rows": random.normal(size=(10, 3)).astype(np.float32),
        "columns": random.normal(size=(4, 300)).astype(np.float64),
        "vector": np.arange(7, dtype=np.int64),
        "one part": random.normal(size=(2, 2)).astype(np.float16),
        "whole": np.ones(3, np.float32),
    }
    parts = {"rows": (0, [4, 3, 3]), "columns": (1, [100, 1, 199]), "vector": (0, [1] * 7), "one part": (0, [2])}
    assert_same(Bundle(build(tmp_path / "parts", tensors, num_shards=2, parts=parts)), tensors)


def test_a_grid_of_parts_along_two_axes_is_put_together(tmp_path):
    whole = np.arange(24, dtype=np.uint8).reshape(4, 6)
    entries, data = {}, b""
    places = [[(row, 2), (column, 3)] for row in (0, 2) for column in (0, 3)]
    for place in places:
        raw = whole[tuple(slice(start, start + length) for start, length in place)].tobytes()
        checksum = mask(crc_by_bits(raw))
        entries[part_key("grid", place)] = entry(4, (2, 3), offset=len(data), size=len(raw), checksum=checksum)
        data += raw
    entries |= {b"": header(), b"grid": entry(4, (4, 6), places=places)}
    (tmp_path / "x.index").write_bytes(table(sorted(entries.items())))
    (tmp_path / "x.data-00000-of-00001").write_bytes(data)
    np.testing.assert_array_equal(Bundle(tmp_path / "x").read("grid"), whole)


@pytest.mark.parametrize(
    ("extents", "expected"),
    [
        ([(0, -1)], "00 61 0001 0101 80 7f"),
        ([(0, 63), (64, 8191)], "00 61 0001 0102 80 bf c040 dfff"),
        ([(8192, 2**20), (2**40, 2**63 - 1)], "00 61 0001 0102 e02000 f0100000 fd0000000000 ffc07fffffffffffffff"),
    ],
)
def test_keys_of_parts_are_those_of_tensorflow(extents, expected):
    assert slice_key("a", extents) == bytes.fromhex(expected)


def test_a_zero_in_a_name_is_escaped_in_the_keys_of_its_parts():
    assert slice_key("a\0ÿ", []) == b"\0a\0\xff\xc3\xbf\0\1\0"


def test_a_bfloat16_tensor_is_read_exactly_as_float32(tmp_path):
    numbers = np.random.default_rng(3).normal(size=(300, 1_000)).astype(np.float32)
    upper = (numbers.view(np.uint32) >> 16).astype(np.uint16)
    raw = upper.tobytes()
    checksum = mask(crc32c(raw))
    made = {b"": header(), b"half": entry(14, upper.shape, size=len(raw), checksum=checksum)}
    (tmp_path / "x.index").write_bytes(table(sorted(made.items())))
    (tmp_path / "x.data-00000-of-00001").write_bytes(raw)
    found = Bundle(tmp_path / "x").read("half")
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.view(np.uint32), upper.astype(np.uint32) << 16)


def test_a_truth_value_is_true_whatever_its_bits(tmp_path):
    raw = bytes([0, 1, 2, 255])
    made = {b"": header(), b"truth": entry(10, (4,), size=4, checksum=mask(crc_by_bits(raw)))}
    (tmp_path / "x.index").write_bytes(table(sorted(made.items())))
    (tmp_path / "x.data-00000-of-00001").write_bytes(raw)
    assert Bundle(tmp_path / "x").read("truth").view(np.uint8).tolist() == [0, 1, 1, 1]


def test_text_is_not_listed_and_refused_by_name(tmp_path):
    made = {b"": header(), b"graph": entry(7, (), size=3), b"small": entry(6, (3,), size=3, offset=3)}
    (tmp_path / "x.index").write_bytes(table(sorted(made.items())))
    (tmp_path / "x.data-00000-of-00001").write_bytes(b"abcdef")
    bundle = Bundle(tmp_path / "x")
    assert bundle.names() == []
    with pytest.raises(UserError, match="'graph' holds text, not numbers"):
        bundle.read("graph")
    with pytest.raises(UserError, match="'small' holds int8"):
        bundle.dtype("small")


def test_an_unknown_name_is_answered_with_the_nearest(tmp_path):
    bundle = Bundle(build(tmp_path / "x", some_tensors()))
    with pytest.raises(UserError, match="did you mean 'global_step'"):
        bundle.read("globalstep")


def test_big_endian_checkpoints_are_refused(tmp_path):
    (tmp_path / "x.index").write_bytes(table([(b"", header(big_endian=True))]))
    with pytest.raises(CorruptFile, match="big-endian"):
        Bundle(tmp_path / "x")


def test_what_we_write_we_read(tmp_path):
    tensors = some_tensors(5)
    write_bundle(tmp_path / "out", tensors)
    assert_same(Bundle(tmp_path / "out"), tensors)


def test_what_we_write_is_byte_for_byte_what_the_format_says(tmp_path):
    tensors = dict(sorted(some_tensors(6).items()))
    write_bundle(tmp_path / "ours", tensors)
    build(tmp_path / "theirs", tensors, per_block=999, restart_interval=1)
    assert (tmp_path / "ours.data-00000-of-00001").read_bytes() == (
        tmp_path / "theirs.data-00000-of-00001"
    ).read_bytes()
    # The test's code writes fields that are zero, ours does not, as TensorFlow does not.
    assert len((tmp_path / "ours.index").read_bytes()) < len((tmp_path / "theirs.index").read_bytes())


def test_the_same_tensors_in_any_order_and_layout_give_the_same_bytes(tmp_path):
    tensors = some_tensors(7)
    write_bundle(tmp_path / "a", tensors)
    swapped = {name: array.astype(array.dtype.newbyteorder(">")) for name, array in reversed(tensors.items())}
    write_bundle(tmp_path / "b", {name: np.array(array, order="F") for name, array in swapped.items()})
    for end in (".index", ".data-00000-of-00001"):
        assert (tmp_path / f"a{end}").read_bytes() == (tmp_path / f"b{end}").read_bytes()


def test_names_are_sorted_by_their_bytes(tmp_path):
    names = ["a", "a/b", "a0", "a_", "Z", "é", "한", "\U0001f600", "~"]
    write_bundle(tmp_path / "x", {name: np.float32(number) for number, name in enumerate(names)})
    assert Bundle(tmp_path / "x").names() == sorted(names, key=str.encode)


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"x": np.zeros(2, np.complex64)}, "complex64"),
        ({"x": np.array(["a"], object)}, "object"),
        ({"": np.zeros(2)}, "cannot be the name"),
        ({"\0x": np.zeros(2)}, "cannot be the name"),
    ],
)
def test_what_cannot_be_written_leaves_nothing_behind(tmp_path, tensors, words):
    with pytest.raises(UserError, match=words):
        write_bundle(tmp_path / "x", {"fine": np.zeros(3, np.float32), **tensors})
    assert list(tmp_path.iterdir()) == []


def test_a_checkpoint_is_not_overwritten(tmp_path):
    write_bundle(tmp_path / "x", {"a": np.zeros(1, np.float32)})
    with pytest.raises(UserError, match="already"):
        write_bundle(tmp_path / "x", {"a": np.ones(1, np.float32)})
    assert Bundle(tmp_path / "x").read("a") == 0


def test_a_missing_data_file_is_named(tmp_path):
    build(tmp_path / "x", some_tensors(), num_shards=2)
    (tmp_path / "x.data-00001-of-00002").unlink()
    with pytest.raises(CorruptFile, match=r"x\.data-00001-of-00002 is missing"):
        Bundle(tmp_path / "x")


def test_files_are_those_that_are_read(tmp_path):
    bundle = Bundle(build(tmp_path / "x", some_tensors(), num_shards=2))
    assert sorted(bundle.files()) == sorted(tmp_path.iterdir())


def test_the_types_are_all_there():
    assert set(TYPES) == {"float32", "float64", "float16", "int32", "int64", "uint8", "bool"}
