"""Any model folder: a BERT, a GPT-1, an ELMo or BERTs with something on top, told by `model_type` in config.json."""

import json
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar, cast

import torch
from torch import Tensor, nn

from bertworks.config import Settings, validate
from bertworks.errors import ConfigError, UserError, counted
from bertworks.files import atomic_write
from bertworks.models.find import find_model
from bertworks.models.folder import (
    COMPOUND_TYPE,
    CONFIG_FILE,
    ELMO_TASK_TYPE,
    ELMO_TYPE,
    FEATURES_TYPE,
    GPT_TYPE,
    INDEX_FILE,
    OWN_FILE,
    WEIGHTS_FILE,
    has_safetensors,
    no_weights,
    read_about,
    read_json,
    read_tensors,
)
from bertworks.models.names import (
    COUNTERS,
    EMBEDDING,
    HEADS,
    OUTPUT,
    TIED,
    by_modern_names,
    by_published_names,
    from_openai,
    huggingface_names,
    is_weight,
    to_openai,
)
from bertworks.models.sentence_transformers import find_encoder
from bertworks.models.weights import read_weights, write_weights
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import HEAD, FeatureReader, feature_bert, reader_of
from bertworks.nn.compound import Compound
from bertworks.nn.config import BertConfig, CompoundConfig, ElmoConfig, ElmoReaderConfig, FeatureConfig, GptConfig
from bertworks.nn.elmo import Elmo, ElmoTasks
from bertworks.nn.gpt import Gpt, GptHead
from bertworks.nn.heads import OutputHead
from bertworks.text.elmo_words import MAX_CHARACTERS, NUM_CHARACTERS

# What the folders of all kinds of models share: what one holds, tensors against a configuration, what is written.


_PROBLEM_TYPES = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}
Net = TypeVar("Net", bound=nn.Module)


class ModelFolder(NamedTuple, Generic[Net]):
    """What a folder holds."""

    net: Net
    labels: list[str]  # of the classes or tags; empty if there are none
    about: dict[str, Any]  # what bertworks.json says
    unused: list[str]  # tensors that no part of the model reads


