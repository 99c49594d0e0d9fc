"""Prepared data and recipes small enough that a run of forty steps takes a second."""

import json
import os
import random
import signal
import time
from pathlib import Path

import torch
from sweeps import IS_FULL

from bertworks.config import validate
from bertworks.data.prepare import prepare
from bertworks.data.shards import Dataset
from bertworks.recipe import Recipe
from bertworks.text.corpus import Corpus
from bertworks.text.elmo_words import SPECIAL_WORDS, WordTokenizer
from bertworks.text.gpt import END_OF_WORD, UNK, GptTokenizer
from bertworks.text.normalize import Rules
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS
from bertworks.train.pretrain import Pretraining
from bertworks.train.trainer import Trainer

WORDS = [f"word{number}" for number in range(40)]
LETTERS = [chr(0x430 + number) for number in range(40)]  # words that GPT-1's tokenizer need not merge


def tokenizer_of(kind):
    """A tokenizer to which every word of the documents is one token."""
    if kind == "gpt":
        return GptTokenizer([UNK, *(word + END_OF_WORD for word in (".", *LETTERS))], [], Rules(False, False, False))
    if kind == "elmo":
        return WordTokenizer([*SPECIAL_WORDS, ".", *WORDS])
    return Tokenizer([*SPECIAL_TOKENS, ".", *WORDS])


def write_data(folder, kind="bert", *, holdout=0.2):
    """Documents in which a word is mostly followed by the next one, so that there is something to learn."""
    words = LETTERS if kind == "gpt" else WORDS
    rng = random.Random(0)
    documents = []
    for _ in range(60):
        place, lines = rng.randrange(40), []
        for _ in range(rng.randint(4, 9)):
            sentence = []
            for _ in range(rng.randint(4, 12)):
                place = (place + 1) % 40 if rng.random() < 0.9 else rng.randrange(40)
                sentence.append(words[place])
            lines.append(" ".join(sentence) + ".")
        documents.append("\n".join(lines))
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text("\n\n".join(documents) + "\n", encoding="utf-8")
    prepare(Corpus([folder / "text.txt"]), tokenizer_of(kind), folder / "data", holdout=holdout, workers=1)
    return folder / "data"


def trainer_of(recipe, data, device="cpu"):
    """A network in its place, and all that trains it."""
    return Trainer(Pretraining(recipe, Dataset(data)), recipe, Path("run"), torch.device(device))


def recipe(**changes):
    """A recipe of a network with one layer; `changes` are `section__key`."""
    values = {
        "model": {"preset": "1x32x2", "max_positions": 64},
        "data": {"max_length": 32},
        "optim": {"lr": 3e-3, "warmup": 5},
        "train": {
            "max_steps": 40,
            "batch_size": 8,
            "log_every": 4,
            "eval_every": 10,
            "save_every": 7,
            "eval_batches": 1,
        },
    }
    for name, value in changes.items():
        section, _, key = name.partition("__")
        values[section][key] = value
    return validate(Recipe, values, "a test")


def files_of(run):
    """All that must be the same when the same training is done: not the timing and what shows it or whence it came."""
    timed = ("timing.jsonl", "starts.jsonl", "report.html", "inputs.json", ".lock")
    kept = [path for path in sorted(run.rglob("*")) if path.is_file() and path.name not in timed]
    kept = [path for path in kept if path.parent.name != "tensorboard"]
    return {path.relative_to(run).as_posix(): _untimed(path, path.read_bytes()) for path in kept}


def _untimed(path, content):
    """What a file says but for what the run cost: a fine-tuned model tells that."""
    if path.parent.name == "model" and path.name == "bertworks.json":
        about = json.loads(content)
        cost = {name: about["provenance"].pop(name, None) for name in ("minutes", "device")}
        return json.dumps(about).encode() if cost["device"] else content
    if path.parent.name == "model" and path.name == "manifest.json":
        return json.dumps(json.loads(content)["files"] | {"bertworks.json": None}).encode()
    return content


def lines_of(run, name="metrics.jsonl"):
    return [json.loads(line) for line in (run / name).read_text().splitlines()]


def kill_until_through(work, seed):
    """Start work in children, each killed at a random instant, ever later, until one gets through."""
    rng, growth = random.Random(seed), 1.2 if IS_FULL else 1.4
    for num_killed in range(50):
        child = os.fork()
        if not child:
            try:
                work()
            finally:
                os._exit(0)
        deadline = time.monotonic() + rng.uniform(0.02, 0.1 * growth**num_killed)
        while time.monotonic() < deadline and os.waitpid(child, os.WNOHANG) == (0, 0):
            time.sleep(0.01)
        try:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except (ProcessLookupError, ChildProcessError):
            assert num_killed, "through before it could be killed"
            return
    raise AssertionError("killed 50 times, and never through")
