"""Feature-based training: the encoder stays as it is, and a reader of its cached layers is what the loop trains.

The network of a run is an encoder with the reader as its tag head, so that its model folder tags texts. The trainer
sees the reader alone; the encoder computes features once (`feature_cache.py`) and is written beside the reader.
"""

import copy
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.errors import ConfigError, UserError
from bertworks.interop.feature_folder import reader_weights, write_features
from bertworks.nn.attention import can_flash
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import initialise_readers
from bertworks.nn.feature_config import FeatureConfig
from bertworks.nn.feature_reader import FeatureReader, feature_bert, reader_of
from bertworks.nn.layers import freeze
from bertworks.nn.lm import Sums
from bertworks.tasks.items import Laying, TaskBatch
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.tasks.word_features import WordRows, feature_kind
from bertworks.train.distributed import Ranks
from bertworks.train.subject import Subject
from bertworks.tuning.feature_cache import FeatureCache
from bertworks.tuning.settings import FinetuneSettings, TaskSettings

FEATURES = "features"  # the cache's folder in a run


class FrozenFeatures(NamedTuple):
    """Where features come from, the kind of task on them, and how many bytes the encoder takes in a folder."""

    cache: FeatureCache
    kind: Kind
    num_bytes: int


def add_reader(net: Bert, task: Task, settings: TaskSettings, seed: int) -> None:
    """Give an encoder a reader with new weights, and let nothing else of it learn."""
    if task.kind != "tag":
        raise UserError(
            f"task.features is for tagging, and {task.title} is to {task.kind}; task.freeze=all trains a head on a "
            "frozen encoder"
        )
    assert settings.features is not None
    config = FeatureConfig(features=settings.features, lstm_cells=settings.lstm_cells, lstm_dropout=settings.dropout)
    reader = FeatureReader(config, net.config, len(task.labels))
    initialise_readers(reader, seed)
    feature_bert(net.requires_grad_(False), reader)


def open_features(
    net: Bert,
    folder: Path | None,
    run: Path,
    settings: FinetuneSettings,
    device: torch.device,
    ranks: Ranks,
    note: Callable[[str], None],
) -> FrozenFeatures:
    """Open the cache of a network's features, which are in half precision where training would be.

    Args:
        net: an encoder with its reader.
        folder: of a cache that is shared, which keeps all layers; None: one in the run, with those that are read.
        run: the run folder.
        settings: of the run.
        device: where to compute.
        ranks: share the work.
        note: is told what is computed or found.
    """
    _check(settings)
    reader, train = reader_of(net), settings.train
    assert reader is not None
    half = train.dtype == "bfloat16" or (train.dtype == "auto" and device.type == "cuda")
    dtype = torch.bfloat16 if half else torch.float32
    encoder = copy.deepcopy(net).to(device, dtype).eval()
    freeze(encoder)
    laying = Laying(device, can_flash(net.config.head_width, dtype, device))
    kept = reader.layers if folder is None else range(net.config.num_hidden_layers + 1)
    cache = FeatureCache(folder or run / FEATURES, encoder, reader.layers, kept, laying, ranks, note)
    num_bytes = sum(weight.nbytes for name, weight in net.named_parameters() if not name.startswith("heads."))
    return FrozenFeatures(cache, feature_kind(WordRows(), reader.layers, cache.find), num_bytes)


def _check(settings: FinetuneSettings) -> None:
    """Name all settings that mean nothing where the encoder is frozen."""
    usual = FinetuneSettings()
    names = ("task.freeze", "task.layer_decay", "train.compile", "train.recompute", "train.shard")
    problems = [
        f"{name}: task.features trains a BiLSTM on frozen layers, for which it means nothing; leave it out"
        for name in names
        if _value(settings, name) != _value(usual, name)
    ]
    if problems:
        raise ConfigError("task.features", problems)


def _value(settings: FinetuneSettings, name: str) -> Any:
    section, _, key = name.partition(".")
    return getattr(getattr(settings, section), key)


def reader_subject(net: Bert, reader: FeatureReader, kind: Kind, task: Task) -> Subject:
    """Return the reader as what is trained; its folders hold the encoder too."""

    def objective(reader: FeatureReader, batch: TaskBatch) -> dict[str, Sums]:
        return {task.kind: kind.sums(kind.scores(reader, batch), batch)}

    def write(folder: Path, about: dict[str, Any]) -> None:
        write_features(folder, net, labels=list(task.labels), about=about)

    def from_file(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return reader_weights(tensors)

    # Plain: an LSTM is cuDNN's or oneDNN's, in fp32, and not compiled.
    return Subject(net=reader, objective=objective, kinds=(task.kind,), write=write, from_file=from_file, is_plain=True)