def values_for(config: type[Settings], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of a config.json that a configuration knows; a 0 where a fraction belongs is 0.0 in JSON."""
    values = {name: raw[name] for name in config.model_fields if name in raw}
    return {
        name: float(value) if type(value) is int and config.model_fields[name].annotation is float else value
        for name, value in values.items()
    }


def contradictions(wanted: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> list[str]:
    """Name the tensors that are missing, misshapen or not of numbers that a network computes with."""
    problems = []
    for name, expected in wanted.items():
        if name not in tensors:
            problems.append(f"{name} is missing")
        elif tensors[name].shape != expected.shape:
            shapes = tuple(tensors[name].shape), tuple(expected.shape)
            problems.append(f"{name} has the shape {shapes[0]}, and {CONFIG_FILE} wants {shapes[1]}")
        elif not tensors[name].is_floating_point():
            problems.append(f"{name} holds {tensors[name].dtype}, not floating-point numbers")
    return problems


def labels_of(raw: Mapping[str, Any]) -> list[str]:
    """Return the labels that a config.json names, in order."""
    names = raw.get("id2label")
    if not isinstance(names, dict):
        return []
    try:
        return [str(names[str(number)]) for number in range(len(names))]
    except KeyError:
        return []


def wrong_labels(labels: list[str], num_labels: int | None) -> list[str]:
    """Name the problem of more or fewer labels than a head tells apart, if there is one."""
    if labels and num_labels not in (None, len(labels)):
        return [f"id2label in {CONFIG_FILE} names {counted(len(labels), 'label')}, and the head has {num_labels}"]
    return []


def stated_labels(labels: list[str], num_labels: int | None) -> dict[str, Any]:
    """Return what a config.json says of a head's labels, or of their number where they have no names."""
    if labels:
        return {
            "id2label": {str(number): label for number, label in enumerate(labels)},
            "label2id": {label: number for number, label in enumerate(labels)},
        }
    return {} if num_labels is None else {"num_labels": num_labels}


def stated_problem(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what kind of task a config.json says that its classifier is for, as bertworks.json has it."""
    kinds = {theirs: ours for ours, theirs in _PROBLEM_TYPES.items()}
    kind = kinds.get(str(raw.get("problem_type")))
    return {"problem": kind} if kind else {}


def problem_type(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config.json says of a classifier's task, by which transformers chooses the loss."""
    kind = (about.get("task") or {}).get("kind") or about.get("problem")
    return {"problem_type": _PROBLEM_TYPES[kind]} if kind in _PROBLEM_TYPES else {}


def write_description(folder: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write config.json and bertworks.json."""
    for name, content in ((CONFIG_FILE, config), (OWN_FILE, about)):
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=2)


# Weights in two files, so that what does not learn is written once and not with every checkpoint.
#
#     model.safetensors.index.json       which tensor lies in which file
#     model-00001-of-00002.safetensors   what learns
#     model-00002-of-00002.safetensors   what is frozen: the file of an older folder, if it has the same bits, by a link
#
# It is the form in which Hugging Face divides large models, so all that reads a model folder reads it. A hard link
# is a file like any other: the folder is whole by itself, wherever it is moved and whatever becomes of the older
# one. The bits are compared before, not trusted: an older file that has been damaged is not passed on under a new
# checksum. Where a disk has no links the numbers are written again.


LEARNT_FILE, FROZEN_FILE = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
Put = Callable[[Path, Mapping[str, Tensor]], None]


def put_whole(folder: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a folder's weights into one file."""
    write_weights(folder / WEIGHTS_FILE, tensors)


def put_divided(
    folder: Path, tensors: Mapping[str, Tensor], is_frozen: Callable[[str], bool], before: Path | None
) -> None:
    """Write a folder's weights into two files and an index.

    Args:
        folder: is there.
        tensors: all of them, by their names in the folder.
        is_frozen: tells by its name which does not learn.
        before: a folder that may have the frozen ones.
    """
    frozen = {name: tensor for name, tensor in tensors.items() if is_frozen(name)}
    write_weights(folder / LEARNT_FILE, {name: tensor for name, tensor in tensors.items() if name not in frozen})
    if before is None or not _link(before / FROZEN_FILE, folder / FROZEN_FILE, frozen):
        write_weights(folder / FROZEN_FILE, frozen)
    places = {name: FROZEN_FILE if name in frozen else LEARNT_FILE for name in sorted(tensors)}
    size = sum(tensor.nbytes for tensor in tensors.values())
    with atomic_write(folder / INDEX_FILE) as stream:
        json.dump({"metadata": {"total_size": size}, "weight_map": places}, stream, indent=1)


def _link(source: Path, target: Path, tensors: Mapping[str, Tensor]) -> bool:
    """Link a file that holds these tensors and no others; returns whether it does and could be."""
    try:
        there = read_weights(source)
        if there.keys() != tensors.keys() or not all(_are_same(there[name], tensors[name]) for name in there):
            return False
        os.link(source, target)
    except (UserError, OSError):
        return False
    return True


def _are_same(one: Tensor, other: Tensor) -> bool:
    """Compare bits, for which -0.0 is not 0.0 and a NaN is what it is."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return torch.equal(*(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (one, other)))


# Model folders: what Hugging Face calls a BERT, read and written, with no convert step in between.
#
# `config.json` and `model.safetensors` (or several, with an index) under Hugging Face's names, and beside them
# `bertworks.json` with what their form has no place for. Which heads a folder has is seen by its tensors. Config
# and tensors are checked against each other, and every contradiction is told at once, before anything is allocated.


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


# Folders of GPT-1 (`openai-gpt`) in Hugging Face's form, read and written, with the heads of fine-tuning.
#
# Which heads a folder has is seen by its tensors; the language model is always there, its matrix being the
# embedding.


_BOTH_ORDERS = "both_orders"  # our own word in config.json: pairs are read in both
_ARCHITECTURES_of_gpt_folder = {
    (): "OpenAIGPTLMHeadModel",
    ("classify",): "OpenAIGPTForSequenceClassification",
    ("choose",): "OpenAIGPTDoubleHeadsModel",
}


def read_gpt(folder: Path) -> ModelFolder[Gpt]:
    """Open a GPT-1 folder: build what its tensors say; config and tensors are checked before anything is allocated."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(GptConfig, values_for(GptConfig, raw), str(where))
    tensors = by_published_names(read_tensors(folder, read_weights), folder)
    labels = labels_of(raw) if {HEADS["classify"], HEADS["tag"]} & tensors.keys() else []
    with torch.device("meta"):
        net = Gpt(config, _heads_of_gpt_folder(tensors), both_orders=raw.get(_BOTH_ORDERS) is True)
    wanted = {name: tensor for name, tensor in to_openai(net.state_dict()).items() if is_weight(name)}
    unused = sorted(name for name in tensors if name not in wanted and is_weight(name))
    problems = (
        _untied_of_gpt_folder(tensors)
        + wrong_labels(labels, _num_labels_of_gpt_folder(net))
        + contradictions(wanted, tensors)
    )
    problems += [
        f"{name} is there, and {CONFIG_FILE} has {counted(config.n_layer, 'layer')}"
        for name in unused
        if name.startswith("transformer.h.")
    ]
    if problems:
        raise ConfigError(str(folder), problems)
    net.load_state_dict(from_openai({name: tensors[name] for name in wanted}), assign=True)
    return ModelFolder(net, labels, read_about(folder), unused)


def _heads_of_gpt_folder(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    found = {head: tensors[name] for head, name in HEADS.items() if name in tensors}
    return {head: tensor.shape[0] if tensor.ndim and tensor.numel() else 1 for head, tensor in found.items()}


def _num_labels_of_gpt_folder(net: Gpt) -> int | None:
    heads = [cast(GptHead, net.heads[name]) for name in ("classify", "tag") if name in net.heads]
    return heads[0].num_outputs if heads else None


def _untied_of_gpt_folder(tensors: Mapping[str, Tensor]) -> list[str]:
    if OUTPUT not in tensors or torch.equal(tensors[OUTPUT], tensors[EMBEDDING]):
        return []
    return [f"{OUTPUT} differs from {EMBEDDING}, to which it is tied in GPT-1"]


def write_gpt(
    folder: Path, net: Gpt, *, labels: list[str] | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write config, weights and bertworks.json into a folder that is there; transformers opens it."""
    write_weights(folder / WEIGHTS_FILE, to_openai(net.state_dict()))
    architecture = _ARCHITECTURES_of_gpt_folder.get(tuple(sorted(net.heads)), _ARCHITECTURES_of_gpt_folder[()])
    config: dict[str, Any] = {"architectures": [architecture], "model_type": GPT_TYPE, **dict(net.config)}
    config |= {"tie_word_embeddings": True, **stated_labels(labels or [], _num_labels_of_gpt_folder(net))}
    if net.both_orders:
        config[_BOTH_ORDERS] = True
    if "choose" in net.heads:
        config |= {"num_labels": 1, "summary_first_dropout": net.config.resid_pdrop}
    write_description(folder, config, about or {})


# Folders of ELMo, read and written: a form of our own, for nobody else has one in safetensors.
#
# Weights have the names that they have in `nn/elmo.py`. The word list is beside them (`vocab.txt`, with the rules
# for words in `tokenizer_config.json`). How words are spelt is stated in the configuration, and cannot be chosen.


SPELLING = {"characters": "utf-8 bytes", "max_characters": MAX_CHARACTERS, "num_characters": NUM_CHARACTERS}


def read_elmo(folder: Path) -> ModelFolder[Elmo]:
    """Open an ELMo folder, with or without its softmax, after checking config and tensors against each other."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(ElmoConfig, values_for(ElmoConfig, raw), str(where))
    tensors = read_tensors(folder, read_weights)
    with torch.device("meta"):
        net = Elmo(config, softmax=any(name.startswith("softmax.") for name in tensors))
    wanted = net.state_dict()
    if problems := spelling_problems(raw) + contradictions(wanted, tensors):
        raise ConfigError(str(folder), problems)
    net.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return ModelFolder(net, [], read_about(folder), sorted(set(tensors) - set(wanted)))


def spelling_problems(raw: Mapping[str, Any]) -> list[str]:
    """Name what a configuration says of the spelling of words that is not so here."""
    return [
        f"{name}: {str(raw[name])[:40]!r}; words are spelt with {value!r} here"
        for name, value in SPELLING.items()
        if name in raw and raw[name] != value
    ]


def write_elmo(folder: Path, net: Elmo, *, about: Mapping[str, Any] | None = None) -> None:
    """Write config, weights and bertworks.json into a folder that is there."""
    write_weights(folder / WEIGHTS_FILE, net.state_dict())
    write_description(folder, {"model_type": ELMO_TYPE, **SPELLING, **dict(net.config)}, about or {})


# Folders of fine-tuned ELMos, read and written: a form of our own, as that of ELMo itself.
#
# `config.json` has ELMo's sizes and, under `reader`, those of what stands on it. Weights have the names that they
# have in `nn/elmo_tasks.py`; which heads there are is seen by the tensors. The softmax over words is left out: a
# task guesses no words.


_HEADS = {name: f"heads.{name}.out.bias" for name in ("classify", "choose", "tag", "span")}
_LABELLED = ("classify", "tag")


def read_elmo_task(folder: Path) -> ModelFolder[ElmoTasks]:
    """Open a folder after checking config and tensors against each other."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(ElmoConfig, values_for(ElmoConfig, raw), str(where))
    reader = validate(ElmoReaderConfig, _reader_values(raw, where), f"{where}, reader")
    tensors = read_tensors(folder, read_weights)
    labels = labels_of(raw)
    with torch.device("meta"):
        net = ElmoTasks(config, reader, _heads_of_elmo_task_folder(tensors))
    wanted = net.state_dict()
    problems = (
        spelling_problems(raw)
        + wrong_labels(labels, _num_labels_of_elmo_task_folder(net))
        + contradictions(wanted, tensors)
    )
    if not net.heads:
        problems.append(f"no head is there; one of {', '.join(_HEADS.values())} should be")
    if problems:
        raise ConfigError(str(folder), problems)
    net.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return ModelFolder(net, labels, read_about(folder), sorted(set(tensors) - set(wanted)))


def _reader_values(raw: Mapping[str, Any], where: Path) -> dict[str, Any]:
    values = raw.get("reader")
    if not isinstance(values, dict):
        raise ConfigError(str(where), [f"reader: {str(values)[:40]!r} is not an object with the sizes of the readers"])
    return values_for(ElmoReaderConfig, values)


def _heads_of_elmo_task_folder(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {head: tensors[name].numel() for head, name in _HEADS.items() if name in tensors}


def _num_labels_of_elmo_task_folder(net: ElmoTasks) -> int | None:
    return next((len(net.get_parameter(_HEADS[head])) for head in net.heads if head in _LABELLED), None)


def is_elmos(name: str) -> bool:
    """Tell whether a tensor of a folder is that of the ELMo below the readers."""
    return name.startswith("elmo.")


def write_elmo_task(
    folder: Path,
    net: ElmoTasks,
    *,
    labels: list[str] | None = None,
    about: Mapping[str, Any] | None = None,
    put: Put = put_whole,
) -> None:
    """Write config, weights and bertworks.json into a folder that is there; `put` writes the weights."""
    put(folder, net.state_dict())
    config = {"model_type": ELMO_TASK_TYPE, **SPELLING, **dict(net.config), "reader": dict(net.reader)}
    write_description(folder, config | stated_labels(labels or [], _num_labels_of_elmo_task_folder(net)), about or {})


# Folders of BERTs side by side or under a BiLSTM, read and written: a form of our own, for nobody else has one.
#
# Weights have the names that they have in `nn/compound.py`; the encoders' sizes are in config.json, one object
# each.


_HEADS_of_compound_folder = ("classify", "choose", "tag", "span")


def read_compound(folder: Path) -> ModelFolder[Compound]:
    """Open a folder: build what config and tensors say, after checking them against each other."""
    where = folder / CONFIG_FILE
    raw = read_json(where)
    config = validate(CompoundConfig, values_for(CompoundConfig, raw), str(where))
    tensors, labels = read_tensors(folder, read_weights), labels_of(raw)
    with torch.device("meta"):
        net = Compound(config, _heads_of_compound_folder(tensors))
    wanted = net.state_dict()
    if problems := wrong_labels(labels, _num_labels_of_compound_folder(net)) + contradictions(wanted, tensors):
        raise ConfigError(str(folder), problems)
    net.load_state_dict({name: tensors[name] for name in wanted}, assign=True)
    return ModelFolder(net, labels, read_about(folder), sorted(set(tensors) - set(wanted)))


def _heads_of_compound_folder(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    found = {head: tensors.get(f"heads.{head}.out.weight") for head in _HEADS_of_compound_folder}
    return {head: tensor.shape[0] if tensor.ndim else 1 for head, tensor in found.items() if tensor is not None}


def _num_labels_of_compound_folder(net: Compound) -> int | None:
    heads = [cast(OutputHead, net.heads[name]) for name in ("classify", "tag") if name in net.heads]
    return heads[0].num_outputs if heads else None


def write_compound(
    folder: Path, net: Compound, *, labels: list[str] | None = None, about: Mapping[str, Any] | None = None
) -> None:
    """Write config, weights and bertworks.json into a folder that is there."""
    write_weights(folder / WEIGHTS_FILE, net.state_dict())
    config = {"model_type": COMPOUND_TYPE, **net.config.model_dump(mode="json")}
    write_description(folder, config | stated_labels(labels or [], _num_labels_of_compound_folder(net)), about or {})


# Folders of a tagger on frozen layers: a BERT's own files with a reader's tensors beside, in a form of our own.
#
# `config.json` is the encoder's with the reader's few settings, and a `model_type` that nobody else has, so that it
# is not taken for a BERT whose tag head is missing. The encoder's tensors keep Hugging Face's names; the reader's
# are those of `nn/feature_reader.py` behind `reader.`.


_ENCODER_TYPE = "encoder_type"  # what model_type would be without the reader
_READER, _OUR_READER = "reader.", f"heads.{HEAD}."


def read_features(folder: Path) -> ModelFolder[Bert]:
    """Open a folder; config and tensors are checked against each other before anything is allocated."""
    where = folder / CONFIG_FILE
    raw, about = read_json(where), read_about(folder)
    config = read_config({**raw, "model_type": raw.get(_ENCODER_TYPE, "bert")}, about, where)
    settings = validate(FeatureConfig, values_for(FeatureConfig, raw), str(where))
    tensors, labels = read_tensors(folder, read_weights), labels_of(raw)
    num_outputs = _num_outputs(tensors)
    with torch.device("meta"):
        net = feature_bert(Bert(config, pooler=False), FeatureReader(settings, config, num_outputs))
    wanted = tensors_of(dict(net.named_parameters()))
    unused = sorted(set(tensors) - set(wanted))
    problems = wrong_labels(labels, num_outputs) + contradictions(wanted, tensors)
    problems += [
        f"{name} is there, and {CONFIG_FILE} has features {settings.features}, which do without"
        for name in unused
        if name.startswith(_READER)
    ]
    if problems:
        raise ConfigError(str(folder), problems)
    encoder = to_ours([name for name in net.state_dict() if not name.startswith(_OUR_READER)], tensors)
    reader = {f"{_OUR_READER}{name}": tensor for name, tensor in reader_weights(tensors).items()}
    net.load_state_dict(encoder | reader, assign=True)
    return ModelFolder(net, labels, about, unused)


def _num_outputs(tensors: Mapping[str, Tensor]) -> int:
    weight = tensors.get(f"{_READER}out.weight")
    return weight.shape[0] if weight is not None and weight.ndim and weight.numel() else 1


def reader_weights(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the parameters of the reader alone, by the names that it has for them."""
    return {name.removeprefix(_READER): tensor for name, tensor in tensors.items() if name.startswith(_READER)}


def tensors_of(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's tensors as they are called in a folder, with a reader or without."""
    encoder = {name: tensor for name, tensor in parameters.items() if not name.startswith(_OUR_READER)}
    reader = {name: tensor for name, tensor in parameters.items() if name.startswith(_OUR_READER)}
    return to_theirs(encoder) | {_READER + name.removeprefix(_OUR_READER): reader[name] for name in reader}


def is_encoders(name: str) -> bool:
    """Tell whether a tensor of a folder is the frozen encoder's."""
    return not name.startswith(_READER)


def write_features(
    folder: Path, net: Bert, *, labels: list[str], about: Mapping[str, Any], put: Put = put_whole
) -> None:
    """Write config, weights and bertworks.json into a folder that is there; `put` writes the weights."""
    reader = reader_of(net)
    assert reader is not None, "without a reader it is a plain BERT"
    put(folder, tensors_of({name: tensor.detach() for name, tensor in net.named_parameters()}))
    config = config_json(net.config, "FeatureTagger")
    config |= {_ENCODER_TYPE: config["model_type"], "model_type": FEATURES_TYPE, **dict(reader.config)}
    config |= stated_labels(labels, len(reader.out.weight))
    own = dict(about)
    if net.config.positions != "learned":
        own["positions"] = net.config.positions
    write_description(folder, config, own)


_KINDS = {
    GPT_TYPE: "gpt",
    ELMO_TYPE: "elmo",
    ELMO_TASK_TYPE: "elmo-task",
    COMPOUND_TYPE: "compound",
    FEATURES_TYPE: "features",
}
_READERS: dict[str, Callable[[Path], ModelFolder[Any]]] = {
    "bert": read_folder,
    "gpt": read_gpt,
    "elmo": read_elmo,
    "elmo-task": read_elmo_task,
    "compound": read_compound,
    "features": read_features,
}


def kind_of_model(folder: Path) -> str:
    """Return which kind of model a folder holds; where nothing is said it is taken for a BERT."""
    return _KINDS.get(str(read_json(folder / CONFIG_FILE).get("model_type")), "bert")


def check_model(source: str | os.PathLike[str]) -> None:
    """Refuse a name that leads to no model, by what costs no time: before data is read."""
    folder = find_encoder(find_model(source))
    kind_of_model(folder)
    if not has_safetensors(folder):
        raise UserError(no_weights(folder))


def read_model(folder: Path) -> ModelFolder[Any]:
    """Open a model folder of any kind."""
    return _READERS[kind_of_model(folder)](folder)
