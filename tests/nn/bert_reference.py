"""BERT in float64 NumPy, written from the paper and the original code's rules, one sequence at a time.

Weights are looked up under our names; nothing else of the package is used.
"""

import math

import numpy as np

ERF = np.vectorize(math.erf, otypes=[float])


def weights_of(net):
    return {name: parameter.detach().double().numpy() for name, parameter in net.named_parameters()}


def linear(w, name, x):
    return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]


def layer_norm(w, name, x, eps):
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * w[f"{name}.weight"] + w[f"{name}.bias"]


def activation(x, name):
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu_new":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + ERF(x / math.sqrt(2)))


def softmax(x):
    raised = np.exp(x - x.max(-1, keepdims=True, initial=-np.inf))
    return raised / raised.sum(-1, keepdims=True)


def visible(length, direction):
    """Which token (row) may look at which (column)."""
    place = np.arange(length)
    if direction == "left_to_right":
        return place[None, :] <= place[:, None]
    if direction == "right_to_left":
        return place[None, :] >= place[:, None]
    return np.ones((length, length), bool)


def attention(w, config, layer, x):
    """Attention of one block: its output [L, D] before the output matrix, and the weights [N, L, L]."""
    length, width = x.shape
    heads = linear(w, f"blocks.{layer}.qkv", x).reshape(length, 3, config.num_attention_heads, config.head_width)
    q, k, v = (heads[:, part].transpose(1, 0, 2) for part in range(3))
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    probabilities = softmax(np.where(visible(length, config.direction), scores, -np.inf))
    return (probabilities @ v).transpose(1, 0, 2).reshape(length, width), probabilities


def block(w, config, layer, x):
    name = f"blocks.{layer}"
    attended, _ = attention(w, config, layer, x)
    x = layer_norm(w, f"{name}.attention_norm", x + linear(w, f"{name}.attention_out", attended), config.layer_norm_eps)
    inner = activation(linear(w, f"{name}.up", x), config.hidden_act)
    return layer_norm(w, f"{name}.norm", x + linear(w, f"{name}.down", inner), config.layer_norm_eps)


def embeddings(w, config, ids, segment_ids):
    summed = (
        w["embeddings.token.weight"][ids]
        + w["embeddings.segment.weight"][segment_ids]
        + w["embeddings.position.weight"][: len(ids)]
    )
    return layer_norm(w, "embeddings.norm", summed, config.layer_norm_eps)


def hidden_states(w, config, ids, segment_ids):
    """The embeddings and the output of every layer, [layers + 1, L, D]."""
    states = [embeddings(w, config, ids, segment_ids)]
    for layer in range(config.num_hidden_layers):
        states.append(block(w, config, layer, states[-1]))
    return np.stack(states)


def pooled(w, first_token):
    return np.tanh(linear(w, "pooler", first_token))


def mlm_logits(w, config, rows):
    inner = activation(linear(w, "heads.mlm.dense", rows), config.hidden_act)
    inner = layer_norm(w, "heads.mlm.norm", inner, config.layer_norm_eps)
    return inner @ w["embeddings.token.weight"].T + w["heads.mlm.bias"]
