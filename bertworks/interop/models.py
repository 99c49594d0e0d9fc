"""Any model folder: a BERT, a GPT-1, an ELMo or BERTs with something on top, told by `model_type` in config.json."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bertworks.errors import UserError
from bertworks.interop.compound_folder import read_compound
from bertworks.interop.elmo_folder import read_elmo
from bertworks.interop.elmo_task_folder import read_elmo_task
from bertworks.interop.feature_folder import read_features
from bertworks.interop.folder import (
    COMPOUND_TYPE,
    CONFIG_FILE,
    ELMO_TASK_TYPE,
    ELMO_TYPE,
    FEATURES_TYPE,
    GPT_TYPE,
    has_safetensors,
    no_weights,
    read_json,
)
from bertworks.interop.gpt_folder import read_gpt
from bertworks.interop.huggingface import read_folder
from bertworks.interop.locate import find_model
from bertworks.interop.model_folder import ModelFolder
from bertworks.interop.sentence_folders import find_encoder

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
