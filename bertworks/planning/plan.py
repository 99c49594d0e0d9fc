"""The plan of a run: its network, steps, memory, speed, time, disk and, where a price is given, cost.

A run has one phase, or two if it begins with shorter sequences; it ends at the first of its limits. Checkpoints take
time too: each is hashed twice, when it is written and when it is verified. Evaluations and the start (some minutes of
compilation for large models) are not counted.

The time of a training step is computed from counted work and measured rates:

    step = products / rate + attention / (0.6 rate) + bytes / bandwidth + kernels * 5 us

What is counted: "products" are the operations of dense layers and scores, forward and backward. "attention" is two
products forward, and backward five for short sequences (scores are recomputed) or seven for longer ones (two kernels).
"bytes" is what all other operations read and write. Per token, a block reads and writes 18 times its width in the
forward pass (attention 4, two LayerNorms with dropout and residual 3 each, gelu 8) and 44 times in the backward pass
(attention 8, gelu 12, LayerNorms 18, sums for the gradients of biases 5, residuals 1). Scores are read or written five
times; embeddings, in fp32, take as much as 20 widths; an update takes 44 bytes per parameter (copy, cast, norm, Adam).

Three numbers were fitted to whole steps on one H200 (docs/log.md; bf16, compiled): products reach 72.5 % of the
vendor's peak, that is 717 TFLOP/s; attention reaches 0.6 of that; memory reaches 56 % of its bandwidth. With these, the
predictions for base, large, small and mini at length 128 and for base at 512 are within 5 %. 5 us is a typical overhead
of a kernel; it matters for small models and small batches. Without dropout a step of base is about 3 % shorter, which
is not counted. For other GPUs the same shares of the vendor's figures are assumed.
"""

import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

from bertworks.errors import UserError
from bertworks.planning.costs import (
    CPU,
    FORWARD_AND_BACKWARD,
    GIGA,
    MEASURED,
    TERA,
    MicroBatch,
    Network,
    find_gpu,
    fits,
    free_memory,
    memory_of,
    network_of,
    part_of,
    peak_flops,
    ways_to_fit,
)
from bertworks.recipe import Recipe, as_recipe, check_has_sizes

_RATE_SHARE = 0.725
_ATTENTION_SHARE = _RATE_SHARE * 0.6
_BANDWIDTH_SHARE = 0.56
_KERNEL_S = 5e-6
_FORWARD_WIDTHS, _BACKWARD_WIDTHS, _EMBEDDING_WIDTHS = 18, 44, 20
_SCORE_PASSES = 5
_UPDATE_BYTES = 44
_FORWARD_KERNELS, _BACKWARD_KERNELS = 8, 18  # of a block
_OTHER_KERNELS = 60  # of embeddings, scores, copies of weights and the update
_SHORT_LENGTH = 128  # up to this length attention's backward pass is one kernel, see nn/gpu_attention.py
_SHORT_BACKWARD, _LONG_BACKWARD = 2.5, 3.5  # times the forward pass
# The overhead per step of a whole `pretrain` of mini (7,100 instead of 8,060 thousand tokens/s).
LOOP_S = 2.2e-3
_HASHED_PER_S = 1.5 * GIGA  # see train/checkpoint.py
_MAX_GPUS = 65_536


def gradient_seconds(network: Network, part: MicroBatch, length: int, gpu: str) -> float:
    """Return the seconds for the forward and backward pass of a micro-batch."""
    peak = peak_flops(gpu, half=part.half)
    again = 1 if part.recompute else 0
    backward = _SHORT_BACKWARD if length <= _SHORT_LENGTH else _LONG_BACKWARD
    products = network.dense_flops * (FORWARD_AND_BACKWARD + again)
    products += network.scored_share * network.score_flops * FORWARD_AND_BACKWARD
    attention = network.attention_flops(length) * (1 + backward + again)
    widths = network.layers * (_FORWARD_WIDTHS * (1 + again) + _BACKWARD_WIDTHS) + _EMBEDDING_WIDTHS
    numbers = widths * network.width + network.scored_share * network.columns * _SCORE_PASSES
    num_bytes = numbers * (2 if part.half else 4)
    kernels = network.layers * (_FORWARD_KERNELS * (1 + again) + _BACKWARD_KERNELS) + _OTHER_KERNELS
    per_token = products / (_RATE_SHARE * peak) + attention / (_ATTENTION_SHARE * peak) + num_bytes / bandwidth(gpu)
    return part.tokens * per_token + kernels * _KERNEL_S


