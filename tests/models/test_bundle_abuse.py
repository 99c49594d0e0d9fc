"""S5: damaged and hostile checkpoints end in CorruptFile, within a second, in no more memory than twice the files."""

import time
import tracemalloc

import numpy as np
import pytest
from bundle_builder import (
    MAGIC,
    assemble,
    block,
    build,
    entry,
    field,
    header,
    mask,
    part_key,
    seal,
    some_tensors,
    table,
    varint,
)

from bertworks.errors import CorruptFile, UserError
from bertworks.models.tf_bundle import Bundle, crc32c, read_table, read_varint, write_bundle

ROOM = 1 << 22  # for what Python itself needs: growing its table of known texts once takes 2 MB
DATA = bytes(range(200)) * 5


@pytest.fixture(scope="module", autouse=True)
def compiled_before_the_clock_runs():
    crc32c(b"")


@pytest.fixture
def checkpoint(tmp_path):
    """A checkpoint with two files and a partitioned variable: (prefix, index, bytes of its files)."""
    tensors = some_tensors()
    parts = {"bert/embeddings/word_embeddings": (0, [20, 30])}
    return build(tmp_path / "x", tensors, num_shards=2, parts=parts, crc=crc32c)


def read_all(prefix):
    bundle = Bundle(prefix)
    return {name: bundle.read(name) for name in bundle.names()}


def words_of(prefix):
    """Reads a checkpoint and returns the words of the one kind of error that is allowed; None where it reads."""
    try:
        read_all(prefix)
    except CorruptFile as error:
        return str(error) if str(prefix) in str(error) else pytest.fail(f"no file is named: {error}")
    return None


def refused(prefix):
    """The same within a second of work (a busy disk is not its fault) and within twice the memory of the files.

    A process with much in it may grow its table of known texts meanwhile, which takes more than ROOM, once: so where
    memory was too much the checkpoint is read again.
    """
    most = 2 * sum(path.stat().st_size for path in prefix.parent.iterdir()) + ROOM
    words, peak = measured_words(prefix)
    if peak >= most:
        words, peak = measured_words(prefix)
    assert peak < most
    return words


def measured_words(prefix):
    """The same within a second; and the most memory that it took."""
    tracemalloc.start()
    started = time.process_time()
    try:
        words = words_of(prefix)
    finally:
        seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert seconds < 1
    return words, peak


def put(prefix, index, data=DATA):
    prefix.with_name(prefix.name + ".index").write_bytes(index)
    prefix.with_name(prefix.name + ".data-00000-of-00001").write_bytes(data)
    return prefix


def index_of(prefix):
    return prefix.with_name(prefix.name + ".index")


def flipped(content, bit):
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def check_random_bytes(tmp_path, num_cases, seed):
    random = np.random.default_rng(seed)
    put(tmp_path / "x", b"")
    for case in range(num_cases):
        content = random.integers(0, 256, random.integers(0, 400), np.uint8).tobytes()
        if case % 2:  # what looks like an index for longer
            handles = b"".join(varint(int(number)) for number in random.integers(0, len(content) + 60, 4))
            content += handles.ljust(40, b"\0")[:40] + MAGIC
        (tmp_path / "x.index").write_bytes(content)
        assert refused(tmp_path / "x")


def check_index_flips(checkpoint, bits):
    index = index_of(checkpoint).read_bytes()
    for bit in bits:
        index_of(checkpoint).write_bytes(flipped(index, int(bit)))
        assert refused(checkpoint), f"bit {bit} of {8 * len(index)}"


def check_resealed(checkpoint, num_cases, seed):
    """Change bytes of the blocks and make the checksums right again: then everything behind them has to hold."""
    random = np.random.default_rng(seed)
    entries = sorted(_entries_of(checkpoint).items())
    whole, num_read = block(entries), 0
    for _ in range(num_cases):
        changed = bytearray(whole)
        for _ in range(random.integers(1, 4)):
            changed[random.integers(len(changed))] = random.choice([0, 1, 127, 128, 255, random.integers(256)])
        index_of(checkpoint).write_bytes(assemble([bytes(changed)], [b"zzz"], crc32c))
        num_read += refused(checkpoint) is None
    return num_read


def _entries_of(checkpoint):
    return dict(read_table(index_of(checkpoint).read_bytes()))


def test_random_bytes_are_refused(tmp_path):
    check_random_bytes(tmp_path, 200, seed=1)


def test_any_bit_changed_in_the_last_bytes_of_an_index_is_noticed(checkpoint):
    size = 8 * len(index_of(checkpoint).read_bytes())
    check_index_flips(checkpoint, range(size - 8 * 48, size))


