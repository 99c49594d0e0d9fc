"""A part of a train set, for a search over settings that need not see all of it.

Which examples are in it depends on their number alone, not on a run's seed: what is compared learns from the same ones,
and a smaller part is within a larger one.
"""

from collections.abc import Sequence

from bertworks.tasks.examples import Example, TagExample
from bertworks.tuning.feed import order_of


def some_of(examples: Sequence[Example], count: int) -> list[Example]:
    """Return the first so many of a fixed shuffle, in their old order; 0: all.

    Sentences of one document stay together, as each is read with those around it; the last document may be cut.
    """
    if not 0 < count < len(examples):
        return list(examples)
    groups = [example.document if isinstance(example, TagExample) else place for place, example in enumerate(examples)]
    distinct = list(dict.fromkeys(groups))
    order = order_of(len(distinct), seed=0, epoch=0)
    ranks = {distinct[place]: rank for rank, place in enumerate(order)}
    chosen = sorted(range(len(examples)), key=lambda place: ranks[groups[place]])[:count]
    return [examples[place] for place in sorted(chosen)]
