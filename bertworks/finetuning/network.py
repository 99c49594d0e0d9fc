"""The network that is fine-tuned: made of a model of any kind, what of it learns and how fast, and what it learns.

- A network that can be fine-tuned gives a row for each of the tokens that it is called with, `pooled_of(tokens)` gives
  a row for each sequence, `scores(head, rows)` what a head of `heads` makes of rows, and `stacks()` says which weights
  are its layers'. Its tokenizer encodes texts and pairs as BERT's does.
- A BERT is fine-tuned by itself, beside another one (`--with`) or under a BiLSTM. A left-to-right BERT is pooled at its
  last token, because [CLS] at the front has seen no other token.
- A GPT-1 gets special pieces around texts, and its language model keeps training, as in its paper.
- An ELMo is frozen; the mix of its layers, the BiLSTMs and the head are drawn from the seed and trained. With
  `--init random` the ELMo is drawn from the seed, too, and all of it is trained, as with a BERT.
- With `task.features` a BERT is frozen, and a BiLSTM reads its layers (the paper's Table 7). The network of such a run
  is an encoder with the reader as its tag head, so that its model folder tags texts. The trainer sees the reader alone;
  the encoder computes features once (`features.py`) and is written beside the reader.
- Only the rows of the token embedding that occur in the train set are trained: `TrainedRows`. A row that never occurs
  has no gradient, so Adam changes it by weight decay alone: w (1 - r1 d)(1 - r2 d) ... over the rates of all updates.
  That is one factor for all such rows, kept in float64 and applied when the table is read. So the optimizer skips these
  rows, which for most tasks are most of the table. The network holds the rows in use, and its feed numbers ids
  accordingly; `whole` restores the whole table, to measure texts with other tokens and to write models. A checkpoint
  stores the unused rows as they were at the start, because those in its model have been rounded.
- The language model's loss is the mean over all its predictions in the batch, times its weight (lambda in GPT's paper);
  in the logs it is weighted, too, so that the losses there add up.
"""

import copy
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.errors import ConfigError, UserError, counted
from bertworks.finetuning.features import FeatureCache
from bertworks.finetuning.settings import FinetuneSettings, TaskSettings
from bertworks.models.folder import CONFIG_FILE, find_model, read_json
from bertworks.models.kinds import (
    BERT,
    COMPOUND,
    ELMO,
    ELMO_TASK,
    FEATURES,
    GPT,
    KINDS,
    ModelKind,
    is_elmos,
    is_encoders,
    kind_of_model,
    read_model,
    reader_weights,
    write_model,
)
from bertworks.models.weights import put_whole
from bertworks.nn.attention import can_flash
from bertworks.nn.bert import Bert, OutputHead, Sums
from bertworks.nn.bilstm import (
    HEAD,
    Compound,
    FeatureReader,
    feature_bert,
    initialise_compound,
    initialise_readers,
    reader_of,
)
from bertworks.nn.config import BertConfig, CompoundConfig, ElmoConfig, ElmoReaderConfig, FeatureConfig, GptConfig
from bertworks.nn.elmo import ElmoTasks, initialise_elmo_tasks
from bertworks.nn.gpt import LM_WEIGHT, Gpt, Reading, num_guesses
from bertworks.nn.layers import check_tiles, freeze, initialise
from bertworks.tasks.evaluation import WordRows, feature_kind
from bertworks.tasks.heads import BatchLayout, TaskBatch, TaskHead
from bertworks.tasks.task import Task
from bertworks.text.gpt import FINE_TUNING_TOKENS, with_special_pieces
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.checkpoint import checkpoint_folders
from bertworks.train.distributed import Ranks
from bertworks.train.objectives import Objective

AnyPath = str | os.PathLike[str]
TABLE = "embeddings.token.weight"
_AT_REST = "embeddings.token.at_rest"
LM = "lm"
_BIAS = "heads.classify.out.bias"
CACHE_FOLDER = "features"  # the cache's folder in a run
_LSTM_LAYERS = 2  # as in the paper's other BiLSTM, that of section 5.3, whose cells are as many as BERT base is wide
# A BERT's rate and epochs are far too low for BiLSTMs that are trained from scratch, so ELMo has its own.
_ELMO_DROPOUT = 0.2
USUAL = ("optim.lr=1e-3", "optim.clip=5.0", "train.epochs=10", f"task.dropout={_ELMO_DROPOUT}")
# In each direction, by head: GLUE's baselines have 1,500, ELMo's own tagger 200.
_ELMO_CELLS = {"classify": 1_500, "choose": 1_500, "tag": 200, "span": 200}


