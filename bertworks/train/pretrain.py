"""`bertworks pretrain`: prepared data and a recipe to a run folder.

A run folder holds `recipe.toml` as resolved, `metrics.jsonl` (what the same training gives again), `timing.jsonl` (what
depends on the machine), `tensorboard/`, `checkpoints/`, in the end `model/` and `report.html`. A run that was killed
at any instant goes on from its newest whole checkpoint, and ends with the same bytes as if it had never been killed. A
run may start from a model that is there (`warm_start.py`).
"""

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.config import to_toml
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.model import find_device, load
from bertworks.recipe import Recipe, as_recipe
from bertworks.train.asking import take_samples
from bertworks.train.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from bertworks.train.digest import digest_of
from bertworks.train.distributed import Ranks, joined_ranks, local_device
from bertworks.train.feed import Feed
from bertworks.train.loop import Job, Part, Place, Stop, Window, train
from bertworks.train.optim import Optimizer
from bertworks.train.placed import Placed
from bertworks.train.record import Record
from bertworks.train.report import write_report
from bertworks.train.rng import be_deterministic, restore_rng, to_hex
from bertworks.train.run_facts import RECIPE_FILE
from bertworks.train.run_folder import ModelWriter, hold_run, publish_model
from bertworks.train.samples import write_samples
from bertworks.train.schedules import learning_rate, learning_rate_by_clock
from bertworks.train.status import About
from bertworks.train.subject import subject_of
from bertworks.train.view import View, unseen
from bertworks.train.warm_start import Start, find_start, settled

_log = logging.getLogger(__name__)


class Outcome(NamedTuple):
    """How a run ended."""

    place: Place
    reason: str
    metrics: dict[str, float]  # the last evaluation's
    signal: int = 0


def pretrain(
    recipe: Recipe | str | os.PathLike[str],
    *,
    data: str | os.PathLike[str],
    out: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    start_from: str | os.PathLike[str] | None = None,
    resume: bool = False,
    skip_bad_shards: bool = False,
    device: str = "auto",
    view: View = unseen,
    note: Callable[[str], None] = _log.info,
) -> Outcome:
    """Pre-train a model on prepared data into a run folder.

    Args:
        recipe: all settings, or a recipe's name or path.
        data: a folder that `bertworks prepare` made.
        out: the run folder; new or empty unless `resume`.
        overrides: `section.key=value` over a recipe that is given by its name or path.
        start_from: a model folder, a run folder or a name in the local cache, to train further.
        resume: go on from the newest checkpoint; start if there is none, and do nothing if the run is finished.
        skip_bad_shards: leave out shards that are corrupt or missing, with a warning each.
        device: where to train.
        view: shows a person how it goes.
        note: is told what a person wants to know at the start.
    """
    dataset, run = Dataset(Path(data), skip_bad_shards=skip_bad_shards), Path(out)
    if not resume and run.exists() and any(run.iterdir()):
        raise UserError(f"{run} is not empty; go on in it with --resume, or choose another --out")
    place, recipe = local_device(find_device(device)), as_recipe(recipe, overrides)
    start = find_start(start_from, run, dataset)
    if start:
        recipe, start = settled(recipe, start)
    with joined_ranks(place, recipe.train.rank_timeout) as ranks:
        session = Session(recipe, dataset, run, place, view, ranks, start)
        if session.start and start and start.weights and ranks.is_first:
            note(session.start.sentence())
        with hold_run(run) if ranks.is_first else nullcontext():
            ranks.wait()
            return session.run()


def pretrain_dry(recipe: Recipe, *, data: str | Path, device: str = "auto", **options: Any) -> Outcome:
    """Walk the whole way for one step, from the data to a model that opens, in a folder that is then removed."""
    once = {"max_steps": 1, "log_every": 1, "eval_every": 1, "save_every": 1, "compile": False}
    one_step = recipe.model_copy(update={"train": recipe.train.model_copy(update=once)})
    with tempfile.TemporaryDirectory() as folder:
        outcome = pretrain(one_step, data=data, out=Path(folder) / "run", device=device, **options)
        if (Path(folder) / "run").exists():  # of several ranks the first one has written
            load(Path(folder) / "run", device="cpu")
    return outcome


