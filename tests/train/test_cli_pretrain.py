"""`bertworks pretrain` as a person meets it."""

import json
import os
import shutil
import signal

import pytest
from tiny_runs import files_of

import bertworks as bw
from bertworks.errors import UserError
from bertworks.train.log import RunLog

TINY = (
    "model.preset=1x32x2", "model.max_positions=64", "data.max_length=32", "optim.lr=3e-3", "optim.warmup=5",
    "train.max_steps=12", "train.batch_size=8", "train.save_every=5", "train.eval_every=6",
)  # fmt: skip


def test_a_run_is_made_refused_and_resumed(bertworks, data, tmp_path):
    run = str(tmp_path / "run")
    code, out, _ = bertworks(
        "pretrain", "tiny-cpu", *TINY, "--data", str(data), "--out", run, "--json", "--device", "cpu"
    )
    assert code == 0
    result = json.loads(out)
    assert (result["steps"], result["reason"]) == (12, "steps")
    assert 0 <= result["holdout_mlm_accuracy"] <= 1
    code, _, err = bertworks("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--out", run)
    assert (code, err.count("\n")) == (2, 1)
    assert "--resume" in err
    code, out, _ = bertworks("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--out", run, "--resume")
    assert code == 0
    assert "finished after 12 steps" in out
    code, out, _ = bertworks("fill", run, "word1 [MASK].", "--json")
    assert code == 0
    assert len(json.loads(out)[0]) == 5


def test_the_resolved_recipe_lies_in_the_run_folder_and_loads(bertworks, data, tmp_path):
    run = tmp_path / "run"
    bertworks("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--out", str(run), "--quiet")
    code, out, _ = bertworks("pretrain", str(run / "recipe.toml"), "--data", str(data), "--out", str(run), "--resume")
    assert (code, "12 steps" in out) == (0, True)


def test_a_dry_run_walks_the_whole_way_and_keeps_nothing(bertworks, data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = bertworks("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--dry-run")
    assert code == 0
    assert "1 step," in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_goes_with_every_schedule(bertworks, data, caplog):
    options = ("optim.schedule=wsd", "optim.warmup=20", "train.max_steps=100", "optim.decay_share=0.5")
    code, _, err = bertworks("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--dry-run", *options)
    assert (code, "problem" in err + caplog.text) == (0, False)


def test_a_report_is_not_written_over_a_runs_own_files(bertworks, data, tmp_path):
    run = tmp_path / "run"
    bertworks("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--out", str(run), "--quiet")
    for name in ("recipe.toml", "metrics.jsonl", "model/config.json"):
        before = (run / name).read_bytes()
        code, _, err = bertworks("report", run, "--out", run / name)
        assert (code, "would be overwritten" in err, (run / name).read_bytes()) == (2, True, before)
    assert bertworks("report", run)[0] == bertworks("report", run, "--out", run / "report.html")[0] == 0
    assert bertworks("report", run, "--out", tmp_path / "page.html")[0] == 0


def test_a_dry_run_remarks_on_the_run_that_is_meant(bertworks, data):
    arguments = ("pretrain", "tiny-cpu", *TINY, "--data", str(data), "--dry-run")
    assert "warm-up" not in bertworks(*arguments, "train.max_steps=100", "optim.warmup=20")[2]
    said = bertworks(*arguments, "train.max_steps=100", "optim.warmup=100", "data.short_share=0.5")[2]
    assert "the warm-up of 100 steps is as long as the run of 100" in said
    assert said.count("data.short_share changes nothing") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["tiny-cpuu", "--data", "DATA", "--out", "run"], "did you mean 'tiny-cpu'"),
        (["tiny-cpu", "--data", "DATA"], "--out"),
        (["tiny-cpu", "--data", "nowhere", "--out", "run"], "nowhere"),
        (["tiny-cpu", "optim.lrr=1", "train.keep=0", "--data", "DATA", "--out", "run"], "2 problems"),
        (
            ["tiny-cpu", "data.objective=bilm", "--data", "DATA", "--out", "run"],
            "data.objective=bilm: it learns by mlm+nsp or mlm or ltr or rtl",
        ),
        (["tiny-cpu", "data.max_length=512", "--data", "DATA", "--out", "run"], "max_positions"),
        (["tiny-cpu", "optim.clock=true", "--data", "DATA", "--out", "run"], "max_minutes"),
        (["tiny-cpu", "train.slices=7", "--data", "DATA", "--out", "run"], "slices"),
        (["tiny-cpu", "model.preset=enormous", "--data", "DATA", "--out", "run"], "enormous"),
    ],
)
def test_mistakes_are_told_in_a_line_or_two(bertworks, data, tmp_path, monkeypatch, arguments, said):
    monkeypatch.chdir(tmp_path)
    code, _, err = bertworks("pretrain", *[str(data) if argument == "DATA" else argument for argument in arguments])
    assert code == 2
    assert said in err
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_the_run_folder_is_enough_to_go_on(bertworks, data, tmp_path, monkeypatch):
    """After a signal, from another place, to the same bytes; what is given anew is taken."""
    monkeypatch.chdir(data.parent)
    command = ("pretrain", "tiny-cpu", *TINY, "--data", data.name, "--device", "cpu")
    assert bertworks(*command, "--out", tmp_path / "whole", "-q")[0] == 0
    whole, told = files_of(tmp_path / "whole"), RunLog.train

    def interrupted(self, place, values):
        told(self, place, values)
        os.kill(os.getpid(), signal.SIGINT)

    run = tmp_path / "run"
    with monkeypatch.context() as patches:
        patches.setattr(RunLog, "train", interrupted)
        code, out, err = bertworks(*command, "--out", run)
    assert (code, "stopped by a signal after 6 steps" in out) == (130, True)
    assert err.splitlines()[-1] == f"next: bertworks pretrain --resume --out {run}"
    monkeypatch.chdir(tmp_path)
    bw.pretrain(out="run", resume=True, quiet=True)
    assert files_of(run) == whole
    code, out, err = bertworks("pretrain", "--resume", "--out", run)
    assert (code, "is finished already" in err, "finished after 12 steps" in out) == (0, True, True)
    # No checkpoint yet: it starts, with the settings and the inputs that are there.
    for name in ("checkpoints", "model"):
        shutil.rmtree(run / name)
    assert bertworks("pretrain", "--resume", "--out", run, "-q")[0] == 0
    assert files_of(run) == whole
    code, out, _ = bertworks("pretrain", "--resume", "--out", run, "train.max_steps=14")
    assert (code, "finished after 14 steps" in out) == (0, True)
    code, _, err = bertworks("pretrain", "--resume", "--out", run, "data.mask_rate=0.3")
    assert (code, "data.mask_rate was 0.15, not 0.3" in err) == (2, True)


