"""What is measured is what the model says when it predicts."""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from calm_models import write_calm_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.inference.evaluate import threshold_for
from bertworks.tasks.heads import KINDS, measure_answered
from bertworks.tasks.squad import SQUAD1, SQUAD2
from bertworks.tasks.task import Answer, SpanExample
from bertworks.tasks.windows import Answered, Guess

ASKED = [SpanExample("a", "who?", "Ada and Bo", (Answer(0, "Ada"),), False)]
UNSURE = [Answered([Guess("Ada", 0, 3, 1.0)], 3.0)]


def test_a_model_with_a_threshold_may_find_no_answer_where_there_always_is_one():
    assert measure_answered(SQUAD1, ASKED, UNSURE)["f1"] == 100
    assert measure_answered(replace(SQUAD1, threshold=1.0), ASKED, UNSURE)["f1"] == 0
    assert measure_answered(replace(SQUAD1, threshold=2.5), ASKED, UNSURE)["f1"] == 100


@pytest.mark.parametrize(
    ("own", "names_task", "asked", "threshold", "words"),
    [
        (0.5, True, SQUAD1, 0.5, ""),
        (0.5, True, SQUAD2, 0.5, ""),
        (None, True, SQUAD1, None, ""),
        (None, True, SQUAD2, math.inf, "it always gives one"),
        (None, False, SQUAD2, None, "the best one for these is used"),
    ],
)
def test_the_threshold_is_the_models_own(own, names_task, asked, threshold, words):
    """And not one that is fitted to what is measured, unless the model may have one that nobody has told us."""
    ensemble = SimpleNamespace(task=replace(SQUAD2, threshold=own), names_task=names_task)
    found, said = threshold_for(ensemble, asked)
    assert found == threshold
    assert words in " ".join(said)
    assert bool(said) == bool(words)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    """A model that was fine-tuned on a few texts."""
    folder = tmp_path_factory.mktemp("tuned")
    (folder / "train.csv").write_text("text,label\n" + "a cat,1\nthe dog,0\n" * 10)
    overrides = ["train.epochs=1", "train.batch_size=8", "task.max_length=16"]
    model = write_calm_model(folder / "calm")
    bw.finetune("classify", model=model, train=folder / "train.csv", dev=folder / "train.csv", out=folder / "run",
                overrides=overrides, device="cpu")  # fmt: skip
    return folder / "run"


def test_unknown_text_is_told_where_it_is_measured_or_predicted(tuned, tmp_path, bertworks):
    (tmp_path / "a.csv").write_text("text,label\n고양이가,1\n개가,0\n", encoding="utf-8")
    code, _, err = bertworks("evaluate", tuned, "--task", "classify", "--data", tmp_path / "a.csv")
    assert (code, "of the tokens are [UNK]" in err) == (0, True)
    code, _, err = bertworks("predict", tuned, tmp_path / "a.csv", "--out", tmp_path / "out.csv")
    assert (code, "of the tokens are [UNK]" in err) == (0, True)
    (tmp_path / "b.csv").write_text("text,label\na cat,1\nthe dog,0\n")
    code, out, _ = bertworks("evaluate", tuned, "--task", "classify", "--data", tmp_path / "b.csv", "--json")
    assert (code, [note for note in json.loads(out)["notes"] if "UNK" in note or "left out" in note]) == (0, [])


def test_an_option_given_twice_is_refused(bertworks):
    code, _, err = bertworks(
        "finetune", "classify", "--train", "a.csv", "--train", "b.csv", "--out", "x", "--model", "m"
    )
    assert (code, err) == (2, "error: --train is given 2 times; give it once\n")
    code, _, err = bertworks("finetune", "classify", "--column", "a=b", "--column", "c=d", "-q", "-q", "--model", "m",
                             "--out", "x")  # fmt: skip
    assert "given" not in err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overrides": None}, "overrides are a list of texts"),
        ({"overrides": [1]}, "overrides are a list of texts"),
        ({"train": [{"text": "a"}]}, "train: a list where one path is expected"),
    ],
)
def test_wrong_types_are_told_in_words(tmp_path, options, words):
    with pytest.raises(UserError, match=words):
        bw.finetune("classify", **{"model": "mini", "train": "a.csv", "out": tmp_path / "run"} | options)
    with pytest.raises(UserError, match="the task '5' is not a name"):
        bw.finetune(5, model="mini", data="x", out=tmp_path / "run")
    with pytest.raises(UserError, match=r"^to start a run, give TASK; "):
        bw.finetune(None, model="mini", data="x", out=tmp_path / "run")


def test_scores_far_from_nothing_are_told(tmp_path, bertworks):
    model = write_calm_model(tmp_path / "calm")
    for highest, is_told in ((5, False), (90_000, True)):
        (tmp_path / "a.csv").write_text("text,score\n" + f"a cat,{highest}\nthe dog,0\n" * 10)
        files = ("--train", tmp_path / "a.csv", "--dev", tmp_path / "a.csv", "--out", tmp_path / f"run{highest}")
        _, _, err = bertworks("finetune", "regress", "--model", model, *files, "train.epochs=1", "task.max_length=16")
        assert ("too far from 0 to be learnt well; subtract 45,000 from each and divide by 45,000" in err) == is_told


def test_a_model_that_always_answers_is_measured_as_such(tmp_path, bertworks):
    model, rows = write_calm_model(tmp_path / "calm"), [{"question": "a", "context": "the cat", "answer": "cat"}] * 8
    for name, some in (("a", rows), ("b", [*rows, {"question": "a", "context": "dog cat", "answer": ""}])):
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    files = ("--train", tmp_path / "a.jsonl", "--dev", tmp_path / "a.jsonl", "--out", tmp_path / "run")
    lengths = ("task.max_length=16", "task.doc_stride=4", "task.max_query=4")
    assert bertworks("finetune", "answer", "--model", model, *files, "train.epochs=1", *lengths)[0] == 0
    code, out, _ = bertworks("evaluate", tmp_path / "run", "--task", "answer", "--data", tmp_path / "b.jsonl", "--json")
    found = json.loads(out, parse_constant=pytest.fail)
    assert (code, found["NoAns_f1"], found["threshold"]) == (0, 0.0, None)


def test_a_label_of_several_is_likely_from_one_half_on_in_measuring_and_in_predicting(tmp_path):
    """The head is as it was drawn, so that probabilities are a little above and below one half."""
    labels = [f"label{number}" for number in range(12)]
    path = tmp_path / "train.csv"
    path.write_text("text,label\n" + "".join(f"a cat {i},{label}\n" for i, label in enumerate(labels)))
    model = write_calm_model(tmp_path / "calm")
    bw.finetune("multilabel", model=model, train=path, dev=path, out=tmp_path / "run", device="cpu", quiet=True,
                overrides=["train.epochs=1", "optim.lr=1e-9", "task.max_length=16"])  # fmt: skip
    task = replace(SQUAD1, kind="multilabel", labels=tuple(sorted(labels)))
    found = bw.load(tmp_path / "run", device="cpu").classify(["a cat", "the dog", "a big cat"])
    shares = [np.array([result["scores"][label] for label in task.labels]) for result in found]
    assert 0.4 < min(map(min, shares)) < 0.5 < max(map(max, shares)) < 0.6
    likely = [tuple(np.array(task.labels)[row >= 0.5]) for row in shares]
    assert [tuple(result["labels"]) for result in found] == likely
    assert KINDS["multilabel"].decode([], None, [np.log(row / (1 - row)) for row in shares], task) == likely
