"""config.json and bertworks.json of each kind of model: read strictly, and written as other libraries expect them.

- A BERT's config.json is that of transformers' `Bert...` classes. Keys that do not change the encoder are ignored; keys
  that would make it another network (rotary positions, other norms, an albert's narrow embeddings) are refused by name.
- A left-to-right BERT says `is_decoder`; a right-to-left one, which transformers does not have, has a type of our own.
- A GPT-1's is `openai-gpt`. ELMo, fine-tuned ELMos, BERTs side by side and taggers on frozen layers have forms of our
  own, because no library has one.
- What that form has no place for (positions, the token that is pooled, which head a `classifier` is) goes into
  bertworks.json.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from bertworks.config import Settings, validate
from bertworks.errors import ConfigError
from bertworks.files import atomic_write
from bertworks.models.folder import (
    BERT_TYPE,
    COMPOUND_TYPE,
    CONFIG_FILE,
    ELMO_TASK_TYPE,
    ELMO_TYPE,
    FEATURES_TYPE,
    GPT_TYPE,
    OWN_FILE,
    RIGHT_TO_LEFT_TYPE,
)
from bertworks.nn.config import BertConfig, CompoundConfig, ElmoConfig, ElmoReaderConfig, FeatureConfig, GptConfig
from bertworks.text.elmo_words import MAX_CHARACTERS, NUM_CHARACTERS

if TYPE_CHECKING:
    from torch import Tensor

CLASSIFIERS = {  # which of our heads the tensor that Hugging Face calls classifier is
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
_GPT_ARCHITECTURES = {("classify",): "OpenAIGPTForSequenceClassification", ("choose",): "OpenAIGPTDoubleHeadsModel"}
_PROBLEM_TYPES = {
    "classify": "single_label_classification",
    "multilabel": "multi_label_classification",
    "regress": "regression",
}
# Settings that go into bertworks.json unless they are these.
_OWN = {"positions": "learned", "segments": "learned", "summary": "first"}
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
_BOTH_ORDERS = "both_orders"  # of a GPT-1 that reads a pair of texts in both orders
_ENCODER_TYPE = "encoder_type"  # what model_type would be without the reader
SPELLING = {"characters": "utf-8 bytes", "max_characters": MAX_CHARACTERS, "num_characters": NUM_CHARACTERS}


class Source(NamedTuple):
    """What a model folder says before a network is made of it."""

    path: Path  # of config.json
    raw: Mapping[str, Any]  # what that says
    about: Mapping[str, Any]  # what bertworks.json says
    tensors: "Mapping[str, Tensor]" = MappingProxyType({})


def known_values(config: type[Settings], raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return those values of a config.json that a configuration knows; a 0 where a fraction belongs is 0.0 in JSON."""
    values = {name: raw[name] for name in config.model_fields if name in raw}
    return {
        name: float(value) if type(value) is int and config.model_fields[name].annotation is float else value
        for name, value in values.items()
    }


def read_bert_config(source: Source) -> BertConfig:
    """Read a BERT's config.json; keys of transformers that do not change the encoder are ignored."""
    raw, about, where = source.raw, source.about, str(source.path)
    problems = _not_bert(raw)
    values = known_values(BertConfig, raw) | {name: about.get(name, usual) for name, usual in _OWN.items()}
    values["hidden_act"] = _ACTIVATIONS.get(str(raw.get("hidden_act")), raw.get("hidden_act", "gelu"))
    values["direction"] = "left_to_right" if raw.get("is_decoder") else "both"
    if raw.get("model_type") == RIGHT_TO_LEFT_TYPE:
        values["direction"] = "right_to_left"
    try:
        config = validate(BertConfig, values, where)
    except ConfigError as error:
        raise ConfigError(where, problems + error.problems) from error
    if problems:
        raise ConfigError(where, problems)
    return config


def _not_bert(raw: Mapping[str, Any]) -> list[str]:
    """Return a line for each setting of another kind of model, or that changes what is computed."""
    problems = []
    if raw.get("model_type", BERT_TYPE) not in (BERT_TYPE, RIGHT_TO_LEFT_TYPE):
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


def read_gpt_config(source: Source) -> tuple[GptConfig, bool]:
    """Read a GPT-1's config.json; returns its sizes, and whether it reads pairs of texts in both orders."""
    config = validate(GptConfig, known_values(GptConfig, source.raw), str(source.path))
    return config, source.raw.get(_BOTH_ORDERS) is True


def read_elmo_config(source: Source) -> ElmoConfig:
    """Read an ELMo's config.json; how words are spelt is stated there, and cannot be chosen."""
    return validate(ElmoConfig, known_values(ElmoConfig, source.raw), str(source.path))


def read_elmo_task_config(source: Source) -> tuple[ElmoConfig, ElmoReaderConfig]:
    """Read a fine-tuned ELMo's config.json: the ELMo's sizes, and under `reader` those of what reads it."""
    config, values = read_elmo_config(source), source.raw.get("reader")
    if not isinstance(values, dict):
        problem = f"reader: {str(values)[:40]!r} is not an object with the sizes of the readers"
        raise ConfigError(str(source.path), [problem])
    return config, validate(ElmoReaderConfig, known_values(ElmoReaderConfig, values), f"{source.path}, reader")


