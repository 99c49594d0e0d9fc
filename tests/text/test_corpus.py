"""Every form of corpus gives the same lines, the lines are those of a slow reference, and mistakes are named."""

import bz2
import csv
import gzip
import importlib.util
import io
import json
import lzma
import os
import pickle
import sys
import tempfile
import tracemalloc
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpus_lines import lines_in
from hypothesis import given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.errors import CorruptFile, UserError, printable
from bertworks.text import corpus
from bertworks.text import corpus as records
from bertworks.text import lines as compressed
from bertworks.text import lines as utf8
from bertworks.text.corpus import Corpus, find_files

PACKERS = {
    "": lambda data: data,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor(write_checksum=True).compress,
}
DOCUMENTS = [["첫 문단.", "A second paragraph, with \u2028 and \x85 inside."], ["Ünïcode 😀"], ["x" * 300, "y"]]
LINES = [line for document in DOCUMENTS for line in (*document, "")]


def as_text(documents=DOCUMENTS):
    return "\n\n".join("\n".join(document) for document in documents).encode()


def as_json_lines(documents=DOCUMENTS):
    return "\n".join(json.dumps({"id": 1, "text": "\n".join(document)}) for document in documents).encode()


def as_wikipedia_dump(documents=DOCUMENTS):
    texts = ("\n\n".join(document) for document in documents)
    pages = "".join(f"<page><ns>0</ns><revision><text>{text}</text></revision></page>" for text in texts)
    return f'<mediawiki xml:lang="en">{pages}</mediawiki>'.encode()


WRITERS = {".txt": as_text, ".jsonl": as_json_lines, ".xml": as_wikipedia_dump}


def write(path, data):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def write_parquet(path, texts, name="text", **options):
    pq.write_table(pa.table({name: texts, "id": list(range(len(texts)))}), path, **options)
    return path


def lines_of(*sources, **options):
    return list(lines_in(Corpus(sources, **options)))


def error_of(*sources, kind=UserError, **options):
    with pytest.raises(kind) as caught:
        lines_of(*sources, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- forms ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("kind", WRITERS)
def test_every_form_in_every_compression_gives_the_same_lines(tmp_path, kind, compression):
    path = write(tmp_path / f"corpus{kind}{compression}", PACKERS[compression](WRITERS[kind]()))
    # Wiki text collapses white space, of which U+2028 and U+0085 are two.
    expected = [" ".join(line.split()) for line in LINES] if kind == ".xml" else LINES
    reader = Corpus([path])
    assert list(lines_in(reader)) == expected
    assert reader.num_documents == len(DOCUMENTS)
    assert reader.bytes_read == reader.total_bytes == path.stat().st_size


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(),
        pa.dictionary(pa.int32(), pa.string()), pa.dictionary(pa.int32(), pa.large_string()),
    ],
)  # fmt: skip
def test_parquet_gives_the_same_lines(tmp_path, kind, compression):
    texts = pa.array(["\n".join(document) for document in DOCUMENTS], pa.string()).cast(kind)
    reader = Corpus([write_parquet(tmp_path / "c.parquet", texts, compression=compression, row_group_size=2)])
    assert list(lines_in(reader)) == LINES
    assert reader.num_documents == len(DOCUMENTS)
    assert reader.bytes_read == reader.total_bytes


@pytest.mark.parametrize("compression", [c for c in PACKERS if c])
def test_streams_in_a_row_are_one_text(tmp_path, compression):
    pack = PACKERS[compression]
    data = pack(b"one\ntw") + pack(b"") + pack("o\n\n한".encode()[:-1]) + pack("한".encode()[-1:])
    assert lines_of(write(tmp_path / f"c.txt{compression}", data)) == ["one", "two", "", "한", ""]


def test_zero_padding_after_a_stream_is_skipped(tmp_path):
    data = gzip.compress(b"one\n") + b"\0" * 200_000 + gzip.compress(b"two\n") + b"\0" * 512
    assert lines_of(write(tmp_path / "c.txt.gz", data)) == ["one", "two", ""]


def test_files_are_documents_of_their_own_even_without_a_last_newline(tmp_path):
    first, second = write(tmp_path / "a.txt", "one"), write(tmp_path / "b.txt", "two\n\n\n")
    assert lines_of(first, second) == ["one", "", "two", ""]


