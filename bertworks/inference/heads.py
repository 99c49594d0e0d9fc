"""Predictions of fine-tuned heads for examples and texts, of any number and any length.

| kind       | a result is                                                                           |
|------------|---------------------------------------------------------------------------------------|
| classify   | {"label", "score", "scores"}: the most likely class and the probabilities of all      |
| regress    | {"score"}                                                                             |
| multilabel | {"labels", "scores"}: the labels that are more likely than not, and all probabilities |
| choose     | {"choice", "score", "scores"}: the number of the most likely ending, from 0           |
| tag        | {"words", "tags"}                                                                     |
| answer     | {"answer", "start", "end", "score"}, and "null_odds" where there may be no answer     |

In `fill` [MASK], and nothing else, is a special token. It may be a part of a word: what follows it without a space ends
its word, as in pre-training, so "[MASK]이다" asks for a word that ends in -이다.

Long texts are read in windows that overlap, and each unit is labelled where it has most text on both sides. Units are
the tokenizer's words (a punctuation mark is one of its own), the words that a person gives, or, for models that learnt
to tag characters, all characters but spaces.
"""

import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError, counted
from bertworks.tasks.conll import OUTSIDE, tag_problem, to_iob2
from bertworks.tasks.heads import KINDS, Items, answer_items, tag_items
from bertworks.tasks.metrics import entities
from bertworks.tasks.task import SpanExample, TagExample, Task, words_example
from bertworks.tasks.windows import (
    N_BEST,
    NO_UNIT,
    ORIGINAL_CUT,
    decode_answers,
    decode_tags,
    encode_answers,
    encode_tags,
    unit_labels,
)
from bertworks.text.tokenizer import Tokenizer, check_text
from bertworks.text.vocabulary import MASK, UNK

if TYPE_CHECKING:
    from bertworks.inference.model import Model

Result = dict[str, Any]
Guesses = list[Result]  # {"token", "id", "score"}, the most likely first
Units = Literal["word", "character"]
UNITS = ("word", "character")
Text = str | Sequence[str]  # as it is, or its words
Rows = Sequence[NDArray[np.float32]]  # the scores of items
_MOST_NAMED = 5
_log = logging.getLogger(__name__)
_NO_ANSWER = {"answer": "", "start": None, "end": None}


def results_of(task: Task, examples: Sequence[Any], items: Items, rows: Sequence[NDArray[np.float32]]) -> list[Result]:
    """Return the results of examples, given the scores of all of their items."""
    predictions = KINDS[task.kind].decode(examples, items, rows, task)
    if task.kind == "tag":
        return [{"words": one.words, "tags": tags} for one, tags in zip(examples, predictions, strict=True)]
    results: list[Result] = []
    if task.kind == "answer":
        for answered in predictions:
            is_none = answered.is_none(task.threshold)
            best = None if is_none else answered.guesses[0]
            result: Result = {"answer": best.text, "start": best.start, "end": best.end} if best else dict(_NO_ANSWER)
            shares = answered.probabilities(with_null=task.has_impossible)
            result["score"] = (shares[-1] if is_none else shares[0]) if shares else 1.0
            results.append(result | ({"null_odds": answered.null_odds} if task.has_impossible else {}))
        return results
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


# The texts that a method is given.


def check_texts_of(method: str, texts: object) -> None:
    """Refuse one text, or what holds none, where a method of a model takes a list of texts."""
    is_one = isinstance(texts, str | bytes | Mapping) or getattr(texts, "shape", None) == ()
    if is_one or not hasattr(texts, "__getitem__"):
        advice = f"{method}(list(texts))" if isinstance(texts, Iterable) and not is_one else f"{method}([text])"
        raise UserError(f"{method} takes a list of texts, not a {type(texts).__name__}; write {advice}")


