"""GLUE as a whole: the paper's average, what is missing, the server's files, and MNLI's model as a start."""

import json
import shutil
import zipfile

import pytest
import torch
from small_glue import write_mnli, write_rte, write_sst2, write_stsb, write_wnli
from small_models import write_small_model
from toy_tasks import SIZES

import bertworks as bw
from bertworks.errors import CannotResume, UserError
from bertworks.finetuning import glue_suite as module
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.glue_suite import COLUMNS, GlueOutcome, average, glue, glue_text
from bertworks.finetuning.search import GridPlan

QUICK = ("task.max_length=16", "train.epochs=2", "optim.lr=3e-3", "train.batch_size=16")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", **SIZES)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    root = tmp_path_factory.mktemp("glue")
    for write in (write_mnli, write_rte, write_stsb, write_wnli):
        write(root)
    return root


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    torch.set_num_threads(1)
    out, said = tmp_path_factory.mktemp("glue-run") / "out", []
    outcome = glue(model=model, data=data, out=out, overrides=QUICK, from_mnli=True, device="cpu", note=said.append)
    return out, outcome, said


def papers(row):
    """A model that scores what the paper's does."""
    tasks = {column.task.name: {"title": column.task.title, "state": "finished", "measured": {}} for column in COLUMNS}
    for column in COLUMNS:
        tasks[column.task.name]["measured"][column.split] = getattr(column, row) / 100
    return tasks


@pytest.mark.parametrize(("row", "published"), [("base", 79.6), ("large", 82.1)])
def test_the_papers_scores_have_the_papers_average(row, published):
    """Table 1: nine columns, MNLI twice, without WNLI."""
    found = average(papers(row))
    assert round(found["ours"], 1) == round(found[row], 1) == published
    assert (found["tasks"], found["columns"]) == (8, 9)


def test_where_tasks_are_missing_all_averages_are_over_those_there_are():
    tasks = papers("base")
    tasks["cola"] = {"title": "CoLA", "state": "missing"}
    tasks["mnli"] = {"title": "MNLI", "state": "missing"}
    found = average(tasks)
    assert found["ours"] == pytest.approx(sum((71.2, 90.5, 93.5, 85.8, 88.9, 66.4)) / 6)
    assert found["large"] == pytest.approx(sum((72.1, 92.7, 94.9, 86.5, 89.3, 70.1)) / 6)
    assert (found["tasks"], found["columns"]) == (6, 6)


def test_all_tasks_with_files_are_learnt_and_the_others_are_told_to_be_missing(finished):
    out, outcome, _ = finished
    states = {name: task["state"] for name, task in outcome.results["tasks"].items()}
    assert {name for name, state in states.items() if state == "finished"} == {"mnli", "stsb", "rte"}
    assert {name for name, state in states.items() if state == "missing"} == {"qqp", "qnli", "sst2", "cola", "mrpc"}
    assert set(bw.load(out / "mnli").labels) == {"entailment", "neutral", "contradiction"}
    assert json.loads((out / "glue.json").read_text()) == outcome.results


def test_the_table_says_dev_and_test_and_over_how_many_tasks_the_average_is(finished):
    text = str(finished[1])
    assert max(map(len, text.splitlines())) <= 100
    rows = {line.split()[0]: line.split() for line in text.splitlines()[1:11]}
    assert rows["MNLI-mm"][1] == "accuracy"
    assert rows["QQP"] == ["QQP", "f1", "missing", "71.2", "72.1"]
    assert rows["STS-B"][1] == "spearman"
    flat = " ".join(text.split())
    assert "Ours are scores on the dev sets" in flat
    assert "on test sets by GLUE's server" in flat
    assert "over 3 of 8 tasks (4 of 9 columns)" in flat
    assert "missing: QQP, QNLI, SST-2, CoLA, MRPC" in flat


def test_mnli_is_measured_on_both_its_dev_sets(finished, data, bertworks):
    out, outcome, _ = finished
    measured = outcome.results["tasks"]["mnli"]["measured"]
    for split in ("dev", "dev-mismatched"):
        options = ("--task", "mnli", "--data", data, "--split", split, "--json", "--device", "cpu")
        _, said, _ = bertworks("evaluate", out / "mnli", *options)
        assert json.loads(said)["accuracy"] == measured[split]


