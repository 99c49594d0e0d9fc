"""T9: rows out of every kind of file, and a place in every message."""

import csv
import gzip
import io
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertworks.errors import CorruptFile, UserError
from bertworks.tasks.tables import numbered_lines, rows, word_of
from bertworks.tasks.task import Skipped

CELLS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0\r"), max_size=8)


def values(path, *options):
    return [row.values for row in rows(path, *options)]


def test_a_byte_order_mark_and_carriage_returns_are_no_part_of_a_table(write):
    path = write("a.tsv", "\ufefftext\tlabel\r\none\t1\r\ntwo \t0\r\n")
    assert values(path) == [{"text": "one", "label": "1"}, {"text": "two ", "label": "0"}]


@pytest.mark.parametrize("end", ["\r", "\r\n", "\n"])
def test_lines_may_end_with_a_carriage_return_alone(write, end):
    expected = [{"text": "one", "label": "1"}, {"text": "two", "label": "0"}]
    for name, sign in (("a.tsv", "\t"), ("a.csv", ","), ("b.csv", ";")):
        path = write(name, end.join((f"text{sign}label", f"one{sign}1", f"two{sign}0", "")))
        assert values(path) == expected
        assert [row.where for row in rows(path)] == [f"{path}:2", f"{path}:3"]


def test_a_carriage_return_inside_a_row_stays_there(write):
    assert values(write("a.tsv", "text\tlabel\na\rb\t1\n")) == [{"text": "a\rb", "label": "1"}]
    assert values(write("a.csv", 'text,label\n"a\rb",1\n')) == [{"text": "a\rb", "label": "1"}]


def test_quotes_are_plain_characters_in_tab_separated_text(write):
    path = write("a.tsv", 'text\tlabel\n"never closed\t1\nsays "so"\t0\n')
    assert [row["text"] for row in values(path)] == ['"never closed', 'says "so"']


def test_signs_that_python_takes_for_line_ends_stay_inside_a_row(write):
    path = write("a.tsv", "text\tlabel\na\x0bb\x85c\u2028d\t1\n")
    assert values(path) == [{"text": "a\x0bb\x85c\u2028d", "label": "1"}]


def test_the_last_line_needs_no_end_and_blank_lines_are_no_rows(write):
    assert len(values(write("a.tsv", "text\tlabel\na\t1\n\nb\t0"))) == 2


def test_a_missing_column_is_an_error_with_its_line_and_the_columns(write, refusal):
    words = refusal(rows(write("a.tsv", "text\tlabel\nfine\t1\nno label\n")))
    assert "a.tsv:3: 1 column where 2 are expected: 'text', 'label'" in words


def test_rows_with_a_wrong_number_of_columns_are_counted_where_that_is_allowed(write):
    skipped = Skipped()
    path = write("a.tsv", "text\tlabel\nfine\t1\nno label\na\tb\tc\n")
    assert values(path, None, skipped) == [{"text": "fine", "label": "1"}]
    assert skipped.counts == {"rows with a wrong number of columns": 2}
    assert "a.tsv:3" in str(skipped)


def test_a_file_without_names_may_have_more_columns_than_are_read(write, refusal):
    path = write("a.tsv", "x\t1\tmore\ny\t2\n")
    assert values(path, ("text", "label")) == [{"text": "x", "label": "1"}, {"text": "y", "label": "2"}]
    assert "a.tsv:2: 2 columns where 3" in refusal(rows(path, ("a", "b", "c")))


@pytest.mark.parametrize(("content", "words"), [("", "no first line"), ("a\ta\n1\t2\n", "2 columns are named 'a'")])
def test_a_table_needs_names_for_its_columns(write, refusal, content, words):
    assert words in refusal(rows(write("a.tsv", content)))


def test_a_column_that_is_not_there_is_told_with_those_that_are(write):
    row = next(rows(write("a.tsv", "review\tstars\ngood\t5\n")))
    with pytest.raises(UserError, match=r"a\.tsv:2: no column 'text'; there are: 'review', 'stars'"):
        row.text("text")


