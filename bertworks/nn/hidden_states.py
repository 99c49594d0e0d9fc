"""Hidden states of texts, whatever network makes them: as they are, or pooled to one vector a text.

Texts are sorted by length and packed into batches of about as many tokens, so that none waits for a longer one and no
padding is computed. Results come back in the order of the texts.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, SupportsIndex

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.errors import UserError, counted
from bertworks.text.tokenizer import Encoding

Pool = Literal["cls", "mean", "max", "last", "mean_sqrt_len_tokens", "weightedmean"]
Layers = Iterable[int] | int | Literal["all"]
_MOST_NAMED = 5
_log = logging.getLogger(__name__)
_TOKENS_AT_ONCE = 2_048  # on a CPU more do not go faster, and their layers no longer fit its caches
_TOKENS_AT_ONCE_ON_DEVICE = 65_536


class Features(NamedTuple):
    """The hidden states of one text."""

    encoding: Encoding
    hidden: NDArray[np.float32]  # [layers, tokens, width]


class Rows(NamedTuple):
    """What a network gives for some texts, laid end to end."""

    starts: Tensor  # where each text starts, and where the last one ends
    layers: list[Tensor]  # [T, width] each: those that were asked for


Compute = Callable[[list[int]], Rows]  # of the texts with these numbers


def batches(lengths: Sequence[int], device: torch.device) -> Iterator[list[int]]:
    """Give the numbers of texts of similar length, about as many tokens at a time."""
    most = _TOKENS_AT_ONCE if device.type == "cpu" else _TOKENS_AT_ONCE_ON_DEVICE
    numbers: list[int] = []
    size = 0
    for number in sorted(range(len(lengths)), key=lengths.__getitem__):
        if numbers and size + lengths[number] > most:
            yield numbers
            numbers, size = [], 0
        numbers.append(number)
        size += lengths[number]
    if numbers:
        yield numbers


def features_of(encodings: Sequence[Encoding], compute: Compute, device: torch.device) -> list[Features]:
    """Return the hidden states of every token of each text."""
    found: dict[int, Features] = {}
    for numbers in batches([len(encoding) for encoding in encodings], device):
        with torch.inference_mode():
            rows = compute(numbers)
            hidden = torch.stack(rows.layers).float().cpu().numpy()
        starts = rows.starts.tolist()
        for place, number in enumerate(numbers):
            found[number] = Features(encodings[number], hidden[:, starts[place] : starts[place + 1]])
    return [found[number] for number in range(len(encodings))]


def vectors_of(
    lengths: Sequence[int], width: int, compute: Compute, pools: Sequence[str], device: torch.device, skip: int = 0
) -> NDArray[np.float32]:
    """Return one vector for each text, its layers side by side; one without tokens is all zeros.

    Args:
        lengths: of the texts, in tokens.
        width: of a text's layers side by side.
        compute: gives the hidden states of some texts.
        pools: how they are reduced to vectors, which are joined.
        device: where that is computed.
        skip: how many tokens at the beginning of each text are left out, at least one being kept.
    """
    vectors = np.empty((len(lengths), width * len(pools)), np.float32)
    for numbers in batches(lengths, device):
        with torch.inference_mode():
            rows = compute(numbers)
            hidden_TD = torch.cat(rows.layers, dim=-1).float()
            vectors[numbers] = torch.cat([_pooled(hidden_TD, rows.starts, pool, skip) for pool in pools], 1).cpu()
    return vectors


def _pooled(hidden_TD: Tensor, starts: Tensor, pool: str, skip: int) -> Tensor:
    """Reduce the rows of each text to one."""
    lengths_S = starts.diff().long()
    if not len(hidden_TD):
        return hidden_TD.new_zeros(len(lengths_S), hidden_TD.shape[1])
    # A text's place of each row, from 1; those that are skipped get 0.
    places_T = torch.arange(1, len(hidden_TD) + 1, device=hidden_TD.device) - starts[:-1].repeat_interleave(lengths_S)
    skipped_S = (lengths_S - 1).clamp(0, skip)
    is_kept_T = places_T > skipped_S.repeat_interleave(lengths_S)
    if pool in ("cls", "last"):
        rows_S = starts[:-1] + skipped_S if pool == "cls" else starts[1:] - 1
        vectors = hidden_TD.index_select(0, rows_S.clamp(0, len(hidden_TD) - 1))
    else:
        kept_TD, lengths_S = hidden_TD[is_kept_T] if skip else hidden_TD, lengths_S - skipped_S
        reduce = "max" if pool == "max" else "mean"
        if pool == "weightedmean":
            weights_T1 = places_T[is_kept_T].float()[:, None]
            kept_TD = torch.cat([kept_TD * weights_T1, weights_T1], 1)
        vectors = torch.segment_reduce(kept_TD, reduce, lengths=lengths_S, axis=0)
        if pool == "weightedmean":
            vectors = vectors[:, :-1] / vectors[:, -1:]
        elif pool == "mean_sqrt_len_tokens":
            vectors = vectors * lengths_S.sqrt()[:, None]
    return vectors.masked_fill((starts.diff() == 0)[:, None], 0.0)


def normalized(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Scale vectors to length 1."""
    scaled: NDArray[np.float32] = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return scaled


def check_pool(pool: str, known: Sequence[str]) -> None:
    """Refuse a way of pooling that a model does not have."""
    if pool not in known:
        raise UserError(f"pooling {str(pool)[:40]!r} is not known; choose {', '.join(known)}")


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
        told = "%s: %s of %s texts are empty (numbers %s); their results mean nothing"
        if len(empty) == 1:
            told = "%s: %s of %s texts is empty (number %s); its result means nothing"
        _log.warning(told, method, f"{len(empty):,}", f"{len(given):,}", numbers)
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


def check_layers(layers: Layers, num_layers: int) -> list[int]:
    """Return layers counted from 0, the embeddings; -1 is the last, and a number by itself one layer."""
    if isinstance(layers, str) and layers == "all":  # an array of numbers would be compared one by one
        return list(range(num_layers + 1))
    given = list(layers) if isinstance(layers, Iterable) else [layers]
    if not all(isinstance(layer, SupportsIndex) for layer in given):
        raise UserError(f"layers {layers!r:.40} are not numbers; such as [-1, -2], or 'all'")
    chosen = [layer if layer >= 0 else num_layers + 1 + layer for layer in given]
    if not chosen or not all(0 <= layer <= num_layers for layer in chosen):
        raise UserError(f"layers {given} are not in a model of {num_layers}; 0 to {num_layers}, or -1 back")
    return chosen