def test_the_zip_holds_what_the_server_wants_and_what_is_absent_is_said(finished):
    out, outcome, _ = finished
    with zipfile.ZipFile(out / "glue.zip") as archive:
        lines = {name: archive.read(name).decode().splitlines() for name in archive.namelist()}
    assert {name: len(rows) - 1 for name, rows in lines.items()} == {
        "MNLI-m.tsv": 6, "MNLI-mm.tsv": 6, "AX.tsv": 4, "RTE.tsv": 7, "STS-B.tsv": 5, "WNLI.tsv": 4,
    }  # fmt: skip
    assert {row.split("\t")[1] for row in lines["RTE.tsv"][1:]} <= {"entailment", "not_entailment"}
    assert all(0 <= float(row.split("\t")[1]) <= 5 for row in lines["STS-B.tsv"][1:])
    assert outcome.results["submission"]["missing"] == ["CoLA.tsv", "MRPC.tsv", "QNLI.tsv", "QQP.tsv", "SST-2.tsv"]
    assert "CoLA.tsv, MRPC.tsv, QNLI.tsv" in " ".join(str(outcome).split())


def test_wnli_gets_its_most_frequent_label_and_that_is_said(finished):
    out, outcome, _ = finished
    assert (out / "predictions/WNLI.tsv").read_text() == "index\tprediction\n" + "".join(f"{n}\t0\n" for n in range(4))
    assert "its whole test set is predicted as not_entailment" in " ".join(str(outcome).split())


def test_predictions_are_the_models(finished, data):
    out, *_ = finished
    rows = [line.split("\t") for line in (data / "RTE/test.tsv").read_text().splitlines()[1:]]
    said = bw.load(out / "rte", device="cpu").classify([row[1] for row in rows], [row[2] for row in rows])
    written = [line.split("\t")[1] for line in (out / "predictions/RTE.tsv").read_text().splitlines()[1:]]
    assert written == [one["label"] for one in said]


@pytest.mark.parametrize("task", ["rte", "stsb"])
def test_small_tasks_start_from_the_model_of_mnli_with_a_new_head(finished, task):
    out, outcome, said = finished
    start = bw.load(out / task).about["provenance"]["start"]
    assert start["model"] == str(out / "mnli")
    assert start["drawn"] == ["heads.classify.out.bias", "heads.classify.out.weight"]
    assert "started from the model of MNLI" in outcome.results["tasks"][task]["notes"]
    assert any("entailment, neutral, contradiction): its encoder is reused, the head is new" in line for line in said)


def test_a_head_with_the_same_labels_is_taken_over_and_nothing_said(finished, data, tmp_path):
    out, said = finished[0], []
    finetune(
        "mnli", model=out / "mnli", data=data, out=tmp_path / "run", overrides=[*QUICK, "train.epochs=1"],
        device="cpu", note=said.append,
    )  # fmt: skip
    assert bw.load(tmp_path / "run").about["provenance"]["start"]["drawn"] == []
    assert not [line for line in said if "head" in line]


def test_a_second_start_makes_nothing_again(finished, model, data, monkeypatch):
    out, outcome, _ = finished

    def refuse(*_, **__):
        pytest.fail("this has been done")

    monkeypatch.setattr(module, "load", refuse)
    monkeypatch.setattr(bw.finetuning.search, "tune", refuse)
    options = {"overrides": QUICK, "from_mnli": True, "device": "cpu"}
    again = glue(model=model, data=data, out=out, resume=True, **options)
    assert again.results == outcome.results
    with pytest.raises(UserError, match="is not empty; continue it with --resume"):
        glue(model=model, data=data, out=out, **options)


def test_scores_of_another_model_under_the_same_name_are_measured_again(finished, model, data, tmp_path):
    out, outcome, _ = finished
    shutil.copytree(out, tmp_path / "out")
    path = tmp_path / "out/glue.json"
    known = json.loads(path.read_text())
    known["tasks"]["rte"]["measured"]["dev"] += 0.5
    path.write_text(json.dumps(known))
    options = {"overrides": QUICK, "from_mnli": True, "device": "cpu"}
    again = glue(model=model, data=data, out=tmp_path / "out", resume=True, **options)
    assert again.results["tasks"] == outcome.results["tasks"]


def test_other_settings_are_refused_and_leave_all_scores_as_they_were(finished, model, data):
    out, outcome, _ = finished
    options = {"from_mnli": True, "resume": True, "device": "cpu"}
    with pytest.raises(CannotResume, match="was run with other settings"):
        glue(model=model, data=data, out=out, overrides=[*QUICK, "task.dropout=0.2"], **options)
    assert json.loads((out / "glue.json").read_text()) == outcome.results


