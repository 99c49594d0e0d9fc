"""Files of tasks to measure on: the first examples of the real ones, or made ones of the same lengths."""

import json
from itertools import islice
from pathlib import Path

import numpy as np

from bertworks.tasks.task import DEV, TRAIN, Task, open_dataset

# Tokens of SST-2's train set, [CLS] and [SEP] included: the quantiles 0, 5, ... 100 % of 67,349 texts.
_SST2_LENGTHS = (3, 4, 4, 5, 6, 6, 7, 8, 8, 9, 10, 11, 13, 14, 16, 18, 20, 23, 27, 33, 66)
_SST2_SIZES = {TRAIN: 67_349, DEV: 872}
_SST2_PIECES = 11_572  # different ones that its train set has


def cut_files(task: Task, data: Path, folder: Path, num_examples: dict[str, int | None]) -> Path:
    """Copy the files of a task with about as many examples of each split as are wanted; None: all of them."""
    folder.mkdir(parents=True)
    for split, count in num_examples.items():
        (path,) = open_dataset(task, data).files(split).paths
        text = path.read_text(encoding="utf-8")
        (folder / path.name).write_text(text if count is None else _cut(text, task, count), encoding="utf-8")
    return folder


def _cut(text: str, task: Task, count: int) -> str:
    if task.kind == "answer":
        return _cut_questions(text, count)
    if task.kind == "tag":
        return "\n\n".join(text.split("\n\n")[:count]) + "\n"
    return "".join(islice(text.splitlines(keepends=True), count + 1))


def _cut_questions(text: str, count: int) -> str:
    """Keep whole paragraphs until there are enough questions."""
    raw = json.loads(text)
    kept = 0
    for article in raw["data"]:
        paragraphs = []
        for paragraph in article["paragraphs"]:
            if kept < count:
                paragraphs.append(paragraph)
                kept += len(paragraph["qas"])
        article["paragraphs"] = paragraphs
    raw["data"] = [article for article in raw["data"] if article["paragraphs"]]
    return json.dumps(raw)


def made_words() -> list[str]:
    """Return as many words as SST-2 has different pieces."""
    return [f"w{number}" for number in range(_SST2_PIECES)]


def made_sst2(folder: Path) -> Path:
    """Write texts of random words in SST-2's form, as many and as long as its own."""
    folder.mkdir(parents=True)
    rng, words = np.random.default_rng(0), np.array(made_words())
    for split, count in _SST2_SIZES.items():
        shares = np.linspace(0, 1, len(_SST2_LENGTHS))
        lengths = np.interp(rng.random(count), shares, _SST2_LENGTHS).round().astype(int) - 2
        texts = np.split(words[rng.integers(len(words), size=lengths.sum())], np.cumsum(lengths)[:-1])
        lines = [f"{' '.join(text)}\t{label}\n" for text, label in zip(texts, rng.integers(2, size=count), strict=True)]
        (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(lines), encoding="utf-8")
    return folder
