"""What a model guesses: the likeliest pieces, and how likely it finds texts."""

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import torch
from torch import Tensor

from bertworks.errors import UserError
from bertworks.nn.hidden_states import batches
from bertworks.nn.lm import Sums


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
