"""BERT's forward pass from Google's variables by Google's names, in float64, as the original code computes it.

Also folders of the original's form with weights that show a swapped or transposed matrix: none is near zero, none
symmetric, none like another.
"""

import json

import numpy as np

from bertworks.models.tf_bundle import write_bundle
from bertworks.text.vocabulary import SPECIAL_TOKENS

SIZES = {
    "vocab_size": 40,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 16,
    "type_vocab_size": 2,
}
CONFIG = SIZES | {
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02,
}


def variable_shapes(config):
    """Every variable of the original's pre-training graph, written out from its code."""
    width, inner = config["hidden_size"], config["intermediate_size"]
    shapes = {
        "bert/embeddings/word_embeddings": (config["vocab_size"], width),
        "bert/embeddings/token_type_embeddings": (config["type_vocab_size"], width),
        "bert/embeddings/position_embeddings": (config["max_position_embeddings"], width),
        "cls/predictions/output_bias": (config["vocab_size"],),
        "cls/seq_relationship/output_weights": (2, width),
        "cls/seq_relationship/output_bias": (2,),
    }
    dense = {"bert/pooler/dense": (width, width), "cls/predictions/transform/dense": (width, width)}
    norms = ["bert/embeddings", "cls/predictions/transform"]
    for layer in (f"bert/encoder/layer_{number}" for number in range(config["num_hidden_layers"])):
        dense |= {f"{layer}/attention/self/{part}": (width, width) for part in ("query", "key", "value")}
        dense |= {f"{layer}/attention/output/dense": (width, width), f"{layer}/intermediate/dense": (width, inner)}
        dense |= {f"{layer}/output/dense": (inner, width)}
        norms += [f"{layer}/attention/output", f"{layer}/output"]
    for name, shape in dense.items():
        shapes |= {f"{name}/kernel": shape, f"{name}/bias": shape[1:]}
    for name in norms:
        shapes |= {f"{name}/LayerNorm/{kind}": (width,) for kind in ("beta", "gamma")}
    return shapes


def random_variables(config=CONFIG, seed=0, *, with_optimizer=False):
    random = np.random.default_rng(seed)
    made = {name: random.normal(0, 0.4, shape) for name, shape in variable_shapes(config).items()}
    if with_optimizer:
        for name in list(made):
            made |= {f"{name}/{slot}": random.normal(0, 0.1, made[name].shape) for slot in ("adam_m", "adam_v")}
    made = {name: value.astype(np.float32) for name, value in made.items()}
    return made | ({"global_step": np.array(1_000_003, np.int64)} if with_optimizer else {})


def pieces(size=SIZES["vocab_size"], *, cased=False):
    words = [f"{'W' if cased else 'w'}ord{number}" for number in range(size - len(SPECIAL_TOKENS))]
    return [*SPECIAL_TOKENS, *words]


def write_folder(folder, variables, config=CONFIG, vocabulary=None):
    """A folder as Google's archives have it."""
    folder.mkdir(parents=True, exist_ok=True)
    write_bundle(folder / "bert_model.ckpt", variables)
    (folder / "bert_config.json").write_text(json.dumps(config))
    (folder / "vocab.txt").write_text("\n".join(vocabulary or pieces()) + "\n")
    return folder


def forward(variables, config, token_ids, segment_ids, mask):
    """The last layer, the pooled output, the words' logits at every position and the next sentence's logits."""
    v = {name: value.astype(np.float64) for name, value in variables.items()}
    num_heads, width = config["num_attention_heads"], config["hidden_size"]

    def dense(x, name):
        return x @ v[f"{name}/kernel"] + v[f"{name}/bias"]

    def norm(x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * v[f"{name}/LayerNorm/gamma"] + v[f"{name}/LayerNorm/beta"]

    def gelu(x):
        return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    def heads(x):
        return x.reshape(*x.shape[:2], num_heads, width // num_heads).swapaxes(1, 2)

    table = v["bert/embeddings/word_embeddings"]
    x = table[token_ids] + v["bert/embeddings/token_type_embeddings"][segment_ids]
    x = norm(x + v["bert/embeddings/position_embeddings"][: token_ids.shape[1]], "bert/embeddings")
    for layer in (f"bert/encoder/layer_{number}" for number in range(config["num_hidden_layers"])):
        query, key, value = (heads(dense(x, f"{layer}/attention/self/{part}")) for part in ("query", "key", "value"))
        scores = query @ key.swapaxes(2, 3) / np.sqrt(width // num_heads) - 10_000 * (1 - mask[:, None, None])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        context = (shares / shares.sum(-1, keepdims=True) @ value).swapaxes(1, 2).reshape(x.shape)
        x = norm(x + dense(context, f"{layer}/attention/output/dense"), f"{layer}/attention/output")
        x = norm(x + dense(gelu(dense(x, f"{layer}/intermediate/dense")), f"{layer}/output/dense"), f"{layer}/output")
    pooled = np.tanh(dense(x[:, 0], "bert/pooler/dense"))
    words = norm(gelu(dense(x, "cls/predictions/transform/dense")), "cls/predictions/transform")
    words = words @ table.T + v["cls/predictions/output_bias"]
    following = pooled @ v["cls/seq_relationship/output_weights"].T + v["cls/seq_relationship/output_bias"]
    return x, pooled, words, following
