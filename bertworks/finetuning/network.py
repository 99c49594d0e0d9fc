"""What fine-tuning needs of a model of any kind, and what all kinds do to become that.

A network that can be fine-tuned gives a row for each of the tokens that it is called with, `pooled_of(tokens)` gives a
row for each sequence, `scores(head, rows)` what a head of `heads` makes of rows, and `stacks()` says which weights are
its layers'. Its tokenizer encodes texts and pairs as BERT's does.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.errors import ConfigError, UserError, counted
from bertworks.finetuning.features import FeatureCache
from bertworks.finetuning.settings import FinetuneSettings, TaskSettings
from bertworks.models.find import find_model
from bertworks.models.folder import CONFIG_FILE, put_whole, read_json
from bertworks.models.kinds import (
    BERT,
    FEATURES,
    ModelFolder,
    is_elmos,
    is_encoders,
    kind_of_model,
    read_model,
    reader_weights,
    to_ours,
    write_model,
)
from bertworks.models.names import from_openai
from bertworks.nn.attention import can_flash
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import HEAD, FeatureReader, feature_bert, initialise_readers, reader_of
from bertworks.nn.compound import Compound, initialise_compound
from bertworks.nn.config import BertConfig, CompoundConfig, ElmoReaderConfig, FeatureConfig
from bertworks.nn.device import check_tiles
from bertworks.nn.elmo import Elmo, ElmoTasks, initialise_elmo_tasks
from bertworks.nn.gpt import LM_WEIGHT, Gpt, Reading, num_guesses
from bertworks.nn.heads import OutputHead
from bertworks.nn.layers import freeze, initialise
from bertworks.nn.lm import Sums
from bertworks.tasks.evaluation import WordRows, feature_kind
from bertworks.tasks.heads import Kind, Laying, TaskBatch
from bertworks.tasks.task import Task
from bertworks.text.elmo_words import SpeltTokenizer
from bertworks.text.gpt import FINE_TUNING_TOKENS, GptInputs, GptTokenizer, with_special_pieces
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.checkpoint import checkpoint_folders
from bertworks.train.distributed import Ranks
from bertworks.train.objectives import Objective
from bertworks.train.subject import Subject

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


def check_sizes(wanted: Wanted, num_positions: int, num_layers: int, vocab_size: int, num_pieces: int) -> None:
    """Refuse a model that cannot read what the task has for it, or has fewer layers than are to be kept."""
    problems = refused_sizes(wanted.settings, num_positions, num_layers, wanted.folder)
    if num_pieces > vocab_size:
        problems.append(f"{wanted.folder}: its vocabulary has {num_pieces:,} pieces, its model {vocab_size:,}")
    raise_all(str(wanted.folder), problems)


def refused_sizes(settings: TaskSettings, num_positions: int, num_layers: int, folder: Path) -> list[str]:
    """Name what is too large for a model: texts of more tokens than it has positions, more layers than it has."""
    length, layers, problems = settings.max_length, settings.freeze, []
    if length > num_positions:
        problems.append(
            f"task.max_length {length} is more than the {num_positions} positions of {folder}; set task.max_length="
            f"{num_positions} or less"
        )
    if isinstance(layers, int) and layers > num_layers:
        has = counted(num_layers, "layer")
        problems.append(f"task.freeze={layers}: the model has {has}; choose 0 to {num_layers}, or all")
    return problems


def raise_all(where: str, problems: list[str]) -> None:
    """Raise UserError where there are problems: the one there is, or all of them."""
    if problems:
        raise ConfigError(where, problems) if problems[1:] else UserError(problems[0])


def refuse_lm_weight(wanted: Wanted) -> None:
    """Refuse a weight of the language model's loss for a model that is fine-tuned without."""
    if wanted.settings.lm_weight:
        raise UserError("task.lm_weight is for a GPT-1, whose language model goes on learning; leave it out")


# A BERT to fine-tune: by itself, beside another one, or under a BiLSTM.
#
# One that looks to the left alone is summed up by its last token, for [CLS] at its front has seen nothing.


_LSTM_LAYERS = 2  # as in the paper's other BiLSTM, that of section 5.3, whose cells are as many as BERT base is wide


