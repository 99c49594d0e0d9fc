"""GPT-1 and ELMo on a GPU: bf16 and compiled the one, cuDNN's LSTMs in float32 the other; both go on exactly."""

import os

import numpy as np
import pytest
import torch
from test_other_models import ELMO, KINDS, METRICS, recipe, unigram_loss
from test_pretrain import files_of

import bertworks as bw
from bertworks.nn import config as baseline_config
from bertworks.train.pretrain import pretrain

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED: there is no GPU"),
]


@pytest.fixture(autouse=True)
def _tiny_elmo(monkeypatch):
    monkeypatch.setitem(baseline_config.ELMO_SIZES, "tiny-elmo", ELMO)


@pytest.fixture(autouse=True)
def _deterministic_ends_with_the_test():
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    yield
    torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_learns_and_is_used_alike_on_a_gpu_and_a_cpu(tmp_path, other_data, kind):
    run = tmp_path / "run"
    width = {"model__preset": "1x64x2"} if kind == "gpt" else {}  # heads of a width that the kernels take
    outcome = pretrain(recipe(kind, train__max_steps=70, **width), data=other_data[kind], out=run, device="cuda")
    assert outcome.metrics[f"holdout_{METRICS[kind]}_loss"] < unigram_loss(other_data[kind]) - 1
    there, here = bw.load(run, device="cuda"), bw.load(run, device="cpu")
    texts = ["word1 word2 word3", "word7"] if kind == "elmo" else ["а б в", "г"]
    np.testing.assert_allclose(there.embed(texts), here.embed(texts), atol=5e-3)
    assert there.perplexity(texts) == pytest.approx(here.perplexity(texts), rel=5e-3)
    if kind == "gpt":
        half = bw.load(run, device="cuda", dtype="bfloat16")
        assert half.perplexity(texts) == pytest.approx(here.perplexity(texts), rel=5e-2)


@pytest.mark.parametrize("kind", KINDS)
def test_a_run_in_two_parts_equals_a_run_in_one(tmp_path, other_data, kind):
    """F20, in small: dropout and samples are hashes, so that nothing is lost between two starts."""
    settings = {"optim__schedule": "constant", "train__deterministic": True}
    settings |= {"model__preset": "1x64x2"} if kind == "gpt" else {}
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for out, steps, resume in ((whole, 12, False), (parts, 5, False), (parts, 12, True)):
        changed = recipe(kind, **settings, train__max_steps=steps)
        pretrain(changed, data=other_data[kind], out=out, device="cuda", resume=resume)
    name = "model/model.safetensors"
    assert files_of(parts)[name] == files_of(whole)[name]
