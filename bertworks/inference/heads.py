"""What a fine-tuned model says of texts: one result each, in their order, for any number of them.

| kind       | a result is                                                                    |
|------------|--------------------------------------------------------------------------------|
| classify   | {"label", "score", "scores"}: the likeliest class and the probabilities of all |
| regress    | {"score"}                                                                      |
| multilabel | {"labels", "scores"}: the labels that are more likely than not, and all        |
| choose     | {"choice", "score", "scores"}: the place of the likeliest ending, from 0       |
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, SupportsIndex, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import CorruptFile, UserError, counted
from bertworks.models.folder import OWN_FILE
from bertworks.nn.bert import Bert
from bertworks.nn.heads import OutputHead
from bertworks.nn.hidden_states import batches, check_texts_of, texts_of
from bertworks.nn.lm import Sums
from bertworks.tasks.columns import as_columns
from bertworks.tasks.conll import OUTSIDE, tag_problem, to_iob2
from bertworks.tasks.evaluation import Scored, score_items
from bertworks.tasks.examples import ChoiceExample, Cut, Example, SpanExample, TagExample, TextExample, words_example
from bertworks.tasks.heads import KINDS, LIKELY, Items, Laying, answer_items, kind_of, tag_items
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
from bertworks.text.vocabulary import MASK, UNK

if TYPE_CHECKING:
    from bertworks.inference.model import Model


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
    return {"labels": [label for label, score in scores.items() if score >= LIKELY], "scores": scores}


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


# What a model guesses: the likeliest pieces, and how likely it finds texts.


def check_top_k(top_k: int) -> None:
    """Refuse to give fewer than one guess, or a number of them that is none."""
    if not isinstance(top_k, SupportsIndex) or isinstance(top_k, bool):
        raise UserError(f"{top_k!r:.40} is not a number of guesses; ask for 1 or more")
    if top_k < 1:
        raise UserError(f"{top_k} guesses are not possible; ask for 1 or more")


def best_guesses(
    scores_V: Tensor, pieces: Sequence[str], top_k: int, allowed: Sequence[int] | None = None
) -> list[dict[str, Any]]:
    """Return {"token", "id", "score"} of the likeliest pieces, best first, out of all or of those allowed."""
    candidates = torch.tensor(allowed) if allowed else torch.arange(len(scores_V))
    scores, places = scores_V[candidates].topk(min(top_k, len(candidates)))
    ids = candidates[places].tolist()
    return [{"token": pieces[id], "id": id, "score": score} for id, score in zip(ids, scores.tolist(), strict=True)]


def perplexity_of(lengths: Sequence[int], sums: Callable[[list[int]], Sums], device: torch.device) -> float:
    """Return e to the mean loss of all guesses in texts; `sums` gives those of the texts with these numbers."""
    loss = count = 0.0
    for numbers in batches(lengths, device):
        with torch.inference_mode():
            found = sums(numbers)
        loss, count = loss + float(found.loss), count + float(found.total)
    if not count:
        raise UserError("no text has two tokens, so there is nothing to guess")
    return math.exp(min(loss / count, 700.0))  # beyond that there is no such number


# Guesses at the masks of a text, by a BERT with an MLM head.
#
# In such a text [MASK], and nothing else, is a special token. It may be a part of a word: what follows it without a
# space goes on with that word, as in pre-training, so "[MASK]이다" asks for a word that ends in -이다. A model that
# reads in one direction guesses at a token what comes next to it.


_AHEAD = {"both": 0, "left_to_right": -1, "right_to_left": 1}  # where a token is guessed, seen from the token


def fill_masks(
    model: "Model", texts: Sequence[str], top_k: int, targets: Sequence[str] | str | None, *, truncate: bool
) -> list[list[list[dict[str, Any]]]]:
    """Return guesses for every mask of each text, see `Model.fill`; a text without a word has none."""
    check_top_k(top_k)
    tokenizer, mask_id = model.tokenizer, model.tokenizer.id_of(MASK)
    targets = [targets] if isinstance(targets, str) else targets
    allowed = list(dict.fromkeys(_piece_id(tokenizer, target) for target in targets)) if targets else None
    ids = [_ids_of(model, text, mask_id, f"text {number} of {len(texts)}: " if len(texts) > 1 else "", truncate)
           for number, text in enumerate(texts, 1)]  # fmt: skip
    ahead = _AHEAD[model.net.config.direction]
    found: list[list[list[dict[str, Any]]]] = [[] for _ in texts]
    for numbers in batches([len(one) for one in ids], model.net.embeddings.token.weight.device):
        together = [id for number in numbers for id in ids[number]]
        places = [place for place, id in enumerate(together) if id == mask_id]
        owners = [number for number in numbers for id in ids[number] if id == mask_id]
        if not places:
            continue
        with torch.inference_mode():
            hidden_TD = model.net(model.pack([ids[number] for number in numbers], None))
            logits_MV = model.mlm_logits(hidden_TD[[place + ahead for place in places]]).float()
            scores_MV = logits_MV.softmax(-1)[:, : len(tokenizer)]
        for number, scores_V in zip(owners, scores_MV.cpu(), strict=True):
            found[number].append(best_guesses(scores_V, tokenizer.pieces, top_k, allowed))
    return found


def _ids_of(model: "Model", text: str, mask_id: int, where: str, truncate: bool) -> list[int]:
    """Return a text's ids with those of its masks, none of which may be cut away."""
    check_text(text)
    if not text.strip():
        return model.tokenizer.encode(text).ids
    check_masks(text, where)
    ids = model.cut(_ids_with_masks(model.tokenizer, text, mask_id), truncate)
    num_masks = text.count(MASK)
    if lost := num_masks - ids.count(mask_id):
        raise UserError(f"{where}{lost} of {num_masks} [MASK] lie in what was cut; shorten the text")
    return ids