class FrozenFeatures(NamedTuple):
    """The cache of features, the kind of task that reads them, and the encoder's size in a folder in bytes."""

    cache: FeatureCache
    kind: TaskHead
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
        notes: remarks for users.
        is_plain: whether it is computed in float32 as it is written, see `ModelKind`.
        reader: the only part that is trained, where the rest is frozen.
        features: what the reader reads.
        rates: the learning rates that the model's folder recommends; they are written again with the result.
        is_frozen: tells by their names which tensors of a folder are frozen, so that checkpoints share a copy; `write`
            then takes the function that writes weights into a folder, see `put_divided`.
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


def refused_sizes(settings: TaskSettings, num_positions: int, num_layers: int, folder: Path) -> list[str]:
    """Return a line for each size that a model does not have: more tokens than positions, more layers than its own."""
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
    """Raise UserError if there are problems: with the only one, or with all of them."""
    if problems:
        raise ConfigError(where, problems) if problems[1:] else UserError(problems[0])


def starts_with_elmo(source: str | os.PathLike[str], run: Path) -> bool:
    """Tell whether a run fine-tunes an ELMo; by its checkpoint, if there is one, as the model may have been deleted."""
    started = checkpoint_folders(run)
    folder = started[0] if started else find_model(source)
    return (folder / CONFIG_FILE).exists() and kind_of_model(folder) in (ELMO, ELMO_TASK)


def check_elmo_settings(settings: FinetuneSettings, *, is_random: bool) -> None:
    """Refuse settings that have no meaning for an ELMo, all at once."""
    task, train, problems = settings.task, settings.train, []
    if is_random and task.freeze != 0:
        problems.append(f"task.freeze={task.freeze}: a random start has nothing to freeze; leave it out")
    elif task.freeze not in (0, "all"):
        problems.append(f"task.freeze={task.freeze}: the ELMo is frozen anyway, and all above it is trained")
    if task.layer_decay != 1:
        problems.append(f"task.layer_decay={task.layer_decay}: its layers have no learning rates of their own")
    if train.dtype == "bfloat16":
        problems.append("train.dtype=bfloat16: its LSTMs are trained in float32")
    if train.compile:
        problems.append("train.compile=true: its LSTMs are cuDNN's, which torch.compile does not see into")
    if problems:
        raise ConfigError("fine-tuning an ELMo", problems)


def kind_for_task(folder: Path, task: Task, settings: TaskSettings, beside: Path | None) -> ModelKind:
    """Return the kind of network that a model's folder becomes, or refuse what its kind does not allow."""
    kind = kind_of_model(folder)
    if settings.features:
        if task.kind != "tag":
            raise UserError(
                f"task.features is for tagging, and {task.title} is to {task.kind}; task.freeze=all "
                "trains a head on a frozen encoder"
            )
        if beside:
            raise UserError("task.features reads the layers of one BERT; leave out --with")
        kind = FEATURES
    elif kind is FEATURES:
        others = ", ".join(one.name for one in KINDS if one is not FEATURES)
        raise UserError(f"{folder} is a model of kind {kind.name}, which cannot be fine-tuned; {others} can")
    if settings.cells and kind not in (ELMO, ELMO_TASK, FEATURES):
        raise UserError(f"task.cells {settings.cells}: only an ELMo and task.features have them; leave it out")
    if settings.lm_weight and kind is not GPT:
        raise UserError("task.lm_weight is for a GPT-1, whose language model keeps training; leave it out")
    if kind is COMPOUND and beside:
        raise UserError(f"{folder} is made of encoders already; --with is for two BERTs")
    if (beside or settings.bilstm) and kind in (GPT, ELMO, ELMO_TASK):
        what = "--with" if beside else "task.bilstm"
        raise UserError(f"{folder} is {kind.title}, and {what} is for BERTs; leave it out")
    if kind is BERT and (beside or settings.bilstm):
        return COMPOUND
    return ELMO_TASK if kind is ELMO else kind


