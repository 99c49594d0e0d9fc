"""A model folder for a person to look at: its sizes, what its parameters are for, its tensors and where it comes from.

Tensors are shown under the names of the file, those of all layers in one line.
"""

import re
from collections.abc import Mapping
from typing import Any

from torch import nn

from bertworks.errors import counted, printable
from bertworks.models.find import find_model
from bertworks.models.kinds import kind_of_network, read_model
from bertworks.models.sentence_transformers import Pooling, find_encoder, read_pooling
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
_LONG = 65_536
_ASKED = {"mlm": "fill", "nsp": "nsp", "classify": "classify", "choose": "choose", "tag": "tag", "span": "answer"}


def model_report(source: str) -> dict[str, Any]:
    """Return a model's sizes, parameters by part, tensors with shapes and types, and what its folder says of it."""
    root = find_model(source)
    folder = find_encoder(root)
    opened = read_model(folder)
    shapes = {name: parameter.detach().to("meta") for name, parameter in opened.net.named_parameters()}
    tensors = kind_of_network(opened.net).to_file(shapes)
    return {
        "folder": str(folder),
        "kind": type(opened.net).__name__.lower(),
        "sizes": {name: value for name, value in _sizes_of(opened.net).items() if name not in _UNSHOWN},
        "heads": list(getattr(opened.net, "heads", [])),
        "reader": _reader(opened.net),
        "labels": opened.labels,
        "pooling": read_pooling(root).as_json(),
        "parameters": _parameters_by_part(opened.net),
        "tensors": {
            name: {"shape": list(tensor.shape), "dtype": str(tensor.dtype).removeprefix("torch.")}
            for name, tensor in tensors.items()
        },
        "unused": opened.unused,
        "about": opened.about,
    }


def _sizes_of(net: Any) -> dict[str, Any]:
    own = net.reader.model_dump(mode="json") if isinstance(net, ElmoTasks) else {}
    return {**net.config.model_dump(mode="json"), **own}


def _reader(net: nn.Module) -> dict[str, Any] | None:
    """Return the settings of a BiLSTM that tags by frozen layers, if there is one."""
    reader = reader_of(net) if isinstance(net, Bert) else None
    return dict(reader.config) if reader else None


def _parameters_by_part(net: nn.Module) -> dict[str, int]:
    parts: dict[str, int] = {"total": 0}
    for name, parameter in net.named_parameters():
        first, _, rest = name.partition(".")
        part = f"{rest.partition('.')[0]} head" if first == "heads" else _PARTS.get(first, first).replace("_", " ")
        parts[part] = parts.get(part, 0) + parameter.numel()
        parts["total"] += parameter.numel()
    return parts


