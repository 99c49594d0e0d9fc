"""What a fine-tuned model says of texts: one result each, in their order, for any number of them.

| kind       | a result is                                                                    |
|------------|--------------------------------------------------------------------------------|
| classify   | {"label", "score", "scores"}: the likeliest class and the probabilities of all |
| regress    | {"score"}                                                                      |
| multilabel | {"labels", "scores"}: the labels that are more likely than not, and all        |
| choose     | {"choice", "score", "scores"}: the place of the likeliest ending, from 0       |
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import CorruptFile, UserError, counted
from bertworks.interop.folder import OWN_FILE
from bertworks.nn.bert import Bert
from bertworks.nn.heads import OutputHead
from bertworks.nn.hidden_states import check_texts_of, texts_of
from bertworks.tasks.answers import Answered
from bertworks.tasks.cut import Cut
from bertworks.tasks.evaluation import Scored, score_items
from bertworks.tasks.examples import ChoiceExample, Example, SpanExample, TagExample, TextExample
from bertworks.tasks.items import Items, Laying
from bertworks.tasks.kinds import kind_of
from bertworks.tasks.own_columns import as_columns
from bertworks.tasks.task import Kind, Task
from bertworks.text.tokenizer import Tokenizer

Result = dict[str, Any]
_KINDS: dict[str, Kind] = {"choose": "choose", "tag": "tag", "span": "answer"}
_EXAMPLES_AT_ONCE = 4_096  # so that memory does not grow with a file, and lengths within them are much alike


def task_of(net: Bert, labels: Sequence[str], about: Mapping[str, Any]) -> Task:
    """Return the task that a model was fine-tuned for, as its folder says, or as far as its head tells."""
    said = about.get("task") or {}
    kind = said.get("kind") or _kind_by_head(net, about.get("problem"))
    score_range = said.get("score_range")
    try:
        columns = as_columns(said.get("columns"), str(kind))
    except UserError as error:
        raise CorruptFile(f"the model's {OWN_FILE}: {error}") from error
    return Task(
        name=str(said.get("name", kind)),
        title=str(said.get("name", kind)),
        kind=kind,
        splits={},
        metrics=(),
        labels=tuple(labels) or tuple(f"LABEL_{number}" for number in range(_num_outputs(net))),
        is_pair=bool(said.get("is_pair", False)),
        score_range=tuple(score_range) if score_range else None,
        has_impossible=about.get("threshold") is not None,
        threshold=stated_threshold(about),
        columns=columns,
    )


def stated_threshold(about: Mapping[str, Any]) -> float | None:
    """Return the threshold that a model folder names; None where the model did not learn to see that there is none."""
    return about.get("threshold")


def stated_cut(about: Mapping[str, Any], usual_length: int, max_length: int) -> Cut:
    """Return how much is read at once: as in fine-tuning, as far as a model folder says, and no more than it can."""
    told = about.get("task") or {}
    told = {name: told[name] for name in Cut._fields if name in told}
    cut = Cut(**{"max_length": usual_length} | told)
    return cut._replace(max_length=min(cut.max_length, max_length))


def _kind_by_head(net: Bert, problem: Any) -> Kind:
    """Tell the kind of task by the head; of texts, by what config.json calls the problem, if it does."""
    if "classify" in net.heads:
        if problem == "regress" and _num_outputs(net) > 1:
            raise UserError(f"the model predicts {_num_outputs(net)} numbers for a text; only one can be used here")
        return cast(Kind, problem) if isinstance(problem, str) else "regress" if _num_outputs(net) == 1 else "classify"
    for head, kind in _KINDS.items():
        if head in net.heads:
            return kind
    found = ", ".join(net.heads) or "none"
    raise UserError(f"the model was not fine-tuned for a task (heads: {found}); see `bertworks finetune`")


def _num_outputs(net: Bert) -> int:
    heads = [cast(OutputHead, net.heads[name]) for name in ("classify", "tag") if name in net.heads]
    return heads[0].num_outputs if heads else 0


class Predictor:
    """Predicts for examples with a network in evaluation mode.

    Args:
        net: the network.
        tokenizer: what its ids mean.
        task: what it was fine-tuned for.
        cut: how much is read at once.
        laying: how tokens are laid for the network.
        is_told: whether the model's folder says what it was fine-tuned for; else its head does, as far as it can.
    """

    def __init__(
        self, net: Bert, tokenizer: Tokenizer, task: Task, cut: Cut, laying: Laying, *, is_told: bool = True
    ) -> None:
        self.net, self.tokenizer, self.task, self.cut, self.laying = net, tokenizer, task, cut, laying
        self.is_told = is_told

    def score(
        self, examples: Sequence[Example], task: Task, done: Callable[[float], None] = lambda _: None
    ) -> tuple[Items, Scored]:
        """Return what the network reads of the examples of a task, and its scores; `done` as in `score_items`."""
        kind = kind_of(task)
        items = kind.encode(examples, self.tokenizer, task, self.cut)
        return items, score_items(self.net, kind, items, self.laying, done)

    def results(self, examples: Iterable[Example]) -> Iterator[Result]:
        """Yield a result for each example."""

        def score(some: Sequence[Example]) -> tuple[Items, Sequence[NDArray[np.float32]]]:
            items, scored = self.score(some, self.task)
            return items, scored.rows

        return results_by(score, self.task, examples)


def results_by(
    score: Callable[[Sequence[Example]], tuple[Items, Sequence[NDArray[np.float32]]]],
    task: Task,
    examples: Iterable[Example],
) -> Iterator[Result]:
    """Yield a result for each example, some thousands of them computed together."""
    kind, source = kind_of(task), iter(examples)
    while some := list(itertools.islice(source, _EXAMPLES_AT_ONCE)):
        items, rows = score(some)
        if task.kind in _OF_ITEM:
            yield from (_OF_ITEM[task.kind](row, task) for row in rows)
        else:
            found = zip(some, kind.decode(some, items, rows, task), strict=True)
            yield from (_OF_EXAMPLE[task.kind](example, said, task) for example, said in found)


def choose_endings(predictor: Predictor, contexts: Sequence[str], endings: Sequence[Sequence[str]]) -> list[Result]:
    """Return which ending goes best with each context."""
    check_texts_of("choose", contexts)
    check_texts_of("choose", endings)
    if len(contexts) != len(endings):
        raise UserError(f"{len(contexts)} contexts but {len(endings)} lists of endings; give one for each")
    for some in endings:
        if isinstance(some, str | bytes) or not hasattr(some, "__getitem__") or len(some) < 2:
            raise UserError("choose takes a list of at least two endings")
    both = zip(contexts, endings, strict=True)
    return list(predictor.results(ChoiceExample("", context, tuple(some), None) for context, some in both))


def classify_texts(
    predictor: Predictor, given: str | Sequence[str], given_pairs: str | Sequence[str] | None
) -> list[Result]:
    """Return a result for each text, or pair of texts."""
    texts = texts_of("classify", given)
    pairs = [given_pairs] if isinstance(given_pairs, str) else given_pairs
    task = predictor.task
    if task.kind in _ASKED:
        raise UserError(
            f"the model was fine-tuned to {task.kind}; ask `bertworks {task.kind}`, in Python {_ASKED[task.kind]}"
        )
    check_texts_of("classify", () if pairs is None else pairs)
    if pairs is not None and len(pairs) != len(texts):
        raise UserError(f"{counted(len(texts), 'text')} but {counted(len(pairs), 'pair')}; give one for each")
    if predictor.is_told and (pairs is None) == task.is_pair:
        raise UserError(
            "the model was fine-tuned on pairs of texts; give each text a second one with --pair, in Python with pairs"
            if task.is_pair
            else "the model was fine-tuned on single texts; leave --pair out, in Python pairs"
        )
    predictor.task = replace(task, is_pair=pairs is not None)
    seconds: Iterable[str | None] = itertools.repeat(None, len(texts)) if pairs is None else pairs
    found = zip(texts, seconds, strict=True)
    return list(predictor.results(TextExample("", first, second, None) for first, second in found))


def _class_result(row: NDArray[np.float32], task: Task) -> Result:
    shares = torch.from_numpy(row).softmax(-1).tolist()
    best = int(row.argmax())
    return {
        "label": task.labels[best],
        "score": shares[best],
        "scores": dict(zip(task.labels, shares, strict=True)),
    }


def _score_result(row: NDArray[np.float32], task: Task) -> Result:
    low, high = task.score_range or (-np.inf, np.inf)
    return {"score": float(np.clip(row[0], low, high))}


def _labels_result(row: NDArray[np.float32], task: Task) -> Result:
    scores = dict(zip(task.labels, torch.from_numpy(row).sigmoid().tolist(), strict=True))
    return {"labels": [label for label, score in scores.items() if score >= 0.5], "scores": scores}


def _choice_result(row: NDArray[np.float32], _: Task) -> Result:
    scores = torch.from_numpy(row[np.isfinite(row)]).softmax(-1).tolist()
    best = int(row.argmax())
    return {"choice": best, "score": scores[best], "scores": scores}


def _tags_result(example: TagExample, tags: list[str], _: Task) -> Result:
    return {"words": example.words, "tags": tags}


def _answer_result(_: SpanExample, answered: Answered, task: Task) -> Result:
    """The best answer, "" where there is none, and what the threshold was about."""
    is_none = answered.is_none(task.threshold)
    result: Result = {"answer": "", "start": None, "end": None} if is_none else _guess(answered)
    shares = answered.probabilities(with_null=task.has_impossible)
    result["score"] = (shares[-1] if is_none else shares[0]) if shares else 1.0
    return result | ({"null_odds": answered.null_odds} if task.has_impossible else {})


def _guess(answered: Answered) -> Result:
    best = answered.guesses[0]
    return {"answer": best.text, "start": best.start, "end": best.end}


_OF_ITEM: dict[str, Callable[[NDArray[np.float32], Task], Result]] = {
    "classify": _class_result,
    "regress": _score_result,
    "multilabel": _labels_result,
    "choose": _choice_result,
}
_OF_EXAMPLE: dict[str, Callable[[Any, Any, Task], Result]] = {"tag": _tags_result, "answer": _answer_result}
_ASKED = {"choose": "choose(context, endings)", "tag": "tag(texts)", "answer": "answer(question, context)"}
