"""The one training loop: `Trainer.train` is the whole order of a step, from top to bottom.

- A task defines what is trained: pre-training (`train/pretrain.py`) and fine-tuning (`finetuning/session.py`) implement
  `Task`, and all else is here: placing the network, the loop, logs, checkpoints, resuming.
- A run that was killed at any instant resumes from its newest whole checkpoint, and ends with the same bytes as if it
  had never been killed. What was gathered since the last log line is part of its state for that reason.
- An update that is not finite changes no weight: the optimizer sees to that on the device. The loop stops, or continues
  if the settings allow it, when it reads the norm. On a GPU it reads the norm of an update while the next one is being
  computed, because waiting for it would leave the device idle.
- All ranks have the same norm and the same clock, so all of them decide alike.
"""

import copy
import logging
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol

import torch
from pydantic import Field
from torch import Tensor, nn

from bertworks.config import Count, FileRecord, Settings, read_record, to_toml
from bertworks.errors import CannotResume, CorruptFile, UserError
from bertworks.files import atomic_write
from bertworks.nn.attention import prepare_to_compile_for_cpu
from bertworks.nn.bert import recompute_blocks
from bertworks.nn.layers import check_tiles
from bertworks.planning.costs import named_by_driver, peak_flops
from bertworks.recipe import TrainSettings
from bertworks.report.logs import CHECKPOINTS, RECIPE_FILE, About
from bertworks.report.terminal import View, unseen
from bertworks.train.checkpoint import (
    STATE_FILE,
    Checkpoint,
    be_deterministic,
    latest_checkpoint,
    new_checkpoint,
    other_settings,
    restore_rng,
    to_hex,
)
from bertworks.train.cuda_graph import Replayed
from bertworks.train.distributed import GradientSums, Ranks, fill, gathered, spread
from bertworks.train.log import LossWindow, Progress, RunLog, Update
from bertworks.train.objectives import ModelWithLoss, Objective, figures_of, moved
from bertworks.train.optim import Optimizer
from bertworks.train.run_folder import Inputs, write_inputs

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
_MOST_NAMED = 5  # of settings that differ
_SMALL_FILES = 8 << 20  # bytes of a model folder besides its weights: the tokenizer's files
_log = logging.getLogger(__name__)


class MicroBatch(NamedTuple):
    """A part of a batch, and what it counts for."""

    batch: Any
    counts: list[float]  # of each kind of prediction
    num_tokens: int
    seed: int | None = None  # of torch's generator, where dropout draws from it, whichever rank computes the part
    num_random: float | None = None  # pairs whose second text is from elsewhere; None: there are no pairs


Shapes = Literal["one", "few", "many"]
Batches = Generator[tuple[list[MicroBatch], dict[str, int]], None, None]


