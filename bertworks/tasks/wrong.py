"""What a model got wrong: the examples beside what was right and what it said, the surest mistakes first.

A sure mistake teaches most: it is often a wrong label, or a kind of text that training had none of. How sure a model
was is the probability of what it said; of several labels, the highest of those that it got wrong; of tags, the share of
wrong ones. Scores are neither right nor wrong: of a regression the tenth with the largest errors is given.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.tasks.answers import Answered
from bertworks.tasks.breakdown import gold_of
from bertworks.tasks.examples import ChoiceExample, Example, SpanExample, TextExample
from bertworks.tasks.squad_scores import ENGLISH, KOREAN, is_exact
from bertworks.tasks.task import Task

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
