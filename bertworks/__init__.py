"""BERT, the whole works: from raw text to a vocabulary, a pre-trained model and fine-tuned ones.

The public names are imported when they are first used, so that `import bertworks` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bertworks.data.prepare import prepare
    from bertworks.errors import UserError
    from bertworks.finetuning.finetune import finetune
    from bertworks.finetuning.glue_suite import glue
    from bertworks.finetuning.search import GridPlan, search
    from bertworks.inference.evaluate import evaluate
    from bertworks.inference.model import Model, load
    from bertworks.inference.predict import predict
    from bertworks.models.convert import convert
    from bertworks.planning.plan import plan
    from bertworks.text.learn import learn_vocabulary
    from bertworks.text.sentences import split_sentences
    from bertworks.text.tokenizer import Tokenizer
    from bertworks.train.pretrain import pretrain

__version__ = "0.1.0"
__all__ = [
    "GridPlan",
    "Model",
    "Tokenizer",
    "UserError",
    "__version__",
    "convert",
    "evaluate",
    "finetune",
    "glue",
    "learn_vocabulary",
    "load",
    "plan",
    "predict",
    "prepare",
    "pretrain",
    "search",
    "split_sentences",
]

_HOMES = {
    "GridPlan": "bertworks.finetuning.search",
    "Model": "bertworks.inference.model",
    "Tokenizer": "bertworks.text.tokenizer",
    "UserError": "bertworks.errors",
    "convert": "bertworks.models.convert",
    "evaluate": "bertworks.inference.evaluate",
    "finetune": "bertworks.finetuning.finetune",
    "glue": "bertworks.finetuning.glue_suite",
    "learn_vocabulary": "bertworks.text.learn",
    "load": "bertworks.inference.model",
    "plan": "bertworks.planning.plan",
    "predict": "bertworks.inference.predict",
    "prepare": "bertworks.data.prepare",
    "pretrain": "bertworks.train.pretrain",
    "search": "bertworks.finetuning.search",
    "split_sentences": "bertworks.text.sentences",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