def open_bert(wanted: Wanted) -> TaskStart:
    """Make the network of a BERT's folder, with whatever is to stand beside it or on top."""
    opened, tokenizer = read_model(wanted.folder), Tokenizer.from_folder(wanted.folder)
    others = [_open_beside(wanted.beside, tokenizer, wanted.folder)] if wanted.beside else []
    if not others and not wanted.settings.bilstm:
        return _single(wanted, opened, tokenizer)
    nets = [opened.net, *(other.net for other in others)]
    config = CompoundConfig(
        encoders=tuple(_config(net.config, wanted.settings) for net in nets),
        num_lstm_layers=_LSTM_LAYERS if wanted.settings.bilstm else 0,
        num_cells=opened.net.config.hidden_size,
    )
    weights = {
        f"encoders.{number}.{name}": weight
        for number, net in enumerate(nets)
        for name, weight in net.named_parameters()
    }
    return _compound(wanted, config, tokenizer, weights, [])


def open_compound(wanted: Wanted) -> TaskStart:
    """Make the network of a folder that has encoders side by side, or a BiLSTM on top, already."""
    if wanted.beside:
        raise UserError(f"{wanted.folder} is made of encoders already; --with is for two BERTs")
    opened, tokenizer = read_model(wanted.folder), Tokenizer.from_folder(wanted.folder)
    if wanted.settings.bilstm and not opened.net.config.num_lstm_layers:
        raise UserError(f"{wanted.folder} has two encoders and no BiLSTM; start from those with task.bilstm=true")
    encoders = tuple(_config(encoder, wanted.settings) for encoder in opened.net.config.encoders)
    config = opened.net.config.model_copy(update={"encoders": encoders})
    return _compound(wanted, config, tokenizer, dict(opened.net.named_parameters()), opened.labels)


def _single(wanted: Wanted, opened: ModelFolder[Bert], tokenizer: Tokenizer) -> TaskStart:
    config = _config(opened.net.config, wanted.settings)
    _check(wanted, config, tokenizer)
    net = Bert(config, wanted.heads, pooler=False)
    own_dropout = read_json(wanted.folder / CONFIG_FILE).get(
        "classifier_dropout"
    )  # of the head, as transformers has it
    if own_dropout is not None and wanted.settings.dropout is None:
        for head in net.all_heads():
            if isinstance(head, OutputHead) and head.dropout:
                head.dropout = float(own_dropout)
    initialise(net, config.initializer_range, wanted.seed)
    about = take_over(net, dict(opened.net.named_parameters()), wanted, opened.labels)
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about=about,
        notes=_new_head(wanted, opened) if any(name.startswith("heads.") for name in about["drawn"]) else (),
        write=lambda folder, about: write_model(folder, net, labels=list(wanted.task.labels), about=about),
        from_file=partial(to_ours, list(net.state_dict())),
    )


def _new_head(wanted: Wanted, opened: ModelFolder[Bert]) -> tuple[str, ...]:
    """Say that a head is drawn though the model has one of that kind."""
    if wanted.is_random or not wanted.heads.keys() & opened.net.heads.keys():
        return ()
    theirs, ours = (", ".join(names)[:80] or "scores" for names in (opened.labels, wanted.task.labels))
    told = f"was fine-tuned for other labels ({theirs}): its encoder is taken, the head is new ({ours})"
    return (f"{wanted.folder} {told}",)


def _compound(
    wanted: Wanted, config: CompoundConfig, tokenizer: Tokenizer, weights: Mapping[str, Tensor], labels: list[str]
) -> TaskStart:
    _check(wanted, config, tokenizer)
    net = Compound(config, wanted.heads)
    initialise_compound(net, wanted.seed)
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about=take_over(net, weights, wanted, labels),
        write=lambda folder, about: write_model(folder, net, labels=list(wanted.task.labels), about=about),
        from_file=dict,
    )


def _config(config: BertConfig, settings: TaskSettings) -> BertConfig:
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout)
    summary = {"summary": "last"} if config.direction == "left_to_right" else {}
    return config.model_copy(update=summary if settings.dropout is None else dropout | summary)


def _check(wanted: Wanted, config: BertConfig | CompoundConfig, tokenizer: Tokenizer) -> None:
    refuse_lm_weight(wanted)
    encoders = config.encoders if isinstance(config, CompoundConfig) else [config]
    num_layers = max(encoder.num_hidden_layers for encoder in encoders)
    check_sizes(wanted, config.max_position_embeddings, num_layers, config.vocab_size, len(tokenizer))
    if wanted.task.is_pair and config.type_vocab_size < 2:
        raise UserError(
            f"{wanted.task.title} has pairs of texts, and {wanted.folder} knows one segment (type_vocab_size 1)"
        )


