"""Feature-based training: how much faster the second epoch is than the first, which computes the features.

A BERT with random weights reads made-up documents once; a BiLSTM tagger learns on the cached layers through the same
loop as always. Given are the seconds of the first epoch (features of train and dev, training, evaluation), of the
second (training and evaluation), their ratio, and what the BiLSTM leaves of it: the same ratio for the features alone,
computed and then read from the cache as training reads them. The BiLSTM of the paper, 768 cells in each direction, has
23.6 million weights that a word is multiplied with three times in training, a base encoder 85 million, once: with it
the ratio cannot be more than about 1.2 x pieces per word + 1 on any machine. `--cells` says how many cells.

    python benchmarks/features.py [--encoder 12x768x12] [--cells 768 128] [--documents 24]
"""

import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import parser, report

from bertworks.interop.huggingface import write_folder
from bertworks.nn.bert import Bert
from bertworks.nn.config import preset
from bertworks.nn.layers import initialise
from bertworks.tasks.task import TRAIN, open_dataset
from bertworks.tasks.registry import find_task
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS
from bertworks.train.loop import Place
from bertworks.train.view import unseen
from bertworks.tuning import finetune as tuning

_SYLLABLES = ("ba", "do", "ki", "lu", "me", "no", "ra", "si", "te", "vu")
_TAGS = ("O", "O", "O", "O", "B-PER", "B-LOC", "B-ORG", "B-MISC")


def write_model(folder: Path, size: str) -> Path:
    pieces = [*SPECIAL_TOKENS, *_SYLLABLES, *(f"##{one}" for one in _SYLLABLES), "."]
    net = Bert(preset(size, vocab_size=len(pieces)), {})
    initialise(net, 0.02, 0)
    folder.mkdir()
    write_folder(folder, net)
    Tokenizer(pieces).save(folder)
    return folder
