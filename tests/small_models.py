"""Small model folders with random weights and a vocabulary of some words, for tests: a BERT, a GPT-1, an ELMo."""

import torch

from bertworks.models.kinds import write_model
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig, ElmoConfig, GptConfig
from bertworks.nn.elmo import Elmo
from bertworks.nn.gpt import Gpt
from bertworks.text.elmo_words import WordTokenizer
from bertworks.text.gpt import GptTokenizer
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
    write_model(folder, net, labels=labels, about=about)
    Tokenizer(PIECES).save(folder)
    return folder


LETTERS = "abcdefghijklmnopqrstuvwxyz"
MERGES = [("t", "h"), ("th", "e</w>"), ("c", "a"), ("ca", "t</w>"), ("d", "o"), ("do", "g</w>")]
GPT_PIECES = ["<unk>", *LETTERS, *(letter + "</w>" for letter in LETTERS + ".,!"), *map("".join, MERGES)]
ELMO_WORDS = ["<S>", "</S>", "<UNK>", "the", "cat", "dog", "sat", "ran", "far", "away", ".", ","]


def scattered(net, std=0.3):
    """Random weights large enough that a mistake shows."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0.0, std, generator=generator)
    return net.eval()


def write_small_gpt(folder, heads=None, *, labels=None, about=None, **changes):
    sizes = {"vocab_size": len(GPT_PIECES), "n_positions": 20, "n_embd": 16, "n_layer": 3, "n_head": 2}
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, scattered(Gpt(GptConfig(**(sizes | changes)), heads)), labels=labels, about=about)
    GptTokenizer(GPT_PIECES, MERGES).save(folder)
    return folder


def write_small_elmo(folder, *, softmax=True, about=None, std=0.3, **changes):
    sizes = {"vocab_size": len(ELMO_WORDS), "num_filters": (3, 4, 5), "char_embedding_size": 6, "projection_size": 8,
             "cell_size": 12, "num_negatives": 5}  # fmt: skip
    folder.mkdir(parents=True, exist_ok=True)
    write_model(folder, scattered(Elmo(ElmoConfig(**(sizes | changes)), softmax=softmax), std), about=about)
    WordTokenizer(ELMO_WORDS).save(folder)
    return folder
