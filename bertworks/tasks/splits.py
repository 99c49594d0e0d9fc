"""A dev set where none is given, and weights for classes of unequal size.

Who goes to dev is decided by a hash of the content and a seed, not by the order of a file: rows may be shuffled or
added and most others stay where they are, and a text that comes twice with one label is not on both sides. The share is
taken within each class. What belongs together stays together: questions about one context, sentences of one document.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from hashlib import blake2b

from bertworks.errors import UserError
from bertworks.tasks.examples import ChoiceExample, Example, Skipped, SpanExample, TagExample, why_untrainable
from bertworks.tasks.task import DEV, TRAIN, Dataset

DEV_SHARE = 0.1


def split_off_dev(dataset: Dataset, share: float = DEV_SHARE, seed: int = 0, origin: str = TRAIN) -> Dataset:
    """Divide one split of a dataset into `train` and `dev`, and say so in its notes.

    Args:
        dataset: what is divided.
        share: how much of it becomes the dev set.
        seed: another seed gives another dev set.
        origin: `train`, or a split that stands in for it where a benchmark's train set cannot be had; it is gone then.
    """
    if not 0 < share < 1:
        raise UserError(f"a dev set cannot be {share:g} of the data; choose a share between 0 and 1")
    assert not dataset.chosen, "divided once is enough"
    found = dataset.files(origin)
    in_dev, num_trainable = _dev_mask(found.read(found.paths, Skipped()), share, seed)
    if not 0 < sum(in_dev) < num_trainable:
        raise UserError(f"{dataset.origin}: {len(in_dev):,} examples are too few to split off a dev set; give one")
    others = {split: files for split, files in dataset.found.items() if split != origin}
    return Dataset(
        task=dataset.task,
        found={**others, TRAIN: found, DEV: found},
        origin=dataset.origin,
        notes=(*dataset.notes, f"dev: {sum(in_dev):,} of the {len(in_dev):,} examples of {origin}, split off"),
        chosen={TRAIN: bytes(1 - place for place in in_dev), DEV: in_dev},
    )


def _dev_mask(examples: Iterable[Example], share: float, seed: int) -> tuple[bytes, int]:
    """Return 1 for each example that goes to dev, in each class those with the lowest hashes; and how many might."""
    by_class: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)
    num_examples = 0
    for example, content in _with_content(examples):
        if why_untrainable(example) is None:
            by_class[_class_of(example)].append((_hash(content, seed), num_examples))
        num_examples += 1
    mask = bytearray(num_examples)
    for members in by_class.values():
        _mark_lowest(mask, members, round(share * len(members)))
    if not any(mask):  # every class is so small that its share is nobody
        _mark_lowest(mask, [member for members in by_class.values() for member in members], 1)
    return bytes(mask), sum(map(len, by_class.values()))


def _mark_lowest(mask: bytearray, members: list[tuple[int, int]], count: int) -> None:
    """Mark the places of the `count` lowest hashes, and of those equal to the last of them."""
    limit = sorted(members)[count - 1][0] if members and count else -1
    for key, place in members:
        mask[place] = key <= limit


def _with_content(examples: Iterable[Example]) -> Iterator[tuple[Example, str]]:
    """Pair each example with the text that decides where it goes: of a document, its first sentence."""
    document, first_sentence = -1, ""
    for example in examples:
        if isinstance(example, TagExample):
            if example.document != document:
                document, first_sentence = example.document, example.text
            yield example, first_sentence
        elif isinstance(example, SpanExample | ChoiceExample):
            yield example, example.context
        else:
            yield example, f"{example.first}\0{example.second or ''}"


def _class_of(example: Example) -> str:
    label = None if isinstance(example, TagExample | SpanExample | ChoiceExample) else example.label
    return label if isinstance(label, str) else ""


def _hash(content: str, seed: int) -> int:
    return int.from_bytes(blake2b(f"{seed}\0{content}".encode(), digest_size=8).digest(), "big")


def class_weights(labels: Iterable[str], order: Sequence[str]) -> list[float]:
    """Return a weight for each class that makes all classes that are there count alike; their examples' mean is 1."""
    counts = Counter(labels)
    num_present = sum(counts[label] > 0 for label in order)
    return [counts.total() / (num_present * counts[label]) if counts[label] else 0.0 for label in order]


def positive_weights(label_sets: Iterable[Iterable[str]], order: Sequence[str]) -> list[float]:
    """Return for each of several labels how many examples lack it for one that has it; 1 for a label nobody has."""
    num_examples, counts = 0, Counter[str]()
    for labels in label_sets:
        num_examples += 1
        counts.update(set(labels))
    return [(num_examples - counts[label]) / counts[label] if counts[label] else 1.0 for label in order]
