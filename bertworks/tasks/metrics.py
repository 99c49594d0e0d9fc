"""The metrics of tasks, from a model's predictions: one function for answers, one for everything else.

Classes and numbers: as scikit-learn and scipy define them; shares of one, not percent. Labels may be of any hashable
type. Counts are exact integers and sums are rounded once (`fsum`), so nothing depends on the order of examples. A class
that neither occurs nor is predicted scores 0; a correlation with a constant, or with NaN, is undefined and given as
NaN.

Entities: one counts as right if its type and both its ends are right. Invalid tags, which a model may predict (I-PER
after O, I-LOC after B-PER), start an entity, as in the official conlleval; with `strict` they are no entity, as in
seqeval's strict IOB2.

Answers: exact match and F1 as the official scripts count them, in percent, for SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0.
Both sides are lower-cased and lose punctuation, articles and spare spaces; F1 is over words, and an answer is compared
with that of the annotator it fits best. KorQuAD has no articles, turns quotes and brackets into spaces, and counts F1
over characters. SQuAD 2.0 may say "no answer": "", or a no-answer score above a threshold; the best threshold is found
by one pass over the questions in the order of their scores, as the official script does, ties in the order given. A
question without a prediction counts as wrong.
"""

import math
import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from bertworks.errors import UserError
from bertworks.tasks.task import Example, SpanExample, TagExample, Task

_MOST_IN_A_MATRIX = 200  # classes: the matrix of 9,000 would have 81 million numbers, of which few are not 0
_MOST_COMMON = 100
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KOREAN_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))
_Label = TypeVar("_Label", bound=Hashable)
# How a language's answers are compared: what normalises them, and what divides them into units.
AnswerRules = tuple[Callable[[str], str], Callable[[str], Sequence[str]]]


