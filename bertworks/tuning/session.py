"""One start of a fine-tuning run: examples as items, the network in its place, the dev set measured, the best kept."""

import copy
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from bertworks.config import Count, Settings, Stated, read_record, to_toml
from bertworks.errors import UserError
from bertworks.interop.divided_weights import put_divided
from bertworks.interop.folder import save_tokenizer
from bertworks.nn.bert import Bert, Block
from bertworks.plan.memory import Slice, block_bytes, check_memory, lstm_bytes, score_bytes
from bertworks.tasks.evaluation import evaluate
from bertworks.tasks.examples import Example, digest_of
from bertworks.tasks.items import Laying
from bertworks.tasks.kinds import Kind, kind_of
from bertworks.tasks.task import DEV, TRAIN, Dataset
from bertworks.text.spelt_words import SpeltTokenizer
from bertworks.train.checkpoint import checkpoint_folders
from bertworks.train.digest import digest_with
from bertworks.train.distributed import Ranks
from bertworks.train.loop import Place, Stop
from bertworks.train.run import Duties, Engine, Memory
from bertworks.train.run_folder import MODEL, Inputs, ModelWriter
from bertworks.train.schedules import learning_rate
from bertworks.train.view import View
from bertworks.tuning.cost import Clock, state_cost
from bertworks.tuning.dev_record import write_dev
from bertworks.tuning.feed import TaskFeed, steps_per_epoch
from bertworks.tuning.objective import counts_of
from bertworks.tuning.remarks import few_steps, remarks
from bertworks.tuning.report import write_finetune_report
from bertworks.tuning.settings import FinetuneSettings
from bertworks.tuning.start import examples_of
from bertworks.tuning.subject import begin_with_mean, freeze, rate_scales, task_subject
from bertworks.tuning.subset import some_of
from bertworks.tuning.task_start import TaskStart
from bertworks.tuning.trained_rows import TABLE, TrainedRows

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
        freeze(start.net, settings.task.freeze)
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
        for remark in few_steps(len(self.items), len(examples), settings, self.task.kind):
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
        part = Slice(int(tokens), self.engine.half, train.recompute, on_cpu=True, attended=attended)
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
                f"with batches of {settings.train.batch_size:,} examples in {settings.train.slices} slices; start anew "
                "with a higher train.slices, or a lower train.batch_size or task.max_length"
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
