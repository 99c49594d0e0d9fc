"""Feature-based training: the encoder stays as it is, and a reader of its cached layers is what the loop trains.

The network of a run is an encoder with the reader as its tag head, so that its model folder tags texts. The trainer
sees the reader alone; the encoder computes features once (`feature_cache.py`) and is written beside the reader.
"""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bertworks.errors import ConfigError, UserError
from bertworks.interop.divided_weights import put_whole
from bertworks.interop.feature_folder import is_encoders, read_features, reader_weights, write_features
from bertworks.interop.huggingface import read_folder
from bertworks.interop.models import kind_of_model
from bertworks.nn.attention import can_flash
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import initialise_readers
from bertworks.nn.feature_config import FeatureConfig
from bertworks.nn.feature_reader import HEAD, FeatureReader, feature_bert, reader_of
from bertworks.nn.layers import freeze, initialise
from bertworks.nn.tiles import check_tiles
from bertworks.tasks.items import Laying
from bertworks.tasks.task import Task
from bertworks.tasks.word_features import WordRows, feature_kind
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.distributed import Ranks
from bertworks.tuning.feature_cache import FeatureCache
from bertworks.tuning.settings import FinetuneSettings, TaskSettings
from bertworks.tuning.task_start import FrozenFeatures, TaskStart, Wanted, check_sizes, refuse_lm_weight, take_over

FEATURES = "features"  # the cache's folder in a run
_CELLS, _DROPOUT = FeatureConfig().lstm_cells, FeatureConfig().lstm_dropout  # the paper's


def open_frozen(wanted: Wanted) -> TaskStart:
    """Make the network of a BERT's folder, or of a tagger's on frozen layers, with a reader whose weights are new."""
    _check_start(wanted)
    has_reader = kind_of_model(wanted.folder) == "features"
    opened = (read_features if has_reader else read_folder)(wanted.folder)
    tokenizer, settings = Tokenizer.from_folder(wanted.folder), wanted.settings
    config = opened.net.config
    check_sizes(wanted, config.max_position_embeddings, config.vocab_size, len(tokenizer))
    net = Bert(config, pooler=False)
    initialise(net, config.initializer_range, wanted.seed)
    about = take_over(net, dict(opened.net.named_parameters()), wanted, [])
    reader = _new_reader(net, wanted.task, settings, wanted.seed)
    feature_bert(net.requires_grad_(False), reader)
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about={"drawn": [*about["drawn"], *(f"heads.{HEAD}.{name}" for name, _ in reader.named_parameters())]},
        write=lambda folder, about, put=put_whole: write_features(
            folder, net, labels=list(wanted.task.labels), about=about, put=put
        ),
        from_file=reader_weights,
        is_plain=True,  # an LSTM is cuDNN's or oneDNN's, in fp32, and not compiled
        reader=reader,
        is_frozen=is_encoders,
    )


def _check_start(wanted: Wanted) -> None:
    if wanted.task.kind != "tag":
        raise UserError(
            f"task.features is for tagging, and {wanted.task.title} is to {wanted.task.kind}; task.freeze=all trains a "
            "head on a frozen encoder"
        )
    if wanted.beside:
        raise UserError("task.features reads the layers of one BERT; leave out --with")
    refuse_lm_weight(wanted)


def _new_reader(net: Bert, task: Task, settings: TaskSettings, seed: int) -> FeatureReader:
    assert settings.features is not None
    dropout = _DROPOUT if settings.dropout is None else settings.dropout
    config = FeatureConfig(features=settings.features, lstm_cells=settings.cells or _CELLS, lstm_dropout=dropout)
    reader = FeatureReader(config, net.config, len(task.labels))
    initialise_readers(reader, seed)
    return reader


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
    check_tiles(device, dtype)
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
    names = (
        "task.freeze", "task.layer_decay", "task.bilstm", "task.class_weights", "train.compile", "train.recompute",
        "train.shard",
    )  # fmt: skip
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
