"""A table from end to end on small files: planned, stopped, resumed and judged, and its page made again."""

import json
import shutil
import threading
import time

import numpy as np
import pytest
from small_benchmarks import write_mrpc, write_squad, write_text
from small_models import write_small_model
from typer.testing import CliRunner

import bertworks as bw
from bertworks.cli import app
from bertworks.files import exclusive
from bertworks.models.weights import write_arrays
from bertworks.reproduction import jobs as jobs_module
from bertworks.reproduction.jobs import RESULTS, Job, read_error, read_result_file, work_off
from bertworks.reproduction.page import write_pages
from bertworks.reproduction.plan import Setup
from bertworks.reproduction.run import START_FILE, prepare_text
from bertworks.reproduction.tables import find_scale

QUICK = ["pretrain.train.max_steps=6", "pretrain.train.eval_every=6", "finetune.train.epochs=1"]
PAPER = {"no-nsp", "ltr", "ltr-bilstm", "ltr-rtl", "bert"}


def write_data(root):
    write_text(root)
    write_mrpc(root)
    return root


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_data(tmp_path_factory.mktemp("benchmarks"))


def run(data, out, **options):
    return bw.reproduce("table5", data=data, out=out, overrides=QUICK, seeds=1, quiet=True, **options)


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    """A run of a table that is interrupted after four jobs, and resumed."""
    out, ended = tmp_path_factory.mktemp("tables") / "out", []

    def interrupt(text):
        ended.append(text)
        if len(ended) == 4:
            raise KeyboardInterrupt

    first = run(data, out, say=interrupt)
    assert first["signal"]
    before = {path: path.stat().st_mtime_ns for path in (out / RESULTS).rglob("*.json")}
    assert before
    results = run(data, out)
    assert all(path.stat().st_mtime_ns == time for path, time in before.items())  # not done again
    return out, results


def test_the_results_have_the_papers_rows_with_ours_and_verdicts(done):
    _, results = done
    rows = {row["id"]: row for row in results["rows"]}
    assert set(rows) == PAPER | {"random"}
    assert rows["ltr"]["paper"]["mrpc"] == 77.5
    for name in PAPER:
        assert 0 <= rows[name]["ours"]["mrpc"]["mean"] <= 100
        assert rows[name]["ours"]["mrpc"]["examples"] == 20
    assert {one["column"] for one in results["claims"]} == {"mnli", "qnli", "mrpc", "sst2", "squad"}
    for one in results["claims"]:
        if one["column"] != "mrpc":
            assert one["verdict"] == "not testable here"
            assert "has no files" in one["why"]
        elif "no better than" in one["why"]:  # as models of this scale are
            assert one["verdict"] == "not testable here"
        else:  # a single seed decides nothing
            assert (one["verdict"], one["more_seeds"]) == ("undecided", 2)
            assert "--seeds 3" in one["command"]
            assert one["more_minutes"] > 0
    assert results["failed"] == []
    assert [gate["gate"] for gate in results["gates"]] == ["constant answer", "random start"]
    assert results["gates"][0]["limit"] == 50


def test_what_is_missing_is_named_with_its_rows_and_claims(done):
    _, results = done
    missing = {one["columns"][0]: one for one in results["missing"]}
    assert set(missing) == {"mnli", "qnli", "sst2", "squad"}
    assert "train.tsv" in missing["qnli"]["why"]
    assert missing["qnli"]["rows"] == ["all"]
    assert len(missing["squad"]["claims"]) == 6


def test_the_commands_of_a_row_make_its_model(done, tmp_path):
    out, results = done
    row = next(row for row in results["rows"] if row["id"] == "ltr-bilstm")
    names = [command.split()[1] for command in row["commands"]]
    assert names == ["vocab", "prepare", "pretrain", "finetune"]
    command = row["commands"][-1].split()
    command[command.index("--out") + 1] = str(tmp_path / "run")
    said = CliRunner().invoke(app, [*command[1:], "--json"], catch_exceptions=False)
    found = json.loads(said.stdout)
    result = json.loads((out / RESULTS / "ltr+bilstm-s0/mrpc-t0.json").read_text())
    assert found["accuracy"] == result["splits"]["dev"]["metrics"]["accuracy"]
    assert 100 * found["accuracy"] == pytest.approx(row["ours"]["mrpc"]["mean"])


