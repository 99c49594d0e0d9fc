"""Model folders: what Hugging Face calls a BERT, read and written, with no convert step in between.

`config.json` and `model.safetensors` (or several, with an index) under Hugging Face's names, and beside them
`bertworks.json` with what their form has no place for. Which heads a folder has is seen by its tensors. Config and
tensors are checked against each other, and every contradiction is told at once, before anything is allocated.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from bertworks.config import validate
from bertworks.errors import ConfigError, UserError
from bertworks.interop.about import read_about
from bertworks.interop.folder import CONFIG_FILE, WEIGHTS_FILE, read_json, read_tensors
from bertworks.interop.model_folder import (
    ModelFolder,
    contradictions,
    labels_of,
    problem_type,
    stated_labels,
    stated_problem,
    values_for,
    write_description,
    wrong_labels,
)
from bertworks.interop.names import COUNTERS, TIED, by_modern_names, huggingface_names
from bertworks.interop.weights import read_weights, write_weights
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.nn.heads import OutputHead

RIGHT_TO_LEFT_TYPE = "bertworks-right-to-left"
_OWN = {"positions": "learned", "summary": "first"}  # settings that their form has no place for, and what it means
_ACTIVATIONS = {"gelu_python": "gelu"} | dict.fromkeys(  # other names of the same functions
    ("gelu_accurate", "gelu_fast", "gelu_python_tanh", "gelu_pytorch_tanh"), "gelu_new"
)
# Settings of other networks that some call BERT, and the values with which they are BERT's.
_FOREIGN: dict[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": ({},),
    "quantization_config": (),
    "compression_config": (),
    "rope_scaling": (),
    "rope_theta": (),
    "rope_parameters": (),
    "rotary_emb_fraction": (0, 0.0),
    "feed_forward_type": ("original",),
    "mlp_fc1_bias": (True,),
    "mlp_fc2_bias": (True,),
    "qkv_proj_bias": (True,),
    "prenorm": (False,),
    "use_rms_norm": (False,),
    "attn_norm_layer_type": ("layer_norm",),
}
_CLASSIFIERS = {
    "BertForSequenceClassification": "classify",
    "BertForTokenClassification": "tag",
    "BertForMultipleChoice": "choose",
}
_ARCHITECTURES = {
    ("mlm", "nsp"): "BertForPreTraining",
    ("mlm",): "BertForMaskedLM",
    ("nsp",): "BertForNextSentencePrediction",
    ("classify",): "BertForSequenceClassification",
    ("tag",): "BertForTokenClassification",
    ("choose",): "BertForMultipleChoice",
    ("span",): "BertForQuestionAnswering",
}


def read_folder(folder: Path) -> ModelFolder[Bert]:
    """Open a BERT folder: build what its tensors say, with its weights as they lie in the file."""
    raw = read_json(folder / CONFIG_FILE)
    about = read_about(folder)
    about |= {} if "task" in about else stated_problem(raw)
    config = read_config(raw, about, folder / CONFIG_FILE)
    tensors = by_modern_names(read_tensors(folder, read_weights), folder)
    heads, labels = _heads(raw, about, tensors, folder), labels_of(raw)
    with torch.device("meta"):  # sizes without memory: the tensors bring it
        net = Bert(config, heads, pooler="bert.pooler.dense.weight" in tensors)
    unused = _check(net, tensors, labels, folder)
    net.load_state_dict(to_ours(net.state_dict(), tensors), assign=True)
    return ModelFolder(net, labels, about, unused)


def read_config(raw: Mapping[str, Any], about: Mapping[str, Any], where: Path) -> BertConfig:
    """Read a config.json; keys of transformers that do not change the encoder are passed over."""
    problems = _not_bert(raw)
    values = values_for(BertConfig, raw)
    values["hidden_act"] = _ACTIVATIONS.get(str(raw.get("hidden_act")), raw.get("hidden_act", "gelu"))
    for name, usual in _OWN.items():
        values[name] = about.get(name, usual)
    values["direction"] = "left_to_right" if raw.get("is_decoder") else "both"
    if raw.get("model_type") == RIGHT_TO_LEFT_TYPE:
        values["direction"] = "right_to_left"
    try:
        config = validate(BertConfig, values, str(where))
    except ConfigError as error:
        raise ConfigError(str(where), problems + error.problems) from error
    if problems:
        raise ConfigError(str(where), problems)
    return config


def _not_bert(raw: Mapping[str, Any]) -> list[str]:
    """Name what no size could make right: another kind of model, or settings that change what is computed."""
    problems = []
    if raw.get("model_type", "bert") not in ("bert", RIGHT_TO_LEFT_TYPE):
        problems.append(f"model_type: {str(raw['model_type'])[:40]!r} is not a BERT")
    for name, known in _FOREIGN.items():
        if (value := raw.get(name)) is not None and value not in known:
            only = f"; only {str(known[0]).lower()} is read" if known and known[0] != {} else "; it is not read here"
            problems.append(f"{name}: {str(value)[:40]!r} is not in BERT{only}")
    width = raw.get("hidden_size", BertConfig.model_fields["hidden_size"].default)
    if raw.get("embedding_size", width) not in (None, width):
        problems.append(
            f"embedding_size: {str(raw['embedding_size'])[:40]!r} differs from hidden_size {str(width)[:40]}; in BERT "
            "they are one"
        )
    if not isinstance(names := raw.get("architectures") or [], list):
        problems.append(f"architectures: {str(names)[:40]!r} is not a list of names")
    if not isinstance(raw.get("is_decoder", False), bool):
        problems.append(f"is_decoder: {str(raw['is_decoder'])[:40]!r} is neither true nor false")
    dropout = raw.get("classifier_dropout")
    if dropout is not None and (type(dropout) not in (int, float) or not 0 <= dropout < 1):
        problems.append(f"classifier_dropout: {str(dropout)[:40]!r} is not a number from 0 to below 1")
    return problems


def to_ours(names: Iterable[str], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our parameters of these names, made of their tensors; a single one is not copied."""
    ours = {}
    for name in names:
        parts = [tensors[part] for part in huggingface_names(name)]
        ours[name] = parts[0] if len(parts) == 1 else torch.cat(parts)
    return ours


