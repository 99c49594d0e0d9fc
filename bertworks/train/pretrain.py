"""`bertworks pretrain`: prepared data and a recipe to a run folder.

A run folder holds `recipe.toml` as resolved, `metrics.jsonl` (what the same training gives again), `timing.jsonl` (what
depends on the machine), `checkpoints/`, and at the end `model/`. A run that was killed at any instant goes on from its
newest whole checkpoint, and ends with the same bytes as if it had never been killed.
"""

import hashlib
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from bertworks.config import to_toml
from bertworks.data.shards import Dataset
from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.model import find_device, load
from bertworks.progress import Progress, silent
from bertworks.recipe import Recipe
from bertworks.train.checkpoint import Checkpoint, latest_checkpoint, save_checkpoint
from bertworks.train.distributed import Ranks, joined_ranks, local_device
from bertworks.train.feed import Feed
from bertworks.train.log import METRICS_FILE, TIMING_FILE, StepLog
from bertworks.train.loop import Job, Part, Place, Stop, Window, train
from bertworks.train.optim import Optimizer
from bertworks.train.placed import Placed
from bertworks.train.rng import restore_rng, to_hex
from bertworks.train.run_folder import ModelWriter, hold_run, publish_model
from bertworks.train.schedules import learning_rate, learning_rate_by_clock
from bertworks.train.subject import subject_of

RECIPE_FILE = "recipe.toml"
# Settings that may differ when a run goes on: how long it runs and what it tells, not what it computes; and how memory
# is saved, which gives the same numbers up to rounding, as another number of ranks does.
_FREE = {
    "train": {
        "max_steps",
        "max_tokens",
        "max_minutes",
        "keep",
        "loader_workers",
        "on_nonfinite",
        "max_skips",
        "on_save_error",
        "rank_timeout",
        "recompute",
        "shard",
    }
}


class Outcome(NamedTuple):
    """How a run ended."""

    place: Place
    reason: str
    metrics: dict[str, float]  # the last evaluation's
    signal: int = 0


def pretrain(
    recipe: Recipe,
    *,
    data: str | Path,
    out: str | Path,
    resume: bool = False,
    device: str = "auto",
    progress: Progress = silent,
) -> Outcome:
    """Pre-train a BERT on prepared data into a run folder.

    Args:
        recipe: all settings.
        data: a folder that `bertworks prepare` made.
        out: the run folder; new or empty unless `resume`.
        resume: go on from the newest checkpoint; start if there is none, and do nothing if the run is finished.
        device: where to train.
        progress: is told how far it is.
    """
    dataset, run = Dataset(data), Path(out)
    if not resume and run.exists() and any(run.iterdir()):
        raise UserError(f"{run} is not empty; go on in it with --resume, or choose another --out")
    place = local_device(find_device(device))
    with joined_ranks(place, recipe.train.rank_timeout) as ranks:
        session = Session(recipe, dataset, run, place, progress, ranks)
        with hold_run(run) if ranks.is_first else nullcontext():
            ranks.wait()
            return session.run()


