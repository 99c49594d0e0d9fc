"""A model folder for a person to look at: its sizes, what its parameters are for, its tensors and where it comes from.

Tensors are shown under Hugging Face's names, those of all layers in one line.
"""

import re
from collections.abc import Mapping
from typing import Any

from bertworks.interop.huggingface import read_folder, to_theirs
from bertworks.interop.sentence_folders import Pooling, find_encoder, read_pooling
from bertworks.locate import find_model
from bertworks.nn.bert import Bert

_SIZES = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_act",
    "direction",
    "positions",
)
_DIRECTIONS = {"both": "both ways", "left_to_right": "left to right", "right_to_left": "right to left"}
_LAYER = re.compile(r"\.(\d+)\.")
_MAX_NAMES = 10


def model_report(source: str) -> dict[str, Any]:
    """Return a model's sizes, parameters by part, tensors with shapes and types, and what its folder says of it."""
    root = find_model(source)
    folder = find_encoder(root)
    opened = read_folder(folder)
    config = opened.net.config
    tensors = to_theirs(dict(opened.net.named_parameters()))
    return {
        "folder": str(folder),
        "sizes": {name: getattr(config, name) for name in _SIZES},
        "heads": list(opened.net.heads),
        "labels": opened.labels,
        "pooling": read_pooling(root)._asdict(),
        "parameters": _parameters_by_part(opened.net),
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in tensors.items()
        },
        "unused": opened.unused,
        "about": opened.about,
    }


def _parameters_by_part(net: Bert) -> dict[str, int]:
    parts: dict[str, int] = {"total": 0, "embeddings": 0, "layers": 0}
    for name, parameter in net.named_parameters():
        first, _, rest = name.partition(".")
        part = {"blocks": "layers", "heads": f"{rest.partition('.')[0]} head"}.get(first, first)
        parts[part] = parts.get(part, 0) + parameter.numel()
        parts["total"] += parameter.numel()
    return parts


def report_text(report: Mapping[str, Any]) -> str:
    """Write a report for a terminal."""
    sizes = report["sizes"] | {"direction": _DIRECTIONS[report["sizes"]["direction"]]}
    lines = [
        "{num_hidden_layers} layers of width {hidden_size}, {num_attention_heads} heads, feed-forward "
        "{intermediate_size:,} wide, {hidden_act}".format(**sizes),
        "{vocab_size:,} pieces, up to {max_position_embeddings:,} tokens, {positions} positions, attends "
        "{direction}".format(**sizes),
        *_facts(report),
        "",
        "Parameters",
        *(f"  {part:<12} {count:>13,}" for part, count in report["parameters"].items()),
        "",
        "Tensors",
        *_tensor_lines(report["tensors"]),
    ]
    if report["about"]:
        lines += ["", "About", *(f"  {name}: {str(value)[:200]}" for name, value in report["about"].items())]
    return "\n".join(lines)


def _facts(report: Mapping[str, Any]) -> list[str]:
    facts = [f"heads: {', '.join(report['heads']) or 'none'}"]
    if report["pooling"] != Pooling()._asdict():
        facts.append(
            "pooling: {mode}, normalised: {normalize}, at most {max_length} tokens".format(**report["pooling"])
        )
    if report["labels"]:
        facts.append(f"labels: {_shortened(report['labels'])}")
    if report["unused"]:
        facts.append(f"tensors that no part of it reads: {_shortened(report['unused'])}")
    return facts


def _shortened(names: list[str]) -> str:
    more = f", ... ({len(names):,} in all)" if len(names) > _MAX_NAMES else ""
    return ", ".join(name[:60] for name in names[:_MAX_NAMES]) + more


def _tensor_lines(tensors: Mapping[str, Mapping[str, Any]]) -> list[str]:
    layers: dict[tuple[str, str], list[str]] = {}
    for name, tensor in tensors.items():
        number = _LAYER.search(name)
        shape = f"{tensor['dtype']:<9} {' x '.join(map(str, tensor['shape']))}"
        layers.setdefault((_LAYER.sub(".#.", name), shape), []).append(number[1] if number else "")
    shown = {
        name.replace("#", numbers[0] if len(numbers) == 1 else f"{numbers[0]}-{numbers[-1]}"): shape
        for (name, shape), numbers in layers.items()
    }
    width = max(map(len, shown))
    return [f"  {name:<{width}}  {shape}" for name, shape in shown.items()]
