"""Checkpoints of a tiny network, and ways to meet each call by which a save changes the disk."""

import os
import traceback
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from bertworks.files import TEMPORARY_PREFIX
from bertworks.models.kinds import write_model
from bertworks.nn.bert import Bert
from bertworks.nn.config import BertConfig
from bertworks.report.logs import CHECKPOINTS
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS
from bertworks.train.checkpoint import new_checkpoint, read_checkpoint
from bertworks.train.run_folder import replace_model

PIECES = [*SPECIAL_TOKENS, *(f"piece{number}" for number in range(495))]
SIZES = BertConfig(
    vocab_size=500,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=128,
    max_position_embeddings=64,
)
FILES = {
    "config.json", "model.safetensors", "bertworks.json", "vocab.txt", "tokenizer.json", "tokenizer_config.json",
    "optimizer.safetensors", "state.json",
}  # fmt: skip
CHANGING_CALLS = ("mkdir", "replace", "rename", "fsync", "unlink", "rmdir")
_net = Bert(SIZES, {"mlm": 0, "nsp": 2})
_tokenizer = Tokenizer(PIECES)


def net_of(step):
    """The network after a step: every weight tells the step and its place."""
    generator = torch.Generator().manual_seed(step)
    for parameter in _net.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    return _net


class Writer(NamedTuple):
    """Writes a model into a folder, and about how many bytes it takes."""

    write: Callable[[Path], None]
    num_bytes: int


def writer_of(step):
    net = net_of(step)

    def write(folder):
        write_model(folder, net, about={"step": step})
        _tokenizer.save(folder)

    return Writer(write, sum(parameter.nbytes for parameter in net.parameters()))


def optimizer_of(step):
    moments = {name: parameter.detach() * step for name, parameter in net_of(step).named_parameters()}
    return {f"{name}.{moment}": tensor.clone() for name, tensor in moments.items() for moment in ("mean", "square")}


def state_of(step):
    return {"tokens": step * 1000, "data": {"epoch": 0, "block": step, "offset": 3}, "world_size": 1}


def save_checkpoint(run, step, model, optimizer, state, *, keep):
    with new_checkpoint(run, step, optimizer, state, model_bytes=model.num_bytes, keep=keep) as folder:
        if folder:
            model.write(folder)
    return folder_of(run, step)


def save(run, step, keep=2):
    return save_checkpoint(run, step, writer_of(step), optimizer_of(step), state_of(step), keep=keep)


def publish_model(run, model):
    with replace_model(run, model.num_bytes) as folder:
        model.write(folder)


def folder_of(run, step):
    return run / CHECKPOINTS / f"step-{step:08d}"


def assert_is_of(checkpoint, step):
    """See that a checkpoint is that of a step, to the last bit."""
    assert checkpoint.step == step
    assert checkpoint.state["data"] == state_of(step)["data"]
    words = net_of(step).embeddings.token.weight
    assert torch.equal(checkpoint.weights["bert.embeddings.word_embeddings.weight"], words)
    wanted = optimizer_of(step)
    assert checkpoint.optimizer.keys() == wanted.keys()
    assert all(torch.equal(checkpoint.optimizer[name], wanted[name]) for name in wanted)


def assert_whole(run, step):
    assert_is_of(read_checkpoint(folder_of(run, step)), step)


def steps_in(run):
    return sorted(int(name.removeprefix("step-")) for name in os.listdir(run / CHECKPOINTS) if name.startswith("step-"))


def leftovers_in(run):
    return [path for path in Path(run).rglob("*") if path.name.startswith(TEMPORARY_PREFIX)]


@contextmanager
def at_each_call(monkeypatch, happen):
    """Call happen(number, name, first argument) before each call that changes the disk; the product has no hooks."""
    number = 0

    def wrapped(name, real):
        def call(*arguments, **options):
            nonlocal number
            number += 1
            happen(number, name, arguments[0])
            return real(*arguments, **options)

        return call

    with monkeypatch.context() as patch:
        for name in CHANGING_CALLS:
            patch.setattr(os, name, wrapped(name, getattr(os, name)))
        yield


def calls_of(monkeypatch, work):
    """The calls by which some work changes the disk, in order: (name, path)."""
    calls = []
    with at_each_call(monkeypatch, lambda _, name, path: calls.append((name, str(path)))):
        work()
    return calls


def exit_code_of(work):
    """Do something in a forked child, which may be killed; 0 if it came to its end."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
