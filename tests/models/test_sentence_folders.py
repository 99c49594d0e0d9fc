"""Folders of sentence-transformers, in the forms that versions 5 and 6 write, against a plain computation."""

import json

import numpy as np
import pytest
from small_models import PIECES, write_small_model

import bertworks as bw
from bertworks.errors import UserError
from bertworks.models.convert import convert
from bertworks.models.weights import write_arrays
from bertworks.text.tokenizer import Tokenizer

TEXTS = ["the cat sat", "a", "", "The BIG cat ran far away, far away!"]
WIDTH = 16
OLD, NEW = "sentence_transformers.models.", "sentence_transformers.base.modules."  # before 5.2, and since
RANDOM = np.random.default_rng(0)
MATRIX, SHIFT = (RANDOM.normal(size=shape).astype(np.float32) for shape in ((5, WIDTH), (5,)))
SCALE, OFFSET = (RANDOM.normal(size=WIDTH).astype(np.float32) for _ in range(2))


def unit(x):
    return x / np.linalg.norm(x)


def weighted(rows):
    weights = np.arange(1, len(rows) + 1)[:, None]
    return (rows * weights).sum(0) / weights.sum()


def layer_norm(x):
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * SCALE + OFFSET


def dense(folder, activation="torch.nn.modules.activation.Tanh", bias=True):
    config = {"in_features": WIDTH, "out_features": 5, "bias": bias, "activation_function": activation}
    write_module(folder, config, {"linear.weight": MATRIX, **({"linear.bias": SHIFT} if bias else {})})


def norm(folder):
    write_module(folder, {"dimension": WIDTH}, {"norm.weight": SCALE, "norm.bias": OFFSET})


def write_module(folder, config, arrays=None):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    if arrays:
        write_arrays(folder / "model.safetensors", arrays)


def write_sentence_folder(
    folder, pooling, *later, types=OLD, sentence=None, own=None, limit=None, encoder="", cased=False
):
    """Write a folder; `later` are pairs of a module's kind and what writes it."""
    write_small_model(folder / encoder, {})
    if cased:
        Tokenizer(PIECES, lowercase=False).save(folder / encoder)
    path = folder / encoder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | ({"model_max_length": limit} if limit else {})))
    for name, content in (("sentence_bert_config.json", sentence), ("config_sentence_transformers.json", own)):
        if content is not None:
            root = folder / encoder if name.startswith("sentence_bert") else folder
            (root / name).write_text(json.dumps(content))
    kinds = ["Transformer", "Pooling", *(kind for kind, _ in later)]
    paths = [encoder, *(f"{number}_{kind}" for number, kind in enumerate(kinds) if number)]
    if types == OLD:
        names = [OLD + kind for kind in kinds]
    else:
        names = [f"{NEW}{kind.lower()}.{kind}" for kind in kinds]
    modules = [{"idx": n, "name": str(n), "path": path, "type": name}
               for n, (path, name) in enumerate(zip(paths, names, strict=True))]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(modules))
    write_module(folder / "1_Pooling", pooling)
    for path, (_, write) in zip(paths[2:], later, strict=True):
        if write:
            write(folder / path)
    return folder


def old(*modes):
    """The pooling as versions before 5.2 write it."""
    keys = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens", "weightedmean_tokens", "lasttoken")
    return {"word_embedding_dimension": WIDTH, **{f"pooling_mode_{key}": key in modes for key in keys},
            "include_prompt": True}  # fmt: skip


def new(mode):
    return {"embedding_dimension": WIDTH, "pooling_mode": mode, "include_prompt": True}