@pytest.mark.parametrize("empty", ["", "\n", " \n\t\n", "\ufeff", "\ufeff\r\n"])
def test_a_file_without_text_gives_no_lines(tmp_path, empty):
    reader = Corpus([write(tmp_path / "c.txt", empty)])
    assert list(lines_in(reader)) == []
    assert reader.num_documents == 0


def test_records_with_no_text_leave_no_document(tmp_path):
    path = write(tmp_path / "c.jsonl", '{"text": "a\\n \\r\\nb\\r\\n"}\n\n{"text": " \\n"}\n  \n{"text": "c"}')
    assert lines_of(path) == ["a", "b", "", "c", ""]
    assert lines_of(write_parquet(tmp_path / "c.parquet", ["a\n\nb", None, "", "c"])) == ["a", "b", "", "c", ""]


def test_the_text_field_can_be_named(tmp_path):
    lines = write(tmp_path / "c.jsonl", '\ufeff{"body": "a", "text": "b"}')
    table = write_parquet(tmp_path / "c.parquet", ["a"], name="body")
    assert lines_of(lines, table, text_field="body") == ["a", "", "a", ""]


# --- lines ---------------------------------------------------------------------------------------------------------


def slow_cut(line, limit):
    """Cut as the law says: the last white space after some word within the limit, or else the limit."""
    parts = []
    while len(line) > limit:
        breaks = [i for i in range(limit) if line[i].isspace() and line[:i].strip() and line[i:limit].strip()]
        if breaks:
            parts.append(line[: breaks[-1]].rstrip())
            line = line[breaks[-1] :].lstrip()
        elif line[0].isspace():
            line = line[:limit].lstrip() + line[limit:]
        else:
            parts.append(line[:limit])
            line = line[limit:]
    return [*parts, line] if line.strip() else parts


def slow_lines(data, limit=1 << 20):
    """The law of plain text, written for the reader and not for the clock."""
    lines = []
    if b"\r" in data[:-1] and b"\n" not in data:
        data = data.replace(b"\r", b"\n")
    for line in data.decode(errors="replace").removeprefix("\ufeff").split("\n"):
        if parts := slow_cut(line.removesuffix("\r"), limit):
            lines += parts
        elif lines and lines[-1] != "":
            lines.append("")
    return [*lines, ""] if lines and lines[-1] != "" else lines


LETTERS = st.sampled_from("\n\n\n\r  \tab.\u2028\x85\x0b\x1c\u3000가😀é\ufeff")
TEXTS = st.one_of(
    st.text(LETTERS, max_size=60).map(str.encode),
    st.lists(
        # Seven at most: from sixteen bad characters on, a file is refused as no text at all.
        st.sampled_from([b"\n", b"\r\n", b" ", b"ab", b"\xed\x95", b"\x80\x80", b"\xf0\x9f", b"\xff"]),
        max_size=7,
    ).map(b"".join),
)


@settings(max_examples=examples(400), deadline=None)
@given(data=TEXTS, block_bytes=st.integers(1, 9), limit=st.integers(2, 9), compression=st.sampled_from(["", ".gz"]))
def test_lines_equal_the_slow_reference_wherever_blocks_and_cuts_fall(data, block_bytes, limit, compression):
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(compressed, "PIECE_BYTES", block_bytes),
        mock.patch.object(utf8, "MAX_LINE_LENGTH", limit),
    ):
        reader = Corpus([write(Path(folder, f"c.txt{compression}"), PACKERS[compression](data))])
        blocks = list(reader.blocks())
        assert list(lines_in(reader)) == slow_lines(data, limit)
    assert all(block.endswith("\n") for block in blocks)
    assert "".join(f"{line}\n" for line in slow_lines(data, limit)) == "".join(blocks)
    assert reader.num_documents == slow_lines(data, limit).count("")


@settings(max_examples=examples(100), deadline=None)
@given(documents=st.lists(st.text(LETTERS, max_size=30), max_size=6), block=st.integers(1, 20), limit=st.integers(2, 9))
def test_records_equal_the_slow_reference(documents, block, limit):
    expected = []
    for text in documents:
        lines = [part for line in text.split("\n") for part in slow_cut(line.removesuffix("\r"), limit)]
        expected += [*lines, ""] if lines else []
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(compressed, "PIECE_BYTES", block),
        mock.patch.object(corpus, "_BLOCK_CHARACTERS", block),
        mock.patch.object(utf8, "MAX_LINE_LENGTH", limit),
    ):
        reader = Corpus([write(Path(folder, "c.jsonl"), "\n".join(json.dumps({"text": t}) for t in documents))])
        assert list(lines_in(reader)) == expected
        assert reader.num_documents == expected.count("")


