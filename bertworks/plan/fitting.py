"""How a batch is laid on GPUs or a CPU, and what to change where it does not fit."""

import math

from bertworks.plan.gpus import GPUS
from bertworks.plan.memory import Slice, fits, memory_of
from bertworks.plan.network import Network
from bertworks.recipe import Recipe

_MAX_WAYS = 3
_MIN_LENGTH = 8  # see data/settings.py
_MAX_SLICES = 65_536  # that are tried


def part_of(
    recipe: Recipe,
    length: int,
    gpus: int,
    *,
    slices: int | None = None,
    recompute: bool | None = None,
    on_cpu: bool = False,
) -> Slice:
    """Return what one device computes at once; `slices` and `recompute` are the recipe's unless given."""
    settings = recipe.train
    return Slice(
        tokens=recipe.batch_tokens(length) // (slices or settings.slices),
        half=settings.dtype == "bfloat16" or (settings.dtype == "auto" and not on_cpu),
        recompute=settings.recompute if recompute is None else recompute,
        parts=gpus if settings.shard else 1,
        on_cpu=on_cpu,
        attended=length if on_cpu and recipe.model.dropout else 0,
    )


def ways_to_fit(
    recipe: Recipe, network: Network, length: int, memory_gb: float, gpus: int, *, on_cpu: bool = False
) -> list[str]:
    """Return settings with which a run would fit a device, each enough by itself, the cheapest first."""
    ways = []
    may_recompute = not recipe.train.recompute and not network.is_recurrent
    for recompute in (recipe.train.recompute, True) if may_recompute else (recipe.train.recompute,):
        slices = fewest_slices(recipe, network, length, memory_gb, gpus, recompute=recompute, on_cpu=on_cpu)
        changes = ["train.recompute=true"] * (recompute and not recipe.train.recompute)
        if slices:
            changes += [f"train.slices={slices}"] * (slices != recipe.train.slices)
            ways.append(" ".join(changes))
    if gpus > 1 and not recipe.train.shard:
        sharded = recipe.model_copy(update={"train": recipe.train.model_copy(update={"shard": True})})
        if fewest_slices(sharded, network, length, memory_gb, gpus) == recipe.train.slices:
            ways.append("train.shard=true")
    ways = ways[:_MAX_WAYS] or _shorter(recipe, network, length, memory_gb, gpus, on_cpu=on_cpu)
    if not on_cpu:
        ways += _larger_gpus(sum(memory_of(network, part_of(recipe, length, gpus)).values()))
    return ways or ["a smaller model.preset"]


def _shorter(recipe: Recipe, network: Network, length: int, memory_gb: float, gpus: int, *, on_cpu: bool) -> list[str]:
    """Return the longest half, quarter, ... of a length of which at least one sequence fits, if there is one."""
    while length >= 2 * _MIN_LENGTH:
        length //= 2
        if slices := fewest_slices(recipe, network, length, memory_gb, gpus, on_cpu=on_cpu):
            return [f"data.max_length={length} train.slices={slices}"]
    return []


def _larger_gpus(needed: float) -> list[str]:
    """Return the smallest GPU that has enough memory, if there is one."""
    able = {name: gpu.memory_gb for name, gpu in GPUS.items() if gpu.bf16_tflops and fits(needed, gpu.memory_gb)}
    return [f"--gpu {min(able, key=able.__getitem__)}"] if able else []


def fewest_slices(
    recipe: Recipe,
    network: Network,
    length: int,
    memory_gb: float,
    gpus: int,
    *,
    recompute: bool | None = None,
    on_cpu: bool = False,
) -> int | None:
    """Return the least number of slices, of whole sequences and shared evenly by the GPUs, that fits; or None."""
    batch_size = math.gcd(recipe.sequences_of(length), recipe.train.batch_size)
    for slices in range(recipe.train.slices, min(batch_size, _MAX_SLICES) + 1):
        if batch_size % slices or slices % gpus:
            continue
        part = part_of(recipe, length, gpus, slices=slices, recompute=recompute, on_cpu=on_cpu)
        if fits(sum(memory_of(network, part).values()), memory_gb):
            return slices
    return None