def test_the_pages_are_made_again_from_the_results_byte_for_byte(done, tmp_path):
    out, _ = done
    shutil.copytree(out / "table5", tmp_path / "table5")
    names = {path.name for path in (tmp_path / "table5").iterdir()}
    assert names >= {"results.json", "table5.html", "table.md"}
    for name in names - {"results.json"}:
        (tmp_path / "table5" / name).unlink()
    write_pages(tmp_path)
    for name in sorted(names):
        if not name.endswith(".png"):
            assert (tmp_path / "table5" / name).read_bytes() == (out / "table5" / name).read_bytes(), name
    assert (tmp_path / "index.html").read_bytes() == (out / "index.html").read_bytes()


def test_the_results_alone_are_enough_without_models_and_text(data, done, tmp_path):
    out, results = done
    small = tmp_path / "out"
    shutil.copytree(out / "results", small / "results")
    shutil.copytree(data / "MRPC", tmp_path / "data/MRPC")  # and the text, as large as it is, stays elsewhere
    plan = run(tmp_path / "data", small, dry_run=True)
    assert plan["jobs"] == {}
    again = run(tmp_path / "data", small)
    for one in (again, results):
        one.pop("missing")  # which names the folder of the data
        one["command"] = ""
        for row in one["rows"]:
            row["commands"] = row["missing"] = []
        for claim in one["claims"]:
            claim.pop("command", None)
            claim.pop("why")
    assert again == results


def test_another_configuration_is_refused_and_the_difference_named(data, done):
    out, _ = done
    with pytest.raises(bw.UserError, match="--scale tiny, and now has --scale mini"):
        bw.reproduce("table5", scale="mini", data=data, out=out, overrides=QUICK, quiet=True)
    with pytest.raises(bw.UserError, match=r"finetune settings train.epochs=1, and now has finetune settings as usual"):
        bw.reproduce("table5", data=data, out=out, overrides=QUICK[:2], quiet=True)
    other = out.parent / "other"
    if not other.exists():
        shutil.copytree(data, other)
    path = other / "MRPC/dev.tsv"
    path.write_text(path.read_text().replace("cat", "dog"))
    with pytest.raises(bw.UserError, match=r"mrpc-t\d of another configuration: files.MRPC/dev.tsv was [0-9a-f]+"):
        run(other, out)


def test_a_wrong_name_gets_the_nearest(data, tmp_path):
    for table, scale, nearest in (("tabel5", "tiny", "table5"), ("table5", "tiney", "tiny")):
        with pytest.raises(bw.UserError, match=f"did you mean '{nearest}'"):
            bw.reproduce(table, scale=scale, data=data, out=tmp_path / "out")
    with pytest.raises(bw.UserError, match="names no model of a table"):
        bw.reproduce("table5", data=data, out=tmp_path / "out", models={"bertt": "mini"})
    with pytest.raises(bw.UserError, match="is not a setting here"):
        bw.reproduce("table5", data=data, out=tmp_path / "out", overrides=["train.epochs=3"])