def texts_of(method: str, texts: str | Sequence[Any], what: str = "text") -> list[Any]:
    """Return the texts that a method is given: one by itself, or a list.

    An empty text that is given by itself is refused; in a list, perhaps of a thousand, its number is logged.
    """
    if not isinstance(texts, str):
        check_texts_of(method, texts)
    given = [texts] if isinstance(texts, str) else list(texts)
    empty = [number for number, text in enumerate(given, 1) if isinstance(text, str) and not text.strip()]
    if empty and isinstance(texts, str):
        raise UserError(f"the {what} is empty; give one with a word in it")
    if empty:
        numbers = ", ".join(f"{number:,}" for number in empty[:_MOST_NAMED]) + (", ..." if empty[_MOST_NAMED:] else "")
        message = "%s: %s of %s texts are empty (numbers %s); their results mean nothing"
        if len(empty) == 1:
            message = "%s: %s of %s texts is empty (number %s); its result means nothing"
        _log.warning(message, method, f"{len(empty):,}", f"{len(given):,}", numbers)
    return given


def in_pairs(method: str, firsts: str | Sequence[str], seconds: str | Sequence[str]) -> tuple[list[str], list[str]]:
    """Return as many first texts as second ones, where each may be a list, or one text that is for all of the other."""
    both = [[given] if isinstance(given, str) else given for given in (firsts, seconds)]
    for given in both:
        check_texts_of(method, given)
    count = max(map(len, both))
    if not isinstance(firsts, str) and not isinstance(seconds, str) and len(firsts) != len(seconds):
        raise UserError(
            f"{method}: {counted(len(firsts), 'text')} but {len(seconds)} for them; give one for each, or one for all"
        )
    if not all(both):
        return [], []
    first, second = (list(given) * count if isinstance(one, str) else list(given)
                     for one, given in zip((firsts, seconds), both, strict=True))  # fmt: skip
    return first, second


# Guesses at the masks of a text.


def check_top_k(top_k: int) -> None:
    """Refuse to give fewer than one guess, or a number of them that is none."""
    if not isinstance(top_k, SupportsIndex) or isinstance(top_k, bool):
        raise UserError(f"{top_k!r:.40} is not a number of guesses; ask for 1 or more")
    if top_k < 1:
        raise UserError(f"{top_k} guesses are not possible; ask for 1 or more")


def check_masks(text: str, where: str = "") -> None:
    """Refuse a text without a [MASK]; `where` comes before the words."""
    if MASK not in text:
        hint = f"; write it in capitals: {MASK}" if MASK.lower() in text.lower() else ""
        raise UserError(f"{where}no {MASK} to fill in {text[:60]!r}{hint}")


def ids_with_masks(model: "Model", text: str, *, truncate: bool, where: str = "") -> list[int]:
    """Return the ids of a text in which [MASK] is a special token; none of them may be cut away."""
    check_text(text)
    if not text.strip():
        return list(model.tokenizer.encode(text).ids)
    check_masks(text, where)
    mask_id, (first, *rest) = model.tokenizer.id_of(MASK), text.split(MASK)
    most = model.max_length if truncate else None  # of a text that is cut, the rest is not even read
    *ids, end = model.tokenizer.encode(first, max_length=most).ids
    for part in rest:
        if most is not None and len(ids) >= most:
            break
        ids += [mask_id, *model.tokenizer.ids_behind(part, most)]
    if len(ids) + 1 > model.max_length and not truncate:
        raise model.too_long(len(ids) + 1, "the text")
    ids = [*ids[: model.max_length - 1], end]
    if lost := len(rest) - ids.count(mask_id):
        raise UserError(f"{where}{lost} of {len(rest)} [MASK] are in the part that was cut; shorten the text")
    return ids


def piece_id(tokenizer: Tokenizer, target: str) -> int:
    """Return the id of a word that is a piece of the vocabulary."""
    pieces = tokenizer.tokenize(target)
    if len(pieces) != 1:
        raise UserError(
            f"the target {target[:40]!r} is {len(pieces)} pieces ({' '.join(pieces)[:60]}), not one; choose a word "
            "that `bertworks tokenize` leaves whole"
        )
    if pieces == [UNK]:
        raise UserError(f"the target {target[:40]!r} is not in the vocabulary")
    return tokenizer.id_of(pieces[0])


