"""T7: vocabulary files, good and bad; each either reads as documented or is refused with the number of the line."""

import time

import pytest

from bertworks import Tokenizer, UserError
from bertworks.text.vocabulary import read_vocabulary, write_vocabulary


def write(tmp_path, content):
    path = tmp_path / "vocab.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


@pytest.mark.parametrize(
    ("content", "pieces"),
    [
        ("[UNK]\na\n##b\n", ["[UNK]", "a", "##b"]),
        ("[UNK]\na\n##b", ["[UNK]", "a", "##b"]),
        ("[UNK]\r\na\r\n##b\r\n", ["[UNK]", "a", "##b"]),
        ("\ufeff[UNK]\na\n", ["[UNK]", "a"]),
        ("[UNK]\n\na\n\n\n", ["[UNK]", "", "a"]),  # a blank line keeps its id, but not at the end
        ("[UNK]\n\n\na", ["[UNK]", "", "", "a"]),
        ("[UNK] \n a\t\n##b\u3000\n", ["[UNK]", "a", "##b"]),
        ("[UNK]\na\u2028b\nc\x85d\ne\rf\n", ["[UNK]", "a\u2028b", "c\x85d", "e\rf"]),  # only \n ends a line
        ("a\n[UNK]\n" + "x" * 1_000, ["a", "[UNK]", "x" * 1_000]),
        ("\n[UNK]\n", ["", "[UNK]"]),
    ],
)
def test_files_that_read_as_the_original_reads_them(tmp_path, content, pieces):
    assert read_vocabulary(write(tmp_path, content)) == pieces


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[UNK]\na\nb\na\n", "{}:4: 'a' is on line 2 already; remove one"),
        ("[UNK]\na\na \n", "{}:3: 'a' is on line 2 already; remove one"),
        ("[UNK]\n\n\na\nb\na\n", "{}:6: 'a' is on line 4 already; remove one"),
        ("a\nb\n", "{} has no [UNK] line; words with unknown characters need it"),
        ("[unk]\na\n", "{} has no [UNK] line; words with unknown characters need it"),
        ("", "{} is empty; a vocabulary has one piece a line"),
        ("\n\r\n \n", "{} is empty; a vocabulary has one piece a line"),
        ("[UNK]\n" + "x" * 1_001, "{}:2: a line with 1,001 characters; a vocabulary has one short piece a line"),
        (
            "[UNK]\n" + "x" * 1_000_000,
            "{}:2: a line with 1,000,000 characters; a vocabulary has one short piece a line",
        ),
        ("[UNK]\na\0b\n", "{}:2: a line with a NUL character; a vocabulary has one short piece a line"),
        (b"[UNK]\nok\n\xff\xfe\n", "{}:3: not UTF-8 (invalid start byte); a vocabulary is plain text"),
        ("[UNK]\na".encode("utf-16"), "{}:1: not UTF-8 (invalid start byte); a vocabulary is plain text"),
        (b"[UNK]\n\xed\xa0\x80\n", "{}:2: not UTF-8 (invalid continuation byte); a vocabulary is plain text"),
    ],
)
def test_files_that_would_give_wrong_ids_are_refused_with_their_line(tmp_path, content, message):
    path = write(tmp_path, content)
    for read in (read_vocabulary, Tokenizer.from_vocab):
        with pytest.raises(UserError) as caught:
            read(path)
        assert str(caught.value) == message.format(path)


@pytest.mark.parametrize(
    ("name", "reason"),
    [("missing.txt", "No such file or directory"), ("", "Is a directory"), ("a\0b", "embedded null byte")],
)
def test_what_is_no_file_is_named(tmp_path, name, reason):
    with pytest.raises(UserError, match=f"cannot read the vocabulary .*: {reason}"):
        read_vocabulary(tmp_path / name)


def test_a_file_beyond_a_quarter_of_a_gigabyte_is_refused_unread(tmp_path):
    path = tmp_path / "vocab.txt"
    with open(path, "wb") as stream:
        stream.truncate((1 << 28) + 1)
    began = time.process_time()
    with pytest.raises(UserError, match=r"has 268,435,457 bytes: too large for a vocabulary"):
        read_vocabulary(path)
    assert time.process_time() - began < 0.5


def test_blank_lines_match_nothing_and_keep_the_ids_behind_them(tmp_path, encode_compiled):
    tokenizer = Tokenizer.from_vocab(write(tmp_path, "[UNK]\n\n[CLS]\n[SEP]\n\na\n##b\n"))
    assert tokenizer.encode("ab  a").ids == [2, 5, 6, 5, 3]
    assert encode_compiled(tokenizer, ["ab  a"])[0].ids == [2, 5, 6, 5, 3]
    assert tokenizer.decode([5, 1, 4, 5]) == "a a"


def test_a_million_lines_are_read_in_seconds(tmp_path):
    path = write(tmp_path, "\n".join(["[UNK]", "[CLS]", "[SEP]", *(f"piece{number}" for number in range(999_997))]))
    began = time.process_time()
    tokenizer = Tokenizer.from_vocab(path)
    assert time.process_time() - began < 10
    assert tokenizer.encode("piece999996").ids == [1, 999_999, 2]


def test_what_is_written_reads_back(tmp_path):
    pieces = ["[PAD]", "[UNK]", "", "é", "##한", "a\u2028b", "🙂"]
    write_vocabulary(tmp_path / "vocab.txt", pieces)
    assert read_vocabulary(tmp_path / "vocab.txt") == pieces
    assert (tmp_path / "vocab.txt").read_bytes().count(b"\n") == len(pieces)


@pytest.mark.parametrize("piece", ["a\nb", " a", "a\r", "\u3000", "\ud800", "a\0"])
def test_a_piece_that_would_not_read_back_is_not_written(tmp_path, piece):
    with pytest.raises(UserError, match=r"piece 1, .*, cannot be written to a vocabulary file"):
        write_vocabulary(tmp_path / "vocab.txt", ["[UNK]", piece])
    assert not (tmp_path / "vocab.txt").exists()
