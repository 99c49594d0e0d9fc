"""T10: packed files that are hostile, damaged or of a kind we do not read cost little and end in a clear error."""

import binascii
import bz2
import collections
import contextlib
import gzip
import io
import lzma
import random
import struct
import tarfile
import time
import tracemalloc
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpus_lines import lines_in

from bertworks.errors import CorruptFile, UserError
from bertworks.text.corpus import Corpus

PACKERS = {
    ".gz": lambda data: gzip.compress(data, mtime=0),
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
TEXT = "".join(f"Line {n} of a small corpus.\n" for n in range(60)).encode()
LINES = [*TEXT.decode().splitlines(), ""]


def write(path, data):
    path.write_bytes(data)
    return path


def lines_of(path):
    return list(lines_in(Corpus([path])))


@pytest.fixture
def memory():
    """Gives a function that returns the most memory, in bytes, that Python has held since the test began."""
    tracemalloc.start()
    yield lambda: tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()


def zip_with_bad_names():
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name in ("../evil.txt", "/evil.txt", "fine.txt"):
            archive.writestr(name, "text")
    return stream.getvalue()


def tar_with_link():
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "../../outside"
        archive.addfile(link)
    return stream.getvalue()


@pytest.mark.parametrize("name", ["c.zip", "c.tar", "c.tar.gz", "c.TGZ", "c.tar.zst", "c.7z", "c.txt.zip", "c.lz4"])
def test_archives_are_refused_unopened_when_named(tmp_path, name):
    data = zip_with_bad_names() if name.endswith("zip") else tar_with_link()
    with pytest.raises(UserError, match=rf"{name} is compressed in a format that is not supported; unpack it first"):
        Corpus([write(tmp_path / name, data)])
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_archives_in_a_folder_are_left_alone(tmp_path):
    write(tmp_path / "a.zip", zip_with_bad_names())
    write(tmp_path / "b.tar.gz", tar_with_link())
    write(tmp_path / "c.txt", b"text")
    assert lines_of(tmp_path) == ["text", ""]


def bomb(compression, num_mib):
    """A file of a few kilobytes that unpacks to lines of text without end."""
    packer = {
        ".gz": lambda: gzip.zlib.compressobj(wbits=31),
        ".bz2": bz2.BZ2Compressor,
        ".xz": lambda: lzma.LZMACompressor(preset=0),
        ".zst": lambda: zstandard.ZstdCompressor().compressobj(),
    }[compression]()
    mebibyte = (b"a" * 1023 + b"\n") * 1024
    return b"".join([*(packer.compress(mebibyte) for _ in range(num_mib)), packer.flush()])


@pytest.mark.parametrize("compression", PACKERS)
def test_a_bomb_stops_at_a_hundredfold_within_small_memory(tmp_path, memory, compression):
    path = write(tmp_path / f"c.txt{compression}", bomb(compression, 70))
    assert path.stat().st_size < 250_000
    tracemalloc.reset_peak()
    reader = Corpus([path])
    with pytest.raises(UserError, match=r"more than 100 times its size \(.*\).*if you trust it, unpack it first"):
        collections.deque(reader.blocks(), maxlen=0)
    assert memory() < 16 << 20


def test_a_small_text_may_shrink_as_it_likes(tmp_path):
    path = write(tmp_path / "c.txt.gz", bomb(".gz", 20))
    assert sum(map(len, lines_of(path))) == 20 * 1024 * 1023


def test_a_bomb_of_run_length_blocks_is_unpacked_in_small_steps(tmp_path, memory):
    # One zstandard frame of 16,000 blocks, each 4 bytes that say 128 KiB of "\n": 2 GB out of 64 kB.
    block_header = (128 << 10) << 3 | 0b010
    frame = bytes.fromhex("28b52ffd 00 38".replace(" ", "")) + (block_header.to_bytes(3, "little") + b"\n") * 16_000
    path = write(tmp_path / "c.txt.zst", frame)
    with pytest.raises(UserError, match="more than 100 times"):
        lines_of(path)
    assert memory() < 24 << 20


def xz_that_asks_for_4_gib():
    data = bytearray(lzma.compress(b"text"))
    end = 12 + (data[12] + 1) * 4 - 4
    data[16] = 40  # the dictionary's size, in the properties of the LZMA2 filter
    data[end : end + 4] = struct.pack("<I", binascii.crc32(data[12:end]))
    return bytes(data)


def zstd_that_asks_for_a_window_of_1_gib():
    parameters = zstandard.ZstdCompressionParameters(window_log=30)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    return packer.compress(b"text") + packer.flush()


@pytest.mark.parametrize(
    ("name", "make"),
    [("c.txt.xz", xz_that_asks_for_4_gib), ("c.txt.zst", zstd_that_asks_for_a_window_of_1_gib)],
)
def test_a_stream_that_asks_for_too_much_memory_is_refused(tmp_path, name, make):
    path = write(tmp_path / name, make())
    with pytest.raises(UserError, match="needs more than 256 MiB of memory; unpack it first"):
        lines_of(path)


def test_the_strongest_settings_of_the_usual_packers_are_read(tmp_path):
    strong = lzma.compress(b"text", preset=9 | lzma.PRESET_EXTREME)
    assert lines_of(write(tmp_path / "c.txt.xz", strong)) == ["text", ""]
    parameters = zstandard.ZstdCompressionParameters(window_log=28)
    packer = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert lines_of(write(tmp_path / "c.txt.zst", packer.compress(b"text") + packer.flush())) == ["text", ""]


@pytest.mark.parametrize("compression", PACKERS)
def test_a_hundred_thousand_empty_streams_do_not_hold_the_reader_up(tmp_path, compression):
    path = write(tmp_path / f"c.txt{compression}", PACKERS[compression](b"") * 100_000 + PACKERS[compression](b"end"))
    start = time.process_time()
    assert lines_of(path) == ["end", ""]
    assert time.process_time() - start < 10


@pytest.mark.parametrize("compression", PACKERS)
def test_every_truncation_is_a_corrupt_file(tmp_path, compression):
    whole = PACKERS[compression](TEXT)
    path = tmp_path / f"c.txt{compression}"
    for size in range(len(whole)):
        write(path, whole[:size])
        with pytest.raises(CorruptFile, match=f"c.txt{compression}"):
            lines_of(path)


@pytest.mark.parametrize("compression", PACKERS)
def test_a_cut_between_two_streams_and_junk_after_the_last_are_told_apart(tmp_path, compression):
    whole = PACKERS[compression](b"one\n")
    path = tmp_path / f"c.txt{compression}"
    assert lines_of(write(path, whole + PACKERS[compression](b"two\n"))) == ["one", "two", ""]
    assert lines_of(write(path, whole)) == ["one", ""]
    with pytest.raises(CorruptFile):
        lines_of(write(path, whole + b"junk that is no stream"))


@pytest.mark.parametrize("compression", PACKERS)
def test_a_flipped_bit_never_gives_another_text(tmp_path, compression):
    whole = PACKERS[compression](TEXT)
    path = tmp_path / f"c.txt{compression}"
    choose = random.Random(0)
    num_noticed = 0
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
        write(path, bytes(damaged))
        try:
            assert lines_of(path) == LINES
        except CorruptFile:
            num_noticed += 1
    assert num_noticed > 250, "a header holds a few bits that mean nothing to the text, such as the time"


def test_a_parquet_bomb_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    path = tmp_path / "c.parquet"
    pq.write_table(
        pa.table({"text": ["a" * (70 << 20)]}), path, compression="zstd", use_dictionary=False, write_statistics=False
    )
    monkeypatch.delattr(pq.ParquetFile, "iter_batches")
    with pytest.raises(UserError, match="more than 100 times"):
        lines_of(path)


def test_a_parquet_file_that_repeats_one_value_is_stopped(tmp_path):
    path = tmp_path / "c.parquet"
    indices = pa.array([0] * 1000, pa.int32())
    table = pa.table({"text": pa.DictionaryArray.from_arrays(indices, ["a" * 200_000])})
    pq.write_table(table, path, compression="none", store_schema=False)
    with pytest.raises(UserError, match="more than 100 times"):
        lines_of(path)


def test_a_damaged_parquet_file_is_a_user_error_or_read(tmp_path):
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"text": [f"line {n}" for n in range(50)]}), path)
    whole = path.read_bytes()
    choose = random.Random(0)
    for _ in range(200):
        damaged = bytearray(whole)
        damaged[choose.randrange(len(damaged))] ^= 1 << choose.randrange(8)
        write(path, bytes(damaged))
        with contextlib.suppress(UserError):
            lines_of(path)