def _open_beside(folder: Path, tokenizer: Tokenizer, first: Path) -> ModelFolder[Bert]:
    if kind_of_model(folder) is not BERT:
        raise UserError(f"{folder} is no BERT; --with takes one that reads the other way, with the same vocabulary")
    other = Tokenizer.from_folder(folder)
    if other.pieces != tokenizer.pieces or other.rules != tokenizer.rules:
        what = f"{len(tokenizer):,} and {len(other):,} pieces"
        if len(tokenizer) == len(other):
            what = "the same number of pieces, but not the same ones or not the same rules for words"
        raise UserError(f"{first} and {folder} must have the same vocabulary; they have {what}")
    return read_model(folder)


# A GPT-1 to fine-tune, as its paper does it: special pieces around texts, and its language model goes on learning.
#
# Pieces that its vocabulary does not have get rows in the embedding table that are drawn from the seed.


_TABLE = "token.weight"


def open_gpt(wanted: Wanted) -> TaskStart:
    """Make the network of a GPT-1's folder."""
    if wanted.beside or wanted.settings.bilstm:
        what = "--with" if wanted.beside else "task.bilstm"
        raise UserError(f"{wanted.folder} is a GPT-1, and {what} is for BERTs; leave it out")
    opened, plain = read_model(wanted.folder), GptTokenizer.from_folder(wanted.folder)
    sizes = opened.net.config
    check_sizes(wanted, sizes.n_positions, sizes.n_layer, sizes.vocab_size, len(plain))
    tokenizer = with_special_pieces(plain)
    update: dict[str, float] = {"vocab_size": max(opened.net.config.vocab_size, len(tokenizer))}
    if wanted.settings.dropout is not None:
        update |= dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), wanted.settings.dropout)
    config = opened.net.config.model_copy(update=update)
    net = Gpt(config, wanted.heads, both_orders=wanted.task.is_symmetric)
    initialise(net, config.initializer_range, wanted.seed, cut=False)
    weights: dict[str, Tensor] = dict(opened.net.named_parameters())
    weights[_TABLE] = _with_rows(weights[_TABLE], net.token.weight, len(plain) if tokenizer is not plain else None)
    about = take_over(net, weights, wanted, opened.labels)
    about["drawn"] += [piece for piece in FINE_TUNING_TOKENS if piece not in plain.pieces]
    weight = wanted.settings.lm_weight
    return TaskStart(
        net=net,
        tokenizer=GptInputs(tokenizer),
        about=about,
        write=lambda folder, about: write_model(folder, net, labels=list(wanted.task.labels), about=about),
        from_file=from_openai,
        lm_weight=LM_WEIGHT if weight is None else weight,
    )


def _with_rows(theirs_VD: Tensor, drawn_VD: Tensor, num_known: int | None) -> Tensor:
    """Return a table with the known rows of theirs, and the others as they were drawn."""
    if num_known is None:
        return theirs_VD
    return torch.cat([theirs_VD[:num_known], drawn_VD[num_known:]]).detach()


# What fine-tuning starts with where the model is an ELMo: the network that reads its layers, and what that allows.
#
# The ELMo is taken over and stays as it is; the mix of its layers, the BiLSTMs and the head are drawn from the seed
# and learn. A model that is fine-tuned already gives its BiLSTMs too, where they fit. With `--init random` there
# was no pre-training: the ELMo is drawn as well, and all of it learns, as of a BERT.
#
# What is usual for a BERT is far too slow for BiLSTMs that begin with nothing, so ELMo has rates and epochs of its
# own.


_DROPOUT = 0.2
USUAL = ("optim.lr=1e-3", "optim.clip=5.0", "train.epochs=10", f"task.dropout={_DROPOUT}")
# In each direction, by head: GLUE's baselines have 1,500, ELMo's own tagger 200.
_CELLS = {"classify": 1_500, "choose": 1_500, "tag": 200, "span": 200}


def starts_with_elmo(source: str | os.PathLike[str], run: Path) -> bool:
    """Tell whether a run is, or will be, one of an ELMo; one that goes on may have lost the model it came from."""
    begun = checkpoint_folders(run)
    folder = begun[0] if begun else find_model(source)
    return (folder / CONFIG_FILE).exists() and kind_of_model(folder).name.startswith("elmo")


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


