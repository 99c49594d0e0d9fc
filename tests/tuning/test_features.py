"""Feature-based training: what is learnt on frozen layers, the model that comes out of it, and exact resume."""

import json
import os
import random
import signal
import time

import numpy as np
import pytest
import torch
from small_models import write_small_model
from tiny_runs import files_of, lines_of
from toy_tasks import write_conll

import bertworks as bw
from bertworks.errors import ConfigError, UserError
from bertworks.nn.feature_config import FEATURES
from bertworks.tuning.finetune import finetune

QUICK = ("optim.lr=1e-2", "task.lstm_cells=16", "task.max_length=18", "train.batch_size=16", "train.epochs=4",
         "train.log_every=5", "train.save_every=7")  # fmt: skip
LAST = (*QUICK, "task.features=last")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_small_model(tmp_path_factory.mktemp("model") / "small", num_hidden_layers=4)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_conll(tmp_path_factory.mktemp("conll"))


@pytest.fixture(scope="module")
def finished(model, data, tmp_path_factory):
    torch.set_num_threads(1)
    run = tmp_path_factory.mktemp("finished") / "run"
    return run, finetune("conll2003", model=model, data=data, out=run, overrides=LAST, device="cpu")


def test_a_tagger_on_the_last_layer_learns_and_its_folder_tags(finished):
    run, outcome = finished
    assert (outcome.metric, outcome.reason) == ("f1", "steps")
    assert outcome.score > 0.8  # all O, or all alike, gives 0
    opened = bw.load(run, device="cpu")
    config = json.loads((run / "model/config.json").read_text())
    assert (config["model_type"], config["features"], config["lstm_cells"]) == ("bertworks-features", "last", 16)
    found = opened.tag("the cat sat on the mat")
    assert [(entity["type"], entity["text"]) for entity in found] == [("PER", "cat")]
    assert opened.features(["the cat"])[0].hidden.shape == (5, 4, 16)