def test_only_newlines_end_lines(tmp_path):
    text = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\rh"
    assert lines_of(write(tmp_path / "c.txt", f"\ufeff{text}\r\nnext")) == [text, "next", ""]


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("kind", [".txt", ".jsonl"])
def test_lines_may_end_as_on_old_macs(tmp_path, kind, compression):
    data = WRITERS[kind]().replace(b"\n", b"\r")
    assert lines_of(write(tmp_path / f"c{kind}{compression}", PACKERS[compression](data))) == LINES


def test_a_first_line_that_fills_what_is_looked_at_is_none_of_an_old_mac(tmp_path):
    text = "x" * ((1 << 16) - 1)
    assert lines_of(write(tmp_path / "c.txt", f"{text}\r\nsecond\r\nthird\r\n")) == [text, "second", "third", ""]


def test_a_long_line_is_cut_between_words_within_bounded_memory(tmp_path):
    path = write(tmp_path / "c.txt", ("한국어 " * 5_000_000).encode())
    tracemalloc.start()
    try:
        lengths, num_words = [], 0
        for line in lines_in(Corpus([path])):
            lengths.append(len(line))
            num_words += line.count("한국어")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_words == 5_000_000
    assert max(lengths) <= 1 << 20
    assert peak < 24 << 20, "the file has 50 MB and one line"


def test_a_run_without_white_space_is_cut_at_the_limit(tmp_path):
    path = write(tmp_path / "c.txt", "x" * ((1 << 20) + 5) + "\n\nend")
    assert [len(line) for line in lines_in(Corpus([path]))] == [1 << 20, 5, 0, 3, 0]


def test_blocks_hold_about_a_million_characters(tmp_path):
    path = write(tmp_path / "c.txt", "a line of text\n" * 300_000)
    sizes = [len(block) for block in Corpus([path]).blocks()]
    assert max(sizes) <= 1.1 * (1 << 20)
    assert sum(sizes) == 300_000 * 15 + 1
    path = write(tmp_path / "c.jsonl", json.dumps({"text": "a line of text\n" * 300_000}))
    sizes = [len(block) for block in Corpus([path]).blocks()]
    assert max(sizes) <= 1.1 * (1 << 20)


def test_progress_goes_up_to_the_size_of_all_files_and_starts_anew_with_each_pass(tmp_path):
    for name in ("a.txt.gz", "b.txt.gz"):
        write(tmp_path / name, gzip.compress(os.urandom(400_000).hex().encode()))
    reader = Corpus([tmp_path])
    for _ in range(2):
        seen = [reader.bytes_read for _ in reader.blocks()]
        assert seen == sorted(seen)
        assert 0 < seen[0] < reader.total_bytes == reader.bytes_read
        assert reader.num_documents == 2


# --- what is not UTF-8 -----------------------------------------------------------------------------------------------


def test_invalid_bytes_are_replaced_and_their_lines_counted(tmp_path):
    reader = Corpus([write(tmp_path / "c.txt", b"good\nb\xffd \xfe\n\nfine \xed\x95\x9c\ncut \xed\x95")])
    assert list(lines_in(reader)) == ["good", "b\ufffdd \ufffd", "", "fine 한", "cut \ufffd", ""]
    assert reader.num_replaced == 2


def test_strict_reading_names_the_line_of_an_invalid_byte(tmp_path):
    path = write(tmp_path / "c.txt", b"fine\n" * 500_000 + b"\nb\xffd\n")
    assert f"{path}:500002: byte 0xff is not UTF-8" in error_of(path, strict=True)
    path = write(tmp_path / "c.jsonl", b'\n{"text": "a\xff"}')
    assert f"{path}:2: byte 0xff" in error_of(path, strict=True)


