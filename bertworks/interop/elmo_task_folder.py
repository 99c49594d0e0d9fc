"""Folders of fine-tuned ELMos, read and written: a form of our own, as that of ELMo itself.

`config.json` has ELMo's sizes and, under `reader`, those of what stands on it. Weights have the names that they have in
`nn/elmo_tasks.py`; which heads there are is seen by the tensors. The softmax over words is left out: a task guesses no
words.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.config import validate
from bertworks.errors import ConfigError
from bertworks.interop.about import read_about
from bertworks.interop.divided_weights import Put, put_whole
from bertworks.interop.elmo_folder import SPELLING, spelling_problems
from bertworks.interop.folder import CONFIG_FILE, ELMO_TASK_TYPE, read_json, read_tensors
from bertworks.interop.model_folder import (
    ModelFolder,
    contradictions,
    labels_of,
    stated_labels,
    values_for,
    write_description,
    wrong_labels,
)
from bertworks.interop.weights import read_weights
from bertworks.nn.baseline_config import ElmoConfig, ElmoReaderConfig
from bertworks.nn.elmo_tasks import ElmoTasks

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
        net = ElmoTasks(config, reader, _heads(tensors))
    wanted = net.state_dict()
    problems = spelling_problems(raw) + wrong_labels(labels, _num_labels(net)) + contradictions(wanted, tensors)
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


def _heads(tensors: Mapping[str, Tensor]) -> dict[str, int]:
    return {head: tensors[name].numel() for head, name in _HEADS.items() if name in tensors}


def _num_labels(net: ElmoTasks) -> int | None:
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
    write_description(folder, config | stated_labels(labels or [], _num_labels(net)), about or {})
