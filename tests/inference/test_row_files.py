"""Rows of results as files: what goes in can be read again, also texts with quotes, tabs and line breaks."""

import csv
import json
import math

import pytest

from bertworks.errors import UserError
from bertworks.inference.row_files import check_row_file, write_rows
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
    with pytest.raises(UserError, match=r"let it end in \.csv"):
        check_row_file(tmp_path / "out.txt")
    with pytest.raises(UserError, match="does not exist"):
        check_row_file(tmp_path / "none/out.csv")


def test_a_score_that_is_not_a_number_leaves_no_file_that_is_not_json(tmp_path):
    with pytest.raises(UserError, match="row 2: the model's scores are not finite"):
        write_rows(tmp_path / "out.jsonl", [{"id": "0"}, {"id": "1", "score": math.nan}])
    assert not list(tmp_path.iterdir())
