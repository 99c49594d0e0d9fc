"""One start of a fine-tuning run: examples as items, the network in its place, the dev set measured, the best kept."""

import copy
import logging
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertworks.config import Count, Settings, Stated, read_record, to_toml
from bertworks.errors import CorruptFile, UserError, counted
from bertworks.finetuning.network import (
    TABLE,
    TaskStart,
    TrainedRows,
    begin_with_mean,
    counts_of,
    freeze_layers,
    rate_scales,
    task_subject,
)
from bertworks.finetuning.report import Clock, state_cost, write_dev, write_finetune_report
from bertworks.finetuning.settings import FinetuneSettings, FinetuneTrainSettings
from bertworks.finetuning.start import examples_of
from bertworks.models.folder import put_divided, save_tokenizer
from bertworks.nn.bert import Bert, Block
from bertworks.planning.memory import MicroBatch, block_bytes, check_memory, lstm_bytes, score_bytes
from bertworks.report.logs import MODEL
from bertworks.report.terminal import View
from bertworks.tasks.evaluation import evaluate
from bertworks.tasks.examples import Example, TagExample, digest_of
from bertworks.tasks.heads import Items, Kind, Laying, TaskBatch, kind_of, lay
from bertworks.tasks.task import DEV, TRAIN, Dataset
from bertworks.text.elmo_words import SpeltTokenizer
from bertworks.text.kinds import much_unknown
from bertworks.train.checkpoint import checkpoint_folders, digest_with
from bertworks.train.distributed import Ranks
from bertworks.train.objectives import dropout_seed
from bertworks.train.optim import learning_rate
from bertworks.train.run import Duties, Engine, Memory
from bertworks.train.run_folder import Inputs, ModelWriter
from bertworks.train.trainer import Part, Place, Stop

# What fine-tuning is fed with: the items of a train set, shuffled anew in every epoch.
#
# The order of an epoch is that of a hash of (seed, epoch, item), so the state of the data is {epoch, offset} and a
# seek costs nothing. The last batch of an epoch is as short as it comes out: every item is seen once in an epoch.


