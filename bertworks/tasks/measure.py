"""The metrics that a task names, from what a model said: one function for answers, one for all else."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bertworks.errors import UserError
from bertworks.tasks import scores
from bertworks.tasks.entity_scores import entity_scores
from bertworks.tasks.examples import SpanExample
from bertworks.tasks.squad_scores import ENGLISH, KOREAN, score_squad1, score_squad2
from bertworks.tasks.task import Task

_Metric = Callable[[Sequence[Any], Sequence[Any]], float]
_SIMPLE: dict[str, _Metric] = {
    "accuracy": scores.accuracy,
    "f1_macro": scores.f1_macro,
    "matthews": scores.matthews,
    "pearson": scores.pearson,
    "spearman": scores.spearman,
}


def measure(task: Task, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Return a task's metrics, the main one first, as shares of one; NaN for a correlation that is not defined.

    Args:
        task: any but one of kind `answer`.
        gold: the labels, scores, places of endings, sets of labels or sequences of tags of the examples.
        predicted: the same of the model, as words where the task has labels.
    """
    if not gold:
        raise UserError(f"{task.title}: there are no examples to measure on")
    if task.kind == "tag":
        found = entity_scores(gold, predicted)._asdict()
        return {name: found[name] for name in task.metrics}
    if task.kind == "multilabel":
        several = {
            "f1": scores.labels_f1_micro(gold, predicted),
            "f1_macro": scores.labels_f1_macro(gold, predicted, task.labels),
            "accuracy": scores.accuracy(list(map(frozenset, gold)), list(map(frozenset, predicted))),
        }
        return {name: several[name] for name in task.metrics}
    return {
        name: scores.f1(gold, predicted, task.positive) if name == "f1" else _SIMPLE[name](gold, predicted)
        for name in task.metrics
    }


def measure_answers(
    task: Task,
    examples: Sequence[SpanExample],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Return exact match and F1 in percent, and what the official script says besides, under its names.

    Args:
        task: of kind `answer`.
        examples: the questions.
        predictions: the best answer that is one to each question; "" says that there is none.
        no_answer_scores: for SQuAD 2.0, by how much "no answer" scored above the best answer.
        threshold: above it a question counts as not answered.
    """
    if not task.has_impossible:
        return score_squad1(examples, predictions, KOREAN if task.answers_are_korean else ENGLISH)
    result = score_squad2(examples, predictions, no_answer_scores, threshold)
    return {"f1": result.pop("f1"), "exact_match": result.pop("exact"), **result}
