"""What fine-tuning starts with: a task's files as examples, and a model whose head is new.

A model is a folder, a run folder or a name in the local cache. Its encoder is taken over, and its head where it has the
one that the task needs, with the same labels; what is missing is drawn from the seed. A run that goes on takes all of
it from its checkpoint: the model that it came from may be gone.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from bertworks.errors import UserError
from bertworks.interop.feature_folder import read_features
from bertworks.interop.folder import OWN_FILE, read_json
from bertworks.interop.huggingface import read_folder
from bertworks.interop.sentence_folders import find_encoder
from bertworks.locate import find_model
from bertworks.nn.bert import Bert
from bertworks.nn.layers import initialise
from bertworks.tasks.examples import Example, Skipped
from bertworks.tasks.kinds import Kind
from bertworks.tasks.own import KINDS as OWN_KINDS
from bertworks.tasks.own import open_own
from bertworks.tasks.own_columns import Columns
from bertworks.tasks.registry import find_task
from bertworks.tasks.splits import split_off_dev
from bertworks.tasks.task import DEV, TRAIN, Dataset, Task, open_dataset
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.checkpoint import latest_checkpoint
from bertworks.train.warm_start import checksums
from bertworks.tuning.frozen import FrozenFeatures, add_reader
from bertworks.tuning.settings import TaskSettings

AnyPath = str | os.PathLike[str]


def find_data(
    name: str,
    data: AnyPath | None,
    files: Mapping[str, AnyPath | None],
    note: Callable[[str], None],
    columns: Columns | None = None,
) -> Dataset:
    """Open a benchmark by its name and folder, or a kind of task by your own files; says what was guessed."""
    given = {split: path for split, path in files.items() if path is not None}
    if name in OWN_KINDS:
        if data is not None or TRAIN not in given:
            raise UserError(f"{name} is learnt from your own files: give --train FILE, and --dev FILE if you have one")
        dataset = open_own(name, given, columns)
    else:
        task = find_task(name)
        if given or data is None:
            raise UserError(f"{task.title} is read from a folder: give --data DIR; your own files are for {OWN_KINDS}")
        dataset = open_dataset(task, Path(data))
    if DEV not in dataset.found:
        dataset = split_off_dev(dataset)
    for line in dataset.notes:
        note(line)
    return dataset


def examples_of(dataset: Dataset, split: str, note: Callable[[str], None]) -> list[Example]:
    """Read a split; says what was left out, and refuses one with nothing in it."""
    skipped = Skipped()
    examples = list(dataset.examples(split, skipped))
    if skipped:
        note(f"{split}: {skipped}")
    if not examples:
        raise UserError(f"{dataset.task.title}: the {split} split in {dataset.origin} has no examples")
    return examples


class TaskStart(NamedTuple):
    """A network with the task's head, what its ids mean, and where it comes from."""

    net: Bert
    tokenizer: Tokenizer
    about: dict[str, Any]
    features: FrozenFeatures | None = None  # where only what reads them is trained


def open_task_start(
    source: AnyPath, run: Path, task: Task, kind: Kind, settings: TaskSettings, *, seed: int, is_random: bool
) -> TaskStart:
    """Make the network that is fine-tuned, on the CPU, with the model's weights or with weights drawn from the seed."""
    begun = latest_checkpoint(run) if run.exists() else None
    about = _begun(begun.path, source) if begun else None
    folder = begun.path if begun else find_encoder(find_model(source))
    opened = (read_features if begun and settings.features else read_folder)(folder)
    tokenizer = Tokenizer.from_folder(folder)
    _check(opened.net, tokenizer, task, settings, folder)
    names = ("hidden_dropout_prob", "attention_probs_dropout_prob")
    config = opened.net.config.model_copy(update=dict.fromkeys(names, settings.dropout))
    net = Bert(config, {} if settings.features else {kind.head: kind.num_outputs(task)}, pooler=False)
    initialise(net, config.initializer_range, seed)
    if settings.features:
        add_reader(net, task, settings, seed)
        if about is not None:  # the run's checkpoint will give the reader's weights, and the encoder's are nobody's
            _take_over(net, opened.net, has_its_labels=False)
    if about is None:
        about = {"model": os.fspath(source), "weights": checksums(folder), "init": "random" if is_random else "model"}
        taken = set() if is_random else _take_over(net, opened.net, has_its_labels=opened.labels == list(task.labels))
        about["drawn"] = sorted({name for name, _ in net.named_parameters()} - taken)
    return TaskStart(net, tokenizer, about)


def _begun(checkpoint: Path, source: AnyPath) -> dict[str, Any]:
    """Return where a run that goes on came from; another model now is an error, one that is gone is not."""
    provenance = read_json(checkpoint / OWN_FILE).get("provenance")
    about: dict[str, Any] = provenance.get("start", {}) if isinstance(provenance, dict) else {}
    try:
        is_another = checksums(find_encoder(find_model(source))) != about.get("weights")
    except UserError:
        return about
    if is_another:
        raise UserError(f"the run was started from {about.get('model')}, whose weights are not those of {source}")
    return about


@torch.no_grad()
def _take_over(net: Bert, model: Bert, *, has_its_labels: bool) -> set[str]:
    """Copy the weights that both networks have and return their names."""
    theirs, taken = dict(model.named_parameters()), set()
    for name, parameter in net.named_parameters():
        is_other_head = name.startswith("heads.") and not has_its_labels
        if name in theirs and theirs[name].shape == parameter.shape and not is_other_head:
            parameter.copy_(theirs[name])
            taken.add(name)
    return taken


def _check(net: Bert, tokenizer: Tokenizer, task: Task, settings: TaskSettings, folder: Path) -> None:
    config = net.config
    if settings.max_length > config.max_position_embeddings:
        raise UserError(
            f"task.max_length {settings.max_length} is more than the {config.max_position_embeddings} positions of "
            f"{folder}; set task.max_length={config.max_position_embeddings} or less"
        )
    if task.is_pair and config.type_vocab_size < 2:
        raise UserError(f"{task.title} has pairs of texts, and {folder} knows one segment (type_vocab_size 1)")
    if len(tokenizer) > config.vocab_size:
        raise UserError(f"{folder}: its vocabulary has {len(tokenizer):,} pieces, its model {config.vocab_size:,}")
    if isinstance(settings.freeze, int) and settings.freeze > config.num_hidden_layers:
        raise UserError(f"task.freeze {settings.freeze}: the model has {config.num_hidden_layers} layers")