def to_theirs(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors under Hugging Face's names, with the prefix that all but a bare encoder have."""
    theirs: dict[str, Tensor] = {}
    for name, parameter in parameters.items():
        parts = huggingface_names(name)
        theirs |= dict(zip(parts, parameter.chunk(len(parts)), strict=True))
    return theirs


def _heads(
    raw: Mapping[str, Any], about: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path
) -> dict[str, int]:
    heads = {}
    if "cls.predictions.transform.dense.weight" in tensors:
        heads["mlm"] = 0
    if "cls.seq_relationship.weight" in tensors:
        heads["nsp"] = 2
    if "qa_outputs.weight" in tensors:
        heads["span"] = 2
    classifier = tensors.get("classifier.weight")
    if classifier is not None:
        heads[_classifier(raw, about, tensors, folder)] = (
            classifier.shape[0] if classifier.ndim and classifier.numel() else 1
        )
    return heads


def _classifier(raw: Mapping[str, Any], about: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> str:
    """Find out what a tensor called classifier is for: the architecture says it, or else the pooler."""
    names = raw.get("architectures") or []
    known = [_CLASSIFIERS[name] for name in names if isinstance(name, str) and name in _CLASSIFIERS]
    if about.get("head"):
        known.insert(0, about["head"])
    if not known and names:
        raise UserError(f"{folder}: cannot tell what the classifier of {str(names)[:80]} is for")
    if not known:
        return "classify" if "bert.pooler.dense.weight" in tensors else "tag"
    return known[0]


def _check(net: Bert, tensors: Mapping[str, Tensor], labels: list[str], folder: Path) -> list[str]:
    """See that the tensors are those of the model, by name and shape; returns the names of others."""
    wanted = to_theirs(dict(net.named_parameters()))
    problems = _untied(tensors) + wrong_labels(labels, _num_labels(net)) + contradictions(wanted, tensors)
    unused = sorted(set(tensors) - {*COUNTERS, *TIED, *wanted})
    layers = [name for name in unused if name.startswith("bert.encoder.layer.")]
    problems += [f"{name} is there, and {CONFIG_FILE} has {len(net.blocks)} plain layers" for name in layers]
    if problems:
        raise ConfigError(str(folder), problems)
    return unused


def _untied(tensors: Mapping[str, Tensor]) -> list[str]:
    """Name tensors that should repeat another one and do not: the MLM head here has no matrix of its own."""
    return [
        f"{name} differs from {original}, to which it is tied in BERT"
        for name, original in TIED.items()
        if name in tensors and original in tensors and not torch.equal(tensors[name], tensors[original])
    ]


def _num_labels(net: Bert) -> int | None:
    """Return how many classes or tags a model tells apart."""
    head = next((net.heads[name] for name in ("classify", "tag") if name in net.heads), None)
    return cast(OutputHead, head).out.weight.shape[0] if head is not None else None


def write_folder(
    folder: Path, net: Bert, *, labels: list[str] | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write config, weights and bertworks.json into a folder that is there."""
    heads = tuple(sorted(net.heads))
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    tensors = to_theirs(parameters)
    if not heads:
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    write_weights(folder / WEIGHTS_FILE, tensors)
    config = config_json(net.config, _ARCHITECTURES.get(heads, "BertModel"))
    config |= stated_labels(labels or [], _num_labels(net))
    config |= problem_type(about or {}) if heads == ("classify",) else {}
    write_description(folder, config, _own(net, about or {}))


def _own(net: Bert, about: Mapping[str, Any]) -> dict[str, Any]:
    own = dict(about)
    own |= {name: value for name, usual in _OWN.items() if (value := getattr(net.config, name)) != usual}
    for name in _CLASSIFIERS.values():
        if name in net.heads:
            own["head"] = name
    return own


def config_json(config: BertConfig, architecture: str) -> dict[str, Any]:
    """Return a config.json for transformers' AutoModel classes."""
    raw: dict[str, Any] = {"architectures": [architecture], "model_type": "bert"}
    raw |= {name: value for name, value in config if name not in ("direction", *_OWN)}
    raw |= {"pad_token_id": 0, "tie_word_embeddings": True}
    if config.direction == "left_to_right":
        raw |= {"is_decoder": True, "use_cache": False}
        raw["architectures"] = ["BertLMHeadModel" if architecture == "BertForMaskedLM" else architecture]
    elif config.direction == "right_to_left":
        raw["model_type"] = RIGHT_TO_LEFT_TYPE
    return raw
