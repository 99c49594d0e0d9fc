"""What is trained in fine-tuning: examples as items in batches, the dev set measured, the best model kept.

- `prepare` reads and encodes the examples, freezes layers, cuts the token table and collects notes for the user;
  `Finetuning` is the task that the trainer trains.
- The order of an epoch is that of a hash of (seed, epoch, item), so the state of the data is {epoch, offset} and a seek
  costs nothing. The last batch of an epoch may be short: every item is seen once in an epoch.
- `model/` is that of the best evaluation so far; it is replaced at the instant a better one is measured.
"""

import copy
import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.config import Count, FileRecord, Settings, read_record
from bertworks.errors import CorruptFile, UserError, counted
from bertworks.finetuning.network import (
    LM,
    TABLE,
    TaskStart,
    TrainedRows,
    begin_with_mean,
    counts_of,
    freeze_layers,
    rate_scales,
    task_objective,
)
from bertworks.finetuning.report import Clock, state_cost, write_dev, write_finetune_report
from bertworks.finetuning.settings import FinetuneSettings, FinetuneTrainSettings
from bertworks.models.folder import num_positions
from bertworks.models.weights import put_divided
from bertworks.nn.bert import Bert, Block
from bertworks.planning.costs import MicroBatch as PlannedBatch
from bertworks.planning.costs import block_bytes, check_memory, lstm_bytes, score_bytes
from bertworks.report.logs import MODEL, Status
from bertworks.report.terminal import News
from bertworks.tasks.evaluation import evaluate
from bertworks.tasks.heads import BatchLayout, Items, TaskBatch, TaskHead, kind_of, to_batch
from bertworks.tasks.task import DEV, TRAIN, Dataset, Example, TagExample, Task, digest_of, examples_of
from bertworks.text.elmo_words import SpelledTokenizer
from bertworks.text.vocabulary import much_unknown
from bertworks.train.checkpoint import checkpoint_folders, digest_with
from bertworks.train.distributed import Ranks
from bertworks.train.log import Progress
from bertworks.train.objectives import dropout_seed
from bertworks.train.optim import Optimizer, learning_rate
from bertworks.train.run_folder import replace_model
from bertworks.train.trainer import Batches, MicroBatch, Result, Shapes, Trainer

_BATCHES_SORTED = 50
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
_FAR = 30  # scores from 0 to 5 are learnt well, thousands hardly: a step of Adam is about as large as the rate
_WIDE = 10
_FEW_STEPS = 50  # in fewer a new head has hardly started to learn
_SMALL_BATCH = 8
_SHARE_OF_LAST = 0.35  # of a block's memory: what the last block takes where only one token of a text is read
_log = logging.getLogger(__name__)


class Finetuned(NamedTuple):
    """How a run ended.

    Attributes:
        metric: the task's main one.
        score: the best on the dev set.
        step: when that was reached; what `model/` holds.
        metrics: all that was measured then.
        progress: where the run ended.
        reason: why: steps, minutes, early, signal, ...
        minutes: how long the run held its device, over all of its starts; added up over several devices.
        signal: the signal that ended it, or 0.
    """

    metric: str
    score: float
    step: int
    metrics: dict[str, float]
    progress: Progress
    reason: str
    minutes: float
    signal: int = 0


class Best(Settings):
    """The best evaluation so far, and how many came after it."""

    step: Count
    metrics: dict[str, float]
    num_since: Count = 0


class _Memory(FileRecord):
    """What a checkpoint of fine-tuning holds in addition, see `Finetuning.state`."""

    idle: float
    idle_mean: float = 1.0
    best: Best | None = None


