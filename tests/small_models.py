"""A small model folder with random weights and a vocabulary of some words, for tests."""

import torch

from bertworks.interop.huggingface import write_folder
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

WORDS = (
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "ran",
    "on",
    "mat",
    "far",
    "away",
    "big",
    "small",
    "##s",
    "##er",
    ".",
    ",",
    "!",
)
PIECES = [*SPECIAL_TOKENS, *WORDS]


def write_small_model(folder, heads=None, *, labels=None, about=None, **changes):
    sizes = {"vocab_size": len(PIECES), "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2,
             "intermediate_size": 24, "max_position_embeddings": 20}  # fmt: skip
    net = Bert(BertConfig(**(sizes | changes)), {"mlm": 0, "nsp": 2} if heads is None else heads)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in net.named_parameters():
        values = torch.randn(parameter.shape, generator=generator) * 0.3
        parameter.data.copy_(values + 1 if "norm.weight" in name else values)
    folder.mkdir(parents=True, exist_ok=True)
    write_folder(folder, net, labels=labels, about=about)
    Tokenizer(PIECES).save(folder)
    return folder
