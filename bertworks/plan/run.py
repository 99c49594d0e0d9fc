"""The plan of a run: its network, steps, memory, speed, time, disk and, where a price is given, cost.

A run has one phase, or two where it begins with shorter sequences; a batch has the same number of sequences in both.
Whatever limit comes first ends it. Besides its steps a run saves: each checkpoint is hashed twice, when it is written
and when it is verified. Evaluations and the start (some minutes of compiling for large models) are not counted.
"""

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from bertworks.data.settings import DataSettings
from bertworks.errors import UserError
from bertworks.plan.fitting import part_of, ways_to_fit
from bertworks.plan.gpus import CPU, MEASURED, find_gpu, peak_flops
from bertworks.plan.memory import GIGA, fits, free_memory, memory_of
from bertworks.plan.network import Network, network_of
from bertworks.plan.speed import LOOP_S, rates_of, slice_seconds, update_seconds
from bertworks.recipe import Recipe, as_recipe, check_has_sizes
from bertworks.train.settings import TrainSettings

_HASHED_PER_S = 1.5 * GIGA  # see train/checkpoint.py
_MAX_GPUS = 65_536


class Phase(NamedTuple):
    """Steps at one length; `step_s` is None where no time can be predicted."""

    length: int
    batch_tokens: int
    steps: int
    step_s: float | None

    @property
    def tokens(self) -> int:
        """Of all its steps."""
        return self.batch_tokens * self.steps


def plan_run(
    recipe: Recipe, *, gpu: str = MEASURED, gpus: int = 1, price: float | None = None, vocab_size: int | None = None
) -> dict[str, Any]:
    """Predict what a recipe needs.

    Args:
        recipe: all settings.
        gpu: the name of a GPU; or cpu, this machine's: then memory is compared with what is free, and no time is given.
        gpus: how many there are.
        price: of one GPU for an hour, in any currency; without it there is no cost.
        vocab_size: of the data; the recipe's own if not given.
    """
    on_cpu = gpu.lower() == CPU
    if on_cpu and gpus != 1:
        raise UserError(f"--gpus {gpus} is for GPUs; leave it out with --gpu cpu")
    _check(recipe, gpus, price)
    peak = math.nan if on_cpu else peak_flops(gpu, half=recipe.train.dtype != "float32")
    network = network_of(recipe, recipe.vocab.size if vocab_size is None else vocab_size)
    phases = _phases(recipe, network, gpu, gpus)
    tokens = sum(phase.tokens for phase in phases)
    flops = sum(phase.tokens * network.flops(phase.length) for phase in phases)
    disk = _disk(recipe, network)
    time = _time(recipe, phases, disk["checkpoint_bytes"])
    hours = time["hours"]
    return {
        "gpu": gpu.lower(),
        "gpus": gpus,
        "network": {"kind": recipe.model.kind, "size": network.size, "objective": recipe.data.objective},
        "parameters": network.parts | {"all": network.num_parameters},
        "phases": [_shown(phase) for phase in phases],
        "steps": sum(phase.steps for phase in phases),
        "tokens": tokens,
        "flops_per_token": flops / tokens,
        "flops": flops,
        "memory": _memory(recipe, network, gpu, gpus),
        "time": time,
        "mfu": hours and flops / (time["training_hours"] * 3600 * gpus * peak),
        "disk": disk,
        "gpu_hours": hours and hours * gpus,
        "cost": None if price is None or hours is None else hours * gpus * price,
        "notes": _notes(recipe, network, gpu, gpus),
    }