def measure(task: Task, gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
    """Return a task's metrics, the main one first, as shares of one; NaN for a correlation that is not defined.

    Args:
        task: any but one of kind `answer`.
        gold: the labels, scores, numbers of endings, sets of labels or sequences of tags of the examples.
        predicted: the same of the model, as words where the task has labels.
    """
    if not gold:
        raise UserError(f"{task.title}: there are no examples to measure on")
    if task.kind == "tag":
        found, _ = entity_scores(gold, predicted)
        return {name: found[name] for name in task.metrics}
    functions: dict[str, Callable[[], float]] = {
        "accuracy": lambda: accuracy(gold, predicted),
        "f1": lambda: f1(gold, predicted, task.positive),
        "f1_macro": lambda: f1_macro(gold, predicted),
        "matthews": lambda: matthews(gold, predicted),
        "pearson": lambda: pearson(gold, predicted),
        "spearman": lambda: spearman(gold, predicted),
    }
    if task.kind == "multilabel":
        functions |= {
            "accuracy": lambda: accuracy(list(map(frozenset, gold)), list(map(frozenset, predicted))),
            "f1": lambda: labels_f1_micro(gold, predicted),
            "f1_macro": lambda: labels_f1_macro(gold, predicted, task.labels),
        }
    return {name: functions[name]() for name in task.metrics}


def measure_answers(
    task: Task,
    examples: Sequence[SpanExample],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float = 0.0,
) -> dict[str, float]:
    """Return exact match and F1 in percent, and the other figures of the official script, under its names.

    Args:
        task: of kind `answer`.
        examples: the questions.
        predictions: the best answer to each question, not counting "no answer"; "" if there is none.
        no_answer_scores: for SQuAD 2.0, by how much "no answer" scored above the best answer.
        threshold: above it a question counts as not answered.
    """
    if not task.has_impossible:
        return score_squad1(examples, predictions, KOREAN if task.answers_are_korean else ENGLISH)
    result = score_squad2(examples, predictions, no_answer_scores, threshold)
    return {"f1": result.pop("f1"), "exact_match": result.pop("exact"), **result}


class ClassScore(NamedTuple):
    """How well one class, or one type of entity, was found."""

    precision: float
    recall: float
    f1: float
    support: int


def class_score(num_right: int, num_predicted: int, num_gold: int) -> ClassScore:
    """Return the scores that follow from three counts."""
    total = num_predicted + num_gold
    return ClassScore(
        num_right / num_predicted if num_predicted else 0.0,
        num_right / num_gold if num_gold else 0.0,
        2 * num_right / total if total else 0.0,
        num_gold,
    )


def accuracy(gold: Sequence[object], predicted: Sequence[object]) -> float:
    """Return the share of predictions that are right."""
    return _mean([float(a == b) for a, b in zip(gold, predicted, strict=True)])


def f1(gold: Sequence[_Label], predicted: Sequence[_Label], positive: _Label) -> float:
    """Return the F1 of one class; 0 where it is neither there nor predicted."""
    return per_class(gold, predicted, [positive])[positive].f1


def f1_macro(gold: Sequence[_Label], predicted: Sequence[_Label]) -> float:
    """Return the mean F1 of the classes that are there or were predicted."""
    labels = list(dict.fromkeys([*gold, *predicted]))
    return _mean([score.f1 for score in per_class(gold, predicted, labels).values()])


def per_class(
    gold: Sequence[_Label], predicted: Sequence[_Label], labels: Sequence[_Label]
) -> dict[_Label, ClassScore]:
    """Return precision, recall, F1 and support of each class."""
    num_gold, num_predicted = Counter(gold), Counter(predicted)
    num_right = Counter(a for a, b in zip(gold, predicted, strict=True) if a == b)
    return {label: class_score(num_right[label], num_predicted[label], num_gold[label]) for label in labels}


def confusion(gold: Sequence[_Label], predicted: Sequence[_Label], labels: Sequence[_Label]) -> list[list[int]]:
    """Return how often each class (a row) was taken for each class (a column)."""
    counts = Counter(zip(gold, predicted, strict=True))
    return [[counts[true, guess] for guess in labels] for true in labels]


def matthews(gold: Sequence[_Label], predicted: Sequence[_Label]) -> float:
    """Return the correlation of two labellings, of any number of classes; 0 where one of them is constant."""
    num_gold, num_predicted, total = Counter(gold), Counter(predicted), len(gold)
    num_right = sum(a == b for a, b in zip(gold, predicted, strict=True))
    covariance = num_right * total - sum(count * num_predicted[label] for label, count in num_gold.items())
    gold_variance = total**2 - sum(count**2 for count in num_gold.values())
    predicted_variance = total**2 - sum(count**2 for count in num_predicted.values())
    spread = gold_variance * predicted_variance
    return covariance / math.sqrt(spread) if spread else 0.0


def pearson(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the linear correlation of two series."""
    if not all(map(math.isfinite, (*gold, *predicted))):
        return math.nan
    x, y = _centred(gold), _centred(predicted)
    spread = math.sqrt(math.fsum(a * a for a in x) * math.fsum(b * b for b in y))
    if not spread:
        return math.nan
    return max(-1.0, min(1.0, math.fsum(a * b for a, b in zip(x, y, strict=True)) / spread))


def _centred(values: Sequence[float]) -> list[float]:
    """Subtract the mean; equal values give exact zeros, which their rounded mean would not."""
    if not values or min(values) == max(values):
        return [0.0] * len(values)
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def spearman(gold: Sequence[float], predicted: Sequence[float]) -> float:
    """Return the correlation of the ranks of two series; equal values share the mean of their ranks."""
    if not all(map(math.isfinite, (*gold, *predicted))):
        return math.nan  # which has no rank
    return pearson(_ranks(gold), _ranks(predicted))


def _ranks(values: Sequence[float]) -> list[float]:
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks, start = [0.0] * len(values), 0
    for end in range(1, len(order) + 1):
        if end == len(order) or values[order[end]] != values[order[start]]:
            for index in order[start:end]:
                ranks[index] = (start + end - 1) / 2
            start = end
    return ranks


def labels_f1_micro(gold: Sequence[Collection[_Label]], predicted: Sequence[Collection[_Label]]) -> float:
    """Return the F1 of sets of labels, every label of every example counted alike."""
    num_right, num_predicted, num_gold = _set_counts(gold, predicted)
    return class_score(num_right.total(), num_predicted.total(), num_gold.total()).f1


def labels_f1_macro(
    gold: Sequence[Collection[_Label]], predicted: Sequence[Collection[_Label]], labels: Sequence[_Label]
) -> float:
    """Return the mean over labels of the F1 of each."""
    num_right, num_predicted, num_gold = _set_counts(gold, predicted)
    return _mean([class_score(num_right[label], num_predicted[label], num_gold[label]).f1 for label in labels])


def _set_counts(
    gold: Sequence[Collection[_Label]], predicted: Sequence[Collection[_Label]]
) -> tuple[Counter[_Label], Counter[_Label], Counter[_Label]]:
    right: Counter[_Label] = Counter()
    for a, b in zip(gold, predicted, strict=True):
        right.update(set(a) & set(b))
    in_predicted = Counter(label for labels in predicted for label in set(labels))
    return right, in_predicted, Counter(label for labels in gold for label in set(labels))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values) if values else math.nan


def entities(tags: Sequence[str], *, strict: bool = False) -> Iterator[tuple[str, int, int]]:
    """Yield (type, first index, index after the last) of each entity in a sequence of tags."""
    kind, start = "", 0
    for index, tag in enumerate([*tags, "O"]):
        prefix, _, tag_kind = tag.partition("-")
        if kind and (prefix != "I" or tag_kind != kind):
            yield kind, start, index
            kind = ""
        if not kind and (prefix == "B" or (prefix == "I" and not strict)):
            kind, start = tag_kind, index


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, strict: bool = False
) -> tuple[dict[str, float], dict[str, ClassScore]]:
    """Compare sequences of tags with the right ones; returns the scores of all entities, and those of each type.

    The first are precision, recall and F1, the mean F1 of the types, and the share of right tags.
    """
    num_right, num_predicted, num_gold = Counter[str](), Counter[str](), Counter[str]()
    for gold_tags, tags in zip(gold, predicted, strict=True):
        assert len(gold_tags) == len(tags)
        right, guessed = set(entities(gold_tags, strict=strict)), set(entities(tags, strict=strict))
        num_gold.update(kind for kind, _, _ in right)
        num_predicted.update(kind for kind, _, _ in guessed)
        num_right.update(kind for kind, _, _ in right & guessed)
    kinds = sorted(num_gold | num_predicted)
    by_type = {kind: class_score(num_right[kind], num_predicted[kind], num_gold[kind]) for kind in kinds}
    overall = class_score(num_right.total(), num_predicted.total(), num_gold.total())
    return {
        "precision": overall.precision,
        "recall": overall.recall,
        "f1": overall.f1,
        "f1_macro": sum(score.f1 for score in by_type.values()) / len(kinds) if kinds else 0.0,
        "accuracy": accuracy([tag for tags in gold for tag in tags], [tag for tags in predicted for tag in tags]),
    }, by_type


def normalize_english(text: str) -> str:
    """Reduce an answer to what counts in SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_korean(text: str) -> str:
    """Reduce an answer to what counts in KorQuAD 1.0."""
    return " ".join(text.translate(_KOREAN_MARKS).lower().translate(_PUNCTUATION).split())


ENGLISH: AnswerRules = (normalize_english, str.split)
KOREAN: AnswerRules = (normalize_korean, lambda text: text.replace(" ", ""))


def is_exact(prediction: str, answer: str, rules: AnswerRules = ENGLISH) -> bool:
    """Tell whether two answers are the same after normalisation."""
    return rules[0](prediction) == rules[0](answer)


def overlap_f1(prediction: str, answer: str, rules: AnswerRules = ENGLISH) -> float:
    """Return the F1 of the units that two answers share; 0 where one has none."""
    normalize, units = rules
    predicted, right = units(normalize(prediction)), units(normalize(answer))
    num_shared = (Counter(predicted) & Counter(right)).total()
    return 2 * num_shared / (len(predicted) + len(right)) if num_shared else 0.0


def score_squad1(
    examples: Iterable[SpanExample], predictions: Mapping[str, str], rules: AnswerRules = ENGLISH
) -> dict[str, float]:
    """Return `exact_match` and `f1` as the script of SQuAD 1.1 (or, by other rules, of KorQuAD 1.0) gives them."""
    exact, f1 = [], []
    for example in examples:
        prediction = predictions.get(example.id)
        answers = [] if prediction is None else [answer.text for answer in example.answers]
        exact.append(max((float(is_exact(prediction or "", answer, rules)) for answer in answers), default=0.0))
        f1.append(max((overlap_f1(prediction or "", answer, rules) for answer in answers), default=0.0))
    return {"exact_match": _percent(exact), "f1": _percent(f1)}


def _f1_or_nothing(prediction: str, answer: str) -> float:
    """Return F1, but 1 where both are empty."""
    if normalize_english(prediction) and normalize_english(answer):
        return overlap_f1(prediction, answer)
    return float(is_exact(prediction, answer))


def score_squad2(
    examples: Iterable[SpanExample],
    predictions: Mapping[str, str],
    no_answer_scores: Mapping[str, float] | None = None,
    threshold: float = 1.0,
) -> dict[str, float]:
    """Return what the script of SQuAD 2.0 gives, under its names: `exact`, `f1`, `HasAns_f1`, `best_f1_thresh`, ...

    Args:
        examples: the questions.
        predictions: an answer for each, "" where there is none.
        no_answer_scores: higher where "no answer" is more likely; with them the best thresholds are returned.
        threshold: above it a prediction counts as "no answer".
    """
    has_answer: dict[str, bool] = {}
    scores: dict[str, tuple[float, float]] = {}  # exact and F1 of what was predicted
    for example in examples:
        has_answer[example.id], scores[example.id] = bool(example.answers), (0.0, 0.0)
        answers = [answer.text for answer in example.answers if normalize_english(answer.text)] or [""]
        guess = predictions.get(example.id)
        if guess is not None:
            scores[example.id] = (
                max(float(is_exact(guess, answer)) for answer in answers),
                max(_f1_or_nothing(guess, answer) for answer in answers),
            )
    given = no_answer_scores or {}
    final = {
        name: (float(not has_answer[name]),) * 2 if given.get(name, 0.0) > threshold else score
        for name, score in scores.items()
    }
    result: dict[str, float] = {}
    for prefix, which in (("", (True, False)), ("HasAns_", (True,)), ("NoAns_", (False,))):
        part = [score for name, score in final.items() if has_answer[name] in which]
        if part or not prefix:
            exact, overlap = (_percent([score[column] for score in part]) for column in (0, 1))
            result |= {f"{prefix}exact": exact, f"{prefix}f1": overlap, f"{prefix}total": len(part)}
    if no_answer_scores is not None:
        for column, metric in enumerate(("exact", "f1")):
            # Start with no question answered, answer one after the other, and remember where the sum was highest.
            current = best = float(sum(not has for has in has_answer.values()))
            best_threshold = 0.0
            for name in sorted(filter(scores.__contains__, given), key=given.__getitem__):
                says_nothing = name in predictions and not predictions[name]
                current += scores[name][column] if has_answer[name] else -float(not says_nothing)
                if current > best:
                    best, best_threshold = current, given[name]
            result |= {f"best_{metric}": 100 * best / len(scores), f"best_{metric}_thresh": best_threshold}
    return result


def _percent(values: Sequence[float]) -> float:
    if not values:
        raise UserError("there are no questions to score")
    return 100 * sum(values) / len(values)


class Breakdown(NamedTuple):
    """A score, broken down by class.

    Attributes:
        labels: of the classes, in the model's order; of entities their types.
        per_class: how well each was found.
        confusion: for classes how often each (a row) was predicted as each (a column); for several labels, for each of
            them [[rightly not given, falsely given], [missed, rightly given]]; empty for entities, whose ends may be
            wrong, too, and for more than 200 classes.
        commonest: for more than 200 classes the most common mistakes: (right class, predicted class, count).
    """

    labels: list[str]
    per_class: dict[str, ClassScore]
    confusion: list[Any]
    commonest: Sequence[tuple[str, str, int]] = ()

    def as_json(self) -> dict[str, Any]:
        """Return it as plain lists and objects."""
        values: dict[str, Any] = {"per_class": {label: score._asdict() for label, score in self.per_class.items()}}
        if self.commonest:
            values["commonest_mistakes"] = [list(mistake) for mistake in self.commonest]
        return values | ({"confusion": {"labels": self.labels, "counts": self.confusion}} if self.confusion else {})


def gold_of(examples: Sequence[Example]) -> list[Any]:
    """Return the right label of each example; None where its file has none."""
    return [example.tags if isinstance(example, TagExample) else getattr(example, "label", "") for example in examples]


def break_down(task: Task, gold: Sequence[Any], predicted: Sequence[Any]) -> Breakdown | None:
    """Break a score down by class; None where a task has no classes.

    Args:
        task: the task.
        gold: the labels, sets of labels or sequences of tags of the examples.
        predicted: the same of the model.
    """
    labels = list(task.labels)
    if task.kind == "classify" and len(labels) > _MOST_IN_A_MATRIX:
        mistakes = Counter((right, guess) for right, guess in zip(gold, predicted, strict=True) if right != guess)
        commonest = [(right, guess, count) for (right, guess), count in mistakes.most_common(_MOST_COMMON)]
        return Breakdown(labels, per_class(gold, predicted, labels), [], commonest)
    if task.kind == "classify":
        return Breakdown(labels, per_class(gold, predicted, labels), confusion(gold, predicted, labels))
    if task.kind == "multilabel":
        return _of_label_sets(labels, gold, predicted)
    if task.kind == "tag":
        _, by_type = entity_scores(gold, predicted)
        return Breakdown(list(by_type), by_type, [])
    return None


def _of_label_sets(
    labels: list[str], gold: Sequence[Collection[str]], predicted: Sequence[Collection[str]]
) -> Breakdown:
    # Over the labels that examples have, not over all labels, of which there may be thousands.
    in_gold, in_said, in_both = (
        Counter(label for labels_of in sets for label in set(labels_of))
        for sets in (gold, predicted, [set(a) & set(b) for a, b in zip(gold, predicted, strict=True)])
    )
    matrices = [
        [[len(gold) - in_gold[label] - in_said[label] + in_both[label], in_said[label] - in_both[label]],
         [in_gold[label] - in_both[label], in_both[label]]]
        for label in labels
    ]  # fmt: skip
    scores = {
        label: class_score(found, false + found, missed + found)
        for label, ((_, false), (missed, found)) in zip(labels, matrices, strict=True)
    }
    return Breakdown(labels, scores, matrices)


def most_confused(breakdown: Breakdown, most: int) -> list[tuple[str, str, int]]:
    """Return (right class, what it was taken for, how often) of the commonest mistakes, the commonest first."""
    if breakdown.commonest:
        return list(breakdown.commonest[:most])
    labels = breakdown.labels
    found = [
        (labels[right], labels[guess], count)
        for right, row in enumerate(breakdown.confusion)
        for guess, count in enumerate(row)
        if count and right != guess
    ]
    return sorted(found, key=lambda mistake: -mistake[2])[:most]
