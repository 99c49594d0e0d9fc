"""search and glue, and the options of finetune that hand over to them, as a person or a script meets them."""

import json
import signal
import subprocess
import sys
import time

import pytest
from small_glue import write_sst2
from small_models import write_small_model
from toy_tasks import SIZES, write_task

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning import search as grid

QUICK = ("task.max_length=16", "train.batch_size=16", "optim.lr=3e-3,1e-3", "train.epochs=1")


@pytest.fixture(scope="module")
def task(tmp_path_factory):
    folder = tmp_path_factory.mktemp("task")
    train, dev = write_task(folder, "classify", num_train=32, num_dev=20)
    model = write_small_model(folder / "model", **SIZES)
    return ("finetune", "classify", "--model", model, "--train", train, "--dev", dev, "--device", "cpu")


def test_a_grid_prints_a_table_and_its_folder_is_a_model(bertworks, task, tmp_path):
    out = tmp_path / "grid"
    code, said, err = bertworks(*task, "--out", out, "--grid", *QUICK)
    assert code == 0
    assert max(map(len, said.splitlines())) <= 100
    assert "batch_size  lr     epochs  seeds  mean" in said
    assert "run 2 of 2" in err
    assert bw.load(out).labels == ["about cats", "about dogs"]
    code, _, err = bertworks(*task, "--out", out, "--grid", *QUICK)
    assert (code, err.count("\n"), "--resume" in err) == (2, 1, True)


def test_search_and_glue_do_what_the_options_of_finetune_do(bertworks, task, tmp_path):
    def results_of(*command):
        code, said, err = bertworks(*command, "--json")
        assert (code, err) == (0, "")
        return json.loads(said)

    def scores(results):
        return {name: run["score"] for name, run in results["runs"].items()}

    for number, (new, old) in enumerate(((("--no-grid", "--restarts", 2), ("--restarts", 2)), ((), ("--grid",)))):
        settings = QUICK if not new else (*QUICK[:2], "optim.lr=1e-3", "train.epochs=1")
        found = results_of("search", *task[1:], "--out", tmp_path / f"new{number}", *new, *settings)
        before = results_of(*task, "--out", tmp_path / f"old{number}", *old, *settings)
        assert len(found["runs"]) == 2
        assert scores(found) == scores(before)
        for command in ("search", "finetune"):
            assert scores(results_of(command, "--resume", "--out", tmp_path / f"old{number}")) == scores(before)
    write_sst2(tmp_path / "data")
    options = ("--model", task[3], "--data", tmp_path / "data", "--device", "cpu", *settings[:2], "optim.lr=1e-3")
    found = results_of("glue", *options, "--out", tmp_path / "glue", "train.epochs=1")
    for command in ("glue", "finetune"):
        assert results_of(command, "--resume", "--out", tmp_path / "glue")["tasks"] == found["tasks"]
    for command, place, said in (
        ("search", "glue", "was started by glue, not by grid"),
        ("glue", "new0", "was started by grid, not by glue"),
        ("search", "none", "holds no search to resume"),
        ("search", "", "give a task"),
    ):
        more = ("--resume", "--out", tmp_path / place) if place else ("--model", task[3], "--out", tmp_path / "none")
        code, _, err = bertworks(command, *more)
        assert (code, err.count("\n"), said in err) == (2, 1, True), err
    assert "`bertworks glue`" in bertworks("search", "glue", "--model", task[3], "--out", tmp_path / "none")[2]


def test_help_of_finetune_is_about_one_run(bertworks):
    assert "--restarts" not in bertworks("finetune", "--help")[1]
    assert all("--restarts" in bertworks(command, "--help")[1] for command in ("search", "glue"))


def test_json_is_one_object_and_quiet_prints_nothing(bertworks, task, tmp_path):
    search = ("--grid", "--restarts", 2, "--restart-best", "--search-examples", 16)
    code, said, err = bertworks(*task, "--out", tmp_path / "grid", *search, *QUICK, "--json")
    results = json.loads(said)
    assert (code, err, len(results["runs"]), results["search_examples"]) == (0, "", 4, 16)
    assert results["seconds"] > 0
    assert bertworks(*task, "--out", tmp_path / "grid", *search, *QUICK, "--resume", "-q") == (0, "", "")