def open_network(
    folder: Path,
    task: Task,
    heads: dict[str, int],
    settings: TaskSettings,
    *,
    seed: int,
    is_random: bool = False,
    beside: Path | None = None,
) -> TaskStart:
    """Make the network of a model's folder with the task's head; weights that fit are taken over, others are drawn.

    A head is taken over only from a model with the same labels; with a random start nothing is.

    Args:
        folder: of the model, or of the checkpoint that a run resumes from.
        task: what is learnt.
        heads: the task's, with its number of outputs.
        settings: of the task.
        seed: what is new is drawn from it.
        is_random: whether all is new.
        beside: the folder of a second model that reads the same texts.
    """
    kind = kind_for_task(folder, task, settings, beside)
    theirs = kind_of_model(folder)
    opened = read_model(folder, BERT if kind is FEATURES and theirs is not FEATURES else theirs)
    tokenizer: Any = kind.tokenizer.from_folder(folder)
    nets = [opened.net]
    if beside:
        nets.append(_open_beside(beside, tokenizer, folder))
    problems, vocab_size = [], min(net.config.vocab_size for net in nets)
    if kind is not ELMO_TASK:
        num_positions = min(net.config.max_position_embeddings for net in nets)
        problems += refused_sizes(settings, num_positions, max(map(num_layers, nets)), folder)
    if len(tokenizer) > vocab_size:
        problems.append(f"{folder}: its vocabulary has {len(tokenizer):,} pieces, its model {vocab_size:,}")
    raise_all(str(folder), problems)
    if task.is_pair and any(getattr(net.config, "type_vocab_size", 2) < 2 for net in nets):
        raise UserError(f"{task.title} has pairs of texts, and {folder} knows one segment (type_vocab_size 1)")
    weights: dict[str, Tensor] = dict(opened.net.named_parameters())
    notes: tuple[str, ...] = ()
    drawn, reader = [], None
    net: Any
    if kind is BERT:
        net = _new_bert(opened.net.config, heads, settings, seed, folder)
    elif kind is COMPOUND:
        net = _new_compound(nets, heads, settings, seed, folder)
        if theirs is BERT:
            weights = {f"encoders.{number}.{name}": weight
                       for number, one in enumerate(nets) for name, weight in one.named_parameters()}  # fmt: skip
    elif kind is GPT:
        plain, tokenizer = tokenizer, with_special_pieces(tokenizer)
        sizes = {"vocab_size": max(opened.net.config.vocab_size, len(tokenizer))}
        net = _new_gpt(opened.net.config.model_copy(update=sizes), task, heads, settings, seed)
        if tokenizer is not plain:  # the pieces that its vocabulary does not have get rows that are drawn
            known = weights["token.weight"][: len(plain)]
            weights["token.weight"] = torch.cat([known, net.token.weight[len(plain) :]]).detach()
        drawn = [piece for piece in FINE_TUNING_TOKENS if piece not in plain.pieces]
    elif kind is ELMO_TASK:
        net = _new_elmo_tasks(opened.net.config, task, heads, settings, seed, is_random=is_random)
        if theirs is ELMO:
            weights = {f"elmo.{name}": weight for name, weight in weights.items()}
    else:
        net = Bert(opened.net.config, pooler=False)
        initialise(net, net.config.initializer_range, seed)
    has_its_labels = opened.labels == list(task.labels)
    drawn = sorted(_take_over(net, {} if is_random else weights, has_its_labels=has_its_labels)) + drawn
    if kind is FEATURES:
        reader = _new_reader(net.config, settings, len(task.labels), seed)
        feature_bert(net.requires_grad_(False), reader)
        drawn += [f"heads.{HEAD}.{name}" for name, _ in reader.named_parameters()]
    has_new_head = any(name.startswith("heads.") for name in drawn)
    if kind is BERT and has_new_head and not is_random and heads.keys() & opened.net.heads.keys():
        old, ours = (", ".join(names)[:80] or "scores" for names in (opened.labels, task.labels))
        message = f"was fine-tuned for other labels ({old}): its encoder is reused, the head is new ({ours})"
        notes = (f"{folder} {message}",)
    is_frozen = {FEATURES: is_encoders, ELMO_TASK: None if is_random else is_elmos}.get(kind)
    return TaskStart(
        net=net,
        tokenizer=kind.task_inputs(net, tokenizer),
        about={"drawn": drawn},
        write=lambda folder, about, put=put_whole: write_model(
            folder, net, labels=list(task.labels), about=about, put=put
        ),
        from_file=reader_weights if reader else partial(kind.from_file, list(net.state_dict())),
        lm_weight=(LM_WEIGHT if settings.lm_weight is None else settings.lm_weight) if kind is GPT else 0.0,
        notes=notes,
        is_plain=kind.is_plain,
        reader=reader,
        is_frozen=is_frozen,
    )


