"""Metrics written as slowly and as literally as their definitions, to compare with.

`official_chunks` follows the state machine of the official conlleval: tag by tag, is an entity ended, is one begun.
"""

import math
import re
import string


def matthews(gold, predicted):
    """The covariance of indicator vectors over the root of their variances."""
    labels = sorted(set(gold) | set(predicted), key=str)

    def covariance(x, y):
        total = 0.0
        for label in labels:
            mean_x = sum(value == label for value in x) / len(x)
            mean_y = sum(value == label for value in y) / len(y)
            total += sum(((a == label) - mean_x) * ((b == label) - mean_y) for a, b in zip(x, y, strict=True))
        return total

    spread = math.sqrt(covariance(gold, gold) * covariance(predicted, predicted))
    return covariance(gold, predicted) / spread if spread > 1e-9 else 0.0


def f1(gold, predicted, label):
    right = sum(a == label == b for a, b in zip(gold, predicted, strict=True))
    if not right:
        return 0.0
    precision = right / sum(value == label for value in predicted)
    recall = right / sum(value == label for value in gold)
    return 2 * precision * recall / (precision + recall)


def ranks(values):
    """Of each value: how many are smaller, and half of the others that are equal."""
    return [sum(b < a for b in values) + (sum(b == a for b in values) - 1) / 2 for a in values]


def pearson(x, y):
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    top = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return top / math.sqrt(sum((a - mean_x) ** 2 for a in x) * sum((b - mean_y) ** 2 for b in y))


def official_chunks(tags):
    found, begun = set(), None
    before_prefix, before_kind = "O", ""
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        ends = before_prefix in "BI" and (prefix in "BO" or before_kind != kind)
        begins = prefix == "B" or (prefix == "I" and (before_prefix == "O" or before_kind != kind))
        if ends and begun is not None:
            found.add((before_kind, begun, place))
            begun = None
        if begins:
            begun = place
        before_prefix, before_kind = prefix, kind
    return found


def squad_words(text):
    """Lower case; no punctuation; no articles; single spaces."""
    kept = "".join(character for character in text.lower() if character not in set(string.punctuation))
    return re.sub(r"\b(a|an|the)\b", " ", kept, flags=re.UNICODE).split()


def squad_f1(prediction, answer, no_words_are_equal):
    predicted, right = squad_words(prediction), squad_words(answer)
    if no_words_are_equal and (not predicted or not right):
        return float(predicted == right)
    left = list(right)
    shared = 0
    for word in predicted:
        if word in left:
            left.remove(word)
            shared += 1
    if not shared:
        return 0.0
    precision, recall = shared / len(predicted), shared / len(right)
    return 2 * precision * recall / (precision + recall)


def squad2_score(questions, predictions, no_answer_scores, threshold, score):
    """The mean score over questions when those above the threshold count as not answered.

    questions: name -> answers; score: (prediction, answer) -> number.
    """
    total = 0.0
    for name, answers in questions.items():
        if no_answer_scores[name] > threshold:
            total += not answers
        else:
            total += max(score(predictions[name], answer) for answer in answers or [""])
    return 100 * total / len(questions)
