"""Descriptions of a model, as text and as data: sizes, what its parameters are for, its tensors and where it is from.

`facts_of` a network are what `Model.describe()`, its repr and `bertworks inspect MODEL` are made of. Tensors are shown
under the names of the file, those of all layers in one line.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertworks.errors import counted, printable
from bertworks.models.folder import find_encoder, find_model
from bertworks.models.kinds import kind_of_network, read_model
from bertworks.models.names import LAYER_MATRIX
from bertworks.models.sentence_transformers import Pooling, read_pooling
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import reader_of
from bertworks.nn.elmo import ElmoTasks

_UNSHOWN = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps", "resid_pdrop",
    "embd_pdrop", "attn_pdrop", "layer_norm_epsilon", "dropout",
)  # fmt: skip
_DIRECTIONS = {"both": "both ways", "left_to_right": "left to right", "right_to_left": "right to left"}
_PARTS = {"blocks": "layers", "token": "embeddings", "position": "embeddings"}
_LAYER = re.compile(r"\.(\d+)\.")
_MAX_NAMES = 10


def facts_of(net: Any) -> dict[str, Any]:
    """Return a network's kind, sizes, heads and parameters by part, and the settings of a BiLSTM on frozen layers."""
    sizes = net.config.model_dump(mode="json") | (
        net.reader.model_dump(mode="json") if isinstance(net, ElmoTasks) else {}
    )
    reader, parts = reader_of(net) if isinstance(net, Bert) else None, {"total": 0}
    for name, parameter in net.named_parameters():
        first, _, rest = name.partition(".")
        part = f"{rest.partition('.')[0]} head" if first == "heads" else _PARTS.get(first, first).replace("_", " ")
        parts[part] = parts.get(part, 0) + parameter.numel()
        parts["total"] += parameter.numel()
    return {
        "kind": type(net).__name__.lower(),
        "sizes": {name: value for name, value in sizes.items() if name not in _UNSHOWN},
        "heads": list(getattr(net, "heads", [])),
        "reader": dict(reader.config) if reader else None,
        "parameters": parts,
    }


def model_report(source: str) -> dict[str, Any]:
    """Return a model's sizes, parameters by part, tensors with shapes and types, and what its folder says of it."""
    root = find_model(source)
    folder = find_encoder(root)
    opened = read_model(folder)
    facts = facts_of(opened.net)
    tensors = {name: parameter.detach().to("meta") for name, parameter in opened.net.named_parameters()}
    return {
        "folder": str(folder),
        **{name: facts[name] for name in ("kind", "sizes", "heads", "reader")},
        "labels": opened.labels,
        "pooling": read_pooling(root).as_json(),
        "parameters": facts["parameters"],
        "tensors": {
            name: {
                "shape": list(tensor.shape),
                "dtype": "int8"
                if opened.int8_factors is not None and LAYER_MATRIX.fullmatch(name)
                else str(tensor.dtype)[6:],
            }
            for name, tensor in kind_of_network(opened.net).to_file(tensors).items()
        },
        "unused": opened.unused,
        "about": opened.about,
    }


def report_text(report: Mapping[str, Any]) -> str:
    """Write a report for a terminal."""
    lines = [*_size_lines(report["kind"], report["sizes"]), f"heads: {', '.join(report['heads']) or 'none'}"]
    if (pooling := report["pooling"]) != Pooling().as_json():
        most = (
            "as many tokens as it has positions"
            if pooling["max_length"] is None
            else f"{pooling['max_length']:,} tokens"
        )
        lines.append(f"pooling: {pooling['mode']}, normalised: {pooling['normalize']}, at most {most}")
        if pooling["layers"]:
            lines.append(f"after the pooling: {', '.join(pooling['layers'])}")
        if pooling["truncate_dim"]:
            lines.append(f"vectors are cut to: {pooling['truncate_dim']:,} numbers")
        if any(pooling["prompts"].values()):
            named = ", ".join(f"{name}: {text[:40]!r}" for name, text in pooling["prompts"].items() if text)
            lines.append(f"prompts: {named}; the default: {pooling['default_prompt'] or 'none'}")
    if report["reader"]:
        lines.append(
            "tags by frozen layers: {features}, {lstm_layers} BiLSTMs of {lstm_cells} cells".format(**report["reader"])
        )
    if report["labels"]:
        lines.append(f"labels: {_shortened(report['labels'])}")
    if report["unused"]:
        lines.append(f"unused tensors: {_shortened(report['unused'])}")
    lines += ["", "Parameters", *(f"  {part:<12} {count:>13,}" for part, count in report["parameters"].items())]
    lines += ["", "Tensors", *_tensor_lines(report["tensors"])]
    if report["about"]:
        lines += ["", "About", *(f"  {name}: {str(value)[:200]}" for name, value in report["about"].items())]
    return "\n".join(lines)