def test_inputs_that_have_moved_are_named_and_can_be_given_anew(bertworks, data, tmp_path):
    there, run = tmp_path / "there", tmp_path / "run"
    shutil.copytree(data, there)
    assert bertworks("pretrain", "tiny-cpu", *TINY, "--data", there, "--out", run, "-q")[0] == 0
    there.rename(tmp_path / "moved")
    code, _, err = bertworks("pretrain", "--resume", "--out", run)
    assert (code, err.count("\n")) == (2, 1)
    assert f"started with {there}, which is not there any more; give it again: --data PATH" in err
    for _ in range(2):  # and then it is known
        assert bertworks("pretrain", "--resume", "--out", run, "--data", tmp_path / "moved", "-q")[0] == 0
    bertworks("pretrain", "--resume", "--out", run, "--data", tmp_path / "moved", "-q", "train.max_steps=13")
    assert bertworks("pretrain", "--resume", "--out", run, "-q")[0] == 0
    (run / "inputs.json").unlink()  # as in a run of an earlier version
    code, _, err = bertworks("pretrain", "--resume", "--out", run)
    assert (code, err.count("\n"), "an earlier version made it); give --data DATA" in err) == (2, 1, True)
    (run / "inputs.json").write_text('{"command": "finetune"}')
    assert "resume it with that command" in bertworks("pretrain", "--resume", "--out", run)[2]
    (run / "inputs.json").write_text('{"command": 3, "data": []}')
    code, _, err = bertworks("pretrain", "--resume", "--out", run)
    assert (code, "inputs.json" in err) == (2, True)


def test_what_is_missing_is_named(bertworks, data, tmp_path):
    for command, missing in (
        (("pretrain", "--out", tmp_path / "new"), "a recipe"),
        (("pretrain", "tiny-cpu", "--out", tmp_path / "new"), "--data DATA"),
        (("pretrain", "--resume", "--out", tmp_path / "new"), "holds no run to resume; to start one, give RECIPE"),
    ):
        code, _, err = bertworks(*command)
        assert (code, err.count("\n"), missing in err) == (2, 1, True), err
    with pytest.raises(UserError, match="give RECIPE"):
        bw.pretrain(data=data, out=tmp_path / "new")


def test_from_python_lines_are_shown_and_quiet_silences_them(data, tmp_path, capfd):
    settings = {"data": data, "overrides": TINY, "device": "cpu"}
    bw.pretrain("tiny-cpu", out=tmp_path / "quiet", quiet=True, **settings)
    assert capfd.readouterr() == ("", "")
    bw.pretrain("tiny-cpu", out=tmp_path / "run", **settings)
    shown = capfd.readouterr()
    assert (shown.out, "12 of 12 steps: loss" in shown.err, "\x1b" in shown.err) == ("", True, False)
    assert files_of(tmp_path / "run") == files_of(tmp_path / "quiet")
