"""BERT, the whole works: from raw text to a vocabulary, a pre-trained model and fine-tuned ones.

The public names are imported when they are first used, so that `import bertworks` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertworks.errors import UserError
    from bertworks.inference.language_models import LanguageModel
    from bertworks.inference.loading import load
    from bertworks.inference.measuring import evaluate
    from bertworks.inference.model import Model
    from bertworks.inference.prediction_files import predict
    from bertworks.inference.task_model import TaskModel
    from bertworks.interop.convert import convert
    from bertworks.plan.run import plan
    from bertworks.text.sentences import split_sentences
    from bertworks.text.tokenizer import Tokenizer
    from bertworks.train.pretrain import pretrain
    from bertworks.tuning.finetune import finetune
    from bertworks.tuning.glue import finetune_glue
    from bertworks.tuning.grid import GridPlan, finetune_grid

__version__ = "0.1.0"
__all__ = [
    "GridPlan",
    "LanguageModel",
    "Model",
    "TaskModel",
    "Tokenizer",
    "UserError",
    "__version__",
    "convert",
    "evaluate",
    "finetune",
    "finetune_glue",
    "finetune_grid",
    "load",
    "plan",
    "predict",
    "pretrain",
    "split_sentences",
]

_HOMES = {
    "GridPlan": "bertworks.tuning.grid",
    "LanguageModel": "bertworks.inference.language_models",
    "Model": "bertworks.inference.model",
    "TaskModel": "bertworks.inference.task_model",
    "Tokenizer": "bertworks.text.tokenizer",
    "UserError": "bertworks.errors",
    "convert": "bertworks.interop.convert",
    "evaluate": "bertworks.inference.measuring",
    "finetune": "bertworks.tuning.finetune",
    "finetune_glue": "bertworks.tuning.glue",
    "finetune_grid": "bertworks.tuning.grid",
    "load": "bertworks.inference.loading",
    "plan": "bertworks.plan.run",
    "predict": "bertworks.inference.prediction_files",
    "pretrain": "bertworks.train.pretrain",
    "split_sentences": "bertworks.text.sentences",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
