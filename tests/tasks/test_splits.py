"""A dev set split off: the same one again, of every class a share, and nothing on both sides."""

import json
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bertworks.errors import UserError
from bertworks.tasks import TASKS
from bertworks.tasks.heads import KINDS, Items
from bertworks.tasks.own_files import open_own
from bertworks.tasks.task import Skipped, open_dataset, split_off_dev

ROWS = [f"text number {i},{'rare' if i % 10 == 0 else 'common'}" for i in range(400)]


def texts(dataset, split):
    return [example.first for example in dataset.examples(split)]


def own(write, rows, name="a.csv"):
    return open_own("classify", {"train": write(name, "\n".join(["text,label", *rows]))})


def test_train_and_dev_are_the_whole_and_share_nothing(write):
    divided = split_off_dev(own(write, ROWS))
    train, dev = texts(divided, "train"), texts(divided, "dev")
    assert not set(train) & set(dev)
    assert sorted(train + dev) == sorted(row.split(",")[0] for row in ROWS)
    assert len(dev) == 40
    assert divided.notes[-1] == "dev: 40 of the 400 examples of train, split off"


def test_every_class_gives_its_share(write):
    divided = split_off_dev(own(write, ROWS))
    assert Counter(example.label for example in divided.examples("dev")) == {"rare": 4, "common": 36}


def test_the_choice_is_made_by_content_not_by_order(write):
    shuffled = random.Random(5).sample(ROWS, len(ROWS))
    first = split_off_dev(own(write, ROWS))
    second = split_off_dev(own(write, shuffled, "b.csv"))
    assert set(texts(first, "dev")) == set(texts(second, "dev"))


def test_the_choice_is_that_of_runs_that_are_to_go_on(write):
    dev = texts(split_off_dev(own(write, ROWS)), "dev")
    assert dev[:3] == ["text number 16", "text number 19", "text number 34"]


def test_a_text_that_comes_twice_is_on_one_side(write):
    divided = split_off_dev(own(write, [*ROWS, *ROWS]))
    assert not set(texts(divided, "train")) & set(texts(divided, "dev"))
    assert len(texts(divided, "dev")) == 80


def test_rows_that_teach_nothing_do_not_go_to_dev(write):
    divided, skipped = split_off_dev(own(write, [*ROWS, *[" ,rare"] * 400])), Skipped()
    assert all(text.strip() for text in texts(divided, "dev"))
    list(divided.examples("train", skipped))
    assert skipped.counts == {"rows without a text": 400}


@pytest.mark.parametrize("num_rows", [3, 9])
def test_a_handful_still_gives_someone_to_dev(write, num_rows):
    divided = split_off_dev(own(write, [f"t{i},{i % 2}" for i in range(num_rows)]))
    assert len(texts(divided, "dev")) == 1
    assert len(texts(divided, "train")) == num_rows - 1


def test_of_many_small_classes_some_give_one_each_to_dev(write):
    divided = split_off_dev(own(write, [f"t{i},class {i % 40}" for i in range(200)]))
    labels = [example.label for example in divided.examples("dev")]
    assert len(labels) == len(set(labels)) == 20
    assert len({example.label for example in divided.examples("train")}) == 40
    mixed = [*ROWS, *(f"few {i},class {i % 3}" for i in range(9))]
    found = Counter(example.label for example in split_off_dev(own(write, mixed, "b.csv")).examples("dev"))
    assert (found["common"], found["rare"], found.total()) == (36, 4, 41)


def test_a_class_of_one_text_again_and_again_stays_in_train(write):
    divided = split_off_dev(own(write, [*ROWS, *["n/a,none"] * 60]))
    assert Counter(example.label for example in divided.examples("dev")) == {"rare": 4, "common": 36}
    assert Counter(example.label for example in divided.examples("train"))["none"] == 60


def test_few_contexts_and_documents_are_divided_whole_though_each_is_more_than_the_share(write):
    rows = [{"question": f"which {i}?", "context": f"it is number {i % 4}", "answer": "number"} for i in range(40)]
    divided = split_off_dev(open_own("answer", {"train": write("a.jsonl", "\n".join(map(json.dumps, rows)))}))
    contexts = [{example.context for example in divided.examples(split)} for split in ("train", "dev")]
    assert (len(contexts[0]), len(contexts[1]), contexts[0] & contexts[1]) == (3, 1, set())
    lines = [f"-DOCSTART- O\n\nKim{number} B-PER\n\n" + "sat O\n\n" * 9 for number in range(3)]
    divided = split_off_dev(open_own("tag", {"train": write("a.txt", "".join(lines))}))
    documents = [{example.document for example in divided.examples(split)} for split in ("train", "dev")]
    assert (len(documents[0]), len(documents[1]), documents[0] & documents[1]) == (2, 1, set())