def test_invalid_bytes_in_records_are_replaced_and_counted(tmp_path):
    reader = Corpus([write(tmp_path / "c.jsonl", b'{"text": "a\xff"}\n{"text": "b"}')])
    assert list(lines_in(reader)) == ["a\ufffd", "", "b", ""]
    assert reader.num_replaced == 1
    bad = pa.Array.from_buffers(pa.string(), 1, pa.array([b"a\xff"]).buffers())
    reader = Corpus([write_parquet(tmp_path / "c.parquet", bad)])
    assert list(lines_in(reader)) == ["a\ufffd", ""]
    assert reader.num_replaced == 1


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_binary_of_parquet_that_is_no_text_is_refused_with_its_row(tmp_path, kind):
    path = write_parquet(tmp_path / "c.parquet", pa.array([b"a", None, b"\xff\xd8\xff"], kind))
    assert f"{path}: row 3: column 'text' is binary, and not UTF-8 text" in error_of(path)


def test_lone_surrogates_in_json_are_replaced_and_pairs_are_kept(tmp_path):
    reader = Corpus([write(tmp_path / "c.jsonl", r'{"text": "a\ud800b \ud83d\ude00 \uDC00"}')])
    (line, _) = lines_in(reader)
    assert line == "a\ufffdb 😀 \ufffd"
    assert reader.num_replaced == 1


def test_binary_files_are_refused(tmp_path):
    assert "NUL" in error_of(write(tmp_path / "a.txt", b"\x7fELP\0\0\0"))
    assert "UTF-16" in error_of(write(tmp_path / "b.txt", "text".encode("utf-16")))
    assert "not UTF-8 text" in error_of(write(tmp_path / "c.txt", "한국어 문장이다. ".encode("euc-kr") * 50))
    assert "NUL" in error_of(write(tmp_path / "d.jsonl", b"{}\0"))


def test_a_foreign_letter_here_and_there_does_not_make_a_file_binary(tmp_path):
    reader = Corpus([write(tmp_path / "c.txt", "Grüße aus München\n".encode("latin-1") * 100)])
    assert set(lines_in(reader)) - {""} == {"Gr\ufffd\ufffde aus M\ufffdnchen"}
    assert reader.num_replaced == 100


# --- sources ---------------------------------------------------------------------------------------------------------


def names(*sources):
    return [path.name for path in Corpus(sources).files]


def test_a_folder_gives_known_files_at_any_depth_sorted_and_without_hidden_ones(tmp_path):
    for name in ("b.txt", "a/z.jsonl.zst", "a/y.XML.bz2", "c.txt.gz", "d.txt.xz"):
        write(tmp_path / name, "x")
    for name in (".h.txt", ".git/x.txt", "README", "x.py", "x.zip", "x.tar.gz", "x.gz", "x.parquet.gz"):
        write(tmp_path / name, "x")
    assert names(tmp_path) == ["y.XML.bz2", "z.jsonl.zst", "b.txt", "c.txt.gz", "d.txt.xz"]


def test_patterns_match_as_the_shell_does(tmp_path, monkeypatch):
    for name in ("a.txt", "b.en", "sub/c.txt", "sub/.d.txt", "sub/deep/e.txt", "sub/deep/f[1].txt", ".hidden/g.txt"):
        write(tmp_path / name, "x")
    monkeypatch.chdir(tmp_path)
    assert names("*.txt") == ["a.txt"]
    assert names("?.en", "*.txt") == ["a.txt", "b.en"]
    assert names(str(tmp_path / "sub" / "*")) == ["c.txt"]
    assert names("sub/**") == names("sub/**/*.txt") == ["c.txt", "e.txt", "f[1].txt"]
    assert names("**/*.txt") == ["a.txt", "c.txt", "e.txt", "f[1].txt"]
    assert names("sub/deep/f[1].txt") == ["f[1].txt"]
    assert names(".hidden/*") == names(".hid*/*") == ["g.txt"]


def test_a_file_named_twice_is_read_once_and_the_order_does_not_depend_on_the_caller(tmp_path):
    first, second = write(tmp_path / "a.txt", "1"), write(tmp_path / "b.txt", "2")
    (tmp_path / "link.txt").symlink_to(first)
    assert Corpus([second, first]).files == Corpus([tmp_path, str(first), tmp_path / "*.txt"]).files == [first, second]


def test_a_named_file_of_unknown_ending_is_plain_text(tmp_path):
    readme = write(tmp_path / "README", "read me")
    packed = write(tmp_path / "corpus.en.gz", gzip.compress(b"packed"))
    assert lines_of(readme, packed) == ["read me", "", "packed", ""]