def check_masks(text: str, where: str = "") -> None:
    """Refuse a text without a [MASK]; `where` comes before the words."""
    if MASK not in text:
        hint = f"; write it in capitals: {MASK}" if MASK.lower() in text.lower() else ""
        raise UserError(f"{where}no {MASK} to fill in {text[:60]!r}{hint}")


def _ids_with_masks(tokenizer: Tokenizer, text: str, mask_id: int) -> list[int]:
    first, *rest = text.split(MASK)
    *ids, end = tokenizer.encode(first).ids
    for part in rest:
        ids += [mask_id, *tokenizer.ids_behind(part)]
    return [*ids, end]


def _piece_id(tokenizer: Tokenizer, target: str) -> int:
    pieces = tokenizer.tokenize(target)
    if len(pieces) != 1:
        raise UserError(
            f"the target {target[:40]!r} is {len(pieces)} pieces ({' '.join(pieces)[:60]}), not one; choose a word "
            "that `bertworks tokenize` leaves whole"
        )
    if pieces == [UNK]:
        raise UserError(f"the target {target[:40]!r} is not in the vocabulary")
    return tokenizer.id_of(pieces[0])


# Answers to questions about texts of any length, by a model with a span head.


def predict_answers(
    net: Bert, examples: Sequence[SpanExample], encoded: AnswerWindows, laying: Laying, *, n_best: int = N_BEST
) -> list[Answered]:
    """Return what a network in evaluation mode answers to each question."""
    rows = score_items(net, KINDS["answer"], answer_items(encoded), laying).rows
    return decode_answers(examples, encoded, enumerate(rows), n_best=n_best)


