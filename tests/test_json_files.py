"""Whatever bytes a JSON file has, they are a value or a UserError with the file's name and line."""

import os
import time

import pytest

from bertworks.errors import CorruptFile, UserError
from bertworks.files import parse_json, read_json, read_object

REFUSED = {
    "nothing": (b"", "f:1: not JSON: Expecting value at column 1"),
    "cut off in line 2": (b'{"a": 1,\n"b": ', "f:2: not JSON: Expecting value at column 6"),
    "101 levels": (b"[" * 101 + b"]" * 101, "f:1: not JSON: nested too deeply"),
    "101 levels of objects": (b'{"a":' * 101 + b"1" + b"}" * 101, "nested too deeply"),
    "a million levels": (b"[" * 1_000_000, "nested too deeply"),
    "400 digits": (b"[" + b"1" * 400 + b"]", "a number of 400 digits"),
    "5,000 digits": (b"[-" + b"1" * 5_000 + b"]", "a number of 5,001 digits"),
    "not UTF-8": (b'"\xff"', "byte 1 is not UTF-8"),
    "a surrogate in UTF-8": (b'"\xed\xa0\x80"', "byte 1 is not UTF-8"),
    "half of UTF-16": (b"\xff\xfe\0", "is not UTF-16"),
    "NUL": (b"\0\0\0\0\0", "not JSON"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_value_can_be_made_of_is_refused_with_its_line(kind):
    data, reason = REFUSED[kind]
    started = time.perf_counter()
    with pytest.raises(CorruptFile) as caught:
        parse_json(data, "f")
    assert reason in str(caught.value)
    assert str(caught.value).startswith("f:")
    assert time.perf_counter() - started < 1


def test_what_only_looks_odd_is_read():
    assert parse_json(b"[" * 100 + b"]" * 100, "f")
    assert parse_json(b'["' + b"[" * 500 + b'", "' + b"7" * 500 + b'"]', "f") == ["[" * 500, "7" * 500]
    assert parse_json(b"1" * 300, "f") == int("1" * 300)
    assert parse_json(b"\xef\xbb\xbf{}", "f") == {} == parse_json("{}".encode("utf-16"), "f")
    assert parse_json('{"a": 1, "a": 2}', "f") == {"a": 2}


def test_a_lone_surrogate_is_replaced_and_a_pair_or_a_written_escape_is_not():
    assert parse_json(b'{"\\ud800": "\\uDFFFa\\ud83d\\ude00"}', "f") == {"\ufffd": "\ufffda\U0001f600"}
    assert parse_json(b'"\\\\ud800 \\\\\\ud800 \\ud800\\ud83d\\ude00"', "f") == "\\ud800 \\\ufffd \ufffd\U0001f600"


def test_what_json_has_no_word_for_is_refused_where_the_caller_is_strict():
    assert parse_json("[Infinity]", "f") == [float("inf")]
    with pytest.raises(CorruptFile, match="f:7: not JSON: NaN is no JSON value"):
        parse_json("[NaN]", "f", line=7, strict=True)
    with pytest.raises(CorruptFile, match="'a' is listed twice"):
        parse_json('{"a": 1, "a": 2}', "f", unique=True)


def test_a_file_that_cannot_be_read_is_a_user_error(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "list").write_text("[]")
    (tmp_path / "large").write_text(" " * 50)
    for path, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
        (tmp_path / "a\0b", "null byte"),
        (tmp_path / "pipe", "not a regular file"),
        (tmp_path / "large", "has 50 bytes; at most 40 are read"),
    ):
        with pytest.raises(UserError, match=reason):
            read_json(path, max_bytes=40)
    with pytest.raises(CorruptFile, match="list holds a list, not an object"):
        read_object(tmp_path / "list")
