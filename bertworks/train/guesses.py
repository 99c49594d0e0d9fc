"""Samples of a network's predictions on held-out documents, which `report/samples.py` shows.

A BERT predicts the masked pieces of a few pairs, masked as in training, and whether the second text follows the
first. A model of one direction predicts some of the pieces as it reads. Everything is computed in fp32.

T tokens, D width, M predicted pieces, V vocabulary.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from bertworks.config import DataSettings
from bertworks.data.loader import Loader, Packed, shape_for, special_ids
from bertworks.data.shards import SPLITS, Dataset
from bertworks.nn.bert import Bert
from bertworks.nn.gpt import Gpt
from bertworks.report.page import Blank, Guess, Sample, Samples, Span
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
    next_majority = None
    if settings.objective == "mlm+nsp":  # the score of always answering with the more frequent kind of pair
        total = random = 0.0
        for batch in held_out:
            total += float(batch.next_weights.sum())
            random += float((batch.next_weights * batch.next_labels).sum())
        next_majority = max(random, total - random) / total if total else None
    return Samples(
        data=dataset.folder.absolute().name,
        vocab_size=dataset.vocab_size,
        counts=counts,
        next_majority=next_majority,
        samples=predictions_of(net, dataset, settings) if can_be_asked else [],
    )


@torch.no_grad()
def predictions_of(net: Any, dataset: Dataset, settings: DataSettings) -> list[Sample]:
    """Have a network predict pieces of some held-out texts; positions count over the whole batch."""
    settings = settings.model_copy(update={"max_length": min(settings.max_length, _LONGEST)})
    loader = Loader(dataset, settings, shape_for(settings, sequences=_NUM_TEXTS), seed=_SEED, split="holdout")
    (packed,), _ = next(loader.batches())
    num_instances = int(np.count_nonzero(np.diff(packed.cumulative_lengths[: len(packed.next_labels) + 1])))
    true_ids = packed.token_ids.copy()
    if settings.objective.startswith("mlm"):  # masked pieces, each predicted at its own position
        is_there = packed.masked_weights > 0
        positions = packed.masked_positions[is_there].astype(np.int64)
        true_ids[positions] = packed.masked_ids[is_there]
        positions = rows = np.sort(positions)
    else:  # some pieces, each predicted at the token read before it
        some: list[int] = []
        for number in range(num_instances):
            # Without the two at either end: nothing is read before the first, and the last is [SEP] where there is one.
            first, last = int(packed.cumulative_lengths[number]) + 2, int(packed.cumulative_lengths[number + 1]) - 2
            if first <= last:
                some += sorted({*np.linspace(first, last, _MOST_ASKED).astype(int).tolist()})
        positions = np.array(some, np.int64)
        rows = positions + (-1 if settings.objective == "ltr" else 1)

    batch = to_device(packed, next(net.parameters()).device, settings.max_length, flash=False)
    was_training = net.training
    net.eval()
    hidden_TD = net(batch.tokens)
    rows_MD = hidden_TD[torch.from_numpy(rows).to(hidden_TD.device)]
    if isinstance(net, Gpt):
        logits_MV = net.lm_logits(rows_MD)
    else:
        logits_MV = net.heads["mlm"](rows_MD, net.embeddings.token.weight)
    shares, ids = logits_MV.float().softmax(-1)[:, : dataset.vocab_size].topk(min(_NUM_GUESSES, dataset.vocab_size))
    follows: list[float] | None = None
    if settings.objective == "mlm+nsp":
        pooled_SD = net.pooled(hidden_TD, batch.tokens.packing, len(batch.next_labels))
        follows = net.heads["nsp"](pooled_SD).float().softmax(-1)[:, 0].tolist()
    net.train(was_training)

    pieces, blanks = dataset.tokenizer.pieces, {}
    for position, row, best, best_shares in zip(
        positions.tolist(), rows.tolist(), ids.tolist(), shares.tolist(), strict=True
    ):
        blanks[position] = Blank(
            piece=pieces[true_ids[position]],
            seen=pieces[packed.token_ids[position]] if row == position else None,
            guesses=[
                Guess(piece=pieces[id], probability=round(share, 6))
                for id, share in zip(best, best_shares, strict=True)
            ],
        )
    samples = []
    for number in range(num_instances):
        first, end = (int(packed.cumulative_lengths[number + more]) for more in (0, 1))
        own = {position: blank for position, blank in blanks.items() if first <= position < end}
        samples.append(
            Sample(
                texts=spans_of(packed, true_ids, range(first, end), list(own), dataset),
                blanks=list(own.values()),
                follows=None if follows is None else not packed.next_labels[number],
                follows_probability=None if follows is None else round(follows[number], 6),
            )
        )
    return samples


def spans_of(
    packed: Packed, true_ids: NDArray[np.int32], positions: Iterable[int], predicted: Sequence[int], dataset: Dataset
) -> list[list[Span]]:
    """Return each text of an instance, without the special tokens around it, cut where a piece was to be predicted."""
    special = special_ids(dataset.tokenizer)
    texts: dict[int, list[int]] = {}
    for position in positions:
        if true_ids[position] not in (special.cls, special.sep):
            texts.setdefault(int(packed.segment_ids[position]), []).append(position)
    found = []
    for own in texts.values():
        text, in_text = decoded_positions(dataset.tokenizer, [int(true_ids[position]) for position in own])
        spans, done = [], 0
        for position, (start, end) in zip(own, in_text, strict=True):
            if position in predicted:
                spans += [Span(text=text[done:start])] if start > done else []
                spans.append(Span(text=text[start:end], blank=predicted.index(position)))
                done = end
        found.append([*spans, Span(text=text[done:])] if done < len(text) else spans)
    return found


def decoded_positions(tokenizer: AnyTokenizer, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text for ids, none of them special, and the start and end of each piece in it.

    The text is what `decode` gives. Where that joins letters of two pieces into one (the parts of a Hangul syllable, if
    accents were stripped), it is plainer: pieces joined to words, and words separated by spaces.
    """
    pieces = [tokenizer.pieces[id] for id in ids]
    is_gpt = tokenizer.kind == "gpt-bpe"
    # Without the mark of a piece's position in a word.
    letters = [
        piece.removesuffix(END_OF_WORD) if is_gpt else piece.removeprefix(CONTINUATION) or piece for piece in pieces
    ]
    text = tokenizer.decode(ids)
    positions = piece_positions(text, pieces, letters)
    if positions is None:
        begins = [
            pieces[number - 1].endswith(END_OF_WORD) if is_gpt else not piece.startswith(CONTINUATION)
            for number, piece in enumerate(pieces)
        ]
        text = "".join(
            f" {some}" if is_begin and number else some
            for number, (some, is_begin) in enumerate(zip(letters, begins, strict=True))
        )
        positions = piece_positions(text, pieces, letters)
    assert positions is not None, "a plain text has every piece as it is"
    return text, positions


def piece_positions(text: str, pieces: Sequence[str], letters: Sequence[str]) -> list[tuple[int, int]] | None:
    """Return where each piece stands in a text, with or without its mark; None if one does not stand there."""
    positions, at = [], 0
    for both in zip(pieces, letters, strict=True):
        while text.startswith(" ", at):
            at += 1
        # With its mark where the text begins inside a word.
        shown = next((form for form in both if text.startswith(form, at)), None)
        if shown is None:
            return None
        positions.append((at, at + len(shown)))
        at += len(shown)
    return positions