def prepare(
    settings: FinetuneSettings,
    dataset: Dataset,
    start: TaskStart,
    note: Callable[[str], None] = _log.info,
    kind: TaskHead | None = None,
    *,
    is_new: bool = True,
) -> "Finetuning":
    """Read and encode a task's examples and prepare the network; `note` is called with remarks for the user."""
    task, notes = dataset.task, list(dataset.notes)
    kind = start.features.kind if start.features else kind or kind_of(task)

    def noted(text: str) -> None:
        notes.append(text)
        note(text)

    freeze_layers(start.net, settings.task.freeze)
    examples = some_of(examples_of(dataset, TRAIN, noted), settings.task.max_examples)
    items = kind.encode(examples, start.tokenizer, task, settings.task.cut(), is_training=True)
    if settings.task.class_weights:
        items = kind.weigh(items, task)
    if task.kind == "regress":
        begin_with_mean(start, items.targets)
    for remark in remarks(items, task.kind, start.tokenizer.pieces):
        noted(f"{TRAIN}: {remark}")
    for remark in few_steps(len(items), len(examples), settings, task.kind) if is_new else ():
        note(remark)  # about this run alone, so it is not recorded with the model
    dev = examples_of(dataset, DEV, noted)
    dev_items = kind.encode(dev, start.tokenizer, task, settings.task.cut())

    # Epochs become steps; a graph is compiled only on request, as every batch has another shape.
    train = settings.train
    steps = train.epochs * steps_per_epoch(len(items), train)
    update = {"max_steps": min(train.max_steps, steps), "compile": bool(train.compile)}
    settings = settings.model_copy(update={"train": train.model_copy(update=update)})
    # The table stays whole for LAMB, which needs its norm, for a sharded network, which has it in parts, for a language
    # model, which scores all of it, and for two encoders, which have two.
    is_cut = isinstance(start.net, Bert) and start.net.embeddings.token.weight.requires_grad
    is_cut = is_cut and not train.shard and settings.optim.name != "lamb"
    table = TrainedRows(start.net, items.ids) if is_cut else None
    return Finetuning(settings, task, kind, start, items, dev, dev_items, table, notes, note)


