"""One start of a run, whatever it trains: its folder, checkpoints and logs around the one loop.

Pre-training and fine-tuning differ in what they are fed with, what they measure and what their models say of
themselves. That is `Duties`; the rest is here. A run that was killed at any instant goes on from its newest whole
checkpoint, and ends with the same bytes as if it had never been killed.
"""

import copy
import logging
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import torch
from pydantic import Field
from torch import Tensor, nn

from bertworks.config import Count, Settings, Stated, read_record
from bertworks.errors import CannotGoOn, CorruptFile, UserError
from bertworks.files import atomic_write
from bertworks.nn.device import check_tiles
from bertworks.nn.layers import recompute_blocks
from bertworks.planning.memory import named_by_driver, peak_flops
from bertworks.recipe import OptimSettings, TrainSettings
from bertworks.report.logs import CHECKPOINTS, RECIPE_FILE
from bertworks.report.status import About
from bertworks.report.terminal import View
from bertworks.train.checkpoint import (
    STATE_FILE,
    Checkpoint,
    be_deterministic,
    latest_checkpoint,
    other_settings,
    restore_rng,
    save_checkpoint,
    to_hex,
)
from bertworks.train.cuda_graph import Replayed
from bertworks.train.distributed import Ranks, fill, gathered, spread
from bertworks.train.objectives import Trainee, with_backward
from bertworks.train.optim import Optimizer
from bertworks.train.record import Record
from bertworks.train.run_folder import Inputs, ModelWriter, publish_model, write_inputs
from bertworks.train.subject import Subject
from bertworks.train.trainer import Job, Part, Place, Stop, Window, is_through, train

# Where a network is while it is trained: whole on the device of every rank, or spread over the ranks.
#
# A spread one is a copy. The network itself, whose weights become a model folder, stays whole on the CPU of the
# rank that writes; the parts come back to it, tensor by tensor, when they are to be written.


class Placed:
    """A network in its place.

    Args:
        subject: has the network, new and on the CPU.
        settings: whether it is spread, and its blocks computed twice.
        device: where to compute.
        ranks: this one and the others.
        half: whether to compute in half precision.

    Attributes:
        net: the network that is trained.
        trainee: computes its loss.
        is_spread: whether each rank has a part of it.
    """

    def __init__(
        self, subject: Subject, settings: TrainSettings, device: torch.device, ranks: Ranks, *, half: bool
    ) -> None:
        check_tiles(device, torch.bfloat16 if half else torch.float32)
        self._written, self._ranks, self._device = subject.net, ranks, device
        self.is_spread = settings.shard and ranks.world_size > 1
        self.net: nn.Module = copy.deepcopy(subject.net) if self.is_spread else subject.net.to(device)
        # A spread network makes its copies in half precision itself, when it gathers its weights.
        makes_copies = half and not self.is_spread
        self.trainee = Trainee(self.net, subject.objective, torch.bfloat16 if makes_copies else torch.float32).train()
        if self.is_spread:
            spread(self.trainee.inner, self.net, device, half=half)
            if not ranks.is_first:
                self._written.to("meta")
        if settings.recompute:
            recompute_blocks(self.net)

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Take over whole weights, which every rank has."""
        for name, tensor in self.net.state_dict().items():
            fill(tensor, weights[name])

    def whole(self) -> nn.Module:
        """Return the network for every rank to measure: itself, or a copy of all its parts. All ranks must call it."""
        if not self.is_spread:
            return self.net
        weights = gathered(self.net.state_dict(), keep=True)
        net = copy.deepcopy(self._written).to_empty(device=self._device)
        net.load_state_dict(weights)
        return net

    def collected(self, optimizer: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Have the subject's network up to date and return the optimizer's state whole, on the rank that writes.

        All ranks must call it.
        """
        if not self.is_spread:
            return optimizer
        weights = gathered(self.net.state_dict(), keep=self._ranks.is_first)
        if self._ranks.is_first:
            self._written.load_state_dict(weights)
        return gathered(optimizer, keep=self._ranks.is_first)


Shapes = Literal["one", "few", "many"]
_MOST_NAMED = 5  # of settings that differ
_log = logging.getLogger(__name__)


class _Place(Settings):
    """See `Place`; the state of the data, as both kinds of training write it."""

    step: Count
    tokens: Count
    data: dict[str, Count | None] | None
    skipped: Count
    seconds: float = Field(ge=0)


class _Window(Settings):
    """See `Window`."""

    sums: list[Annotated[list[float], Field(min_length=3, max_length=3)]]
    norm: float
    num_random: float | None = None


