"""Fine-tuning an ELMo: what is learnt and what stays, that a run goes on exactly, and what is refused."""

import json
import tomllib

import pytest
import torch
from small_models import write_small_model
from tiny_runs import files_of, kill_until_through
from toy_elmo_tasks import QUICK, name_of, write_elmo, write_files
from toy_tasks import write_rows

import bertworks as bw
from bertworks.errors import UserError
from bertworks.finetuning.finetune import finetune, open_task_start
from bertworks.finetuning.settings import settings_for
from bertworks.tasks.heads import kind_of
from bertworks.tasks.own_files import open_own

KINDS = ("classify", "pair", "choose", "tag", "answer")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_elmo(tmp_path_factory.mktemp("model") / "elmo")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return {kind: write_files(tmp_path_factory.mktemp(kind), kind) for kind in KINDS}


def tuned(kind, model, files, run, overrides=QUICK, **options):
    return finetune(name_of(kind), model=model, out=run, overrides=overrides, device="cpu", **files[kind], **options)


@pytest.fixture(scope="module")
def finished(model, files, tmp_path_factory):
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, tuned("pair", model, files, run)


# What stays and what learns


def test_the_elmo_stays_as_it_was_and_all_above_it_learns(finished, model):
    old, opened = bw.load(model).net, bw.load(finished[0])
    new = dict(opened.net.named_parameters())
    for name, weight in old.named_parameters():
        assert name.startswith("softmax.") or torch.equal(weight, new[f"elmo.{name}"]), name
    start = opened.about["provenance"]["start"]
    assert start["drawn"] == sorted(name for name in new if not name.startswith("elmo."))
    assert start["model"] == str(model)
    assert not torch.equal(new["mix.weights"], torch.zeros(3))
    assert opened.about["metrics"]["dev_accuracy"] == finished[1].score


def started(model, files, tmp_path, kind="pair", overrides=QUICK, *, is_random=False):
    """What a run would begin with."""
    dataset = open_own(name_of(kind), files[kind])
    settings = settings_for(dataset.task, overrides)
    return open_task_start(
        model, tmp_path / "new", dataset.task, kind_of(dataset.task), settings.task, seed=0, is_random=is_random
    )


def test_a_random_start_draws_the_elmo_too_and_trains_it(model, files, tmp_path):
    """As of a BERT: sizes and list alone are taken, and everything learns."""
    start = started(model, files, tmp_path, is_random=True)
    assert set(start.about["drawn"]) == {name for name, _ in start.net.named_parameters()}
    drawn = {name: weight.detach().clone() for name, weight in start.net.named_parameters()}
    tuned("pair", model, files, tmp_path / "run", (*QUICK, "train.epochs=1"), init="random")
    learnt = bw.load(tmp_path / "run").net
    assert learnt.reader.trains_elmo
    theirs = dict(bw.load(model).net.named_parameters())
    for name, weight in learnt.named_parameters():
        assert not torch.equal(weight, drawn[name]), name
        assert not torch.equal(weight, theirs.get(name.removeprefix("elmo."), drawn[name])), name


def lines_of(files):
    return files["pair"]["train"].read_text().splitlines()


def test_a_fine_tuned_elmo_gives_its_readers_to_another_task(finished, files, tmp_path):
    """RTE after MNLI, as it were: what fits is taken over, the head only where the labels are the same."""
    same = started(finished[0], files, tmp_path)
    assert same.about["drawn"] == []
    renamed = [json.loads(line) | {"label": "xy"[number % 2]} for number, line in enumerate(lines_of(files))]
    train = write_rows(tmp_path / "renamed.jsonl", renamed)
    assert started(finished[0], {"pair": {"train": train}}, tmp_path).about["drawn"] == [
        "heads.classify.out.bias",
        "heads.classify.out.weight",
    ]
    other = started(finished[0], files, tmp_path, "choose")
    assert other.about["drawn"] == ["heads.choose.out.bias", "heads.choose.out.weight"]
    single = started(finished[0], files, tmp_path, "classify")
    assert "hidden.weight" in single.about["drawn"]
    assert not [name for name in single.about["drawn"] if name.startswith(("elmo", "first", "second", "mix"))]


# A run that goes on


def test_the_same_settings_give_the_same_bytes(finished, model, files, tmp_path):
    tuned("pair", model, files, tmp_path / "run")
    assert files_of(tmp_path / "run") == files_of(finished[0])


