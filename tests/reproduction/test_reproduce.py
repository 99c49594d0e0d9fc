"""A table from end to end on small files: planned, stopped, resumed and judged, and its page made again."""

import json
import shutil

import pytest
from small_benchmarks import write_mrpc, write_text
from typer.testing import CliRunner

import bertworks as bw
from bertworks.cli import app
from bertworks.reproduction.jobs import RESULTS
from bertworks.reproduction.page import write_pages

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
    shutil.copy(out / "reproduce.json", small)
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
    with pytest.raises(bw.UserError, match=r"holds no tables, but thesis\.tex"):
        run(data, tmp_path)


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
