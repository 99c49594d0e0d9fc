"""Precision, recall and F1 of named entities: an entity counts when its type and both its ends are right.

Tags that a model may give but no annotator would (I-PER after O, I-LOC after B-PER) start an entity, as in the official
conlleval; `strict` takes them for no entity at all, which is seqeval's strict IOB2.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bertworks.tasks.scores import ClassScore, accuracy, class_score

_Entity = tuple[str, int, int]


class EntityScores(NamedTuple):
    """Scores over all entities, the mean F1 of the types, the share of right tags, and each type's scores."""

    precision: float
    recall: float
    f1: float
    f1_macro: float
    accuracy: float
    by_type: dict[str, ClassScore]


def entities(tags: Sequence[str], *, strict: bool = False) -> Iterator[_Entity]:
    """Yield (type, first place, place behind the last) of each entity in a sequence of tags."""
    kind, start = "", 0
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (prefix != "I" or tag_kind != kind):
            yield kind, start, place
            kind = ""
        if not kind and (prefix == "B" or (prefix == "I" and not strict)):
            kind, start = tag_kind, place


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, strict: bool = False
) -> EntityScores:
    """Compare sequences of tags with the right ones."""
    num_right, num_predicted, num_gold = Counter[str](), Counter[str](), Counter[str]()
    for gold_tags, tags in zip(gold, predicted, strict=True):
        assert len(gold_tags) == len(tags)
        right, guessed = set(entities(gold_tags, strict=strict)), set(entities(tags, strict=strict))
        num_gold.update(kind for kind, _, _ in right)
        num_predicted.update(kind for kind, _, _ in guessed)
        num_right.update(kind for kind, _, _ in right & guessed)
    kinds = sorted(num_gold | num_predicted)
    by_type = {kind: class_score(num_right[kind], num_predicted[kind], num_gold[kind]) for kind in kinds}
    overall = class_score(num_right.total(), num_predicted.total(), num_gold.total())
    return EntityScores(
        *overall[:3],
        sum(score.f1 for score in by_type.values()) / len(kinds) if kinds else 0.0,
        accuracy([tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags]),
        by_type,
    )
