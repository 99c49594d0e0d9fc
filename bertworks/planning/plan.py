"""The plan of a run: its network, steps, memory, speed, time, disk and, where a price is given, cost.

A run has one phase, or two where it begins with shorter sequences; a batch has the same number of sequences in both.
Whatever limit comes first ends it. Besides its steps a run saves: each checkpoint is hashed twice, when it is written
and when it is verified. Evaluations and the start (some minutes of compiling for large models) are not counted.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bertworks.data.settings import DataSettings
from bertworks.errors import UserError
from bertworks.planning.memory import (
    CPU,
    GIGA,
    MEASURED,
    TERA,
    Slice,
    find_gpu,
    fits,
    free_memory,
    memory_of,
    part_of,
    peak_flops,
    ways_to_fit,
)
from bertworks.planning.network import FORWARD_AND_BACKWARD, Network, network_of
from bertworks.recipe import Recipe, TrainSettings, as_recipe, check_has_sizes

# How long a training step takes: work counted, rates measured.
#
#     step = products / rate + attention / (0.6 rate) + bytes / bandwidth + kernels * 5 us
#
# What is counted. Products: the operations of dense layers and scores, forward and backward. Attention: its two
# products forward, and five backward for short sequences (scores are made again), seven for longer ones (by two
# kernels). Bytes: what everything between the products reads and writes. A block reads and writes 18 times its
# width for each token forward (attention 4, two LayerNorms with dropout and residual 3 each, gelu 8) and 44 times
# backward (attention 8, gelu 12, LayerNorms 18, the sums that are gradients of biases 5, residuals 1). Scores pass
# five times; embeddings, in fp32, take as much as 20 widths; an update takes 44 bytes a parameter (copy, cast,
# norm, Adam).
#
# What is fitted, three numbers, to whole steps on one H200 (docs/log.md; bf16, compiled): products reach 72.5 % of
# the vendor's peak, which is 717 TFLOP/s; attention 0.6 of that; memory 56 % of its bandwidth. Then base, large,
# small and mini at length 128 and base at 512 come out within 5 %. That a kernel costs 5 us to start and to run out
# is what they commonly do; it matters to small models and small batches. Without dropout a step of base is some 3 %
# shorter, which is not counted.
#
# On another GPU the vendor's numbers are put in, as if the same shares of them were reached.


_RATE_SHARE = 0.725
_ATTENTION_SHARE = _RATE_SHARE * 0.6
_BANDWIDTH_SHARE = 0.56
_KERNEL_S = 5e-6

_FORWARD_WIDTHS, _BACKWARD_WIDTHS, _EMBEDDING_WIDTHS = 18, 44, 20
_SCORE_PASSES = 5
_UPDATE_BYTES = 44
_FORWARD_KERNELS, _BACKWARD_KERNELS = 8, 18  # of a block
_OTHER_KERNELS = 60  # of embeddings, scores, copies of weights and the update
_SHORT_LENGTH = 128  # up to which attention's backward pass is one kernel, see nn/gpu_attention.py
_SHORT_BACKWARD, _LONG_BACKWARD = 2.5, 3.5  # times the forward pass

# What a whole `pretrain` of mini took longer for a step than the step alone (7,100 against 8,060 thousand tokens/s).
LOOP_S = 2.2e-3


class Rates(NamedTuple):
    """What a GPU reaches."""

    products: float  # operations a second
    attention: float
    bandwidth: float  # bytes a second


def rates_of(gpu: str, *, half: bool) -> Rates:
    """Return what a GPU is expected to reach in bf16 or fp32."""
    peak = peak_flops(gpu, half=half)
    bandwidth = _BANDWIDTH_SHARE * find_gpu(gpu).terabytes_per_s * TERA
    return Rates(_RATE_SHARE * peak, _ATTENTION_SHARE * peak, bandwidth)


def slice_seconds(network: Network, part: Slice, length: int, rates: Rates) -> float:
    """Return the seconds that the gradients of a slice take."""
    again = 1 if part.recompute else 0
    scored_again = 1 if network.scores_all else 0
    backward = _SHORT_BACKWARD if length <= _SHORT_LENGTH else _LONG_BACKWARD
    products = network.dense_flops * (FORWARD_AND_BACKWARD + again)
    products += network.scored_share * network.score_flops * (FORWARD_AND_BACKWARD + scored_again)
    attention = network.attention_flops(length) * (1 + backward + again)
    widths = network.layers * (_FORWARD_WIDTHS * (1 + again) + _BACKWARD_WIDTHS) + _EMBEDDING_WIDTHS
    numbers = widths * network.width + network.scored_share * network.columns * (_SCORE_PASSES + 2 * scored_again)
    num_bytes = numbers * (2 if part.half else 4)
    kernels = network.layers * (_FORWARD_KERNELS * (1 + again) + _BACKWARD_KERNELS) + _OTHER_KERNELS
    per_token = products / rates.products + attention / rates.attention + num_bytes / rates.bandwidth
    return part.tokens * per_token + kernels * _KERNEL_S


def update_seconds(network: Network, part: Slice, rates: Rates) -> float:
    """Return the seconds that the change of the weights takes, once a step."""
    return network.num_trained / part.parts * _UPDATE_BYTES / rates.bandwidth


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


# A plan for a person to read, at most 100 columns wide.


_INDENT = 14
_SCALES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand"))


def plan_text(name: str, plan: Mapping[str, Any]) -> str:
    """Write a plan for a terminal."""
    gpus = f"{plan['gpus']} {plan['gpu'].upper()}{'s' * (plan['gpus'] > 1)}"
    sections = {
        "Network": _network(plan),
        "Run": _run(plan),
        "Memory": _memory_of_report(plan["memory"], plan["gpu"]),
        "Time": _time_of_report(plan),
        "Disk": _disk_of_report(plan["disk"]),
    }
    if plan["cost"] is not None:
        sections["Cost"] = [f"{plan['cost']:,.2f}, for {plan['gpu_hours']:,.1f} GPU hours"]
    lines = [f"{name} on {gpus}, predicted"]
    for title, rows in sections.items():
        lines += ["", *(f"{title if row is rows[0] else '':<{_INDENT}}{row}" for row in rows)]
    return "\n".join([*lines, "", *plan["notes"]])


def _network(plan: Mapping[str, Any]) -> list[str]:
    network = plan["network"]
    parts = [f"{name:<28}{count:>16,}" for name, count in plan["parameters"].items()]
    return [f"{network['kind']}, {network['objective']}: {network['size']}", *parts]


def _run(plan: Mapping[str, Any]) -> list[str]:
    time = plan["time"]
    whole = {
        "length": "all",
        "steps": plan["steps"],
        "batch_tokens": None,
        "tokens": plan["tokens"],
        "tokens_per_second": time["tokens_per_second"],
        "hours": time["training_hours"],
    }
    rows = plan["phases"] if len(plan["phases"]) == 1 else [*plan["phases"], whole]
    work = f"{_scaled(plan['flops_per_token'])} operations (FLOPs) a token, {plan['flops']:.2g} in all"
    return [
        f"{'length':<10}{'steps':>10}{'tokens a step':>16}{'tokens':>16}{'tokens/s':>13}{'time':>15}",
        *(_phase(row) for row in rows),
        work,
    ]


def _phase(phase: Mapping[str, Any]) -> str:
    batch = "" if phase["batch_tokens"] is None else f"{phase['batch_tokens']:,}"
    speed = "" if phase["tokens_per_second"] is None else f"{phase['tokens_per_second']:,.0f}"
    return (
        f"{phase['length']:<10}{phase['steps']:>10,}{batch:>16}{_scaled(phase['tokens']):>16}"
        f"{speed:>13}{_duration(phase['hours']):>15}"
    ).rstrip()


def _memory_of_report(memory: Mapping[str, Any], gpu: str) -> list[str]:
    rows = [f"{name:<28}{size / GIGA:>13.2f} GB" for name, size in memory["bytes"].items() if size]
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    slices = f", in {memory['slices']} slices" if memory["slices"] > 1 else ""
    place = f"one {gpu.upper()}'s {memory['gpu_bytes'] / GIGA:.0f} GB"
    if gpu == CPU:
        place = f"the {memory['gpu_bytes'] / GIGA:.1f} GB free on this machine"
    rows += [
        f"{'peak':<28}{memory['peak_bytes'] / GIGA:>13.2f} GB",
        f"It {verdict} {place}, with {memory['slice_tokens']:,} tokens at once{slices}.",
    ]
    if memory["ways_to_fit"]:
        rows.append(f"It would with {', or '.join(memory['ways_to_fit'])}.")
    return rows


def _time_of_report(plan: Mapping[str, Any]) -> list[str]:
    time = plan["time"]
    if time["hours"] is None:
        return ["not predicted"]
    long = time["saving_hours"] > 0.01 * time["hours"]
    saving = f", {_duration(time['saving_hours'])} of it for checkpoints" if long else ""
    return [
        f"{_duration(time['hours'])} in all{saving}",
        f"{plan['mfu']:.1%} of the operations that the vendor promises (MFU)",
    ]


def _disk_of_report(disk: Mapping[str, Any]) -> list[str]:
    checkpoint, model, optimizer, peak = (
        f"{disk[f'{name}_bytes'] / GIGA:,.2f} GB" for name in ("checkpoint", "model", "optimizer", "peak")
    )
    return [
        f"{checkpoint} a checkpoint: {model} of weights, {optimizer} of the optimizer's",
        f"{peak} at most, with {disk['keep']} checkpoints kept, one being written, and the model at the end",
    ]


def _scaled(number: float) -> str:
    for scale, name in _SCALES:
        if number >= scale:
            return f"{number / scale:.3g} {name}"
    return f"{number:.3g}"


def _duration(hours: float | None) -> str:
    if hours is None:
        return ""
    if hours >= 72:
        return f"{hours / 24:,.1f} days"
    if hours >= 1:
        return f"{hours:.1f} hours"
    return f"{hours * 60:.1f} minutes" if hours >= 1 / 60 else f"{hours * 3600:.1f} seconds"
