"""Answers to questions about texts of any length, by a model with a span head."""

import math
from collections.abc import Sequence
from typing import Any

from bertworks.errors import UserError
from bertworks.inference.guesses import check_top_k
from bertworks.nn.bert import Bert
from bertworks.tasks.answer_windows import AnswerWindows, encode_answers
from bertworks.tasks.answers import N_BEST, Answered, decode_answers
from bertworks.tasks.cut import Cut
from bertworks.tasks.evaluation import score_items
from bertworks.tasks.examples import SpanExample
from bertworks.tasks.items import Laying
from bertworks.tasks.kinds import KINDS
from bertworks.tasks.window_kinds import answer_items
from bertworks.text.by_words import check_text
from bertworks.text.tokenizer import Tokenizer


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
