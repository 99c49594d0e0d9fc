"""What an ELMo with readers can learn: texts, pairs, choices, tags and answers, also of words outside of its list."""

import pytest
import torch
from toy_elmo_tasks import LONGER, name_of, write_elmo, write_files

import bertworks as bw
from bertworks.finetuning.finetune import finetune


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return write_elmo(tmp_path_factory.mktemp("model") / "elmo")


def learnt(kind, model, folder, *overrides):
    files = write_files(folder / "files", kind)
    outcome = finetune(
        name_of(kind), model=model, out=folder / "run", overrides=(*LONGER, *overrides), device="cpu", **files
    )
    return outcome.score, bw.load(folder / "run", device="cpu")


def test_texts(model, tmp_path):
    score, opened = learnt("classify", model, tmp_path, "train.epochs=14")
    assert score >= 0.95
    assert opened.classify(["a cat sat"])[0]["label"] == "about cats"


def test_pairs_that_are_alike_or_not_though_neither_text_says_so(model, tmp_path):
    score, opened = learnt("pair", model, tmp_path, "train.epochs=14")
    assert score >= 0.9
    found = opened.classify(["zebra sat", "zebra sat"], ["far zebra", "far gnu"])
    assert [one["label"] for one in found] == ["same", "other"]


def test_choices(model, tmp_path):
    assert learnt("choose", model, tmp_path, "train.epochs=5")[0] >= 0.9


def test_tags(model, tmp_path):
    score, opened = learnt("tag", model, tmp_path)
    assert score >= 0.95
    assert [found["text"] for found in opened.tag("sat zebra far cat")] == ["zebra", "cat"]


def test_answers(model, tmp_path):
    score, opened = learnt("answer", model, tmp_path)
    assert score >= 0.9
    assert opened.answer("which animal", "far far gnu sat")[0]["text"] == "gnu"
