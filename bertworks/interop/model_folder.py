"""What the folders of all kinds of models share: what one holds, tensors against a configuration, what is written."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor, nn

from bertworks.config import Settings
from bertworks.files import atomic_write
from bertworks.interop.folder import CONFIG_FILE, OWN_FILE

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
        return [f"id2label in {CONFIG_FILE} names {len(labels)} labels, and the head has {num_labels}"]
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