def report_text(report: Mapping[str, Any]) -> str:
    """Write a report for a terminal."""
    lines = [
        *_LINES[report["kind"]](report["sizes"]),
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


def summary_of(model: Any) -> str:
    """Say in a few lines what an opened model is, reads and can do: its repr."""
    net, sizes = model.net, _sizes_of(model.net)
    lines = list(_LINES[type(net).__name__.lower()](sizes))
    if isinstance(net, Bert):
        lines[0] = f"BERT: {lines[0]}"
    if getattr(model, "max_length", _LONG) < min(_LONG, sizes.get("max_position_embeddings", _LONG)):
        lines.append(f"reads texts of up to {model.max_length:,} tokens, as its folder says")
    first = next(net.parameters())
    count, dtype = _parameters_by_part(net)["total"], str(first.dtype).removeprefix("torch.")
    lines.append(f"{count:,} parameters in {dtype} on {first.device}")
    heads = list(getattr(net, "heads", []))
    lines.append(f"heads: {', '.join(heads) or 'none'}")
    if model.labels:
        lines.append(f"labels: {_shortened(model.labels)}")
    task = model.about.get("task")
    if isinstance(task, dict):
        lines.append(f"fine-tuned for: {str(task.get('name', task.get('kind')))[:60]}")
    methods = [_ASKED[head] for head in heads if head in _ASKED]
    if isinstance(net, Bert):
        methods += ["embed", "features", *(["attention"] if net.blocks else [])]
        if net.config.direction != "both" and "mlm" in heads:
            methods += ["perplexity", *(["next_words"] if net.config.direction == "left_to_right" else [])]
    elif type(model).__name__ == "LanguageModel":
        guesses = getattr(net, "softmax", True) is not None
        methods = ["embed", "features", *(["next_words", "perplexity"] if guesses else [])]
    lines.append(f"can: {', '.join(dict.fromkeys(methods)) or 'nothing by itself'}")
    return printable("\n  ".join([f"{type(model).__name__}(", *lines]) + "\n)")


def _bert_lines(sizes: Mapping[str, Any]) -> list[str]:
    return [
        f"{counted(sizes['num_hidden_layers'], 'layer')} of width {sizes['hidden_size']}, "
        f"{counted(sizes['num_attention_heads'], 'head')}, feed-forward {sizes['intermediate_size']:,} wide, "
        f"{sizes['hidden_act']}",
        "{vocab_size:,} pieces, up to {max_position_embeddings:,} tokens, {positions} positions, attends ".format(
            **sizes
        )
        + _DIRECTIONS[sizes["direction"]],
    ]


def _compound_lines(sizes: Mapping[str, Any]) -> list[str]:
    on_top = f"a BiLSTM of {counted(sizes['num_lstm_layers'], 'layer')}, {sizes['num_cells']:,} cells each way, on top"
    lines = [line for encoder in sizes["encoders"] for line in _bert_lines(encoder)]
    return [*lines, on_top] if sizes["num_lstm_layers"] else lines


def _gpt_lines(sizes: Mapping[str, Any]) -> list[str]:
    return [
        f"GPT-1: {counted(sizes['n_layer'], 'layer')} of width {sizes['n_embd']}, {counted(sizes['n_head'], 'head')}, "
        f"{sizes['afn']}",
        "{vocab_size:,} pieces, up to {n_positions:,} tokens, reads from left to right".format(**sizes),
    ]


def _elmo_lines(sizes: Mapping[str, Any]) -> list[str]:
    return [
        "ELMo: {num_layers} LSTMs each way, {cell_size:,} cells projected to {projection_size:,}".format(**sizes),
        f"words by their characters: {sum(sizes['num_filters']):,} filters of width 1 to {len(sizes['num_filters'])}, "
        "{num_highway_layers} highway layers; guesses one of {vocab_size:,} words".format(**sizes),
    ]


def _elmo_task_lines(sizes: Mapping[str, Any]) -> list[str]:
    what = "pairs of texts" if sizes["pairs"] else "texts"
    learnt = "learnt with them" if sizes["trains_elmo"] else "frozen"
    return [*_elmo_lines(sizes)[:1], f"{learnt}, under BiLSTMs of {sizes['num_cells']:,} cells each way for {what}"]


_LINES = {
    "bert": _bert_lines,
    "gpt": _gpt_lines,
    "elmo": _elmo_lines,
    "elmotasks": _elmo_task_lines,
    "compound": _compound_lines,
}


def _facts(report: Mapping[str, Any]) -> list[str]:
    facts = [f"heads: {', '.join(report['heads']) or 'none'}"]
    if (pooling := report["pooling"]) != Pooling().as_json():
        most = (
            "as many tokens as it has positions"
            if pooling["max_length"] is None
            else f"{pooling['max_length']:,} tokens"
        )
        facts.append(f"pooling: {pooling['mode']}, normalised: {pooling['normalize']}, at most {most}")
        if pooling["layers"]:
            facts.append(f"after the pooling: {', '.join(pooling['layers'])}")
        if pooling["truncate_dim"]:
            facts.append(f"of a vector are kept: {pooling['truncate_dim']:,} numbers")
        if any(pooling["prompts"].values()):
            named = ", ".join(f"{name}: {text[:40]!r}" for name, text in pooling["prompts"].items() if text)
            facts.append(f"prompts: {named}; the default: {pooling['default_prompt'] or 'none'}")
    if report["reader"]:
        facts.append(
            "tags by frozen layers: {features}, {lstm_layers} BiLSTMs of {lstm_cells} cells".format(**report["reader"])
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