def test_a_link_is_read_by_its_own_ending(tmp_path):
    blob = write(tmp_path / "blobs" / "0a1b", gzip.compress(b"text"))
    (tmp_path / "c.txt.gz").symlink_to(blob)
    assert lines_of(tmp_path / "c.txt.gz") == ["text", ""]


def test_links_out_of_a_folder_are_not_followed_and_cycles_end(tmp_path):
    folder = tmp_path / "folder"
    write(tmp_path / "secret.txt", "x")
    inside = write(folder / "z.txt", "x")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "in.txt").symlink_to(inside)
    (folder / "self.txt").symlink_to(folder / "self.txt")
    for name in ("up", "again"):
        (folder / name).symlink_to(folder)
    assert names(folder) == ["in.txt"]
    assert names(folder / "**" / "z.txt") == ["z.txt"]


def standard_input(monkeypatch, data):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_standard_input_is_plain_text_of_unknown_size_and_comes_last(tmp_path, monkeypatch):
    standard_input(monkeypatch, "표준 입력\r\n\nx".encode())
    reader = Corpus(["-", write(tmp_path / "a.txt", "file"), "-"])
    assert reader.total_bytes is None
    assert list(lines_in(reader)) == ["file", "", "표준 입력", "", "x", ""]
    assert reader.files[-1] == Path("-")


def test_standard_input_is_not_read_twice(monkeypatch):
    standard_input(monkeypatch, b"x")
    reader = Corpus(["-"])
    assert list(lines_in(reader)) == ["x", ""]
    with pytest.raises(UserError, match="only once"):
        list(lines_in(reader))


# --- what a file holds, whatever its name ---------------------------------------------------------------------------


def as_json_list(documents=DOCUMENTS, **options):
    return json.dumps([{"id": 1, "text": "\n".join(document)} for document in documents], **options).encode()


def as_pretty_records(documents=DOCUMENTS):
    return b"\n".join(json.dumps({"text": "\n".join(document)}, indent=2).encode() for document in documents)


def as_csv(documents=DOCUMENTS):
    cells = [["id", "text"]] + [["1", "\n".join(document)] for document in documents]
    csv.writer(stream := io.StringIO(), lineterminator="\r\n").writerows(cells)
    return stream.getvalue().encode()


CONTENTS = {
    "JSON lines": as_json_lines,
    "JSON lines with a mark": lambda: b"\xef\xbb\xbf" + as_json_lines(),
    "a JSON list": as_json_list,
    "a JSON list with a mark": lambda: b"\xef\xbb\xbf" + as_json_list(),
    "a JSON list in Unicode": lambda: as_json_list(ensure_ascii=False),
    "an indented JSON list": lambda: as_json_list(indent=4),
    "a list of strings": lambda: json.dumps(["\n".join(document) for document in DOCUMENTS]).encode(),
    "indented records": as_pretty_records,
}


@pytest.mark.parametrize("compression", PACKERS)
@pytest.mark.parametrize("name", ["c.ndjson", "c.json", "c.jsonl", "c.csv", "c.txt", "c.data", "c", "-"])
@pytest.mark.parametrize("content", CONTENTS)
def test_json_is_read_as_such_under_any_name(tmp_path, monkeypatch, content, name, compression):
    data = PACKERS[compression](CONTENTS[content]())
    if name == "-":
        standard_input(monkeypatch, data)
        assert lines_of("-") == LINES
    else:
        assert lines_of(write(tmp_path / f"{name}{compression}", data)) == LINES
        # The packing is told by the content, too.
        assert lines_of(write(tmp_path / name, data)) == LINES


