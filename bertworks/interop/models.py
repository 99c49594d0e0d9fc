"""Any model folder: a BERT, a GPT-1, an ELMo or one fine-tuned, told by the `model_type` of its config.json."""

from pathlib import Path
from typing import Any

from bertworks.interop.elmo_folder import read_elmo
from bertworks.interop.elmo_task_folder import read_elmo_task
from bertworks.interop.folder import CONFIG_FILE, ELMO_TASK_TYPE, ELMO_TYPE, GPT_TYPE, read_json
from bertworks.interop.gpt_folder import read_gpt
from bertworks.interop.huggingface import read_folder
from bertworks.interop.model_folder import ModelFolder


def read_model(folder: Path) -> ModelFolder[Any]:
    """Open a model folder of any kind by its type; where nothing is said it is taken for a BERT."""
    kind = read_json(folder / CONFIG_FILE).get("model_type")
    if kind == ELMO_TASK_TYPE:
        return read_elmo_task(folder)
    if kind == GPT_TYPE:
        return read_gpt(folder)
    return read_elmo(folder) if kind == ELMO_TYPE else read_folder(folder)