def test_any_bit_changed_in_the_block_that_nobody_reads_is_noticed(checkpoint):
    footer_bytes = index_of(checkpoint).read_bytes()[-48:]
    offset, position = read_varint(footer_bytes, 0)
    size, _ = read_varint(footer_bytes, position)
    check_index_flips(checkpoint, range(8 * offset, 8 * (offset + size + 5)))


def test_bits_changed_anywhere_in_an_index_are_noticed(checkpoint):
    size = 8 * len(index_of(checkpoint).read_bytes())
    check_index_flips(checkpoint, np.random.default_rng(2).integers(0, size, 150))


def test_bits_changed_in_the_data_are_noticed_by_the_tensor_they_are_in(checkpoint):
    random = np.random.default_rng(3)
    for path in (path for path in sorted(checkpoint.parent.iterdir()) if ".data-" in path.name):
        content = path.read_bytes()
        for bit in random.integers(0, 8 * len(content), 60):
            path.write_bytes(flipped(content, int(bit)))
            assert "checksum of" in refused(checkpoint)
        path.write_bytes(content)
    assert refused(checkpoint) is None


def test_hostile_content_with_right_checksums_reads_or_is_refused(checkpoint):
    assert check_resealed(checkpoint, 200, seed=4) < 150


def test_files_cut_short_are_refused(checkpoint):
    for path in sorted(checkpoint.parent.iterdir()):
        content = path.read_bytes()
        for length in {0, 1, 7, 8, 47, 48, 49, len(content) // 2, len(content) - 1}:
            path.write_bytes(content[:length])
            assert refused(checkpoint)
        path.write_bytes(content)


def test_data_cut_short_between_opening_and_reading_is_refused(tmp_path):
    write_bundle(tmp_path / "x", {"a": np.zeros(1_000, np.float32)})
    bundle = Bundle(tmp_path / "x")
    (tmp_path / "x.data-00000-of-00001").write_bytes(bytes(2_000))
    with pytest.raises(CorruptFile, match="ends inside 'a'"):
        bundle.read("a")


@pytest.mark.nightly
def test_random_bytes_many(tmp_path):
    check_random_bytes(tmp_path, 10_000, seed=11)


@pytest.mark.nightly
def test_bits_changed_in_an_index_many(checkpoint):
    size = 8 * len(index_of(checkpoint).read_bytes())
    check_index_flips(checkpoint, np.random.default_rng(12).permutation(size)[:2_000])


@pytest.mark.nightly
def test_hostile_content_many(checkpoint):
    check_resealed(checkpoint, 10_000, seed=13)


GOOD = {"size": 40, "checksum": mask(crc32c(DATA[:40]))}


def tensor(type_number=1, shape=(10,), **place):
    return entry(type_number, shape, **(GOOD | place))


HOSTILE_ENTRIES = {
    "past the end": ([(b"a", tensor(offset=len(DATA) - 39))], "goes past its end"),
    "far past the end": ([(b"a", tensor(offset=2**62))], "goes past its end"),
    "negative offset": ([(b"a", tensor(offset=-1))], "not a number of 0 or more"),
    "negative size": ([(b"a", tensor(size=-40))], "not a number of 0 or more"),
    "negative dimension": ([(b"a", tensor(shape=(-10,)))], "not a number of 0 or more"),
    "size not of the shape": ([(b"a", tensor(shape=(11,)))], "of shape"),
    "size not of the type": ([(b"a", tensor(type_number=2))], "of shape"),
    "a tensor of exabytes": ([(b"a", tensor(shape=(2**40, 2**20)))], "elements"),
    "exabytes times zero": ([(b"a", tensor(shape=(0, 2**62, 2**62), size=0))], "elements"),
    "a thousand axes": ([(b"a", tensor(shape=(1,) * 1000))], "axes"),
    "shard out of range": ([(b"a", tensor(shard=1))], "data file 1"),
    "shard far out of range": ([(b"a", tensor(shard=2**31))], "data file"),
    "two tensors in one place": ([(b"a", tensor()), (b"b", tensor(offset=4))], "overlaps"),
    "keys in wrong order": ([(b"b", tensor()), (b"a", tensor(offset=40))], "ascending"),
    "a key twice": ([(b"a", tensor()), (b"a", tensor(offset=40))], "ascending"),
    "a name that is not UTF-8": ([(b"\xff\xfe", tensor())], "not UTF-8"),
    "a shape that is a number": ([(b"a", field(1, 1) + field(2, 10))], "not a message"),
    "a type that is a message": ([(b"a", field(1, b"xx"))], "not a number"),
    "a field that is too long": ([(b"a", varint(2 << 3 | 2) + varint(2**40))], "are left"),
    "a number without end": ([(b"a", b"\x08" + b"\xff" * 100)], "does not end"),
    "a number beyond 64 bits": ([(b"a", b"\x08" + b"\xff" * 9 + b"\x7f")], "too large"),
    "a field of unknown kind": ([(b"a", b"\x0b")], "unknown kind"),
    "a wrong checksum": ([(b"a", tensor(checksum=1))], "checksum of 'a' is wrong"),
    "a part that is not there": ([(b"a", entry(1, (10,), places=[[(0, 10)]]))], "a part of 'a' is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE_ENTRIES)
def test_an_entry_that_lies_is_refused_with_the_reason(tmp_path, case):
    entries, words = HOSTILE_ENTRIES[case]
    assert words in refused(put(tmp_path / "x", table([(b"", header()), *entries], crc=crc32c)))


def parted(places, shapes=None, type_number=4, whole=(4, 5)):
    """A variable of bytes whose parts are as told, each with a place of its own in the data."""
    made, offset = [], 0
    for place, shape in zip(places, shapes or [[length for _, length in place] for place in places], strict=True):
        size = int(np.prod(shape))
        checksum = mask(crc32c(DATA[offset : offset + size]))
        made.append((part_key("v", place), entry(type_number, shape, offset=offset, size=size, checksum=checksum)))
        offset += size
    return [*dict(sorted(made)).items(), (b"v", entry(4, whole, places=places))]


HOSTILE_PARTS = {
    "a gap": (parted([[(0, 1), (0, 5)], [(2, 2), (0, 5)]]), "do not make up"),
    "a hole, the sum right": (parted([[(0, 1), (0, 5)], [(2, 3), (0, 5)]]), "do not make up"),
    "an overlap": (parted([[(0, 3), (0, 5)], [(2, 2), (0, 5)]]), "do not make up"),
    "too few": (parted([[(0, 3), (0, 5)]]), "do not make up"),
    "beyond the whole": (parted([[(0, 4), (0, 5)], [(4, 4), (0, 5)]]), "do not make up"),
    "a corner of a grid left out": (
        parted([[(0, 2), (0, 2)], [(0, 2), (2, 3)], [(2, 2), (0, 2)]]), "do not make up"
    ),
    "one part twice": (
        [
            *parted([[(0, 2), (0, 5)], [(2, 2), (0, 5)]])[:-1],
            (b"v", entry(4, (4, 5), places=[[(0, 2), (0, 5)], [(2, 2), (0, 5)], [(2, 2), (0, 5)]])),
        ],
        "do not make up",
    ),
    "a part of another shape": (parted([[(0, 4), (0, 5)]], [(5, 4)]), "another shape or type"),
    "a part of another type": (parted([[(0, 4), (0, 5)]], type_number=10), "another shape or type"),
    "a part of fewer axes": (parted([[(0, 4)]], [(4, 5)]), "is missing"),
    "a whole of petabytes": (parted([[(0, 4), (0, 5)]], whole=(2**30, 2**10)), "do not make up"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE_PARTS)
def test_parts_that_do_not_make_up_their_whole_are_refused(tmp_path, case):
    entries, words = HOSTILE_PARTS[case]
    assert words in refused(put(tmp_path / "x", table([(b"", header()), *entries], crc=crc32c)))


def test_the_parts_of_these_tests_are_read_where_they_are_right(tmp_path):
    entries = parted([[(0, 2), (0, 2)], [(0, 2), (2, 3)], [(2, 2), (0, 2)], [(2, 2), (2, 3)]])
    assert refused(put(tmp_path / "x", table([(b"", header()), *entries], crc=crc32c))) is None


HEADERS = {"none": b"", "no files": header(0), "billions of files": header(2**31), "text": field(1, b"abc")}


@pytest.mark.parametrize("case", HEADERS)
def test_a_header_that_lies_is_refused(tmp_path, case):
    assert refused(put(tmp_path / "x", table([(b"", HEADERS[case]), (b"a", tensor())], crc=crc32c)))


def test_a_table_without_header_is_refused(tmp_path):
    assert "no header" in refused(put(tmp_path / "x", table([(b"a", tensor())], crc=crc32c)))


def footer(*numbers):
    return b"".join(varint(number) for number in numbers).ljust(40, b"\0") + MAGIC


def test_blocks_that_point_in_circles_or_at_each_other_are_refused(tmp_path):
    """The index block names itself as a data block; or two handles name the same block."""
    itself = block([(b"z", varint(0) + varint(11))], 1)
    laid = seal(itself, crc32c)
    assert refused(put(tmp_path / "x", laid + footer(0, len(itself), 0, len(itself))))
    data = seal(block([(b"", header())]), crc32c)
    twice = block([(b"a", varint(0) + varint(len(data) - 5)), (b"b", varint(0) + varint(len(data) - 5))], 1)
    meta = seal(block([]), crc32c)
    ends = footer(len(data), len(meta) - 5, len(data) + len(meta), len(twice))
    error = refused(put(tmp_path / "x", data + meta + seal(twice, crc32c) + ends))
    assert "end to end" in error


def test_a_gap_between_blocks_is_refused(tmp_path):
    good = table([(b"", header()), (b"a", tensor())], crc=crc32c)
    assert refused(put(tmp_path / "x", good)) is None
    assert refused(put(tmp_path / "x", b"\0" + good))
    assert refused(put(tmp_path / "x", good[:-48] + b"\0" + good[-48:]))


@pytest.mark.parametrize("content", [b"", b"\1", b"\xff\xff\xff\xff", b"\0\0\0\0" + b"\xff\xff\xff\x7f"])
def test_a_block_without_room_for_its_restarts_is_refused(tmp_path, content):
    assert "restarts" in refused(put(tmp_path / "x", assemble([content], [b"z"], crc32c)))


@pytest.mark.parametrize("numbers", [(1, 0, 0), (0, 2**63, 0), (0, 0, 2**40), (0, 5_000, 0)])
def test_an_entry_that_does_not_fit_its_block_is_refused(tmp_path, numbers):
    content = b"".join(map(varint, numbers)) + bytes(10_000 * (numbers[1] == 5_000)) + bytes(4)
    assert "fit its block" in refused(put(tmp_path / "x", assemble([content], [b"z"], crc32c)))


def test_keys_that_share_a_long_beginning_do_not_fill_the_memory(tmp_path):
    """100 kB of entries that expand to 70 MB of keys."""
    first = varint(0) + varint(4_000) + varint(0) + bytes(4_000)
    more = b"".join(varint(4_000) + varint(2) + varint(0) + number.to_bytes(2, "big") for number in range(17_000))
    assert "expand" in refused(put(tmp_path / "x", assemble([first + more + bytes(4)], [b"z"], crc32c)))


def test_a_compressed_block_is_refused_by_name(tmp_path):
    content = block([(b"", header())])
    laid = seal(content, crc32c, kind=1)
    meta, index = seal(block([]), crc32c), block([(b"z", varint(0) + varint(len(content)))], 1)
    ends = footer(len(laid), len(meta) - 5, len(laid) + len(meta), len(index))
    assert "compressed" in refused(put(tmp_path / "x", laid + meta + seal(index, crc32c) + ends))


def test_an_index_that_is_too_large_is_refused_before_it_is_read(tmp_path):
    put(tmp_path / "x", b"")
    with open(tmp_path / "x.index", "r+b") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(CorruptFile, match="too large"):
        Bundle(tmp_path / "x")


@pytest.mark.parametrize(("num_tensors", "is_fine"), [(19_999, True), (20_000, False), (43_000, False)])
def test_the_largest_index_is_read_in_time_and_a_larger_one_refused(tmp_path, num_tensors, is_fine):
    """The header is an entry too."""
    empty = entry(1, (0,), checksum=mask(0))
    entries = [(b"", header()), *((b"%05d" % number, empty) for number in range(num_tensors))]
    prefix = put(tmp_path / "x", assemble([block(entries)], [b"\xff"], crc32c))

    def seconds():
        started = time.process_time()
        if is_fine:
            assert len(Bundle(prefix).names()) == num_tensors
        else:
            with pytest.raises(CorruptFile, match="more than 20,000"):
                Bundle(prefix)
        return time.process_time() - started

    assert min(seconds() for _ in range(3)) < 1  # a busy machine slows down some of them


@pytest.mark.parametrize("type_number", [1, 14, 10])
def test_a_tensor_needs_no_more_than_twice_its_file(tmp_path, type_number):
    raw = np.random.default_rng(5).integers(0, 2, 8_000_000, np.uint8).tobytes()
    num_elements = len(raw) // {1: 4, 14: 2, 10: 1}[type_number]
    made = entry(type_number, (num_elements,), size=len(raw), checksum=mask(crc32c(raw)))
    assert refused(put(tmp_path / "x", table([(b"", header()), (b"a", made)], crc=crc32c), raw)) is None


@pytest.mark.parametrize("name", ["nothing", "a\0b", "x" * 300, ""])
def test_a_checkpoint_that_is_not_there_is_a_user_error(tmp_path, name):
    with pytest.raises(UserError):
        Bundle(f"{tmp_path}/{name}")


def test_a_folder_in_the_place_of_a_file_is_a_user_error(tmp_path):
    build(tmp_path / "x", some_tensors(), crc=crc32c)
    (tmp_path / "x.data-00000-of-00001").unlink()
    (tmp_path / "x.data-00000-of-00001").mkdir()
    with pytest.raises(CorruptFile):
        Bundle(tmp_path / "x")
    (tmp_path / "y.index").mkdir()
    with pytest.raises(UserError):
        Bundle(tmp_path / "y")