def test_what_a_file_is_read_as_is_said_once_where_its_name_says_otherwise(tmp_path, caplog):
    for name in ("a.jsonl", "b.ndjson", "c.json", "d.json"):
        write(tmp_path / name, as_json_lines())
    assert lines_of(tmp_path / "a.jsonl", tmp_path / "b.ndjson") == LINES * 2
    assert not caplog.messages
    write(tmp_path / "e.txt", as_json_lines())
    write(tmp_path / "f.log", as_json_lines())
    assert lines_of(tmp_path / "e.txt", tmp_path / "f.log", text_field="text") == LINES * 2
    assert caplog.messages == [
        f"{tmp_path / 'e.txt'} is read as JSON lines, judging by its content; its text is the field 'text'"
    ]


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl", "a.ndjson", "a.json", "a"])
def test_a_json_string_on_each_line_is_a_text_under_any_name(tmp_path, name):
    texts = ['"Say \\"when\\"."', '"two\\nlines"', '"\\uc88b\\ub2e4"']
    expected = ['Say "when".', "", "two", "lines", "", "좋다", ""]
    assert lines_of(write(tmp_path / name, "\n".join(texts))) == expected


@pytest.mark.parametrize("ending", [".txt", ".jsonl", ".json", ".csv", ""])
def test_parquet_and_dumps_are_read_under_any_name(tmp_path, ending):
    path = write_parquet(tmp_path / f"p{ending}", ["\n".join(document) for document in DOCUMENTS])
    assert lines_of(path) == LINES
    dump = write(tmp_path / f"dump{ending}", bz2.compress(as_wikipedia_dump([["eins", "zwei"]])))
    assert lines_of(dump) == ["eins", "zwei", ""]


@pytest.mark.parametrize(
    "text",
    [
        '"What?" she said.\n"And now?"',
        '"A single line in quotes."',
        '{"a": 1} is how JSON looks.\nProse goes on.',
        '{"a": 1}\nProse that goes on\nand on\nand on.',
        "{curly} words\nand more",
        "[Music]\n[Applause]",
        '["What?" she said.]\nmore',
        "[1] a note",
        "text,label\nnot a table, for its name says text",
        "<b>bold</b> words",
        "BZh is no archive",
        "PAR for the course",
    ],
)
def test_prose_that_looks_a_little_like_something_else_is_text(tmp_path, text):
    assert lines_of(write(tmp_path / "c.txt", text)) == [*text.split("\n"), ""]


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"%PDF-1.7 text", "a PDF"),
        (b"PK\x03\x04 text", "a zip archive"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old Office or HWP document"),
        (b"{\\rtf1 text}", "an RTF document"),
        (b"SQLite format 3\0", "an SQLite database"),
        (b"\x93NUMPY\x01", "a NumPy array"),
        (b"ARROW1\0\0", "an Arrow file"),
        (pickle.dumps(["text"]), "a Python pickle"),
        (b"\x89PNG\r\n", "a picture"),
        (b"a.txt".ljust(257, b"\0") + b"ustar\x0000", "a tar archive"),
        (b"\n<!DOCTYPE HTML>\n<p>text", "an HTML page; extract its text first"),
        (b"\xef\xbb\xbf<html lang='ko'>", "an HTML page"),
        (b'<?xml version="1.0"?><TEI>text</TEI>', "XML, but not a Wikipedia dump"),
        (b'<doc id="12" url="" title="A">\ntext\n</doc>', "WikiExtractor's text with tags; run it with --json"),
    ],
)
@pytest.mark.parametrize("name", ["c.txt", "c.jsonl", "c.csv", "c", "c.txt.gz", "-"])
def test_what_is_plainly_not_text_is_refused_by_name(tmp_path, monkeypatch, data, what, name):
    standard_input(monkeypatch, data)
    path = name if name == "-" else write(tmp_path / name, gzip.compress(data) if name.endswith(".gz") else data)
    assert f"{path} is {what}" in error_of(path)


@pytest.mark.parametrize("compression", PACKERS)
def test_the_text_column_of_csv_and_tsv_is_the_text(tmp_path, compression):
    pack = PACKERS[compression]
    assert lines_of(write(tmp_path / f"c.csv{compression}", pack(as_csv()))) == LINES
    table = write(tmp_path / f"c.tsv{compression}", pack('text\tn\r\n한 "글"\t1\r\n\tx\n'.encode()))
    assert lines_of(table) == ['한 "글"', ""]
    semicolons = write(tmp_path / f"d.csv{compression}", pack(b"\xef\xbb\xbfsep=;\r\nn;text;\r\n1;a, b;\r\n2;c;;\r\n"))
    assert lines_of(semicolons) == ["a, b", "", "c", ""]


