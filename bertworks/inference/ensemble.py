"""One or more fine-tuned models that predict together: the mean of what each says, see `tasks/combining.py`.

Each reads texts with its own tokenizer. Where a text is read in windows (tag, answer) the mean is that of single
tokens, so there the models must have one vocabulary and one length.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.inference.language_models import LanguageModel
from bertworks.inference.loading import load
from bertworks.inference.model import Model
from bertworks.inference.predictions import Predictor, Result, results_by
from bertworks.inference.task_model import TaskModel
from bertworks.tasks.combining import combine_rows, loss_of_rows
from bertworks.tasks.evaluation import Scored
from bertworks.tasks.examples import Example
from bertworks.tasks.items import Items
from bertworks.tasks.kinds import kind_of
from bertworks.tasks.task import Task
from bertworks.text.unknown import UnknownCount

AnyTaskModel = str | os.PathLike[str] | Model | TaskModel
_IN_WINDOWS = ("tag", "answer")
_OF_TEXTS = ("classify", "regress", "multilabel")


def open_models(
    models: AnyTaskModel | Sequence[AnyTaskModel], *, device: str = "auto", dtype: str = "float32"
) -> "Ensemble":
    """Open one or more fine-tuned models, as far as they are not open already."""
    listed = [models] if isinstance(models, str | os.PathLike | Model | TaskModel) else list(models)
    if not listed:
        raise UserError("no model is given; name at least one")
    names = [os.fspath(one) if isinstance(one, str | os.PathLike) else f"model {n}" for n, one in enumerate(listed, 1)]
    opened: list[Model | TaskModel] = []
    for one, name in zip(listed, names, strict=True):
        model = load(one, device=device, dtype=dtype) if isinstance(one, str | os.PathLike) else one
        if not isinstance(model, Model | TaskModel):
            told = "was not fine-tuned for a task" if isinstance(model, LanguageModel) else "is no model"
            raise UserError(f"{name} {told}; see `bertworks finetune`")
        opened.append(model)
    return Ensemble(opened, names)


class Judged(NamedTuple):
    """The scores of all items of some examples, the items, and their mean loss."""

    items: Items
    rows: list[NDArray[np.float32]]
    loss: float


class Ensemble:
    """Models that were fine-tuned for the same task.

    Args:
        models: at least one.
        names: of the models, for a person.

    Attributes:
        models: themselves.
        task: what they were fine-tuned for; its threshold for no answer is the mean of theirs.
        is_told: whether the first model's folder says so; else its head does, as far as it can.
    """

    def __init__(self, models: Sequence[Model | TaskModel], names: Sequence[str]) -> None:
        self.models = models
        self._predictors = [model.predictor() for model in models]
        self.task, self.is_told = self._predictors[0].task, self._predictors[0].is_told
        for predictor, name in zip(self._predictors[1:], names[1:], strict=True):
            _check_alike(self._predictors[0], predictor, names[0], name)
        thresholds = [
            predictor.task.threshold for predictor in self._predictors if predictor.task.threshold is not None
        ]
        if thresholds:
            self.task = replace(self.task, threshold=sum(thresholds) / len(thresholds))

    def check_pairs(self, has_pairs: bool, where: str) -> None:
        """Refuse single texts for models of pairs, and pairs for models of single texts."""
        if self.is_told and self.task.kind in _OF_TEXTS and has_pairs != self.task.is_pair:
            wanted, given = ("pairs of texts", "single texts") if self.task.is_pair else ("single texts", "pairs")
            hint = "; leave the second text out with --column pair=" if has_pairs else ""
            raise UserError(f"the model was fine-tuned on {wanted}, and {where} has {given}{hint}")

    def unknown(self) -> UnknownCount:
        """Return what counts the tokens that the first model's vocabulary does not know."""
        return UnknownCount(getattr(self._predictors[0].tokenizer, "pieces", ()))

    def score(self, examples: Sequence[Example], task: Task, done: Callable[[float], None] = lambda _: None) -> Judged:
        """Return what the models together say of examples; `done` is called with the share that is finished."""
        judged = self._scored(examples, task, done)
        items, only = judged[0]
        if len(judged) == 1:
            return Judged(items, only.rows, only.loss)
        rows = combine_rows(task.kind, [scored.rows for _, scored in judged])
        return Judged(items, rows, loss_of_rows(kind_of(task), items, rows, self._predictors[0].laying))

    def _scored(
        self, examples: Sequence[Example], task: Task, done: Callable[[float], None]
    ) -> list[tuple[Items, Scored]]:
        """Return what each model says of examples."""
        count = len(self._predictors)

        def of_model(number: int) -> Callable[[float], None]:
            return lambda share: done((number + share) / count)

        return [one.score(examples, task, of_model(number)) for number, one in enumerate(self._predictors)]

    def results(
        self, examples: Iterable[Example], read: Callable[[Items], None], done: Callable[[float], None] = lambda _: None
    ) -> Iterator[Result]:
        """Yield a result for each example.

        `read` is given what the first model reads of some of them, `done` the number of examples that are finished.
        """
        before = 0

        def rows_of(some: Sequence[Example]) -> tuple[Items, list[NDArray[np.float32]]]:
            nonlocal before
            judged = self._scored(some, self.task, lambda share: done(before + share * len(some)))
            before += len(some)
            read(judged[0][0])
            return judged[0][0], combine_rows(self.task.kind, [scored.rows for _, scored in judged])

        return results_by(rows_of, self.task, examples)


def _check_alike(first: Predictor, other: Predictor, first_name: str, name: str) -> None:
    """Refuse models of which there is no mean."""
    ours, theirs = first.task, other.task
    if ours.kind != theirs.kind:
        raise UserError(f"{name} was fine-tuned to {theirs.kind}, and {first_name} to {ours.kind}; they have no mean")
    if ours.labels != theirs.labels:
        raise UserError(
            f"{name} has the labels {_shown(theirs.labels)}, and {first_name} {_shown(ours.labels)}; an ensemble has "
            "the same ones in the same order"
        )
    if first.is_told and other.is_told and ours.kind in _OF_TEXTS and ours.is_pair != theirs.is_pair:
        raise UserError(f"of {first_name} and {name} one was fine-tuned on pairs of texts, the other on single texts")
    if ours.has_impossible != theirs.has_impossible:
        raise UserError(f"of {first_name} and {name} one learnt that there may be no answer, the other did not")
    pieces = [getattr(predictor.tokenizer, "pieces", None) for predictor in (first, other)]
    if ours.kind in _IN_WINDOWS and (pieces[0] != pieces[1] or first.cut != other.cut):
        raise UserError(
            f"{name} and {first_name} cut texts into other windows; to {ours.kind} together, models must have the same "
            "vocabulary and length"
        )


def _shown(labels: Sequence[str]) -> str:
    return ", ".join(labels)[:100]