def open_elmo(wanted: Wanted) -> TaskStart:
    """Make the network of an ELMo's folder, fine-tuned or not."""
    refuse_lm_weight(wanted)
    if wanted.beside or wanted.settings.bilstm:
        what = "--with" if wanted.beside else "task.bilstm"
        raise UserError(f"{wanted.folder} is an ELMo, and {what} is for BERTs; leave it out")
    opened, tokenizer = read_model(wanted.folder), SpeltTokenizer.from_folder(wanted.folder)
    check_sizes(wanted, wanted.settings.max_length, 0, opened.net.config.vocab_size, len(tokenizer))
    config, (head,) = opened.net.config, wanted.heads
    if wanted.is_random:
        config = config.model_copy(update={"dropout": _dropout(wanted)})
    net = ElmoTasks(config, _reader(wanted, head), wanted.heads)
    initialise_elmo_tasks(net, wanted.seed)
    net.read_words(tokenizer.met)
    place = "elmo." if isinstance(opened.net, Elmo) else ""
    weights = {place + name: parameter for name, parameter in opened.net.named_parameters()}
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about=take_over(net, weights, wanted, opened.labels),
        write=lambda folder, about, put=put_whole: write_model(
            folder, net, labels=list(wanted.task.labels), about=about, put=put
        ),
        from_file=dict,
        is_plain=True,
        is_frozen=None if net.reader.trains_elmo else is_elmos,
    )


def _dropout(wanted: Wanted) -> float:
    return _DROPOUT if wanted.settings.dropout is None else wanted.settings.dropout


def _reader(wanted: Wanted, head: str) -> ElmoReaderConfig:
    return ElmoReaderConfig(
        pairs=wanted.task.is_pair or head in ("choose", "span"),
        num_cells=wanted.settings.cells or _CELLS[head],
        dropout=_dropout(wanted),
        trains_elmo=wanted.is_random,
    )


# Feature-based training: the encoder stays as it is, and a reader of its cached layers is what the loop trains.
#
# The network of a run is an encoder with the reader as its tag head, so that its model folder tags texts. The
# trainer sees the reader alone; the encoder computes features once (`feature_cache.py`) and is written beside the
# reader.


CACHE_FOLDER = "features"  # the cache's folder in a run
_CELLS_of_frozen, _DROPOUT_of_frozen = FeatureConfig().lstm_cells, FeatureConfig().lstm_dropout  # the paper's


