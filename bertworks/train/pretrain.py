"""`bertworks pretrain`: prepared data and a recipe to a run folder.

- A run folder holds `recipe.toml` as resolved, `metrics.jsonl` (what a repeated run reproduces exactly),
  `timing.jsonl` (what depends on the machine), `tensorboard/`, `checkpoints/`, and in the end `model/` and
  `report.html`.
- `pretrain` puts a run together, `Pretraining` defines what is trained and `Feed` on what; the loop is `Trainer.train`.
- A run may start from a model that is there (`warm_start.py`).
- A run may begin with short sequences: their attention costs less, and most of what can be learnt is in nearby words.
  When the length changes, the current block of documents is left, and the next one starts with the new length.
"""

import itertools
import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bertworks.data.loader import Loader, Packed, State, shape_for
from bertworks.data.shards import Dataset
from bertworks.data.workers import batches
from bertworks.errors import CorruptFile, UserError, counted
from bertworks.models.folder import find_model, num_positions
from bertworks.models.kinds import build_model, check_model, check_recipe, find_kind, read_model, write_model
from bertworks.nn.layers import find_device
from bertworks.planning.costs import GIGA, check_memory, free_memory, memory_of, network_of, part_of, ways_to_fit
from bertworks.recipe import Recipe, as_recipe, check_has_model
from bertworks.report.logs import RECIPE_FILE
from bertworks.report.page import write_report, write_samples
from bertworks.report.terminal import View, print_note, training_view, unseen
from bertworks.train.checkpoint import checkpoint_folders, digest_of
from bertworks.train.distributed import Ranks, is_first_rank, joined_ranks, local_device
from bertworks.train.guesses import take_samples
from bertworks.train.log import Progress
from bertworks.train.objectives import OBJECTIVES, dropout_seed, figures_of, moved, to_device
from bertworks.train.optim import Optimizer, learning_rate, learning_rate_by_clock
from bertworks.train.run_folder import (
    Inputs,
    check_out,
    check_still_there,
    given_as,
    hold_run,
    read_inputs,
    refuse_missing,
    replace_model,
)
from bertworks.train.trainer import Batches, MicroBatch, Result, Shapes, Trainer
from bertworks.train.warm_start import Start, find_start, settled

