"""What the heads of a fine-tuned model say of examples and texts, of any number and any length.

| kind       | a result is                                                                           |
|------------|---------------------------------------------------------------------------------------|
| classify   | {"label", "score", "scores"}: the likeliest class and the probabilities of all        |
| regress    | {"score"}                                                                             |
| multilabel | {"labels", "scores"}: the labels that are more likely than not, and all probabilities |
| choose     | {"choice", "score", "scores"}: the number of the likeliest ending, from 0             |
| tag        | {"words", "tags"}                                                                     |
| answer     | {"answer", "start", "end", "score"}, and "null_odds" where there may be no answer     |

Long texts are read in windows that overlap, and each unit is labelled where it has most text on both sides. Units are
the tokenizer's words (a punctuation mark is one of its own), the words that a person gives, or, for models that learnt
to tag characters, all characters but spaces.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsIndex, cast

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import CorruptFile, UserError
from bertworks.models.folder import OWN_FILE
from bertworks.models.kinds import num_labels
from bertworks.nn.hidden_states import texts_of
from bertworks.tasks.columns import as_columns
from bertworks.tasks.conll import OUTSIDE, tag_problem, to_iob2
from bertworks.tasks.evaluation import score_items
from bertworks.tasks.examples import Cut, SpanExample, TagExample, words_example
from bertworks.tasks.heads import KINDS, Items, Laying, answer_items, tag_items
from bertworks.tasks.metrics import entities
from bertworks.tasks.task import Kind, Task
from bertworks.tasks.windows import (
    N_BEST,
    NO_UNIT,
    Answered,
    AnswerWindows,
    TagWindows,
    UnitLabels,
    decode_answers,
    decode_tags,
    encode_answers,
    encode_tags,
    unit_labels,
)
from bertworks.text.tokenizer import Tokenizer, check_text

Result = dict[str, Any]
Units = Literal["word", "character"]
UNITS = ("word", "character")
Text = str | Sequence[str]  # as it is, or its words
_KINDS: dict[str, Kind] = {"choose": "choose", "tag": "tag", "span": "answer"}  # of the task, by the head


def task_of(net: Any, labels: Sequence[str], about: Mapping[str, Any]) -> Task:
    """Return the task that a model was fine-tuned for, as its folder says, or as far as its head tells."""
    stated = about.get("task") or {}
    kind = stated.get("kind") or _kind_by_head(net, about.get("problem"))
    score_range = stated.get("score_range")
    try:
        columns = as_columns(stated.get("columns"), str(kind))
    except UserError as error:
        raise CorruptFile(f"the model's {OWN_FILE}: {error}") from error
    return Task(
        name=str(stated.get("name", kind)),
        title=str(stated.get("name", kind)),
        kind=kind,
        splits={},
        metrics=(),
        labels=tuple(labels) or tuple(f"LABEL_{number}" for number in range(num_labels(net) or 0)),
        is_pair=bool(stated.get("is_pair", False)),
        score_range=tuple(score_range) if score_range else None,
        has_impossible=about.get("threshold") is not None,
        threshold=about.get("threshold"),
        columns=columns,
    )


def _kind_by_head(net: Any, problem: Any) -> Kind:
    """Tell the kind of task by the head; of texts, by what config.json calls the problem, if it does."""
    heads = getattr(net, "heads", {})
    if "classify" in heads:
        count = num_labels(net) or 0
        if problem == "regress" and count > 1:
            raise UserError(f"the model predicts {count} numbers for a text; only one can be used here")
        return cast(Kind, problem) if isinstance(problem, str) else "regress" if count == 1 else "classify"
    for head, kind in _KINDS.items():
        if head in heads:
            return kind
    found = ", ".join(heads) or "none"
    raise UserError(f"the model was not fine-tuned for a task (heads: {found}); see `bertworks finetune`")


def stated_cut(about: Mapping[str, Any], usual_length: int, max_length: int) -> Cut:
    """Return how much is read at once: as in fine-tuning, as far as a model folder says, and no more than it can."""
    stated = about.get("task") or {}
    stated = {name: stated[name] for name in Cut._fields if name in stated}
    cut = Cut(**{"max_length": usual_length} | stated)
    return cut._replace(max_length=min(cut.max_length, max_length))


def results_of(task: Task, examples: Sequence[Any], items: Items, rows: Sequence[NDArray[np.float32]]) -> list[Result]:
    """Return the results of examples, given the scores of all of their items."""
    predictions = KINDS[task.kind].decode(examples, items, rows, task)
    if task.kind == "tag":
        return [{"words": one.words, "tags": tags} for one, tags in zip(examples, predictions, strict=True)]
    if task.kind == "answer":
        return [_answer_result(answered, task) for answered in predictions]
    results: list[Result] = []
    for row, predicted in zip(rows, predictions, strict=True):
        if task.kind == "regress":
            results.append({"score": predicted})
        elif task.kind == "multilabel":
            shares = torch.from_numpy(row).sigmoid().tolist()
            results.append({"labels": list(predicted), "scores": dict(zip(task.labels, shares, strict=True))})
        elif task.kind == "choose":
            shares = torch.from_numpy(row[np.isfinite(row)]).softmax(-1).tolist()
            results.append({"choice": predicted, "score": shares[predicted], "scores": shares})
        else:
            shares, best = torch.from_numpy(row).softmax(-1).tolist(), int(row.argmax())
            scores = dict(zip(task.labels, shares, strict=True))
            results.append({"label": predicted, "score": shares[best], "scores": scores})
    return results


def _answer_result(answered: Answered, task: Task) -> Result:
    """Return the best answer, "" where there is none, and what the threshold was about."""
    is_none = answered.is_none(task.threshold)
    result: Result = {"answer": "", "start": None, "end": None}
    if not is_none:
        best = answered.guesses[0]
        result = {"answer": best.text, "start": best.start, "end": best.end}
    shares = answered.probabilities(with_null=task.has_impossible)
    result["score"] = (shares[-1] if is_none else shares[0]) if shares else 1.0
    return result | ({"null_odds": answered.null_odds} if task.has_impossible else {})


def check_top_k(top_k: int) -> None:
    """Refuse to give fewer than one guess, or a number of them that is none."""
    if not isinstance(top_k, SupportsIndex) or isinstance(top_k, bool):
        raise UserError(f"{top_k!r:.40} is not a number of guesses; ask for 1 or more")
    if top_k < 1:
        raise UserError(f"{top_k} guesses are not possible; ask for 1 or more")


# Answers to questions about texts of any length.


def predict_answers(
    net: Any, examples: Sequence[SpanExample], encoded: AnswerWindows, laying: Laying, *, n_best: int = N_BEST
) -> list[Answered]:
    """Return what a network in evaluation mode answers to each question."""
    rows = score_items(net, KINDS["answer"], answer_items(encoded), laying).rows
    return decode_answers(examples, encoded, enumerate(rows), n_best=n_best)


def answer_questions(
    net: Any,
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    top_k: int = 1,
    threshold: float | None = None,
    cut: Cut,
    laying: Laying,
) -> list[list[Result]]:
    """Return for each question {"text", "start", "end", "score"} of the best answers; `context[start:end]` is the text.

    Scores are shares of the 20 best answers. There may be fewer than asked for, and none in an empty context.

    Args:
        net: in evaluation mode, with a span head.
        tokenizer: the network's.
        questions: what is asked.
        contexts: where the answers are looked for, one for each.
        top_k: how many to give.
        threshold: with it a question may have no answer, where that scores more than so much above the best one; then
            the first result has the text "" and no start.
        cut: how a long context is cut.
        laying: how tokens are laid out for the network.
    """
    check_top_k(top_k)
    if threshold is not None and (not isinstance(threshold, int | float) or math.isnan(threshold)):
        raise UserError(f"the threshold {str(threshold)[:40]} is no number; give one, such as 0, or none")
    for text in (*questions, *contexts):
        check_text(text)
    both = enumerate(zip(questions, contexts, strict=True))
    examples = [SpanExample(str(number), *pair, (), False) for number, pair in both]
    if not examples:
        return []
    encoded, found = encode_answers(tokenizer, examples, cut), []
    for answered in predict_answers(net, examples, encoded, laying, n_best=max(top_k, N_BEST)):
        shares = answered.probabilities(with_null=threshold is not None)
        results: list[Result] = [
            {"text": guess.text, "start": guess.start, "end": guess.end, "score": share}
            for guess, share in zip(answered.guesses, shares, strict=False)
        ]
        if threshold is not None and answered.null_odds > threshold:
            results.insert(0, {"text": "", "start": None, "end": None, "score": shares[-1]})
        found.append(results[:top_k])
    return found


# Tags and entities in texts of any length.


class Tagged(NamedTuple):
    """A text and what a model says of its units."""

    text: str
    spans: tuple[tuple[int, int], ...]  # of the units
    tags: list[str]  # one for each
    scores: list[float]  # how likely each is

    def entities(self, labels: Sequence[str]) -> list[Result]:
        """Return {"type", "text", "start", "end", "score"} of each entity; its score is the mean of its units'.

        Where labels are not made of B-, I- and the like, each unit that is not O is returned by itself.
        """
        if any(tag_problem(label, None) for label in labels):
            found = [(tag, number, number + 1) for number, tag in enumerate(self.tags) if tag != OUTSIDE]
        else:
            found = list(entities(to_iob2(self.tags)))
        results = []
        for kind, first, last in found:
            start, end = self.spans[first][0], self.spans[last - 1][1]
            score = sum(self.scores[first:last]) / (last - first)
            results.append({"type": kind, "text": self.text[start:end], "start": start, "end": end, "score": score})
        return results


def predict_tags(net: Any, encoded: TagWindows, laying: Laying) -> UnitLabels:
    """Return the best label of every unit, by a network in evaluation mode."""
    rows = score_items(net, KINDS["tag"], tag_items(encoded), laying).rows
    windows = zip(encoded.windows, rows, strict=True)
    return unit_labels(encoded, enumerate(row[window.places] for window, row in windows))


def tag_texts(
    net: Any,
    tokenizer: Tokenizer,
    texts: str | Sequence[Text],
    labels: Sequence[str],
    *,
    cut: Cut,
    laying: Laying,
    units: Units = "word",
) -> list[Tagged]:
    """Tag the units of texts.

    Args:
        net: in evaluation mode, with a tag head.
        tokenizer: the network's.
        texts: one as it is, or several, each as it is or as a list of words, which spaces then divide.
        labels: in the order of the head's outputs.
        cut: how much of a text is read at once.
        laying: how tokens are laid out for the network.
        units: what is tagged in a text that is not given as words.
    """
    texts = texts_of("tag", [texts] if isinstance(texts, str) else texts)  # an empty one has no tags
    if units not in UNITS:
        raise UserError(f"no tags are given to each {str(units)[:40]!r}; choose {' or '.join(UNITS)}")
    examples = [_with_units(tokenizer, number, text, units) for number, text in enumerate(texts)]
    encoded = encode_tags(tokenizer, examples, max_length=cut.max_length, context=cut.context, stride=cut.stride)
    found = predict_tags(net, encoded, laying)
    # The last number stands for NO_UNIT: that such a unit is O is not the model's word.
    scores = np.append(found.scores, 1.0)[encoded.labelled_by]
    assert NO_UNIT == -1
    tags = decode_tags(encoded, found, labels)
    return [
        Tagged(example.text, example.spans, own, scores[first:last].tolist())
        for example, own, first, last in zip(examples, tags, encoded.bounds[:-1], encoded.bounds[1:], strict=True)
    ]


def _with_units(tokenizer: Tokenizer, number: int, text: Text, units: Units) -> TagExample:
    """Return a text and the spans of its units."""
    if not isinstance(text, str):
        for word in text if isinstance(text, Sequence) else [text]:
            check_text(word)
        return words_example(str(number), text, None, number)
    if units == "character":
        spans = [(index, index + 1) for index, character in enumerate(text) if not character.isspace()]
    else:
        encoding, by_word = tokenizer.encode(text), dict[int, tuple[int, int]]()
        for word_id, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
            if word_id is not None:
                by_word[word_id] = (by_word[word_id][0] if word_id in by_word else start, end)
        spans = list(by_word.values())
    return TagExample(str(number), text, tuple(spans), None, number)
