"""Files for servers and official scripts: names, words, order and bytes."""

import json
import zipfile

import pytest

from bertworks.errors import UserError
from bertworks.tasks import TASKS, find_task
from bertworks.tasks.conll import CONLL2003, read_conll
from bertworks.tasks.squad import SQUAD1, SQUAD2
from bertworks.tasks.submission import (
    GLUE_FILES,
    check_submission,
    write_answers,
    write_conll,
    write_glue,
    write_submission,
    zip_glue,
)
from bertworks.tasks.task import Skipped, SpanExample
from bertworks.tasks.windows import Answered, Guess

SERVER_NAMES = {
    "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
    "WNLI.tsv", "AX.tsv",
}  # fmt: skip


def all_files(folder):
    folder.mkdir()
    for name, split in GLUE_FILES:
        task = TASKS[name]
        write_glue(folder, task, split, ["0", "1"], list(task.labels[:2]) or [0.0, 5.0])
    return folder


@pytest.mark.parametrize(
    ("name", "split", "predictions", "file", "words"),
    [
        ("cola", "test", ["acceptable", "unacceptable"], "CoLA.tsv", ["1", "0"]),
        ("mrpc", "test", ["equivalent", "not_equivalent"], "MRPC.tsv", ["1", "0"]),
        ("wnli", "test", ["entailment", "not_entailment"], "WNLI.tsv", ["1", "0"]),
        ("rte", "test", ["entailment", "not_entailment"], "RTE.tsv", ["entailment", "not_entailment"]),
        ("mnli", "test-mismatched", ["neutral", "contradiction"], "MNLI-mm.tsv", ["neutral", "contradiction"]),
        ("ax", "test", ["neutral", "entailment"], "AX.tsv", ["neutral", "entailment"]),
        ("stsb", "test", [2.5, 5.3], "STS-B.tsv", ["2.500000", "5.000000"]),
    ],
)
def test_predictions_are_in_the_servers_words(tmp_path, name, split, predictions, file, words):
    path = write_glue(tmp_path, TASKS[name], split, ["7", "8"], predictions)
    assert path == tmp_path / file
    assert path.read_text(encoding="utf-8") == f"index\tprediction\n7\t{words[0]}\n8\t{words[1]}\n"


def test_every_test_set_of_glue_has_its_file():
    assert set(GLUE_FILES.values()) == SERVER_NAMES
    assert all(split in TASKS[name].splits for name, split in GLUE_FILES)


def test_a_task_that_is_not_in_glue_is_refused(tmp_path):
    with pytest.raises(UserError, match="GLUE takes no predictions for dev of CoLA"):
        write_glue(tmp_path, TASKS["cola"], "dev", [], [])


def test_the_zip_holds_all_files_and_has_the_same_bytes_again(tmp_path):
    assert zip_glue(all_files(tmp_path / "one"), tmp_path / "one.zip") == []
    assert zip_glue(all_files(tmp_path / "two"), tmp_path / "two.zip") == []
    assert (tmp_path / "one.zip").read_bytes() == (tmp_path / "two.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "one.zip") as archive:
        assert archive.testzip() is None
        assert set(archive.namelist()) == SERVER_NAMES
        assert {entry.date_time for entry in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}
        assert archive.read("AX.tsv") == (tmp_path / "one" / "AX.tsv").read_bytes()


def test_files_that_are_missing_are_named(tmp_path):
    write_glue(tmp_path, TASKS["cola"], "test", ["0"], ["acceptable"])
    assert set(zip_glue(tmp_path, tmp_path / "glue.zip")) == SERVER_NAMES - {"CoLA.tsv"}
    with pytest.raises(UserError, match="has no predictions for GLUE"):
        zip_glue(tmp_path / "none", tmp_path / "none.zip")
    assert not (tmp_path / "none.zip").exists()


def test_answers_are_json_by_question(tmp_path):
    best = {"q1": [{"text": "Alpen – hoch", "probability": 0.9}], "q2": []}
    write_answers(tmp_path, {"q1": "Alpen – hoch", "q2": ""}, {"q1": -3.5, "q2": 1.25}, best)
    assert json.loads((tmp_path / "predictions.json").read_bytes()) == {"q1": "Alpen – hoch", "q2": ""}
    assert json.loads((tmp_path / "null_odds.json").read_bytes()) == {"q1": -3.5, "q2": 1.25}
    assert json.loads((tmp_path / "nbest_predictions.json").read_bytes()) == best
    assert "–" in (tmp_path / "predictions.json").read_text(encoding="utf-8")


def test_what_is_not_given_is_not_written(tmp_path):
    write_answers(tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["predictions.json"]


def test_tags_are_written_as_conlleval_reads_them(tmp_path, write):
    examples = list(read_conll([write("gold.txt", "Rolf B-PER\nhere O\n\nBonn B-LOC\n")], Skipped()))
    write_conll(tmp_path / "out.txt", examples, [["B-PER", "B-LOC"], ["O"]])
    written = (tmp_path / "out.txt").read_text(encoding="utf-8")
    assert written == "Rolf B-PER B-PER\nhere O B-LOC\n\nBonn B-LOC O\n\n"
    again = list(read_conll([tmp_path / "out.txt"], Skipped()))
    assert [example.tags for example in again] == [("B-PER", "B-LOC"), ("O",)]


def test_words_without_right_tags_are_written_with_the_predicted_ones(tmp_path, write):
    examples = read_conll([write("words.txt", "Bonn\n")], Skipped())
    write_conll(tmp_path / "out.txt", examples, [["B-LOC"]])
    assert (tmp_path / "out.txt").read_text(encoding="utf-8") == "Bonn B-LOC\n\n"


def test_a_folder_that_is_not_there_is_a_clear_error(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        write_answers(tmp_path / "none", {})


def test_answers_go_from_guesses_to_the_files_of_the_official_script(tmp_path):
    examples = [SpanExample(name, "who?", "Ada and Bo", (), False) for name in ("q1", "q2")]
    answered = [Answered([Guess("Ada", 0, 3, 5.0)], 1.5), Answered([], 0.0)]
    files = write_submission(tmp_path, SQUAD2, "dev", examples, answered)
    assert [path.name for path in files] == ["predictions.json", "null_odds.json"]
    assert json.loads(files[0].read_text()) == {"q1": "Ada", "q2": ""}
    assert json.loads(files[1].read_text())["q1"] == -3.5
    (tmp_path / "first").mkdir()
    assert [path.name for path in write_submission(tmp_path / "first", SQUAD1, "dev", examples, answered)] == [
        "predictions.json"
    ]


def test_tags_go_to_a_file_for_conlleval(tmp_path, write):
    examples = list(read_conll([write("gold.txt", "Rolf B-PER\nhere O\n")], Skipped()))
    (path,) = write_submission(tmp_path, CONLL2003, "dev", examples, [["B-PER", "O"]])
    assert path.name == "conll2003-dev.txt"
    assert path.read_text(encoding="utf-8") == "Rolf B-PER B-PER\nhere O O\n\n"


def test_a_set_whose_results_nobody_reads_is_refused_before_the_work():
    check_submission(find_task("mnli"), "test-mismatched")
    check_submission(SQUAD2, "dev")
    with pytest.raises(UserError, match="ask for --split test or --split test-mismatched"):
        check_submission(find_task("mnli"), "dev")
    with pytest.raises(UserError, match=r"read no predictions for its dev split$"):
        check_submission(find_task("swag"), "dev")
