"""Result files in the form that each benchmark's makers read.

GLUE: a TSV of index and prediction for each test set, and one zip of all of them; SQuAD: predictions, the scores of "no
answer" and the best answers as JSON; CoNLL: word, right tag and predicted tag, as conlleval reads them. The same
predictions give the same bytes: zip members are stored, not packed (a packer's version would show), and undated.
"""

import json
import math
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.files import atomic_write
from bertworks.tasks.examples import ChoiceExample, Example, SpanExample, TagExample, TextExample
from bertworks.tasks.metrics import ENGLISH, KOREAN, gold_of, is_exact
from bertworks.tasks.task import Task
from bertworks.tasks.windows import Answered

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
        from bertworks.tasks.windows import null_odds_of, predictions_of

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
            stream.write(f"{name}\t{_written(task, prediction)}\n")
    return path


def _written(task: Task, prediction: str | float) -> str:
    if isinstance(prediction, str):
        return task.words[prediction]
    low, high = task.score_range or (prediction, prediction)
    return f"{min(max(prediction, low), high):.6f}"


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


# What a model got wrong: the examples beside what was right and what it said, the surest mistakes first.
#
# A sure mistake teaches most: it is often a wrong label, or a kind of text that training had none of. How sure a
# model was is the probability of what it said; of several labels, the highest of those that it got wrong; of tags,
# the share of wrong ones. Scores are neither right nor wrong: of a regression the tenth with the largest errors is
# given.


_Row = NDArray[np.float32]
_SHARE_OF_SCORES = 0.1


def wrong_examples(
    task: Task, examples: Sequence[Example], predictions: Sequence[Any], rows: Sequence[_Row]
) -> list[dict[str, Any]]:
    """Return {"id", texts, "gold", "predicted", "score"} of what is wrong, sorted; a regression has "error" instead.

    Args:
        task: what was asked.
        examples: with their labels.
        predictions: for each.
        rows: the scores of each item, which is an example where texts are not read in windows.
    """
    if task.kind == "regress":
        return _largest_errors(examples, predictions)
    if task.kind in _IN_WINDOWS:
        judge = _IN_WINDOWS[task.kind]
        found = [judge(task, example, said) for example, said in zip(examples, predictions, strict=True)]
    else:
        sure = _SURE[task.kind]
        found = [
            _told(example, prediction, score=sure(task, example, prediction, row.astype(np.float64)))
            for example, prediction, row in zip(examples, predictions, rows, strict=True)
            if _gold(example) != (set(prediction) if task.kind == "multilabel" else prediction)
        ]
    return sorted(filter(None, found), key=lambda one: -one["score"])


def wrong_columns(example: Example) -> list[str]:
    """Return the columns of what is wrong, for a table of nothing; of a regression there is always something."""
    return ["id", *_texts(example), "gold", "predicted", "score"]


def _told(example: Any, predicted: Any, **more: Any) -> dict[str, Any]:
    (gold,) = gold_of([example])
    return {"id": example.id, **_texts(example), "gold": _plain(gold), "predicted": _plain(predicted), **more}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _texts(example: Any) -> dict[str, Any]:
    if isinstance(example, TextExample):
        return {"text": example.first, **({} if example.second is None else {"pair": example.second})}
    if isinstance(example, ChoiceExample):
        return {"context": example.context, "endings": list(example.endings)}
    if isinstance(example, SpanExample):
        return {"question": example.question, "context": example.context}
    return {"text": example.text}


def _gold(example: Any) -> Any:
    return set(example.label) if isinstance(example.label, tuple) else example.label


def _largest_errors(examples: Sequence[Any], predictions: Sequence[float]) -> list[dict[str, Any]]:
    found = [
        _told(example, predicted, error=abs(predicted - example.label))
        for example, predicted in zip(examples, predictions, strict=True)
    ]
    return sorted(found, key=lambda one: -one["error"])[: math.ceil(_SHARE_OF_SCORES * len(found))]


def _wrong_tags(_: Task, example: Any, tags: Sequence[str]) -> dict[str, Any] | None:
    num_wrong = sum(right != said for right, said in zip(example.tags, tags, strict=True))
    return _told(example, tuple(tags), score=num_wrong / len(tags)) if num_wrong else None


def _wrong_answer(task: Task, example: Any, answered: Answered) -> dict[str, Any] | None:
    """Judge the best guess, or that there is no answer where that is likelier."""
    rules = KOREAN if task.answers_are_korean else ENGLISH
    is_none = answered.is_none(task.threshold)
    said = "" if is_none else answered.guesses[0].text
    gold = list(dict.fromkeys(answer.text for answer in example.answers)) or [""]
    if any(is_exact(said, answer, rules) for answer in gold):
        return None
    shares = answered.probabilities(with_null=task.has_impossible or is_none)
    told = _told(example, said, score=shares[-1] if is_none else shares[0])
    return told | {"gold": gold}


_IN_WINDOWS: dict[str, Callable[[Task, Any, Any], dict[str, Any] | None]] = {
    "tag": _wrong_tags,
    "answer": _wrong_answer,
}


def _best_share(_: Task, __: Any, ___: Any, row: NDArray[np.float64]) -> float:
    return float(1 / np.exp(row - row.max()).sum())


def _surest_wrong_label(task: Task, example: Any, said: Sequence[str], row: NDArray[np.float64]) -> float:
    """Return the probability of what was said of the label that is wrong and that the model was surest of."""
    is_wrong = [(label in example.label) != (label in said) for label in task.labels]
    return float((1 / (1 + np.exp(-np.abs(row[is_wrong])))).max())


_SURE: dict[str, Callable[[Task, Any, Any, NDArray[np.float64]], float]] = {
    "classify": _best_share,
    "choose": _best_share,
    "multilabel": _surest_wrong_label,
}