def answer_questions(
    net: Bert,
    tokenizer: Tokenizer,
    questions: Sequence[str],
    contexts: Sequence[str],
    *,
    top_k: int = 1,
    threshold: float | None = None,
    cut: Cut,
    laying: Laying,
) -> list[list[dict[str, Any]]]:
    """Return for each question {"text", "start", "end", "score"} of the best answers; `context[start:end]` is the text.

    Scores are shares of the 20 best answers. There may be fewer than asked for, and none in an empty context.

    Args:
        net: in evaluation mode, with a span head.
        tokenizer: the network's.
        questions: what is asked.
        contexts: where the answers are looked for, one for each.
        top_k: how many to give.
        threshold: with it a question may have no answer, where that scores more than so much above the best one; then
            the first result has the text "" and no place.
        cut: how a long context is cut.
        laying: how tokens are laid for the network.
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
    encoded = encode_answers(tokenizer, examples, cut)
    found = []
    for answered in predict_answers(net, examples, encoded, laying, n_best=max(top_k, N_BEST)):
        shares = answered.probabilities(with_null=threshold is not None)
        results: list[dict[str, Any]] = [
            {"text": guess.text, "start": guess.start, "end": guess.end, "score": share}
            for guess, share in zip(answered.guesses, shares, strict=False)
        ]
        if threshold is not None and answered.null_odds > threshold:
            results.insert(0, {"text": "", "start": None, "end": None, "score": shares[-1]})
        found.append(results[:top_k])
    return found


# Tags and entities in texts of any length, by a model with a tag head.
#
# A text is a document: its windows overlap, and each unit is labelled where it has most text on both sides. Units
# are the tokenizer's words (punctuation is one of its own), the words that a person gives, or, for models that
# learnt to tag characters, all characters but spaces.


Units = Literal["word", "character"]
UNITS = ("word", "character")
Text = str | Sequence[str]  # as it is, or its words


class Tagged(NamedTuple):
    """A text and what a model says of its units."""

    text: str
    spans: tuple[tuple[int, int], ...]  # of the units
    tags: list[str]  # one for each
    scores: list[float]  # how likely each is

    def entities(self, labels: Sequence[str]) -> list[dict[str, Any]]:
        """Return {"type", "text", "start", "end", "score"} of each entity; its score is the mean of its units'.

        Where labels are not made of B-, I- and the like, each unit that is not O is returned by itself.
        """
        if any(tag_problem(label, None) for label in labels):
            found = [(tag, place, place + 1) for place, tag in enumerate(self.tags) if tag != OUTSIDE]
        else:
            found = list(entities(to_iob2(self.tags)))
        return [self._entity(kind, first, last) for kind, first, last in found]

    def _entity(self, kind: str, first: int, last: int) -> dict[str, Any]:
        start, end = self.spans[first][0], self.spans[last - 1][1]
        score = sum(self.scores[first:last]) / (last - first)
        return {"type": kind, "text": self.text[start:end], "start": start, "end": end, "score": score}


def predict_tags(net: Bert, encoded: TagWindows, laying: Laying) -> UnitLabels:
    """Return the best label of every unit, by a network in evaluation mode."""
    rows = score_items(net, KINDS["tag"], tag_items(encoded), laying).rows
    windows = zip(encoded.windows, rows, strict=True)
    return unit_labels(encoded, enumerate(row[window.places] for window, row in windows))


def tag_texts(
    net: Bert,
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
        laying: how tokens are laid for the network.
        units: what is tagged in a text that is not given as words.
    """
    texts = texts_of("tag", [texts] if isinstance(texts, str) else texts)  # an empty one has no tags
    if units not in UNITS:
        raise UserError(f"no tags are given to each {str(units)[:40]!r}; choose {' or '.join(UNITS)}")
    examples = [_example(tokenizer, number, text, units) for number, text in enumerate(texts)]
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


def _example(tokenizer: Tokenizer, number: int, text: Text, units: Units) -> TagExample:
    if not isinstance(text, str):
        for word in text if isinstance(text, Sequence) else [text]:
            check_text(word)
        return words_example(str(number), text, None, number)
    if units == "character":
        spans = [(place, place + 1) for place, character in enumerate(text) if not character.isspace()]
    else:
        spans = _word_spans(tokenizer, text)
    return TagExample(str(number), text, tuple(spans), None, number)


def _word_spans(tokenizer: Tokenizer, text: str) -> list[tuple[int, int]]:
    encoding = tokenizer.encode(text)
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(encoding.word_ids, encoding.offsets, strict=True):
        if word is not None:
            spans[word] = (spans[word][0] if word in spans else start, end)
    return list(spans.values())
