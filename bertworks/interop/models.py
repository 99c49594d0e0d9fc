"""Any model folder: a BERT, a GPT-1 or an ELMo, told by the `model_type` of its config.json."""

from pathlib import Path
from typing import Any

from bertworks.interop.elmo_folder import read_elmo
from bertworks.interop.folder import CONFIG_FILE, ELMO_TYPE, GPT_TYPE, read_json
from bertworks.interop.gpt_folder import read_gpt
from bertworks.interop.huggingface import read_folder
from bertworks.interop.model_folder import ModelFolder


def read_model(folder: Path) -> ModelFolder[Any]:
    """Open a model folder, whose network is a Bert, a Gpt or an Elmo; where nothing is said it is taken for a BERT."""
    kind = read_json(folder / CONFIG_FILE).get("model_type")
    if kind == GPT_TYPE:
        return read_gpt(folder)
    return read_elmo(folder) if kind == ELMO_TYPE else read_folder(folder)