def plan(
    recipe: Recipe | str | os.PathLike[str],
    *,
    overrides: Sequence[str] = (),
    gpu: str = MEASURED,
    gpus: int = 1,
    price: float | None = None,
    vocab_size: int | None = None,
) -> dict[str, Any]:
    """Predict what a run of a recipe needs, as `bertworks plan --json` prints it: parameters, memory, time, disk.

    Args:
        recipe: the name of a shipped one, the path of yours, or all its settings.
        overrides: `section.key=value` on top of a named one.
        gpu: the name of a GPU.
        gpus: how many there are.
        price: of one GPU for an hour, in any currency; without it there is no cost.
        vocab_size: of the data; the recipe's own if not given.
    """
    settings = as_recipe(recipe, overrides)
    if not isinstance(recipe, Recipe):
        check_has_sizes(os.fspath(recipe), settings)
    return plan_run(settings, gpu=gpu, gpus=gpus, price=price, vocab_size=vocab_size)


def _check(recipe: Recipe, gpus: int, price: float | None) -> None:
    if not 1 <= gpus <= _MAX_GPUS:
        raise UserError(f"--gpus {gpus} is not possible; choose 1 to {_MAX_GPUS:,}")
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price {price} is none; give what one GPU costs for an hour")
    if recipe.optim.clock and recipe.train.max_minutes is None:
        raise UserError("optim.clock needs train.max_minutes, the time that the schedule is spread over")
    settings = recipe.train
    slices, sizes = settings.slices, {length: recipe.sequences_of(length) for length, _ in _lengths(recipe.data)}
    if slices % gpus:
        raise UserError(f"{gpus} GPUs cannot share train.slices={slices}; choose a multiple, as train.slices={gpus}")
    for length, batch_size in sizes.items():
        tokens = batch_size * length
        if tokens % slices or tokens // slices < length:
            raise UserError(f"train.slices {slices} does not cut a batch of {batch_size} x {length} tokens into slices")


def _lengths(data: DataSettings) -> list[tuple[int, float]]:
    """Return each length of a run and its share of it."""
    if data.short_length is None:
        return [(data.max_length, 1.0)]
    return [(data.short_length, data.short_share), (data.max_length, 1.0 - data.short_share)]


def _phases(recipe: Recipe, network: Network, gpu: str, gpus: int) -> list[Phase]:
    """Walk through a run until one of its limits ends it; phases without a step are left out."""
    settings = recipe.train
    seconds = 60 * settings.max_minutes if settings.max_minutes else math.inf
    left = _Limits(settings.max_steps, settings.max_tokens or math.inf, seconds)
    lengths = _lengths(recipe.data)
    phases = []
    for number, (length, share) in enumerate(lengths, start=1):
        own = _Limits()
        if number < len(lengths):
            of_steps, of_time = round(share * settings.max_steps), share * seconds
            own = _Limits(seconds=of_time) if recipe.optim.clock else _Limits(steps=of_steps)
        is_timed = not network.is_recurrent and gpu.lower() != CPU
        step_s = _step_seconds(recipe, network, length, gpu, gpus) if is_timed else None
        batch_tokens = recipe.batch_tokens(length)
        steps = min(limits.steps_of(batch_tokens, step_s) for limits in (left, own))
        phases.append(Phase(length, batch_tokens, math.ceil(steps), step_s))
        left = left.behind(phases[-1])
    return [phase for phase in phases if phase.steps]


class _Limits(NamedTuple):
    """What ends a phase or a run, whichever comes first."""

    steps: float = math.inf
    tokens: float = math.inf
    seconds: float = math.inf

    def steps_of(self, batch_tokens: int, step_s: float | None) -> float:
        """Return how many steps there are until then."""
        return min(self.steps, self.tokens / batch_tokens, self.seconds / step_s if step_s else math.inf)

    def behind(self, phase: Phase) -> "_Limits":
        """Return what is left after a phase."""
        seconds = self.seconds - phase.steps * (phase.step_s or 0.0)
        return _Limits(self.steps - phase.steps, max(0, self.tokens - phase.tokens), max(0.0, seconds))


def _step_seconds(recipe: Recipe, network: Network, length: int, gpu: str, gpus: int) -> float:
    part = part_of(recipe, length, gpus)
    rates = rates_of(gpu, half=part.half)
    one = slice_seconds(network, part, length, rates)
    return recipe.train.slices // gpus * one + update_seconds(network, part, rates) + LOOP_S


