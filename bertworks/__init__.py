"""BERT, the whole works: from raw text to a vocabulary, a pre-trained model and fine-tuned ones.

The public names are imported when they are first used, so that `import bertworks` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the same names for type checkers and editors; a test compares them
    from bertworks.data.prepare import prepare as prepare
    from bertworks.errors import UserError as UserError
    from bertworks.finetuning.finetune import finetune as finetune
    from bertworks.finetuning.glue_suite import glue as glue
    from bertworks.finetuning.search import GridPlan as GridPlan
    from bertworks.finetuning.search import search as search
    from bertworks.inference.evaluate import evaluate as evaluate
    from bertworks.inference.model import Model as Model
    from bertworks.inference.model import load as load
    from bertworks.inference.predict import predict as predict
    from bertworks.models.convert import convert as convert
    from bertworks.planning.plan import plan as plan
    from bertworks.reproduction.run import reproduce as reproduce
    from bertworks.serving.run import serve as serve
    from bertworks.text.learn import learn_vocabulary as learn_vocabulary
    from bertworks.text.sentences import split_sentences as split_sentences
    from bertworks.text.tokenizer import Tokenizer as Tokenizer
    from bertworks.train.pretrain import pretrain as pretrain

__version__ = "0.1.0"
_HOMES = {
    "GridPlan": "finetuning.search",
    "Model": "inference.model",
    "Tokenizer": "text.tokenizer",
    "UserError": "errors",
    "convert": "models.convert",
    "evaluate": "inference.evaluate",
    "finetune": "finetuning.finetune",
    "glue": "finetuning.glue_suite",
    "learn_vocabulary": "text.learn",
    "load": "inference.model",
    "plan": "planning.plan",
    "predict": "inference.predict",
    "prepare": "data.prepare",
    "pretrain": "train.pretrain",
    "reproduce": "reproduction.run",
    "search": "finetuning.search",
    "serve": "serving.run",
    "split_sentences": "text.sentences",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'bertworks' has no attribute {name!r}")
    return getattr(import_module(f"bertworks.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