def test_a_table_without_the_text_column_says_how_to_name_it(tmp_path):
    path = write(tmp_path / "c.csv", "review,stars\nfine,3\n")
    assert error_of(path) == (
        f"{path}: no field 'text' to take the text from; there are: 'review', 'stars'; give its name with --text-field"
    )
    assert lines_of(path, text_field="review") == ["fine", ""]
    path = write(tmp_path / "d.csv", "text,stars\nfine,3\na,b,c\n")
    assert f"{path}:3: 3 columns where 2 are expected" in error_of(path)


def test_a_folder_gives_json_records_and_says_what_it_leaves_out(tmp_path, caplog):
    write(tmp_path / "c4-train.00000-of-01024.json.gz", gzip.compress(as_json_lines()))
    write(tmp_path / "list.json", as_json_list())
    write(tmp_path / "a.ndjson", as_json_lines())
    write(tmp_path / "dataset_info.json", json.dumps({"features": {}}, indent=2))
    write(tmp_path / "state.json", json.dumps({"step": 1}))
    write(tmp_path / "labels.csv", "text\n1\n")
    write(tmp_path / "model" / "tokenizer_config.json", "[]")
    write(tmp_path / "model" / "tokenizer.json", "[]")
    assert names(tmp_path) == ["a.ndjson", "c4-train.00000-of-01024.json.gz", "list.json"]
    assert caplog.messages == [
        f"{tmp_path}: not read: 2 .json, 1 .csv; if they are text, give them by name or by a pattern"
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ('[{"text": "a"},\n {"text": "b"}', "ends before its JSON list does"),
        ('[{"text": "a"}\n {"text": "b"}]', ":2: not JSON: '{' where ',' or ']' is expected"),
        ('[{"text": "a"}]\n\n[{"text": "b"}]', ":3: not JSON: '[' after the end"),
        ('[{"text": "a"}, {"text": "b]', ":1: not JSON: Invalid control character"),
        ('[{"text": "a"},\n{"body": "b"}]', ":2: no field 'text' to take the text from; there are: 'body'"),
        ('{\n"text": "a",\n"data": [}\n', "not JSON"),
        ('{"version": "1.1", "data": [\n{"paragraphs": []}\n]}', "no field 'text'"),
        ("[" * 100_000, "not JSON"),
        ("text", "not JSON"),
    ],
)
def test_json_that_is_not_whole_is_an_error_with_its_line(tmp_path, data, reason):
    path = write(tmp_path / "c.json", data)
    message = error_of(path)
    assert message.startswith(str(path))
    assert reason in message


@settings(max_examples=100, deadline=None)
@given(
    documents=st.lists(st.text(LETTERS, max_size=30), max_size=6),
    block=st.integers(1, 20),
    indent=st.sampled_from([None, 1]),
)
def test_a_json_list_equals_json_lines_wherever_its_blocks_are_cut(documents, block, indent):
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(compressed, "PIECE_BYTES", block),
        mock.patch.object(records, "PIECE_BYTES", block),
    ):
        values = [{"text": text} for text in documents]
        lines = write(Path(folder, "c.jsonl"), "\n".join(map(json.dumps, values)))
        whole = write(Path(folder, "c.json"), json.dumps(values, indent=indent, ensure_ascii=False))
        assert lines_of(whole) == lines_of(lines)


def test_a_json_list_is_read_within_bounded_memory(tmp_path):
    path = write(tmp_path / "c.json", json.dumps([{"text": "a line of text\n" * 1000}] * 3000))
    tracemalloc.start()
    try:
        num_lines = sum(1 for _ in lines_in(Corpus([path])))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert num_lines == 3_003_000
    assert peak < 24 << 20, "the file has 48 MB and one line"


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_no_sources_is_an_error():
    assert "no corpus was given" in error_of()


@pytest.mark.parametrize("name", ["missing.txt", "a\0b", "x" * 500, "missing/*.txt", "a**.txt", "sub/*"])
def test_a_name_that_leads_to_nothing_is_an_error_with_the_name(tmp_path, name):
    (tmp_path / "sub" / "folder.txt").mkdir(parents=True)
    assert printable(str(tmp_path / name)) in error_of(str(tmp_path / name))


