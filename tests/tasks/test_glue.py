"""GLUE and its kin, from files in the layout of their own archives, and files that are not as they should be (T9)."""

import pytest

from bertworks.tasks import TASKS
from bertworks.tasks.task import Skipped, TextExample, open_dataset

MNLI_HEADER = "index\tpromptID\tpairID\tgenre\tsentence1\tsentence2\tlabel1\tgold_label"
MRPC_HEADER = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"
STS_HEADER = "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
QQP_HEADER = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
# Task, split, file, content, the one example in it.
LAYOUTS = [
    ("cola", "train", "CoLA/train.tsv", "gj04\t0\t*\tHim went.", ("0", "Him went.", None, "unacceptable")),
    ("cola", "dev", "CoLA/dev.tsv", "gj04\t1\t\tHe went.", ("0", "He went.", None, "acceptable")),
    ("cola", "test", "CoLA/test.tsv", "index\tsentence\n7\tHe went.", ("7", "He went.", None, None)),
    ("cola", "train", "CoLA/original/raw/in_domain_train.tsv", "a\t1\t\tHe.", ("0", "He.", None, "acceptable")),
    ("sst2", "train", "SST-2/train.tsv", "sentence\tlabel\nso bad \t0", ("0", "so bad ", None, "negative")),
    ("sst2", "test", "SST-2/test.tsv", "index\tsentence\n0\tso good", ("0", "so good", None, None)),
    (
        "mrpc", "dev", "MRPC/dev.tsv",
        f"\ufeff{MRPC_HEADER}\n1\t8\t9\tA b .\tB a .", ("0", "A b .", "B a .", "equivalent"),
    ),
    (
        "mrpc", "test", "MRPC/test.tsv",
        "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n5\t8\t9\tA\tB", ("5", "A", "B", None),
    ),
    (
        "mrpc", "test-gold", "MRPC/msr_paraphrase_test.txt",
        f"{MRPC_HEADER}\n0\t8\t9\tA\tB", ("0", "A", "B", "not_equivalent"),
    ),
    ("qqp", "train", "QQP/train.tsv", f"{QQP_HEADER}\n9\t1\t2\tWhy?\tHow?\t0", ("0", "Why?", "How?", "not_duplicate")),
    ("qqp", "test", "QQP/test.tsv", "id\tquestion1\tquestion2\n3\tWhy?\tHow?", ("3", "Why?", "How?", None)),
    (
        "stsb", "dev", "STS-B/dev.tsv",
        f'{STS_HEADER}\n0\ta\tb\tc\t1\tx\ty\tOne "two\tThree\t2.500', ("0", 'One "two', "Three", 2.5),
    ),
    ("stsb", "test-gold", "STS-B/original/sts-test.tsv", "a\tb\tc\t1\t4\tOne\tTwo\tu\tv", ("0", "One", "Two", 4.0)),
    (
        "mnli", "dev", "MNLI/dev_matched.tsv",
        f"{MNLI_HEADER}\n0\t1\t1n\tx\tA\tB\tneutral\tneutral", ("0", "A", "B", "neutral"),
    ),
    (
        "mnli", "dev-mismatched", "MNLI/dev_mismatched.tsv",
        f"{MNLI_HEADER}\n0\t1\t1n\tx\tA\tB\tneutral\tentailment", ("0", "A", "B", "entailment"),
    ),
    (
        "mnli", "test-mismatched", "MNLI/test_mismatched.tsv",
        "index\tsentence1\tsentence2\n9850\tA\tB", ("9850", "A", "B", None),
    ),
    (
        "qnli", "dev", "QNLI/dev.tsv",
        "index\tquestion\tsentence\tlabel\n0\tQ?\tS.\tentailment", ("0", "Q?", "S.", "entailment"),
    ),
    (
        "rte", "dev", "RTE/dev.tsv",
        "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tnot_entailment", ("0", "A", "B", "not_entailment"),
    ),
    ("wnli", "dev", "WNLI/dev.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\t1", ("0", "A", "B", "entailment")),
    ("ax", "test", "diagnostic/diagnostic.tsv", "index\tsentence1\tsentence2\n4\tA\tB", ("4", "A", "B", None)),
    (
        "ax", "test-gold", "diagnostic/diagnostic-full.tsv",
        "Logic\tPremise\tHypothesis\tLabel\nx\tA\tB\tcontradiction", ("0", "A", "B", "contradiction"),
    ),
    (
        "snli", "train", "snli_1.0/snli_1.0_train.txt",
        "gold_label\tsentence1\tsentence2\tpairID\tlabel1\nneutral\tA\tB\t7.jpg#1\tneutral",
        ("7.jpg#1", "A", "B", "neutral"),
    ),
    (
        "snli", "dev", "snli_1.0_dev.jsonl",
        '{"gold_label": "neutral", "sentence1": "A", "sentence2": "B", "pairID": "7"}', ("7", "A", "B", "neutral"),
    ),
    (
        "sick", "dev", "SICK_trial.txt",
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n4\tA\tB\t3.6\tCONTRADICTION\r\n",
        ("4", "A", "B", "contradiction"),
    ),
    (
        "sick-relatedness", "dev", "SICK_trial.txt",
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n4\tA\tB\t3.6\tNEUTRAL\r\n",
        ("4", "A", "B", 3.6),
    ),
    (
        "snli-counterfactual", "test", "counterfactual_snli/test.tsv",
        "sentence1\tsentence2\tgold_label\nA\tB\tneutral", ("0", "A", "B", "neutral"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "split", "file", "content", "example"), LAYOUTS)
def test_a_benchmark_is_read_from_its_own_layout(write, tmp_path, name, split, file, content, example):
    write(file, content)
    dataset = open_dataset(TASKS[name], tmp_path)
    assert list(dataset.examples(split)) == [TextExample(*example)]


def test_files_are_found_in_the_archives_folder_in_the_tasks_and_in_itself(write, tmp_path):
    content = "sentence\tlabel\nso bad\t0\n"
    for home in ("one/glue/SST-2", "two/SST-2", "three"):
        write(f"{home}/train.tsv", content)
        assert len(list(open_dataset(TASKS["sst2"], tmp_path / home.split("/")[0]).examples("train"))) == 1


def test_one_folder_may_hold_all_benchmarks(write, tmp_path):
    write("glue/SST-2/train.tsv", "sentence\tlabel\nso bad\t0\n")
    write("glue/RTE/train.tsv", "index\tsentence1\tsentence2\tlabel\n0\tA\tB\tentailment\n")
    assert [example.first for example in open_dataset(TASKS["rte"], tmp_path).examples("train")] == ["A"]
    assert [example.first for example in open_dataset(TASKS["sst2"], tmp_path).examples("train")] == ["so bad"]


def test_files_that_are_not_there_are_named_with_the_folder(write, tmp_path, refusal):
    words = refusal(lambda: open_dataset(TASKS["mnli"], tmp_path).found)
    assert all(word in words for word in (str(tmp_path), "train.tsv", "dev_matched.tsv", "MNLI"))
    write("SST-2/train.tsv", "sentence\tlabel\nso bad\t0\n")
    words = refusal(open_dataset(TASKS["sst2"], tmp_path).examples("dev"))
    assert "no dev split" in words
    assert "dev.tsv" in words
    assert "there are: train" in words
    assert "is not a folder" in refusal(lambda: open_dataset(TASKS["sst2"], tmp_path / "none").found)


def test_microsofts_mrpc_is_divided_by_the_list_of_dev_ids(write, tmp_path):
    pairs = [f"1\t{i}\t{i + 100}\tA {i}\tB {i}" for i in range(6)]
    write("MRPC/msr_paraphrase_train.txt", "\n".join([f"\ufeff{MRPC_HEADER}", *pairs]))
    whole = open_dataset(TASKS["mrpc"], tmp_path)
    assert set(whole.found) == {"train"}
    assert len(list(whole.examples("train"))) == 6
    write("MRPC/dev_ids.tsv", "4\t104\n1\t101\n0\t999\n")
    divided = open_dataset(TASKS["mrpc"], tmp_path)
    assert [example.first for example in divided.examples("dev")] == ["A 1", "A 4"]
    assert [example.first for example in divided.examples("train")] == ["A 0", "A 2", "A 3", "A 5"]


def test_a_stand_in_for_a_train_set_is_told(write, tmp_path):
    header = "index\tquestion\tsentence\tlabel\n"
    write("derived/qnli_train_rebuilt.tsv", f"{header}0\tQ?\tS.\tentailment\n")
    assert open_dataset(TASKS["qnli"], tmp_path).notes == ("train: rebuilt from SQuAD's train set, not GLUE's QNLI",)
    write("QNLI/train.tsv", f"{header}0\treal?\tS.\tentailment\n")
    real = open_dataset(TASKS["qnli"], tmp_path)
    assert real.notes == ()
    assert next(real.examples("train")).first == "real?"


def test_broken_rows_of_qqp_are_counted_not_hidden(write, tmp_path):
    write("QQP/train.tsv", f"{QQP_HEADER}\n9\t1\t2\tWhy?\tHow?\t0\n10\t1\t2\tWhy?\n")
    skipped = Skipped()
    assert len(list(open_dataset(TASKS["qqp"], tmp_path).examples("train", skipped))) == 1
    assert skipped.counts == {"rows with a wrong number of columns": 1}


def test_pairs_without_an_agreed_label_are_counted_in_every_split(write, tmp_path):
    content = "gold_label\tsentence1\tsentence2\tpairID\n-\tA\tB\t1\nneutral\tA\tB\t2\n"
    write("snli_1.0_test.txt", content)
    skipped = Skipped()
    examples = list(open_dataset(TASKS["snli"], tmp_path).examples("test", skipped))
    assert [example.id for example in examples] == ["2"]
    assert skipped.counts == {"rows without a label": 1}


def test_a_train_set_leaves_out_empty_texts_and_a_test_set_does_not(write, tmp_path):
    for split in ("train", "test"):
        write(f"ratings_{split}.txt", "id\tdocument\tlabel\n1\t\t1\n2\t \t1\n3\t좋다\t1\n")
    skipped, dataset = Skipped(), open_dataset(TASKS["nsmc"], tmp_path)
    assert [example.id for example in dataset.examples("train", skipped)] == ["3"]
    assert skipped.counts == {"rows without a text": 2}
    assert "example 1" in str(skipped)
    assert len(list(dataset.examples("test"))) == 3


@pytest.mark.parametrize("label", ["2", "", "positive", "０"])
def test_a_wrong_label_is_told_with_its_line_and_the_right_ones(write, tmp_path, refusal, label):
    write("SST-2/train.tsv", f"sentence\tlabel\nfine\t1\nodd\t{label}\n")
    words = refusal(open_dataset(TASKS["sst2"], tmp_path).examples("train"))
    assert f"train.tsv:3: {label!r} is not a label here; allowed: 0, 1" in words


@pytest.mark.parametrize("score", ["nan", "inf", "-0.1", "5.1", "", "five"])
def test_a_wrong_score_is_told_with_its_line_and_the_range(write, tmp_path, refusal, score):
    write("STS-B/dev.tsv", f"sentence1\tsentence2\tscore\nA\tB\t1.5\nA\tB\t{score}\n")
    words = refusal(open_dataset(TASKS["stsb"], tmp_path).examples("dev"))
    assert f"dev.tsv:3: {score!r} is not a score; it must be a number from 0 to 5" in words


def test_a_test_set_given_as_a_train_set_is_told_what_it_lacks(write, tmp_path, refusal):
    write("SST-2/train.tsv", "index\tsentence\n0\tso good\n")
    words = refusal(open_dataset(TASKS["sst2"], tmp_path).examples("train"))
    assert "train.tsv:2: no column 'label'; there are: 'index', 'sentence'" in words


def test_reading_streams(write, tmp_path):
    """A mistake at the end of a file does not keep the first example from coming."""
    write("SST-2/train.tsv", "sentence\tlabel\nfine\t1\n" + "x" * 50_000_000 + "\t7\n")
    assert next(open_dataset(TASKS["sst2"], tmp_path).examples("train")).first == "fine"


def test_every_glue_task_knows_the_word_of_every_label():
    for task in TASKS.values():
        if task.kind == "classify":
            assert set(task.words) == set(task.labels)
            assert len(set(task.words.values())) == len(task.labels)
            assert "f1" not in task.metrics or task.positive in task.labels