def best_guesses(tokenizer: Any, scores_V: Tensor, top_k: int, allowed: Sequence[int] = ()) -> Guesses:
    """Return the most likely pieces, best first, out of all or of those allowed."""
    candidates = torch.tensor(list(dict.fromkeys(allowed))) if allowed else torch.arange(len(scores_V))
    scores, numbers = scores_V[candidates].topk(min(top_k, len(candidates)))
    both = zip(candidates[numbers].tolist(), scores.tolist(), strict=True)
    return [{"token": tokenizer.pieces[id], "id": id, "score": score} for id, score in both]


# Answers to questions about texts of any length.


def read_answers(
    model: "Model", questions: Sequence[str], contexts: Sequence[str], top_k: int, threshold: float | None
) -> tuple[Items, Callable[[Rows], list[list[Result]]]]:
    """Cut questions and contexts into windows; returns their items, and what makes answers of the items' scores.

    Answers are {"text", "start", "end", "score"}, the best first; `context[start:end]` is the text. Scores are shares
    of the 20 best answers. There may be fewer than requested, and none in an empty context. With a threshold a question
    may have no answer, where that scores more than so much above the best one; then the first result has the text ""
    and no start.
    """
    check_top_k(top_k)
    if threshold is not None and (not isinstance(threshold, int | float) or math.isnan(threshold)):
        raise UserError(f"the threshold {str(threshold)[:40]} is not a number; give one, such as 0, or none")
    for text in (*questions, *contexts):
        check_text(text)
    both = enumerate(zip(questions, contexts, strict=True))
    examples = [SpanExample(str(number), *pair, (), False) for number, pair in both]
    encoded = encode_answers(model.tokenizer, examples, model.cut(ORIGINAL_CUT.max_length))

    def answers(rows: Rows) -> list[list[Result]]:
        found = []
        for answered in decode_answers(examples, encoded, enumerate(rows), n_best=max(top_k, N_BEST)):
            shares = answered.probabilities(with_null=threshold is not None)
            results: list[Result] = [
                {"text": guess.text, "start": guess.start, "end": guess.end, "score": share}
                for guess, share in zip(answered.guesses, shares, strict=False)
            ]
            if threshold is not None and answered.null_odds > threshold:
                results.insert(0, {"text": "", "start": None, "end": None, "score": shares[-1]})
            found.append(results[:top_k])
        return found

    return answer_items(encoded), answers


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


def read_tags(
    model: "Model", texts: str | Sequence[Text], units: Units | None = None
) -> tuple[Items, Callable[[Rows], list[Tagged]]]:
    """Cut texts into windows; returns their items, and what makes tags of the items' scores.

    A text is read as it is, or given as words, which spaces then divide.
    """
    units = units or model.about.get("units", "word")
    texts = texts_of("tag", [texts] if isinstance(texts, str) else texts)  # an empty one has no tags
    if units not in UNITS:
        raise UserError(f"no tags are given to each {str(units)[:40]!r}; choose {' or '.join(UNITS)}")
    cut, examples = model.cut(), [_with_units(model.tokenizer, *both, units) for both in enumerate(texts)]
    encoded = encode_tags(model.tokenizer, examples, max_length=cut.max_length, context=cut.context, stride=cut.stride)

    def tagged(rows: Rows) -> list[Tagged]:
        windows = zip(encoded.windows, rows, strict=True)
        labelled = enumerate(row[window.positions] for window, row in windows)
        numbers, probabilities = unit_labels(encoded, labelled)
        # The last number stands for NO_UNIT: that such a unit is O is not the model's word.
        scores = np.append(probabilities, 1.0)[encoded.labelled_by]
        assert NO_UNIT == -1
        tags = decode_tags(encoded, numbers, model.task.labels)
        return [
            Tagged(example.text, example.spans, own, scores[first:last].tolist())
            for example, own, first, last in zip(examples, tags, encoded.bounds[:-1], encoded.bounds[1:], strict=True)
        ]

    return tag_items(encoded), tagged


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
