"""T9: whatever is done to a dataset's files, reading them ends in examples or in a UserError of one or two lines.

Small intact files of every form are damaged in seeded ways: bytes flipped, lines cut, doubled or glued, columns lost,
quotes and tabs strewn in, JSON values swapped for others.
"""

import json
import random

import pytest

from bertworks.errors import UserError
from bertworks.tasks import TASKS
from bertworks.tasks.own_files import open_own
from bertworks.tasks.task import open_dataset

QUESTION = {"id": "q1", "question": "Where?", "answers": [{"text": "Alps", "answer_start": 7}], "is_impossible": False}
SQUAD = {"version": "x", "data": [{"title": "t", "paragraphs": [{"context": "In the Alps.", "qas": [QUESTION]}]}]}
KLUE = [{"guid": "k", "premise": "가", "hypothesis": "나", "gold_label": "neutral", "labels": {"label": 1}}]
SWAG = ",video-id,sent1,sent2,ending0,ending1,ending2,ending3,label\n0,v,A man.,He,runs.,sits.,flies.,eats.,2\n"
FILES = {
    "sst2": ("train.tsv", "sentence\tlabel\nso good\t1\nso bad\t0\n"),
    "cola": ("train.tsv", "a\t1\t\tHe went.\nb\t0\t*\tHim went.\n"),
    "qqp": ("train.tsv", "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n1\t2\t3\tWhy?\tHow?\t0\n"),
    "stsb": ("train.tsv", "sentence1\tsentence2\tscore\nA\tB\t2.5\nC\tD\t4\n"),
    "squad2": ("train-v2.0.json", json.dumps(SQUAD)),
    "swag": ("train.csv", SWAG),
    "conll2003": ("eng.train", "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\nsays VBZ B-VP O\n\nBonn NNP B-NP I-LOC\n"),
    "klue-nli": ("klue-nli-v1.1_train.json", json.dumps(KLUE)),
    "klue-ner": ("klue-ner-v1.1_train.tsv", "## k\t가 나\n가\tB-PS\n \tO\n나\tO\n\n"),
    "naver-ner": ("train.tsv", "가 나\tPER-B O\n"),
}  # fmt: skip
OWN = {
    "classify": ("a.csv", 'text,label\n"so, good",x\nso bad,y\nmeh,x\n'),
    "multilabel": ("a.csv", 'text,labels\na,"x,y"\nb,\nc,"[""y""]"\n'),
    "regress": ("a.jsonl", '{"text": "a", "score": 1.5}\n{"text": "b", "score": 2}\n'),
    "choose": ("a.jsonl", '{"context": "I am", "choices": ["old", "new"], "label": 1}\n'),
    "answer": ("a.jsonl", '{"question": "?", "context": "A b.", "answers": {"text": ["b"], "answer_start": [2]}}'),
    "tag": ("a.jsonl", '{"tokens": ["Rolf", "here"], "tags": ["B-PER", "O"]}\n'),
}  # fmt: skip
ODD_VALUES = (None, True, 0, -1, 1.5, "", "x", [], {}, [None], {"text": 3}, [[1]], "\ud800", 10**30)


def damaged(content, chance):
    """Return the bytes of a file after one of several misfortunes."""
    data = bytearray(content.encode())
    kind = chance.randrange(7)
    if kind == 0:
        for _ in range(chance.randint(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
    elif kind == 1:
        del data[chance.randrange(len(data)) :]
    elif kind == 2:
        start = chance.randrange(len(data))
        del data[start : start + chance.randint(1, 12)]
    elif kind == 3:
        place = chance.randrange(len(data))
        data[place:place] = chance.choice(
            [b'"', b"\t", b"\n", b",", b"\r", b"\0", b"\xff", b"\xef\xbb\xbf", b"\n\n", b"-"]
        )
    elif kind == 4:
        data += data[chance.randrange(len(data)) :]
    elif kind == 5:
        lines = bytes(data).split(b"\n")
        chance.shuffle(lines)
        data = bytearray(b"\n".join(lines))
    return bytes(data)


def with_odd_value(value, chance):
    """Put a value of another kind somewhere into a JSON value."""
    if isinstance(value, dict) and value and chance.random() < 0.8:
        key = chance.choice(list(value))
        if chance.random() < 0.1:
            return {name: inner for name, inner in value.items() if name != key}
        return value | {key: with_odd_value(value[key], chance)}
    if isinstance(value, list) and value and chance.random() < 0.8:
        place = chance.randrange(len(value))
        return [*value[:place], with_odd_value(value[place], chance), *value[place + 1 :]]
    return chance.choice(ODD_VALUES)


def misfortune(name, content, chance):
    if not name.endswith((".json", ".jsonl")) or chance.random() < 0.4:
        return damaged(content, chance)
    lines = content.splitlines() if name.endswith(".jsonl") else [content]
    return "\n".join(json.dumps(with_odd_value(json.loads(line), chance)) for line in lines).encode()


def is_refused(read):
    """Read to the end; tell whether a UserError ended it."""
    try:
        list(read().examples("train"))
    except UserError as error:
        refusal = str(error)
    else:
        return False
    assert len(refusal.splitlines()) <= 2
    return True


@pytest.mark.parametrize("name", FILES)
def test_a_damaged_benchmark_gives_examples_or_a_user_error(tmp_path, name):
    chance = random.Random(name)
    file, content = FILES[name]
    num_refused = 0
    for _ in range(150):
        (tmp_path / file).write_bytes(misfortune(file, content, chance))
        num_refused += is_refused(lambda: open_dataset(TASKS[name], tmp_path))
    assert 10 < num_refused < 150


@pytest.mark.parametrize("kind", OWN)
def test_a_damaged_file_of_your_own_gives_examples_or_a_user_error(tmp_path, kind):
    chance = random.Random(kind)
    file, content = OWN[kind]
    num_refused = 0
    for _ in range(150):
        (tmp_path / file).write_bytes(misfortune(file, content, chance))
        num_refused += is_refused(lambda: open_own(kind, {"train": tmp_path / file}))
    assert 10 < num_refused < 150