def update_seconds(network: Network, part: MicroBatch, gpu: str) -> float:
    """Return the seconds for the update of the weights, once per step."""
    return network.num_trained / part.parts * _UPDATE_BYTES / bandwidth(gpu)


def bandwidth(gpu: str) -> float:
    """Return the expected bytes per second of a GPU's memory."""
    return _BANDWIDTH_SHARE * find_gpu(gpu).terabytes_per_s * TERA


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

    Example:
        >>> import bertworks as bw
        >>> planned = bw.plan("base", gpu="a100-80")
        >>> planned["parameters"]["all"], planned["memory"]["fits"]
        (110106428, True)

    Args:
        recipe: the name of a shipped recipe, a path to your own, or a Recipe.
        overrides: `section.key=value` changes of a recipe that is given by name or path.
        gpu: the name of a GPU, or cpu for this machine; then memory is compared with the free memory, and no time is
            predicted.
        gpus: the number of GPUs.
        price: the price of one GPU for an hour, in any currency; without it no cost is computed.
        vocab_size: the size of the data's vocabulary; the recipe's if not given.
    """
    settings = as_recipe(recipe, overrides)
    if not isinstance(recipe, Recipe):
        check_has_sizes(os.fspath(recipe), settings)
    on_cpu, train = gpu.lower() == CPU, settings.train
    data = settings.data
    lengths = [(data.max_length, 1.0)]  # each length with its share of the run
    if data.short_length is not None:
        lengths = [(data.short_length, data.short_share), (data.max_length, 1.0 - data.short_share)]
    _check(settings, [length for length, _ in lengths], on_cpu, gpus, price)
    peak = math.nan if on_cpu else peak_flops(gpu, half=train.dtype != "float32")
    network = network_of(settings, settings.vocab.size if vocab_size is None else vocab_size)
    phases = _phases(settings, network, lengths, gpu, gpus)
    tokens = sum(phase["tokens"] for phase in phases)
    flops = sum(phase["tokens"] * network.flops(phase["length"]) for phase in phases)

    # Bytes of a checkpoint: weights in fp32, and two numbers of the optimizer for each trained weight.
    model_bytes, optimizer_bytes = 4 * network.num_parameters, 8 * network.num_trained
    checkpoint_bytes = model_bytes + optimizer_bytes
    hours = training_hours = saving_hours = speed = None
    if all(phase["step_s"] is not None for phase in phases):
        training = sum(phase["steps"] * phase["step_s"] for phase in phases)
        steps_of_save = [
            min(train.save_every, max(1.0, 60 * train.save_minutes / (phase["step_s"] or math.inf))) for phase in phases
        ]
        num_saves = math.ceil(sum(phase["steps"] / steps for phase, steps in zip(phases, steps_of_save, strict=True)))
        saving = num_saves * 2 * checkpoint_bytes / _HASHED_PER_S
        hours, training_hours, saving_hours = (training + saving) / 3600, training / 3600, saving / 3600
        speed = tokens / training
    return {
        "gpu": gpu.lower(),
        "gpus": gpus,
        "network": {"kind": settings.model.kind, "size": network.size, "objective": data.objective},
        "parameters": network.parts | {"all": network.num_parameters},
        "phases": phases,
        "steps": sum(phase["steps"] for phase in phases),
        "tokens": tokens,
        "flops_per_token": flops / tokens,
        "flops": flops,
        "memory": _memory(settings, network, [length for length, share in lengths if share > 0], gpu, gpus),
        "time": {
            "hours": hours,
            "training_hours": training_hours,
            "saving_hours": saving_hours,
            "tokens_per_second": speed,
        },
        "mfu": hours and training_hours and flops / (training_hours * 3600 * gpus * peak),
        "disk": {
            "checkpoint_bytes": checkpoint_bytes,
            "model_bytes": model_bytes,
            "optimizer_bytes": optimizer_bytes,
            "keep": train.keep,
            # One checkpoint more than are kept, while the newest is written and verified; and the final model.
            "peak_bytes": (train.keep + 1) * checkpoint_bytes + model_bytes,
        },
        "gpu_hours": hours and hours * gpus,
        "cost": None if price is None or hours is None else hours * gpus * price,
        "notes": _notes(settings, network, gpu, gpus),
    }


def _check(recipe: Recipe, lengths: Sequence[int], on_cpu: bool, gpus: int, price: float | None) -> None:
    if on_cpu and gpus != 1:
        raise UserError(f"--gpus {gpus} is for GPUs; leave it out with --gpu cpu")
    if not 1 <= gpus <= _MAX_GPUS:
        raise UserError(f"--gpus {gpus} is not possible; choose 1 to {_MAX_GPUS:,}")
    if price is not None and not 0 <= price < math.inf:
        raise UserError(f"--price {price} is not possible; give the price of one GPU for an hour")
    if recipe.optim.clock and recipe.train.max_minutes is None:
        raise UserError("optim.clock needs train.max_minutes, the time over which the schedule runs")
    slices = recipe.train.slices
    if slices % gpus:
        raise UserError(
            f"{gpus} GPUs cannot share train.slices={slices}; choose a multiple, such as train.slices={gpus}"
        )
    for length in lengths:
        batch_size = recipe.sequences_of(length)
        tokens = batch_size * length
        if tokens % slices or tokens // slices < length:
            raise UserError(
                f"train.slices {slices} does not divide a batch of {batch_size} x {length} tokens into micro-batches"
            )


def _phases(
    recipe: Recipe, network: Network, lengths: list[tuple[int, float]], gpu: str, gpus: int
) -> list[dict[str, Any]]:
    """Return the phases of a run up to the first of its limits; phases without steps are left out."""
    train, phases = recipe.train, []
    all_seconds = 60 * train.max_minutes if train.max_minutes else math.inf
    steps_left, tokens_left, seconds_left = train.max_steps, train.max_tokens or math.inf, all_seconds
    for number, (length, share) in enumerate(lengths, start=1):
        step_s = None  # where no time can be predicted
        if not network.is_recurrent and gpu.lower() != CPU:
            part = part_of(recipe, length, gpus)
            gradients_s = train.slices // gpus * gradient_seconds(network, part, length, gpu)
            step_s = gradients_s + update_seconds(network, part, gpu) + LOOP_S
        own_steps = own_seconds = math.inf
        if number < len(lengths) and recipe.optim.clock:
            own_seconds = share * all_seconds
        elif number < len(lengths):
            own_steps = round(share * train.max_steps)
        batch_tokens = recipe.batch_tokens(length)
        in_time = min(seconds_left, own_seconds) / step_s if step_s else math.inf
        steps = math.ceil(min(steps_left, own_steps, tokens_left / batch_tokens, in_time))
        tokens = batch_tokens * steps
        steps_left, tokens_left = steps_left - steps, max(0, tokens_left - tokens)
        seconds_left = max(0.0, seconds_left - steps * (step_s or 0.0))
        if steps:
            phases.append({
                "length": length,
                "batch_tokens": batch_tokens,
                "steps": steps,
                "step_s": step_s,
                "tokens": tokens,
                "hours": None if step_s is None else steps * step_s / 3600,
                "tokens_per_second": None if step_s is None else batch_tokens / step_s,
            })  # fmt: skip
    return phases


def _memory(recipe: Recipe, network: Network, lengths: list[int], gpu: str, gpus: int) -> dict[str, Any]:
    length, on_cpu = max(lengths, key=recipe.batch_tokens), gpu.lower() == CPU
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


def _notes(recipe: Recipe, network: Network, gpu: str, gpus: int) -> list[str]:
    """Return notes on what the numbers are based on."""
    if gpu.lower() == CPU:
        return ["No time is predicted for a CPU; a run shows its tokens per second after the first steps."]
    if network.is_recurrent:
        return ["No time is predicted for LSTMs: their steps are sequential, and their speed was not measured."]
    exact = gpu.lower() == MEASURED and recipe.train.dtype != "float32" and recipe.train.compile is not False
    notes = [
        "Time is predicted by a formula that was fitted to steps measured on one H200, in bf16, compiled."
        if exact
        else "Time is scaled by the vendor's rates from an H200 in bf16, compiled; it was not measured."
    ]
    if recipe.train.compile is False:
        notes.append("Without train.compile a step takes longer than this.")
    if gpus > 1:
        notes.append("Several GPUs were not measured; the time for summing their gradients is not counted.")
    return notes


def plan_text(name: str, plan: Mapping[str, Any]) -> str:
    """Return a plan as text, at most 100 columns wide."""
    network, memory, time, disk = plan["network"], plan["memory"], plan["time"], plan["disk"]
    phases = plan["phases"]
    if len(phases) > 1:
        whole = {"steps": plan["steps"], "tokens": plan["tokens"], "tokens_per_second": time["tokens_per_second"]}
        phases = [*phases, {"length": "all", "batch_tokens": None, "hours": time["training_hours"], **whole}]
    run = [f"{'length':<10}{'steps':>10}{'tokens per step':>16}{'tokens':>16}{'tokens/s':>13}{'time':>15}"]
    for phase in phases:
        batch = "" if phase["batch_tokens"] is None else f"{phase['batch_tokens']:,}"
        speed = "" if phase["tokens_per_second"] is None else f"{phase['tokens_per_second']:,.0f}"
        run.append(
            f"{phase['length']:<10}{phase['steps']:>10,}{batch:>16}{_scaled(phase['tokens']):>16}"
            f"{speed:>13}{_duration(phase['hours']):>15}".rstrip()
        )
    run.append(f"{_scaled(plan['flops_per_token'])} operations (FLOPs) per token, {plan['flops']:.2g} in all")

    needed = [f"{name:<28}{size / GIGA:>13.2f} GB" for name, size in memory["bytes"].items() if size]
    verdict = "fits" if memory["fits"] else "DOES NOT FIT"
    slices = f", in {memory['slices']} slices" if memory["slices"] > 1 else ""
    device = f"one {plan['gpu'].upper()}'s {memory['gpu_bytes'] / GIGA:.0f} GB"
    if plan["gpu"] == CPU:
        device = f"the {memory['gpu_bytes'] / GIGA:.1f} GB free on this machine"
    needed.append(f"{'peak':<28}{memory['peak_bytes'] / GIGA:>13.2f} GB")
    needed.append(f"It {verdict} {device}, with {memory['slice_tokens']:,} tokens at once{slices}.")
    if memory["ways_to_fit"]:
        needed.append(f"It fits with {', or '.join(memory['ways_to_fit'])}.")

    hours = ["not predicted"]
    if time["hours"] is not None:
        is_long = time["saving_hours"] > 0.01 * time["hours"]
        saving = f", {_duration(time['saving_hours'])} of it for checkpoints" if is_long else ""
        hours = [f"{_duration(time['hours'])} in all{saving}"]
        hours.append(f"{plan['mfu']:.1%} of the vendor's peak operations (MFU)")
    checkpoint, model, optimizer, peak = (
        f"{disk[f'{name}_bytes'] / GIGA:,.2f} GB" for name in ("checkpoint", "model", "optimizer", "peak")
    )
    sections = {
        "Network": [
            f"{network['kind']}, {network['objective']}: {network['size']}",
            *(f"{name:<28}{count:>16,}" for name, count in plan["parameters"].items()),
        ],
        "Run": run,
        "Memory": needed,
        "Time": hours,
        "Disk": [
            f"{checkpoint} per checkpoint: {model} of weights, {optimizer} of optimizer state",
            f"{peak} at most, with {disk['keep']} checkpoints kept, one being written, and the model at the end",
        ],
    }
    if plan["cost"] is not None:
        sections["Cost"] = [f"{plan['cost']:,.2f}, for {plan['gpu_hours']:,.1f} GPU hours"]
    lines = [f"{name} on {plan['gpus']} {plan['gpu'].upper()}{'s' * (plan['gpus'] > 1)}, predicted"]
    for title, rows in sections.items():
        lines += ["", *(f"{title if row is rows[0] else '':<14}{row}" for row in rows)]
    return "\n".join([*lines, "", *plan["notes"]])


def _scaled(number: float) -> str:
    """Write a number as 42.6 billion."""
    for scale, name in ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand")):
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
