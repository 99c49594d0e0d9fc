"""finetune, evaluate, predict, classify and choose as a person or a script meets them."""

import csv
import json
import os
import re
import shutil
import signal

import pytest
import torch
from small_models import write_small_model
from tiny_runs import files_of
from toy_tasks import QUICK, SIZES, text_with, write_rows, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.finetune import finetune
from bertworks.inference import predict as predictions
from bertworks.train.log import RunLog

KINDS = ("classify", "regress", "multilabel", "choose")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", **SIZES)


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    """A run of each kind, with its files."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        train, dev = write_task(folder / f"{kind}-files", kind)
        finetune(kind, model=model, train=train, dev=dev, out=folder / kind, overrides=QUICK, device="cpu")
    return folder


def test_a_run_is_made_refused_resumed_and_measured(bertworks, model, tmp_path):
    train, dev = write_task(tmp_path, "classify")
    command = ("finetune", "classify", "--model", model, "--train", train, "--dev", dev, "--out", tmp_path / "run")
    code, out, _ = bertworks(*command, *QUICK, "--json", "--device", "cpu")
    result = json.loads(out)
    assert (code, result["steps"], result["reason"]) == (0, 36, "steps")
    code, _, err = bertworks(*command, *QUICK)
    assert (code, err.count("\n")) == (2, 1)
    code, out, err = bertworks(*command, *QUICK, "--resume")
    assert code == 0
    assert "finished after 36 steps; best accuracy on dev" in out
    assert "label from 'label' (guessed)" in err
    assert "resuming" not in err
    code, out, _ = bertworks("evaluate", tmp_path / "run", "--task", "classify", "--data", dev, "--json")
    measured = json.loads(out)
    assert measured["accuracy"] == result["accuracy"]
    assert measured["loss"] == pytest.approx(result["loss"], rel=1e-4)


def test_ctrl_c_before_the_first_evaluation_and_the_run_folder_is_enough_to_go_on(
    bertworks, model, tmp_path, monkeypatch
):
    train, _ = write_task(tmp_path / "files", "classify")
    rows = [json.loads(line) for line in train.read_text().splitlines()]
    named = write_rows(tmp_path / "files/named.jsonl", [{"a": one["text"], "b": one["label"]} for one in rows])
    columns = ("--column", "text=a", "--column", "label=b")
    monkeypatch.chdir(tmp_path / "files")
    settings = (*QUICK, "train.log_every=1", "train.max_steps=14", "train.save_every=2", "--device", "cpu")
    command = ("finetune", "classify", "--model", model, "--train", named.name, *columns, *settings)
    assert bertworks(*command, "--out", tmp_path / "whole", "-q")[0] == 0
    told = RunLog.train

    def interrupted(self, place, values):
        told(self, place, values)
        if place.step == 3:
            os.kill(os.getpid(), signal.SIGINT)

    run = tmp_path / "run"
    with monkeypatch.context() as patches:
        patches.setattr(RunLog, "train", interrupted)
        code, out, err = bertworks(*command, "--out", run)
    assert (code, out.count("\n")) == (130, 1)
    assert "after 3 steps; not evaluated yet, so there is no model; saved: checkpoints/step-00000003" in out
    assert (run / "checkpoints/step-00000003").is_dir()
    assert err.splitlines()[-1] == f"next: bertworks finetune --resume --out {run}"
    monkeypatch.chdir(tmp_path)
    code, out, err = bertworks("finetune", "--resume", "--out", run)
    assert (code, "resuming from step 3" in err) == (0, True), err
    assert err.splitlines()[-2:] == [
        f"report: {run}/report.html  (open it in a browser)",
        f"next: bertworks classify {run} 'A text.'",
    ]
    assert (run / "report.html").exists()
    assert files_of(run) == files_of(tmp_path / "whole")
    shutil.rmtree(run / "checkpoints")  # no checkpoint yet: it starts
    bw.finetune(out=run, resume=True, quiet=True)
    assert files_of(run) == files_of(tmp_path / "whole")
    code, out, _ = bertworks("finetune", "--resume", "--out", run, "train.max_steps=16")
    assert (code, "after 16 steps" in out) == (0, True)
    named.rename(tmp_path / "moved.jsonl")
    code, _, err = bertworks("finetune", "--resume", "--out", run)
    assert (code, err.count("\n"), f"{named}, which is not there any more" in err) == (2, 1, True)
    code, _, err = bertworks("finetune", "--resume", "--out", run, "--train", tmp_path / "moved.jsonl")
    assert (code, "is finished already" in err) == (0, True)
    (run / "inputs.json").unlink()
    code, _, err = bertworks("finetune", "--resume", "--out", run)
    assert (code, err.count("\n"), "give TASK, --model MODEL" in err) == (2, 1, True)


def test_a_benchmark_is_learnt_from_its_own_files(bertworks, model, tmp_path):
    folder = tmp_path / "SST-2"
    folder.mkdir()
    lines = [f"a {'cat' if number % 2 else 'dog'} sat\t{number % 2}" for number in range(20)]
    for split in ("train", "dev"):
        (folder / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    run = tmp_path / "run"
    command = ("finetune", "sst2", "--model", model, "--data", tmp_path, "--out", run, *QUICK, "train.epochs=1", "-q")
    assert bertworks(*command)[0] == 0
    code, out, _ = bertworks("evaluate", run, "--task", "sst2", "--data", tmp_path, "--json")
    assert code == 0
    assert {"accuracy", "loss"} < set(json.loads(out))
    assert bw.load(run).about["task"]["name"] == "sst2"


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_are_those_of_the_evaluation_and_in_order(bertworks, runs, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(predictions, "EXAMPLES_AT_ONCE", 7)
    dev = runs / f"{kind}-files/dev.jsonl"
    code, _, err = bertworks("predict", runs / kind, dev, "--out", tmp_path / "said.jsonl")
    assert (code, "40 predictions" in err) == (0, True)
    said = [json.loads(line) for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    assert [line["id"] for line in said] == [str(number) for number in range(40)]
    rows = [json.loads(line) for line in dev.read_text().splitlines()]
    if kind == "classify":
        right = sum(line["label"] == row["label"] for line, row in zip(said, rows, strict=True))
        metrics = json.loads(bertworks("evaluate", runs / kind, "--task", kind, "--data", dev, "--json")[1])
        assert right / 40 == metrics["accuracy"]
        assert all(sum(line["scores"].values()) == pytest.approx(1) for line in said)
    if kind == "choose":
        assert [len(line["scores"]) for line in said] == [len(row["endings"]) for row in rows]


def test_predictions_as_a_table_have_a_row_each_also_without_labels(bertworks, runs, tmp_path):
    source = write_rows(tmp_path / "new.jsonl", [{"text": "the cat sat"}, {"text": 'a "dog", big'}])
    assert bertworks("predict", runs / "classify", source, "--out", tmp_path / "said.csv")[0] == 0
    with open(tmp_path / "said.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [list(row) for row in table] == [["text", "id", "label", "score"]] * 2


def test_each_text_is_classified_as_if_alone(bertworks, runs):
    texts = ["the cat sat", "a dog ran far away on the mat", "cat"]
    model = bw.load(runs / "classify", device="cpu")
    together, alone = model.classify(texts), [model.classify([text])[0] for text in texts]
    assert [one["label"] for one in together] == [one["label"] for one in alone]
    for one, other in zip(together, alone, strict=True):
        assert one["score"] == pytest.approx(other["score"], abs=1e-5)
    code, out, _ = bertworks("classify", runs / "classify", *texts, "--json", "--device", "cpu")
    assert (code, [one["label"] for one in json.loads(out)]) == (0, [one["label"] for one in together])
    assert model.classify([]) == []


def test_scores_and_several_labels(runs):
    assert set(bw.load(runs / "regress").classify(["a big mat"])[0]) == {"score"}
    several = bw.load(runs / "multilabel").classify(["a cat sat"])[0]
    assert set(several["scores"]) == {"cat", "dog"}
    assert several["labels"] == [label for label, score in several["scores"].items() if score >= 0.5]


def test_the_likeliest_ending_is_chosen(bertworks, runs):
    code, out, _ = bertworks("choose", runs / "choose", "the big mat", "a dog sat", "the cat ran", "dog", "--json")
    result = json.loads(out)
    assert (code, len(result["scores"])) == (0, 3)
    assert result["choice"] == max(range(3), key=result["scores"].__getitem__)
    assert bertworks("choose", runs / "choose", "the mat", "one")[0] == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("finetune", "classify", "--model", "MODEL", "--out", "run"), "give --train FILE"),
        (("finetune", "sst2", "--model", "MODEL", "--out", "run"), "give --data DIR"),
        (("finetune", "sst22", "--model", "MODEL", "--data", ".", "--out", "run"), "did you mean"),
        (("classify", "MODEL", "a cat"), "it has no classify head (heads: mlm, nsp); see `bertworks finetune`"),
        (("choose", "MODEL", "a", "b", "c"), "it has no choose head"),
    ],
)
def test_mistakes_are_told_in_a_line(bertworks, model, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = bertworks(*(str(model) if argument == "MODEL" else argument for argument in arguments))
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


def test_a_model_of_single_texts_refuses_pairs(runs):
    with pytest.raises(UserError, match="single texts"):
        bw.load(runs / "classify").classify(["a cat"], ["a dog"])


def test_a_label_that_training_never_saw_is_an_error_with_its_line(bertworks, runs, tmp_path):
    dev = write_rows(tmp_path / "dev.jsonl", [{"text": "a cat", "label": "about birds"}])
    code, _, err = bertworks("evaluate", runs / "classify", "--task", "classify", "--data", dev)
    assert code == 2
    assert "dev.jsonl" in err
    assert "about birds" in err


def test_a_text_longer_than_the_model_was_trained_on_is_cut(runs):
    import random

    assert bw.load(runs / "classify").classify([text_with("cat", random.Random(0), 60)])[0]["label"]


def test_a_model_that_says_nothing_of_its_task_classifies_texts_and_pairs(tmp_path):
    """As transformers writes them: labels alone, or not even those."""
    named = bw.load(write_small_model(tmp_path / "named", {"classify": 3}, labels=["x", "y", "z"]))
    assert list(named.classify(["a cat"])[0]["scores"]) == ["x", "y", "z"]
    assert named.classify(["a cat"], ["a dog"])[0]["scores"] != named.classify(["a cat"])[0]["scores"]
    plain = bw.load(write_small_model(tmp_path / "plain", {"classify": 2}))
    assert list(plain.classify(["a cat"])[0]["scores"]) == ["LABEL_0", "LABEL_1"]


@pytest.mark.parametrize(
    ("heads", "task", "more", "words"),
    [
        ({"classify": 2}, {"kind": "classify", "is_pair": True}, (), "give each text a second one with --pair"),
        ({"classify": 2}, {"kind": "classify"}, ("--pair", "b"), "single texts; leave --pair out"),
        ({"tag": 3}, {"kind": "tag"}, (), "(heads: tag); see `bertworks finetune`; it can: tag, embed"),
    ],
)
def test_what_a_model_does_not_classify_is_told_with_what_to_do(bertworks, tmp_path, heads, task, more, words):
    folder = write_small_model(tmp_path, heads, about={"task": task})
    code, out, err = bertworks("classify", folder, "a cat", *more)
    assert (code, out) == (2, "")
    assert words in err


def test_a_second_text_is_for_all_or_each_has_its_own(bertworks, tmp_path):
    folder = write_small_model(tmp_path, {"classify": 2}, about={"task": {"kind": "classify", "is_pair": True}})
    expected = bw.load(folder).classify(["a cat", "a dog"], ["the mat", "a mat"])
    code, out, _ = bertworks("classify", folder, "a cat", "a dog", "--pair", "the mat", "--pair", "a mat", "--json")
    assert (code, json.loads(out)) == (0, expected)
    code, out, _ = bertworks("classify", folder, "a cat", "a dog", "--pair", "the mat", "--json")
    assert (code, json.loads(out)[0]) == (0, expected[0])
    code, _, err = bertworks("classify", folder, "a cat", "--pair", "the mat", "--pair", "a mat")
    assert (code, "1 text but 2 pairs; give one for each" in err) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("sst2", "--data", ".", "--train", "a.csv", "--dev", "b.csv"), "leave --train and --dev out"),
        (("sst2",), "SST-2 is read from a folder: give --data DIR"),
        (("classify", "--data", ".", "--train", "a.csv"), "leave --data out"),
        (("classify",), "give --train FILE"),
    ],
)
def test_files_that_a_task_is_not_learnt_from_are_to_be_left_out(bertworks, model, tmp_path, arguments, words):
    code, _, err = bertworks("finetune", *arguments, "--model", model, "--out", tmp_path / "run")
    assert (code, err.count("\n"), words in err) == (2, 1, True)


def test_a_cache_without_frozen_layers_is_refused(bertworks, model, tmp_path):
    train, dev = write_task(tmp_path, "classify")
    command = ("finetune", "classify", "--model", model, "--train", train, "--dev", dev, "--out", tmp_path / "run")
    code, _, err = bertworks(*command, "--cache", tmp_path / "cache")
    assert (code, "it goes with --features LAYERS" in err) == (2, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("given", [None, 3, b"a cat"])
def test_what_is_no_list_of_texts_is_a_users_mistake(runs, tmp_path, given):
    with pytest.raises(UserError, match="classify takes a list of texts"):
        bw.load(runs / "classify").classify(given)
    with pytest.raises(UserError, match="at least two endings"):
        bw.load(runs / "choose").choose("a cat", given)
    with pytest.raises(UserError, match="tag takes a list of texts"):
        bw.load(write_small_model(tmp_path, {"tag": 3})).tag(given)


def test_labels_of_a_file_to_predict_are_left_alone(bertworks, runs, tmp_path):
    """Also where they are none of the model's, or only called like labels."""
    for name, row in (("label", "about birds"), ("score", 7), ("category", "x")):
        source = write_rows(tmp_path / f"{name}.jsonl", [{"text": "the cat sat", name: row}])
        assert bertworks("predict", runs / "classify", source, "--out", tmp_path / "said.jsonl")[0] == 0
        assert json.loads((tmp_path / "said.jsonl").read_text())["label"] in ("about cats", "about dogs")