@torch.no_grad()
def _take_over(net: nn.Module, weights: Mapping[str, Tensor], *, has_its_labels: bool) -> Iterator[str]:
    """Copy the weights that fit, and yield the names of the others, which stay as they were drawn."""
    for name, parameter in net.named_parameters():
        is_other_head = name.startswith("heads.") and not has_its_labels
        fits = name in weights and weights[name].shape == parameter.shape
        if fits and not is_other_head:
            parameter.copy_(weights[name])
        else:
            yield name


def _open_beside(folder: Path, tokenizer: Tokenizer, first: Path) -> Bert:
    if kind_of_model(folder) is not BERT:
        raise UserError(f"{folder} is not a BERT; --with takes one of the other direction, with the same vocabulary")
    other = Tokenizer.from_folder(folder)
    if other.pieces != tokenizer.pieces or other.rules != tokenizer.rules:
        what = f"{len(tokenizer):,} and {len(other):,} pieces"
        if len(tokenizer) == len(other):
            what = "the same number of pieces, but not the same ones or not the same rules for words"
        raise UserError(f"{first} and {folder} must have the same vocabulary; they have {what}")
    net: Bert = read_model(folder).net
    return net


def _task_config(config: BertConfig, settings: TaskSettings) -> BertConfig:
    """Return a BERT's sizes with the settings' dropout; a left-to-right BERT is pooled at its last token."""
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), settings.dropout)
    summary = {"summary": "last"} if config.direction == "left_to_right" else {}
    return config.model_copy(update=summary if settings.dropout is None else dropout | summary)


def _new_bert(theirs: BertConfig, heads: dict[str, int], settings: TaskSettings, seed: int, folder: Path) -> Bert:
    config = _task_config(theirs, settings)
    net = Bert(config, heads, pooler=False)
    own_dropout = read_json(folder / CONFIG_FILE).get("classifier_dropout")  # of the head, in transformers
    if own_dropout is not None and settings.dropout is None:
        for head in net.all_heads():
            if isinstance(head, OutputHead) and head.dropout:
                head.dropout = float(own_dropout)
    initialise(net, config.initializer_range, seed)
    return net


def _new_compound(
    nets: Sequence[Any], heads: dict[str, int], settings: TaskSettings, seed: int, folder: Path
) -> Compound:
    """Make the network of encoders side by side, from a folder that has both, or from one or two BERTs."""
    config = nets[0].config
    if isinstance(config, BertConfig):
        config = CompoundConfig(
            encoders=tuple(net.config for net in nets),
            num_lstm_layers=_LSTM_LAYERS if settings.bilstm else 0,
            num_cells=config.hidden_size,
        )
    elif settings.bilstm and not config.num_lstm_layers:
        raise UserError(f"{folder} has two encoders and no BiLSTM; start from those with task.bilstm=true")
    encoders = tuple(_task_config(encoder, settings) for encoder in config.encoders)
    net = Compound(config.model_copy(update={"encoders": encoders}), heads)
    initialise_compound(net, seed)
    return net


def _new_gpt(config: GptConfig, task: Task, heads: dict[str, int], settings: TaskSettings, seed: int) -> Gpt:
    if settings.dropout is not None:
        names = ("resid_pdrop", "embd_pdrop", "attn_pdrop")
        config = config.model_copy(update=dict.fromkeys(names, settings.dropout))
    net = Gpt(config, heads, both_orders=task.is_symmetric)
    initialise(net, config.initializer_range, seed, cut=False)
    return net


def _new_elmo_tasks(
    theirs: ElmoConfig, task: Task, heads: dict[str, int], settings: TaskSettings, seed: int, *, is_random: bool
) -> ElmoTasks:
    (head,) = heads
    dropout = _ELMO_DROPOUT if settings.dropout is None else settings.dropout
    config = theirs.model_copy(update={"dropout": dropout}) if is_random else theirs
    reader = ElmoReaderConfig(
        pairs=task.is_pair or head in ("choose", "span"),
        num_cells=settings.cells or _ELMO_CELLS[head],
        dropout=dropout,
        trains_elmo=is_random,
    )
    net = ElmoTasks(config, reader, heads)
    initialise_elmo_tasks(net, seed)
    return net


