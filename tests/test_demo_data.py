"""The labelled sentences of the demo: three labels, balanced, no sentence twice, and a dev split that is no copy."""

import re
from collections import Counter
from importlib import resources
from itertools import combinations, product

import pytest

from bertworks.tasks.own_files import open_own

LABELS = ["displeased", "neutral", "pleased"]
FOLDER = resources.files("bertworks") / "demo_data"


def rows_of(split):
    lines = (FOLDER / f"{split}.tsv").read_bytes().decode("ascii").removesuffix("\n").split("\n")
    assert lines[0] == "label\ttext"
    return [tuple(line.split("\t")) for line in lines[1:]]


def words_of(text):
    return frozenset(re.findall(r"[a-z0-9']+", text.lower()))


def likeness(first, second):
    """The share of the words of both that are in both."""
    return len(first & second) / len(first | second)


@pytest.mark.parametrize(("split", "num_rows"), [("train", 260), ("dev", 60)])
def test_there_are_as_many_rows_as_told_and_the_labels_are_balanced(split, num_rows):
    counts = Counter(label for label, _ in rows_of(split))
    assert sorted(counts) == LABELS
    assert sum(counts.values()) == num_rows
    assert max(counts.values()) - min(counts.values()) <= 1


def test_no_sentence_is_there_twice():
    sentences = [" ".join(sorted(words_of(text))) for split in ("train", "dev") for _, text in rows_of(split)]
    assert len(set(sentences)) == len(sentences) == 320


def test_no_dev_sentence_is_nearly_one_of_train_and_none_is_nearly_another():
    train, dev = ([words_of(text) for _, text in rows_of(split)] for split in ("train", "dev"))
    nearest = max(product(train, dev), key=lambda pair: likeness(*pair))
    assert likeness(*nearest) < 0.4, nearest
    assert max(likeness(*pair) for pair in combinations(train + dev, 2)) < 0.6


def test_sentences_are_short_and_end_as_sentences_do():
    for split in ("train", "dev"):
        for _, text in rows_of(split):
            assert text == " ".join(text.split()), text
            assert text[0].isupper(), text
            assert text[-1] in ".!?", text
            assert 4 <= len(text.split()) <= 24, text


def test_the_sentences_are_varied():
    texts = [text for _, text in rows_of("train")]
    beginnings = Counter(tuple(text.split()[:2]) for text in texts)
    assert max(beginnings.values()) <= 5, beginnings.most_common(3)
    assert len(frozenset().union(*map(words_of, texts))) > 1_000


def test_labels_are_spread_over_the_file():
    labels = [label for label, _ in rows_of("train")]
    assert all(set(labels[start : start + 30]) == set(LABELS) for start in range(0, 230, 10))


def test_the_files_open_as_a_task_of_ones_own():
    dataset = open_own("classify", {split: str(FOLDER / f"{split}.tsv") for split in ("train", "dev")})
    assert list(dataset.task.labels) == LABELS
    for split in ("train", "dev"):
        assert [example.first for example in dataset.examples(split)] == [text for _, text in rows_of(split)]
