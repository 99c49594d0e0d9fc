"""Result files in the form that each benchmark's makers read, and what a model got wrong.

GLUE: a TSV of index and prediction for each test set, and one zip of all of them; SQuAD: predictions, the scores of "no
answer" and the best answers as JSON; CoNLL: word, right tag and predicted tag, as conlleval reads them. The same
predictions give the same bytes: zip members are stored, not packed (a packer's version would show), and undated.
"""

import json
import math
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.tasks.metrics import ENGLISH, KOREAN, gold_of, is_exact
from bertworks.tasks.task import ChoiceExample, Example, SpanExample, TagExample, Task, TextExample
from bertworks.tasks.windows import null_odds_of, predictions_of

# The server's name for each test set, by task and split.
GLUE_FILES = {
    ("cola", "test"): "CoLA.tsv",
    ("sst2", "test"): "SST-2.tsv",
    ("mrpc", "test"): "MRPC.tsv",
    ("stsb", "test"): "STS-B.tsv",
    ("qqp", "test"): "QQP.tsv",
    ("mnli", "test"): "MNLI-m.tsv",
    ("mnli", "test-mismatched"): "MNLI-mm.tsv",
    ("qnli", "test"): "QNLI.tsv",
    ("rte", "test"): "RTE.tsv",
    ("wnli", "test"): "WNLI.tsv",
    ("ax", "test"): "AX.tsv",
}
_NO_DATE = (1980, 1, 1, 0, 0, 0)  # the earliest that a zip can say
_READABLE_FILE = 0o100644 << 16
_SHARE_OF_SCORES = 0.1


def check_submission(task: Task, split: str) -> None:
    """Refuse, before any work, a benchmark whose makers read no results for a split."""
    if task.kind in ("answer", "tag") or (task.name, split) in GLUE_FILES:
        return
    splits = [f"--split {name}" for title, name in GLUE_FILES if title == task.name]
    raise UserError(
        f"{task.title}'s makers read no predictions for its {split} split"
        f"{'; ask for ' + ' or '.join(splits) if splits else ''}"
    )


def write_submission(
    folder: Path, task: Task, split: str, examples: Sequence[Any], predictions: Sequence[Any]
) -> list[Path]:
    """Write predictions into a folder as the benchmark's makers read them; return the files.

    Args:
        folder: where to write.
        task: a benchmark.
        split: which of its sets.
        examples: of that split.
        predictions: what a kind's `decode` gives for each.
    """
    if task.kind == "answer":
        odds = null_odds_of(examples, predictions) if task.has_impossible else None
        return write_answers(folder, predictions_of(examples, predictions), odds)
    if task.kind == "tag":
        path = folder / f"{task.name}-{split}.txt"
        write_conll(path, examples, predictions)
        return [path]
    return [write_glue(folder, task, split, [example.id for example in examples], predictions)]


def write_glue(folder: Path, task: Task, split: str, ids: Sequence[str], predictions: Sequence[str | float]) -> Path:
    """Write a test set's predictions under the name and in the words that GLUE's server wants; return the file.

    Args:
        folder: where to write.
        task: one of GLUE.
        split: which of its test sets.
        ids: the examples' ids, which are the server's indices.
        predictions: a label or score for each.
    """
    if (task.name, split) not in GLUE_FILES:
        raise UserError(f"GLUE takes no predictions for {split} of {task.title}")
    path = folder / GLUE_FILES[task.name, split]
    with atomic_write(path) as stream:
        stream.write("index\tprediction\n")
        for name, prediction in zip(ids, predictions, strict=True):
            if isinstance(prediction, str):
                written = task.words[prediction]
            else:
                low, high = task.score_range or (prediction, prediction)
                written = f"{min(max(prediction, low), high):.6f}"
            stream.write(f"{name}\t{written}\n")
    return path


def zip_glue(folder: Path, path: Path) -> list[str]:
    """Pack all of a folder's GLUE predictions into one file for the server; return the names that are missing."""
    names = sorted(GLUE_FILES.values())
    there = [name for name in names if (folder / name).is_file()]
    if not there:
        raise UserError(f"{folder} has no predictions for GLUE; it would hold {', '.join(names)}")
    with atomic_write(path, "wb") as stream, zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED) as archive:
        for name in there:
            entry = zipfile.ZipInfo(name, _NO_DATE)
            entry.external_attr, entry.create_system = _READABLE_FILE, 3
            archive.writestr(entry, (folder / name).read_bytes())
    return [name for name in names if name not in there]


