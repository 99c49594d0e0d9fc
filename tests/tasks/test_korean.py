"""Korean benchmarks, each from a file of its own form."""

import json

import pytest

from bertworks.tasks import TASKS
from bertworks.tasks.task import TextExample, open_dataset

KLUE_NER = """## 주석 : ##
## 컬럼명 : CHAR\tNE_TAG
## klue-ner-v1_dev_00000-x\t<박:PS>씨 <둘:QT>
박\tB-PS
씨\tO
 \tO
둘\tB-QT

## klue-ner-v1_dev_00001-x\t<서울 시:LC>
서\tB-LC
울\tI-LC
 \tI-LC
시\tI-LC
#\tO
"""
LAYOUTS = [
    (
        "nsmc", "test", "nsmc/ratings_test.txt",
        "id\tdocument\tlabel\n84\t정말 좋다\t1", ("84", "정말 좋다", None, "positive"),
    ),
    (
        "kornli", "dev", "KorNLI/xnli.dev.ko.tsv",
        "sentence1\tsentence2\tgold_label\n가\t나\tneutral", ("0", "가", "나", "neutral"),
    ),
    (
        "korsts", "dev", "KorSTS/sts-dev.tsv",
        'genre\tfilename\tyear\tid\tscore\tsentence1\tsentence2\na\tb\tc\t1\t4.75\t"가\t나', ("0", '"가', "나", 4.75),
    ),
    (
        "klue-nli", "dev", "korean/klue/klue-nli-v1.1_dev.json",
        json.dumps([{"guid": "k0", "premise": "가", "hypothesis": "나", "gold_label": "neutral"}]),
        ("k0", "가", "나", "neutral"),
    ),
    (
        "klue-sts", "dev", "klue-sts-v1.1_dev.json",
        json.dumps([{"guid": "k0", "sentence1": "가", "sentence2": "나",
             "labels": {"label": 4.9, "real-label": 4.857}}]),
        ("k0", "가", "나", 4.9),
    ),
    (
        "korean-question-pair", "dev", "question-pair/dev.tsv",
        "question1\tquestion2\tis_duplicate\n가\t가\t0", ("0", "가", "가", "duplicate"),
    ),
    (
        "korean-hate-speech", "train", "hate-speech/train.tsv",
        'title\tcomment\tbias\thate\n"제목"\t댓글\tothers\toffensive', ("0", "댓글", None, "offensive"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "split", "file", "content", "example"), LAYOUTS)
def test_a_benchmark_is_read_from_its_own_file(write, tmp_path, name, split, file, content, example):
    write(file, content)
    assert list(open_dataset(TASKS[name], tmp_path).examples(split)) == [TextExample(*example)]


def test_kornli_trains_on_both_of_its_files_or_says_which_one(write, tmp_path):
    header = "sentence1\tsentence2\tgold_label\n"
    write("KorNLI/multinli.train.ko.tsv", f"{header}m\tb\tneutral\n")
    part = open_dataset(TASKS["kornli"], tmp_path)
    assert "MultiNLI part" in part.notes[0]
    write("KorNLI/snli_1.0_train.ko.tsv", f"{header}s\tb\tneutral\n")
    whole = open_dataset(TASKS["kornli"], tmp_path)
    assert whole.notes == ()
    assert [(example.id, example.first) for example in whole.examples("train")] == [("0", "s"), ("1", "m")]


def test_klue_tags_characters_and_keeps_the_text_with_its_spaces(write, tmp_path):
    write("klue/klue-ner-v1.1_dev.tsv", KLUE_NER)
    first, second = open_dataset(TASKS["klue-ner"], tmp_path).examples("dev")
    assert (first.id, first.text, first.words) == ("klue-ner-v1_dev_00000-x", "박씨 둘", ["박", "씨", "둘"])
    assert first.tags == ("B-PS", "O", "B-QT")
    assert (second.text, second.tags) == ("서울 시#", ("B-LC", "I-LC", "I-LC", "O"))
    assert first.document != second.document


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("박", "is not a character, a tab and a tag"),
        ("박씨\tO", "is not a character"),
        ("박\tB-PER", "type that is not known"),
    ],
)
def test_a_wrong_line_of_klue_is_told_with_its_number(write, tmp_path, refusal, line, words):
    write("klue-ner-v1.1_dev.tsv", f"{KLUE_NER}{line}\n")
    told = refusal(open_dataset(TASKS["klue-ner"], tmp_path).examples("dev"))
    assert "klue-ner-v1.1_dev.tsv:15: " in told
    assert words in told


def test_navers_tags_are_turned_around(write, tmp_path):
    write("naver-ner/test.tsv", "박 씨는 둘이다 .\tPER-B PER-I NUM-B O\n")
    (example,) = open_dataset(TASKS["naver-ner"], tmp_path).examples("test")
    assert example.words == ["박", "씨는", "둘이다", "."]
    assert example.tags == ("B-PER", "I-PER", "B-NUM", "O")


@pytest.mark.parametrize(
    ("tags", "words"), [("O", "2 words and 1 tags"), ("O X-B", "type that is not known"), ("O -", "is not a tag")]
)
def test_a_wrong_line_of_naver_is_told_with_its_number(write, tmp_path, refusal, tags, words):
    write("naver-ner/test.tsv", f"가 나\tO O\n가 나\t{tags}\n")
    told = refusal(open_dataset(TASKS["naver-ner"], tmp_path).examples("test"))
    assert "test.tsv:2: " in told
    assert words in told