def test_a_vocabulary_in_a_corpus_folder_is_no_text(tmp_path):
    for name in ("a.txt", "vocab.txt", "data/vocab.txt", "data/tokenizer_config.json", "own/vocab.txt", "v.txt"):
        write(tmp_path / name, b"words\n")
    found = {path.relative_to(tmp_path).as_posix() for path in find_files([tmp_path], without=[tmp_path / "v.txt"])}
    assert found == {"a.txt", "vocab.txt", "own/vocab.txt"}
    assert find_files([f"{tmp_path}/*.txt"], without=[tmp_path / "v.txt"]) == [
        tmp_path / "a.txt",
        tmp_path / "vocab.txt",
    ]
    named = [tmp_path / "v.txt", tmp_path / "data/vocab.txt"]
    assert find_files(named, without=named) == sorted(named)


def test_a_folder_without_corpus_files_is_an_error(tmp_path):
    write(tmp_path / "notes.md", "x")
    assert f"{tmp_path} holds no corpus files (.txt, .jsonl, .json, .parquet, .xml" in error_of(tmp_path)


def test_something_that_is_not_a_regular_file_is_an_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in error_of(tmp_path / "pipe")


def test_files_that_may_not_be_read_are_named_before_anything_is_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a.txt", "x")
    reader = Corpus([path])
    with (
        mock.patch.object(Path, "open", side_effect=PermissionError(13, "Permission denied")),
        pytest.raises(UserError, match=f"cannot read {path}: Permission denied"),
    ):
        next(lines_in(reader))
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(UserError, match=f"cannot read {path}: permission denied"):
        Corpus([path])


def test_folders_that_may_not_be_entered_are_an_error(tmp_path, monkeypatch):
    write(tmp_path / "sub" / "a.txt", "x")
    monkeypatch.setattr(os, "scandir", mock.Mock(side_effect=PermissionError(13, "Permission denied", str(tmp_path))))
    assert f"cannot read {tmp_path}: Permission denied" in error_of(tmp_path)


@pytest.mark.parametrize(("name", "module"), [("c.txt.zst", "zstandard"), ("c.parquet", "pyarrow")])
def test_a_missing_package_is_named_before_anything_is_read(tmp_path, monkeypatch, name, module):
    monkeypatch.setattr(importlib.util, "find_spec", lambda wanted: None if wanted == module else object())
    with pytest.raises(UserError, match=rf'needs {module}: pip install "bertworks\[data\]"'):
        Corpus([write(tmp_path / name, "x")])


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ('{"text": "a"', "not JSON"),
        ('{"text": "a"} {}', "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"text": ' + "1" * 5000 + "}", "not JSON"),
        ('["text"]', "a list where a string or a record"),
        ("7", "a whole number where a string or a record"),
        ('{"body": "a", "id\\ud800": 1}', "no field 'text' to take the text from; there are: 'body', 'id�'"),
        ("{}", "there are: none"),
        (json.dumps({f"k{i}": i for i in range(99)}), "'k19', ..."),
        ('{"text": null}', "field 'text' is null, not a string"),
        ('{"text": ["a"]}', "field 'text' is a list, not a string"),
    ],
)
def test_a_bad_record_is_an_error_with_file_and_line(tmp_path, record, reason):
    path = write(tmp_path / "c.jsonl", f'{{"text": "fine"}}\n\n{record}\n')
    message = error_of(path)
    assert message.startswith(f"{path}:3: ")
    assert reason in message
    assert len(message) < 500


def test_a_record_beyond_the_limit_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr("bertworks.text.lines.MAX_RECORD_BYTES", 3 << 20)
    path = write(tmp_path / "c.jsonl", json.dumps({"text": "x" * (4 << 20)}))
    assert f"{path}:1: a line of more than 3 MiB" in error_of(path)


def test_parquet_mistakes_are_named(tmp_path):
    path = write_parquet(tmp_path / "c.parquet", ["a"], name="body")
    assert f"{path}: no field 'text' to take the text from; there are: 'body', 'id'" in error_of(path)
    assert "column 'id' is of type int64, not string" in error_of(path, text_field="id")
    assert "not an intact Parquet file" in error_of(write(tmp_path / "d.parquet", b"PAR1junk"), kind=CorruptFile)
    whole = write_parquet(tmp_path / "e.parquet", ["text " * 1000] * 100, compression="none").read_bytes()
    damaged = write(tmp_path / "f.parquet", whole[:4] + b"\xff" * 40 + whole[44:])
    assert str(damaged) in error_of(damaged, kind=CorruptFile)