def write_answers(
    folder: Path,
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    best: Mapping[str, Sequence[Mapping[str, Any]]] | None = None,
) -> list[Path]:
    """Write `predictions.json`, and where given `null_odds.json` and `nbest_predictions.json`, by question id."""
    given = {"predictions": predictions, "null_odds": no_answer_scores, "nbest_predictions": best}
    files = {folder / f"{name}.json": content for name, content in given.items() if content is not None}
    for path, content in files.items():
        with atomic_write(path) as stream:
            json.dump(dict(content), stream, ensure_ascii=False, indent=1, allow_nan=False)
            stream.write("\n")
    return list(files)


def write_conll(path: Path, examples: Iterable[TagExample], predicted: Iterable[Sequence[str]]) -> None:
    """Write a line for each word: the word, its right tag where it is known, and the predicted one."""
    with atomic_write(path) as stream:
        for example, tags in zip(examples, predicted, strict=True):
            columns = [example.words, *([] if example.tags is None else [example.tags]), tags]
            stream.writelines(" ".join(line) + "\n" for line in zip(*columns, strict=True))
            stream.write("\n")


def wrong_examples(
    task: Task, examples: Sequence[Example], predictions: Sequence[Any], rows: Sequence[NDArray[np.float32]]
) -> list[dict[str, Any]]:
    """Return {"id", texts, "gold", "predicted", "score"} of what is wrong; a regression has "error" instead.

    The most confident mistakes come first, because they show most: a wrong label, or a kind of text that the train set
    lacks. The confidence is the probability of the prediction; of several labels, the highest among the wrong ones; of
    tags, the share of wrong ones. A regression is neither right nor wrong: the tenth with the largest errors is given.

    Args:
        task: the task.
        examples: with their labels.
        predictions: for each.
        rows: the scores of each item, which is an example where texts are not read in windows.
    """
    if task.kind == "regress":
        errors = [
            _described(example, predicted, error=abs(predicted - gold))
            for example, predicted, gold in zip(examples, predictions, gold_of(examples), strict=True)
        ]
        return sorted(errors, key=lambda one: -one["error"])[: math.ceil(_SHARE_OF_SCORES * len(errors))]
    found = []
    if task.kind == "tag":
        for example, tags in zip(examples, predictions, strict=True):
            assert isinstance(example, TagExample)
            if num_wrong := sum(right != guess for right, guess in zip(example.tags or (), tags, strict=True)):
                found.append(_described(example, tuple(tags), score=num_wrong / len(tags)))
    elif task.kind == "answer":
        rules = KOREAN if task.answers_are_korean else ENGLISH
        for example, answered in zip(examples, predictions, strict=True):
            assert isinstance(example, SpanExample)
            # The best guess, or no answer where that is more likely.
            is_none = answered.is_none(task.threshold)
            guess = "" if is_none else answered.guesses[0].text
            right = list(dict.fromkeys(answer.text for answer in example.answers)) or [""]
            if not any(is_exact(guess, answer, rules) for answer in right):
                shares = answered.probabilities(with_null=task.has_impossible or is_none)
                found.append(_described(example, guess, score=shares[-1] if is_none else shares[0]) | {"gold": right})
    else:
        for example, guess, gold, row in zip(examples, predictions, gold_of(examples), rows, strict=True):
            if (set(gold) != set(guess)) if task.kind == "multilabel" else gold != guess:
                found.append(_described(example, guess, score=_sureness(task, gold, guess, row.astype(np.float64))))
    return sorted(found, key=lambda one: -one["score"])


def _sureness(task: Task, gold: Any, guess: Any, row: NDArray[np.float64]) -> float:
    if task.kind == "multilabel":  # of the wrong label that the model was most confident of
        is_wrong = [(label in gold) != (label in guess) for label in task.labels]
        return float((1 / (1 + np.exp(-np.abs(row[is_wrong])))).max())
    return float(1 / np.exp(row - row.max()).sum())


def wrong_columns(example: Example) -> list[str]:
    """Return the columns of a table of wrong predictions, for one without rows; a regression always has rows."""
    return ["id", *_named_texts(example), "gold", "predicted", "score"]


def _described(example: Example, predicted: Any, **more: Any) -> dict[str, Any]:
    (gold,) = gold_of([example])
    gold, predicted = (list(value) if isinstance(value, tuple) else value for value in (gold, predicted))
    return {"id": example.id, **_named_texts(example), "gold": gold, "predicted": predicted, **more}


def _named_texts(example: Example) -> dict[str, Any]:
    if isinstance(example, TextExample):
        return {"text": example.first, **({} if example.second is None else {"pair": example.second})}
    if isinstance(example, ChoiceExample):
        return {"context": example.context, "endings": list(example.endings)}
    if isinstance(example, SpanExample):
        return {"question": example.question, "context": example.context}
    return {"text": example.text}