def test_a_folder_of_other_things_is_refused(data, tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    for is_dry in (False, True):
        with pytest.raises(bw.UserError, match=r"holds no tables, but thesis\.tex"):
            run(data, tmp_path, dry_run=is_dry)
        with pytest.raises(bw.UserError, match=r"thesis\.tex is a file; choose a folder"):
            run(data, tmp_path / "thesis.tex", dry_run=is_dry)
    write_text(tmp_path / "corpus")
    with pytest.raises(bw.UserError, match="holds no tables, but text"):
        run(data, tmp_path / "corpus")


def test_without_text_and_data_there_is_nothing_to_measure(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(bw.UserError, match=r"there is nothing to measure\. .*has no files of MNLI"):
        run(tmp_path / "empty", tmp_path / "out")
    write_mrpc(tmp_path / "empty")
    with pytest.raises(bw.UserError, match="no text to pre-train bert on: give --text"):
        run(tmp_path / "empty", tmp_path / "out")


def test_the_command_shows_the_plan_and_asks(data, tmp_path):
    arguments = ["reproduce", "5", "--data", str(data), "--out", str(tmp_path / "out"), *QUICK]
    said = CliRunner().invoke(app, [*arguments, "--dry-run"], catch_exceptions=False)
    assert "pre-train         8 to do of 8" in said.stdout
    assert "left out: mnli; 3 claims not testable." in said.stdout
    assert not (tmp_path / "out").exists()
    said = CliRunner().invoke(app, arguments, input="n\n")
    assert isinstance(said.exception, bw.UserError)
    assert "nothing was done" in str(said.exception)
    assert not (tmp_path / "out").exists()


def test_a_start_that_led_to_nothing_does_not_bind_the_next(data, done, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(bw.UserError, match="max_step: unknown key"):
        bw.reproduce("table5", data=data, out=out, overrides=["pretrain.train.max_step=3"], quiet=True)
    assert not out.exists()
    out.mkdir()
    shutil.copy(done[0] / START_FILE, out)
    bw.reproduce("table5", scale="mini", data=data, out=out, quiet=True, dry_run=True)
    shutil.copytree(done[0] / "results", out / "results")
    with pytest.raises(bw.UserError, match="--scale tiny, and now has --scale mini"):
        bw.reproduce("table5", scale="mini", data=data, out=out, quiet=True, dry_run=True)


# Text, prepared once.


def setup_for(data, out):
    return Setup(find_scale("tiny"), data, out, (), {}, 1, 1, (), "cpu", 1)


def test_text_that_another_process_prepares_is_waited_for(data, tmp_path):
    setup, said = setup_for(data, tmp_path / "out"), []
    folder = setup.text_folder("wordpiece")
    folder.mkdir(parents=True)
    waiting = threading.Thread(
        target=prepare_text, args=(setup, "wordpiece", said.append), kwargs={"quiet": True}, daemon=True
    )
    with exclusive(folder):
        waiting.start()
        time.sleep(0.5)
        assert not (folder / "source.json").exists()
    waiting.join(60)
    assert (folder / "data/manifest.json").exists()
    assert said == [f"another process prepares {folder}; waiting until it ends"]
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}
    prepare_text(setup, "wordpiece", said.append, quiet=True)  # what is there is taken
    assert {path: path.stat().st_mtime_ns for path in before} == before


@pytest.mark.parametrize(
    ("kind", "killed_in"),
    [
        ("wordpiece", "bertworks.data.prepare._manifest"),
        ("wordpiece", "bertworks.data.prepare._clear"),
        ("gpt-bpe", "bertworks.text.gpt.atomic_write"),
    ],
)
def test_a_preparation_that_was_killed_is_resumed(data, tmp_path, monkeypatch, kind, killed_in):
    def kill(*_):
        raise KeyboardInterrupt

    setup = setup_for(data, tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(killed_in, kill)
        with pytest.raises(KeyboardInterrupt):
            prepare_text(setup, kind, print, quiet=True)
    assert any(setup.text_folder(kind).iterdir())
    prepare_text(setup, kind, print, quiet=True)
    straight = setup_for(data, tmp_path / "straight")
    prepare_text(straight, kind, print, quiet=True)
    for path in straight.text_folder(kind).rglob("*"):
        if path.is_file():
            assert (setup.text_folder(kind) / path.relative_to(straight.text_folder(kind))).read_bytes() == (
                path.read_bytes()
            ), path


# What was done before, and is damaged or failed.

ONE = "bert-s0/mrpc-t0"


@pytest.fixture
def copied(done, tmp_path):
    shutil.copytree(done[0], tmp_path / "out")
    return tmp_path / "out"


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda found: [], "holds a list, not an object"),
        (lambda found: found | {"minutes": None}, "minutes: None is not a number"),
        (lambda found: {key: found[key] for key in found if key != "splits"}, "splits: not set"),
        (lambda found: found | {"splits": {"dev": {}}}, "splits.dev.examples: not set"),
        (lambda found: {key: found[key] for key in found if key != "commands"}, "commands: not set"),
    ],
)
def test_a_damaged_result_is_named_before_anything_is_done(data, copied, change, problem):
    path = copied / RESULTS / f"{ONE}.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    for is_dry in (True, False):
        with pytest.raises(bw.UserError) as raised:
            run(data, copied, dry_run=is_dry)
        assert f"{path}" in str(raised.value)
        assert problem in str(raised.value)
        assert str(raised.value).endswith(f"; remove {path}, and it is measured again")
        assert "\n" not in str(raised.value)


