"""What fine-tuning starts with where the model is an ELMo: the network that reads its layers, and what that allows.

The ELMo is taken over and stays as it is; the mix of its layers, the BiLSTMs and the head are drawn from the seed and
learn. A model that is fine-tuned already gives its BiLSTMs too, where they fit. With `--init random` there was no
pre-training: the ELMo is drawn as well, and all of it learns, as of a BERT.

What is usual for a BERT is far too slow for BiLSTMs that begin with nothing, so ELMo has rates and epochs of its own.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bertworks.errors import ConfigError, UserError
from bertworks.interop.elmo_task_folder import write_elmo_task
from bertworks.interop.folder import CONFIG_FILE, ELMO_TASK_TYPE, ELMO_TYPE, read_json
from bertworks.interop.models import read_model
from bertworks.locate import find_model
from bertworks.nn.baseline_config import ElmoReaderConfig
from bertworks.nn.elmo import Elmo
from bertworks.nn.elmo_tasks import ElmoTasks, initialise_elmo_tasks
from bertworks.nn.lm import Sums
from bertworks.tasks.items import TaskBatch
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.text.spelt_words import SpeltTokenizer
from bertworks.train.checkpoint import checkpoint_folders
from bertworks.train.subject import Subject
from bertworks.train.warm_start import checksums
from bertworks.tuning.settings import FinetuneSettings, TaskSettings

ELMO_USUAL = ("optim.lr=1e-3", "optim.clip=5.0", "train.epochs=10", "task.dropout=0.2")
# In each direction, by head: GLUE's baselines have 1,500, ELMo's own tagger 200.
_CELLS = {"classify": 1_500, "choose": 1_500, "tag": 200, "span": 200}


def is_elmo(folder: Path) -> bool:
    """Tell whether a model folder is that of an ELMo, fine-tuned or not."""
    return read_json(folder / CONFIG_FILE).get("model_type") in (ELMO_TYPE, ELMO_TASK_TYPE)


def starts_with_elmo(source: str | os.PathLike[str], run: Path) -> bool:
    """Tell whether a run is, or will be, one of an ELMo; one that goes on may have lost the model it came from."""
    begun = checkpoint_folders(run)
    folder = begun[0] if begun else find_model(source)
    return (folder / CONFIG_FILE).exists() and is_elmo(folder)


def check_elmo_settings(settings: FinetuneSettings, *, is_random: bool) -> None:
    """Refuse settings that mean nothing for an ELMo, all at once."""
    task, train, problems = settings.task, settings.train, []
    if is_random and task.freeze != 0:
        problems.append(f"task.freeze={task.freeze}: a random start has nothing to keep; leave it out")
    elif task.freeze not in (0, "all"):
        problems.append(f"task.freeze={task.freeze}: the ELMo stays as it is anyway, and all above it learns")
    if task.layer_decay != 1:
        problems.append(f"task.layer_decay={task.layer_decay}: its layers do not learn at rates of their own")
    if train.dtype == "bfloat16":
        problems.append("train.dtype=bfloat16: its LSTMs are trained in float32")
    if train.compile:
        problems.append("train.compile=true: its LSTMs are cuDNN's, which torch.compile does not see into")
    if problems:
        raise ConfigError("fine-tuning an ELMo", problems)


def open_elmo_start(
    folder: Path, begun: dict[str, Any] | None, source: str | os.PathLike[str], task: Task, kind: Kind,
    settings: TaskSettings, *, seed: int, is_random: bool,
) -> tuple[ElmoTasks, SpeltTokenizer, dict[str, Any]]:  # fmt: skip
    """Make the network that is fine-tuned, on the CPU, what numbers its words, and where it comes from.

    Args:
        folder: of the model, or of the checkpoint that a run goes on from.
        begun: where such a run came from.
        source: the model as a person named it.
        task: what is to be learnt.
        kind: what that is about.
        settings: of the task.
        seed: of what is drawn.
        is_random: whether only the model's sizes are taken.
    """
    opened, tokenizer = read_model(folder), SpeltTokenizer.from_folder(folder)
    if len(tokenizer) > opened.net.config.vocab_size:
        raise UserError(f"{folder}: its list has {len(tokenizer):,} words, its model {opened.net.config.vocab_size:,}")
    reader = ElmoReaderConfig(
        pairs=task.is_pair or kind.head in ("choose", "span"),
        num_cells=settings.cells or _CELLS[kind.head],
        dropout=settings.dropout,
        trains_elmo=is_random if begun is None else begun.get("init") == "random",
    )
    config = opened.net.config
    if reader.trains_elmo:
        config = config.model_copy(update={"dropout": settings.dropout})
    net = ElmoTasks(config, reader, {kind.head: kind.num_outputs(task)})
    initialise_elmo_tasks(net, seed)
    net.read_words(tokenizer.met)
    if begun is not None:
        return net, tokenizer, begun
    taken = set() if is_random else _take_over(net, opened.net, has_its_labels=opened.labels == list(task.labels))
    about = {"model": os.fspath(source), "weights": checksums(folder), "init": "random" if is_random else "model"}
    return net, tokenizer, about | {"drawn": sorted({name for name, _ in net.named_parameters()} - taken)}


@torch.no_grad()
def _take_over(net: ElmoTasks, model: Elmo | ElmoTasks, *, has_its_labels: bool) -> set[str]:
    """Copy the weights that both networks have and return their names."""
    place = "elmo." if isinstance(model, Elmo) else ""
    theirs = {place + name: parameter for name, parameter in model.named_parameters()}
    taken = set()
    for name, parameter in net.named_parameters():
        is_other_head = name.startswith("heads.") and not has_its_labels
        if name in theirs and theirs[name].shape == parameter.shape and not is_other_head:
            parameter.copy_(theirs[name])
            taken.add(name)
    return taken


def elmo_subject(net: ElmoTasks, kind: Kind, task: Task) -> Subject:
    """Return what is fine-tuned."""

    def objective(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        return {task.kind: kind.sums(kind.scores(net, batch), batch)}

    def write(folder: Path, about: Mapping[str, Any]) -> None:
        write_elmo_task(folder, net, labels=list(task.labels), about=about)

    return Subject(net=net, objective=objective, kinds=(task.kind,), write=write, from_file=_as_written, is_plain=True)


def _as_written(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return dict(tensors)
