"""Fine-tuning to tag and to answer: windows in, entities and texts out, and what the folder says of them."""

import json

import pytest
from small_models import write_small_model
from tiny_runs import files_of
from toy_tasks import QUICK, SIZES, answer_rows, tag_rows, write_rows, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.finetune import finetune
from bertworks.inference.evaluate import measure_models
from bertworks.inference.predict import Ensemble

LEARN = (*QUICK, "train.epochs=25", "optim.lr=4e-3", "task.dropout=0.0", "task.doc_stride=4", "train.save_every=1000")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", **SIZES)


@pytest.fixture(scope="module", params=["tag", "answer"])
def learnt(request, model, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    train, dev = write_task(folder, request.param)
    outcome = finetune(
        request.param, model=model, out=folder / "run", train=train, dev=dev, overrides=LEARN, device="cpu"
    )
    return request.param, folder, outcome


def test_the_folder_says_how_texts_are_cut(learnt):
    kind, folder, _ = learnt
    told = bw.load(folder / "run", device="cpu").about["task"]
    assert {name: told[name] for name in ("kind", "max_length", "context", "stride", "doc_stride", "max_query")} == {
        "kind": kind, "max_length": 16, "context": "document", "stride": None, "doc_stride": 4, "max_query": 64
    }  # fmt: skip


def test_the_opened_model_finds_what_it_learnt(learnt):
    kind, folder, _ = learnt
    model = bw.load(folder / "run", device="cpu")
    if kind == "tag":
        text = "the mat , " * 6 + "cats sat . " + "far away " * 5  # many windows
        assert model.about["units"] == "word"
        assert [(one["type"], one["text"]) for one in model.tag(text)] == [("ANIMAL", "cats")]
    else:
        rows = answer_rows(30, 7)
        right = [model.answer(row["question"], row["context"])[0]["text"] == row["answer"] for row in rows]
        assert sum(right) >= 27


def test_evaluate_gives_the_score_of_the_run(learnt):
    """Questions without an answer: with the threshold that was chosen on the dev set and is kept with the model."""
    kind, folder, outcome = learnt
    alone = Ensemble([bw.load(folder / "run", device="cpu")], ["run"])
    metrics = measure_models(alone, kind, folder / "dev.jsonl").metrics
    assert metrics[outcome.metric] == outcome.score
    if kind == "answer":
        kept = json.loads((folder / "run/model/bertworks.json").read_text())["threshold"]
        assert metrics["threshold"] == kept == outcome.metrics["threshold"]


@pytest.mark.parametrize("learnt", ["answer"], indirect=True)
def test_another_threshold_gives_another_score(learnt):
    kind, folder, outcome = learnt
    model = bw.load(folder / "run", device="cpu")
    model.about["threshold"] = -1e9
    metrics = measure_models(Ensemble([model], ["run"]), kind, folder / "dev.jsonl").metrics
    rows = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()]
    assert metrics["exact_match"] == pytest.approx(100 * sum(not row["answer"] for row in rows) / len(rows))
    assert metrics["f1"] < outcome.score


@pytest.mark.parametrize("kind", ["tag", "answer"])
def test_a_stopped_run_goes_on_exactly(model, tmp_path, kind):
    train, dev = write_task(tmp_path, kind)
    options = {"model": model, "train": train, "dev": dev, "device": "cpu"}
    short = (*QUICK, "train.epochs=2", "task.doc_stride=4")
    finetune(kind, out=tmp_path / "whole", overrides=short, **options)
    stopped = finetune(kind, out=tmp_path / "parts", overrides=(*short, "train.max_minutes=1e-9"), **options)
    assert stopped.reason == "minutes"
    finetune(kind, out=tmp_path / "parts", overrides=short, resume=True, **options)
    for folder in ("model", "checkpoints"):
        assert files_of(tmp_path / "parts" / folder) == files_of(tmp_path / "whole" / folder)


def test_what_cannot_be_learnt_from_is_counted_and_said(model, tmp_path):
    """T9: an answer that is not in its context, and one of which the tokenizer leaves nothing."""
    rows = answer_rows(20, 3)
    rows[0] |= {"answer": "small", "answer_start": 0}
    rows[1] |= {"context": "cat \u0007 dog", "answer": "\u0007", "answer_start": 4}
    train = write_rows(tmp_path / "train.jsonl", rows)
    said = []
    finetune(
        "answer", model=model, train=train, dev=train, out=tmp_path / "run", device="cpu", note=said.append,
        overrides=(*QUICK, "train.epochs=1"),
    )  # fmt: skip
    told = "\n".join(said)
    assert "1 question whose answer is not in the context" in told
    assert "1 question whose answer has no pieces" in told


def test_sentences_alone_or_with_their_document(model, tmp_path):
    sentences = [zip(row["words"], row["tags"], strict=True) for row in tag_rows(60)]
    blocks = ["\n".join(f"{word} {tag}" for word, tag in sentence) for sentence in sentences]
    documents = ["\n\n".join(["-DOCSTART- O", *blocks[first : first + 30]]) for first in (0, 30)]
    (tmp_path / "train.txt").write_text("\n\n".join(documents) + "\n")
    options = {"model": model, "train": tmp_path / "train.txt", "dev": tmp_path / "train.txt", "device": "cpu"}
    steps = {
        context: finetune(
            "tag", out=tmp_path / context, overrides=(*QUICK, "train.epochs=1", f"task.context={context}"), **options
        ).progress.step
        for context in ("document", "sentence")
    }
    assert steps["document"] < steps["sentence"]


def test_a_stride_that_leaves_gaps_is_refused(model, tmp_path):
    train, dev = write_task(tmp_path, "tag")
    with pytest.raises(UserError, match="stride=15 is not possible"):
        finetune(
            "tag", model=model, train=train, dev=dev, out=tmp_path / "run", device="cpu",
            overrides=(*QUICK, "task.stride=15"),
        )  # fmt: skip