def open_frozen(wanted: Wanted) -> TaskStart:
    """Make the network of a BERT's folder, or of a tagger's on frozen layers, with a reader whose weights are new."""
    _check_start(wanted)
    kind = kind_of_model(wanted.folder)
    opened = read_model(wanted.folder, kind if kind is FEATURES else BERT)
    tokenizer, settings = Tokenizer.from_folder(wanted.folder), wanted.settings
    config = opened.net.config
    check_sizes(wanted, config.max_position_embeddings, config.num_hidden_layers, config.vocab_size, len(tokenizer))
    net = Bert(config, pooler=False)
    initialise(net, config.initializer_range, wanted.seed)
    about = take_over(net, dict(opened.net.named_parameters()), wanted, [])
    reader = _new_reader(net, wanted.task, settings, wanted.seed)
    feature_bert(net.requires_grad_(False), reader)
    return TaskStart(
        net=net,
        tokenizer=tokenizer,
        about={"drawn": [*about["drawn"], *(f"heads.{HEAD}.{name}" for name, _ in reader.named_parameters())]},
        write=lambda folder, about, put=put_whole: write_model(
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
    dropout = _DROPOUT_of_frozen if settings.dropout is None else settings.dropout
    config = FeatureConfig(
        features=settings.features, lstm_cells=settings.cells or _CELLS_of_frozen, lstm_dropout=dropout
    )
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
    _check_of_frozen(settings)
    reader, train = reader_of(net), settings.train
    assert reader is not None
    half = train.dtype == "bfloat16" or (train.dtype == "auto" and device.type == "cuda")
    dtype = torch.bfloat16 if half else torch.float32
    check_tiles(device, dtype)
    encoder = copy.deepcopy(net).to(device, dtype).eval()
    freeze(encoder)
    laying = Laying(device, can_flash(net.config.head_width, dtype, device))
    kept = reader.layers if folder is None else range(net.config.num_hidden_layers + 1)
    cache = FeatureCache(folder or run / CACHE_FOLDER, encoder, reader.layers, kept, laying, ranks, note)
    num_bytes = sum(weight.nbytes for name, weight in net.named_parameters() if not name.startswith("heads."))
    return FrozenFeatures(cache, feature_kind(WordRows(), reader.layers, cache.find), num_bytes)


def _check_of_frozen(settings: FinetuneSettings) -> None:
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


# Only those rows of the token embedding that occur in a train set are trained as such.
#
# A row that never occurs has no gradient, so Adam moves it by weight decay alone: w (1 - r1 d)(1 - r2 d) ... over
# the rates of all updates. That is one number for all such rows, kept in float64 and applied when the table is
# looked at. The optimizer is spared the rest, which for most tasks is most of the table.
#
# The network holds the rows in use, and its feed numbers ids accordingly. `whole` puts the table together again, to
# measure texts with other tokens and to write models. A checkpoint has the rows at rest as they were in the
# beginning, for those of its model have been rounded.


TABLE = "embeddings.token.weight"
_AT_REST = "embeddings.token.at_rest"


class TrainedRows:
    """Cuts a network's table down to the rows of some ids.

    Args:
        net: the network, new and on the CPU; its table is cut from now on.
        ids: all that will be trained on.

    Attributes:
        rows: the row in the cut table of each id that is in it.
        at_rest: the rest of the table, as it was in the beginning.
        factor: by which the rest has shrunk so far; set it before training.
    """

    def __init__(self, net: Bert, ids: NDArray[np.int32]) -> None:
        self._embedding = net.embeddings.token
        table = self._embedding.weight.detach()
        is_used = np.zeros(len(table), bool)
        is_used[ids] = True
        self._used, self._unused = (torch.from_numpy(np.flatnonzero(mask)) for mask in (is_used, ~is_used))
        self.rows = np.cumsum(is_used, dtype=np.int32) - 1
        self.at_rest = table[self._unused]
        self.factor: Callable[[], float] = lambda: 1.0
        self._embedding.weight = nn.Parameter(table[self._used])

    def cut(self, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the weights of a whole network with the table cut."""
        return {**weights, TABLE: weights[TABLE][self._used]}

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Have the whole table in the network for a while."""
        cut = self._embedding.weight
        self._embedding.weight = nn.Parameter(self._put_together(cut.detach()), requires_grad=False)
        try:
            yield
        finally:
            self._embedding.weight = cut

    def _put_together(self, cut: Tensor) -> Tensor:
        table = cut.new_empty(len(self._used) + len(self._unused), cut.shape[1])
        table[self._used.to(cut.device)] = cut
        table[self._unused.to(cut.device)] = (self.at_rest * self.factor()).to(cut.device)
        return table

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold to go on."""
        return {_AT_REST: self.at_rest}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what a checkpoint holds."""
        self.at_rest = tensors[_AT_REST].clone()


# What is learnt in fine-tuning: a task and, with a GPT-1, its language model over the same texts beside it.
#
# The language model's loss is the mean over all its guesses in the batch, times its weight (the GPT paper's
# lambda); so it is weighted in the logs too, where losses add up.


LM = "lm"


def task_objective(kind: Kind, task: Task, lm_weight: float) -> Objective:
    """Return what gives the sums of a batch."""

    def alone(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        return {task.kind: kind.sums(kind.scores(net, batch), batch)}

    def with_lm(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        reading: Any = Reading(net, batch.tokens)
        sums: Sums = reading.lm_sums()
        # A part that only fills up a batch has no weights, and is not to be learnt.
        counts = (batch.weights.sum() > 0).float()
        lm = Sums(sums.loss * counts * lm_weight, sums.correct * counts, sums.total * counts)
        return {**alone(reading, batch), LM: lm}

    return with_lm if lm_weight else alone


def counts_of(start: TaskStart, batch: TaskBatch) -> list[float]:
    """Return how many predictions of each kind a batch has; as the objective counts them."""
    total = float(batch.weights.sum())
    if not start.lm_weight:
        return [total]
    return [total, float(num_guesses(batch.tokens, both_orders=start.net.both_orders)) if total else 0.0]


# What is fine-tuned: a network with a task's objective, which of its layers learn, and how fast each does.


_BIAS = "heads.classify.out.bias"


def freeze_layers(net: Any, layers: int | str) -> None:
    """Keep the embeddings and so many of the lowest layers, or all encoders whole, as they are."""
    stacks = net.stacks()
    most = num_layers(net)
    count = most if layers == "all" else int(layers)
    kept = tuple(name for stack in stacks for names in stack[: count + 1] for name in names) if layers else ()
    for name, parameter in net.named_parameters():
        if name.startswith(kept):
            parameter.requires_grad_(False)


def num_layers(net: Any) -> int:
    """Return how many layers a network has above its embeddings; of several encoders that of the deepest."""
    return max(map(len, net.stacks())) - 1


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