NEW_SENTENCE = {
    "transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
    "modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}},
}  # fmt: skip
PROMPTS = {"query": "far away ", "document": ""}
# The folder, what is made of a text's rows of the last layer, what stands before a text, and the most tokens.
FORMS = {
    "mean": ([old("mean_tokens")], {}, lambda rows: rows.mean(0), "", 20),
    "cls": ([old("cls_token")], {}, lambda rows: rows[0], "", 20),
    "max": ([new("max")], {"types": NEW}, lambda rows: rows.max(0), "", 20),
    "mean-sqrt": ([old("mean_sqrt_len_tokens")], {}, lambda rows: rows.sum(0) / np.sqrt(len(rows)), "", 20),
    "weightedmean": ([new("weightedmean")], {"types": NEW}, weighted, "", 20),
    "lasttoken": ([new("lasttoken")], {"types": NEW}, lambda rows: rows[-1], "", 20),
    "two-modes-by-keys": ([old("cls_token", "mean_tokens")], {}, lambda rows: np.append(rows[0], rows.mean(0)), "", 20),
    "two-modes-in-a-list": (
        [new(["mean", "cls"])], {"types": NEW}, lambda rows: np.append(rows.mean(0), rows[0]), "", 20
    ),
    "normalize": ([new("mean"), ("Normalize", None)], {"types": NEW}, lambda rows: unit(rows.mean(0)), "", 20),
    "dense": (
        [old("mean_tokens"), ("Dense", dense), ("Normalize", None)], {},
        lambda rows: unit(np.tanh(MATRIX @ rows.mean(0) + SHIFT)), "", 20,
    ),
    "dense-plain": (
        [new("cls"), ("Dense", lambda folder: dense(folder, "torch.nn.modules.linear.Identity", bias=False))],
        {"types": NEW}, lambda rows: MATRIX @ rows[0], "", 20,
    ),
    "layer-norm": ([old("mean_tokens"), ("LayerNorm", norm)], {}, lambda rows: layer_norm(rows.mean(0)), "", 20),
    "dropout": (
        [old("mean_tokens"), ("Dropout", lambda folder: write_module(folder, {"dropout": 0.2}))], {},
        lambda rows: rows.mean(0), "", 20,
    ),
    "limit-of-version-5": (
        [old("mean_tokens")], {"sentence": {"max_seq_length": 7, "do_lower_case": False}, "limit": 11},
        lambda rows: rows.mean(0), "", 7,
    ),
    "limit-of-version-6": (
        [new("mean")], {"types": NEW, "sentence": NEW_SENTENCE, "limit": 7}, lambda rows: rows.mean(0), "", 7
    ),
    "no-limit": ([new("mean")], {"types": NEW, "limit": int(1e30)}, lambda rows: rows.mean(0), "", 20),
    "prompts": ([new("mean")], {"own": {"prompts": PROMPTS}}, lambda rows: rows.mean(0), "", 20),
    "default-prompt": (
        [new("mean")], {"own": {"prompts": PROMPTS, "default_prompt_name": "query"}},
        lambda rows: rows.mean(0), "far away ", 20,
    ),
    "prompt-not-pooled": (
        [new("weightedmean") | {"include_prompt": False}],
        {"own": {"prompts": PROMPTS, "default_prompt_name": "query"}},
        lambda rows: (rows * np.arange(1, len(rows) + 1)[:, None])[3:].sum(0) / np.arange(4, len(rows) + 1).sum(),
        "far away ", 20,
    ),
    "truncated": (
        [new("mean"), ("Normalize", None)], {"own": {"truncate_dim": 5}}, lambda rows: unit(rows.mean(0))[:5], "", 20
    ),
    "a-folder-for-the-bert": (
        [new("mean")], {"encoder": "0_Transformer", "sentence": {"max_seq_length": 7}},
        lambda rows: rows.mean(0), "", 7,
    ),
    "lower-cased": (
        [new("mean")], {"cased": True, "sentence": {"max_seq_length": 9, "do_lower_case": True}},
        lambda rows: rows.mean(0), "", 9,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return bw.load(write_small_model(tmp_path_factory.mktemp("plain"), {}), device="cpu")


@pytest.mark.parametrize("form", FORMS)
def test_vectors_are_as_the_folder_says_and_stay_so_when_it_is_saved(plain, tmp_path, form):
    (pooling, *later), options, expected_of, before, limit = FORMS[form]
    model = bw.load(write_sentence_folder(tmp_path / "there", pooling, *later, **options), device="cpu")
    assert model.max_length == limit
    vectors = model.embed(TEXTS, truncate=True)
    for vector, text in zip(vectors, TEXTS, strict=True):
        ids = plain.tokenizer.encode(before + text, max_length=limit).ids
        (found,) = plain.features([plain.tokenizer.decode(ids)], layers=[-1])
        assert found.encoding.ids == ids
        np.testing.assert_allclose(vector, expected_of(found.hidden[0]), atol=2e-6)
    model.save(tmp_path / "saved")
    again = bw.load(tmp_path / "saved", device="cpu")
    np.testing.assert_array_equal(again.embed(TEXTS, truncate=True), vectors)
    assert again.max_length == limit
    assert again.pooling.as_json() | {"max_length": None} == model.pooling.as_json() | {"max_length": None}


def test_prompts_are_asked_for_by_name(plain, tmp_path):
    own = {"prompts": PROMPTS, "default_prompt_name": "query"}
    model = bw.load(write_sentence_folder(tmp_path, new("mean"), own=own), device="cpu")
    for prompt, before in (("query", "far away "), ("document", ""), ("", ""), (None, "far away ")):
        expected = plain.embed([before + text for text in TEXTS])
        np.testing.assert_allclose(model.embed(TEXTS, prompt=prompt), expected, atol=1e-6)
    with pytest.raises(UserError, match=r"no prompt 'qurey'.*its prompts: query, document"):
        model.embed(TEXTS, prompt="qurey")


def test_other_layers_or_another_pooling_leave_the_folders_own_layers_out(plain, tmp_path):
    folder = write_sentence_folder(
        tmp_path, new("mean"), ("Dense", dense), ("Normalize", None), own={"truncate_dim": 3}
    )
    model = bw.load(folder, device="cpu")
    assert model.embed(TEXTS).shape == (4, 3)
    np.testing.assert_array_equal(model.embed(TEXTS, pooling="cls", normalize=False), plain.embed(TEXTS, pooling="cls"))
    np.testing.assert_array_equal(model.embed(TEXTS, layers=[0], normalize=False), plain.embed(TEXTS, layers=[0]))


def test_a_converted_folder_keeps_its_layers_and_prompts(tmp_path):
    own = {"prompts": PROMPTS, "default_prompt_name": "query", "truncate_dim": 3}
    folder = write_sentence_folder(tmp_path / "a", new("mean"), ("Dense", dense), own=own, limit=7)
    assert not convert(folder, tmp_path / "b", dtype="float32").left_out
    vectors = [bw.load(tmp_path / name, device="cpu").embed(TEXTS, truncate=True) for name in "ab"]
    np.testing.assert_array_equal(*vectors)


@pytest.mark.parametrize(
    ("pooling", "later", "options", "words"),
    [
        (new("sum"), [], {}, "pooling 'sum' is not read here"),
        (new([]), [], {}, "no pooling_mode is named"),
        ({"pooling_mode_eos_token": True}, [], {}, "'pooling_mode_eos_token' is not read here"),
        (new("mean"), [("CNN", None)], {}, "a module 'CNN', number 3 of 3, is not read here"),
        (new("mean"), [("Pooling", None)], {}, "a module 'Pooling', number 3 of 3"),
        (new("mean"), [("Normalize", None)], {"types": "mine."}, "code of its own"),
        (new("mean"), [("Normalize", lambda folder: write_module(folder, {"module_input_name": "token_embeddings"}))],
         {}, "module_input_name 'token_embeddings'"),
        (new("mean"), [("Dense", lambda folder: dense(folder, "torch.nn.modules.activation.GELU"))], {}, "GELU"),
        (new(["cls", "mean"]), [("Dense", dense)], {}, "a Dense takes 16 numbers and is given 32"),
        (new("mean"), [("Dense", lambda folder: write_module(folder, {}))], {}, "no model.safetensors"),
        (new("mean"), [("Dense", lambda folder: write_module(folder, {}, {"linear.weight": SHIFT}))], {},
         "no linear.weight of the right shape"),
        (new("mean"), [("Dense", lambda folder: write_module(folder, {}, {"linear.weight": MATRIX}))], {}, "missing"),
        (new("mean"), [], {"sentence": {"transformer_task": "fill-mask"}}, "transformer_task 'fill-mask'"),
        (new("mean"), [], {"sentence": {"processing_kwargs": {"text": {"max_length": 3}}}}, "processing_kwargs is not"),
        (new("mean"), [], {"sentence": {"max_seq_length": "9"}}, "max_seq_length '9'"),
        (new("mean"), [], {"sentence": {"do_lower_case": "yes"}}, "do_lower_case is 'yes'"),
        (new("mean"), [], {"own": {"default_prompt_name": "query"}}, "default_prompt_name 'query' is not among"),
        (new("mean"), [], {"own": {"prompts": ["query"]}}, "prompts is not an object of texts"),
        (new("mean"), [], {"own": {"truncate_dim": "5"}}, "truncate_dim '5'"),
    ],
)  # fmt: skip
def test_what_is_not_computed_here_is_refused_by_name(tmp_path, pooling, later, options, words):
    options = dict(options)
    own_code = options.pop("types", OLD) == "mine."
    folder = write_sentence_folder(tmp_path, pooling, *later, **options)
    if own_code:
        path = folder / "modules.json"
        path.write_text(path.read_text().replace(OLD, "mine."))
    with pytest.raises(UserError, match=words):
        bw.load(folder, device="cpu")
