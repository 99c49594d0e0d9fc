"""A small fine-tuned ELMo with random weights, for tests."""

from small_models import scattered

from bertworks.nn.attention import pack
from bertworks.nn.config import ElmoConfig, ElmoReaderConfig
from bertworks.nn.elmo import ElmoTasks
from bertworks.text.elmo_words import SpelledTokenizer, WordTokenizer

LIST = ["<S>", "</S>", "<UNK>", "the", "cat"]
SIZES = {"vocab_size": len(LIST), "num_filters": (3, 4, 5), "char_embedding_size": 6, "projection_size": 8,
         "cell_size": 12}  # fmt: skip
PAIRS = [("the cat sat", "a zebra"), ("a", "the cat ran far away from it"), ("cat", ""), ("one, two", "two, one")]
TEXTS = [first for first, _ in PAIRS]


def small_net(heads, *, pairs, **changes):
    """A network and what numbers its words."""
    reader = ElmoReaderConfig(**{"pairs": pairs, "num_cells": 5, "hidden_size": 7, **changes})
    net, tokenizer = scattered(ElmoTasks(ElmoConfig(**SIZES), reader, heads)), SpelledTokenizer(WordTokenizer(LIST))
    net.read_words(tokenizer.met)
    return net, tokenizer


def tokens_of(tokenizer, texts, pairs=None):
    encodings = list(tokenizer.encode_batch(texts, pairs))
    return pack([one.ids for one in encodings], [one.segment_ids for one in encodings])