def foreign(path):
    write_arrays(path, {"embeddings": np.zeros((20, 3), np.float32)})


def shorter(path):
    write_arrays(path, {f"dev/{name}": np.zeros((19, 3), np.float32) for name in ("accuracy", "f1")})


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda path: path.unlink(), "cannot read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "is not a sound safetensors file"),
        (foreign, "does not have dev/"),
        (shorter, "of 20 examples"),
    ],
)
def test_damage_beside_a_result_is_named_before_anything_is_done(data, copied, damage, problem):
    path = copied / RESULTS / f"{ONE}.json"
    damage(path.with_suffix(".safetensors"))
    with pytest.raises(bw.UserError) as raised:
        run(data, copied, dry_run=True)
    assert str(path.with_suffix(".safetensors")) in str(raised.value)
    assert problem in str(raised.value)
    assert str(raised.value).endswith(f"; remove {path}, and it is measured again")
    path.unlink()
    assert list(run(data, copied, dry_run=True)["jobs"])[-1] == ONE


def test_of_all_tables_a_damaged_result_stops_all(data, copied):
    (copied / RESULTS / "other-s0").mkdir()
    (copied / RESULTS / "other-s0/mrpc-t0.json").write_text("[]")
    with pytest.raises(bw.UserError, match="and it is measured again"):
        bw.reproduce("all", data=data, out=copied, overrides=QUICK, seeds=1, quiet=True, dry_run=True)


def test_a_damaged_record_of_the_start_is_named(data, copied):
    (copied / START_FILE).write_text("[]")
    with pytest.raises(bw.UserError, match=rf"{START_FILE} holds a list, not an object; remove it"):
        run(data, copied)
    (copied / START_FILE).unlink()
    assert run(data, copied)["failed"] == []


def test_a_failed_job_is_printed_and_ends_the_command_with_1(data, copied, monkeypatch):
    def fail(*_):
        raise bw.UserError("no room")

    arguments = ["reproduce", "5", "--data", str(data), "--out", str(copied), "--seeds", "1", "--yes", *QUICK]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert said.exit_code == 0
    assert "--pages" in said.stderr
    (copied / RESULTS / f"{ONE}.json").unlink()
    monkeypatch.setattr(jobs_module, "_finetune", fail)
    for more in ([], ["--quiet"], ["--json"]):
        said = CliRunner().invoke(app, [*arguments, *more], catch_exceptions=False)
        assert said.exit_code == 1, more
        if more == ["--json"]:
            assert json.loads(said.stdout)["failed"] == [{"job": ONE, "error": "no room"}]
        else:
            assert f"failed: {ONE}: no room" in said.stderr


def test_all_tables_without_any_data_end_with_1_and_without_advice(tmp_path):
    (tmp_path / "empty").mkdir()
    arguments = ["reproduce", "all", "--data", str(tmp_path / "empty"), "--out", str(tmp_path / "out"), "--yes"]
    said = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert said.exit_code == 1
    assert "there is nothing to measure" in said.stderr
    assert "--pages" not in said.stderr


def test_pages_are_listed_as_json(copied):
    said = CliRunner().invoke(app, ["reproduce", "5", "--out", str(copied), "--pages", "--json"])
    assert json.loads(said.stdout) == [f"{copied}/table5/table5.html", f"{copied}/index.html"]


def test_no_answer_to_every_question_scores_the_share_of_impossible_ones(tmp_path):
    write_squad(tmp_path, second=True)
    config = {"task": "squad2", "overrides": ["train.epochs=1", "task.max_length=64"], "init": "model"}
    inputs = {
        "model": str(write_small_model(tmp_path / "model", max_position_embeddings=64)),
        "beside": None,
        "data": str(tmp_path),
    }
    job = Job(id="m-s0/squad2-t0", kind="finetune", config=config, inputs=inputs, commands=[])
    work_off(tmp_path / "out", [job], "cpu")
    assert read_error(tmp_path / "out", job.id) == ""
    found = read_result_file(tmp_path / "out" / RESULTS / "m-s0/squad2-t0.json")
    assert set(found["splits"]["dev"]["majority"].values()) == {37.5}  # of three questions of eight