def repr_of(facts: Mapping[str, Any]) -> str:
    """Say in a few lines what an opened model is, reads and can do, by what its `describe` returns."""
    sizes = facts["sizes"]
    lines = _size_lines(facts["kind"], sizes)
    if facts["kind"] == "bert":
        lines[0] = f"BERT: {lines[0]}"
        if facts["max_length"] < sizes["max_position_embeddings"]:
            lines.append(f"reads texts of up to {facts['max_length']:,} tokens, as its folder says")
    lines.append(f"{facts['parameters']['total']:,} parameters in {facts['dtype']} on {facts['device']}")
    lines.append(f"heads: {', '.join(facts['heads']) or 'none'}")
    if facts["labels"]:
        lines.append(f"labels: {_shortened(facts['labels'])}")
    if isinstance(task := facts["task"], dict):
        lines.append(f"fine-tuned for: {str(task.get('name', task.get('kind')))[:60]}")
    lines.append(f"can: {', '.join(facts['methods']) or 'nothing by itself'}")
    return printable("\n  ".join(["Model(", *lines]) + "\n)")


def _size_lines(kind: str, sizes: Mapping[str, Any]) -> list[str]:
    """Say in one to four lines how large a network is and how it reads."""
    if kind == "compound":
        lines = [line for encoder in sizes["encoders"] for line in _size_lines("bert", encoder)]
        num_layers = counted(sizes["num_lstm_layers"], "layer")
        on_top = f"a BiLSTM of {num_layers}, {sizes['num_cells']:,} cells each way, on top"
        return [*lines, on_top] if sizes["num_lstm_layers"] else lines
    if kind == "gpt":
        return [
            f"GPT-1: {counted(sizes['n_layer'], 'layer')} of width {sizes['n_embd']}, "
            f"{counted(sizes['n_head'], 'head')}, {sizes['afn']}",
            "{vocab_size:,} pieces, up to {n_positions:,} tokens, reads from left to right".format(**sizes),
        ]
    if kind == "bert":
        return [
            f"{counted(sizes['num_hidden_layers'], 'layer')} of width {sizes['hidden_size']}, "
            f"{counted(sizes['num_attention_heads'], 'head')}, feed-forward {sizes['intermediate_size']:,} wide, "
            f"{sizes['hidden_act']}",
            "{vocab_size:,} pieces, up to {max_position_embeddings:,} tokens, {positions} positions, attends ".format(
                **sizes
            )
            + _DIRECTIONS[sizes["direction"]],
        ]
    first = "ELMo: {num_layers} LSTMs each way, {cell_size:,} cells projected to {projection_size:,}".format(**sizes)
    if kind == "elmotasks":
        what = "pairs of texts" if sizes["pairs"] else "texts"
        learnt = "learnt with them" if sizes["trains_elmo"] else "frozen"
        return [first, f"{learnt}, under BiLSTMs of {sizes['num_cells']:,} cells each way for {what}"]
    assert kind == "elmo", kind
    filters = f"{sum(sizes['num_filters']):,} filters of width 1 to {len(sizes['num_filters'])}"
    rest = "{num_highway_layers} highway layers; predicts one of {vocab_size:,} words".format(**sizes)
    return [first, f"words by their characters: {filters}, {rest}"]


def _shortened(names: Sequence[str]) -> str:
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
