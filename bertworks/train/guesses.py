"""Samples of a network's predictions on held-out documents, which `report/samples.py` shows.

A BERT predicts the masked pieces of a few pairs, masked as in training, and whether the second text follows the
first. A model of one direction predicts some of the pieces that it comes to. All of it is computed in fp32.

T tokens, D width, M predicted pieces, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from bertworks.data.loader import Loader, Packed, shape_for, special_ids
from bertworks.data.settings import DataSettings
from bertworks.data.shards import SPLITS, Dataset
from bertworks.nn.bert import Bert
from bertworks.nn.gpt import Gpt
from bertworks.report.samples import Blank, Guess, Sample, Samples, Span
from bertworks.text.gpt import END_OF_WORD
from bertworks.text.kinds import AnyTokenizer
from bertworks.text.vocabulary import CONTINUATION
from bertworks.train.objectives import TrainBatch, to_device

_COUNTED = ("documents", "sentences", "tokens")
_NUM_TEXTS = 6
_LONGEST = 128  # of a text, in pieces: it is to be read
_MOST_ASKED = 8  # of a text, where every piece could be predicted
_NUM_GUESSES = 5
_SEED = 1


class _Asked(NamedTuple):
    """The instances of a batch and the positions to predict, which count over the whole batch."""

    packed: Packed
    true_ids: NDArray[np.int32]  # [T]: with what stood at the masks
    places: NDArray[np.int64]  # [M], ascending
    rows: NDArray[np.int64]  # [M]: of the token that the model answers from


def take_samples(
    net: nn.Module, dataset: Dataset, settings: DataSettings, held_out: Iterable[TrainBatch] = ()
) -> Samples:
    """Sample a network's predictions on held-out documents.

    Args:
        net: a Bert or a Gpt, whole on one device; others are not used.
        dataset: what it was trained on.
        settings: how instances are made.
        held_out: the batches of its evaluation, whose kinds of pairs are counted.
    """
    counts = {split: {name: dataset.manifest[split][name] for name in _COUNTED} for split in SPLITS}
    can_be_asked = isinstance(net, Bert | Gpt) and counts["holdout"]["tokens"]
    return Samples(
        data=dataset.folder.absolute().name,
        vocab_size=dataset.vocab_size,
        counts=counts,
        next_majority=_next_majority(held_out) if settings.objective == "mlm+nsp" else None,
        samples=_ask(net, dataset, settings) if can_be_asked else [],
    )


def _next_majority(batches: Iterable[TrainBatch]) -> float | None:
    """Return the share of the more frequent kind of pair: how often one is right who always says the same."""
    total = random = 0.0
    for batch in batches:
        total += float(batch.next_weights.sum())
        random += float((batch.next_weights * batch.next_labels).sum())
    return max(random, total - random) / total if total else None


@torch.no_grad()
def _ask(net: Any, dataset: Dataset, settings: DataSettings) -> list[Sample]:
    settings = settings.model_copy(update={"max_length": min(settings.max_length, _LONGEST)})
    loader = Loader(dataset, settings, shape_for(settings, sequences=_NUM_TEXTS), seed=_SEED, split="holdout")
    (packed,), _ = next(loader.batches())
    asked = _masked(packed) if settings.objective.startswith("mlm") else _spread(packed, settings.objective)
    batch = to_device(packed, next(net.parameters()).device, settings.max_length, flash=False)
    was_training = net.training
    net.eval()
    hidden_TD = net(batch.tokens)
    guesses = _guesses(net, hidden_TD[torch.from_numpy(asked.rows).to(hidden_TD.device)], dataset)
    follows = _follows(net, hidden_TD, batch) if settings.objective == "mlm+nsp" else None
    net.train(was_training)
    return [_sample(asked, number, guesses, follows, dataset) for number in range(_num_instances(packed))]


def _num_instances(packed: Packed) -> int:
    return int(np.count_nonzero(np.diff(packed.cumulative_lengths[: len(packed.next_labels) + 1])))


def _masked(packed: Packed) -> _Asked:
    """Ask for what was masked, from the same token."""
    is_there = packed.masked_weights > 0
    places = packed.masked_positions[is_there].astype(np.int64)
    true_ids = packed.token_ids.copy()
    true_ids[places] = packed.masked_ids[is_there]
    places = np.sort(places)
    return _Asked(packed, true_ids, places, places)


def _spread(packed: Packed, objective: str) -> _Asked:
    """Ask for some pieces, from the token that comes to them."""
    back = -1 if objective == "ltr" else 1
    places: list[int] = []
    for number in range(_num_instances(packed)):
        # Not the two at either end: the first has nobody to be guessed from, the last is [SEP] where there are such.
        first, last = int(packed.cumulative_lengths[number]) + 2, int(packed.cumulative_lengths[number + 1]) - 2
        if first <= last:
            places += sorted({*np.linspace(first, last, _MOST_ASKED).astype(int).tolist()})
    asked = np.array(places, np.int64)
    return _Asked(packed, packed.token_ids, asked, asked + back)


def _guesses(net: Any, rows_MD: Tensor, dataset: Dataset) -> list[list[Guess]]:
    if isinstance(net, Gpt):
        logits_MV = net.lm_logits(rows_MD)
    else:
        logits_MV = net.heads["mlm"](rows_MD, net.embeddings.token.weight)
    shares, ids = logits_MV.float().softmax(-1)[:, : dataset.vocab_size].topk(min(_NUM_GUESSES, dataset.vocab_size))
    pieces = dataset.tokenizer.pieces
    return [
        [Guess(piece=pieces[id], probability=round(share, 6)) for id, share in zip(some, their_shares, strict=True)]
        for some, their_shares in zip(ids.tolist(), shares.tolist(), strict=True)
    ]


def _follows(net: Any, hidden_TD: Tensor, batch: TrainBatch) -> list[float]:
    pooled_SD = net.pooled(hidden_TD, batch.tokens.packing, len(batch.next_labels))
    return net.heads["nsp"](pooled_SD).float().softmax(-1)[:, 0].tolist()


def _sample(
    asked: _Asked, number: int, guesses: Sequence[list[Guess]], follows: list[float] | None, dataset: Dataset
) -> Sample:
    packed, pieces = asked.packed, dataset.tokenizer.pieces
    first, end = (int(packed.cumulative_lengths[number + more]) for more in (0, 1))
    own = [index for index, place in enumerate(asked.places) if first <= place < end]
    blanks = [
        Blank(
            piece=pieces[asked.true_ids[asked.places[index]]],
            seen=pieces[packed.token_ids[asked.places[index]]] if asked.rows[index] == asked.places[index] else None,
            guesses=guesses[index],
        )
        for index in own
    ]
    numbers = {int(asked.places[index]): blank for blank, index in enumerate(own)}
    return Sample(
        texts=[_spans(asked, places, numbers, dataset) for places in _texts(asked, first, end, dataset)],
        blanks=blanks,
        follows=None if follows is None else not packed.next_labels[number],
        follows_probability=None if follows is None else round(follows[number], 6),
    )


def _texts(asked: _Asked, first: int, end: int, dataset: Dataset) -> list[list[int]]:
    """Return the places of each text of an instance, without the special tokens around them."""
    special = special_ids(dataset.tokenizer)
    around = {special.cls, special.sep}
    found: dict[int, list[int]] = {}
    for place in range(first, end):
        if asked.true_ids[place] not in around:
            found.setdefault(int(asked.packed.segment_ids[place]), []).append(place)
    return list(found.values())


def _spans(asked: _Asked, places: Sequence[int], numbers: dict[int, int], dataset: Dataset) -> list[Span]:
    text, in_text = decoded_places(dataset.tokenizer, [int(asked.true_ids[place]) for place in places])
    spans, done = [], 0
    for place, (start, end) in zip(places, in_text, strict=True):
        if place in numbers:
            spans += [Span(text=text[done:start])] if start > done else []
            spans.append(Span(text=text[start:end], blank=numbers[place]))
            done = end
    return [*spans, Span(text=text[done:])] if done < len(text) else spans


def decoded_places(tokenizer: AnyTokenizer, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text for ids, none of them special, and the start and end of each piece in it.

    The text is what `decode` gives. Where that has put together letters of two pieces (the parts of a Hangul syllable,
    if accents were stripped) it is plainer: pieces joined to words, and words with spaces between them.
    """
    pieces = [tokenizer.pieces[id] for id in ids]
    is_gpt = tokenizer.kind == "gpt-bpe"
    letters = [_letters(piece, is_gpt) for piece in pieces]
    text = tokenizer.decode(ids)
    places = _found(text, pieces, letters)
    if places is None:
        text = _plain(pieces, letters, is_gpt)
        places = _found(text, pieces, letters)
    assert places is not None, "a plain text has every piece as it is"
    return text, places


def _letters(piece: str, is_gpt: bool) -> str:
    """Return a piece without the mark of its place in a word."""
    return piece.removesuffix(END_OF_WORD) if is_gpt else piece.removeprefix(CONTINUATION) or piece


def _found(text: str, pieces: Sequence[str], letters: Sequence[str]) -> list[tuple[int, int]] | None:
    places, at = [], 0
    for both in zip(pieces, letters, strict=True):
        while text.startswith(" ", at):
            at += 1
        # With its mark where the text begins inside a word.
        shown = next((form for form in both if text.startswith(form, at)), None)
        if shown is None:
            return None
        places.append((at, at + len(shown)))
        at += len(shown)
    return places


def _plain(pieces: Sequence[str], letters: Sequence[str], is_gpt: bool) -> str:
    parts: list[str] = []
    for number, (piece, some) in enumerate(zip(pieces, letters, strict=True)):
        begins = pieces[number - 1].endswith(END_OF_WORD) if is_gpt else not piece.startswith(CONTINUATION)
        parts += [" ", some] if begins and number else [some]
    return "".join(parts)