EVALUATION_SEED = 1  # of the pairs and masks of held-out documents: the same for every run and model
_MUCH_OF_A_RUN = 0.9
_OF_MASKS = ("mask_rate", "mask_share", "random_share", "whole_word", "max_predictions")
_OF_LIMITS = {"tokens": "train.max_tokens", "minutes": "train.max_minutes"}
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
) -> Result:
    """Pre-train a model on prepared data into a run folder.

    Args:
        recipe: all settings, or a recipe's name or path.
        data: a folder that `bertworks prepare` made.
        out: the run folder; new or empty unless `resume`.
        overrides: `section.key=value` over a recipe that is given by its name or path.
        start_from: a model folder, a run folder or a name in the local cache, to train further.
        resume: continue from the newest checkpoint; start if there is none, and do nothing if the run is finished.
            Arguments that are left out are read from the run folder.
        skip_bad_shards: leave out shards that are corrupt or missing, with a warning each.
        device: where to train.
        quiet: show nothing; otherwise progress is shown on the error stream.
        view: shows the progress instead of the default display.
        note: is called with remarks at the start, instead of showing them.

    Example:
        >>> manifest = bw.prepare("corpus.txt", vocab="mini", out="DATA-mini", quiet=True)
        >>> run = bw.pretrain(
        ...     "tiny-cpu", data="DATA-mini", out="RUN", quiet=True,
        ...     overrides=["train.max_steps=2", "train.batch_size=8"],
        ... )
        >>> run.progress.step
        2
        >>> bw.load("RUN").methods
        ['fill', 'nsp', 'embed', 'features', 'attention']
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
    where = local_device(find_device(device))
    is_begun = bool(checkpoint_folders(run))
    start = find_start(start_from, run, dataset) if is_begun or start_from is not None else None
    if start:
        settings, start = settled(settings, start)
    else:
        check_has_model(recipe)
    with (
        joined_ranks(where, settings.train.rank_timeout) as ranks,
        training_view(view, quiet=quiet or not ranks.is_first) as view,
    ):
        tell = note if ranks.is_first else _log.debug
        if where.type == "cpu" and settings.train.check_memory:
            check_recipe(settings, dataset)
            _check_memory(settings, dataset.vocab_size, ranks.world_size, tell)
        task = Pretraining(settings, dataset, start)
        trainer = Trainer(task, settings, run, where, ranks, view)
        if task.start and start and start.weights:
            tell(task.start.sentence())
        for line in remarks(settings, overrides):
            tell(line)
        with hold_run(run) if ranks.is_first else nullcontext():
            ranks.wait()
            with trainer.start(inputs, note) as progress:
                result = trainer.train(progress)
                if result.reason != "signal":
                    task.publish(result.progress)
                task.write_report(result.progress)
        if settings.train.max_tokens is None:  # else it was reported before
            for line in early_end(settings, result.reason, result.progress.step):
                tell(line)
        return result


class Pretraining:
    """What is trained in pre-training: a network with its objective on prepared data; see `Task`."""

    metrics: tuple[str, ...] = ()  # of the held-out documents all are shown
    shapes: Shapes = "one"
    extra_bytes = 0

    def __init__(self, recipe: Recipe, dataset: Dataset, start: Start | None = None) -> None:
        _check_clock(recipe)
        self.recipe, self.dataset = recipe, dataset
        self.kind = find_kind(recipe.model.kind)
        self.net: nn.Module = build_model(recipe, dataset, start.config if start else None)
        self.objective, self.kinds = OBJECTIVES[recipe.data.objective], self.kind.objectives[recipe.data.objective]
        self.is_plain = self.kind.is_plain  # what is random is then hashed on a CPU too
        self.start = start.fill(self.net) if start and start.weights else start
        self.measures_first = start is not None  # how good the model is before it learns more
        data = recipe.data
        length = data.short_length if data.short_share and data.short_length else data.max_length
        self.flops_per_token: float | None = network_of(recipe, dataset.vocab_size).flops(length)
        length = max(data.lengths(), key=recipe.batch_tokens)
        self.out_of_memory = (
            f"with batches of {recipe.sequences_of(length):,} x {length:,} tokens in "
            f"{recipe.train.slices} slices; continue with --resume train.recompute=true, or start again with a higher "
            "train.slices or a lower train.batch_size. Checkpoints are unchanged"
        )
        self._seconds = 0.0  # of training so far, for schedules that go by the clock

    def setup(self, trainer: Trainer) -> None:
        """See `Task`."""
        self.trainer, recipe, seeded = trainer, self.recipe, trainer.flash or self.is_plain
        self.title = (
            f"{trainer.folder.name}, {self.recipe.model.preset}, {self.recipe.data.objective}, {trainer.device}"
        )
        self.feed = Feed(
            recipe, self.dataset, trainer.device, trainer.ranks, self.kinds, flash=trainer.flash, seeded=seeded
        )

    def optimizer(self, net: nn.Module) -> Optimizer:
        """See `Task`."""
        return Optimizer(net, self.recipe.optim)

    def batches(self, progress: Progress) -> Batches:
        """See `Task`."""
        self._seconds = progress.seconds
        return self.feed.batches(progress, self.share)

    def learning_rate(self, progress: Progress) -> float:
        """See `Task`."""
        optim, self._seconds = self.recipe.optim, progress.seconds
        if optim.clock:
            return learning_rate_by_clock(optim, progress.step, self.share(progress.step))
        return learning_rate(optim, progress.step, self.recipe.train.max_steps)

    def share(self, step: int) -> float:
        """Return how much of the run is over after a number of steps; by the clock, how much is over now."""
        limits = self.recipe.train
        if self.recipe.optim.clock:
            assert limits.max_minutes is not None
            return self._seconds / (60 * limits.max_minutes)
        return step / limits.max_steps

    def is_time_to_evaluate(self, progress: Progress) -> bool:
        """See `Task`."""
        return progress.step % self.recipe.train.eval_every == 0

    def evaluate(self, progress: Progress) -> dict[str, float]:
        """Measure the held-out documents, with the same pairs and masks every time."""
        trainer = self.trainer
        counts = torch.ones(len(self.kinds), device=trainer.device)
        sums, random = [], [0.0]
        for part in self.feed.held_out(self.share(progress.step)):
            sums.append(trainer.model(part.batch, counts)[1])
            random.append(part.num_random or 0.0)
        if not sums:
            return {}  # there are no held-out documents
        (num_random,) = trainer.ranks.total([sum(random)])
        # Added up in the order of the parts, so the figures are the same for any number of ranks.
        by_part = torch.stack(trainer.ranks.gathered(torch.stack(sums).double().cpu()), dim=1).flatten(0, 1)
        figures = figures_of(self.kinds, by_part.sum(0).tolist(), num_random)
        return {f"holdout_{name}": value for name, value in figures.items()}

    def is_enough(self) -> bool:
        """See `Task`."""
        return False

    def save_model(self, folder: Path, progress: Progress) -> None:
        """See `Task`."""
        provenance: dict[str, Any] = {
            "objective": self.recipe.data.objective,
            "steps": progress.step,
            "tokens": progress.tokens,
        }
        if self.start:
            provenance["start"] = self.start.about
        about: dict[str, Any] = {"provenance": provenance, "metrics": self.trainer.metrics}
        if self.start and self.start.rates:
            about["finetune"] = self.start.rates
        write_model(folder, self.net, about=about)
        self.dataset.tokenizer.save(folder, max_length=num_positions(folder))

    def from_file(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """See `Task`."""
        return self.kind.from_file(list(self.net.state_dict()), weights)

    def state(self) -> tuple[dict[str, Tensor], None]:
        """See `Task`."""
        return {}, None

    def load_state(self, tensors: dict[str, Tensor], state: Mapping[str, Any]) -> None:
        """See `Task`."""

    def fingerprint(self) -> str:
        """See `Task`."""
        return digest_of(self.recipe, self.dataset)

    def publish(self, progress: Progress) -> None:
        """Write the final model to RUN/model; all ranks must call it. It may be repeated after a kill."""
        self.trainer.gather({})
        if self.trainer.ranks.is_first:
            with replace_model(self.trainer.folder, self.trainer.model_bytes()) as folder:
                self.save_model(folder, progress)

    def write_report(self, progress: Progress) -> None:
        """Sample the model's predictions on held-out documents and write the report; errors here do not fail a run."""
        trainer = self.trainer
        if not trainer.ranks.is_first:
            return
        held_out = (part.batch for part in self.feed.held_out(self.share(progress.step), Ranks()))
        try:
            if not trainer.is_sharded:  # else the whole network is on the CPU, perhaps because it fits nowhere else
                write_samples(trainer.folder, take_samples(self.net, self.dataset, self.recipe.data, held_out))
            write_report(trainer.folder)
        except UserError as error:
            _log.warning("no report of the run: %s", error)


