"""The paper's baselines from the command line: fine-tuned, measured, asked, and mistakes told in a line."""

import json

import pytest
import torch
from small_models import write_small_elmo, write_small_gpt, write_small_model
from toy_tasks import QUICK, SIZES, write_task

SETTINGS = (*QUICK, "task.max_length=48", "train.epochs=2", "--device", "cpu")
COMMANDS = {
    "bilstm": ("--model", "LTR", "task.bilstm=true"),
    "two": ("--model", "LTR", "--with", "RTL"),
    "gpt": ("--model", "GPT"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    torch.set_num_threads(1)
    folder, sizes = tmp_path_factory.mktemp("models"), SIZES | {"max_position_embeddings": 48}
    write_small_model(folder / "LTR", direction="left_to_right", **sizes)
    write_small_model(folder / "RTL", direction="right_to_left", **sizes)
    write_small_gpt(folder / "GPT", n_positions=48)
    write_small_elmo(folder / "ELMO")
    return folder


def named(models, words):
    return [models / word if isinstance(word, str) and (models / word).exists() else word for word in words]


@pytest.mark.parametrize("baseline", COMMANDS)
def test_a_baseline_is_fine_tuned_resumed_measured_and_asked(bertworks, models, tmp_path, baseline):
    train, dev = write_task(tmp_path, "classify")
    run = tmp_path / "run"
    command = ("finetune", "classify", *named(models, COMMANDS[baseline]), "--train", train, "--dev", dev, "--out", run)
    code, out, _ = bertworks(*command, *SETTINGS, "--json")
    result = json.loads(out)
    assert (code, result["steps"]) == (0, 12)
    assert bertworks(*command, *SETTINGS, "--resume", "-q")[0] == 0
    code, out, _ = bertworks("evaluate", run, "--task", "classify", "--data", dev, "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out)["accuracy"] == result["accuracy"]
    code, out, _ = bertworks("classify", run, "a cat sat", "the dog", "--json", "--device", "cpu")
    assert (code, len(json.loads(out))) == (0, 2)
    assert bertworks("predict", run, dev, "--out", tmp_path / "said.jsonl", "--device", "cpu")[0] == 0
    assert len((tmp_path / "said.jsonl").read_text().splitlines()) == 40
    assert bertworks("inspect", run)[0] == 0
    for other in (
        ("fill", "a [MASK]"),
        ("embed", "a", "--layers", "all"),
        ("features", dev, "--out", tmp_path / "f.jsonl"),
    ):
        code, _, err = bertworks(other[0], run, *other[1:])
        assert (code, err.count("\n")) == (2, 1)
        assert "cannot" in err
        assert "; it can: classify" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--model", "LTR", "--with", "GPT"), "is not a BERT"),
        (("--model", "GPT", "--with", "RTL"), "--with is for BERTs"),
        (("--model", "LTR", "--with", "nowhere"), "no model 'nowhere'"),
        (("--model", "LTR", "task.bilstm=2"), "task.bilstm: 2 is neither true nor false"),
        (("--model", "LTR", "task.lm_weight=0.5"), "task.lm_weight is for a GPT-1"),
        (("--model", "GPT", "task.max_length=500"), "the 48 positions"),
        (("--model", "GPT", "task.class_weight=true"), "did you mean"),
    ],
)
def test_mistakes_are_told_in_a_line(bertworks, models, tmp_path, arguments, said):
    """T9: and nothing is left behind."""
    train, dev = write_task(tmp_path, "classify")
    command = ("finetune", "classify", *SETTINGS, *named(models, arguments), "--train", train, "--dev", dev)
    code, _, err = bertworks(*command, "--out", tmp_path / "run")
    assert (code, err.strip().splitlines()[-1].count("Traceback")) == (2, 0)
    assert said in err
    assert not (tmp_path / "run/model").exists()


@pytest.mark.parametrize("name", ["GPT", "ELMO"])
def test_a_language_model_that_was_not_fine_tuned_says_so(bertworks, models, name):
    code, _, err = bertworks("classify", models / name, "a cat")
    assert (code, err.count("\n")) == (2, 1)
    assert "cannot classify texts: it has no classify head (heads: none); see `bertworks finetune`" in err