def test_resume_is_bit_exact_after_sigkill(finished, model, files, tmp_path):
    """F1: killed at random instants until it is through; words are numbered anew each time, in the same order."""
    run = tmp_path / "run"
    kill_until_through(lambda: tuned("pair", model, files, run, resume=True), 0)
    assert files_of(run) == files_of(finished[0])


def test_a_run_goes_on_without_the_model_it_came_from(finished, files, tmp_path):
    again = tuned("pair", tmp_path / "gone", files, finished[0], resume=True)
    assert (again.reason, again.score) == ("steps", finished[1].score)


def test_a_run_that_goes_on_trains_what_it_trained_whatever_is_said_of_its_start_now(model, files, tmp_path):
    tuned("pair", model, files, tmp_path / "run", init="random")
    again = tuned("pair", model, files, tmp_path / "run", resume=True)
    assert (again.reason, bw.load(tmp_path / "run").net.reader.trains_elmo) == ("steps", True)


def test_a_run_does_not_go_on_with_other_words_in_the_same_places(finished, model, files, tmp_path):
    """Their numbers are the same, and so is all that a digest of numbers would see."""
    text = files["pair"]["train"].read_text()
    (tmp_path / "train.jsonl").write_text(text.replace("gnu", "emu"))
    changed = {"pair": {"train": tmp_path / "train.jsonl", "dev": files["pair"]["dev"]}}
    with pytest.raises(UserError, match="other settings or data"):
        tuned("pair", model, changed, finished[0], resume=True)


# Settings


def test_usual_settings_are_those_for_new_readers_and_overrides_go_over_them(model, files, tmp_path):
    overrides = ("task.cells=3", "task.max_length=24", "train.max_steps=1", "optim.clip=2.0")
    tuned("pair", model, files, tmp_path / "run", overrides)
    recipe = tomllib.loads((tmp_path / "run/recipe.toml").read_text())
    assert (recipe["optim"]["lr"], recipe["train"]["epochs"], recipe["task"]["dropout"]) == (1e-3, 10, 0.2)
    assert recipe["optim"]["clip"] == 2.0


@pytest.mark.parametrize(("kind", "cells"), [("classify", 1_500), ("tag", 200), ("answer", 200)])
def test_readers_are_as_wide_as_those_they_are_compared_with(model, files, tmp_path, kind, cells):
    net = started(model, files, tmp_path, kind, ["task.max_length=24"]).net
    assert net.reader.num_cells == cells
    assert net.reader.pairs == (kind == "answer")


def test_settings_that_mean_nothing_for_an_elmo_are_refused_at_once(model, files, tmp_path):
    overrides = (*QUICK, "task.freeze=1", "task.layer_decay=0.9", "train.dtype=bfloat16", "train.compile=true")
    with pytest.raises(UserError) as caught:
        tuned("pair", model, files, tmp_path / "run", overrides)
    for name in ("task.freeze=1", "task.layer_decay=0.9", "train.dtype=bfloat16", "train.compile=true"):
        assert name in str(caught.value)
    assert not (tmp_path / "run").exists()
    for overrides, said in (
        (("task.bilstm=true",), "task.bilstm is for BERTs"),
        (("task.lm_weight=1.0",), "for a GPT-1"),
    ):
        with pytest.raises(UserError, match=said):
            tuned("pair", model, files, tmp_path / "run", (*QUICK, *overrides))
    with pytest.raises(UserError, match="a random start has nothing to freeze"):
        tuned("pair", model, files, tmp_path / "run", (*QUICK, "task.freeze=all"), init="random")


def test_cells_are_an_elmos(files, tmp_path):
    bert = write_small_model(tmp_path / "bert", max_position_embeddings=32)
    with pytest.raises(UserError, match=r"task\.cells 12: only an ELMo"):
        tuned("pair", bert, files, tmp_path / "run")


def test_a_list_of_more_words_than_the_model_guesses_is_refused(files, tmp_path):
    model = write_elmo(tmp_path / "elmo")
    with open(model / "vocab.txt", "a") as stream:
        stream.write("zebra\n")
    with pytest.raises(UserError, match="its vocabulary has 13 pieces, its model 12"):
        tuned("pair", model, files, tmp_path / "run")
