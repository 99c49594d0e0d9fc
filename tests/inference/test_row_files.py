"""Rows of results as files: what goes in can be read again, also texts with quotes, tabs and line breaks."""

import csv
import json
import math
import re

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bertworks.errors import UserError
from bertworks.inference.predict import check_row_file, write_rows
from bertworks.tasks.tables import rows

ROWS = [
    {"id": "0", "text": 'a "b",\tc\nd', "gold": ["x", "y"], "score": 0.5},
    {"id": "1", "text": "한국어", "gold": [], "score": None},
]


def test_json_lines_have_all_of_a_row(tmp_path):
    assert write_rows(tmp_path / "out.jsonl", iter(ROWS)) == 2
    assert [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()] == ROWS
    assert "한국어" in (tmp_path / "out.jsonl").read_text("utf-8")


def test_csv_keeps_quotes_tabs_and_line_breaks(tmp_path):
    write_rows(tmp_path / "out.csv", ROWS)
    with open(tmp_path / "out.csv", newline="", encoding="utf-8") as stream:
        table = list(csv.DictReader(stream))
    assert table[0] == {"id": "0", "text": 'a "b",\tc\nd', "gold": "x|y", "score": "0.5"}
    assert table[1]["score"] == ""


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl"])
def test_our_own_reader_reads_it_again(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    write_rows(path, ROWS)
    again = [row.values["text"] for row in rows(path)]
    assert again == [ROWS[0]["text"] if ending != ".tsv" else 'a "b", c d', "한국어"]


def test_no_rows_are_an_empty_file(tmp_path):
    assert write_rows(tmp_path / "out.csv", []) == 0
    assert (tmp_path / "out.csv").read_bytes() == b""


@pytest.mark.parametrize(("ending", "content"), [(".csv", "id,text\n"), (".tsv", "id\ttext\n"), (".jsonl", "")])
def test_a_table_of_no_rows_names_its_columns(tmp_path, ending, content):
    assert write_rows(tmp_path / f"out{ending}", [], ["id", "text"]) == 0
    assert (tmp_path / f"out{ending}").read_text() == content


def test_an_unknown_ending_and_a_missing_folder_are_told_before_any_work(tmp_path):
    with pytest.raises(UserError, match=r"use a name that ends in \.csv"):
        check_row_file(tmp_path / "out.txt")
    with pytest.raises(UserError, match="does not exist"):
        check_row_file(tmp_path / "none/out.csv")


def test_a_score_that_is_not_a_number_leaves_no_file_that_is_not_json(tmp_path):
    with pytest.raises(UserError, match="row 2: the model's scores are not finite"):
        write_rows(tmp_path / "out.jsonl", [{"id": "0"}, {"id": "1", "score": math.nan}])
    assert not list(tmp_path.iterdir())


TEXTS = st.text(st.sampled_from("a =+-@\t\r'\",;|＝5\x0b\x85\u2028\ufeff한")) | st.text(
    st.characters(exclude_categories=["Cs"])
)


@pytest.mark.parametrize("csv_safe", [False, True])
@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(texts=st.lists(TEXTS, min_size=1, max_size=4), name=st.text(st.sampled_from("a =;'-한\""), min_size=1))
def test_a_table_that_is_read_again_has_the_same_texts(tmp_path, ending, csv_safe, texts, name):
    """But for what the forms cannot hold: NUL, in TSV tabs and line breaks, in CSV carriage returns at line ends."""
    path = tmp_path / f"out{ending}"
    texts = [text.replace("\0", "").replace("\r\n", "\n") for text in texts]
    write_rows(path, [{f"{name}b": text, "score": -0.5} for text in texts], csv_safe=csv_safe)
    broken = re.compile(r"[\t\r\n]") if ending == ".tsv" else re.compile("(?!)")
    again = [row.values for row in rows(path)]
    assert [row[f"{name}b"] for row in again] == [broken.sub(" ", text) for text in texts]
    assert {row["score"] for row in again} == {"-0.5"}


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
def test_a_safe_table_has_no_cell_that_is_a_formula_and_keeps_numbers(tmp_path, ending):
    path = tmp_path / f"out{ending}"
    formulas = ["=1+1", "+82-10", "-x", "@SUM(A1)", " =1", "\t=1", "\r=1", "＝1", "=cmd|' /C calc'!A0", "-1+1", "a;=1"]
    others = ["-5", "+1.5e-3", "-1,000", "a=1", "'a", ""]
    table = [{"=te,xt": text, "labels": ["-a", "b"], "score": -0.5} for text in [*formulas, *others]]
    write_rows(path, table, csv_safe=True)
    data = path.read_bytes()
    assert data.startswith(b"\xef\xbb\xbf")
    with open(path, newline="", encoding="utf-8-sig") as stream:
        options = {"delimiter": "\t"} if ending == ".tsv" else {}
        cells = list(csv.reader(stream, **options))
    assert cells[0] == ["'=te,xt", "labels", "score"]
    for row, text in zip(cells[1:], [*formulas, *others], strict=True):
        assert row[1:] == ["'-a|b", "-0.5"]
        assert row[0][:1] not in tuple("=+-@\t\r＝") or text in others
        assert row[0] in ((text,) if text in (*others, "a;=1") else (f"'{text}", "' =1"))
    assert (b'"a;=1"' in data) == (ending == ".csv")


def test_a_table_of_others_keeps_its_apostrophes(tmp_path):
    for content in (b"text,b\n'=1,2\n", b"\xef\xbb\xbftext,b\r\n'=1,2\r\n", b'"text","b"\r\n"\'=1",2\r\n'):
        (tmp_path / "a.csv").write_bytes(content)
        (tmp_path / "a.tsv").write_bytes(content.replace(b",", b"\t").replace(b'"', b""))
        for name in ("a.csv", "a.tsv"):
            assert [row.values["text"] for row in rows(tmp_path / name)] == ["'=1"]


def test_a_safe_table_is_no_json(tmp_path):
    with pytest.raises(UserError, match=r"--csv-safe is for \.csv and \.tsv"):
        check_row_file(tmp_path / "out.jsonl", csv_safe=True)