def pretrain_dry(recipe: Recipe, *, data: str | Path, device: str = "auto") -> Outcome:
    """Walk the whole way for one step, from the data to a model that opens, in a folder that is then removed."""
    once = {"max_steps": 1, "log_every": 1, "eval_every": 1, "save_every": 1, "compile": False}
    one_step = recipe.model_copy(update={"train": recipe.train.model_copy(update=once)})
    with tempfile.TemporaryDirectory() as folder:
        outcome = pretrain(one_step, data=data, out=Path(folder) / "run", device=device)
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
        progress: Progress,
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        self.recipe, self.dataset, self.folder, self.device, self.progress = recipe, dataset, run, device, progress
        if recipe.optim.clock and recipe.train.max_minutes is None:
            raise UserError("optim.clock needs train.max_minutes, the time that the schedule is spread over")
        half = recipe.train.dtype == "bfloat16" or (recipe.train.dtype == "auto" and device.type == "cuda")
        self.subject = subject_of(recipe, dataset)
        self.kinds = self.subject.kinds
        self.feed = Feed(recipe, dataset, device, self.ranks, self.kinds, flash=half and device.type == "cuda")
        self.placed = Placed(self.subject, recipe.train, device, self.ranks, half=half)
        self.net, self.trainee = self.placed.net, self.placed.trainee
        self.optimizer = Optimizer(self.net, recipe.optim)
        self.metrics: dict[str, float] = {}
        self._seconds = 0.0  # of training so far, for schedules that go by the clock
        if recipe.train.deterministic:
            torch.use_deterministic_algorithms(True)
        torch.manual_seed(recipe.train.seed + self.ranks.rank)

    def run(self) -> Outcome:
        """Train from the newest checkpoint, or from the start, and publish the model."""
        checkpoint = latest_checkpoint(self.folder)
        place, window = self._restore(checkpoint) if checkpoint else (Place(), Window(device=self.device))
        self.logs: dict[str, StepLog] = {}
        if self.ranks.is_first:
            self._begin(checkpoint)
        self._seconds = place.seconds
        made_ahead = self.feed.batches(place, self._share)
        try:
            stop = train(self._job(made_ahead), place, window)
            if stop.reason != "signal":
                self._finish(stop)
        finally:
            made_ahead.close()
            for log in self.logs.values():
                log.close()
        return Outcome(stop.place, stop.reason, self.metrics, stop.signal)

    def _begin(self, checkpoint: Checkpoint | None) -> None:
        """Write down the recipe and open the logs."""
        if not checkpoint:
            with atomic_write(self.folder / RECIPE_FILE) as stream:
                stream.write(to_toml(self.recipe))
        last_step = checkpoint.step if checkpoint else None
        self.logs = {name: StepLog(self.folder / name, last_step) for name in (METRICS_FILE, TIMING_FILE)}

    def _job(self, parts: Iterator[tuple[list[Part], Any]]) -> Job:
        settings = self.recipe.train
        compiled = self.device.type == "cuda" if settings.compile is None else settings.compile
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
        if not self.ranks.is_first:
            return
        values = self._values(gathered["sums"])
        values |= {"grad_norm": gathered["norm"], "lr": gathered["lr"], "tokens": place.tokens}
        self.logs[METRICS_FILE].append(place.step, values)
        speed = place.tokens / max(place.seconds, 1e-9)
        self.logs[TIMING_FILE].append(place.step, {"seconds": place.seconds, "tokens_per_second": speed})
        accuracies = " ".join(f"{kind} {values.get(f'{kind}_accuracy', math.nan):.1%}" for kind in self.kinds)
        detail = f"loss {values.get('loss', math.nan):.3f} {accuracies} {speed:,.0f} tokens/s"
        self.progress("training", place.step, self.recipe.train.max_steps, detail)

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
        if self.ranks.is_first:
            self.logs[METRICS_FILE].append(place.step, self.metrics)

    def _save(self, place: Place, window: Window) -> None:
        self.ranks.be_patient()
        states = self.ranks.gathered(torch.get_rng_state())
        optimizer = self.placed.collected(self.optimizer.state_dict())
        if self.ranks.is_first:
            self._save_first(place, window, states, optimizer)
        self.ranks.wait()

    def _save_first(self, place: Place, window: Window, states: list[Tensor], optimizer: Mapping[str, Tensor]) -> None:
        for log in self.logs.values():
            log.sync()
        state = {
            "place": place._replace(seconds=place.seconds if self._by_clock() else 0.0)._asdict(),
            "window": window.state(),
            "metrics": self.metrics,
            "rng": [to_hex(state) for state in states],
            "settings": self._digest(),
        }
        keep = self.recipe.train.keep
        save_checkpoint(self.folder, place.step, self._writer(place), optimizer, state, keep=keep)

    def _by_clock(self) -> bool:
        return self.recipe.optim.clock or self.recipe.train.max_minutes is not None

    def _restore(self, checkpoint: Checkpoint) -> tuple[Place, Window]:
        if checkpoint.state.get("settings") != self._digest():
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

    def _digest(self) -> str:
        """Return a checksum of everything that decides what a run computes."""
        # What is as usual is left out: a run may go on in a later version, which has settings that this one has not.
        sections = {
            name: {key: value for key, value in changed.items() if key not in _FREE.get(name, ())}
            for name, changed in self.recipe.model_dump(exclude_defaults=True).items()
        }
        sections["vocabulary"] = {"sha256": self.dataset.manifest["vocab_sha256"]}
        sections["files"] = {name: entry["sha256"] for name, entry in self.dataset.manifest["files"].items()}
        return hashlib.sha256(json.dumps(sections, sort_keys=True).encode()).hexdigest()

    def _writer(self, place: Place) -> ModelWriter:
        about = {
            "provenance": {"objective": self.recipe.data.objective, "steps": place.step, "tokens": place.tokens},
            "metrics": self.metrics,
        }

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