class Session:
    """One start of a run: the network and what is around it."""

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        run: Path,
        device: torch.device,
        view: View,
        ranks: Ranks | None = None,
        start: Start | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.recipe, self.dataset, self.folder, self.device, self.view = recipe, dataset, run, device, view
        if recipe.optim.clock and recipe.train.max_minutes is None:
            raise UserError("optim.clock needs train.max_minutes, the time that the schedule is spread over")
        self.subject = subject_of(recipe, dataset, start.config if start else None)
        self.start = start.fill(self.subject.net) if start and start.weights else start
        half = recipe.train.dtype == "bfloat16" or (recipe.train.dtype == "auto" and device.type == "cuda")
        half = half and not self.subject.is_plain
        flash = half and device.type == "cuda"
        self.kinds, seeded = self.subject.kinds, flash or self.subject.is_plain
        self.feed = Feed(recipe, dataset, device, self.ranks, self.kinds, flash=flash, seeded=seeded)
        self.placed = Placed(self.subject, recipe.train, device, self.ranks, half=half)
        self.net, self.trainee = self.placed.net, self.placed.trainee
        self.optimizer = Optimizer(self.net, recipe.optim)
        self.metrics: dict[str, float] = {}
        self.record: Record | None = None  # of the first rank, while it runs
        self._seconds = 0.0  # of training so far, for schedules that go by the clock
        self._refusal: UserError | None = None  # of the disk since the last checkpoint, if a run goes on
        if recipe.train.deterministic:
            be_deterministic()
        torch.manual_seed(recipe.train.seed + self.ranks.rank)

    def run(self) -> Outcome:
        """Train from the newest checkpoint, or from the start, and publish the model."""
        checkpoint = latest_checkpoint(self.folder)
        place, window = self._restore(checkpoint) if checkpoint else (Place(), Window(device=self.device))
        self.record = self._begin(place, is_new=checkpoint is None) if self.ranks.is_first else None
        self._seconds = place.seconds
        made_ahead = self.feed.batches(place, self._share)
        try:
            if self.start and not checkpoint:
                self._evaluate(place)  # what the model can do before it learns more
                self._save(place, window)
            stop = train(self._job(made_ahead), place, window)
            if stop.reason != "signal":
                self._finish(stop)
            self._write_report(stop)
        except torch.OutOfMemoryError as error:
            raise UserError(self._out_of_memory()) from error
        finally:
            made_ahead.close()
            if self.record:
                with self._refusable():
                    self.record.close()
        if self._refusal:
            raise UserError(f"ended after step {stop.place.step}, but not all of it is saved: {self._refusal}")
        return Outcome(stop.place, stop.reason, self.metrics, stop.signal)

    def _out_of_memory(self) -> str:
        settings, length = self.recipe.train, self.recipe.data.max_length
        return (
            f"out of memory on {self.device} with batches of {settings.batch_size:,} x {length:,} tokens in "
            f"{settings.slices} slices; go on with --resume train.recompute=true, or start anew with a higher "
            "train.slices or a lower train.batch_size. Checkpoints are as they were"
        )

    def _begin(self, place: Place, *, is_new: bool) -> Record:
        """Write down the recipe and open what the run is recorded in."""
        if is_new:
            with atomic_write(self.folder / RECIPE_FILE) as stream:
                stream.write(to_toml(self.recipe))
        title = f"{self.folder.name}, {self.recipe.model.preset}, {self.recipe.data.objective}, {self.device}"
        about = About(title, self.recipe.train, self.kinds)
        return Record(self.folder, place, about, self.device, self.view, is_new=is_new)

    def _job(self, parts: Iterator[tuple[list[Part], Any]]) -> Job:
        settings = self.recipe.train
        usual = self.device.type == "cuda" and not self.subject.is_plain
        compiled = usual if settings.compile is None else settings.compile
        trainee = torch.compile(self.trainee) if compiled else self.trainee
        return Job(
            trainee=trainee,
            optimizer=self.optimizer,
            ranks=self.ranks,
            batches=parts,
            learning_rate=self._rate,
            settings=settings,
            report=self._report,
            evaluate=self._evaluate,
            save=self._save,
        )

    def _rate(self, place: Place) -> float:
        optim, self._seconds = self.recipe.optim, place.seconds
        if optim.clock:
            return learning_rate_by_clock(optim, place.step, self._share(place.step))
        return learning_rate(optim, place.step, self.recipe.train.max_steps)

    def _share(self, step: int) -> float:
        """Return how much of the run is over after so many steps; by the clock, how much is over now."""
        limits = self.recipe.train
        if self.recipe.optim.clock:
            assert limits.max_minutes is not None
            return self._seconds / (60 * limits.max_minutes)
        return step / limits.max_steps

    def _report(self, place: Place, gathered: Mapping[str, Any]) -> None:
        if self.record:
            values = self._values(gathered["sums"])
            values |= {"grad_norm": gathered["norm"], "lr": gathered["lr"], "tokens": place.tokens}
            with self._refusable():
                self.record.train(place, values)

    def _values(self, sums: list[list[float]]) -> dict[str, float]:
        values: dict[str, float] = {"loss": 0.0} if sums else {}
        for kind, (loss, correct, count) in zip(self.kinds, sums, strict=False):
            values |= {f"{kind}_loss": loss / max(count, 1), f"{kind}_accuracy": correct / max(count, 1)}
            values["loss"] += loss / max(count, 1)
        return values

    @torch.no_grad()
    def _evaluate(self, place: Place) -> None:
        """Measure the documents kept aside, with the same pairs and masks every time."""
        self.ranks.be_patient()
        self.trainee.eval()
        counts = torch.ones(len(self.kinds), device=self.device)
        sums = [self.trainee(part.batch, counts)[1] for part in self.feed.held_out(self._share(place.step))]
        self.trainee.train()
        if not sums:
            return  # nothing was kept aside
        # In the order of the parts, whoever computed them: the same figures for any number of ranks.
        by_part = torch.stack(self.ranks.gathered(torch.stack(sums).double().cpu()), dim=1).flatten(0, 1)
        self.metrics = {f"holdout_{name}": value for name, value in self._values(by_part.sum(0).tolist()).items()}
        if self.record:
            with self._refusable():
                self.record.evaluate(place.step, self.metrics)

    def _save(self, place: Place, window: Window) -> None:
        self.ranks.be_patient()
        states = self.ranks.gathered(torch.get_rng_state())
        optimizer = self.placed.collected(self.optimizer.state_dict())
        if self.record:
            self._refusal = None
            with self._refusable():
                self._save_checkpoint(place, window, states, optimizer)
        self.ranks.wait()

    @contextmanager
    def _refusable(self) -> Iterator[None]:
        """Stop where the disk refuses something, or warn and go on if that is asked for."""
        try:
            yield
        except UserError as error:
            if self.recipe.train.on_save_error == "stop":
                raise
            _log.warning("%s; the run goes on", error)
            self._refusal = error

    def _save_checkpoint(
        self, place: Place, window: Window, states: list[Tensor], optimizer: Mapping[str, Tensor]
    ) -> None:
        assert self.record, "the first rank records"
        self.record.sync()
        state = {
            "place": place._replace(seconds=place.seconds if self._by_clock() else 0.0)._asdict(),
            "window": window.state(),
            "metrics": self.metrics,
            "rng": [to_hex(state) for state in states],
            "settings": digest_of(self.recipe, self.dataset),
        }
        keep = self.recipe.train.keep
        save_checkpoint(self.folder, place.step, self._writer(place), optimizer, state, keep=keep)
        self.record.save(place.step)

    def _by_clock(self) -> bool:
        return self.recipe.optim.clock or self.recipe.train.max_minutes is not None

    def _restore(self, checkpoint: Checkpoint) -> tuple[Place, Window]:
        if checkpoint.state.get("settings") != digest_of(self.recipe, self.dataset):
            raise UserError(
                f"{self.folder} was trained with other settings or data; give the same to go on (its {RECIPE_FILE} has "
                "them), or choose another --out"
            )
        self.placed.load(self.subject.from_file(checkpoint.weights))
        self.optimizer.load_state_dict(checkpoint.optimizer, str(checkpoint.path))
        states = checkpoint.state["rng"]
        if len(states) == self.ranks.world_size:  # else the seed's: what there was is of other ranks
            restore_rng(states[self.ranks.rank])
        self.metrics = checkpoint.state["metrics"]
        return Place(**checkpoint.state["place"]), Window(checkpoint.state["window"], self.device)

    def _writer(self, place: Place) -> ModelWriter:
        provenance = {"objective": self.recipe.data.objective, "steps": place.step, "tokens": place.tokens}
        start = {"start": self.start.about} if self.start else {}
        about = {"provenance": provenance | start, "metrics": self.metrics}

        def write(folder: Path) -> None:
            self.subject.write(folder, about)
            self.dataset.tokenizer.save(folder)

        num_bytes = sum(parameter.nbytes for parameter in self.subject.net.parameters())
        return ModelWriter(write, num_bytes + (8 << 20))  # and the tokenizer's files

    def _finish(self, stop: Stop) -> None:
        """Publish the model; again if need be, for a kill may have come between."""
        self.placed.collected({})
        if self.ranks.is_first:
            publish_model(self.folder, self._writer(stop.place))

    def _write_report(self, stop: Stop) -> None:
        """Ask the model about documents kept aside and write the report; a run is not failed for it."""
        if self.record:
            held_out = (part.batch for part in self.feed.held_out(self._share(stop.place.step)))
            try:
                if not self.placed.is_spread:  # else the whole network is on the CPU, and maybe for a reason
                    samples = take_samples(self.subject.net, self.dataset, self.recipe.data, held_out)
                    write_samples(self.folder, samples)
                write_report(self.folder)
            except UserError as error:
                _log.warning("no report of the run: %s", error)