class Task(Protocol):
    """What is trained.

    Attributes:
        net: the network, new and on the CPU.
        objective: gives the sums of each kind of prediction for a batch.
        kinds: of predictions, in the objective's order.
        title: names the run.
        metrics: of a task, by which it is judged; the main one first.
        is_plain: whether it is computed in float32 without torch.compile: cuDNN's LSTMs need their weights in place, so
            they work neither with copies in half precision nor with torch.compile.
        shapes: how many shapes batches have: one or few can be recorded on a GPU and replayed, and one is worth
            compiling for.
        measures_first: whether to evaluate and save before the first update.
        flops_per_token: operations of training, forward and backward, if known.
        extra_bytes: of a model folder, besides the network's weights.
        out_of_memory: what to say of batches that are too large.
    """

    net: nn.Module
    objective: Objective
    kinds: tuple[str, ...]
    title: str
    metrics: tuple[str, ...]
    is_plain: bool
    shapes: Shapes
    measures_first: bool
    flops_per_token: float | None
    extra_bytes: int
    out_of_memory: str

    def setup(self, trainer: "Trainer") -> None:
        """Prepare for training, once the network is on its device."""

    def optimizer(self, net: nn.Module) -> Optimizer:
        """Return the optimizer of the network on its device."""

    def batches(self, progress: Progress) -> Batches:
        """Yield this rank's micro-batches of the batches after a point, each with the state of the data after it."""

    def learning_rate(self, progress: Progress) -> float:
        """Return the rate of the next update."""

    def is_time_to_evaluate(self, progress: Progress) -> bool:
        """Tell whether to evaluate now; the end of a run is measured anyway."""

    def evaluate(self, progress: Progress) -> dict[str, float]:
        """Return the figures of held-out data; nothing where there is none."""

    def is_enough(self) -> bool:
        """Tell whether the evaluations show that more training is of no use."""

    def save_model(self, folder: Path, progress: Progress) -> None:
        """Write a model folder for a checkpoint."""

    def from_file(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Give the weights of a model folder their names in the network."""

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any] | None]:
        """Return what else a checkpoint holds: tensors, under names that the optimizer has not, and JSON."""

    def load_state(self, tensors: dict[str, Tensor], state: Mapping[str, Any]) -> None:
        """Take back what `state` returned; its tensors are taken out of `tensors`."""

    def fingerprint(self) -> str:
        """Return the checksum of all that decides what is computed; only a run with the same one is resumed."""


class Result(NamedTuple):
    """The outcome of a run."""

    progress: Progress
    reason: str  # steps, tokens, minutes, early, signal
    metrics: dict[str, float]  # of the last evaluation
    signal: int = 0


class Trainer:
    """A network on its device, its optimizer, and one start of a run: train, evaluate, save, resume.

    Args:
        task: what is trained.
        settings: all settings; written into the run folder as its recipe.
        run: the run folder.
        device: where to train.
        ranks: this one and the others.
        view: shows the progress.

    Attributes:
        half: whether it is computed in half precision.
        flash: whether attention is that of a GPU in half precision.
        compiles: whether steps are compiled.
        replays: whether steps are recorded as CUDA graphs and replayed.
        is_sharded: whether each rank has a part of the network. Then `net` is a copy; the task's own, from which model
            folders are written, stays whole on the CPU of the rank that writes.
        net: the network that is trained.
        model: the network with its loss.
        metrics: the figures of the last evaluation.
        log: of the first rank, while it runs.
    """

    def __init__(
        self, task: Task, settings: Any, run: Path, device: torch.device, ranks: Ranks | None = None,
        view: View = unseen,
    ) -> None:  # fmt: skip
        train: TrainSettings = settings.train
        self.task, self.recipe, self.settings, self.folder = task, settings, train, run
        self.device, self.ranks, self.view = device, ranks or Ranks(), view
        self.half = not task.is_plain and computes_in_half(train, device)
        self.flash = self.half and device.type == "cuda"
        compiled = device.type == "cuda" and not task.is_plain and task.shapes != "few"
        self.compiles = compiled if train.compile is None else train.compile
        recordable = task.shapes == "one" or (task.shapes == "few" and not self.compiles)
        # To compute blocks again is to ask for a generator's state, which a recording cannot.
        self.replays = recordable and self.flash and not train.shard and not train.recompute

        check_tiles(device, torch.bfloat16 if self.half else torch.float32)
        self.is_sharded = train.shard and self.ranks.world_size > 1
        self.net: nn.Module = copy.deepcopy(task.net) if self.is_sharded else task.net.to(device)
        # A sharded network makes its copies in half precision itself, when it gathers its weights.
        makes_copies = self.half and not self.is_sharded
        self.model = ModelWithLoss(self.net, task.objective, torch.bfloat16 if makes_copies else torch.float32).train()
        if self.is_sharded:
            spread(self.model.inner, self.net, device, half=self.half)
            if not self.ranks.is_first:
                task.net.to("meta")
        if train.recompute:
            recompute_blocks(self.net)
        self.optimizer = task.optimizer(self.net)
        # Each length is compiled by itself. Left alone, torch would compile the second of a run for all lengths, but
        # not where a run is resumed with it: their numbers would differ.
        dynamic = False if task.shapes == "one" else None
        if self.compiles and device.type == "cpu":
            prepare_to_compile_for_cpu()
        self.forward = torch.compile(self.model, dynamic=dynamic) if self.compiles else self.model

        self.window = LossWindow(device=device)
        self.metrics: dict[str, float] = {}
        self.log: RunLog | None = None
        self.is_new, self.last_step = True, 0
        self._refused: dict[str, UserError] = {}  # what the disk refused last time, if a run continues
        if train.deterministic:
            be_deterministic()
        self.recorded = Replayed(self.forward, self.optimizer.weights()) if self.replays else None
        torch.manual_seed(train.seed + self.ranks.rank)
        task.setup(self)

    @contextmanager
    def start(self, inputs: Inputs | None, note: Callable[[str], None]) -> Iterator[Progress]:
        """Resume from the newest checkpoint, or start; give where that is, and close the logs in the end.

        The inputs are recorded, and `note` is called with the step at which a run is resumed.
        """
        checkpoint = latest_checkpoint(self.folder)
        self.is_new = checkpoint is None
        progress = self._restore(checkpoint) if checkpoint else Progress()
        is_finished = is_through(self.settings, progress)
        if self.ranks.is_first:
            if self.is_new or not is_finished:
                with atomic_write(self.folder / RECIPE_FILE) as stream:
                    stream.write(to_toml(self.recipe))
                if inputs:
                    write_inputs(self.folder, inputs)
            name = named_by_driver(torch.cuda.get_device_name(self.device)) if self.device.type == "cuda" else None
            flops = peak_flops(name, half=self.half) * self.ranks.world_size if name else None
            task = self.task
            about = About(task.title, self.settings, task.kinds, task.flops_per_token, flops, task.metrics)
            self.log = RunLog(self.folder, progress, about, self.device, self.view, is_new=self.is_new)
            if progress.step:
                note(f"{self.folder} is finished already" if is_finished else f"resuming from step {progress.step:,}")
        try:
            yield progress
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(f"out of memory on {self.device} {self.task.out_of_memory}") from error
        finally:
            if self.log:
                with self.refusable():
                    self.log.close()
        for refusal in self._refused.values():
            raise UserError(f"ended after step {self.last_step}, but not all of it is saved: {refusal}")

    def train(self, progress: Progress) -> Result:
        """Train from a point until a limit or a signal stops it; the last state is saved."""
        task, settings, ranks, optimizer, window = self.task, self.settings, self.ranks, self.optimizer, self.window
        norm: Tensor | float = 0.0
        saved = Progress(seconds=progress.seconds)  # in this start: an earlier one may have been killed while it saved
        if task.measures_first and self.is_new:
            self.evaluate(progress)
            self.save(progress)
        with (
            closing(task.batches(progress)) as batches,
            closing(GradientSums(ranks, optimizer.weights())) as gradients,
            caught_signals() as signals,
        ):
            while not (reason := self._why_stop(progress, signals)):
                if progress.seconds - saved.seconds >= 60 * settings.save_minutes:
                    saved = progress = self._settle_and_save(progress)
                started, rng = time.monotonic(), torch.get_rng_state()

                # The next batch: this rank's micro-batches, and how much there is in those of all ranks.
                micro_batches, data = next(batches)
                own_counts = [[part.num_tokens, part.num_random or 0.0, *part.counts] for part in micro_batches]
                num_tokens, num_random, *counts = ranks.total([sum(column) for column in zip(*own_counts, strict=True)])
                num_predictions = moved(torch.tensor(counts), micro_batches[0].batch.tokens.token_ids.device)

                # Forward and backward. Gradients add up over micro-batches, and over ranks during the last backward.
                sums: Tensor | None = None  # [kinds, (loss, correct, count)]
                for number, micro_batch in enumerate(micro_batches, 1):
                    if number == len(micro_batches):
                        gradients.begin()
                    if micro_batch.seed is not None:
                        torch.default_generator.manual_seed(micro_batch.seed)
                        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
                            torch.cuda.manual_seed(micro_batch.seed)
                    if self.recorded:
                        own_sums = self.recorded(micro_batch.batch, num_predictions)
                    else:
                        loss, own_sums = self.forward(micro_batch.batch, num_predictions)
                        loss.backward()
                    sums = own_sums if sums is None else sums + own_sums
                assert sums is not None, "a batch has at least one micro-batch"
                own_finite = gradients.finish(sums)

                # The norm is not finite either where only a loss is not, as when a sum overflows. Where a run is to
                # stop for its last norm, this one becomes NaN: on a GPU the last norm is read one update later, and
                # what is saved then must be the state before that batch.
                last_norm = norm
                norm = optimizer.gradient_norm() + 0 * sums[:, 0].sum()
                if settings.on_nonfinite != "skip":
                    norm = norm + 0.0 * last_norm

                # The update: clipped, and left out on the device if the norm is not finite.
                rate = task.learning_rate(progress)
                optimizer.step(rate, norm)
                optimizer.clear_gradients()

                pairs = None if micro_batches[0].num_random is None else num_random
                bad = window.add(Update(progress, sums, norm, own_finite, rng, pairs))
                progress = progress._replace(
                    step=progress.step + 1, tokens=progress.tokens + int(num_tokens), data=data
                )
                if bad:
                    progress = self._skip_or_stop(bad, progress)
                seconds = ranks.greatest(progress.seconds + time.monotonic() - started)
                progress = progress._replace(seconds=seconds)

                # Log, evaluate, save. The end is measured before it is saved: a run that is resumed there has its last
                # figures already.
                is_measured = task.is_time_to_evaluate(progress) or is_through(settings, progress)
                if progress.step % settings.log_every == 0:
                    self.report(progress, window.take(), rate)
                elif is_measured and progress.step < settings.log_every:  # else a short run would log no loss at all
                    progress = self._settle(progress)
                    self.report(progress, window.state(), rate)
                if is_measured:
                    self.evaluate(progress)
                if progress.step % settings.save_every == 0:
                    saved = progress = self._settle_and_save(progress)
            if progress.step != saved.step:
                progress = self._settle_and_save(progress)
        self.last_step = progress.step
        return Result(progress, reason, self.metrics, signals[0] if signals else 0)

    def _why_stop(self, progress: Progress, signals: list[int]) -> str:
        """Return why to stop, or nothing; a signal to one rank is one to all."""
        reached = limits_reached(self.settings, progress)
        reached |= {"early": self.task.is_enough(), "signal": self.ranks.greatest(len(signals)) > 0}
        self.ranks.met()
        return ["", *(reason for reason, is_reached in reached.items() if is_reached)][-1]

    def _settle(self, progress: Progress) -> Progress:
        """Read the last update's norm, which on a GPU is read late."""
        bad = self.window.settle()
        return self._skip_or_stop(bad, progress) if bad else progress

    def _settle_and_save(self, progress: Progress) -> Progress:
        """Save, after reading the last update's norm: a checkpoint must not be ahead of what is known."""
        progress = self._settle(progress)
        self.save(progress)
        return progress

    def _skip_or_stop(self, update: Update, progress: Progress) -> Progress:
        """Stop for an update that was not finite, or continue if that is allowed. No weight was changed."""
        ranks, on_nonfinite = self.ranks, self.settings.on_nonfinite
        progress = progress._replace(skipped=progress.skipped + 1)
        losses = ", ".join(f"{loss:g}" for loss in update.sums[:, 0].tolist())
        where = f"step {update.before.step + 1}"
        if ranks.world_size > 1:  # FSDP2 does not show a rank's own gradients, only its losses
            own = ranks.gathered(update.own.reshape(1).cpu())
            found = [str(rank) for rank, number in enumerate(own) if not number.isfinite()]
            where += f" on rank {' and '.join(found)}" if found else " on a rank whose losses are finite"
        what = f"{where}: losses {losses}, gradient norm {float(update.norm):g}"
        if on_nonfinite == "skip" and progress.skipped <= self.settings.max_skips:
            if ranks.is_first:
                _log.warning("%s; the update is skipped, %d so far", what, progress.skipped)
            return progress
        if on_nonfinite == "stop" or not update.norm.is_cuda:
            # The state before the batch, dropout included: a resumed run reaches the same batch again.
            torch.set_rng_state(update.rng)
            self.save(update.before)
        if not ranks.is_first:
            raise UserError(f"rank {ranks.rank} stops too: not finite at {where}")
        batch = "the first batch" if update.before.data is None else f"the batch after {update.before.data}"
        raise UserError(
            f"not finite at {what}, in {batch}. No weight was changed by it; --resume reaches "
            "it again. Lower optim.lr, or skip such batches with train.on_nonfinite=skip"
        )

    def report(self, progress: Progress, gathered: Mapping[str, Any], rate: float) -> None:
        """Log what was gathered since the last line."""
        if self.log:
            values = figures_of(self.task.kinds, gathered["sums"], gathered.get("num_random"))
            values |= {"grad_norm": gathered["norm"], "lr": rate, "tokens": progress.tokens}
            with self.refusable():
                self.log.train(progress, values)

    @torch.no_grad()
    def evaluate(self, progress: Progress) -> None:
        """Have the task measured, and log its figures."""
        self.ranks.be_patient()
        self.model.eval()
        found = self.task.evaluate(progress)
        self.model.train()
        if not found:
            return
        self.metrics = found
        if self.log:
            with self.refusable():
                self.log.evaluate(progress.step, found)

    def save(self, progress: Progress) -> None:
        """Write a checkpoint."""
        self.ranks.be_patient()
        rng_states = self.ranks.gathered(torch.get_rng_state())
        optimizer = self.gather(self.optimizer.state_dict())
        if self.log:
            with self.refusable(CHECKPOINTS):
                self.log.sync()
                by_clock = self.optimizer.settings.clock or self.settings.max_minutes is not None
                state = {
                    "place": progress._replace(seconds=progress.seconds if by_clock else 0.0)._asdict(),
                    "window": self.window.state(),
                    "metrics": self.metrics,
                    "rng": [to_hex(rng) for rng in rng_states],
                    "settings": self.task.fingerprint(),
                }
                tensors, memory = self.task.state()
                if memory is not None:
                    state["memory"] = memory
                with new_checkpoint(
                    self.folder, progress.step, {**optimizer, **tensors}, state,
                    model_bytes=self.model_bytes(), keep=self.settings.keep,
                ) as folder:  # fmt: skip
                    if folder:
                        self.task.save_model(folder, progress)
                self.log.save(progress.step)
        self.ranks.wait()

    def _restore(self, checkpoint: Checkpoint) -> Progress:
        """Take over a checkpoint of the same run."""
        task, where = self.task, f"{checkpoint.path / STATE_FILE}"
        if checkpoint.state.get("settings") != task.fingerprint():
            others = other_settings(self.folder / RECIPE_FILE, to_toml(self.recipe))
            named = ", ".join((others or [])[:_MOST_NAMED]) + ", ..." * (len(others or []) > _MOST_NAMED)
            message = "" if others is None else f" ({named or 'the settings are the same, so it is the data'})"
            raise CannotResume(
                f"{self.folder} was trained with other settings or data{message}; use the same to resume "
                f"(its {RECIPE_FILE} has them), or choose another --out"
            )
        state = read_record(RunState, checkpoint.state, where)
        if state.place.step != checkpoint.step or len(state.window.sums) not in (0, len(task.kinds)):
            raise CorruptFile(f"{where}: progress and window do not belong to step {checkpoint.step} of this run")
        weights = task.from_file(checkpoint.weights)
        for name, tensor in self.net.state_dict().items():
            fill(tensor, weights[name])
        tensors = dict(checkpoint.optimizer)
        task.load_state(tensors, state.memory or {})
        self.optimizer.load_state_dict(tensors, str(checkpoint.path))
        self.optimizer.num_steps = state.place.step
        if len(state.rng) == self.ranks.world_size:  # else the seed's: those of the checkpoint are of other ranks
            restore_rng(state.rng[self.ranks.rank])
        self.metrics, self.window = state.metrics, LossWindow(dict(state.window), self.device)
        return Progress(**dict(state.place))

    def gather(self, optimizer: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Gather a sharded network and its optimizer's state on the first rank; all ranks must call it."""
        if not self.is_sharded:
            return optimizer
        weights = gathered(self.net.state_dict(), keep=self.ranks.is_first)
        if self.ranks.is_first:
            self.task.net.load_state_dict(weights)
        return gathered(optimizer, keep=self.ranks.is_first)

    def whole_net(self) -> nn.Module:
        """Return the whole network on every rank: itself, or a copy gathered from all. All ranks must call it."""
        if not self.is_sharded:
            return self.net
        weights = gathered(self.net.state_dict(), keep=True)
        net = copy.deepcopy(self.task.net).to_empty(device=self.device)
        net.load_state_dict(weights)
        return net

    def model_bytes(self) -> int:
        """Return about how many bytes a model folder takes."""
        return sum(weight.nbytes for weight in self.task.net.parameters()) + self.task.extra_bytes + _SMALL_FILES

    @contextmanager
    def refusable(self, what: str = "logs") -> Iterator[None]:
        """Stop where the disk refuses something, or warn and continue if set to, until it takes it."""
        try:
            yield
        except UserError as error:
            if self.settings.on_save_error == "stop":
                raise
            _log.warning("%s; the run continues", error)
            self._refused[what] = error
        else:
            self._refused.pop(what, None)


def computes_in_half(settings: TrainSettings, device: torch.device) -> bool:
    """Tell whether training is in half precision: by default on a GPU."""
    return settings.dtype == "bfloat16" or (settings.dtype == "auto" and device.type == "cuda")


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether memory was refused; torch has an exception of its own for a GPU alone, and numpy Python's."""
    is_cpus = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_cpus or isinstance(error, torch.OutOfMemoryError | MemoryError)


def limits_reached(settings: TrainSettings, progress: Progress) -> dict[str, bool]:
    """Return which limits a run has reached."""
    return {
        "steps": progress.step >= settings.max_steps,
        "tokens": settings.max_tokens is not None and progress.tokens >= settings.max_tokens,
        "minutes": settings.max_minutes is not None and progress.seconds >= 60 * settings.max_minutes,
    }


def is_through(settings: TrainSettings, progress: Progress) -> bool:
    """Tell whether a run has reached one of its limits."""
    return any(limits_reached(settings, progress).values())


@contextmanager
def caught_signals() -> Iterator[list[int]]:
    """Note signals to stop, so that a run ends between two updates; a second one ends it at once.

    Only the main thread may catch them; a run in another one ends as its process does.
    """
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return

    def note(number: int, _: Any) -> None:
        if caught:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        caught.append(number)

    previous = {number: signal.signal(number, note) for number in _STOP_SIGNALS}
    try:
        yield caught
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _ProgressState(Settings):
    """See `Progress`; the state of the data, as both kinds of training write it."""

    step: Count
    tokens: Count
    data: dict[str, Count | None] | None
    skipped: Count
    seconds: float = Field(ge=0)


class _WindowState(Settings):
    """See `LossWindow`."""

    sums: list[Annotated[list[float], Field(min_length=3, max_length=3)]]
    norm: float
    num_random: float | None = None


class RunState(FileRecord):
    """A run's part of `state.json` in a checkpoint, besides what every checkpoint has."""

    place: _ProgressState
    window: _WindowState
    metrics: dict[str, float]
    rng: list[str]
    memory: dict[str, Any] | None = None
