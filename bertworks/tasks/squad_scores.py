"""Exact match and F1 of answers as the official scripts count them, in percent: SQuAD 1.1, SQuAD 2.0 and KorQuAD 1.0.

Both sides are lower-cased and lose punctuation, articles and spare spaces; F1 is over words, and an answer is compared
with that of the annotator it fits best. KorQuAD has no articles, turns quotes and brackets into spaces, and counts F1
over characters. SQuAD 2.0 may say "no answer": "", or a no-answer score above a threshold; the best threshold is found
by one pass over the questions in the order of their scores, as the official script does, ties in the order given.

A question without a prediction counts as wrong.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from bertworks.errors import UserError
from bertworks.tasks.examples import SpanExample

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_KOREAN_MARKS = str.maketrans(dict.fromkeys("'\"《》<>〈〉()‘’", " "))


def normalize_english(text: str) -> str:
    """Reduce an answer to what counts in SQuAD."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def normalize_korean(text: str) -> str:
    """Reduce an answer to what counts in KorQuAD 1.0."""
    return " ".join(text.translate(_KOREAN_MARKS).lower().translate(_PUNCTUATION).split())


class AnswerRules(NamedTuple):
    """How a language's answers are compared."""

    normalize: Callable[[str], str]
    units: Callable[[str], Sequence[str]]


ENGLISH = AnswerRules(normalize_english, str.split)
KOREAN = AnswerRules(normalize_korean, lambda text: text.replace(" ", ""))


def is_exact(prediction: str, answer: str, rules: AnswerRules = ENGLISH) -> bool:
    """Tell whether two answers are the same after normalisation."""
    return rules.normalize(prediction) == rules.normalize(answer)


def overlap_f1(prediction: str, answer: str, rules: AnswerRules = ENGLISH) -> float:
    """Return the F1 of the units that two answers share; 0 where one has none."""
    predicted, right = rules.units(rules.normalize(prediction)), rules.units(rules.normalize(answer))
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


class _Scored(NamedTuple):
    """A question of SQuAD 2.0 with the score of its prediction."""

    has_answer: bool
    says_nothing: bool
    exact: float
    f1: float


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
        no_answer_scores: the higher, the surer that there is no answer; the best thresholds come with them.
        threshold: above it a prediction counts as "no answer".
    """
    scored = {example.id: _scored(example, predictions.get(example.id)) for example in examples}
    given = no_answer_scores or {}
    final = {name: _after_threshold(one, given.get(name, 0.0) > threshold) for name, one in scored.items()}
    result = _summary("", list(final.values()))
    for prefix, has_answer in (("HasAns_", True), ("NoAns_", False)):
        part = [one for one in final.values() if one.has_answer == has_answer]
        result |= _summary(prefix, part) if part else {}
    if no_answer_scores is not None:
        result |= _best(scored, no_answer_scores)
    return result


def _scored(example: SpanExample, prediction: str | None) -> _Scored:
    answers = [answer.text for answer in example.answers if normalize_english(answer.text)] or [""]
    has_answer = bool(example.answers)
    if prediction is None:
        return _Scored(has_answer, False, 0.0, 0.0)
    exact = max(float(is_exact(prediction, answer)) for answer in answers)
    return _Scored(has_answer, not prediction, exact, max(_f1_or_nothing(prediction, answer) for answer in answers))


def _f1_or_nothing(prediction: str, answer: str) -> float:
    """Return F1, but 1 where both say nothing."""
    if normalize_english(prediction) and normalize_english(answer):
        return overlap_f1(prediction, answer)
    return float(is_exact(prediction, answer))


def _after_threshold(one: _Scored, is_above: bool) -> _Scored:
    score = float(not one.has_answer)
    return one._replace(exact=score, f1=score) if is_above else one


def _summary(prefix: str, scored: Sequence[_Scored]) -> dict[str, float]:
    return {
        f"{prefix}exact": _percent([one.exact for one in scored]),
        f"{prefix}f1": _percent([one.f1 for one in scored]),
        f"{prefix}total": len(scored),
    }


def _best(scored: Mapping[str, _Scored], no_answer_scores: Mapping[str, float]) -> dict[str, float]:
    best_exact, exact_threshold = _best_threshold(scored, no_answer_scores, lambda one: one.exact)
    best_f1, f1_threshold = _best_threshold(scored, no_answer_scores, lambda one: one.f1)
    return {
        "best_exact": best_exact,
        "best_exact_thresh": exact_threshold,
        "best_f1": best_f1,
        "best_f1_thresh": f1_threshold,
    }


def _best_threshold(
    scored: Mapping[str, _Scored], no_answer_scores: Mapping[str, float], score: Callable[[_Scored], float]
) -> tuple[float, float]:
    """Start with no question answered, answer one after the other, and remember where the sum was highest."""
    current = best = float(sum(not one.has_answer for one in scored.values()))
    threshold = 0.0
    for name in sorted(no_answer_scores, key=no_answer_scores.__getitem__):
        one = scored.get(name)
        if one is None:
            continue
        current += score(one) if one.has_answer else -float(not one.says_nothing)
        if current > best:
            best, threshold = current, no_answer_scores[name]
    return 100 * best / len(scored), threshold


def _percent(values: Sequence[float]) -> float:
    if not values:
        raise UserError("there are no questions to score")
    return 100 * sum(values) / len(values)
