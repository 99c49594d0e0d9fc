"""`bertworks pretrain`: prepared data and a recipe to a run folder.

A run folder holds `recipe.toml` as resolved, `metrics.jsonl` (what the same training gives again), `timing.jsonl` (what
depends on the machine), `tensorboard/`, `checkpoints/`, in the end `model/` and `report.html`. A run that was killed
at any instant goes on from its newest whole checkpoint, and ends with the same bytes as if it had never been killed. A
run may start from a model that is there (`warm_start.py`).
"""

import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertworks.config import to_toml
from bertworks.data.loader import Loader, Packed, Shape, State, shape_for
from bertworks.data.shards import Dataset
from bertworks.data.workers import batches
from bertworks.errors import CorruptFile, UserError, counted
from bertworks.models.find import find_model
from bertworks.models.folder import save_tokenizer
from bertworks.models.kinds import check_model, check_recipe, read_model
from bertworks.nn.device import find_device
from bertworks.planning.memory import GIGA, check_memory, free_memory, memory_of, part_of, ways_to_fit
from bertworks.planning.network import network_of
from bertworks.recipe import Recipe, as_recipe, check_has_model
from bertworks.report.logs import RECIPE_FILE
from bertworks.report.page import write_report
from bertworks.report.samples import write_samples
from bertworks.report.terminal import View, print_note, training_view, unseen
from bertworks.train.checkpoint import checkpoint_folders, digest_of
from bertworks.train.distributed import Ranks, is_first_rank, joined_ranks, local_device
from bertworks.train.guesses import take_samples
from bertworks.train.objectives import dropout_seed, moved, to_device
from bertworks.train.optim import learning_rate, learning_rate_by_clock
from bertworks.train.run import Duties, Engine, Outcome
from bertworks.train.run_folder import (
    Inputs,
    ModelWriter,
    check_out,
    check_still_there,
    given_as,
    hold_run,
    read_inputs,
    refuse_missing,
)
from bertworks.train.subject import subject_of
from bertworks.train.trainer import Part, Place, Stop
from bertworks.train.warm_start import Start, find_start, settled

# What a run is fed with: the rank's parts of one batch after another, and the documents kept aside.
#
# A run may begin with short sequences: attention costs less there, and most of what is to be learnt lies close by.
# Where the length changes, the block of documents that was being read is left, and the next one is begun with the
# new length.


EVALUATION_SEED = 1  # of the pairs and masks of the documents kept aside: the same for every run and model


