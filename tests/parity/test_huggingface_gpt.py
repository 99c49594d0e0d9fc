"""GPT-1's folders against transformers: the same numbers from the same files, whoever wrote them (N7)."""

import json
import math
import os

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.errors import ConfigError, CorruptFile, UserError
from bertworks.models.folder import num_positions
from bertworks.models.kinds import read_model, write_model
from bertworks.nn.attention import pack
from bertworks.nn.config import GptConfig
from bertworks.nn.gpt import Gpt
from bertworks.text.gpt import GptTokenizer

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

LETTERS = "acdehmnorst"
MERGES = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("s", "a"), ("sa", "t</w>")]
PIECES = ["<unk>", *LETTERS, *(letter + "</w>" for letter in LETTERS + ".,"), *map("".join, MERGES), "_classify_"]
IDS = [[1, 5, 9, 2], [3], [20, 21, 22, 8, 8, 8, 30]]
TEXTS = ["the cat sat.", "the dot, the dot", "cat"]
HEADS = {
    "lm": ("OpenAIGPTLMHeadModel", {}),
    "classify": ("OpenAIGPTForSequenceClassification", {"classify": 3}),
    "choose": ("OpenAIGPTDoubleHeadsModel", {"choose": 1}),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def config(**changes):
    sizes = {"vocab_size": len(PIECES), "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
    return GptConfig(**(sizes | changes))


def scattered(model, seed=0):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return model.eval()


def their_model(architecture="OpenAIGPTLMHeadModel", num_labels=1, **changes):
    theirs = getattr(transformers, architecture)
    return scattered(theirs(transformers.OpenAIGPTConfig(**config(**changes).model_dump(), num_labels=num_labels)))


def write_ours(folder, heads=None, *, labels=None, about=None, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    net = scattered(Gpt(config(**changes), heads))
    write_model(folder, net, labels=labels, about=about)
    GptTokenizer(PIECES, MERGES).save(folder, max_length=num_positions(folder))
    return net


@torch.no_grad()
def assert_same(net, model):
    """Compare the scores of every piece, or of the classes or choices."""
    net.eval()
    tokens = pack(IDS)
    hidden = net(tokens)
    rows = [model(torch.tensor([ids])) for ids in IDS]
    if "classify" in net.heads:
        found, expected = net.heads["classify"](net.pooled(hidden, tokens.packing)), torch.cat([r.logits for r in rows])
    else:
        found, expected = net.lm_logits(hidden), torch.cat([row.logits[0] for row in rows])
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    if "choose" in net.heads:
        same_length = torch.tensor([[IDS[0], IDS[0][::-1]]])
        places = torch.full((1, 2), len(IDS[0]) - 1)
        theirs = model(same_length, mc_token_ids=places).mc_logits[0].softmax(0)
        tokens = pack(same_length[0].tolist())
        ours = net.heads["choose"](net.pooled(net(tokens), tokens.packing))[:, 0].softmax(0)
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("changes", [{}, {"n_layer": 5, "n_head": 1, "afn": "relu"}, {"layer_norm_epsilon": 1e-2}])
def test_their_folder_gives_their_numbers_here(tmp_path, head, changes):
    architecture, heads = HEADS[head]
    model = their_model(architecture, num_labels=heads.get("classify", 1), **changes)
    model.save_pretrained(tmp_path)
    opened = read_model(tmp_path)
    assert set(opened.net.heads) == set(heads)
    assert opened.unused == []
    assert_same(opened.net, model)


@pytest.mark.parametrize("head", HEADS)
def test_transformers_opens_what_we_write_and_it_comes_back_exactly(tmp_path, head):
    architecture, heads = HEADS[head]
    net = write_ours(tmp_path / "ours", heads)
    model, info = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert_same(net, model.eval())
    model.save_pretrained(tmp_path / "theirs")
    back = dict(read_model(tmp_path / "theirs").net.named_parameters())
    assert set(back) == {name for name, _ in net.named_parameters()}
    assert all(torch.equal(value, back[name]) for name, value in net.named_parameters())


@pytest.mark.parametrize(
    ("auto", "heads"),
    [("AutoModel", {}), ("AutoModelForCausalLM", {}), ("AutoModelForSequenceClassification", {"classify": 3})],
)
def test_their_auto_classes_open_our_folders(tmp_path, auto, heads):
    net = write_ours(tmp_path, heads)
    model = getattr(transformers, auto).from_pretrained(tmp_path).eval()
    if auto == "AutoModel":
        with torch.no_grad():
            torch.testing.assert_close(
                model(torch.tensor([IDS[2]])).last_hidden_state[0], net(pack(IDS[2:])), atol=1e-5, rtol=1e-5
            )
    else:
        assert_same(net, model)


@torch.no_grad()
def test_what_we_save_guesses_and_scores_there_as_here(tmp_path):
    write_ours(tmp_path)
    ours, model = bw.load(tmp_path, device="cpu"), transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    losses, count = [], 0
    for text in TEXTS:
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        assert ids[0].tolist() == ours.encode([text])[0].ids
        best = model(ids).logits[0, -1].softmax(-1).topk(4)
        guesses = ours.next_words(text, 4)
        assert [guess["id"] for guess in guesses] == best.indices.tolist()
        np.testing.assert_allclose([guess["score"] for guess in guesses], best.values, atol=1e-5)
        if ids.shape[1] > 1:
            losses.append(model(ids, labels=ids).loss.item() * (ids.shape[1] - 1))
            count += ids.shape[1] - 1
    assert ours.perplexity(TEXTS) == pytest.approx(math.exp(math.fsum(losses) / count), rel=1e-5)


@torch.no_grad()
def test_features_are_their_hidden_states(tmp_path):
    write_ours(tmp_path)
    model = transformers.AutoModel.from_pretrained(tmp_path).eval()
    for features in bw.load(tmp_path, device="cpu").features(TEXTS):
        ids = torch.tensor([features.encoding.ids])
        expected = torch.stack(model(ids, output_hidden_states=True).hidden_states)[:, 0]
        np.testing.assert_allclose(features.hidden, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("heads", [{}, {"classify": 4}, {"choose": 1}, {"classify": 2, "choose": 1}])
def test_save_load_save_gives_the_same_bytes(tmp_path, heads):
    labels = ["w", "x", "y", "z"] if heads == {"classify": 4} else None
    write_ours(tmp_path / "first", heads, labels=labels, about={"steps": 3}, resid_pdrop=0.0)
    first = bw.load(tmp_path / "first", device="cpu")
    assert (first.labels, first.about, first.net.config) == (labels or [], {"steps": 3}, config(resid_pdrop=0.0))
    first.save(tmp_path / "second")
    contents = [
        {path.name: path.read_bytes() for path in (tmp_path / name).iterdir() if path.name != "manifest.json"}
        for name in ("first", "second")
    ]
    assert contents[0] == contents[1]


def test_labels_travel_both_ways(tmp_path):
    write_ours(tmp_path / "ours", {"classify": 3}, labels=["no", "perhaps", "yes"])
    model = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "ours")
    assert model.config.id2label == {0: "no", 1: "perhaps", 2: "yes"}
    model.save_pretrained(tmp_path / "theirs")
    assert read_model(tmp_path / "theirs").labels == ["no", "perhaps", "yes"]


def rewritten(folder, change):
    tensors = {name: tensor.clone() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def first_form(tensors):
    """As the first published files are: without prefix, with masks and positions as if they were weights."""
    bare = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    masks = {f"h.{layer}.attn.bias": torch.ones(1, 1, 24, 24) for layer in range(2)}
    return bare | masks | {"position_ids": torch.arange(24)}


def with_output_matrix(tensors):
    return tensors | {"lm_head.weight": tensors["transformer.tokens_embed.weight"].clone()}


def output_matrix_alone(tensors):
    return tensors | {"lm_head.weight": tensors.pop("transformer.tokens_embed.weight")}


@pytest.mark.parametrize("change", [first_form, with_output_matrix, output_matrix_alone])
def test_older_forms_of_files_give_the_same_numbers(tmp_path, change):
    model = their_model()
    model.save_pretrained(tmp_path)
    opened = read_model(rewritten(tmp_path, change))
    assert opened.unused == []
    assert_same(opened.net, model)


def change_config(folder, **changes):
    raw = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(raw))


LAYER = "transformer.h.1."
CONTRADICTIONS = {
    "a missing tensor": ({LAYER + "ln_1.bias": None}, {}, [LAYER + "ln_1.bias is missing"]),
    "a wrong shape": (
        {LAYER + "mlp.c_fc.weight": torch.ones(128, 32), "score.weight": torch.ones(3, 33)},
        {},
        ["mlp.c_fc.weight has the shape (128, 32), and config.json wants (32, 128)", "score.weight has the shape"],
    ),
    "whole numbers": ({LAYER + "ln_2.bias": torch.ones(32, dtype=torch.int64)}, {}, ["holds torch.int64"]),
    "a scalar": ({"score.weight": torch.tensor(1.0)}, {}, ["score.weight has the shape ()"]),
    "fewer layers": ({}, {"n_layer": 1}, [LAYER + "ln_1.bias is there, and config.json has 1 layer"]),
    "another vocabulary": ({}, {"vocab_size": 99}, ["tokens_embed.weight has the shape", "(99, 32)"]),
    "other labels": ({}, {"id2label": {"0": "x"}}, ["names 1 label, and the head has 3"]),
    "an untied output": ({"lm_head.weight": torch.ones(len(PIECES), 32)}, {}, ["lm_head.weight differs from"]),
    "wrong sizes": ({}, {"n_head": 5, "afn": "swish", "n_embd": "x"}, ["afn", "n_embd"]),
    "far too large": ({}, {"n_embd": 10**12, "n_layer": 10**12, "vocab_size": -1}, ["n_embd", "n_layer", "vocab_size"]),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_weights_and_config_that_contradict_each_other_are_named(tmp_path, kind):
    """S6."""
    write_ours(tmp_path, {"classify": 3})
    tensors, changes, words = CONTRADICTIONS[kind]
    rewritten(tmp_path, lambda old: {name: t for name, t in (old | tensors).items() if t is not None})
    change_config(tmp_path, **changes)
    with pytest.raises(ConfigError) as caught:
        bw.load(tmp_path)
    assert all(word in str(caught.value) for word in words)


def test_tensors_that_gpt_does_not_have_are_named_and_two_of_a_name_refused(tmp_path):
    write_ours(tmp_path)
    rewritten(tmp_path, lambda tensors: tensors | {"adapter.weight": torch.ones(2)})
    assert read_model(tmp_path).unused == ["transformer.adapter.weight"]
    rewritten(tmp_path, lambda tensors: tensors | {"h.0.ln_1.bias": torch.ones(32)})
    with pytest.raises(CorruptFile, match="the same tensor under two names"):
        read_model(tmp_path)


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path):
    write_ours(tmp_path)
    GptTokenizer([*PIECES, "zz"], MERGES).save(tmp_path)
    with pytest.raises(UserError, match=rf"vocabulary has {len(PIECES) + 1} pieces and its model {len(PIECES)}"):
        bw.load(tmp_path)


def test_a_pickled_folder_is_converted(bertworks, tmp_path):
    """S1: as GPT-1 was published; nothing in the pickle is run."""
    folder = tmp_path / "pickled"
    write_ours(folder)
    tensors = first_form(load_file(folder / "model.safetensors"))
    torch.save(tensors | {"lm_head.weight": tensors["tokens_embed.weight"]}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(UserError, match="refused: pickle"):
        bw.load(folder)
    code, _, err = bertworks("convert", folder, tmp_path / "safe", "--allow-pickle")
    next_line = f"next: bertworks inspect {tmp_path / 'safe'}  (what it is and what it can do)\n"
    assert (code, err) == (0, next_line)
    assert set(load_file(tmp_path / "safe/model.safetensors")) == set(tensors)
    model = bw.load(tmp_path / "safe", device="cpu")
    assert torch.equal(model.net.token.weight, tensors["tokens_embed.weight"])
    assert model.tokenizer.merges == MERGES
    code, _, err = bertworks("convert", folder, tmp_path / "cased", "--allow-pickle", "--cased")
    assert code == 2
    assert "for a BERT's vocabulary" in err
    assert not (tmp_path / "cased").exists()