class Feed:
    """Makes the micro-batches of one rank, on its device.

    Args:
        recipe: all settings.
        dataset: prepared data.
        device: where they go.
        ranks: which of all micro-batches are this rank's.
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
        # Checked before a run starts, not when it reaches its long sequences or its first evaluation.
        self._shapes = {}
        for length in reversed(recipe.data.lengths()):
            tokens, num_slices = recipe.batch_tokens(length), recipe.train.slices
            if tokens % num_slices:
                raise UserError(f"train.slices {num_slices} does not divide a batch of {tokens:,} tokens")
            of_length = recipe.data.model_copy(update={"max_length": length})
            self._shapes[length] = shape_for(of_length, tokens=tokens // num_slices, slices=num_slices)
        self._has_held_out = bool(dataset.manifest["holdout"]["tokens"])
        for split in ("train", "holdout") if self._has_held_out else ("train",):
            self._loader(recipe.data.max_length, EVALUATION_SEED, split)

    def length_at(self, share: float) -> int:
        """Return the length of sequences when this share of a run is over."""
        data = self.recipe.data
        return data.short_length if data.short_length and share < data.short_share else data.max_length

    def batches(self, progress: Progress, share: Callable[[int], float]) -> Batches:
        """Yield the micro-batches of the batches after a point, each with the state of the data after it.

        `share` gives for a number of steps how much of the run is over then.
        """
        settings, ranks, step = self.recipe.train, self.ranks, progress.step
        state, length = self._opened(progress.data)
        while True:
            now = self.length_at(share(step))
            if length not in (now, None):  # the length has changed: on to the next block
                at_end = state.block + 1 >= len(self.dataset.shards("train"))
                state = State(state.epoch + at_end, 0 if at_end else state.block + 1, 0)
            length = now
            ranks.be_patient()  # a graph for this length may have to be compiled
            loader = self._loader(length, settings.seed, "train")
            made: Any = batches(loader, state, workers=settings.loader_workers, pin=self.device.type == "cuda")
            with closing(made):
                for slices, state in made:
                    # Numbered as in the whole batch, so that dropout does not depend on the number of ranks.
                    numbers = range(ranks.rank, settings.slices, ranks.world_size)
                    micro_batches = [
                        self._micro_batch(packed, step, number, length)
                        for number, packed in zip(numbers, slices, strict=True)
                    ]
                    yield micro_batches, {**state._asdict(), "length": length}
                    step += 1
                    if self.length_at(share(step)) != length:
                        break

    def _opened(self, data: dict[str, int] | None) -> tuple[State, int | None]:
        """Return a checkpoint's state of the data and its sequence length; the first checkpoints state no length."""
        if not data:
            return State(), None
        if data.keys() - {"length"} != set(State._fields) or data.get("length") not in (None, *self._shapes):
            raise CorruptFile(f"a checkpoint states the data's position as {str(data)[:80]}, which is not one")
        state = State(data["epoch"], data["block"], data["offset"])
        num_blocks = len(self.dataset.shards("train"))
        if self.dataset.skipped and state.block >= num_blocks:  # there were more when it was written
            state = State(state.epoch + 1)
        return state, data.get("length")

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

    def held_out(self, share: float, ranks: Ranks | None = None) -> Iterator[MicroBatch]:
        """Yield the rank's parts of the held-out documents: for a length the same pairs and masks every time.

        Each document is measured once at most, however many batches are requested. With `Ranks()` instead of the run's
        ranks, one rank gets all parts.
        """
        if not self._has_held_out:
            return
        length = self.length_at(share)
        loader = self._loader(length, EVALUATION_SEED, "holdout", ranks)
        for number, (slices, state) in enumerate(itertools.islice(loader.batches(), self.recipe.train.eval_batches)):
            if number and state.epoch:  # all of them have been measured
                return
            for packed in slices:
                yield self._micro_batch(packed, 0, 0, length)

    def _micro_batch(self, packed: Packed, step: int, number: int, length: int) -> MicroBatch:
        """Move a micro-batch to the device; its dropout is a function of the run's seed, the step and its number."""
        batch: Any = to_device(packed, self.device, length, flash=self.flash)
        seed = dropout_seed(self.recipe.train.seed, step, number)
        if self.seeded:
            batch = batch._replace(tokens=batch.tokens._replace(dropout_seed=moved(seed, self.device)))
        lengths = np.diff(packed.cumulative_lengths[: len(packed.next_labels) + 1])
        neighbours = float(np.maximum(lengths - 1, 0).sum())  # of a text of n tokens n - 1 have one on a side
        counts_of = {
            "mlm": float(packed.masked_weights.sum()),
            "nsp": float(packed.next_weights.sum()),
            "lm": neighbours,
            "bilm": 2 * neighbours,
        }
        num_tokens = int(packed.cumulative_lengths[len(packed.next_labels)])
        # A single micro-batch is never shared: there the generator's own state is used, as in runs of earlier versions.
        is_drawn = self.seeded or self.recipe.train.slices == 1
        num_random = float(packed.next_weights @ packed.next_labels) if "nsp" in self.kinds else None
        counts = [counts_of[kind] for kind in self.kinds]
        return MicroBatch(batch, counts, num_tokens, None if is_drawn else int(seed), num_random)