def _memory(recipe: Recipe, network: Network, gpu: str, gpus: int) -> dict[str, Any]:
    length = max((length for length, share in _lengths(recipe.data) if share > 0), key=recipe.batch_tokens)
    on_cpu = gpu.lower() == CPU
    part = part_of(recipe, length, gpus, on_cpu=on_cpu)
    needed = memory_of(network, part)
    free = free_memory() if on_cpu else None
    if on_cpu and free is None:
        raise UserError("this system does not say how much memory is free; plan for a GPU instead")
    peak, memory_gb = sum(needed.values()), find_gpu(gpu).memory_gb if free is None else free / GIGA
    enough = fits(peak, memory_gb)
    return {
        "length": length,
        "slices": recipe.train.slices,
        "slice_tokens": part.tokens,
        "bytes": needed,
        "peak_bytes": peak,
        "gpu_bytes": memory_gb * GIGA,
        "fits": enough,
        "ways_to_fit": [] if enough else ways_to_fit(recipe, network, length, memory_gb, gpus, on_cpu=on_cpu),
    }


def _time(recipe: Recipe, phases: list[Phase], checkpoint_bytes: int) -> dict[str, Any]:
    if any(phase.step_s is None for phase in phases):
        return {"hours": None, "training_hours": None, "saving_hours": None, "tokens_per_second": None}
    training = sum(phase.steps * (phase.step_s or 0.0) for phase in phases)
    num_saves = math.ceil(sum(phase.steps / _steps_between_saves(phase, recipe.train) for phase in phases))
    saving = num_saves * 2 * checkpoint_bytes / _HASHED_PER_S
    return {
        "hours": (training + saving) / 3600,
        "training_hours": training / 3600,
        "saving_hours": saving / 3600,
        "tokens_per_second": sum(phase.tokens for phase in phases) / training,
    }


def _steps_between_saves(phase: Phase, settings: TrainSettings) -> float:
    return min(settings.save_every, max(1.0, 60 * settings.save_minutes / (phase.step_s or math.inf)))


def _disk(recipe: Recipe, network: Network) -> dict[str, int]:
    """Return the bytes of checkpoints: weights in fp32 and the optimizer's two numbers for each that is trained."""
    model, optimizer = 4 * network.num_parameters, 8 * network.num_trained
    # One more than are kept, while the newest is written and verified; and at last the model by itself.
    peak = (recipe.train.keep + 1) * (model + optimizer) + model
    return {
        "checkpoint_bytes": model + optimizer,
        "model_bytes": model,
        "optimizer_bytes": optimizer,
        "keep": recipe.train.keep,
        "peak_bytes": peak,
    }


def _shown(phase: Phase) -> dict[str, Any]:
    hours = None if phase.step_s is None else phase.steps * phase.step_s / 3600
    speed = None if phase.step_s is None else phase.batch_tokens / phase.step_s
    return phase._asdict() | {"tokens": phase.tokens, "hours": hours, "tokens_per_second": speed}


def _notes(recipe: Recipe, network: Network, gpu: str, gpus: int) -> list[str]:
    """Say what the numbers stand on."""
    if gpu.lower() == CPU:
        return ["No time is predicted for a CPU; a run shows its tokens a second after its first steps."]
    if network.is_recurrent:
        return ["No time is predicted for LSTMs: their steps wait for each other, and none were measured."]
    exact = gpu.lower() == MEASURED and recipe.train.dtype != "float32" and recipe.train.compile is not False
    notes = [
        "Time is predicted by a formula that was fitted to steps measured on one H200, in bf16, compiled."
        if exact
        else "Time is scaled from an H200's, in bf16 and compiled, by the vendor's rates: this was not measured."
    ]
    if recipe.train.compile is False:
        notes.append("Without train.compile a step takes longer than this.")
    if gpus > 1:
        notes.append("Several GPUs were not measured; the time to add up their gradients is not counted.")
    return notes