def test_restarts_without_a_grid_take_the_settings_as_they_are(bertworks, task, tmp_path):
    settings = (*QUICK[:2], "optim.lr=1e-3", "train.epochs=1", "train.seed=3")
    code, said, _ = bertworks(*task, "--out", tmp_path / "runs", "--restarts", 2, *settings, "--json")
    assert (code, list(json.loads(said)["runs"])) == (0, [f"batch_size16-lr0.001-epochs1/seed-{n}" for n in (3, 4)])


def test_one_is_the_exit_code_only_if_all_runs_fail(bertworks, task, tmp_path, monkeypatch):
    real, refused = grid.tune, {3e-3, 1e-3}

    def refuse(dataset, settings, **options):
        if settings.optim.lr in refused:
            raise UserError("not finite at step 1")
        return real(dataset, settings, **options)

    monkeypatch.setattr(grid, "tune", refuse)
    for expected in (1, 0):
        code, said, _ = bertworks(*task, "--out", tmp_path / "grid", "--grid", *QUICK, "--resume")
        assert (code, "failed: not finite at step 1" in said) == (expected, True)
        refused.discard(1e-3)


def test_the_folder_of_a_grid_is_enough_to_go_on(bertworks, task, tmp_path):
    out = tmp_path / "grid"
    bertworks(*task, "--out", out, "--grid", "--restarts", 2, *QUICK, "-q")
    whole = json.loads((out / "grid.json").read_text())
    record = whole | {"runs": {whole["model_of"]: whole["runs"][whole["model_of"]]}}
    (out / "grid.json").write_text(json.dumps(record))
    code, said, err = bertworks("finetune", "--resume", "--out", out, "--json")
    assert (code, err) == (0, "")
    found = json.loads(said)
    assert {name: run["score"] for name, run in found["runs"].items()} == {
        name: run["score"] for name, run in whole["runs"].items()
    }


def test_ctrl_c_ends_with_130_and_says_how_to_go_on(task, tmp_path, bertworks):
    settings = [*QUICK[:3], "train.epochs=3000"]
    command = [*task, "--out", tmp_path / "grid", "--grid", *settings]
    process = subprocess.Popen(
        [sys.executable, "-m", "bertworks", *map(str, command)],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    while process.poll() is None and not any(
        file.stat().st_size for file in (tmp_path / "grid").rglob("metrics.jsonl")
    ):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.endswith(f"next: bertworks search --resume --out {tmp_path / 'grid'}\n")
    assert json.loads((tmp_path / "grid/grid.json").read_text())["runs"] == {}
    shorter = (*command[:-1], "train.epochs=1")
    code, said, _ = bertworks(*shorter, "--resume", "--json")
    assert (code, len(json.loads(said)["runs"])) == (0, 2)


def test_glue_prints_ours_beside_the_papers(bertworks, task, tmp_path):
    write_sst2(tmp_path / "glue")
    command = ("finetune", "glue", "--model", task[3], "--data", tmp_path / "glue", "--out", tmp_path / "out")
    settings = (*QUICK[:2], "optim.lr=1e-3", "train.epochs=1", "--device", "cpu")
    code, said, err = bertworks(*command, *settings)
    assert (code, "SST-2, 1 of 1 task\n" in err) == (0, True)
    row = next(line for line in said.splitlines() if line.startswith("SST-2")).split()
    assert (row[1], row[-3:-1]) == ("accuracy", ["93.5", "94.9"])
    code, said, _ = bertworks(*command, *settings, "--resume", "--json")
    assert (code, json.loads(said)["tasks"]["sst2"]["state"]) == (0, "finished")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("glue", "--grid"), "GLUE is read from a folder: give --data DIR"),
        (("sst2", "--data", ".", "--from-mnli"), "--from-mnli is for `bertworks glue`"),
        (("sst2", "--data", ".", "--restart-best"), "give --grid too"),
        (("sst2", "--data", ".", "--search-examples", "10"), "with --grid and --restart-best"),
        (("sst2", "--data", ".", "--grid", "--restart-best", "--search-examples", "0"), "a number above 0"),
        (("sst2", "--data", ".", "--restarts", "0"), "--restarts 0 is not possible"),
        (("sst2", "--data", ".", "--grid", "--init", "zero"), "init 'zero' is not known"),
        (("glue", "--data", "."), "has no train set of GLUE"),
    ],
)
def test_mistakes_are_told_in_a_line(bertworks, task, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = bertworks("finetune", *arguments, "--model", task[3], "--out", tmp_path / "out")
    assert (code, err.count("\n")) == (2, 1)
    assert said in err
    assert not (tmp_path / "out").exists()
