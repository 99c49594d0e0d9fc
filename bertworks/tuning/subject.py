"""What is fine-tuned: a network with a task's objective, which of its layers learn, and how fast each does."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.train.subject import Subject
from bertworks.tuning.objective import LM, task_objective
from bertworks.tuning.task_start import TaskStart
from bertworks.tuning.trained_rows import TrainedRows

_BIAS = "heads.classify.out.bias"


def freeze(net: Any, layers: int | str) -> None:
    """Keep the embeddings and so many of the lowest layers, or all encoders whole, as they are."""
    stacks = net.stacks()
    most = num_layers(net)
    check_freeze(layers, most)
    count = most if layers == "all" else int(layers)
    kept = tuple(name for stack in stacks for names in stack[: count + 1] for name in names) if layers else ()
    for name, parameter in net.named_parameters():
        if name.startswith(kept):
            parameter.requires_grad_(False)


def num_layers(net: Any) -> int:
    """Return how many layers a network has above its embeddings; of several encoders that of the deepest."""
    return max(map(len, net.stacks())) - 1


def check_freeze(layers: int | str, most: int) -> None:
    """Refuse to keep more layers than a model has."""
    if isinstance(layers, int) and layers > most:
        raise UserError(f"task.freeze={layers}: the model has {most} layers; choose 0 to {most}, or all")


def rate_scales(net: Any, decay: float) -> dict[str, float]:
    """Return the scale of each parameter's learning rate: 1 for head and pooler, less for each layer further down."""
    depths = [(names, len(stack) - place) for stack in net.stacks() for place, names in enumerate(stack)]
    return {
        name: decay**depth
        for name, _ in net.named_parameters()
        for prefixes, depth in depths
        if decay < 1 and name.startswith(prefixes)
    }


@torch.no_grad()
def begin_with_mean(start: TaskStart, scores: NDArray[np.float32]) -> None:
    """Let a new head give every text the mean score: at a fine-tuning's rates most of a run may go by until it does."""
    if _BIAS in start.about.get("drawn", ()):  # a GPT-1's has none
        start.net.get_parameter(_BIAS).fill_(float(scores.mean(dtype=np.float64)))


def task_subject(start: TaskStart, kind: Kind, task: Task, table: TrainedRows | None) -> Subject:
    """Return what is fine-tuned; a table that is cut is whole in files."""

    def write(folder: Path, about: dict[str, Any]) -> None:
        with table.whole() if table else nullcontext():
            start.write(folder, about)

    def from_file(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights = start.from_file(tensors)
        return table.cut(weights) if table else weights

    return Subject(
        net=start.reader or start.net,
        objective=task_objective(kind, task, start.lm_weight),
        kinds=(task.kind, LM) if start.lm_weight else (task.kind,),
        write=write,
        from_file=from_file,
        is_plain=start.is_plain,
    )
