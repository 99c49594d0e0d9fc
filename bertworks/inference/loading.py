"""`bw.load`: a model folder of any kind becomes a model to use, on a device."""

import os

import torch

from bertworks.errors import UserError
from bertworks.inference.language_models import LanguageModel
from bertworks.inference.model import Model
from bertworks.inference.task_model import TaskModel
from bertworks.interop.locate import find_model
from bertworks.interop.models import read_model
from bertworks.interop.sentence_folders import find_encoder, read_pooling
from bertworks.nn.bert import Bert
from bertworks.nn.compound import Compound
from bertworks.nn.devices import find_device
from bertworks.nn.elmo import Elmo
from bertworks.nn.elmo_tasks import ElmoTasks
from bertworks.nn.gpt import Gpt
from bertworks.nn.tiles import check_tiles
from bertworks.text.gpt_bpe import GptTokenizer
from bertworks.text.spelt_words import SpeltTokenizer
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.words import WordTokenizer

AnyModel = Model | LanguageModel | TaskModel
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_TOKENIZERS: dict[type, type[Tokenizer] | type[GptTokenizer] | type[WordTokenizer] | type[SpeltTokenizer]] = {
    Bert: Tokenizer,
    Gpt: GptTokenizer,
    Elmo: WordTokenizer,
    ElmoTasks: SpeltTokenizer,
    Compound: Tokenizer,
}


def load(source: str | os.PathLike[str], *, device: str = "auto", dtype: str = "float32") -> AnyModel:
    """Open a model: a folder in Hugging Face's form, a run folder, a shipped model, or one in Hugging Face's cache.

    A BERT is a `Model`; a GPT-1 or an ELMo is a `LanguageModel`, unless it was fine-tuned: then it is a `TaskModel`.
    """
    place = find_device(device)
    if dtype not in _DTYPES:
        raise UserError(f"no number type is called {str(dtype)[:40]!r}; choose {', '.join(_DTYPES)}")
    root = find_model(source)
    folder = find_encoder(root)
    opened = read_model(folder)
    if isinstance(opened.net, Elmo | ElmoTasks) and dtype != "float32":
        raise UserError(f"an ELMo is computed in float32, not in {dtype}")
    tokenizer = _TOKENIZERS[type(opened.net)].from_folder(folder)
    if len(tokenizer) > opened.net.config.vocab_size:
        raise UserError(
            f"{folder}: its vocabulary has {len(tokenizer):,} pieces and its model {opened.net.config.vocab_size:,}"
        )
    check_tiles(place, _DTYPES[dtype])
    opened.net.to(place, _DTYPES[dtype])
    if isinstance(opened.net, Compound | ElmoTasks) or (isinstance(opened.net, Gpt) and "task" in opened.about):
        return TaskModel(opened, tokenizer, place)
    if isinstance(tokenizer, Tokenizer):
        return Model(opened, tokenizer, read_pooling(root), place)
    assert not isinstance(tokenizer, SpeltTokenizer), "its model is of a task"
    return LanguageModel(opened, tokenizer, place)