def test_a_task_that_fails_leaves_the_others_alone(model, data, tmp_path, monkeypatch):
    real = module.search

    def refuse(task, **options):
        if task == "mnli":
            raise UserError("MNLI/train.tsv, line 3: broken")
        return real(task, **options)

    monkeypatch.setattr(module, "search", refuse)
    options, said = {"overrides": [*QUICK, "train.epochs=1"], "from_mnli": True, "device": "cpu"}, []
    outcome = glue(model=model, data=data, out=tmp_path / "out", note=said.append, **options)
    states = [outcome.results["tasks"][name]["state"] for name in ("mnli", "rte", "stsb")]
    assert (states, outcome.is_failed) == (["failed", "finished", "finished"], False)
    assert "MNLI: MNLI/train.tsv, line 3: broken" in " ".join(str(outcome).split())
    assert any("there is no model of MNLI: RTE starts from" in line for line in said)


def test_a_grid_of_a_task_gives_mean_and_spread(model, tmp_path):
    write_sst2(tmp_path / "glue")
    plan = GridPlan(grid=False, restarts=2)
    outcome = glue(model=model, data=tmp_path / "glue", out=tmp_path / "out", overrides=QUICK, plan=plan, device="cpu")
    task = outcome.results["tasks"]["sst2"]
    scores = [run["score"] for run in json.loads((tmp_path / "out/sst2/grid.json").read_text())["runs"].values()]
    assert (task["seeds"], task["mean"]) == (2, pytest.approx(sum(scores) / 2))
    assert task["measured"]["dev"] == max(scores)
    assert f"{100 * task['mean']:.1f}, {100 * task['std']:.1f} of 2" in glue_text(outcome.results)
    assert (outcome.results["submission"]["zip"], outcome.results["submission"]["wnli"]) == ("", "")


def test_an_interrupt_ends_it_and_keeps_what_is_known(finished, model, data, monkeypatch):
    out, outcome, _ = finished

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "search", interrupt)
    stopped = glue(model=model, data=data, out=out, overrides=QUICK, resume=True, device="cpu")
    assert stopped == GlueOutcome(outcome.results, signal=2)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["optim.lr=fast"], "'fast' is not a number"),
        ([*QUICK, "task.freeze=2"], "the model has 1 layer"),
        ([], "no train set of"),
    ],
)
def test_mistakes_are_told_before_anything_is_learnt(model, data, tmp_path, overrides, said):
    folder = data if overrides else tmp_path
    with pytest.raises(UserError, match=said):
        glue(model=model, data=folder, out=tmp_path / "out", overrides=overrides, device="cpu")
    assert not (tmp_path / "out").exists()


def results_with(tasks):
    submission = {"zip": "", "missing": [], "wnli": ""}
    return {"tasks": tasks, "average": average(tasks), "minutes": 1.5, "submission": submission}


def test_scores_on_original_test_labels_have_a_column_of_their_own():
    tasks = papers("base")
    assert "ours, test" not in glue_text(results_with(tasks))
    tasks["mrpc"]["measured"]["test-gold"] = 0.8771
    text = glue_text(results_with(tasks))
    assert "ours, test" in text.splitlines()[0]
    assert next(line for line in text.splitlines() if line.startswith("MRPC")).split()[2:4] == ["88.9", "87.7"]
    assert "not by the server" in " ".join(text.split())


def test_a_score_that_is_not_defined_is_left_out_of_the_average():
    tasks = papers("base")
    tasks["stsb"]["measured"]["dev"] = None
    assert average(tasks)["columns"] == 8
    assert (
        next(line for line in glue_text(results_with(tasks)).splitlines() if line.startswith("STS-B")).split()[2] == "–"
    )


def test_no_scores_at_all_have_no_average():
    tasks = {
        column.task.name: {"title": column.task.title, "state": "failed", "error": "no room"} for column in COLUMNS
    }
    assert (average(tasks)["ours"], average(tasks)["tasks"]) == (None, 0)
    outcome = GlueOutcome(results_with(tasks))
    assert outcome.is_failed
    assert "failed: MNLI, QQP, QNLI, SST-2, CoLA, STS-B, MRPC, RTE" in str(outcome)
    assert "RTE: no room" in str(outcome)