class RunState(Stated):
    """What `state.json` of a checkpoint says of a run, besides what every checkpoint says of itself."""

    place: _Place
    window: _Window
    metrics: dict[str, float]
    rng: list[str]
    memory: dict[str, Any] | None = None


class Outcome(NamedTuple):
    """How a run ended."""

    place: Place
    reason: str
    metrics: dict[str, float]  # the last evaluation's
    signal: int = 0


class Memory(NamedTuple):
    """What a kind of training has to remember besides weights, optimizer and place.

    Attributes:
        tensors: lie with the optimizer's, under names that it has not.
        state: as JSON; nothing where there is nothing to say.
        restore: takes both back.
    """

    tensors: Callable[[], dict[str, Tensor]]
    state: Callable[[], dict[str, Any]]
    restore: Callable[[Mapping[str, Tensor], Mapping[str, Any]], None]


class Duties(NamedTuple):
    """What is particular to a kind of training.

    Attributes:
        title: names the run for a person.
        recipe_text: is written into a new run folder.
        digest: of all that decides what is computed; only a run with the same one goes on.
        batches: makes the parts of the batches behind a place.
        rate: the learning rate of the update behind a place.
        report: is told what the loop gathered.
        evaluate: measures, and returns the figures; none where there is nothing to measure on.
        evaluates_at: whether it is time for that; the end of a run is measured anyway.
        writer: gives the model of a place.
        finish: is called when training has ended, before the logs are closed.
        out_of_memory: what to say of batches that are too large.
        is_measured_first: whether to evaluate and save before the first update.
        is_enough: whether what was measured says that more training is of no use.
        memory: what else a checkpoint holds.
        metrics: of a task, the main one first.
        inputs: what the run was started with, to be recorded.
        flops_per_token: operations of training, forward and backward, if known.
    """

    title: str
    recipe_text: str
    digest: str
    batches: Callable[[Place], Generator[tuple[list[Part], Any], None, None]]
    rate: Callable[[Place], float]
    report: Callable[[Place, Mapping[str, Any]], None]
    evaluate: Callable[[Place], dict[str, float]]
    evaluates_at: Callable[[Place], bool]
    writer: Callable[[Place], ModelWriter]
    finish: Callable[[Stop], None]
    out_of_memory: str
    is_measured_first: bool = False
    is_enough: Callable[[], bool] = lambda: False
    memory: Memory | None = None
    metrics: tuple[str, ...] = ()
    inputs: Inputs | None = None
    flops_per_token: float | None = None


def is_out_of_memory(error: Exception) -> bool:
    """Tell whether memory was refused; torch has an exception of its own for a GPU alone, and numpy Python's."""
    is_cpus = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    return is_cpus or isinstance(error, torch.OutOfMemoryError | MemoryError)