class Feed:
    """Makes parts for one rank, on its device.

    Args:
        recipe: all settings.
        dataset: prepared data.
        device: where the parts go.
        ranks: which of all slices are this rank's.
        kinds: of predictions, to be counted.
        flash: whether attention is that of a GPU in half precision, which knows lengths by their sums alone.
        seeded: whether what is random in a step comes from a hash, not from torch's generator.
    """

    def __init__(
        self,
        recipe: Recipe,
        dataset: Dataset,
        device: torch.device,
        ranks: Ranks,
        kinds: tuple[str, ...],
        *,
        flash: bool,
        seeded: bool,
    ) -> None:
        self.recipe, self.dataset, self.device, self.ranks = recipe, dataset, device, ranks
        self.kinds, self.flash, self.seeded = kinds, flash, seeded
        # Told before a run starts, not when it comes to its long sequences or is to be measured.
        self._shapes = {length: _shape(recipe, length) for length in reversed(recipe.data.lengths())}
        for split in ("train", "holdout") if self._has_held_out() else ("train",):
            self._loader(recipe.data.max_length, EVALUATION_SEED, split)

    def length_at(self, share: float) -> int:
        """Return the length of sequences when this share of a run is over."""
        data = self.recipe.data
        return data.short_length if data.short_length and share < data.short_share else data.max_length

    def batches(
        self, place: Place, share: Callable[[int], float]
    ) -> Generator[tuple[list[Part], dict[str, int]], None, None]:
        """Yield the parts of the batches behind a place, each with the state of the data behind it.

        `share` says of a number of steps how much of the run is over then.
        """
        step = place.step
        state, length = self._opened(place.data)
        while True:
            now = self.length_at(share(step))
            if length not in (now, None):
                state = _next_block(state, len(self.dataset.shards("train")))
            length = now
            self.ranks.be_patient()  # a graph for this length may have to be compiled
            with closing(self._of_length(length, state)) as made:
                for slices, state in made:
                    yield self._parts(slices, step, length), {**state._asdict(), "length": length}
                    step += 1
                    if self.length_at(share(step)) != length:
                        break

    def _opened(self, data: dict[str, int] | None) -> tuple[State, int | None]:
        """Take apart what a checkpoint remembers; the first ones did not say the length, having but one."""
        if not data:
            return State(), None
        if data.keys() - {"length"} != set(State._fields) or data.get("length") not in (None, *self._shapes):
            raise CorruptFile(f"a checkpoint says that its data is at {str(data)[:80]}, which is no place in it")
        state = State(data["epoch"], data["block"], data["offset"])
        num_blocks = len(self.dataset.shards("train"))
        if self.dataset.skipped and state.block >= num_blocks:  # there were more when it was written
            state = State(state.epoch + 1)
        return state, data.get("length")

    def _of_length(self, length: int, state: State) -> Generator[tuple[list[Packed], State], None, None]:
        settings = self.recipe.train
        loader, pin = self._loader(length, settings.seed, "train"), self.device.type == "cuda"
        return batches(loader, state, workers=settings.loader_workers, pin=pin)  # type: ignore[return-value]

    def _loader(self, length: int, seed: int, split: str, ranks: Ranks | None = None) -> Loader:
        ranks = ranks or self.ranks
        return Loader(
            self.dataset,
            self.recipe.data.model_copy(update={"max_length": length}),
            self._shapes[length],
            seed=seed,
            split=split,
            rank=ranks.rank,
            world_size=ranks.world_size,
        )

    def _has_held_out(self) -> bool:
        return bool(self.dataset.manifest["holdout"]["tokens"])

    def held_out(self, share: float, ranks: Ranks | None = None) -> Iterator[Part]:
        """Yield the rank's parts of the documents kept aside: for a length the same pairs and masks every time.

        They are measured once at most, however many batches are asked for.

        Other ranks than those of the run: `Ranks()` gives one of them all parts.
        """
        if not self._has_held_out():
            return
        length = self.length_at(share)
        loader = self._loader(length, EVALUATION_SEED, "holdout", ranks)
        batches = itertools.islice(loader.batches(), self.recipe.train.eval_batches)
        for number, (slices, state) in enumerate(batches):
            if number and state.epoch:  # all of them have been measured
                return
            for packed in slices:
                yield self._part(packed, 0, 0, length)

    def _parts(self, slices: list[Packed], step: int, length: int) -> list[Part]:
        # Slices are numbered as in the whole batch, so that dropout does not depend on the number of ranks.
        numbers = range(self.ranks.rank, self.recipe.train.slices, self.ranks.world_size)
        return [self._part(packed, step, number, length) for number, packed in zip(numbers, slices, strict=True)]

    def _part(self, packed: Packed, step: int, number: int, length: int) -> Part:
        """Move a slice to the device; its dropout is a function of the run's seed, the step and its number."""
        batch: Any = to_device(packed, self.device, length, flash=self.flash)
        seed = dropout_seed(self.recipe.train.seed, step, number)
        if self.seeded:
            batch = batch._replace(tokens=batch.tokens._replace(dropout_seed=moved(seed, self.device)))
        counts = [_count(kind, packed) for kind in self.kinds]
        num_tokens = int(packed.cumulative_lengths[len(packed.next_labels)])
        # A single slice is never shared: there the generator's own state goes on, as in runs of earlier versions.
        is_drawn = self.seeded or self.recipe.train.slices == 1
        num_random = float(packed.next_weights @ packed.next_labels) if "nsp" in self.kinds else None
        return Part(batch, counts, num_tokens, None if is_drawn else int(seed), num_random)


def _count(kind: str, packed: Packed) -> float:
    """Return how many predictions of a kind there are; of a text of n tokens n - 1 have a neighbour on a side."""
    if kind in ("lm", "bilm"):
        lengths = np.diff(packed.cumulative_lengths[: len(packed.next_labels) + 1])
        return float(np.maximum(lengths - 1, 0).sum()) * (2 if kind == "bilm" else 1)
    return float((packed.masked_weights if kind == "mlm" else packed.next_weights).sum())


def _next_block(state: State, num_blocks: int) -> State:
    at_end = state.block + 1 >= num_blocks
    return State(state.epoch + at_end, 0 if at_end else state.block + 1, 0)


