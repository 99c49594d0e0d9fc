"""What fine-tuning needs of a model of any kind, and what all kinds do to become that.

A network that can be fine-tuned gives a row for each of the tokens that it is called with, `pooled_of(tokens)` gives a
row for each sequence, `scores(head, rows)` what a head of `heads` makes of rows, and `stacks()` says which weights are
its layers'. Its tokenizer encodes texts and pairs as BERT's does.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from bertworks.errors import UserError
from bertworks.nn.feature_reader import FeatureReader
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.tuning.feature_cache import FeatureCache
from bertworks.tuning.settings import TaskSettings

AnyPath = str | os.PathLike[str]


class Wanted(NamedTuple):
    """What a model is opened for.

    Attributes:
        folder: of the model, or of the checkpoint that a run goes on from.
        beside: of a second model that reads the same texts.
        task: what is learnt.
        heads: the task's, with its number of outputs.
        settings: of the task.
        seed: what is new is drawn from it.
        is_random: whether all is new.
    """

    folder: Path
    beside: Path | None
    task: Task
    heads: dict[str, int]
    settings: TaskSettings
    seed: int
    is_random: bool


class FrozenFeatures(NamedTuple):
    """Where features come from, the kind of task on them, and how many bytes the encoder takes in a folder."""

    cache: FeatureCache
    kind: Kind
    num_bytes: int


class TaskStart(NamedTuple):
    """A network with the task's head, and what belongs to it.

    Attributes:
        net: on the CPU; see above for what it can do.
        tokenizer: what its ids mean.
        about: where it comes from.
        write: writes a folder's configuration and weights, given what else is known about the model.
        from_file: gives a folder's weights their names in the network.
        lm_weight: of the language model's loss beside the task's; only a GPT-1 has one.
        notes: what a person should know.
        is_plain: whether it is computed in float32 as it is written, see `Subject`.
        reader: what alone is trained, where the rest is frozen.
        features: what it reads.
        rates: at which the model is best fine-tuned, as its folder says; what is written says it, too.
        is_frozen: tells which tensors of a folder never learn, so that checkpoints have them once; `write` then takes
            what puts weights into a folder, see `divided_weights.py`.
    """

    net: Any
    tokenizer: Any
    about: dict[str, Any]
    write: Callable[..., None]
    from_file: Callable[[Mapping[str, Tensor]], dict[str, Tensor]]
    lm_weight: float = 0.0
    notes: tuple[str, ...] = ()
    is_plain: bool = False
    reader: FeatureReader | None = None
    features: FrozenFeatures | None = None
    is_frozen: Callable[[str], bool] | None = None
    rates: Mapping[str, Any] = {}


@torch.no_grad()
def take_over(net: nn.Module, weights: Mapping[str, Tensor], wanted: Wanted, labels: list[str]) -> dict[str, Any]:
    """Copy the weights that fit, and return what is known of the start then: which were drawn.

    A head is taken only from a model with the same labels; of a random start nothing is.
    """
    has_its_labels, drawn = labels == list(wanted.task.labels), []
    for name, parameter in net.named_parameters():
        is_other_head = name.startswith("heads.") and not has_its_labels
        fits = name in weights and weights[name].shape == parameter.shape
        if fits and not is_other_head and not wanted.is_random:
            parameter.copy_(weights[name])
        else:
            drawn.append(name)
    return {"drawn": sorted(drawn)}


def check_sizes(wanted: Wanted, num_positions: int, vocab_size: int, num_pieces: int) -> None:
    """Refuse a model that cannot read what the task has for it."""
    check_length(wanted.settings.max_length, num_positions, wanted.folder)
    if num_pieces > vocab_size:
        raise UserError(f"{wanted.folder}: its vocabulary has {num_pieces:,} pieces, its model {vocab_size:,}")


def check_length(length: int, num_positions: int, folder: Path) -> None:
    """Refuse texts of more tokens than a model has positions."""
    if length > num_positions:
        raise UserError(
            f"task.max_length {length} is more than the {num_positions} positions of {folder}; set task.max_length="
            f"{num_positions} or less"
        )


def refuse_lm_weight(wanted: Wanted) -> None:
    """Refuse a weight of the language model's loss for a model that is fine-tuned without."""
    if wanted.settings.lm_weight:
        raise UserError("task.lm_weight is for a GPT-1, whose language model goes on learning; leave it out")
