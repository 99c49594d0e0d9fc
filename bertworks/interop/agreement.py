"""Whether tensors and a configuration make one BERT: what is missing, misshapen or too much, all of it at once.

Both ways of conversion ask this before they read or write a tensor. Shapes and names are Google's.
"""

from collections.abc import Collection, Mapping

from bertworks.interop.google_config import GoogleConfig
from bertworks.interop.names import MASKED_WORD_HEAD, NEXT_SENTENCE_HEAD, OPTIONAL, POOLER, Parameter, parameters

Shape = tuple[int, ...]


def contradictions(shapes: Mapping[str, Shape], config: GoogleConfig) -> list[str]:
    """Return a line for each contradiction; names that are no part of BERT are not looked at."""
    every = list(parameters(config.num_hidden_layers))
    problems = [f"{name} is missing" for name in _missing(every, shapes)]
    for parameter in every:
        expected = tuple(config.size(size) for size in parameter.shape)
        for name in (parameter.google, *(slot.google for slot in parameter.slots())):
            if shapes.get(name, expected) != expected:
                problems.append(f"{name} has the shape {list(shapes[name])}, but should have {list(expected)}")
    deeper = {name.split("/")[2] for name in shapes if name.startswith("bert/encoder/layer_")}
    deeper -= {f"layer_{layer}" for layer in range(config.num_hidden_layers)}
    if deeper:
        problems.append(f"num_hidden_layers is {config.num_hidden_layers}, but there is {', '.join(sorted(deeper))}")
    return problems


def _missing(every: list[Parameter], names: Collection[str]) -> list[str]:
    """Name what must be there and is not: a head may be missing as a whole, the pooler where nothing uses it."""
    needed = {part for part in OPTIONAL if has_part(names, part)}
    if MASKED_WORD_HEAD not in needed or NEXT_SENTENCE_HEAD in needed:
        needed.add(POOLER)
    dispensable = tuple(part for part in OPTIONAL if part not in needed)
    return [
        parameter.google
        for parameter in every
        if parameter.google not in names and not parameter.google.startswith(dispensable)
    ]


def architecture(names: Collection[str]) -> str:
    """Return the class of transformers that a checkpoint is for, by the heads it has."""
    if not has_part(names, MASKED_WORD_HEAD):
        return "BertModel"
    return "BertForPreTraining" if has_part(names, NEXT_SENTENCE_HEAD) else "BertForMaskedLM"


def has_part(names: Collection[str], part: str) -> bool:
    """Tell whether any of the names belongs to a part of the model."""
    return any(name.startswith(part) for name in names)
