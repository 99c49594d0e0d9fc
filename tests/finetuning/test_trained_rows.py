"""Rows of the token table that never occur: exact in closed form, in training as on disk."""

import pytest
import torch
from small_models import PIECES, write_small_model
from tiny_runs import files_of
from toy_tasks import QUICK, SIZES, write_task

import bertworks as bw
from bertworks.finetuning.finetune import finetune
from bertworks.finetuning.network import TABLE

SETTINGS = (*QUICK, "task.dropout=0.0", "optim.weight_decay=0.1", "train.epochs=3")


@pytest.fixture
def task(tmp_path):
    model = write_small_model(tmp_path / "model", **SIZES)
    train, dev = write_task(tmp_path, "classify")
    return {"model": model, "train": train, "dev": dev, "device": "cpu"}


@pytest.mark.parametrize("more", [(), ("task.layer_decay=0.5",), ("optim.name=adamw",)])
def test_a_cut_table_ends_as_the_whole_one_would(task, tmp_path, monkeypatch, more):
    overrides = (*SETTINGS, *more)
    cut = finetune("classify", out=tmp_path / "cut", overrides=overrides, **task)
    monkeypatch.setattr("bertworks.finetuning.session.TrainedRows", lambda *_: None)
    whole = finetune("classify", out=tmp_path / "whole", overrides=overrides, **task)
    assert cut.score == whole.score
    ours, plain = (bw.load(tmp_path / name / "checkpoints/step-00000018").net.state_dict() for name in ("cut", "whole"))
    for name, weight in plain.items():
        torch.testing.assert_close(ours[name], weight, rtol=0, atol=2e-6, msg=name)
    unused = PIECES.index("!")  # decayed, and by the same
    before = bw.load(task["model"]).net.state_dict()[TABLE][unused]
    assert ours[TABLE][unused].norm() < before.norm() * 0.9998


def test_the_optimizer_has_the_rows_that_occur_and_no_others(task, tmp_path):
    finetune("classify", out=tmp_path / "run", overrides=SETTINGS, **task)
    from bertworks.train.checkpoint import latest_checkpoint

    tensors = latest_checkpoint(tmp_path / "run").optimizer
    num_used = len(tensors[f"{TABLE}.adam_m"])
    assert 5 < num_used < len(PIECES)
    assert len(tensors["embeddings.token.at_rest"]) == len(PIECES) - num_used


def test_a_run_in_two_parts_has_the_same_table_to_the_last_bit(task, tmp_path):
    constant = (*SETTINGS, "optim.schedule=constant", "optim.warmup=2")
    finetune("classify", out=tmp_path / "whole", overrides=constant, **task)
    finetune("classify", out=tmp_path / "parts", overrides=(*constant, "train.max_steps=11"), **task)
    finetune("classify", out=tmp_path / "parts", overrides=constant, resume=True, **task)
    name = "checkpoints/step-00000018/model.safetensors"
    assert files_of(tmp_path / "parts")[name] == files_of(tmp_path / "whole")[name]


def test_dev_texts_may_have_words_that_training_never_saw(task, tmp_path):
    task["dev"].write_text('{"text": "a big small cat!", "label": "about cats"}\n')
    outcome = finetune("classify", out=tmp_path / "run", overrides=SETTINGS, **task)
    again = bw.load(tmp_path / "run").classify(["a big small cat!"])
    assert (again[0]["label"] == "about cats") == (outcome.score == 1.0)