def read_compound_config(source: Source) -> CompoundConfig:
    """Read the config.json of BERTs side by side, which has their sizes as one object each."""
    return validate(CompoundConfig, known_values(CompoundConfig, source.raw), str(source.path))


def read_feature_config(source: Source) -> tuple[BertConfig, FeatureConfig]:
    """Read the config.json of a tagger on frozen layers: its encoder's, with the reader's few settings beside."""
    raw = {**source.raw, "model_type": source.raw.get(_ENCODER_TYPE, BERT_TYPE)}
    config = validate(FeatureConfig, known_values(FeatureConfig, raw), str(source.path))
    return read_bert_config(source._replace(raw=raw)), config


def spelling_problems(raw: Mapping[str, Any]) -> list[str]:
    """Return a line for each way in which a configuration spells words differently from this code."""
    return [
        f"{name}: {str(raw[name])[:40]!r}; words are spelt with {value!r} here"
        for name, value in SPELLING.items()
        if name in raw and raw[name] != value
    ]


def bert_config_json(config: BertConfig, architecture: str) -> dict[str, Any]:
    """Return a config.json for transformers' AutoModel classes."""
    raw: dict[str, Any] = {"architectures": [architecture], "model_type": BERT_TYPE}
    raw |= {name: value for name, value in config if name not in ("direction", *_OWN)}
    raw |= {"pad_token_id": 0, "tie_word_embeddings": True}
    if config.direction == "left_to_right":
        raw |= {"is_decoder": True, "use_cache": False}
        raw["architectures"] = ["BertLMHeadModel" if architecture == "BertForMaskedLM" else architecture]
    elif config.direction == "right_to_left":
        raw["model_type"] = RIGHT_TO_LEFT_TYPE
    return raw


def describe_bert(net: Any, labels: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return a BERT's config.json, given what it says of labels, and its bertworks.json."""
    heads, own = tuple(sorted(net.heads)), dict(about)
    config = bert_config_json(net.config, _ARCHITECTURES.get(heads, "BertModel")) | dict(labels)
    if heads == ("classify",):  # by which transformers chooses the loss
        problem = (about.get("task") or {}).get("kind") or about.get("problem")
        config |= {"problem_type": _PROBLEM_TYPES[problem]} if problem in _PROBLEM_TYPES else {}
    own |= {name: value for name, usual in _OWN.items() if (value := getattr(net.config, name)) != usual}
    for name in CLASSIFIERS.values():
        if name in net.heads:
            own["head"] = name
    return config, own


def describe_features(net: Any, labels: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the two files of a tagger on frozen layers; its type keeps it from being taken for a BERT without head."""
    config = bert_config_json(net.config, "FeatureTagger")
    config |= {_ENCODER_TYPE: config["model_type"], "model_type": FEATURES_TYPE, **dict(net.heads["tag"].config)}
    own = {name: value for name in ("positions", "segments") if (value := getattr(net.config, name)) != _OWN[name]}
    return config | dict(labels), {**about, **own}


def describe_gpt(net: Any, labels: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return a GPT-1's two files; transformers opens it."""
    architecture = _GPT_ARCHITECTURES.get(tuple(sorted(net.heads)), "OpenAIGPTLMHeadModel")
    config: dict[str, Any] = {"architectures": [architecture], "model_type": GPT_TYPE, **dict(net.config)}
    config |= {"tie_word_embeddings": True, **labels}
    if net.both_orders:
        config[_BOTH_ORDERS] = True
    if "choose" in net.heads:
        config |= {"num_labels": 1, "summary_first_dropout": net.config.resid_pdrop}
    return config, dict(about)


def describe_elmo(net: Any, labels: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return an ELMo's two files."""
    return {"model_type": ELMO_TYPE, **SPELLING, **dict(net.config), **labels}, dict(about)


def describe_elmo_task(net: Any, labels: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the two files of a fine-tuned ELMo."""
    config = {"model_type": ELMO_TASK_TYPE, **SPELLING, **dict(net.config), "reader": dict(net.reader)}
    return config | dict(labels), dict(about)


def describe_compound(net: Any, labels: Mapping[str, Any], about: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
    """Return the two files of BERTs side by side."""
    return {"model_type": COMPOUND_TYPE, **net.config.model_dump(mode="json"), **labels}, dict(about)


def labels_of(raw: Mapping[str, Any]) -> list[str]:
    """Return the labels that a config.json names, in order."""
    names = raw.get("id2label")
    if not isinstance(names, dict):
        return []
    try:
        return [str(names[str(number)]) for number in range(len(names))]
    except KeyError:
        return []


def stated_labels(labels: list[str], num_labels: int | None) -> dict[str, Any]:
    """Return the entries of config.json for a head's labels, or for their number if they have no names."""
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


def write_description(folder: Path, config: Mapping[str, Any], about: Mapping[str, Any]) -> None:
    """Write config.json and bertworks.json."""
    for name, content in ((CONFIG_FILE, config), (OWN_FILE, about)):
        with atomic_write(folder / name) as stream:
            json.dump(content, stream, ensure_ascii=False, indent=2)