_BATCHES_SORTED = 50
_ODD = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLIERS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def order_of(num_items: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return the order in which an epoch goes through the items."""
    key = _mixed(np.array([seed, epoch], np.uint64))
    numbers = np.arange(num_items, dtype=np.uint64)
    keys = _mixed(_mixed(numbers ^ key[0]) ^ _mixed(key[1:]))
    return np.argsort(keys, kind="stable")


def alike_order_of(lengths: NDArray[np.int64], batch_size: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Return an order of an epoch in which the items of a batch are of similar length, for an LSTM.

    Its steps are as many as the longest sentence has words, each a product with all weights for however few sentences
    go on: with batches as they come it takes 1.7 times as long. Lengths are sorted among some tens of batches, and
    batches then go in an order of their own; the last one, which is short, stays last.
    """
    order = order_of(len(lengths), seed, epoch)
    num_sorted = _BATCHES_SORTED * batch_size
    pools = [order[first : first + num_sorted] for first in range(0, len(order), num_sorted)]
    order = np.concatenate([order[:0], *(pool[np.argsort(lengths[pool], kind="stable")] for pool in pools)])
    whole = order[: len(order) // batch_size * batch_size].reshape(-1, batch_size)
    return np.concatenate([whole[order_of(len(whole), seed, epoch)].ravel(), order[whole.size :]])


def _mixed(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the bits of 64-bit numbers so that each depends on all."""
    with np.errstate(over="ignore"):
        numbers = numbers + _ODD
        numbers = (numbers ^ (numbers >> np.uint64(30))) * _MULTIPLIERS[0]
        numbers = (numbers ^ (numbers >> np.uint64(27))) * _MULTIPLIERS[1]
    found: NDArray[np.uint64] = numbers ^ (numbers >> np.uint64(31))
    return found


def steps_per_epoch(num_items: int, settings: FinetuneTrainSettings) -> int:
    """Return how many batches hold all items once; the last may be short."""
    return math.ceil(num_items / settings.batch_size)


class TaskFeed:
    """Makes parts of batches for one rank, on its device.

    Args:
        items: the train set.
        settings: batch size, slices and seed.
        laying: how tokens are laid for the network.
        ranks: which parts are this rank's.
        counts: how many predictions of each kind a batch has; else the task's alone, by their weights.
        alike: whether batches are of items of similar length.
    """

    def __init__(
        self,
        items: Items,
        settings: FinetuneTrainSettings,
        laying: Laying,
        ranks: Ranks,
        counts: Callable[[TaskBatch], list[float]] = lambda batch: [float(batch.weights.sum())],
        *,
        alike: bool = False,
    ) -> None:
        self._items, self._settings, self._laying, self._ranks, self._counts = items, settings, laying, ranks, counts
        self._lengths, self._alike = items.lengths(), alike
        self.steps_per_epoch = steps_per_epoch(len(items), settings)
        # As many for every rank, and numbered as in the whole batch, so that all ranks draw different dropout.
        self._num_parts = math.ceil(settings.slices / ranks.world_size) * ranks.world_size

    def batches(self, place: Place) -> Generator[tuple[list[Part], dict[str, int]], None, None]:
        """Yield the rank's parts of the batches behind a place, each with the state of the data behind it."""
        state = place.data or {"epoch": 0, "offset": 0}
        if state.keys() != {"epoch", "offset"}:
            raise CorruptFile(f"a checkpoint says that its data is at {str(state)[:80]}, which is no place in it")
        epoch, offset, step = state["epoch"], state["offset"], place.step
        while True:
            order = self._order(epoch)
            while offset < len(order):
                numbers = order[offset : offset + self._settings.batch_size]
                offset += len(numbers)
                yield self._parts(numbers, step), {"epoch": epoch, "offset": offset}
                step += 1
            epoch, offset = epoch + 1, 0

    def _order(self, epoch: int) -> NDArray[np.int64]:
        if not self._alike:
            return order_of(len(self._items), self._settings.seed, epoch)
        return alike_order_of(self._lengths, self._settings.batch_size, self._settings.seed, epoch)

    def _parts(self, numbers: NDArray[np.int64], step: int) -> list[Part]:
        own = range(self._ranks.rank, self._num_parts, self._ranks.world_size)
        return [self._part(numbers, step, number) for number in own]

    def _part(self, numbers: NDArray[np.int64], step: int, number: int) -> Part:
        chosen = numbers[number :: self._num_parts]
        batch = lay(self._items, chosen if len(chosen) else numbers[:1], self._laying)
        if not len(chosen):  # of a short batch there is nothing left for this part, and a rank must take part
            batch = batch._replace(weights=torch.zeros_like(batch.weights))
        on_gpu = self._laying.flash or self._laying.device.type == "cuda"
        # A single part on a CPU is never shared: there the generator's own state goes on, as in earlier versions' runs.
        is_seeded = on_gpu or self._num_parts > 1
        seed = int(dropout_seed(self._settings.seed, step, number)) if is_seeded else None
        return Part(batch, self._counts(batch), int(self._lengths[chosen].sum()), seed)


# What is said of a train set before anything is learnt of it: things that let a run end well and a model be bad.


_FAR = 30  # scores from 0 to 5 are learnt well, in the thousands hardly: a step is as long as the rate
_WIDE = 10
_FEW_STEPS = 50  # in which a new head has hardly begun to learn
_SMALL_BATCH = 8


def remarks(items: Items, kind: str, pieces: Sequence[str]) -> Iterator[str]:
    """Yield a line for each thing that a person should know."""
    if items.left_out:
        yield str(items.left_out)
    if unknown := much_unknown(pieces, [items.ids]):
        yield unknown
    highest = float(np.abs(items.targets).max(initial=0)) if kind == "regress" else 0.0
    if highest > _FAR:
        mean, spread = float(items.targets.mean()), float(items.targets.std())
        yield (
            f"scores of up to {highest:,.0f} are too far from 0 to be learnt well; subtract {mean:,.0f} from each and "
            f"divide by {spread:,.{0 if spread > _WIDE else 1}f}, and the other way round for what is predicted"
        )


def few_steps(num_items: int, num_examples: int, settings: FinetuneSettings, kind: str) -> Iterator[str]:
    """Yield a line where epochs and batches come to very few updates; a limit in steps is somebody's wish."""
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
        f"{counted(train.epochs, 'epoch')}; a model hardly learns in so few. Try {' '.join(changes[:2])}"
        + (f", or {changes[2]}" if len(changes) > 2 else "")
    )


# A part of a train set, for a search over settings that need not see all of it.
#
# Which examples are in it depends on their number alone, not on a run's seed: what is compared learns from the same
# ones, and a smaller part is within a larger one.


def some_of(examples: Sequence[Example], count: int) -> list[Example]:
    """Return the first so many of a fixed shuffle, in their old order; 0: all.

    Sentences of one document stay together, as each is read with those around it; the last document may be cut.
    """
    if not 0 < count < len(examples):
        return list(examples)
    groups = [example.document if isinstance(example, TagExample) else place for place, example in enumerate(examples)]
    distinct = list(dict.fromkeys(groups))
    order = order_of(len(distinct), seed=0, epoch=0)
    ranks = {distinct[place]: rank for rank, place in enumerate(order)}
    chosen = sorted(range(len(examples)), key=lambda place: ranks[groups[place]])[:count]
    return [examples[place] for place in sorted(chosen)]


_SHARE_OF_LAST = 0.35
_log = logging.getLogger(__name__)


class Finetuned(NamedTuple):
    """How a run ended.

    Attributes:
        metric: the task's main one.
        score: the best on the dev set.
        step: when that was reached; what `model/` holds.
        metrics: all that was measured then.
        place: where the run ended.
        reason: why: steps, minutes, early, signal, ...
        minutes: for which the run held its device, over all of its starts; of several devices together.
        signal: that ended it, if one did.
    """

    metric: str
    score: float
    step: int
    metrics: dict[str, float]
    place: Place
    reason: str
    minutes: float
    signal: int = 0


class Best(NamedTuple):
    """The best evaluation so far, and how many came after it."""

    step: int
    metrics: dict[str, float]
    num_since: int = 0


class _Best(Settings):
    """See `Best`."""

    step: Count
    metrics: dict[str, float]
    num_since: Count = 0


class _Memory(Stated):
    """What a checkpoint remembers besides, as `_remembered` writes it."""

    idle: float
    idle_mean: float = 1.0
    best: _Best | None = None


class Session:
    """One start of a fine-tuning run."""

    def __init__(
        self,
        settings: FinetuneSettings,
        dataset: Dataset,
        start: TaskStart,
        run: Path,
        device: torch.device,
        view: View,
        ranks: Ranks | None = None,
        note: Callable[[str], None] = _log.info,
        kind: Kind | None = None,
    ) -> None:
        self.dataset, self.task, self.start, self.device = dataset, dataset.task, start, device
        self.kind: Kind = start.features.kind if start.features else kind or kind_of(self.task)
        ranks = ranks or Ranks()
        freeze_layers(start.net, settings.task.freeze)
        self.notes, self._note = list(dataset.notes), note

        def noted(text: str) -> None:
            self.notes.append(text)
            note(text)

        examples = some_of(examples_of(dataset, TRAIN, noted), settings.task.max_examples)
        self.items = self._encoded(examples, settings)
        if self.task.kind == "regress":
            begin_with_mean(start, self.items.targets)
        for remark in remarks(self.items, self.task.kind, start.tokenizer.pieces):
            noted(f"{TRAIN}: {remark}")
        is_new = not checkpoint_folders(run)
        for remark in few_steps(len(self.items), len(examples), settings, self.task.kind) if is_new else ():
            note(remark)  # it is nothing to know of the model
        self.dev: list[Example] = examples_of(dataset, DEV, noted)
        self.dev_items = self.kind.encode(self.dev, start.tokenizer, self.task, settings.task.cut())
        self.settings = _resolved(settings, len(self.items))
        scales = rate_scales(start.net, settings.task.layer_decay)
        self.table = self._cut_table()
        self.subject = task_subject(start, self.kind, self.task, self.table)
        idle_scale = scales.get(TABLE, 1.0)
        self.engine = Engine(
            self.subject, settings.optim, self.settings.train, run, device, view, ranks, scales, idle_scale,
            reach=settings.task.average * steps_per_epoch(len(self.items), settings.train),
            shapes="few" if isinstance(start.net, Bert) and start.features is None else "many",
        )  # fmt: skip
        rows = self.table.rows if self.table else None
        laying = Laying(device, self.engine.flash, rows, merged=device.type == "cpu")
        if self.engine.replays:
            laying = laying._replace(device=torch.device("cpu"), filled=int(np.diff(self.items.bounds).max()))
        self.feed = TaskFeed(
            self.items, self.settings.train, laying, ranks, partial(counts_of, start), alike=start.features is not None
        )
        self.best: Best | None = None
        self._published: Best | None = None  # the same, unless the disk refused it
        self.clock = Clock(run, device, ranks.world_size, writes=ranks.is_first)
        if self.table:
            self.table.factor = lambda: float(self.engine.optimizer.idle)
        if device.type == "cpu" and self.settings.train.check_memory and not start.features:
            has_cells = any(isinstance(module, nn.LSTM) for module in start.net.modules())
            ways = f"train.slices (more), train.batch_size or task.max_length{' or task.cells' * has_cells} (less)"
            check_memory({"a step": ranks.world_size * self._needed_memory()}, ways, noted)

    def _needed_memory(self) -> float:
        """Return about how many bytes a step takes on a CPU beside the weights and the optimizer's, which are there.

        A batch is as long as chance makes it: two deviations more than the mean.
        """
        train, lengths, sequences = self.settings.train, self.items.lengths(), np.diff(self.items.bounds).astype(float)
        count = min(-(-train.batch_size // train.slices), len(lengths))
        tokens = min(count * lengths.mean() + 2 * lengths.std() * math.sqrt(count), count * lengths.max())
        blocks = [module for module in self.start.net.modules() if isinstance(module, Block)]
        has_dropout = any(block.attention_dropout for block in blocks)
        attended = has_dropout * float((sequences**2).sum() / max(1.0, sequences.sum()))
        part = MicroBatch(int(tokens), self.engine.half, train.recompute, on_cpu=True, attended=attended)
        bytes_each = 2 if part.half else 4
        needed = 4.0 * sum(weight.numel() for weight in self.start.net.parameters() if weight.requires_grad)
        # Where one token of a text is read, the last block makes keys and values of the others, and nothing else.
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

    def _cut_table(self) -> TrainedRows | None:
        """Cut the token table to what is trained, where that gives the same numbers.

        LAMB looks at the norm of the whole table; a network that is spread over ranks has it in parts; a language
        model scores all of it, and two encoders have two.
        """
        if not isinstance(self.start.net, Bert):
            return None
        is_trained = self.start.net.embeddings.token.weight.requires_grad
        if self.settings.train.shard or not is_trained or self.settings.optim.name == "lamb":
            return None
        return TrainedRows(self.start.net, self.items.ids)

    def _encoded(self, examples: Sequence[Example], settings: FinetuneSettings) -> Any:
        items = self.kind.encode(examples, self.start.tokenizer, self.task, settings.task.cut(), is_training=True)
        return self.kind.weigh(items, self.task) if settings.task.class_weights else items

    def run(self, inputs: Inputs | None = None) -> Finetuned:
        """Train from the newest checkpoint, or from the start; the best model is published on the way.

        The inputs are recorded.
        """
        with closing(self.clock):
            outcome = self.engine.run(self._duties(inputs), self._note)
        best = self.best or Best(0, {})
        metric = self.task.metrics[0]
        return Finetuned(
            metric=metric,
            score=best.metrics.get(metric, math.nan),
            step=best.step,
            metrics=best.metrics,
            place=outcome.place,
            reason=outcome.reason,
            minutes=self.clock.minutes,
            signal=outcome.signal,
        )

    def _duties(self, inputs: Inputs | None) -> Duties:
        settings = self.settings
        return Duties(
            title=f"{self.engine.folder.name}, {self.task.title}, {self.device}",
            recipe_text=to_toml(settings),
            digest=self._digest(),
            batches=self.feed.batches,
            rate=lambda place: learning_rate(settings.optim, place.step, settings.train.max_steps),
            report=self._report,
            evaluate=self._evaluate,
            evaluates_at=self._evaluates_at,
            writer=lambda place: self._writer(place, self.engine.metrics, is_checkpoint=True),
            finish=self._finish,
            out_of_memory=(
                f"with batches of {counted(settings.train.batch_size, 'example')} in "
                f"{counted(settings.train.slices, 'slice')}; start anew with a higher train.slices, or a "
                "lower train.batch_size or task.max_length"
            ),
            is_enough=self._is_enough,
            metrics=tuple(self.task.metrics),
            inputs=inputs,
            memory=Memory(self.table.tensors if self.table else dict, self._remembered, self._restore),
        )

    def _digest(self) -> str:
        data = {
            "train": self.items.digest(),
            "dev": digest_of(self.dev),
            "labels": list(self.task.labels),
            "metrics": list(self.task.metrics),
        }
        if isinstance(self.start.tokenizer, SpeltTokenizer):  # whose numbers do not say which words they stand for
            data["words"] = self.start.tokenizer.met.digest()
        start = {name: self.start.about.get(name) for name in ("weights", "init")}
        if self.start.features:
            start["features"] = self.start.features.cache.checksums
        return digest_with(self.settings, {"data": data, "start": start})

    def _report(self, place: Place, gathered: Mapping[str, Any]) -> None:
        self.engine.report(place, gathered)
        self._note_time(place)

    def _note_time(self, place: Place) -> None:
        with self.engine.refusable():
            self.clock.note(place.step)

    def _evaluates_at(self, place: Place) -> bool:
        every = self.settings.train.eval_every
        return place.step % self.feed.steps_per_epoch == 0 or bool(every and place.step % every == 0)

    def _evaluate(self, place: Place) -> dict[str, float]:
        """Measure the dev set; a better model than before becomes that of the run."""
        with self.engine.optimizer.averaged():
            return self._evaluated(place)

    def _evaluated(self, place: Place) -> dict[str, float]:
        laying = Laying(self.device, self.engine.flash)
        with self.table.whole() if self.table else nullcontext():
            found = evaluate(self._measured(), self.kind, self.task, self.dev, self.dev_items, laying)
        told = [name for name in (*self.task.metrics, "threshold", "loss") if name in found.metrics]
        defined = {name: found.metrics[name] for name in told if not math.isnan(found.metrics[name])}
        metrics = {f"dev_{name}": value for name, value in defined.items()}
        if self._is_better(defined):
            self.best = Best(place.step, defined)
            with self.engine.refusable(MODEL):
                self.engine.publish(self._writer(place, metrics, self.clock.cost()))
                if self.engine.ranks.is_first:
                    task = replace(self.task, threshold=defined.get("threshold"))
                    write_dev(self.engine.folder, task, place.step, defined, self.dev, found)
                self._published = self.best
        elif self.best:
            self.best = self.best._replace(num_since=self.best.num_since + 1)
        self._note_time(place)
        return metrics

    def _measured(self) -> Any:
        """Return the network to measure: in half precision a copy, as in training, for the weights are fp32."""
        net = self.engine.placed.whole()
        return copy.deepcopy(net).to(torch.bfloat16).eval() if self.engine.half else net.eval()

    def _is_better(self, metrics: Mapping[str, float]) -> bool:
        """Tell whether the main metric is higher than ever, or the loss lower where it is the same as in the best.

        A correlation that is not defined is lower than all.
        """

        def rank(metrics: Mapping[str, float]) -> tuple[float, float]:
            return metrics.get(self.task.metrics[0], -math.inf), -metrics.get("loss", math.inf)

        return self.best is None or rank(metrics) > rank(self.best.metrics)

    def _is_enough(self) -> bool:
        patience = self.settings.task.early_stopping
        return bool(patience and self.best and self.best.num_since >= patience)

    def _remembered(self) -> dict[str, Any]:
        optimizer = self.engine.optimizer
        state: dict[str, Any] = {"idle": float(optimizer.idle)}
        if self.settings.task.average:
            state["idle_mean"] = float(optimizer.idle_mean)
        if self.best and self._published:  # a start behind this one knows only what is on the disk
            state["best"] = self._published._replace(num_since=self.best.num_since)._asdict()
        return state

    def _restore(self, tensors: Mapping[str, torch.Tensor], state: Mapping[str, Any]) -> None:
        known = read_record(_Memory, state, f"{self.engine.folder}: the memory of its checkpoint")
        self.best = self._published = Best(**dict(known.best)) if known.best else None
        self.engine.optimizer.idle.fill_(known.idle)
        self.engine.optimizer.idle_mean.fill_(known.idle_mean)
        if self.table:
            self.table.restore(tensors)

    def _writer(
        self,
        place: Place,
        metrics: Mapping[str, float],
        cost: Mapping[str, Any] | None = None,
        *,
        is_checkpoint: bool = False,
    ) -> ModelWriter:
        about = {
            "task": {
                "name": self.task.name,
                "kind": self.task.kind,
                "labels": list(self.task.labels),
                "is_pair": self.task.is_pair,
                "score_range": self.task.score_range,
                **({"columns": columns} if (columns := self.task.columns.stated()) else {}),
                **self.settings.task.cut()._asdict(),
            },
            "metrics": dict(metrics),
            **({"finetune": self.start.rates} if self.start.rates else {}),
            **self._chosen(),
            "provenance": {
                "start": self.start.about,
                "steps": place.step,
                "examples": len(self.items),
                "notes": self.notes,
                **(cost or {}),
            },
        }

        def write(folder: Path) -> None:
            if is_checkpoint and self.start.is_frozen:
                before = next(iter(checkpoint_folders(self.engine.folder)), None)
                self.start.write(folder, about, partial(put_divided, is_frozen=self.start.is_frozen, before=before))
            else:
                self.subject.write(folder, about)
            save_tokenizer(self.start.tokenizer, folder)

        beside = self.table.at_rest.nbytes if self.table else 0
        if self.start.features:
            beside += self.start.features.num_bytes
        return ModelWriter(write, self.engine.model_bytes() + beside)

    def _chosen(self) -> dict[str, Any]:
        """Return what tagging and answering need to know besides: what is tagged, when there is no answer."""
        if self.task.kind == "tag":
            return {"units": self.task.units}
        return {"threshold": self.best.metrics["threshold"]} if self.best and self.task.has_impossible else {}

    def _finish(self, stop: Stop) -> None:
        """Tell the best model, which has been published when it was measured, what the whole run has cost."""
        self._note_time(stop.place)
        if not self.engine.record:
            return
        try:  # a run is not failed for this
            state_cost(self.engine.folder, self.clock.cost())
            write_finetune_report(self.engine.folder)
        except UserError as error:
            _log.warning("the run's cost or its report is not written: %s", error)


def _resolved(settings: FinetuneSettings, num_items: int) -> FinetuneSettings:
    """Turn epochs into steps; a graph is compiled only where that is asked for, as every batch has another shape."""
    train = settings.train
    steps = train.epochs * steps_per_epoch(num_items, train)
    update = {"max_steps": min(train.max_steps, steps), "compile": bool(train.compile)}
    return settings.model_copy(update={"train": train.model_copy(update=update)})