def test_what_a_file_holds_must_fit_the_model_that_predicts(bertworks, runs, tmp_path):
    pairs = write_rows(tmp_path / "pairs.jsonl", [{"text1": "a cat", "text2": "a dog"}])
    code, _, err = bertworks("predict", runs / "classify", pairs, "--out", tmp_path / "said.csv")
    assert (code, "fine-tuned on single texts" in err) == (2, True)
    said = write_rows(tmp_path / "said.jsonl", [{"id": "1", "label": "about cats", "score": 0.9}])
    code, _, err = bertworks("predict", runs / "classify", said, "--out", tmp_path / "again.csv")
    assert (code, "which column is the text?" in err) == (2, True)


def test_a_file_that_is_read_is_not_written_over(bertworks, runs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = write_rows(tmp_path / "new.jsonl", [{"text": "the cat sat"}])
    (tmp_path / "corpus.txt").write_text("the cat sat\n")
    commands = [("predict", runs / "classify", source, "--out", "new.jsonl"),
                ("features", runs / "classify", source, "--out", "./new.jsonl"),
                ("vocab", "corpus.txt", "--size", 100, "--out", "corpus.txt")]  # fmt: skip
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for command in commands:
        code, _, err = bertworks(*command)
        assert (code, "it is an input and would be overwritten" in err) == (2, True), command
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_grid_and_a_run_do_not_go_on_in_each_others_folder(bertworks, model, tmp_path):
    train, dev = write_task(tmp_path, "classify", num_train=32)
    few = ("task.max_length=16", "train.epochs=1", "train.batch_size=16", "optim.lr=1e-3", "--device", "cpu")
    command = ("finetune", "classify", "--model", model, "--train", train, "--dev", dev, *few, "--out")
    assert bertworks(*command, tmp_path / "grid", "--grid")[0] == 0
    assert bertworks(*command, tmp_path / "run")[0] == 0
    before = {run: files_of(tmp_path / run) for run in ("grid", "run")}
    code, _, err = bertworks(*command, tmp_path / "grid", "--resume")
    assert (code, "holds runs of a grid, which `search` resumes" in err) == (2, True)
    code, _, err = bertworks(*command, tmp_path / "run", "--resume", "--grid")
    assert (code, "holds one run, which the command that started it resumes" in err) == (2, True)
    code, _, err = bertworks("pretrain", "tiny-cpu", "--data", tmp_path, "--out", tmp_path / "grid", "--resume")
    assert code == 2
    assert {run: files_of(tmp_path / run) for run in ("grid", "run")} == before
    (tmp_path / "file").write_text("")
    code, _, err = bertworks(*command, tmp_path / "file")
    assert (code, "is a file; choose another --out" in err) == (2, True)


def test_f1_of_answers_is_in_percent_once(bertworks, model, tmp_path):
    train, dev = write_task(tmp_path, "answer", num_train=32, num_dev=8)
    few = ("task.max_length=16", "task.doc_stride=4", "train.epochs=1", "train.batch_size=16", "--device", "cpu")
    code, _, err = bertworks(
        "finetune", "answer", "--model", model, "--train", train, "--dev", dev, "--out", tmp_path / "run", *few
    )
    (told,) = set(re.findall(r"held out: .*?, f1 ([\d.]+)%", err))
    dev = json.loads((tmp_path / "run/dev.json").read_text())
    assert (code, float(told)) == (0, round(dev["metrics"]["f1"], 1))
    assert 0 < float(told) <= 100


def test_a_metric_that_is_not_defined_is_not_called_the_best(bertworks, model, tmp_path):
    rows = write_rows(tmp_path / "rows.jsonl", [{"text": f"a cat {number}", "score": 1.0} for number in range(20)])
    command = ("finetune", "regress", "--model", model, "--train", rows, "--dev", rows, "--out", tmp_path / "run")
    code, out, _ = bertworks(*command, "train.epochs=1", "task.max_length=16", "--device", "cpu")
    assert code == 0
    assert "pearson on dev is not defined; its model is from step 1;" in out
    code, out, _ = bertworks(*command, "train.epochs=1", "task.max_length=16", "--device", "cpu", "--resume", "--json")
    assert (code, json.loads(out)["pearson"]) == (0, None)


def test_all_that_is_wrong_with_settings_is_told_at_once_also_what_the_model_refuses(bertworks, model, tmp_path):
    train, dev = write_task(tmp_path, "classify")
    command = ("finetune", "classify", "--train", train, "--dev", dev, "--out", tmp_path / "run")
    wrong = ("train.epochs=0", "optim.lr=-1", "foo.bar=1", "task.max_length=10000", "task.freeze=50")
    code, _, err = bertworks(*command, "--model", model, *wrong)
    assert (code, "5 problems" in err) == (2, True)
    for named in ("train.epochs: 0", "optim.lr: -1", "foo.bar", "task.max_length 10000 is more than", "task.freeze=50"):
        assert named in err
    for more in ([], ["train.epochs=2"], ["--grid", "train.epochs=2"], ["--features", "last"]):
        if more == ["--features", "last"]:
            train, dev = write_task(tmp_path, "tag")
            command = ("finetune", "tag", "--train", train, "--dev", dev, "--out", tmp_path / "run")
        code, _, err = bertworks(*command, "--model", model, *more, *wrong[3:])
        assert (code, "2 problems" in err, wrong[3][:15] in err, wrong[4] in err) == (2, True, True, True)


def test_a_run_of_very_few_steps_says_so_and_what_to_change(bertworks, model, tmp_path):
    train, dev = write_task(tmp_path, "classify", num_train=40, num_dev=10)
    command = ("finetune", "classify", "--model", model, "--train", train, "--dev", dev, "task.max_length=16")
    _, _, err = bertworks(*command, "--out", tmp_path / "few")
    said = "only 6 steps: 40 examples, in batches of 32, 3 epochs; a model learns little in so few."
    assert f"{said} Try train.batch_size=8 train.epochs=10\n" in err
    code, _, err = bertworks("finetune", "--resume", "--out", tmp_path / "few")
    assert (code, "only 6 steps" in err) == (0, False), "it was said at the start"
    _, _, err = bertworks(*command, "--out", tmp_path / "more", "train.batch_size=8", "train.epochs=10")
    assert "only" not in err
    _, _, err = bertworks(*command, "--out", tmp_path / "asked", "train.max_steps=2")
    assert "only" not in err
    notes = [bw.load(tmp_path / name).about["provenance"]["notes"] for name in ("few", "asked")]
    assert notes[0] == notes[1], "it is nothing to know of the model"