def _shape(recipe: Recipe, length: int) -> Shape:
    settings = recipe.train
    tokens = recipe.batch_tokens(length)
    if tokens % settings.slices:
        raise UserError(f"train.slices {settings.slices} does not divide a batch of {tokens:,} tokens")
    data = recipe.data.model_copy(update={"max_length": length})
    return shape_for(data, tokens=tokens // settings.slices, slices=settings.slices)


# What a person should know of a recipe before a run, and of a run that ended before its schedule did.


_MUCH_OF_A_RUN = 0.9
_OF_MASKS = ("mask_rate", "mask_share", "random_share", "whole_word", "max_predictions")
_OF_LIMITS = {"tokens": "train.max_tokens", "minutes": "train.max_minutes"}


def remarks(recipe: Recipe, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a line for each setting that changes nothing, and for a schedule that will not come to its end."""
    given = {override.partition("=")[0].strip() for override in overrides}
    data, optim, train = recipe.data, recipe.optim, recipe.train
    if "mlm" not in data.objective:
        for key in _OF_MASKS:
            if f"data.{key}" in given:
                yield f"data.{key} changes nothing: objective {data.objective} has no masks"
    if "data.short_share" in given and data.short_length is None:
        yield "data.short_share changes nothing: data.short_length is not set"
    if not optim.clock and optim.warmup >= train.max_steps:
        yield (
            f"the warm-up of {counted(round(optim.warmup), 'step')} is as long as the run of {train.max_steps:,}, "
            f"so the learning rate never comes to {optim.lr:g}; a share of the run, such as optim.warmup=0.1, fits any "
            "length"
        )
    if train.max_tokens is not None:
        steps = -(-train.max_tokens // recipe.batch_tokens(data.lengths()[0]))
        yield from early_end(recipe, "tokens", steps)


def early_end(recipe: Recipe, reason: str, step: int) -> Iterator[str]:
    """Say that a limit ends a run after about so many steps, where rate and length go by more of them."""
    total, goes_by_steps = recipe.train.max_steps, not recipe.optim.clock and recipe.optim.schedule != "constant"
    if reason in _OF_LIMITS and goes_by_steps and step < _MUCH_OF_A_RUN * total:
        rate = learning_rate(recipe.optim, step, total)
        yield (
            f"{_OF_LIMITS[reason]} ends the run after some {counted(step, 'step')}, and the learning rate goes by "
            f"train.max_steps={total:,}: it is {rate:.2g} then; set train.max_steps={step}"
            + (", or optim.clock=true" if reason == "minutes" else "")
        )


_log = logging.getLogger(__name__)


def pretrain(
    recipe: Recipe | str | os.PathLike[str] | None = None,
    *,
    data: str | os.PathLike[str] | None = None,
    out: str | os.PathLike[str],
    overrides: Sequence[str] = (),
    start_from: str | os.PathLike[str] | None = None,
    resume: bool = False,
    skip_bad_shards: bool = False,
    device: str = "auto",
    quiet: bool = False,
    view: View | None = None,
    note: Callable[[str], None] | None = None,
) -> Outcome:
    """Pre-train a model on prepared data into a run folder.

    Args:
        recipe: all settings, or a recipe's name or path.
        data: a folder that `bertworks prepare` made.
        out: the run folder; new or empty unless `resume`.
        overrides: `section.key=value` over a recipe that is given by its name or path.
        start_from: a model folder, a run folder or a name in the local cache, to train further.
        resume: go on from the newest checkpoint; start if there is none, and do nothing if the run is finished. What is
            not given then is as it was: a run folder says its recipe and its inputs.
        skip_bad_shards: leave out shards that are corrupt or missing, with a warning each.
        device: where to train.
        quiet: show nothing; else how it goes is shown on the error stream.
        view: shows a person how it goes, instead.
        note: is told what a person wants to know at the start, instead.
    """
    run, note = Path(out), note or (_log.info if quiet or not is_first_rank() else print_note)
    check_out(run, RECIPE_FILE, resume=resume)
    inputs = read_inputs(run, "pretrain") if resume else None
    if inputs:
        if data is None:
            check_still_there(run, data=inputs.data)
            data = inputs.data
        if start_from is None and not checkpoint_folders(run):  # a checkpoint has all that came of it
            start_from = inputs.model
        skip_bad_shards, device = (
            skip_bad_shards or inputs.skip_bad_shards,
            inputs.device if device == "auto" else device,
        )
    if recipe is None and resume and (run / RECIPE_FILE).is_file():
        recipe = run / RECIPE_FILE
    if recipe is None or data is None:
        refuse_missing(run, ["RECIPE"] * (recipe is None) + ["--data DATA"] * (data is None), resume=resume)
    settings = as_recipe(recipe, overrides)
    if start_from is not None and not resume:
        check_model(start_from)
    dataset = Dataset(Path(data), skip_bad_shards=skip_bad_shards)
    inputs = Inputs(
        command="pretrain", data=given_as(data), model=given_as(start_from) or (inputs.model if inputs else None),
        skip_bad_shards=skip_bad_shards, device=device,
    )  # fmt: skip
    place, start = local_device(find_device(device)), find_start(start_from, run, dataset)
    if start:
        settings, start = settled(settings, start)
    else:
        check_has_model(recipe)
    with (
        joined_ranks(place, settings.train.rank_timeout) as ranks,
        training_view(view, quiet=quiet or not ranks.is_first) as view,
    ):
        tell = note if ranks.is_first else _log.debug
        if place.type == "cpu" and settings.train.check_memory:
            check_recipe(settings, dataset)
            _check_memory(settings, dataset.vocab_size, ranks.world_size, tell)
        session = Session(settings, dataset, run, place, view, ranks, start)
        if session.start and start and start.weights:
            tell(session.start.sentence())
        for line in remarks(settings, overrides):
            tell(line)
        with hold_run(run) if ranks.is_first else nullcontext():
            ranks.wait()
            outcome = session.run(note, inputs)
        if settings.train.max_tokens is None:  # else it was told before
            for line in early_end(settings, outcome.reason, outcome.place.step):
                tell(line)
        return outcome


def pretrain_dry(
    recipe: Recipe,
    *,
    data: str | Path,
    overrides: Sequence[str] = (),
    device: str = "auto",
    quiet: bool = False,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> Outcome:
    """Walk the whole way, a step for each length, from the data to a model that opens, in a folder that is removed.

    What is remarked on is the run that is meant, with the overrides that made its recipe.
    """
    _check_clock(recipe)
    note = note or (_log.info if quiet or not is_first_rank() else print_note)
    for line in remarks(recipe, overrides) if is_first_rank() else ():
        note(line)
    steps = len(recipe.data.lengths())
    most = 0.9 * (1 - recipe.optim.decay_share)  # as a share of its few steps, which no remark is needed on
    once = {
        "max_steps": steps,
        "max_tokens": None,
        "max_minutes": None,
        "log_every": 1,
        "eval_every": 1,
        "save_every": 1,
        "compile": False,
    }
    walked = recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update=once),
            "data": recipe.data.model_copy(update={"short_share": 1 / steps}),
            "optim": recipe.optim.model_copy(update={"clock": False, "warmup": min(recipe.optim.warmup, most)}),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        outcome = pretrain(walked, data=data, out=run, device=device, view=unseen, note=note, **options)
        if run.exists():  # of several ranks the first one has written
            read_model(find_model(run))
    return outcome


def _check_memory(recipe: Recipe, vocab_size: int, num_ranks: int, note: Callable[[str], None]) -> None:
    """Refuse batches that this machine's memory cannot hold, where every rank has its share of the slices."""
    network, length = network_of(recipe, vocab_size), max(recipe.data.lengths(), key=recipe.batch_tokens)
    needed = memory_of(network, part_of(recipe, length, num_ranks, on_cpu=True))
    free = (free_memory() or 0) / num_ranks / GIGA
    ways = [*ways_to_fit(recipe, network, length, free, num_ranks, on_cpu=True), "a lower train.batch_size"]
    check_memory({name: size * num_ranks for name, size in needed.items()}, " or ".join(ways), note)


def _check_clock(recipe: Recipe) -> None:
    if recipe.optim.clock and recipe.train.max_minutes is None:
        raise UserError("optim.clock needs train.max_minutes, the time that the schedule is spread over")


class Session:
    """One start of pre-training: the network and what is around it."""

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
        self.recipe, self.dataset, self.folder, self.device = recipe, dataset, run, device
        _check_clock(recipe)
        self.subject = subject_of(recipe, dataset, start.config if start else None)
        self.start = start.fill(self.subject.net) if start and start.weights else start
        self.engine = Engine(self.subject, recipe.optim, recipe.train, run, device, view, self.ranks, shapes="one")
        flash, self.kinds = self.engine.flash, self.subject.kinds
        seeded = flash or self.subject.is_plain
        self.feed = Feed(recipe, dataset, device, self.ranks, self.kinds, flash=flash, seeded=seeded)
        self.net, self.trainee = self.engine.net, self.engine.trainee
        self._seconds = 0.0  # of training so far, for schedules that go by the clock

    def run(self, note: Callable[[str], None] = _log.info, inputs: Inputs | None = None) -> Outcome:
        """Train from the newest checkpoint, or from the start, and publish the model; `note` is told which.

        The inputs are recorded.
        """
        return self.engine.run(self._duties(inputs), note, self._set_clock)

    def _set_clock(self, place: Place) -> None:
        self._seconds = place.seconds

    def _duties(self, inputs: Inputs | None) -> Duties:
        recipe = self.recipe
        return Duties(
            title=f"{self.folder.name}, {recipe.model.preset}, {recipe.data.objective}, {self.device}",
            recipe_text=to_toml(recipe),
            digest=digest_of(recipe, self.dataset),
            batches=lambda place: self.feed.batches(place, self._share),
            rate=self._rate,
            report=self.engine.report,
            evaluate=self._evaluate,
            evaluates_at=lambda place: place.step % recipe.train.eval_every == 0,
            writer=self._writer,
            finish=self._finish,
            out_of_memory=self._out_of_memory(),
            inputs=inputs,
            is_measured_first=self.start is not None,  # what a model can do before it learns more
            flops_per_token=network_of(recipe, self.dataset.vocab_size).flops(self.feed.length_at(0.0)),
        )

    def _out_of_memory(self) -> str:
        settings, length = self.recipe.train, max(self.recipe.data.lengths(), key=self.recipe.batch_tokens)
        return (
            f"with batches of {self.recipe.sequences_of(length):,} x {length:,} tokens in "
            f"{settings.slices} slices; go on with --resume train.recompute=true, or start anew with a higher "
            "train.slices or a lower train.batch_size. Checkpoints are as they were"
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

    def _evaluate(self, place: Place) -> dict[str, float]:
        """Measure the documents kept aside, with the same pairs and masks every time."""
        counts = torch.ones(len(self.kinds), device=self.device)
        sums, random = [], [0.0]
        for part in self.feed.held_out(self._share(place.step)):
            sums.append(self.trainee(part.batch, counts)[1])
            random.append(part.num_random or 0.0)
        if not sums:
            return {}  # nothing was kept aside
        (num_random,) = self.ranks.total([sum(random)])
        # In the order of the parts, whoever computed them: the same figures for any number of ranks.
        by_part = torch.stack(self.ranks.gathered(torch.stack(sums).double().cpu()), dim=1).flatten(0, 1)
        return {
            f"holdout_{name}": value for name, value in self.engine.values(by_part.sum(0).tolist(), num_random).items()
        }

    def _writer(self, place: Place) -> ModelWriter:
        provenance = {"objective": self.recipe.data.objective, "steps": place.step, "tokens": place.tokens}
        start = {"start": self.start.about} if self.start else {}
        about = {"provenance": provenance | start, "metrics": self.engine.metrics}
        if self.start and self.start.rates:
            about["finetune"] = self.start.rates

        def write(folder: Path) -> None:
            self.subject.write(folder, about)
            save_tokenizer(self.dataset.tokenizer, folder)

        return ModelWriter(write, self.engine.model_bytes())

    def _finish(self, stop: Stop) -> None:
        if stop.reason != "signal":
            self.engine.publish(self._writer(stop.place))
        self._write_report(stop)

    def _write_report(self, stop: Stop) -> None:
        """Ask the model about documents kept aside and write the report; a run is not failed for it."""
        if self.engine.record:
            held_out = (part.batch for part in self.feed.held_out(self._share(stop.place.step), Ranks()))
            try:
                if not self.engine.placed.is_spread:  # else the whole network is on the CPU, and maybe for a reason
                    samples = take_samples(self.subject.net, self.dataset, self.recipe.data, held_out)
                    write_samples(self.folder, samples)
                write_report(self.folder)
            except UserError as error:
                _log.warning("no report of the run: %s", error)
