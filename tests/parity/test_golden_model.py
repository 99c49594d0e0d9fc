"""N2: our own network with the original's weights against the original's outputs, at every layer and both heads.

The checkpoints and numbers were made with the original code for this project; see the note in tests/golden.
"""

from pathlib import Path

import numpy as np
import pytest
import torch

import bertworks as bw
from bertworks.models.convert import convert
from bertworks.nn.attention import pack

GOLDEN = Path(__file__).parents[1] / "golden"
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = tmp_path_factory.mktemp("converted")
    for name in ("model_plain", "model_trained3"):
        convert(GOLDEN / name, out / name)
    return out


def rows_of(batch):
    """The real tokens of a padded batch, as texts, and where they lie in it."""
    real = batch["input_mask"].astype(bool)
    ids = [row[kept].tolist() for row, kept in zip(batch["input_ids"], real, strict=True)]
    segments = [row[kept].tolist() for row, kept in zip(batch["segment_ids"], real, strict=True)]
    return pack(ids, segments), real


def log_probabilities(model, hidden, batch, real):
    """The MLM head's log-probabilities at every prediction slot, row by row."""
    padded = torch.zeros(*real.shape, hidden.shape[-1])
    padded[torch.from_numpy(real)] = hidden
    places = torch.from_numpy(batch["masked_lm_positions"]).long()
    chosen = padded.gather(1, places[..., None].expand(-1, -1, hidden.shape[-1]))
    return model.mlm_logits(chosen.reshape(-1, hidden.shape[-1])).log_softmax(-1)


@torch.inference_mode()
def test_every_output_equals_the_originals(folders):
    model = bw.load(folders / "model_plain")
    assert model.net.config.hidden_act == "gelu_new"  # what the original calls gelu is the tanh form
    golden = np.load(GOLDEN / "model_forward.npz")
    batch = {name.removeprefix("in_"): golden[name] for name in golden.files if name.startswith("in_")}
    tokens, real = rows_of(batch)
    encoded = model.net.encode(tokens, hidden=True)
    names = ["out_embedding_output", "out_layer_0", "out_layer_1", "out_layer_2"]
    for hidden, name in zip(encoded.all_hidden, names, strict=True):
        np.testing.assert_allclose(hidden.numpy(), golden[name][real], atol=TOLERANCE)
    pooled = model.net.pooled(encoded.hidden_TD, tokens.packing)
    np.testing.assert_allclose(pooled.numpy(), golden["out_pooled_output"], atol=TOLERANCE)
    next_sentence = model.net.heads["nsp"](pooled).log_softmax(-1)
    np.testing.assert_allclose(next_sentence.numpy(), golden["out_next_sentence_log_probs"], atol=TOLERANCE)
    masked = log_probabilities(model, encoded.hidden_TD, batch, real)
    np.testing.assert_allclose(masked.numpy(), golden["out_masked_lm_log_probs"], atol=TOLERANCE)


@torch.inference_mode()
@pytest.mark.parametrize(("name", "step"), [("model_plain", 0), ("model_trained3", 3)])
def test_losses_of_both_checkpoints_equal_the_originals(folders, name, step):
    """The loss before update k is that of the checkpoint after k updates."""
    model, golden = bw.load(folders / name), np.load(GOLDEN / "train5.npz")
    prefix = f"batch{step}/"
    batch = {key.removeprefix(prefix): golden[key] for key in golden.files if key.startswith(prefix)}
    tokens, real = rows_of(batch)
    hidden = model.net(tokens)
    ids = torch.from_numpy(batch["masked_lm_ids"]).long().reshape(-1, 1)
    weights = torch.from_numpy(batch["masked_lm_weights"]).reshape(-1)
    losses = -log_probabilities(model, hidden, batch, real).gather(1, ids).squeeze(1)
    masked = (losses * weights).sum() / (weights.sum() + 1e-5)
    logits = model.net.heads["nsp"](model.net.pooled(hidden, tokens.packing))
    following = torch.nn.functional.cross_entropy(
        logits, torch.from_numpy(batch["next_sentence_labels"]).long().view(-1)
    )
    assert masked.item() == pytest.approx(golden["loss_mlm"][step], abs=1e-5)
    assert following.item() == pytest.approx(golden["loss_nsp"][step], abs=1e-5)