def test_where_nothing_can_be_learnt_the_reason_is_told(write):
    rows = [{"question": "where?", "context": f"number {i}", "answer": "nowhere"} for i in range(40)]
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    with pytest.raises(UserError, match=r"none of its 40 examples can be trained on; left out: 40 questions whose"):
        split_off_dev(open_own("answer", {"train": path}))


@pytest.mark.parametrize(
    "rows",
    [
        ["same,x", "same,y"],
        ["same,x", "same,x", " ,y"],
        ["one,x", "two,y"],
        [f"text {i},label {i}" for i in range(15)],
    ],
)
def test_what_cannot_be_divided_is_refused_with_the_reason(write, rows):
    words = (
        f"a dev set cannot be split off: of its {len(rows)} examples too few share their label with a different text"
    )
    with pytest.raises(UserError, match=words):
        split_off_dev(own(write, rows))


def test_questions_about_one_context_cannot_be_divided(write):
    rows = [{"question": f"which {i}?", "context": "it is number 1", "answer": "number"} for i in range(40)]
    dataset = open_own("answer", {"train": write("a.jsonl", "\n".join(map(json.dumps, rows)))})
    with pytest.raises(UserError, match="of its 40 examples too few have different contexts; give a dev set too"):
        split_off_dev(dataset)


def test_questions_about_one_context_stay_together(write, tmp_path):
    paragraphs = [
        {
            "context": f"context {i}",
            "qas": [{"id": f"{i}-{j}", "question": "?", "answers": [{"text": "context"}]} for j in range(5)],
        }
        for i in range(40)
    ]
    write("train-v1.1.json", json.dumps({"data": [{"paragraphs": paragraphs}]}))
    divided = split_off_dev(open_dataset(TASKS["squad1"], tmp_path))
    contexts = {split: {example.context for example in divided.examples(split)} for split in ("train", "dev")}
    assert not contexts["train"] & contexts["dev"]
    assert len(list(divided.examples("dev"))) == 20


def test_sentences_of_one_document_stay_together(write, tmp_path):
    documents = "".join(f"-DOCSTART- O\n\nfirst{i} O\n\n" + "word B-PER\n\n" * 3 for i in range(30))
    write("eng.train", documents)
    divided = split_off_dev(open_dataset(TASKS["conll2003"], tmp_path))
    numbers = {split: {example.document for example in divided.examples(split)} for split in ("train", "dev")}
    assert not numbers["train"] & numbers["dev"]
    assert len(list(divided.examples("dev"))) == 12


def weighed(kind, targets, labels):
    """Weigh items that have nothing but targets."""
    targets = np.array(targets)
    nothing, firsts = np.zeros(0, np.int64), np.arange(len(targets) + 1)
    items = Items(nothing, nothing, np.zeros(1, np.int64), firsts, targets, np.ones(targets.shape, np.float32))
    return KINDS[kind].weigh(items, replace(TASKS["sst2"], labels=labels)).weights


def test_weighted_classes_count_alike():
    targets = [0] * 6 + [1] * 3 + [2] * 1
    weights = weighed("classify", targets, ("a", "b", "c", "d"))
    totals = [weights[np.array(targets) == number].sum() for number in range(3)]
    assert totals == pytest.approx([10 / 3] * 3)
    assert weights.sum() == pytest.approx(len(targets))


def test_class_weights_are_scikit_learns():
    sklearn = pytest.importorskip("sklearn.utils.class_weight", reason="NO COMPARISON WITH scikit-learn: not installed")
    targets = [0, 1, 1, 2, 2, 2, 2]
    expected = sklearn.compute_class_weight("balanced", classes=np.unique(targets), y=targets)
    assert weighed("classify", targets, ("a", "b", "c")) == pytest.approx(expected[targets])


def test_a_label_of_several_weighs_as_many_as_lack_it():
    targets = np.array([[1, 0, 0], [1, 1, 0], [0, 0, 0], [1, 0, 0]], np.float32)
    expected = np.where(targets, [1 / 3, 3, 1], 1)
    assert weighed("multilabel", targets, ("a", "b", "c")) == pytest.approx(expected)
