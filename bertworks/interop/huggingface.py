"""Model folders: what Hugging Face calls a BERT, read and written, with no convert step in between.

`config.json` and `model.safetensors` (or several, with an index) under Hugging Face's names, and beside them
`bertworks.json` with what their form has no place for. Which heads a folder has is seen by its tensors. Config and
tensors are checked against each other, and every contradiction is told at once, before anything is allocated.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.config import validate
from bertworks.errors import ConfigError, CorruptFile, UserError
from bertworks.files import atomic_write
from bertworks.interop.module_names import COUNTERS, TIED, modern_name, theirs_of, to_ours, to_theirs
from bertworks.interop.weights import read_sharded, read_weights, write_weights
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
OWN_FILE = "bertworks.json"
RIGHT_TO_LEFT_TYPE = "bertworks-right-to-left"
_MAX_JSON_BYTES = 16 << 20
_PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "model.pt", "model.pth", "pytorch_model.pt")
_ACTIVATIONS = {"gelu_python": "gelu", "gelu_pytorch_tanh": "gelu_new", "gelu_fast": "gelu_new"}  # same functions
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


class ModelFolder(NamedTuple):
    """What a folder holds."""

    net: Bert
    labels: list[str]  # of the classes or tags; empty if there are none
    about: dict[str, Any]  # what bertworks.json says
    unused: list[str]  # tensors that no part of the model reads


def read_folder(folder: Path) -> ModelFolder:
    """Open a BERT folder: build what its tensors say, with its weights as they lie in the file."""
    raw = read_json(folder / CONFIG_FILE)
    about = read_json(folder / OWN_FILE) if (folder / OWN_FILE).exists() else {}
    config = read_config(raw, about, folder / CONFIG_FILE)
    tensors = {modern_name(name): tensor for name, tensor in _read_tensors(folder).items()}
    heads = _heads(raw, about, tensors, folder)
    with torch.device("meta"):  # sizes without memory: the tensors bring it
        net = Bert(config, heads, pooler="bert.pooler.dense.weight" in tensors)
    unused = _check(net, tensors, folder)
    net.load_state_dict(to_ours(net.state_dict(), tensors), assign=True)
    return ModelFolder(net, _labels(raw), about, unused)


def read_json(path: Path) -> dict[str, Any]:
    """Return the object that a JSON file holds."""
    try:
        if path.stat().st_size > _MAX_JSON_BYTES:
            raise UserError(f"{path} has {path.stat().st_size:,} bytes; at most {_MAX_JSON_BYTES:,} are read")
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path.parent} has no {path.name}: not a model folder") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not JSON: {str(error)[:200]}") from error
    if not isinstance(content, dict):
        raise CorruptFile(f"{path} holds a {type(content).__name__}, not an object")
    return content


def read_config(raw: Mapping[str, Any], about: Mapping[str, Any], where: Path) -> BertConfig:
    """Read a config.json; keys of transformers that do not change the encoder are passed over."""
    model_type = raw.get("model_type", "bert")
    if model_type not in ("bert", RIGHT_TO_LEFT_TYPE):
        raise UserError(f"{where}: model_type {str(model_type)[:40]!r} is not a BERT")
    if (kind := raw.get("position_embedding_type") or "absolute") != "absolute":
        raise UserError(f"{where}: position_embedding_type {str(kind)[:40]!r} is not in BERT; only absolute is read")
    values = {name: raw[name] for name in BertConfig.model_fields if name in raw}
    values["hidden_act"] = _ACTIVATIONS.get(str(raw.get("hidden_act")), raw.get("hidden_act", "gelu"))
    values["positions"] = about.get("positions", "learned")
    values["direction"] = "left_to_right" if raw.get("is_decoder") else "both"
    if model_type == RIGHT_TO_LEFT_TYPE:
        values["direction"] = "right_to_left"
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob", "layer_norm_eps", "initializer_range"):
        if type(values.get(name)) is int:
            values[name] = float(values[name])  # JSON writes 0.0 as 0
    return validate(BertConfig, values, str(where))


def _read_tensors(folder: Path) -> dict[str, Tensor]:
    if (folder / WEIGHTS_FILE).exists():
        return read_weights(folder / WEIGHTS_FILE)
    if (folder / INDEX_FILE).exists():
        names = read_json(folder / INDEX_FILE).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise CorruptFile(f"{folder / INDEX_FILE} has no weight_map of names")
        return read_sharded(folder / INDEX_FILE, names)
    for name in _PICKLES:
        if (folder / name).exists():
            raise UserError(
                f"refused: pickle. {folder / name} could run code when it is opened; "
                f"`bertworks convert {folder} NEW --allow-pickle` reads its tensors and nothing else"
            )
    raise UserError(f"{folder} has no {WEIGHTS_FILE}")


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
        heads[_classifier(raw, about, tensors, folder)] = classifier.shape[0] if classifier.ndim else 0
    return heads


def _classifier(raw: Mapping[str, Any], about: Mapping[str, Any], tensors: Mapping[str, Tensor], folder: Path) -> str:
    """Find out what a tensor called classifier is for: the architecture says it, or else the pooler."""
    names = raw.get("architectures") or []
    known = [_CLASSIFIERS[name] for name in names if isinstance(name, str) and name in _CLASSIFIERS]
    if about.get("head") in _CLASSIFIERS.values():
        known.insert(0, about["head"])
    if not known and names:
        raise UserError(f"{folder}: cannot tell what the classifier of {str(names)[:80]} is for")
    if not known:
        return "classify" if "bert.pooler.dense.weight" in tensors else "tag"
    return known[0]


def _check(net: Bert, tensors: Mapping[str, Tensor], folder: Path) -> list[str]:
    """See that the tensors are those of the model, by name and shape; returns the names of others."""
    problems, used = _untied(tensors), {*COUNTERS, *TIED}
    for ours, parameter in net.named_parameters():
        parts = theirs_of(ours)
        used.update(parts)
        wanted = (parameter.shape[0] // len(parts), *parameter.shape[1:])
        for name in parts:
            if name not in tensors:
                problems.append(f"{name} is missing")
            elif tensors[name].shape != wanted:
                problems.append(f"{name} has the shape {tuple(tensors[name].shape)}, and {CONFIG_FILE} wants {wanted}")
            elif not tensors[name].is_floating_point():
                problems.append(f"{name} holds {tensors[name].dtype}, not floating-point numbers")
    unused = sorted(set(tensors) - used)
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


def _labels(raw: Mapping[str, Any]) -> list[str]:
    names = raw.get("id2label")
    if not isinstance(names, dict):
        return []
    try:
        return [str(names[str(number)]) for number in range(len(names))]
    except KeyError:
        return []


def write_folder(
    folder: Path, net: Bert, *, labels: list[str] | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write config, weights and bertworks.json into a folder that is there."""
    heads = tuple(net.heads)
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    tensors = to_theirs(parameters)
    if not heads:
        tensors = {name.removeprefix("bert."): tensor for name, tensor in tensors.items()}
    write_weights(folder / WEIGHTS_FILE, tensors)
    config = config_json(net.config, _ARCHITECTURES.get(heads, "BertModel"), labels or [])
    own = dict(about or {}) | ({"positions": net.config.positions} if net.config.positions != "learned" else {})
    for name, content in ((CONFIG_FILE, config), (OWN_FILE, own)):
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=2)


def config_json(config: BertConfig, architecture: str, labels: list[str]) -> dict[str, Any]:
    """Return a config.json for transformers' AutoModel classes."""
    raw: dict[str, Any] = {"architectures": [architecture], "model_type": "bert"}
    raw |= {name: value for name, value in config if name not in ("direction", "positions")}
    raw |= {"pad_token_id": 0, "tie_word_embeddings": True}
    if config.direction == "left_to_right":
        raw |= {"is_decoder": True, "use_cache": False}
        raw["architectures"] = ["BertLMHeadModel" if architecture == "BertForMaskedLM" else architecture]
    elif config.direction == "right_to_left":
        raw["model_type"] = RIGHT_TO_LEFT_TYPE
    if labels:
        raw["id2label"] = {str(number): label for number, label in enumerate(labels)}
        raw["label2id"] = {label: number for number, label in enumerate(labels)}
    return raw