class Finetuning:
    """What is trained in fine-tuning: a network with a task's head on its examples; see `Task`."""

    measures_first = False
    flops_per_token: float | None = None

    def __init__(
        self,
        settings: FinetuneSettings,
        task: Task,
        kind: TaskHead,
        start: TaskStart,
        items: Items,
        dev: Sequence[Example],
        dev_items: Items,
        table: TrainedRows | None,
        notes: list[str],
        note: Callable[[str], None],
    ) -> None:
        self.settings, self.task, self.kind, self.start = settings, task, kind, start
        self.items, self.dev, self.dev_items, self.table = items, dev, dev_items, table
        self.notes, self._note = notes, note
        self.net: nn.Module = start.reader or start.net
        self.objective = task_objective(kind, task, start.lm_weight)
        self.kinds: tuple[str, ...] = (task.kind, LM) if start.lm_weight else (task.kind,)
        self.metrics, self.is_plain = tuple(task.metrics), start.is_plain
        self.shapes: Shapes = "few" if isinstance(start.net, Bert) and start.features is None else "many"
        self.extra_bytes = table.at_rest.nbytes if table else 0
        self.extra_bytes += start.features.num_bytes if start.features else 0
        train = settings.train
        self.out_of_memory = (
            f"with batches of {counted(train.batch_size, 'example')} in {counted(train.slices, 'slice')}; start again "
            "with a higher train.slices, or a lower train.batch_size or task.max_length"
        )
        self.best: Best | None = None
        self._published: Best | None = None  # the same, unless the disk refused it

    def setup(self, trainer: Trainer) -> None:
        """See `Task`."""
        self.trainer, device, train, start = trainer, trainer.device, self.settings.train, self.start
        self.title = f"{trainer.folder.name}, {self.task.title}, {device}"
        self.clock = Clock(trainer.folder, device, trainer.ranks.world_size, writes=trainer.ranks.is_first)
        view = trainer.view

        def timed_view(news: News, status: Status) -> None:
            if news == "train":
                self.clock.note(status.step)
            view(news, status)

        trainer.view = timed_view
        layout = BatchLayout(
            device, trainer.flash, self.table.rows if self.table else None, merge_similar=device.type == "cpu"
        )
        if trainer.replays:
            layout = layout._replace(device=torch.device("cpu"), filled=int(np.diff(self.items.bounds).max()))
        self.feed = TaskFeed(
            self.items, train, layout, trainer.ranks, partial(counts_of, start), alike=start.features is not None
        )
        if self.table:
            self.table.factor = lambda: float(trainer.optimizer.idle)
        if device.type == "cpu" and train.check_memory and not start.features:
            has_cells = any(isinstance(module, nn.LSTM) for module in start.net.modules())
            ways = f"train.slices (more), train.batch_size or task.max_length{' or task.cells' * has_cells} (less)"

            def noted(text: str) -> None:
                self.notes.append(text)
                self._note(text)

            check_memory({"a step": trainer.ranks.world_size * self._needed_memory()}, ways, noted)

    def _needed_memory(self) -> float:
        """Return about how many bytes a step takes on a CPU, besides the weights and the optimizer's state.

        Lengths of batches vary; the estimate is for the mean plus two standard deviations.
        """
        train, lengths, sequences = self.settings.train, self.items.lengths(), np.diff(self.items.bounds).astype(float)
        count = min(-(-train.batch_size // train.slices), len(lengths))
        tokens = min(count * lengths.mean() + 2 * lengths.std() * math.sqrt(count), count * lengths.max())
        blocks = [module for module in self.start.net.modules() if isinstance(module, Block)]
        has_dropout = any(block.attention_dropout for block in blocks)
        attended = has_dropout * float((sequences**2).sum() / max(1.0, sequences.sum()))
        part = PlannedBatch(int(tokens), self.trainer.half, train.recompute, on_cpu=True, attended=attended)
        bytes_each = 2 if part.half else 4
        needed = 4.0 * sum(weight.numel() for weight in self.start.net.parameters() if weight.requires_grad)
        # Where only one token of a text is read, the last block computes just keys and values of the other tokens.
        last = blocks[-1] if blocks and self.task.kind not in ("tag", "answer") and not self.start.lm_weight else None
        for module in self.start.net.modules():
            if not any(weight.requires_grad for weight in module.parameters(recurse=isinstance(module, Block))):
                continue
            if isinstance(module, Block):
                kept = block_bytes(module.down.weight.shape[0], module.num_heads, part, bytes_each)
                kept *= _SHARE_OF_LAST if module is last else 1
                needed += tokens * (bytes_each * module.down.weight.shape[0] if part.recompute else kept)
            elif isinstance(module, nn.LSTM):
                needed += lstm_bytes(module.hidden_size, 1 + module.bidirectional, tokens)
        if self.start.lm_weight:
            needed += score_bytes(tokens, self.start.net.config.vocab_size)
        return float(needed)

    def optimizer(self, net: nn.Module) -> Optimizer:
        """See `Task`."""
        scales = rate_scales(self.start.net, self.settings.task.layer_decay)
        reach = self.settings.task.average * steps_per_epoch(len(self.items), self.settings.train)
        return Optimizer(net, self.settings.optim, scales, scales.get(TABLE, 1.0), reach)

    def batches(self, progress: Progress) -> Batches:
        """See `Task`."""
        return self.feed.batches(progress)

    def learning_rate(self, progress: Progress) -> float:
        """See `Task`."""
        return learning_rate(self.settings.optim, progress.step, self.settings.train.max_steps)

    def is_time_to_evaluate(self, progress: Progress) -> bool:
        """See `Task`."""
        every = self.settings.train.eval_every
        return progress.step % self.feed.steps_per_epoch == 0 or bool(every and progress.step % every == 0)

    def evaluate(self, progress: Progress) -> dict[str, float]:
        """Measure the dev set; a model that is better than all before becomes the run's `model/`."""
        trainer, task = self.trainer, self.task
        with trainer.optimizer.averaged():
            with self.table.whole() if self.table else nullcontext():
                net: Any = trainer.whole_net()
                # In half precision a copy, as in training, because the weights are fp32.
                net = copy.deepcopy(net).to(torch.bfloat16).eval() if trainer.half else net.eval()
                layout = BatchLayout(trainer.device, trainer.flash)
                found = evaluate(net, self.kind, task, self.dev, self.dev_items, layout)
            named = [name for name in (*task.metrics, "threshold", "loss") if name in found.metrics]
            defined = {name: found.metrics[name] for name in named if not math.isnan(found.metrics[name])}
            metrics = {f"dev_{name}": value for name, value in defined.items()}
            if self._is_better(defined):
                self.best = Best.model_construct(step=progress.step, metrics=defined)
                with trainer.refusable(MODEL):
                    trainer.gather({})
                    if trainer.ranks.is_first:
                        about = self._about(progress, metrics, self.clock.cost())
                        with replace_model(trainer.folder, trainer.model_bytes()) as folder:
                            self._write(folder, about)
                        task = replace(task, threshold=defined.get("threshold"))
                        write_dev(trainer.folder, task, progress.step, defined, self.dev, found)
                    self._published = self.best
            elif self.best:
                self.best = self.best.model_copy(update={"num_since": self.best.num_since + 1})
        with trainer.refusable():
            self.clock.note(progress.step)
        return metrics

    def _is_better(self, metrics: Mapping[str, float]) -> bool:
        """Tell whether the main metric is higher than the best so far, or equal with a lower loss.

        An undefined correlation ranks lowest.
        """

        def rank(metrics: Mapping[str, float]) -> tuple[float, float]:
            return metrics.get(self.task.metrics[0], -math.inf), -metrics.get("loss", math.inf)

        return self.best is None or rank(metrics) > rank(self.best.metrics)

    def is_enough(self) -> bool:
        """See `Task`."""
        patience = self.settings.task.early_stopping
        return bool(patience and self.best and self.best.num_since >= patience)

    def save_model(self, folder: Path, progress: Progress) -> None:
        """See `Task`."""
        about = self._about(progress, self.trainer.metrics)
        if self.start.is_frozen:
            before = next(iter(checkpoint_folders(self.trainer.folder)), None)
            self._write(folder, about, partial(put_divided, is_frozen=self.start.is_frozen, before=before))
        else:
            self._write(folder, about)

    def _write(self, folder: Path, about: dict[str, Any], *put: Callable[..., None]) -> None:
        with self.table.whole() if self.table else nullcontext():
            self.start.write(folder, about, *put)
        self.start.tokenizer.save(folder, max_length=num_positions(folder))

    def _about(
        self, progress: Progress, metrics: Mapping[str, float], cost: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what a model folder records of the task, its metrics and where the model comes from."""
        task, columns = self.task, self.task.columns.stated()
        more: dict[str, Any] = {}
        if task.kind == "tag":  # what is tagged
            more["units"] = task.units
        elif self.best and task.has_impossible:  # when there is no answer
            more["threshold"] = self.best.metrics["threshold"]
        return {
            "task": {
                "name": task.name,
                "kind": task.kind,
                "labels": list(task.labels),
                "is_pair": task.is_pair,
                "score_range": list(task.score_range) if task.score_range else None,
                **({"columns": columns} if columns else {}),
                **self.settings.task.cut()._asdict(),
            },
            "metrics": dict(metrics),
            **({"finetune": self.start.rates} if self.start.rates else {}),
            **more,
            "provenance": {
                "start": self.start.about,
                "steps": progress.step,
                "examples": len(self.items),
                "notes": self.notes,
                **(cost or {}),
            },
        }

    def from_file(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `Task`."""
        weights = self.start.from_file(weights)
        return self.table.cut(weights) if self.table else weights

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """See `Task`."""
        optimizer = self.trainer.optimizer
        state: dict[str, Any] = {"idle": float(optimizer.idle)}
        if self.settings.task.average:
            state["idle_mean"] = float(optimizer.idle_mean)
        if self.best and self._published:  # a later start has only the model that is on the disk
            state["best"] = {**self._published.model_dump(), "num_since": self.best.num_since}
        return self.table.tensors() if self.table else {}, state

    def load_state(self, tensors: dict[str, Tensor], state: Mapping[str, Any]) -> None:
        """See `Task`."""
        optimizer = self.trainer.optimizer
        known = read_record(_Memory, state, f"{self.trainer.folder}: the memory of its checkpoint")
        self.best = self._published = known.best
        optimizer.idle.fill_(known.idle)
        optimizer.idle_mean.fill_(known.idle_mean)
        if self.table:
            self.table.restore({name: tensors.pop(name) for name in self.table.tensors() if name in tensors})

    def fingerprint(self) -> str:
        """See `Task`."""
        data = {
            "train": self.items.digest(),
            "dev": digest_of(self.dev),
            "labels": list(self.task.labels),
            "metrics": list(self.task.metrics),
        }
        if isinstance(self.start.tokenizer, SpelledTokenizer):  # whose ids alone do not identify words
            data["words"] = self.start.tokenizer.met.digest()
        start = {name: self.start.about.get(name) for name in ("weights", "init")}
        if self.start.features:
            start["features"] = self.start.features.cache.checksums
        return digest_with(self.settings, {"data": data, "start": start})

    def finish(self, result: Result) -> Finetuned:
        """Record the cost of the whole run in its best model, and write the report."""
        trainer = self.trainer
        with trainer.refusable():
            self.clock.note(result.progress.step)
        if trainer.ranks.is_first:
            try:  # a run is not failed for this
                state_cost(trainer.folder, self.clock.cost())
                write_finetune_report(trainer.folder)
            except UserError as error:
                _log.warning("the run's cost or its report is not written: %s", error)
        best, metric = self.best or Best.model_construct(step=0, metrics={}), self.task.metrics[0]
        return Finetuned(
            metric=metric, score=best.metrics.get(metric, math.nan), step=best.step, metrics=best.metrics,
            progress=result.progress, reason=result.reason, minutes=self.clock.minutes, signal=result.signal,
        )  # fmt: skip


class TaskFeed:
    """Makes the micro-batches of one rank, on its device.

    Args:
        items: the train set.
        settings: batch size, micro-batches and seed.
        layout: the layout of batches for the network.
        ranks: which of them are this rank's.
        counts: how many predictions of each kind a batch has; else the task's alone, by their weights.
        alike: whether batches are of items of similar length.
    """

    def __init__(
        self,
        items: Items,
        settings: FinetuneTrainSettings,
        layout: BatchLayout,
        ranks: Ranks,
        counts: Callable[[TaskBatch], list[float]] = lambda batch: [float(batch.weights.sum())],
        *,
        alike: bool = False,
    ) -> None:
        self._items, self._settings, self._layout, self._ranks, self._counts = items, settings, layout, ranks, counts
        self._lengths, self._alike = items.lengths(), alike
        self.steps_per_epoch = steps_per_epoch(len(items), settings)
        # As many for every rank, and numbered as in the whole batch, so that all ranks draw different dropout.
        self._num_parts = math.ceil(settings.slices / ranks.world_size) * ranks.world_size

    def batches(self, progress: Progress) -> Batches:
        """Yield the rank's micro-batches of the batches after a point, each with the state of the data after it."""
        state, size, seed = progress.data or {"epoch": 0, "offset": 0}, self._settings.batch_size, self._settings.seed
        if state.keys() != {"epoch", "offset"}:
            raise CorruptFile(f"a checkpoint states the data's position as {str(state)[:80]}, which is not one")
        epoch, offset, step = state["epoch"], state["offset"], progress.step
        while True:
            if self._alike:
                order = alike_order_of(self._lengths, size, seed, epoch)
            else:
                order = order_of(len(self._items), seed, epoch)
            while offset < len(order):
                numbers = order[offset : offset + size]
                offset += len(numbers)
                own = range(self._ranks.rank, self._num_parts, self._ranks.world_size)
                yield [self._micro_batch(numbers, step, part) for part in own], {"epoch": epoch, "offset": offset}
                step += 1
            epoch, offset = epoch + 1, 0

    def _micro_batch(self, numbers: NDArray[np.int64], step: int, part: int) -> MicroBatch:
        chosen = numbers[part :: self._num_parts]
        batch = to_batch(self._items, chosen if len(chosen) else numbers[:1], self._layout)
        if not len(chosen):  # a short batch leaves nothing for this part, but every rank must take part
            batch = batch._replace(weights=torch.zeros_like(batch.weights))
        on_gpu = self._layout.flash or self._layout.device.type == "cuda"
        # A single part on a CPU is never shared: there the generator's own state is used, as in earlier versions' runs.
        is_seeded = on_gpu or self._num_parts > 1
        seed = int(dropout_seed(self._settings.seed, step, part)) if is_seeded else None
        return MicroBatch(batch, self._counts(batch), int(self._lengths[chosen].sum()), seed)


def order_of(num_items: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order in which an epoch goes through the items."""
    key = _mixed(np.array([seed, epoch], np.uint64))
    numbers = np.arange(num_items, dtype=np.uint64)
    keys = _mixed(_mixed(numbers ^ key[0]) ^ _mixed(key[1:]))
    return np.argsort(keys, kind="stable")


def alike_order_of(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return an order of an epoch in which the items of a batch are of similar length, for an LSTM.

    An LSTM takes as many steps as the longest sentence of a batch has words, each a product with all weights, even if
    only one sentence is that long: in random order an epoch takes 1.7 times as long. Items are sorted by length within
    groups of 50 batches, and the batches are then shuffled; the last one, which is short, stays last.
    """
    order = order_of(len(lengths), seed, epoch)
    num_sorted = _BATCHES_SORTED * batch_size
    pools = [order[first : first + num_sorted] for first in range(0, len(order), num_sorted)]
    order = np.concatenate([order[:0], *(pool[np.argsort(lengths[pool], kind="stable")] for pool in pools)])
    whole = order[: len(order) // batch_size * batch_size].reshape(-1, batch_size)
    return np.concatenate([whole[order_of(len(whole), seed, epoch)].ravel(), order[whole.size :]])


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit numbers so that each depends on all: splitmix64, as `data/kernel.py` has it for loops."""
    with np.errstate(over="ignore"):
        numbers = numbers + _ODD
        numbers = (numbers ^ (numbers >> np.uint64(30))) * _MULTIPLIERS[0]
        numbers = (numbers ^ (numbers >> np.uint64(27))) * _MULTIPLIERS[1]
    found: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return found


def steps_per_epoch(num_items: int, settings: FinetuneTrainSettings) -> int:
    """Return how many batches hold all items once; the last may be short."""
    return math.ceil(num_items / settings.batch_size)


def remarks(items: Items, kind: str, pieces: Sequence[str]) -> Iterator[str]:
    """Yield the remarks on a train set that users should know."""
    if items.left_out:
        yield str(items.left_out)
    if unknown := much_unknown(pieces, [items.ids]):
        yield unknown
    highest = float(np.abs(items.targets).max(initial=0)) if kind == "regress" else 0.0
    if highest > _FAR:
        mean, spread = float(items.targets.mean()), float(items.targets.std())
        yield (
            f"scores of up to {highest:,.0f} are too far from 0 to be learnt well; subtract {mean:,.0f} from each and "
            f"divide by {spread:,.{0 if spread > _WIDE else 1}f}, and undo this for predictions"
        )


def few_steps(num_items: int, num_examples: int, settings: FinetuneSettings, kind: str) -> Iterator[str]:
    """Yield a line if epochs and batches give very few updates, unless the user has limited the steps."""
    train = settings.train
    steps = train.epochs * steps_per_epoch(num_items, train)
    if steps >= _FEW_STEPS or train.max_steps < steps:
        return
    size = train.batch_size
    while size > _SMALL_BATCH and train.epochs * -(-num_items // size) < _FEW_STEPS:
        size //= 2
    epochs = max(train.epochs, -(-_FEW_STEPS // -(-num_items // size)))
    changes = [f"train.batch_size={size}"] if size < train.batch_size else []
    changes += [f"train.epochs={epochs}"] if epochs > train.epochs else []
    windows = f", which become {counted(num_items, 'window')}" if num_items < num_examples else ""
    if windows and kind == "tag":
        changes.append("task.context=sentence, so that each sentence is read alone")
    examples = f"{counted(num_examples, 'example')}{windows}"
    yield (
        f"only {counted(steps, 'step')}: {examples}, in batches of {train.batch_size}, "
        f"{counted(train.epochs, 'epoch')}; a model learns little in so few. Try {' '.join(changes[:2])}"
        + (f", or {changes[2]}" if len(changes) > 2 else "")
    )


def some_of(examples: Sequence[Example], count: int) -> list[Example]:
    """Return `count` examples of a fixed shuffle, in their old order, for a search that need not see them all; 0: all.

    Which examples are chosen depends on their number alone, not on a run's seed: runs that are compared learn from the
    same ones, and a larger part contains a smaller one. Sentences of one document stay together, as each is read with
    those around it; the last document may be cut.
    """
    if not 0 < count < len(examples):
        return list(examples)
    groups = [example.document if isinstance(example, TagExample) else index for index, example in enumerate(examples)]
    distinct = list(dict.fromkeys(groups))
    order = order_of(len(distinct), seed=0, epoch=0)
    ranks = {distinct[index]: rank for rank, index in enumerate(order)}
    chosen = sorted(range(len(examples)), key=lambda index: ranks[groups[index]])[:count]
    return [examples[index] for index in sorted(chosen)]