def _check_memory(recipe: Recipe, vocab_size: int, num_ranks: int, note: Callable[[str], None]) -> None:
    """Refuse batches that this machine's memory cannot hold, where every rank has its share of the micro-batches."""
    network, length = network_of(recipe, vocab_size), max(recipe.data.lengths(), key=recipe.batch_tokens)
    needed = memory_of(network, part_of(recipe, length, num_ranks, on_cpu=True))
    free = (free_memory() or 0) / num_ranks / GIGA
    ways = [*ways_to_fit(recipe, network, length, free, num_ranks, on_cpu=True), "a lower train.batch_size"]
    check_memory({name: size * num_ranks for name, size in needed.items()}, " or ".join(ways), note)


def _check_clock(recipe: Recipe) -> None:
    if recipe.optim.clock and recipe.train.max_minutes is None:
        raise UserError("optim.clock needs train.max_minutes, the time that the schedule is spread over")


def remarks(recipe: Recipe, overrides: Sequence[str]) -> Iterator[str]:
    """Yield a line for each setting that has no effect, and for a schedule that will not reach its end."""
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
            f"so the learning rate never reaches {optim.lr:g}; a share of the run, such as optim.warmup=0.1, fits any "
            "length"
        )
    if train.max_tokens is not None:
        steps = -(-train.max_tokens // recipe.batch_tokens(data.lengths()[0]))
        yield from early_end(recipe, "tokens", steps)


def early_end(recipe: Recipe, reason: str, step: int) -> Iterator[str]:
    """Warn that a limit ends a run after fewer steps than the schedules of rate and length have."""
    total, goes_by_steps = recipe.train.max_steps, not recipe.optim.clock and recipe.optim.schedule != "constant"
    if reason in _OF_LIMITS and goes_by_steps and step < _MUCH_OF_A_RUN * total:
        rate = learning_rate(recipe.optim, step, total)
        yield (
            f"{_OF_LIMITS[reason]} ends the run after some {counted(step, 'step')}, and the learning rate goes by "
            f"train.max_steps={total:,}: it is {rate:.2g} then; set train.max_steps={step}"
            + (", or optim.clock=true" if reason == "minutes" else "")
        )


def pretrain_dry(
    recipe: Recipe,
    *,
    data: str | Path,
    overrides: Sequence[str] = (),
    device: str = "auto",
    quiet: bool = False,
    note: Callable[[str], None] | None = None,
    **options: Any,
) -> Result:
    """Run the whole program, a step for each length, from the data to a model that opens, in a folder that is removed.

    The remarks are about the full run, and about the overrides that made its recipe.
    """
    _check_clock(recipe)
    note = note or (_log.info if quiet or not is_first_rank() else print_note)
    for line in remarks(recipe, overrides) if is_first_rank() else ():
        note(line)
    steps = len(recipe.data.lengths())
    most = 0.9 * (1 - recipe.optim.decay_share)  # as a share of its few steps, so that no remark is made
    once = {
        "max_steps": steps, "max_tokens": None, "max_minutes": None, "log_every": 1, "eval_every": 1, "save_every": 1,
        "compile": False,
    }  # fmt: skip
    walked = recipe.model_copy(
        update={
            "train": recipe.train.model_copy(update=once),
            "data": recipe.data.model_copy(update={"short_share": 1 / steps}),
            "optim": recipe.optim.model_copy(update={"clock": False, "warmup": min(recipe.optim.warmup, most)}),
        }
    )
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        result = pretrain(walked, data=data, out=run, device=device, view=unseen, note=note, **options)
        if run.exists():  # of several ranks the first one has written
            read_model(find_model(run))
    return result
