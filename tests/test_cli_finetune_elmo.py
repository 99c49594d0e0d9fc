"""finetune, evaluate, predict, classify, tag and answer with an ELMo, as a person or a script meets them."""

import json

import pytest
import torch
from small_models import write_small_gpt
from toy_elmo_tasks import QUICK, write_elmo, write_files
from toy_tasks import write_rows


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return write_elmo(tmp_path_factory.mktemp("model") / "elmo")


@pytest.fixture
def made(bertworks, model, tmp_path):
    """Gives a function that fine-tunes by the command line and returns the run and its result."""

    def make(kind, name):
        files = write_files(tmp_path / "files", kind)
        sources = ("--train", files["train"], "--dev", files["dev"])
        code, out, err = bertworks(
            "finetune", name, "--model", model, *sources, "--out", tmp_path / "run", *QUICK, "--json", "--device", "cpu"
        )
        assert code == 0, err
        return tmp_path / "run", files["dev"], json.loads(out)

    return make


def test_pairs_from_the_first_command_to_the_last(bertworks, made, tmp_path):
    run, dev, result = made("pair", "classify")
    assert (result["reason"], result["steps"]) == ("steps", 32)
    code, out, _ = bertworks("evaluate", run, "--task", "classify", "--data", dev, "--json", "--device", "cpu")
    measured = json.loads(out)
    assert (code, measured["accuracy"]) == (0, result["accuracy"])
    assert measured["loss"] == pytest.approx(result["loss"], rel=1e-4)
    assert bertworks("predict", run, dev, "--out", tmp_path / "said.jsonl", "--device", "cpu")[0] == 0
    said = [json.loads(line)["label"] for line in (tmp_path / "said.jsonl").read_text().splitlines()]
    right = [json.loads(line)["label"] for line in dev.read_text().splitlines()]
    assert sum(a == b for a, b in zip(said, right, strict=True)) / len(right) == measured["accuracy"]
    code, out, _ = bertworks("classify", run, "a zebra", "--pair", "the gnu", "--json", "--device", "cpu")
    assert (code, set(json.loads(out)[0]["scores"])) == (0, {"same", "other"})
    code, out, _ = bertworks("inspect", run)
    assert (code, "frozen, under BiLSTMs of 12 cells" in out) == (0, True)
    for command, said in (
        (("classify", run, "a zebra"), "on pairs of texts"),
        (("fill", run, "a [MASK]"), "this fine-tuned ELMo cannot fill masks"),
    ):
        code, _, err = bertworks(*command)
        assert (code, err.count("\n"), said in err) == (2, 1, True), err


def test_tags_are_measured_and_asked_for_by_their_commands(bertworks, made, tmp_path):
    run, dev, result = made("tag", "tag")
    code, out, _ = bertworks("evaluate", run, "--task", "tag", "--data", dev, "--json", "--device", "cpu")
    assert (code, json.loads(out)["f1"]) == (0, result["f1"])
    assert bertworks("predict", run, dev, "--out", tmp_path / "said.jsonl", "--device", "cpu")[0] == 0
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 40
    code, out, _ = bertworks("tag", run, "sat zebra far", "--json", "--device", "cpu")
    assert (code, {found["type"] for found in json.loads(out)} <= {"X"}) == (0, True)
    code, _, err = bertworks("answer", run, "--question", "who", "--context", "a gnu")
    assert (code, "it has no span head" in err) == (2, True)


def test_an_answer_is_a_part_of_the_context(bertworks, made):
    run, _, _ = made("answer", "answer")
    command = ("answer", run, "--question", "which animal", "--context", "far zebra ran", "--json", "--device", "cpu")
    code, out, _ = bertworks(*command)
    (found,) = json.loads(out)
    assert (code, found["text"] in "far zebra ran") == (0, True)
    assert "far zebra ran"[found["start"] : found["end"]] == found["text"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("task.freeze=2",), "task.freeze=2: the ELMo is frozen anyway"),
        (("train.dtype=bfloat16",), "trained in float32"),
        (("task.cells=-1",), "task.cells"),
        (("task.cells=12", "--init", "new"), "choose model or random"),
    ],
)
def test_mistakes_are_told_in_words(bertworks, model, tmp_path, arguments, said):
    train = write_rows(tmp_path / "t.jsonl", [{"text": f"gnu {n}", "label": n % 2} for n in range(30)])
    command = ("finetune", "classify", "--model", model, "--train", train, "--out", tmp_path / "run", "-q")
    code, _, err = bertworks(*command, *arguments)
    assert (code, said in err, "Traceback" in err) == (2, True, False), err
    assert not (tmp_path / "run").exists()


def test_damaged_and_other_models_are_told_in_a_line(bertworks, model, tmp_path):
    code, _, err = bertworks("classify", model, "a zebra")
    assert (code, err.count("\n"), "cannot classify texts: it has no classify head" in err) == (2, 1, True)
    gpt = write_small_gpt(tmp_path / "gpt")
    assert bertworks("classify", gpt, "a zebra")[0] == 2
    broken = write_elmo(tmp_path / "broken")
    (broken / "vocab.txt").write_text("")
    train = write_rows(tmp_path / "t.jsonl", [{"text": f"gnu {n}", "label": n % 2} for n in range(30)])
    code, _, err = bertworks("finetune", "classify", "--model", broken, "--train", train, "--out", tmp_path / "r", "-q")
    assert (code, "vocab.txt" in err, "Traceback" in err) == (2, True, False), err
