"""Any model folder, told by the `model_type` of its config.json: a BERT, its layers' tagger, a GPT-1 or an ELMo."""

from pathlib import Path
from typing import Any

from bertworks.interop.elmo_folder import read_elmo
from bertworks.interop.feature_folder import read_features
from bertworks.interop.folder import CONFIG_FILE, ELMO_TYPE, FEATURES_TYPE, GPT_TYPE, read_json
from bertworks.interop.gpt_folder import read_gpt
from bertworks.interop.huggingface import read_folder
from bertworks.interop.model_folder import ModelFolder


def read_model(folder: Path) -> ModelFolder[Any]:
    """Open a model folder, whose network is a Bert, a Gpt or an Elmo; where nothing is said it is taken for a BERT."""
    kind = read_json(folder / CONFIG_FILE).get("model_type")
    if kind == GPT_TYPE:
        return read_gpt(folder)
    if kind == FEATURES_TYPE:
        return read_features(folder)
    return read_elmo(folder) if kind == ELMO_TYPE else read_folder(folder)