def test_bytes_that_are_not_utf8_are_told_with_their_line(write, refusal):
    path = write("a.tsv", b"text\tlabel\nfine\t1\n" + "한국".encode("cp949") + b"\t0\n")
    assert "a.tsv:3: byte 0xc7 is not UTF-8" in refusal(rows(path))


@pytest.mark.parametrize(
    ("line", "encoding"), [("정말 좋은 영화, 뷁", "cp949"), ("café, naïve, 20°C, ÄÖ", "latin1"), ("éé", "latin1")]
)
@pytest.mark.parametrize("times", [1, 100])
def test_bytes_that_are_not_utf8_are_told_with_a_command_that_converts_them(write, refusal, line, encoding, times):
    path = write("a.tsv", b"text\n" + f"{line}\n".encode(encoding) * times)
    assert f"perhaps with `iconv -f {encoding} -t UTF-8 IN > OUT`" in refusal(rows(path))


def test_a_file_that_is_mostly_utf8_is_not_to_be_converted(write, refusal):
    path = write("a.tsv", b"text\n" + "정말 좋은 영화".encode() + b"\xe9\n")
    assert "a.tsv:2: byte 0xe9 is not UTF-8; most of the file is, so fix the bytes that are not" in refusal(rows(path))


@pytest.mark.parametrize("name", ["a.xlsx", "a.XLS", "a.feather"])
def test_an_ending_that_is_not_read_is_told_with_those_that_are(write, refusal, name):
    ending = name.removeprefix("a")
    assert f"{name}: {ending} is not read; save it as .csv, .tsv, .jsonl, " in refusal(
        rows(write(name, "text\tlabel\n"))
    )


def test_utf16_is_told_by_its_name(write, refusal):
    assert "UTF-16" in refusal(rows(write("a.tsv", "text\tlabel\na\t1\n".encode("utf-16"))))


def test_nul_bytes_are_told_in_words_that_fit_a_table(write, refusal):
    words = refusal(rows(write("a.csv", b"text,label\na\0b,1\n")))
    assert "it has NUL bytes; it must be UTF-8 text (convert UTF-16 with `iconv -f UTF-16 -t UTF-8 IN > OUT`)" in words


def test_csv_has_quotes_and_rows_of_several_lines_and_knows_where_each_starts(write):
    path = write("a.csv", 'text,label\n"two\nlines, ""quoted""",1\nplain,0\n')
    found = list(rows(path))
    assert [row.values["text"] for row in found] == ['two\nlines, "quoted"', "plain"]
    assert [row.where for row in found] == [f"{path}:2", f"{path}:4"]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(CELLS, CELLS), max_size=4))
def test_csv_gives_back_what_pythons_writer_wrote(tmp_path, records):
    stream = io.StringIO()
    csv.writer(stream, lineterminator="\n").writerows([("a", "b"), *records])
    path = tmp_path / "a.csv"
    path.write_bytes(stream.getvalue().encode())
    assert values(path) == [{"a": first, "b": second} for first, second in records]


def test_a_quote_that_is_never_closed_is_told_with_the_line_where_it_opens(write, refusal):
    path = write("a.csv", 'text,label\nfine,1\n"never closed,0\n' + "more,1\n" * 1_000)
    assert "a.csv:3: not CSV" in refusal(rows(path))


def test_a_quote_inside_quotes_must_be_doubled(write, refusal):
    assert "a.csv:2: not CSV" in refusal(rows(write("a.csv", 'text,label\n"5" pipe",1\n')))


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_csv_finds_its_delimiter_in_the_first_line(write, delimiter):
    path = write("a.csv", f"text{delimiter}label\na b{delimiter}1\n")
    assert values(path) == [{"text": "a b", "label": "1"}]


def test_a_text_of_a_megabyte_is_read_from_csv(write):
    path = write("a.csv", f"text,label\n{'long ' * 200_000},1\n")
    assert len(values(path)[0]["text"]) == 1_000_000


