"""A plan for a person to read, at most 100 columns wide."""

from collections.abc import Mapping
from typing import Any

from bertworks.plan.gpus import CPU
from bertworks.plan.memory import GIGA

_INDENT = 14
_SCALES = ((1e12, "trillion"), (1e9, "billion"), (1e6, "million"), (1e3, "thousand"))


def plan_text(name: str, plan: Mapping[str, Any]) -> str:
    """Write a plan for a terminal."""
    gpus = f"{plan['gpus']} {plan['gpu'].upper()}{'s' * (plan['gpus'] > 1)}"
    sections = {
        "Network": _network(plan),
        "Run": _run(plan),
        "Memory": _memory(plan["memory"], plan["gpu"]),
        "Time": _time(plan),
        "Disk": _disk(plan["disk"]),
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


def _memory(memory: Mapping[str, Any], gpu: str) -> list[str]:
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


def _time(plan: Mapping[str, Any]) -> list[str]:
    time = plan["time"]
    if time["hours"] is None:
        return ["not predicted"]
    long = time["saving_hours"] > 0.01 * time["hours"]
    saving = f", {_duration(time['saving_hours'])} of it for checkpoints" if long else ""
    return [
        f"{_duration(time['hours'])} in all{saving}",
        f"{plan['mfu']:.1%} of the operations that the vendor promises (MFU)",
    ]


def _disk(disk: Mapping[str, Any]) -> list[str]:
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