def _new_reader(encoder: BertConfig, settings: TaskSettings, num_labels: int, seed: int) -> FeatureReader:
    usual = FeatureConfig()  # the paper's
    assert settings.features is not None
    config = FeatureConfig(
        features=settings.features,
        lstm_cells=settings.cells or usual.lstm_cells,
        lstm_dropout=usual.lstm_dropout if settings.dropout is None else settings.dropout,
    )
    reader = FeatureReader(config, encoder, num_labels)
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
        note: is called with what is computed or found.
    """
    _check_frozen(settings)
    reader, train = reader_of(net), settings.train
    assert reader is not None
    half = train.dtype == "bfloat16" or (train.dtype == "auto" and device.type == "cuda")
    dtype = torch.bfloat16 if half else torch.float32
    check_tiles(device, dtype)
    encoder = copy.deepcopy(net).to(device, dtype).eval()
    freeze(encoder)
    layout = BatchLayout(device, can_flash(net.config.head_width, dtype, device))
    kept = reader.layers if folder is None else range(net.config.num_hidden_layers + 1)
    cache = FeatureCache(folder or run / CACHE_FOLDER, encoder, reader.layers, kept, layout, ranks, note)
    num_bytes = sum(weight.nbytes for name, weight in net.named_parameters() if not name.startswith("heads."))
    return FrozenFeatures(cache, feature_kind(WordRows(), reader.layers, cache.find), num_bytes)


def _check_frozen(settings: FinetuneSettings) -> None:
    """Refuse all settings that have no effect where the encoder is frozen."""
    usual = FinetuneSettings()
    names = (
        "task.freeze", "task.layer_decay", "task.bilstm", "task.class_weights", "train.compile", "train.recompute",
        "train.shard",
    )  # fmt: skip
    problems = [
        f"{name}: task.features trains a BiLSTM on frozen layers, where it has no effect; leave it out"
        for name in names
        if attrgetter(name)(settings) != attrgetter(name)(usual)
    ]
    if problems:
        raise ConfigError("task.features", problems)


class TrainedRows:
    """Cuts a network's table down to the rows of some ids.

    Args:
        net: the network, new and on the CPU; its table is cut from now on.
        ids: all that will be trained on.

    Attributes:
        rows: the row in the cut table of each id that is in it.
        at_rest: the rest of the table, as it was at the start.
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
        """Put the whole table into the network for a while."""
        cut = self._embedding.weight
        table = cut.new_empty(len(self._used) + len(self._unused), cut.shape[1])
        with torch.no_grad():
            table[self._used.to(cut.device)] = cut
            table[self._unused.to(cut.device)] = (self.at_rest * self.factor()).to(cut.device)
        self._embedding.weight = nn.Parameter(table, requires_grad=False)
        try:
            yield
        finally:
            self._embedding.weight = cut

    def tensors(self) -> dict[str, Tensor]:
        """Return what a checkpoint must hold to resume."""
        return {_AT_REST: self.at_rest}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Take back what a checkpoint holds."""
        self.at_rest = tensors[_AT_REST].clone()


def task_objective(kind: TaskHead, task: Task, lm_weight: float) -> Objective:
    """Return the objective of a task: a function that returns the sums of a batch."""

    def alone(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        return {task.kind: kind.sums(kind.scores(net, batch), batch)}

    def with_lm(net: Any, batch: TaskBatch) -> dict[str, Sums]:
        reading: Any = Reading(net, batch.tokens)
        sums: Sums = reading.lm_sums()
        # A micro-batch that only fills up a batch has no weights, and nothing is learnt from it.
        counts = (batch.weights.sum() > 0).float()
        lm = Sums(sums.loss * counts * lm_weight, sums.correct * counts, sums.total * counts)
        return {**alone(reading, batch), LM: lm}

    return with_lm if lm_weight else alone


def counts_of(start: TaskStart, batch: TaskBatch) -> list[float]:
    """Return how many predictions of each kind a batch has, as the objective counts them."""
    total = float(batch.weights.sum())
    if not start.lm_weight:
        return [total]
    return [total, float(num_guesses(batch.tokens, both_orders=start.net.both_orders)) if total else 0.0]


def freeze_layers(net: Any, layers: int | str) -> None:
    """Freeze the embeddings and this many of the lowest layers, or all encoders."""
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
    depths = [(names, len(stack) - index) for stack in net.stacks() for index, names in enumerate(stack)]
    return {
        name: decay**depth
        for name, _ in net.named_parameters()
        for prefixes, depth in depths
        if decay < 1 and name.startswith(prefixes)
    }


@torch.no_grad()
def begin_with_mean(start: TaskStart, scores: NDArray[np.float32]) -> None:
    """Let a new head give every text the mean score; learning that alone could take most of a fine-tuning run."""
    if _BIAS in start.about.get("drawn", ()):  # a GPT-1's has none
        start.net.get_parameter(_BIAS).fill_(float(scores.mean(dtype=np.float64)))
