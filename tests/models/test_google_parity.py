"""N2: a converted checkpoint in transformers against the original: its formulas in float64, and its own results.

The original's checkpoints and results were made for this project; see the note in tests/golden.
"""

import json
from pathlib import Path

import numpy as np
import pytest
from google_reference import CONFIG, forward, random_variables, write_folder

from bertworks.models.convert import convert
from bertworks.models.google import read_google
from bertworks.models.tf_bundle import Bundle

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

GOLDEN = Path(__file__).parents[1] / "golden"
MODELS = ("model_plain", "model_trained3")


def load(folder):
    """Open a folder with transformers, and see that it finds every weight and misses none."""
    model, found = transformers.BertForPreTraining.from_pretrained(folder, output_loading_info=True)
    assert not found["missing_keys"]
    assert not found["unexpected_keys"]
    assert not found["mismatched_keys"]
    return model.eval()


def run(model, token_ids, segment_ids, mask):
    with torch.no_grad():
        out = model(
            input_ids=torch.tensor(token_ids, dtype=torch.long),
            token_type_ids=torch.tensor(segment_ids, dtype=torch.long),
            attention_mask=torch.tensor(mask, dtype=torch.long),
            output_hidden_states=True,
        )
        pooled = model.bert.pooler(out.hidden_states[-1])
    hidden = [state.numpy() for state in out.hidden_states]
    return hidden, pooled.numpy(), out.prediction_logits.numpy(), out.seq_relationship_logits.numpy()


def log_softmax(logits):
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_converted_checkpoint_computes_what_the_originals_formulas_say(tmp_path, seed):
    variables, random = random_variables(seed=seed), np.random.default_rng(seed)
    convert(write_folder(tmp_path / "google", variables), tmp_path / "folder")
    token_ids, segment_ids = random.integers(0, 40, (3, 16)), random.integers(0, 2, (3, 16))
    mask = (np.arange(16) < [[16], [9], [1]]).astype(int)
    expected = forward(variables, CONFIG, token_ids, segment_ids, mask)
    hidden, *found = run(load(tmp_path / "folder"), token_ids, segment_ids, mask)
    for ours, theirs in zip([hidden[-1], *found], expected, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_the_tokenizer_of_a_converted_folder_opens_in_transformers(tmp_path):
    convert(write_folder(tmp_path / "google", random_variables()), tmp_path / "folder")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    assert tokenizer("WORD3 word10")["input_ids"] == [2, 8, 15, 3]


@pytest.mark.parametrize("architecture", ["BertForPreTraining", "BertForMaskedLM", "BertModel"])
def test_what_transformers_saved_goes_to_google_and_comes_back(tmp_path, architecture):
    """N7: ours to transformers to Google's names to ours."""
    convert(write_folder(tmp_path / "google", random_variables()), tmp_path / "folder")
    model = getattr(transformers, architecture).from_pretrained(tmp_path / "folder")
    model.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved/vocab.txt").write_bytes((tmp_path / "folder/vocab.txt").read_bytes())
    convert(tmp_path / "saved", tmp_path / "again/bert_model.ckpt")
    again = read_google(tmp_path / "again")
    assert again.config["architectures"] == [architecture]
    first = read_google(tmp_path / "google").tensors
    assert set(again.tensors) <= set(first)
    for name, tensor in again.tensors.items():
        np.testing.assert_array_equal(tensor, first[name])


@pytest.mark.parametrize("name", MODELS)
def test_every_variable_of_the_originals_checkpoint_is_found(name):
    bundle = Bundle(GOLDEN / name / "bert_model.ckpt")
    expected = json.loads((GOLDEN / name / "variables.json").read_text())
    assert {name: list(bundle.shape(name)) for name in bundle.names()} == expected
    for variable in bundle.names():
        assert np.isfinite(bundle.read(variable)).all()


def test_the_step_of_a_trained_checkpoint_is_known():
    assert read_google(GOLDEN / "model_trained3", with_optimizer=True).optimizer["global_step"] == 3


def test_a_trained_checkpoint_has_the_weights_that_the_original_had_after_three_steps():
    bundle, steps = Bundle(GOLDEN / "model_trained3/bert_model.ckpt"), np.load(GOLDEN / "train5.npz")
    names = [name.removeprefix("step3/") for name in steps.files if name.startswith("step3/")]
    assert len(names) > 5
    for name in names:
        np.testing.assert_array_equal(bundle.read(name), steps[f"step3/{name}"])


@pytest.mark.parametrize("name", MODELS)
def test_the_originals_checkpoint_goes_there_and_back_byte_for_byte(tmp_path, name):
    with_optimizer = "global_step" in Bundle(GOLDEN / name / "bert_model.ckpt").names()
    assert with_optimizer == (name == "model_trained3")
    convert(GOLDEN / name, tmp_path / "folder", with_optimizer=with_optimizer)
    convert(tmp_path / "folder", tmp_path / "google/bert_model.ckpt", with_optimizer=with_optimizer)
    for file in ("bert_model.ckpt.data-00000-of-00001", "bert_config.json", "vocab.txt"):
        assert (tmp_path / "google" / file).read_bytes() == (GOLDEN / name / file).read_bytes()


def test_the_originals_outputs_are_reproduced(tmp_path):
    golden = np.load(GOLDEN / "model_forward.npz")
    convert(GOLDEN / "model_plain", tmp_path / "folder")
    inputs = golden["in_input_ids"], golden["in_segment_ids"], golden["in_input_mask"]
    hidden, pooled, words, following = run(load(tmp_path / "folder"), *inputs)
    rows = np.arange(len(words))[:, None]
    at_masks = words[rows, golden["in_masked_lm_positions"]].reshape(-1, words.shape[-1])
    pairs = {
        "embedding_output": hidden[0],
        "pooled_output": pooled,
        "masked_lm_log_probs": log_softmax(at_masks),
        "next_sentence_log_probs": log_softmax(following),
    } | {f"layer_{number}": state for number, state in enumerate(hidden[1:])}
    for name, ours in pairs.items():
        apart = np.abs(ours - golden[f"out_{name}"]).max()
        print(f"{name:28} {apart:.1e}")
        assert apart < 2e-5, name


def test_the_formulas_of_these_tests_are_the_originals():
    golden = np.load(GOLDEN / "model_forward.npz")
    bundle = Bundle(GOLDEN / "model_plain/bert_model.ckpt")
    variables = {name: bundle.read(name) for name in bundle.names()}
    config = json.loads((GOLDEN / "model_plain/bert_config.json").read_text())
    inputs = golden["in_input_ids"], golden["in_segment_ids"], golden["in_input_mask"]
    _, pooled, _, following = forward(variables, config, *inputs)
    np.testing.assert_allclose(pooled, golden["out_pooled_output"], atol=2e-5)
    np.testing.assert_allclose(log_softmax(following), golden["out_next_sentence_log_probs"], atol=2e-5)