def test_json_lines_keep_their_types_and_open_objects_by_one_level(write):
    path = write("a.jsonl", '{"text": "a", "labels": {"label": 4.5}}\n\n{"text": "b", "labels": {"label": 1}}\n')
    assert [row["labels.label"] for row in values(path)] == [4.5, 1]
    assert [row.where for row in rows(path)] == [f"{path}:1", f"{path}:3"]


def test_a_json_list_has_records_by_number(write):
    path = write("a.json", '[{"text": "a"}, {"text": "b"}]')
    assert [(row.values["text"], row.where) for row in rows(path)] == [("a", f"{path}: [0]"), ("b", f"{path}: [1]")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "not JSON"),
        ("[1]", "a list where a record"),
        ('"text"', "a string where a record"),
        ('{"score": NaN}', "NaN is no JSON value"),
        ("[" * 100_000, "nested too deeply"),
        ('{"n": ' + "9" * 5_000 + "}", "not JSON"),
    ],
)
def test_json_that_means_nothing_is_told_with_its_line(write, refusal, line, words):
    """What the standard library lets through, or answers with something else than a JSON error."""
    told = refusal(rows(write("a.jsonl", f'{{"text": "fine"}}\n{line}\n')))
    assert "a.jsonl:2: " in told
    assert words in told


def test_a_file_of_json_that_is_no_list_is_told(write, refusal):
    assert "an object where a list of records" in refusal(rows(write("a.json", '{"a": 1}')))


def test_json_of_several_lines_is_told_with_the_line_of_the_mistake(write, refusal):
    assert "a.json:3: not JSON" in refusal(rows(write("a.json", '[\n{"a": 1},\n{"a" 2}\n]')))


@pytest.mark.parametrize("value", [None, 3, True, ["a"], {"a": "b"}, 1.5])
def test_a_text_that_is_none_is_told_with_its_kind(write, value):
    row = next(rows(write("a.jsonl", json.dumps({"text": value}))))
    with pytest.raises(UserError, match=r"a\.jsonl:1: column 'text': .* where a string is expected"):
        row.text("text")


def test_lone_surrogates_are_replaced(write):
    row = next(rows(write("a.jsonl", '{"text": "a\\ud800b"}')))
    assert row.text("text") == row.word("text") == "a\ufffdb"


@pytest.mark.parametrize(
    ("value", "word"),
    [
        (1, "1"),
        (1.0, "1"),
        (1.5, "1.5"),
        (True, "true"),
        (None, ""),
        (float("nan"), ""),
        (" pos ", "pos"),
        ("1.0", "1.0"),
    ],
)
def test_single_values_are_written_as_words(value, word):
    assert word_of(value) == word


def test_parquet_gives_rows_by_number(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a", "b"], "label": [1, 0]}), path)
    assert values(path) == [{"text": "a", "label": 1}, {"text": "b", "label": 0}]
    assert [row.where for row in rows(path)] == [f"{path}: row 1", f"{path}: row 2"]
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFile, match="not an intact Parquet file"):
        values(path)


def test_parquet_without_its_library_says_what_to_install(tmp_path, monkeypatch, refusal):
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert 'pip install "bertworks[data]"' in refusal(rows(path))


def test_packed_tables_are_read_as_they_are(tmp_path):
    path = tmp_path / "a.tsv.gz"
    path.write_bytes(gzip.compress(b"text\tlabel\na\t1\n"))
    assert values(path) == [{"text": "a", "label": "1"}]


def test_a_folder_and_standard_input_are_no_tables(tmp_path, refusal):
    assert "is not a file" in refusal(rows(tmp_path))
    assert "is not a file" in refusal(rows(tmp_path.__class__("-")))
    assert "does not exist" in refusal(rows(tmp_path / "none.tsv"))


def test_a_line_of_more_than_64_mebibytes_is_refused(write, refusal, monkeypatch):
    monkeypatch.setattr("bertworks.text.lines.MAX_RECORD_BYTES", 1 << 20)
    path = write("a.tsv", "text\n" + "x" * (3 << 20) + "\n")
    assert "a.tsv:2: a line of more than 1 MiB" in refusal(numbered_lines(path))
