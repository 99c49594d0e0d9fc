"""Examples become items once for all runs of a grid: tokenizing is the same work for every point and every seed.

What items are depends on the examples and on how they are cut, and on nothing else that runs differ in. Those of every
cut are kept until the grid ends: of one the 100 MB that 400,000 pairs take, of a grid over `task.max_length` as many
times that as it has lengths. A model that spells words numbers them as it meets them, in every run anew; where items
are not made again, its words are met again in the same order, so that items mean what they meant.
"""

from collections.abc import Sequence
from typing import Any

from bertworks.tasks.cut import Cut
from bertworks.tasks.examples import Example
from bertworks.tasks.items import Items
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.text.spelt_words import SpeltTokenizer


def encoded_once(kind: Kind) -> Kind:
    """Return a kind that makes the items of one task's examples for one model, and those of each cut once.

    How many examples there are tells which they are: a part of a train set is always the same for its size.
    """
    kept: dict[tuple[Any, ...], tuple[Items, list[str]]] = {}

    def encode(
        examples: Sequence[Example], tokenizer: Any, task: Task, cut: Cut, *, is_training: bool = False
    ) -> Items:
        met = tokenizer.met if isinstance(tokenizer, SpeltTokenizer) else None
        key = (is_training, len(examples), cut, met.digest() if met else "")
        if key not in kept:
            items = kind.encode(examples, tokenizer, task, cut, is_training=is_training)
            kept[key] = items, list(met.words) if met else []
        items, words = kept[key]
        if met:
            for word in words[len(met) :]:
                met.id_of(word)
        return items

    return kind._replace(encode=encode)
