"""What is fine-tuned: a network with a task's objective, which of its layers learn, and how fast each does."""

from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.interop.huggingface import to_ours, write_folder
from bertworks.nn.bert import Bert
from bertworks.nn.feature_reader import reader_of
from bertworks.nn.lm import Sums
from bertworks.tasks.items import TaskBatch
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.train.subject import Subject
from bertworks.tuning.frozen import reader_subject
from bertworks.tuning.trained_rows import TrainedRows


def freeze(net: Bert, layers: int | str) -> None:
    """Keep the embeddings and so many of the lowest layers, or the whole encoder, as they are."""
    count = len(net.blocks) if layers == "all" else int(layers)
    kept: list[torch.nn.Module] = [net.embeddings, *net.blocks[:count]] if layers else []
    for part in kept:
        part.requires_grad_(False)


def rate_scales(net: Bert, decay: float) -> dict[str, float]:
    """Return the scale of each parameter's learning rate: 1 for head and pooler, less for each layer further down."""
    depths = {f"blocks.{number}.": len(net.blocks) - number for number in range(len(net.blocks))}
    depths["embeddings."] = len(net.blocks) + 1
    return {
        name: decay**depth
        for name, _ in net.named_parameters()
        for prefix, depth in depths.items()
        if decay < 1 and name.startswith(prefix)
    }


def task_subject(net: Bert, kind: Kind, task: Task, table: TrainedRows | None) -> Subject:
    """Return what is fine-tuned; a table that is cut is whole in files."""
    if reader := reader_of(net):
        return reader_subject(net, reader, kind, task)

    def objective(net: Bert, batch: TaskBatch) -> dict[str, Sums]:
        return {task.kind: kind.sums(kind.scores(net, batch), batch)}

    def write(folder: Path, about: dict[str, Any]) -> None:
        with table.whole() if table else nullcontext():
            write_folder(folder, net, labels=list(task.labels), about=about)

    def from_file(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        weights = to_ours(list(net.state_dict()), tensors)
        return table.cut(weights) if table else weights

    return Subject(net=net, objective=objective, kinds=(task.kind,), write=write, from_file=from_file)