class Engine:
    """The network in its place, its optimizer, and how a run of it is begun, saved and taken up again.

    Args:
        subject: what is trained.
        optim: how weights are changed.
        train: for how long, and how.
        folder: the run folder.
        device: where to train.
        view: shows a person how it goes.
        ranks: this one and the others.
        scales, idle_scale, reach: see `Optimizer`.
        shapes: how many batches have: one or few can be recorded on a GPU and replayed, and one is worth compiling for.

    Attributes:
        half: whether it is computed in half precision.
        flash: whether attention is that of a GPU in half precision.
        compiles: whether steps are compiled.
        replays: whether they are recorded and replayed.
        metrics: the figures of the last evaluation.
        record: of the first rank, while it runs.
    """

    def __init__(
        self,
        subject: Subject,
        optim: OptimSettings,
        train: TrainSettings,
        folder: Path,
        device: torch.device,
        view: View,
        ranks: Ranks,
        scales: Mapping[str, float] | None = None,
        idle_scale: float = 1.0,
        reach: float = 0.0,
        *,
        shapes: Shapes = "many",
    ) -> None:
        self.subject, self.settings, self.folder, self.device, self.view = subject, train, folder, device, view
        self.ranks, self.kinds, self._shapes = ranks, subject.kinds, shapes
        half = train.dtype == "bfloat16" or (train.dtype == "auto" and device.type == "cuda")
        self.half = half and not subject.is_plain
        self.flash = self.half and device.type == "cuda"
        compiled = device.type == "cuda" and not subject.is_plain and shapes != "few"
        self.compiles = compiled if train.compile is None else train.compile
        recordable = shapes == "one" or (shapes == "few" and not self.compiles)
        # To compute blocks again is to ask for a generator's place, which a recording cannot.
        self.replays = recordable and self.flash and not train.shard and not train.recompute
        self.placed = Placed(subject, train, device, ranks, half=self.half)
        self.net, self.trainee = self.placed.net, self.placed.trainee
        self.optimizer = Optimizer(self.net, optim, scales, idle_scale, reach)
        self._by_clock = optim.clock or train.max_minutes is not None
        self.metrics: dict[str, float] = {}
        self.record: Record | None = None
        self._refused: dict[str, UserError] = {}  # what the disk refused last time, if a run goes on
        if train.deterministic:
            be_deterministic()
        torch.manual_seed(train.seed + ranks.rank)

    def run(
        self, duties: Duties, note: Callable[[str], None], place_found: Callable[[Place], None] = lambda _: None
    ) -> Outcome:
        """Train from the newest checkpoint, or from the start; `note` tells a person where, `place_found` a caller."""
        checkpoint = latest_checkpoint(self.folder)
        place, window = self._restore(checkpoint, duties) if checkpoint else (Place(), Window(device=self.device))
        self.record = self._begin(place, duties, is_new=checkpoint is None) if self.ranks.is_first else None
        place_found(place)
        if place.step and self.ranks.is_first:
            is_finished = is_through(self.settings, place)
            note(f"{self.folder} is finished already" if is_finished else f"going on from step {place.step:,}")
        made_ahead = duties.batches(place)
        try:
            job = self._job(made_ahead, duties)
            if duties.is_measured_first and not checkpoint:
                job.evaluate(place)
                job.save(place, window)
            stop = train(job, place, window)
            duties.finish(stop)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(f"out of memory on {self.device} {duties.out_of_memory}") from error
        finally:
            made_ahead.close()
            if self.record:
                with self.refusable():
                    self.record.close()
        for refusal in self._refused.values():
            raise UserError(f"ended after step {stop.place.step}, but not all of it is saved: {refusal}")
        return Outcome(stop.place, stop.reason, self.metrics, stop.signal)

    def _begin(self, place: Place, duties: Duties, *, is_new: bool) -> Record:
        """Write down the recipe, unless by its limits all is done already, and open the records."""
        if is_new or not is_through(self.settings, place):
            with atomic_write(self.folder / RECIPE_FILE) as stream:
                stream.write(duties.recipe_text)
            if duties.inputs:
                write_inputs(self.folder, duties.inputs)
        flops = duties.flops_per_token, self._peak_flops()
        about = About(duties.title, self.settings, self.kinds, *flops, duties.metrics)
        return Record(self.folder, place, about, self.device, self.view, is_new=is_new)

    def _peak_flops(self) -> float | None:
        """Return the operations that all devices could do in a second, where that is known."""
        if self.device.type != "cuda":
            return None
        name = named_by_driver(torch.cuda.get_device_name(self.device))
        return peak_flops(name, half=self.half) * self.ranks.world_size if name else None

    def _job(self, parts: Iterator[tuple[list[Part], Any]], duties: Duties) -> Job:
        return Job(
            compute=self._compute(),
            optimizer=self.optimizer,
            ranks=self.ranks,
            batches=parts,
            learning_rate=duties.rate,
            settings=self.settings,
            report=duties.report,
            evaluates_at=duties.evaluates_at,
            evaluate=lambda place: self._evaluate(place, duties),
            save=lambda place, window: self._save(place, window, duties),
            is_enough=duties.is_enough,
        )

    def _compute(self) -> Callable[[Any, Tensor], Tensor]:
        # Each length is compiled by itself. Left alone, torch would compile the second of a run for all lengths, but
        # not where a run is resumed with it: their numbers would differ.
        fixed = False if self._shapes == "one" else None
        trainee = torch.compile(self.trainee, dynamic=fixed) if self.compiles else self.trainee
        return Replayed(trainee, self.optimizer.weights()) if self.replays else with_backward(trainee)

    def report(self, place: Place, gathered: Mapping[str, Any]) -> None:
        """Record what the loop gathered."""
        if self.record:
            values = self.values(gathered["sums"], gathered.get("num_random"))
            values |= {"grad_norm": gathered["norm"], "lr": gathered["lr"], "tokens": place.tokens}
            with self.refusable():
                self.record.train(place, values)

    def values(self, sums: Sequence[Sequence[float]], num_random: float | None = None) -> dict[str, float]:
        """Return the loss and accuracy of each kind of prediction, given [kinds, (loss, correct, count)].

        Of pairs, with the number of random ones, also the share of the larger class: what a constant answer scores.
        """
        values: dict[str, float] = {"loss": 0.0} if sums else {}
        for kind, (loss, correct, count) in zip(self.kinds, sums, strict=False):
            values[f"{kind}_loss"] = loss / max(count, 1)
            if kind != "regress":  # where nothing is right or wrong
                values[f"{kind}_accuracy"] = correct / max(count, 1)
            if kind == "nsp" and num_random is not None:
                values["nsp_larger_class"] = max(num_random, count - num_random) / max(count, 1)
            values["loss"] += loss / max(count, 1)
        return values

    @torch.no_grad()
    def _evaluate(self, place: Place, duties: Duties) -> None:
        self.ranks.be_patient()
        self.trainee.eval()
        found = duties.evaluate(place)
        self.trainee.train()
        if not found:
            return
        self.metrics = found
        if self.record:
            with self.refusable():
                self.record.evaluate(place.step, found)

    def _save(self, place: Place, window: Window, duties: Duties) -> None:
        self.ranks.be_patient()
        states = self.ranks.gathered(torch.get_rng_state())
        optimizer = self.placed.collected(self.optimizer.state_dict())
        if self.record:
            with self.refusable(CHECKPOINTS):
                self._save_checkpoint(place, window, duties, states, optimizer)
        self.ranks.wait()

    @contextmanager
    def refusable(self, what: str = "logs") -> Iterator[None]:
        """Stop where the disk refuses something, or warn and go on if that is asked for, until it takes it."""
        try:
            yield
        except UserError as error:
            if self.settings.on_save_error == "stop":
                raise
            _log.warning("%s; the run goes on", error)
            self._refused[what] = error
        else:
            self._refused.pop(what, None)

    def _save_checkpoint(
        self, place: Place, window: Window, duties: Duties, states: list[Tensor], optimizer: Mapping[str, Tensor]
    ) -> None:
        assert self.record, "the first rank records"
        self.record.sync()
        state = {
            "place": place._replace(seconds=place.seconds if self._by_clock else 0.0)._asdict(),
            "window": window.state(),
            "metrics": self.metrics,
            "rng": [to_hex(state) for state in states],
            "settings": duties.digest,
        }
        if duties.memory:
            state["memory"] = duties.memory.state()
            optimizer = {**optimizer, **duties.memory.tensors()}
        save_checkpoint(self.folder, place.step, duties.writer(place), optimizer, state, keep=self.settings.keep)
        self.record.save(place.step)

    def _others(self, duties: Duties) -> str:
        """Say which settings are others now, or that none is, as far as that is known."""
        found = other_settings(self.folder / RECIPE_FILE, duties.recipe_text)
        if found is None:
            return ""
        named = f"{', '.join(found[:_MOST_NAMED])}{', ...' * (len(found) > _MOST_NAMED)}"
        return f" ({named or 'the settings are the same, so it is the data'})"

    def _restore(self, checkpoint: Checkpoint, duties: Duties) -> tuple[Place, Window]:
        if checkpoint.state.get("settings") != duties.digest:
            raise CannotGoOn(
                f"{self.folder} was trained with other settings or data{self._others(duties)}; give the same to go on "
                f"(its {RECIPE_FILE} has them), or choose another --out"
            )
        where = f"{checkpoint.path / STATE_FILE}"
        state = read_record(RunState, checkpoint.state, where)
        if state.place.step != checkpoint.step or len(state.window.sums) not in (0, len(self.kinds)):
            raise CorruptFile(f"{where}: place and window are not of step {checkpoint.step} of this run")
        self.placed.load(self.subject.from_file(checkpoint.weights))
        tensors = dict(checkpoint.optimizer)
        if duties.memory:
            own = {name: tensors.pop(name) for name in duties.memory.tensors() if name in tensors}
            duties.memory.restore(own, state.memory or {})
        self.optimizer.load_state_dict(tensors, str(checkpoint.path))
        place = Place(**dict(state.place))
        self.optimizer.num_steps = place.step
        if len(state.rng) == self.ranks.world_size:  # else the seed's: what there was is of other ranks
            restore_rng(state.rng[self.ranks.rank])
        self.metrics = state.metrics
        return place, Window(dict(state.window), self.device)

    def publish(self, writer: ModelWriter) -> None:
        """Make a model that of the run; again if need be, for a kill may have come between. All ranks must call it."""
        self.placed.collected({})
        if self.ranks.is_first:
            publish_model(self.folder, writer)

    def model_bytes(self) -> int:
        """Return about how many bytes a model folder takes, with the tokenizer's files."""
        return sum(parameter.nbytes for parameter in self.subject.net.parameters()) + (8 << 20)