LAUGHS = "".join(f'<!ENTITY l{n} "{f"&l{n - 1};" * 10}">' for n in range(1, 12))


@pytest.mark.parametrize(
    "prolog",
    [
        f'<!DOCTYPE mediawiki [<!ENTITY l0 "lol">{LAUGHS}]>',
        f'<!DOCTYPE mediawiki [<!ENTITY l11 "{"lol" * 30_000}">]>',
        '<!DOCTYPE mediawiki [<!ENTITY l11 SYSTEM "file:///etc/passwd">]>',
        "<!DOCTYPE mediawiki>",
    ],
)
def test_entity_bombs_are_refused(tmp_path, memory, prolog):
    page = "<page><ns>0</ns><revision><text>" + "&l11;" * 1000 + "</text></revision></page>"
    path = write(tmp_path / "c.xml", f"{prolog}<mediawiki>{page}</mediawiki>".encode())
    start = time.process_time()
    with pytest.raises(UserError, match="document type declaration"):
        lines_of(path)
    assert time.process_time() - start < 2
    assert memory() < 16 << 20


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("<a>" * 100_000, "more than 32 levels of tags"),
        (f'<page title="{"a" * (20 << 20)}', "a single tag of more than 16 MiB"),
        (f"<page><text>{'word ' * (14 << 20)}", "an article of more than 64 million characters"),
    ],
)
def test_xml_that_no_wiki_writes_is_refused_in_bounded_memory(tmp_path, body, reason):
    path = write(tmp_path / "c.xml", f"<mediawiki>{body}".encode())
    with pytest.raises(UserError, match=f"not a Wikipedia dump: it has {reason}"):
        lines_of(path)
