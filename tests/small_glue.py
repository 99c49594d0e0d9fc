"""GLUE's folders with a few made-up lines each, in its own forms."""

import random

from toy_tasks import text_with

ANIMALS = ("cat", "dog")
NLI = ("entailment", "neutral", "contradiction")


def _pairs(count, words, seed):
    """Pairs of texts with a label that a word of the second one says."""
    rng = random.Random(seed)
    for number in range(count):
        label = words[number % len(words)]
        animal = ("cat", "dog", "mat")[number % len(words)]
        yield number, text_with("big", rng, 3), text_with(animal, rng, 3), label


def _write(path, head, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["\t".join(head), *("\t".join(map(str, line)) for line in lines)]) + "\n")


def _write_pairs(folder, labels, label_name="label", names=("sentence1", "sentence2"), **files):
    for seed, (name, count) in enumerate(files.items()):
        rows = list(_pairs(count, labels, seed))
        is_test = name.startswith("test")
        head = ["index", *names, *([] if is_test else [label_name])]
        _write(folder / f"{name}.tsv", head, [row[:3] if is_test else row for row in rows])


def write_rte(root):
    _write_pairs(root / "RTE", ("entailment", "not_entailment"), train=32, dev=10, test=7)


def write_stsb(root):
    _write_pairs(root / "STS-B", (0.0, 5.0), "score", train=32, dev=10, test=5)


def write_mnli(root):
    files = {"train": 30, "dev_matched": 9, "dev_mismatched": 12, "test_matched": 6, "test_mismatched": 6}
    _write_pairs(root / "MNLI", NLI, "gold_label", **files)
    _write_pairs(root / "diagnostic", NLI, test=4)
    (root / "diagnostic/test.tsv").rename(root / "diagnostic/diagnostic.tsv")


def write_wnli(root):
    lines = [(number, "the cat sat", "a dog ran", int(number % 3 == 0)) for number in range(9)]
    _write(root / "WNLI/train.tsv", ("index", "sentence1", "sentence2", "label"), lines)
    _write(root / "WNLI/test.tsv", ("index", "sentence1", "sentence2"), [line[:3] for line in lines[:4]])


def write_sst2(root):
    rng = random.Random(0)
    lines = [(text_with(ANIMALS[number % 2], rng), number % 2) for number in range(40)]
    _write(root / "SST-2/train.tsv", ("sentence", "label"), lines)
    _write(root / "SST-2/dev.tsv", ("sentence", "label"), lines[:10])
