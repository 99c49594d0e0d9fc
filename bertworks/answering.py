"""Answers to questions about texts of any length, by a model with a span head."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.errors import UserError
from bertworks.guesses import check_top_k
from bertworks.hidden_states import batches
from bertworks.nn.bert import Bert
from bertworks.tasks.answer_windows import AnswerSettings, AnswerWindows, encode_answers
from bertworks.tasks.answers import MAX_ANSWER_LENGTH, N_BEST, Answered, decode_answers
from bertworks.tasks.examples import SpanExample
from bertworks.text.tokenizer import Tokenizer
from bertworks.train.span_objectives import collate_spans, span_logits


def predict_answers(
    net: Bert,
    examples: Sequence[SpanExample],
    encoded: AnswerWindows,
    device: torch.device,
    *,
    flash: bool = False,
    n_best: int = N_BEST,
    max_answer_length: int = MAX_ANSWER_LENGTH,
) -> list[Answered]:
    """Return what a network in evaluation mode answers to each question."""

    def logits() -> Iterator[tuple[int, NDArray[np.float32]]]:
        for numbers in batches([len(window.ids) for window in encoded.windows], device):
            some = [encoded.windows[number] for number in numbers]
            with torch.inference_mode():
                rows = span_logits(net, collate_spans(some, device, flash=flash)).float().cpu().numpy()
            ends = np.cumsum([len(window.ids) for window in some])
            yield from zip(numbers, np.split(rows, ends[:-1]), strict=True)

    return decode_answers(examples, encoded, logits(), n_best=n_best, max_answer_length=max_answer_length)


def stated_threshold(about: Mapping[str, Any]) -> float | None:
    """Return the threshold that a model folder names; None where the model did not learn to see that there is none."""
    threshold = about.get("threshold")
    if threshold is not None and type(threshold) not in (int, float):
        raise UserError(f"the model folder's threshold {str(threshold)[:40]!r} is not a number; give one yourself")
    return threshold


def answer_question(
    net: Bert,
    tokenizer: Tokenizer,
    question: str,
    context: str,
    *,
    top_k: int = 1,
    threshold: float | None = None,
    settings: AnswerSettings | None = None,
    device: torch.device | None = None,
    flash: bool = False,
) -> list[dict[str, Any]]:
    """Return {"text", "start", "end", "score"} of the best answers, best first; `context[start:end]` is the text.

    Scores are shares of the 20 best answers. There may be fewer than asked for, and none in an empty context.

    Args:
        net: in evaluation mode, with a span head.
        tokenizer: the network's.
        question: what is asked.
        context: where the answer is looked for.
        top_k: how many to give.
        threshold: with it a question may have no answer, where that scores more than so much above the best one; then
            the first result has the text "" and no place.
        settings: how a long context is cut.
        device: where the network is; the CPU without it.
        flash: whether its attention is flash attention.
    """
    check_top_k(top_k)
    example = SpanExample("0", question, context, (), False)
    encoded = encode_answers(tokenizer, [example], settings)
    place = device or torch.device("cpu")
    (answered,) = predict_answers(net, [example], encoded, place, flash=flash, n_best=max(top_k, N_BEST))
    shares = answered.probabilities(with_null=threshold is not None)
    results: list[dict[str, Any]] = [
        {"text": guess.text, "start": guess.start, "end": guess.end, "score": share}
        for guess, share in zip(answered.guesses, shares, strict=False)
    ]
    if threshold is not None and answered.null_odds > threshold:
        results.insert(0, {"text": "", "start": None, "end": None, "score": shares[-1]})
    return results[:top_k]
