"""`problem_type` in config.json: transformers trains and serves our models rightly, and we theirs."""

import json

import pytest
import torch
from small_models import write_small_model

import bertworks as bw
from bertworks.errors import UserError

TYPES = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}


def write_model(folder, kind):
    num_outputs = 1 if kind == "regress" else 2
    return write_small_model(
        folder, {"classify": num_outputs}, labels=[] if kind == "regress" else ["x", "y"],
        about={"task": {"name": kind, "kind": kind, "is_pair": False, "max_length": 16}},
    )  # fmt: skip


@pytest.mark.parametrize("kind", TYPES)
def test_transformers_opens_the_folder_and_chooses_the_loss(tmp_path, kind):
    transformers = pytest.importorskip("transformers", reason="UNTESTED with transformers: it is not installed")
    folder = write_model(tmp_path / "model", kind)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    assert model.config.problem_type == TYPES[kind]
    ids = torch.tensor([[2, 5, 6, 3]])
    labels = {"classify": torch.tensor([1]), "multilabel": torch.tensor([[0.0, 1.0]]), "regress": torch.tensor([0.5])}
    out = model(input_ids=ids, labels=labels[kind])
    functions = {
        "classify": torch.nn.functional.cross_entropy,
        "multilabel": torch.nn.functional.binary_cross_entropy_with_logits,
        "regress": lambda scores, label: torch.nn.functional.mse_loss(scores.squeeze(), label.squeeze()),
    }
    torch.testing.assert_close(out.loss, functions[kind](out.logits, labels[kind]))


@pytest.mark.parametrize(("kind", "keys"), [("classify", {"label", "score", "scores"}), ("regress", {"score"}),
                                            ("multilabel", {"labels", "scores"})])  # fmt: skip
def test_a_folder_of_theirs_is_used_for_its_problem(tmp_path, kind, keys):
    folder = write_model(tmp_path / "model", kind)
    (folder / "bertworks.json").unlink()
    model = bw.load(folder)
    assert set(model.classify(["a cat"])[0]) == keys
    model.save(tmp_path / "again")
    (tmp_path / "again/bertworks.json").unlink()
    assert json.loads((tmp_path / "again/config.json").read_text())["problem_type"] == TYPES[kind]
    assert bw.load(tmp_path / "again").classify(["a cat"]) == model.classify(["a cat"])


def test_one_output_without_a_problem_is_a_regression_and_with_one_it_is_not(tmp_path):
    folder = write_small_model(tmp_path / "model", {"classify": 1})
    assert set(bw.load(folder).classify(["a cat"])[0]) == {"score"}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "multi_label_classification"}))
    assert set(bw.load(folder).classify(["a cat"])[0]) == {"labels", "scores"}


@pytest.mark.parametrize("said", [None, "", "something_else", 3, ["regression"]])
def test_an_unknown_problem_is_as_good_as_none(tmp_path, said):
    folder = write_small_model(tmp_path / "model", {"classify": 3})
    config = json.loads((folder / "config.json").read_text())
    assert "problem_type" not in config
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": said}))
    assert "label" in bw.load(folder).classify(["a cat"])[0]


def test_a_regression_of_several_numbers_is_refused(tmp_path):
    folder = write_small_model(tmp_path / "model", {"classify": 3})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"problem_type": "regression"}))
    with pytest.raises(UserError, match="predicts 3 numbers"):
        bw.load(folder).classify(["a cat"])


@pytest.mark.parametrize(
    ("about", "words"),
    [
        ({"task": "classify"}, "about: 1 problem\n  task: "),
        ({"task": {"kind": "sort"}}, "task.kind"),
        ("classify", "about: a string where a mapping is expected"),
    ],
)
def test_what_could_not_be_read_again_is_not_written(tmp_path, about, words):
    with pytest.raises(UserError) as refused:
        write_small_model(tmp_path / "model", {"classify": 2}, about=about)
    assert words in str(refused.value)
    assert not (tmp_path / "model" / "config.json").exists()
