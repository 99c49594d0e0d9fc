"""evaluate and predict as a person meets them: what is behind a score, ensembles, files, columns, bad input."""

import csv
import json
import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_models import PIECES, write_small_model
from toy_tasks import QUICK, SIZES, text_with, write_rows, write_task

import bertworks as bw
from bertworks.finetuning.finetune import finetune
from bertworks.inference.evaluate import measure_models
from bertworks.inference.predict import Ensemble, write_predictions
from bertworks.tasks import tables
from bertworks.text.tokenizer import Tokenizer

SHORT = (*QUICK, "train.epochs=2", "task.doc_stride=4")  # so that there are mistakes left
KINDS = ("classify", "regress", "multilabel", "choose", "tag", "answer")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", **SIZES)


@pytest.fixture(scope="module")
def runs(model, tmp_path_factory):
    """Two runs of each kind, which differ in their seed, with their files."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    for kind in KINDS:
        train, dev = write_task(folder / f"{kind}-files", kind)
        for seed in (0, 1):
            changes = (*SHORT, f"train.seed={seed}")
            finetune(kind, model=model, train=train, dev=dev, out=folder / f"{kind}{seed}", overrides=changes,
                     device="cpu")  # fmt: skip
    return folder


def dev_of(runs, kind):
    return runs / f"{kind}-files/dev.jsonl"


def lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def evaluated(bertworks, *arguments):
    code, out, err = bertworks("evaluate", *arguments, "--json", "--device", "cpu")
    assert code == 0, err
    return json.loads(out)


def predicted(bertworks, out, *arguments):
    assert bertworks("predict", *arguments, "--out", out, "--device", "cpu", "--dtype", "float32")[0] == 0
    return lines(out)


def test_the_confusion_matrix_and_the_classes_agree_with_the_accuracy(bertworks, runs):
    dev = dev_of(runs, "classify")
    found = evaluated(bertworks, runs / "classify0", "--task", "classify", "--data", dev)
    counts = np.array(found["confusion"]["counts"])
    assert found["confusion"]["labels"] == ["about cats", "about dogs"]
    assert counts.trace() / 40 == found["accuracy"]
    assert counts.sum(1).tolist() == [found["per_class"][label]["support"] for label in found["confusion"]["labels"]]
    assert found["examples"] == 40
    code, out, err = bertworks("evaluate", runs / "classify0", "--task", "classify", "--data", dev)
    assert (code, out.splitlines()[0].split()) == (0, ["accuracy", f"{found['accuracy']:.4f}"])
    assert "how often each class (row)" in out
    assert "fine-tuning took" in err


def test_the_classes_of_several_labels_and_no_classes_of_others(bertworks, runs):
    found = evaluated(bertworks, runs / "multilabel0", "--task", "multilabel", "--data", dev_of(runs, "multilabel"))
    assert set(found["per_class"]) == {"cat", "dog"}
    assert np.array(found["confusion"]["counts"]).sum((1, 2)).tolist() == [40, 40]
    found = evaluated(bertworks, runs / "regress0", "--task", "regress", "--data", dev_of(runs, "regress"))
    assert {"pearson", "spearman", "loss"} < set(found)
    assert not {"confusion", "per_class"} & set(found)


def test_every_label_of_a_model_has_a_column_where_several_are_named(bertworks, runs, tmp_path):
    rows = [{"text": row["text"], **{label: int(label in row["labels"]) for label in ("cat", "dog", "ox")}}
            for row in lines(dev_of(runs, "multilabel"))]  # fmt: skip
    file = write_rows(tmp_path / "columns.jsonl", rows)
    command = ("evaluate", runs / "multilabel0", "--task", "multilabel", "--data", file, "--column", "label=cat")
    assert bertworks(*command, "--column", "label=dog")[0] == 0
    code, _, err = bertworks(*command, "--column", "label=ox")
    assert (code, "the model has labels without a column: dog; name one for each label" in err) == (2, True)


def test_json_says_what_was_left_out_as_the_table_does(bertworks, runs, tmp_path):
    rows = lines(dev_of(runs, "classify"))
    file = write_rows(
        tmp_path / "some.jsonl", [row | {"label": None} if not i % 4 else row for i, row in enumerate(rows)]
    )
    found = evaluated(bertworks, runs / "classify0", "--task", "classify", "--data", file)
    assert found["examples"] == 30
    assert any("left out: 10 rows without a label" in note for note in found["notes"])


def spoiled(dev, kind, path):
    """Write a file with every fifth label another one, so that even a perfect model is wrong."""
    other = {
        "classify": lambda label: {"about cats": "about dogs", "about dogs": "about cats"}[label],
        "multilabel": lambda labels: [label for label in ("cat", "dog") if label not in labels],
        "choose": lambda label: 1 - label,
    }[kind]
    name, rows = "labels" if kind == "multilabel" else "label", lines(dev)
    return write_rows(path, [row | {name: other(row[name])} if not i % 5 else row for i, row in enumerate(rows)])


@pytest.mark.parametrize("kind", ["classify", "multilabel", "choose"])
def test_the_wrong_examples_are_those_that_are_wrong_the_surest_first(bertworks, runs, tmp_path, kind):
    dev, out = spoiled(dev_of(runs, kind), kind, tmp_path / "dev.jsonl"), tmp_path / "wrong.jsonl"
    found = evaluated(bertworks, runs / f"{kind}0", "--task", kind, "--data", dev, "--wrong", out)
    wrong = lines(out)
    assert len(wrong) == round(40 * (1 - found["accuracy"]))
    assert wrong, "there must be mistakes to look at"
    assert [one["score"] for one in wrong] == sorted((one["score"] for one in wrong), reverse=True)
    said = {one["id"]: one for one in predicted(bertworks, tmp_path / "said.jsonl", runs / f"{kind}0", dev)}
    for one in wrong:
        result = said[one["id"]]
        assert one["predicted"] == result[{"classify": "label", "multilabel": "labels", "choose": "choice"}[kind]]
        assert one["gold"] != one["predicted"]
        if kind != "multilabel":
            assert one["score"] == pytest.approx(result["score"], rel=1e-4)


def test_a_table_of_no_mistakes_has_its_first_line(bertworks, runs, tmp_path):
    said = predicted(bertworks, tmp_path / "said.jsonl", runs / "classify0", dev_of(runs, "classify"))
    texts = [row["text"] for row in lines(dev_of(runs, "classify"))]
    rows = [{"text": text, "label": one["label"]} for text, one in zip(texts, said, strict=True)]
    right, out = write_rows(tmp_path / "right.jsonl", rows), tmp_path / "wrong.csv"
    assert (
        evaluated(bertworks, runs / "classify0", "--task", "classify", "--data", right, "--wrong", out)["accuracy"] == 1
    )
    assert out.read_text() == "id,text,gold,predicted,score\n"


def test_the_largest_errors_of_a_regression_as_a_table(bertworks, runs, tmp_path):
    dev = dev_of(runs, "regress")
    evaluated(bertworks, runs / "regress0", "--task", "regress", "--data", dev, "--wrong", tmp_path / "wrong.csv")
    said = predicted(bertworks, tmp_path / "said.jsonl", runs / "regress0", dev)
    errors = sorted((abs(one["score"] - row["score"]) for one, row in zip(said, lines(dev), strict=True)), reverse=True)
    with open(tmp_path / "wrong.csv", newline="") as stream:
        table = list(csv.DictReader(stream))
    assert [float(row["error"]) for row in table] == pytest.approx(errors[:4], rel=1e-4)


@pytest.mark.parametrize("kind", ["classify", "multilabel", "choose", "regress"])
def test_an_ensemble_is_the_mean_of_what_each_says(bertworks, runs, tmp_path, kind):
    dev, both = dev_of(runs, kind), (runs / f"{kind}0", runs / f"{kind}1")
    alone = [predicted(bertworks, tmp_path / f"{run.name}.jsonl", run, dev) for run in both]
    together = predicted(bertworks, tmp_path / "both.jsonl", *both, dev)
    for one, first, second in zip(together, *alone, strict=True):
        assert _numbers(one) == pytest.approx((_numbers(first) + _numbers(second)) / 2, abs=1e-5)
    found = evaluated(bertworks, *both, "--task", kind, "--data", dev)
    if kind == "classify":
        right = sum(one["label"] == row["label"] for one, row in zip(together, lines(dev), strict=True))
        assert found["accuracy"] == right / 40
        shares = [one["scores"][row["label"]] for one, row in zip(together, lines(dev), strict=True)]
        assert found["loss"] == pytest.approx(-np.log(shares).mean(), rel=1e-4)
    costs = [evaluated(bertworks, run, "--task", kind, "--data", dev)["minutes"] for run in both]
    assert found["minutes"] == pytest.approx(sum(costs), abs=2e-3)


def _numbers(result):
    scores = result.get("scores", result.get("score"))
    return np.array(list(scores.values()) if isinstance(scores, dict) else scores)


def test_each_model_of_an_ensemble_reads_with_its_own_tokenizer(bertworks, runs, tmp_path):
    """The same model with its vocabulary in another order, rows and all, is the same model."""
    other = bw.load(runs / "classify0")
    order = [*range(5), *reversed(range(5, len(PIECES)))]
    other.net.embeddings.token.weight.data = other.net.embeddings.token.weight.data[order]
    other.tokenizer = Tokenizer([PIECES[number] for number in order])
    other.save(tmp_path / "other")
    dev = dev_of(runs, "classify")
    alone = predicted(bertworks, tmp_path / "alone.jsonl", runs / "classify0", dev)
    together = predicted(bertworks, tmp_path / "both.jsonl", runs / "classify0", tmp_path / "other", dev)
    assert [one["score"] for one in together] == pytest.approx([one["score"] for one in alone], rel=1e-5)


def test_entities_are_told_by_their_type_and_sentences_by_their_wrong_tags(bertworks, runs, tmp_path):
    dev, out = dev_of(runs, "tag"), tmp_path / "wrong.jsonl"
    found = evaluated(bertworks, runs / "tag0", "--task", "tag", "--data", dev, "--wrong", out)
    assert set(found["per_class"]) == {"ANIMAL", "SIZE"}
    said = predicted(bertworks, tmp_path / "said.jsonl", runs / "tag0", dev)
    wrong = [
        str(number)
        for number, (one, row) in enumerate(zip(said, lines(dev), strict=True))
        if one["tags"] != row["tags"]
    ]
    assert sorted(one["id"] for one in lines(out)) == sorted(wrong)
    code, shown, _ = bertworks("evaluate", runs / "tag0", "--task", "tag", "--data", dev)
    assert (code, "ANIMAL" in shown) == (0, True)


def test_wrong_answers_are_those_that_do_not_match(bertworks, runs, tmp_path):
    dev, out = dev_of(runs, "answer"), tmp_path / "wrong.jsonl"
    found = evaluated(bertworks, runs / "answer0", "--task", "answer", "--data", dev, "--wrong", out)
    wrong = lines(out)
    assert wrong, "there must be mistakes to look at"
    assert len(wrong) == round(40 * (1 - found["exact_match"] / 100))
    assert set(wrong[0]) == {"id", "question", "context", "gold", "predicted", "score"}


@pytest.mark.parametrize("kind", ["tag", "answer"])
def test_models_that_read_windows_are_averaged_token_by_token(bertworks, runs, tmp_path, kind):
    """One model twice is itself; two are something else; another vocabulary cuts other windows."""
    dev, first, second = dev_of(runs, kind), runs / f"{kind}0", runs / f"{kind}1"
    alone, twice, both = (evaluated(bertworks, *models, "--task", kind, "--data", dev)
                          for models in ([first], [first, first], [first, second]))  # fmt: skip
    assert {name: twice[name] for name in ("f1", "loss")} == pytest.approx(
        {name: alone[name] for name in ("f1", "loss")}
    )
    assert both["loss"] != pytest.approx(alone["loss"], rel=1e-3)
    assert len(predicted(bertworks, tmp_path / "said.jsonl", first, second, dev)) == 40
    other = bw.load(second)
    other.tokenizer = Tokenizer([*PIECES[:-1], "?"])
    other.save(tmp_path / "other")
    code, _, err = bertworks("evaluate", first, tmp_path / "other", "--task", kind, "--data", dev)
    assert (code, err.count("\n"), "the same vocabulary" in err) == (2, 1, True)


def test_a_model_that_always_answers_has_no_mean_with_one_that_does_not(bertworks, runs, tmp_path):
    other = bw.load(runs / "answer1")
    del other.about["threshold"]
    other.save(tmp_path / "other")
    command = ("evaluate", runs / "answer0", tmp_path / "other", "--task", "answer", "--data", dev_of(runs, "answer"))
    code, _, err = bertworks(*command)
    assert (code, err.count("\n"), "questions without an answer" in err) == (2, 1, True)


def test_answers_to_a_benchmark_are_written_as_its_script_reads_them(bertworks, runs, tmp_path):
    questions = [
        {"id": row["id"], "question": row["question"], "is_impossible": not row["answer"],
         "answers": [{"text": row["answer"], "answer_start": row["answer_start"]}] if row["answer"] else []}
        for row in lines(dev_of(runs, "answer"))
    ]  # fmt: skip
    contexts = [row["context"] for row in lines(dev_of(runs, "answer"))]
    paragraphs = [{"context": context, "qas": [one]} for context, one in zip(contexts, questions, strict=True)]
    (tmp_path / "dev-v2.0.json").write_text(json.dumps({"data": [{"title": "t", "paragraphs": paragraphs}]}))
    out, command = tmp_path / "out", ("--task", "squad2", "--data", tmp_path, "--predictions", tmp_path / "out")
    found = evaluated(bertworks, runs / "answer0", *command)
    guesses, odds = (json.loads((out / f"{name}.json").read_text()) for name in ("predictions", "null_odds"))
    assert set(guesses) == set(odds) == {row["id"] for row in questions}
    said = {row["id"]: "" if odds[row["id"]] > found["threshold"] else guesses[row["id"]] for row in questions}
    right = sum(said[row["id"]] == (row["answers"][0]["text"] if row["answers"] else "") for row in questions)
    assert found["exact_match"] == pytest.approx(100 * right / 40)


@pytest.mark.parametrize(
    ("task", "more"),  # an empty list says in SQuAD 2.0 that there is no answer, as for its official script
    [("answer", {}), ("squad1", {}), ("squad2", {}), ("answer", {"answers": []}), ("squad1", {"answers": []})],
)
def test_questions_without_any_gold_are_predicted_and_not_measured(bertworks, runs, tmp_path, task, more):
    """T9: a test file, which no F1 is told of; one question that is said to have no answer is gold."""
    asked = {"id": "q", "question": "the cat", "context": "a cat", **more}
    file = tmp_path / {"squad1": "dev-v1.1.json"}.get(task, "dev-v2.0.json")
    paragraph = {"context": "a cat", "qas": [asked]}
    file.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    data = file if task == "answer" else tmp_path
    code, out, err = bertworks("evaluate", runs / "answer0", "--task", task, "--data", data, "--json")
    assert (code, out) == (2, "")
    assert err == f"error: {file}: no question has a gold answer to measure with; `bertworks predict` answers them\n"
    assert len(predicted(bertworks, tmp_path / "said.jsonl", runs / "answer0", file)) == 1
    if task != "answer":
        options = ("--data", data, "--predictions", tmp_path / "out")
        found = evaluated(bertworks, runs / "answer0", "--task", task, *options)
        assert (found["examples"], "f1" in found) == (1, False)
    paragraph["qas"] = [asked | {"is_impossible": True}]
    file.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    assert evaluated(bertworks, runs / "answer0", "--task", task, "--data", data)["f1"] in (0, 100)


def test_models_of_which_there_is_no_mean_are_refused(bertworks, runs, tmp_path):
    dev, task = dev_of(runs, "classify"), ("--task", "classify", "--data")
    code, _, err = bertworks("evaluate", runs / "classify0", runs / "regress0", *task, dev)
    assert (code, err.count("\n"), "predictions cannot be averaged" in err) == (2, 1, True)
    other = write_small_model(tmp_path / "other", {"classify": 2}, labels=["x", "y"])
    code, _, err = bertworks("evaluate", runs / "classify0", other, *task, dev)
    assert (code, err.count("\n"), "has the labels x, y" in err) == (2, 1, True)
    code, _, err = bertworks("predict", runs / "classify0", other, dev, "--out", tmp_path / "out.csv")
    assert (code, "has the labels x, y" in err) == (2, True)


def test_tags_of_a_file_to_predict_are_left_alone(bertworks, runs, tmp_path):
    (tmp_path / "lines.txt").write_text("the B-NOBODY\ncat O\n\n")
    rows = write_rows(tmp_path / "rows.jsonl", [{"words": ["the", "cat"], "tags": ["B-NOBODY", "O"]}])
    said = [
        predicted(bertworks, tmp_path / "said.jsonl", runs / "tag0", file) for file in (tmp_path / "lines.txt", rows)
    ]
    assert [one["tags"] for one in said[0]] == [one["tags"] for one in said[1]]


def test_predict_and_evaluate_count_every_example_and_end_with_the_next_command(bertworks, runs, tmp_path, monkeypatch):
    """A bar that reaches its end, for one model and for two, for rows and for windows."""
    seen = []

    def progress(*told):
        seen.append(told)

    for kind, names in (
        ("classify", ("classify0",)),
        ("classify", ("classify0", "classify1")),
        ("answer", ("answer0",)),
    ):
        models, dev = [runs / name for name in names], dev_of(runs, kind)
        out = tmp_path / "out.jsonl"
        ensemble = Ensemble([bw.load(model, device="cpu") for model in models], names)
        count, _ = write_predictions(ensemble, dev, out, progress=progress)
        told = [one for one in seen if one[0] == "predicting"]
        assert told[-1] == ("predicting", count, count, f"{count} rows")
        assert [one[1] for one in told] == sorted(one[1] for one in told)
        del seen[:]
        measure_models(ensemble, kind, dev, progress=progress)
        assert seen[-1] == ("measuring", count, count, f"{count} examples")
    code, _, err = bertworks("predict", runs / "classify0", dev_of(runs, "classify"), "--out", tmp_path / "p.csv")
    files = f"--data {dev_of(runs, 'classify')}"
    assert err.endswith(f"next: bertworks evaluate {runs}/classify0 {files}  (if it has labels)\n")
    code, _, err = bertworks("evaluate", runs / "classify0", *files.split())
    assert code == 0
    assert err.splitlines()[-1].startswith(f"next: bertworks evaluate {runs}/classify0 {files} --wrong wrong.csv")
    quiet = bertworks("predict", runs / "classify0", dev_of(runs, "classify"), "--out", tmp_path / "p.csv", "-q")
    assert "next" not in quiet[2]


def test_columns_are_named_for_training_measuring_and_predicting(bertworks, model, tmp_path):
    rng = random.Random(0)
    rows = [{"body": "?", "title": text_with(word, rng), "y": "?", "which": word, "nr": f"n{number}"}
            for number, word in enumerate(rng.choices(("cat", "dog"), k=60))]  # fmt: skip
    file, run = write_rows(tmp_path / "data.jsonl", rows), tmp_path / "run"
    named = ("--column", "text=title", "--column", "label=which", "--column", "id=nr")
    code, _, err = bertworks("finetune", "classify", "--model", model, "--train", file, "--out", run, *named, *QUICK)
    assert (code, "text from 'title';" in err, "label from 'which';" in err) == (0, True, True)
    out = tmp_path / "wrong.jsonl"
    found = evaluated(bertworks, run, "--task", "classify", "--data", file, *named, "--wrong", out)
    assert set(found["per_class"]) == {"cat", "dog"}
    assert all(one["id"].startswith("n") and one["text"] != "?" for one in lines(out))
    said = predicted(bertworks, tmp_path / "said.jsonl", run, file, *named)
    assert [one["id"] for one in said] == [row["nr"] for row in rows]


@pytest.fixture(scope="module")
def reviewed(model, tmp_path_factory):
    """A run with columns of its own, and one that has forgotten them, as older ones have."""
    folder = tmp_path_factory.mktemp("reviewed")
    rows = [{"review": f"a {word} sat", "text": "?", "stars": word} for word in ("cat", "dog") * 16]
    train, columns = write_rows(folder / "train.jsonl", rows), {"text": "review", "label": "stars", "pair": ""}
    finetune("classify", model=model, train=train, dev=train, out=folder / "run", columns=columns, device="cpu",
             overrides=[*SHORT, "train.epochs=4"])  # fmt: skip
    old = bw.load(folder / "run")
    assert old.about["task"].pop("columns") == {"text": "review", "label": ["stars"], "pair": ""}
    old.save(folder / "old")
    return folder


def test_a_run_remembers_its_columns(bertworks, reviewed, tmp_path):
    """That of training counts before a usual name, a named one before both; a file without it is guessed."""
    run, train = reviewed / "run", reviewed / "train.jsonl"
    assert evaluated(bertworks, run, "--data", train)["accuracy"] == 1
    assert evaluated(bertworks, run, "--data", train, "--column", "text=text")["accuracy"] == 0.5
    rows = [{"review": "a cat ran", "text_b": "x"}, {"review": "a dog ran", "text_b": "y"}]
    code, out, err = bertworks("predict", run, write_rows(tmp_path / "new.jsonl", rows), "--json")
    assert (code, [one["label"] for one in json.loads(out)]) == (0, ["cat", "dog"])
    assert "text from 'review' (as in training); not used: 'text_b'" in err
    usual = [{"text": "a cat ran", "label": "cat"}, {"text": "a dog ran", "label": "dog"}]
    for one in (run, reviewed / "old"):
        assert evaluated(bertworks, one, "--data", write_rows(tmp_path / "usual.jsonl", usual))["accuracy"] == 1
    code, _, err = bertworks("evaluate", reviewed / "old", "--data", train)
    assert (code, "'?'" not in err, "label from 'stars' (guessed)" in err) == (0, True, True)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "task.columns: [] is not an object"),
        ({"text": 5}, "task.columns.text: 5 is neither text nor a list of texts"),
        ({"words": "x"}, "columns: to classify there is no 'words'"),
        ("text", "task.columns: 'text' is not an object"),
        ({"label": [1]}, "task.columns.label: [1] is neither text nor a list of texts"),
        ({"text": ""}, "columns: text: '' where the name of a column is expected"),
    ],
)
def test_columns_that_a_folder_says_wrongly_are_an_error_in_a_line(bertworks, reviewed, tmp_path, columns, said):
    broken = bw.load(reviewed / "run")
    broken.save(tmp_path / "broken")
    broken.about["task"]["columns"] = columns
    (tmp_path / "broken/bertworks.json").write_text(json.dumps(broken.about))
    code, _, err = bertworks("predict", tmp_path / "broken", reviewed / "train.jsonl", "--json")
    assert (code, err.count("\n")) == (2, 1)
    assert f"bertworks.json: {said}" in err


def test_evaluate_knows_the_task_of_a_run(bertworks, runs, glue, tmp_path):
    for kind in KINDS:
        told, named = (
            evaluated(bertworks, runs / f"{kind}0", "--data", dev_of(runs, kind), *more)
            for more in ((), ("--task", kind))
        )
        assert told | {"seconds": 0} == named | {"seconds": 0}
    own = write_rows(tmp_path / "own.jsonl", [{"text": "a cat sat", "label": "positive"}])
    assert evaluated(bertworks, glue / "run", "--data", glue)["examples"] == 20
    assert evaluated(bertworks, glue / "run", "--data", own)["examples"] == 1
    both = (evaluated(bertworks, glue / "run", "--data", data) for data in (glue, glue / "SST-2/dev.tsv"))
    assert len({found["loss"] for found in both}) == 1
    for run, data, said in (
        (runs / "classify0", glue, "is a folder, and the model has no record of a benchmark it was fine-tuned on"),
        (runs / "classify0", tmp_path / "none.csv", "is not a file"),
        (runs / "classify0", runs / "regress-files/dev.jsonl", "'2' is not a label here"),
        (runs.parent / "none", own, "no model"),
        ("mini", own, "was not fine-tuned for a task"),
    ):
        code, _, err = bertworks("evaluate", run, "--data", data)
        assert (code, err.count("\n"), said in err) == (2, 1, True), err


def test_predictions_keep_the_columns_of_the_input_and_their_names(bertworks, runs, tmp_path):
    """A prediction is always called the same; columns of the input with such names are called input_..."""
    source = tmp_path / "new.csv"
    rows = [["text", "label", "note", "input_label"], ["a cat", "7", 'say "x",\ny', "z"], ["", "", "", ""]]
    with open(source, "w", newline="") as stream:
        csv.writer(stream).writerows(rows)
    for ending, delimiter in ((".csv", ","), (".tsv", "\t")):
        out = tmp_path / f"said{ending}"
        code, _, err = bertworks("predict", runs / "classify0", source, "--out", out)
        assert (code, "there label is input_input_label" in err) == (0, True)
        with open(out, newline="") as stream:
            table = list(csv.reader(stream, delimiter=delimiter))
        assert table[0] == ["text", "input_input_label", "note", "input_label", "id", "label", "score"]
        kept = [row[:4] for row in table[1:]]
        assert kept == (rows[1:] if ending == ".csv" else [["a cat", "7", 'say "x", y', "z"], ["", "", "", ""]])
        assert [row[4] for row in table[1:]] == ["0", "1"]
        assert {row[5] for row in table[1:]} <= {"about cats", "about dogs"}
    assert bertworks("predict", runs / "classify0", source, "--out", out, "--no-keep")[0] == 0
    assert out.read_text().splitlines()[0] == "id\tlabel\tscore"


def test_records_keep_what_each_has_and_json_goes_to_standard_output(bertworks, runs, tmp_path):
    rows = [{"id": 7, "text": "a cat", "about": {"by": ["me", 1]}}, {"text": "a dog", "id": 8, "x": None, "scores": []}]
    source = write_rows(tmp_path / "new.jsonl", rows)
    code, out, err = bertworks("predict", runs / "classify0", source, "--json", "--dtype", "float32")
    said = json.loads(out)
    assert (code, "1 rows" in err) == (0, False)
    assert [list(one) for one in said] == [
        ["id", "text", "about", "label", "score", "scores"],
        ["text", "id", "x", "input_scores", "label", "score", "scores"],
    ]
    assert said == predicted(bertworks, tmp_path / "said.jsonl", runs / "classify0", source)
    assert said == bw.predict(runs / "classify0", rows, dtype="float32")
    assert (said[0]["about"], said[0]["id"], said[1]["x"]) == ({"by": ["me", 1]}, "7", None)
    out = tmp_path / "said.csv"
    code, told, _ = bertworks("predict", runs / "classify0", source, "--out", out, "--json")
    assert json.loads(told)["predictions"] == 2
    with open(out, newline="") as stream:
        table = list(csv.reader(stream))
    assert table[0] == ["id", "text", "about", "x", "scores", "label", "score"]
    assert [row[:5] for row in table[1:]] == [["7", "a cat", '{"by": ["me", 1]}', "", ""], ["8", "a dog", "", "", ""]]
    code, _, err = bertworks("predict", runs / "classify0", source)
    assert (code, "give --out FILE, or --json" in err) == (2, True)


@pytest.mark.parametrize("kind", KINDS)
def test_predictions_have_a_row_for_each_of_the_input(bertworks, runs, tmp_path, kind):
    rows = lines(dev_of(runs, kind))
    said = predicted(bertworks, tmp_path / "said.jsonl", runs / f"{kind}0", dev_of(runs, kind))
    given = {"choose": "context", "answer": "question", "tag": "words"}.get(kind, "text")
    assert [one[given] for one in said] == [row[given] for row in rows]
    if kind == "tag":
        rows.insert(1, {"words": [], "tags": []})
        some = predicted(bertworks, tmp_path / "said.jsonl", runs / "tag0", write_rows(tmp_path / "new.jsonl", rows))
        assert [one["words"] for one in some] == [row["words"] for row in rows]


def test_parquet_of_any_columns_is_kept(bertworks, runs, tmp_path):
    pa = pytest.importorskip("pyarrow")
    from datetime import date

    import pyarrow.parquet as pq

    rows = [{"text": "a cat", "day": date(2020, 1, 2), "share": float("nan"), "raw": b"ab", "at": {"x": 1}, "at.y": 2}]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "new.parquet")
    (one,) = predicted(bertworks, tmp_path / "said.jsonl", runs / "classify0", tmp_path / "new.parquet")
    wanted = {"text": "a cat", "day": "2020-01-02", "share": None, "raw": "ab", "at": {"x": 1}, "at.y": 2, "id": "0"}
    assert {name: one[name] for name in wanted} == wanted
    assert bertworks("predict", runs / "classify0", tmp_path / "new.parquet", "--out", tmp_path / "said.csv")[0] == 0
    assert (
        (tmp_path / "said.csv")
        .read_text()
        .startswith('text,day,share,raw,at,at.y,id,label,score\na cat,2020-01-02,,ab,"{""x"": 1}",2,0,')
    )


def test_python_measures_and_predicts_as_the_commands_do(bertworks, runs, tmp_path):
    dev = dev_of(runs, "classify")
    told = evaluated(bertworks, runs / "classify0", "--data", dev)
    told.pop("seconds")
    assert bw.evaluate(runs / "classify0", dev) == told
    opened = [bw.load(runs / f"classify{seed}", device="cpu") for seed in (0, 1)]
    both = [runs / "classify0", runs / "classify1"]
    assert bw.evaluate(opened, dev)["loss"] == bw.evaluate(both, dev)["loss"]
    rows = [{"body": "a cat"}, {"body": "a dog"}]
    assert [one["body"] for one in bw.predict(opened, rows, columns={"text": "body"})] == ["a cat", "a dog"]
    texts = ["a cat", "the dog sat"]
    alone = bw.predict(opened[0], texts, keep=False)
    assert [one["label"] for one in alone] == [one["label"] for one in opened[0].classify(texts)]
    assert bw.predict(opened[0], []) == []
    frame = SimpleNamespace(to_dict=lambda _: [{"text": "a cat", "n": float("nan")}])  # as pandas has it
    assert bw.predict(opened[0], frame)[0]["n"] is None
    for given, said in (
        ([{"nothing": "a cat", "x": 1}], "^rows.jsonl: which column"),
        ([5], "rows.jsonl:1"),
        ({"text": ["a cat"]}, "dict where a file"),
        (5, "int where a file"),
        ("a fine film", "a fine film"),
    ):
        with pytest.raises(bw.UserError, match=said):
            bw.predict(opened[0], given)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--column", "text=nowhere"), "no column 'nowhere'; there are: 'text', 'label'"),
        (("--column", "lable=x"), "did you mean 'label'"),
        (("--column", "words=text"), "allowed: text, pair, label, id"),
        (("--column", "label=text"), "which column is the text?"),
        (("--column", "label=text", "--column", "text=label"), "is not a label here; allowed: about cats, about dogs"),
        (("--wrong", "wrong.txt"), "use a name that ends in .csv"),
        (("--wrong", "none/wrong.csv"), "does not exist"),
        (("--predictions", "out"), "only benchmarks"),
        (("--wrong", "dev.jsonl"), "it is an input and would be overwritten"),
        (("--split", "train"), "is one file, all of which is measured; --split train is for benchmarks"),
    ],
)
def test_mistakes_with_the_options_are_told_in_a_line(bertworks, runs, tmp_path, monkeypatch, more, said):
    """T9"""
    monkeypatch.chdir(tmp_path)
    dev = tmp_path / "dev.jsonl"
    dev.write_bytes(dev_of(runs, "classify").read_bytes())
    code, _, err = bertworks("evaluate", runs / "classify0", "--task", "classify", "--data", dev, *more)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert dev.stat().st_size


@pytest.mark.parametrize(
    ("kind", "rows", "said"),
    [
        ("classify", [{"text": "a cat"}], "which column is the label?"),
        ("classify", [], "has no rows"),
        ("classify", [{"text": "a", "pair": "b", "label": "about cats"}], "fine-tuned on single texts"),
        ("classify", [{"text": "a cat", "label": ""}], "has no examples"),
        ("regress", [{"text": "a cat", "score": "nan"}], "is not a score"),
        ("multilabel", [{"text": "a cat", "labels": ["cat", "bird"]}], "'bird' is not a label here"),
        ("choose", [{"context": "a", "endings": ["b"], "label": 0}], "a choice needs two"),
        ("choose", [{"context": "a", "endings": ["b", "c"], "label": 5}], "dev.jsonl:1"),
    ],
)
def test_bad_data_is_told_with_its_place(bertworks, runs, tmp_path, kind, rows, said):
    """T9"""
    file = write_rows(tmp_path / "dev.jsonl", rows)
    code, _, err = bertworks("evaluate", runs / f"{kind}0", "--task", kind, "--data", file, "--wrong",
                             tmp_path / "wrong.jsonl")  # fmt: skip
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert "dev.jsonl" in err
    assert not (tmp_path / "wrong.jsonl").exists()


def test_one_example_of_one_class_is_measured(bertworks, runs, tmp_path):
    """T9"""
    file = write_rows(tmp_path / "one.jsonl", [{"text": "", "label": "about cats"}])
    found = evaluated(bertworks, runs / "classify0", "--task", "classify", "--data", file)
    assert found["per_class"]["about dogs"]["support"] == 0
    file = write_rows(tmp_path / "score.jsonl", [{"text": "a", "score": 1}])
    assert evaluated(bertworks, runs / "regress0", "--task", "regress", "--data", file)["pearson"] is None


def test_a_model_of_pairs_does_not_predict_for_single_texts(bertworks, model, tmp_path):
    rows = [{"text": "a cat", "pair": f"a {word}", "label": word} for word in ("cat", "dog")] * 8
    train, run = write_rows(tmp_path / "train.jsonl", rows), tmp_path / "run"
    finetune(
        "classify", model=model, train=train, dev=train, out=run, overrides=[*QUICK, "train.epochs=1"], device="cpu"
    )
    single = write_rows(tmp_path / "single.jsonl", [{"text": "a cat"}])
    code, _, err = bertworks("predict", run, single, "--out", tmp_path / "out.csv")
    assert (code, "fine-tuned on pairs of texts" in err) == (2, True)


@pytest.fixture(scope="module")
def glue(model, tmp_path_factory):
    """SST-2 in its own form, and a model of it."""
    root = tmp_path_factory.mktemp("glue")
    (root / "SST-2").mkdir()
    rows = [f"a {'cat' if number % 2 else 'dog'} sat\t{number % 2}" for number in range(20)]
    for split in ("train", "dev"):
        (root / f"SST-2/{split}.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    tests = [f"{number}\ta {'cat' if number % 2 else 'dog'} ran" for number in range(6)]
    (root / "SST-2/test.tsv").write_text("\n".join(["index\tsentence", *tests]) + "\n")
    finetune("sst2", model=model, data=root, out=root / "run", overrides=[*QUICK, "train.epochs=1"], device="cpu")
    return root


def test_a_model_with_its_labels_in_another_order_is_measured_alike(bertworks, glue, tmp_path):
    other = bw.load(glue / "run")
    other.labels.reverse()
    for name in ("weight", "bias"):
        parameter = other.net.get_parameter(f"heads.classify.out.{name}")
        parameter.data = parameter.data.flip(0)
    other.save(tmp_path / "other")
    command = ("--task", "sst2", "--data", glue)
    ours, theirs = (evaluated(bertworks, run, *command) for run in (glue / "run", tmp_path / "other"))
    assert (ours["accuracy"], ours["per_class"]) == (theirs["accuracy"], theirs["per_class"])
    assert ours["loss"] == pytest.approx(theirs["loss"])
    assert theirs["confusion"]["labels"] == ours["confusion"]["labels"][::-1]
    code, _, err = bertworks("evaluate", glue / "run", tmp_path / "other", *command)
    assert (code, "in the same order" in err) == (2, True)


def test_a_test_set_becomes_the_file_that_the_benchmark_wants(bertworks, glue, tmp_path):
    command = ("evaluate", glue / "run", "--task", "sst2", "--data", glue, "--split", "test")
    code, out, err = bertworks(*command, "--predictions", tmp_path / "new/glue")
    assert (code, out) == (0, "")
    assert "SST-2.tsv: 6 predictions" in err
    table = (tmp_path / "new/glue/SST-2.tsv").read_text().splitlines()
    said = bw.load(glue / "run").classify([f"a {'cat' if number % 2 else 'dog'} ran" for number in range(6)])
    words = {"negative": "0", "positive": "1"}
    assert table == ["index\tprediction", *(f"{number}\t{words[one['label']]}" for number, one in enumerate(said))]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--split", "test"), "has no labels to measure with"),
        (("--split", "test", "--predictions", "out", "--wrong", "wrong.csv"), "has no labels to measure with"),
        (("--predictions", "out"), "ask for --split test"),
        (("--predictions", "file"), "cannot make the folder"),
        (("--column", "label=x"), "your own files alone"),
    ],
)
def test_mistakes_with_a_benchmark_are_told_in_a_line(bertworks, glue, tmp_path, monkeypatch, more, said):
    """T9"""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    if more == ("--predictions", "file"):
        more = (*more, "--split", "test")
    code, _, err = bertworks("evaluate", glue / "run", "--task", "sst2", "--data", glue, *more)
    assert (code, err.count("\n")) == (2, 1)
    assert said in err


def test_tables_for_a_spreadsheet_hold_no_formulas_and_are_read_as_they_were(bertworks, runs, tmp_path):
    texts = ["=HYPERLINK(1)", "+82", "a cat", "-a", "@b", "'=c"]
    source = write_rows(tmp_path / "new.jsonl", [{"text": text, "label": "about cats"} for text in texts])
    said, wrong = tmp_path / "said.csv", tmp_path / "wrong.tsv"
    assert bertworks("predict", runs / "classify0", source, "--out", said, "--csv-safe")[0] == 0
    assert bertworks("evaluate", runs / "classify0", "--data", source, "--wrong", wrong, "--csv-safe")[0] == 0
    assert b'"\'=HYPERLINK(1)"' in said.read_bytes()
    assert [row.values["text"] for row in tables.rows(said)] == texts
    assert {row.values["text"] for row in tables.rows(wrong)} <= set(texts)
    for arguments in (["--json"], ["--out", tmp_path / "said.jsonl"]):
        code, _, err = bertworks("predict", runs / "classify0", source, "--csv-safe", *arguments)
        assert (code, err.startswith("error: --csv-safe is for")) == (2, True)
    code, _, err = bertworks("evaluate", runs / "classify0", "--data", source, "--csv-safe")
    assert (code, err) == (2, "error: --csv-safe is for the table of --wrong; give that too, or leave it out\n")
