"""The compiled part of loading: randomness, pairs, masks and packing. Everything here is a function of its arguments.

Randomness is a hash of a key and a counter, so nothing has to be remembered to draw the same numbers again: a
document's pairs depend on (seed, epoch, document), an instance's mask on its place among them.

Pairs are those of google-research/bert's create_pretraining_data.py. An instance is two ranges of tokens, so planning
one copies nothing: the tokens are copied once, into the batch they belong to.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bertworks.text.kernel import compiled, inlined

# The columns of a planned instance: where A and B lie, whether B is random, and the key of its mask.
A_START, A_LENGTH, B_SHARD, B_START, B_LENGTH, IS_RANDOM, MASK_KEY = range(7)
NUM_COLUMNS = 7

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S1, _S11, _S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (1, 11, 27, 30, 31, 32))
_TO_UNIT = 1.0 / (1 << 53)


class Special(NamedTuple):
    """The ids that instances are built with."""

    cls: int
    sep: int
    mask: int
    pad: int


class Masking(NamedTuple):
    """How tokens are chosen and what they become; SAME is what MASK and RANDOM leave."""

    rate: float
    mask_share: float
    random_share: float
    whole_word: bool
    max_predictions: int
    vocab_size: int


@inlined
def _mixed(value: Any) -> Any:
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@compiled
def derive_key(key: Any, part: Any) -> Any:
    """Return the key of a part (an epoch, a document) of what a key stands for; 63 bits, to pass as a plain int."""
    return np.int64(_mixed(np.uint64(key) ^ _mixed(np.uint64(part) + _STEP)) >> _S1)


@inlined
def _draw(key: Any, counter: int) -> Any:
    return _mixed(np.uint64(key) + np.uint64(counter + 1) * _STEP)


@inlined
def _uniform(key: Any, counter: int) -> float:
    return float(_draw(key, counter) >> _S11) * _TO_UNIT


@inlined
def _below(key: Any, counter: int, limit: int) -> Any:
    """Draw a whole number from 0 up to but not including a limit below 2**32."""
    return np.int64(((_draw(key, counter) >> _S32) * np.uint64(limit)) >> _S32)


@compiled
def order_keys(key: Any, count: int) -> Any:
    """Return a number for each of `count` things; sorted by them, the things are in random order."""
    numbers = np.empty(count, np.uint64)
    for index in range(count):
        numbers[index] = _draw(key, index)
    return numbers


@compiled
def plan_pairs(
    shard: int, shard_sentences: Any, shard_documents: Any, document_ends: Any, epoch_key: Any, max_tokens: int,
    short_rate: float,
) -> Any:  # fmt: skip
    """Plan the sentence pairs of a shard's documents.

    Args:
        shard: its number; its documents are numbered on from the documents of the shards before it.
        shard_sentences: the sentence offsets of every shard.
        shard_documents: the document offsets of every shard.
        document_ends: the number of documents up to and with each shard.
        epoch_key: the key of the epoch.
        max_tokens: the most tokens of A and B together.
        short_rate: the share of documents with a shorter target length, to be used to short sequences.
    """
    sentences, documents = shard_sentences[shard], shard_documents[shard]
    first_document = document_ends[shard - 1] if shard else 0
    num_documents = document_ends[-1]
    plan = np.empty((len(sentences) - 1, NUM_COLUMNS), np.int64)
    count = 0
    for document in range(len(documents) - 1):
        key = derive_key(epoch_key, first_document + document)
        draws, instance = 2, 0
        target = max_tokens
        if _uniform(key, 0) < short_rate:
            target = 2 + _below(key, 1, max_tokens - 1)
        first, end = np.int64(documents[document]), np.int64(documents[document + 1])
        start = last = first
        while last < end:
            length = np.int64(sentences[last + 1]) - np.int64(sentences[start])
            if last < end - 1 and length < target:
                last += 1
                continue
            num_segments = last + 1 - start
            num_first = 1
            if num_segments >= 2:
                num_first = 1 + _below(key, draws, num_segments - 1)
            a_start, a_end = np.int64(sentences[start]), np.int64(sentences[start + num_first])
            is_random = num_segments == 1 or _uniform(key, draws + 1) < 0.5
            b_shard, b_start, b_end = shard, a_end, np.int64(sentences[last + 1])
            if is_random:
                other = _below(key, draws + 2, num_documents - 1)
                if other >= first_document + document:
                    other += 1  # never the document itself
                b_shard = np.searchsorted(document_ends, other, side="right")
                other -= document_ends[b_shard - 1] if b_shard else 0
                b_start, b_end = _random_segment(
                    shard_sentences[b_shard], shard_documents[b_shard], other, key, draws + 3,
                    target - (a_end - a_start),
                )  # fmt: skip
                last = start + num_first - 1  # the segments that were not used are put back
            draws += 4
            a_start, a_end, b_start, b_end, draws = _truncate(a_start, a_end, b_start, b_end, max_tokens, key, draws)
            plan[count, A_START], plan[count, A_LENGTH] = a_start, a_end - a_start
            plan[count, B_SHARD], plan[count, B_START], plan[count, B_LENGTH] = b_shard, b_start, b_end - b_start
            plan[count, IS_RANDOM] = is_random
            plan[count, MASK_KEY] = np.int64(_draw(key, -2 - instance))
            count += 1
            instance += 1
            start = last = last + 1
    return plan[:count].copy()


@inlined
def _random_segment(sentences: Any, documents: Any, document: int, key: Any, draw: int, wanted: int) -> Any:
    """Return the range of whole sentences from a random one of a document on, until it has the wanted length."""
    first, end = np.int64(documents[document]), np.int64(documents[document + 1])
    sentence = first + _below(key, draw, end - first)
    start = np.int64(sentences[sentence])
    while sentence < end - 1 and np.int64(sentences[sentence + 1]) - start < wanted:
        sentence += 1
    return start, np.int64(sentences[sentence + 1])


@inlined
def _truncate(a_start: int, a_end: int, b_start: int, b_end: int, most: int, key: Any, draws: int) -> Any:
    """Take tokens off the longer part, each from its front or its back, until both fit."""
    while a_end - a_start + b_end - b_start > most:
        from_front = _uniform(key, draws) < 0.5
        draws += 1
        if a_end - a_start > b_end - b_start:
            if from_front:
                a_start += 1
            else:
                a_end -= 1
        elif from_front:
            b_start += 1
        else:
            b_end -= 1
    return a_start, a_end, b_start, b_end, draws


@compiled
def plan_spans(shard: int, sentences: Any, documents: Any, first_document: int, epoch_key: Any, max_tokens: int) -> Any:
    """Cut every document into spans of `max_tokens`; where the first one ends is random, so cuts differ by epoch."""
    num_rows = np.int64(0)
    for document in range(len(documents) - 1):
        length = np.int64(sentences[documents[document + 1]]) - np.int64(sentences[documents[document]])
        num_rows += length // max_tokens + 2
    plan = np.zeros((num_rows, NUM_COLUMNS), np.int64)
    count = 0
    for document in range(len(documents) - 1):
        key = derive_key(epoch_key, first_document + document)
        start, end = np.int64(sentences[documents[document]]), np.int64(sentences[documents[document + 1]])
        span_end = start + 1 + _below(key, 0, max_tokens) if end - start > max_tokens else end
        instance = 0
        while start < end:
            plan[count, A_START], plan[count, A_LENGTH] = start, span_end - start
            plan[count, B_SHARD] = shard
            plan[count, MASK_KEY] = np.int64(_draw(key, -2 - instance))
            count += 1
            instance += 1
            start = span_end
            span_end = min(start + max_tokens, end)
    return plan[:count].copy()


class Packed(NamedTuple):
    """The arrays of a batch of fixed shape, to be filled; what stays unused is padding with weight 0."""

    token_ids: NDArray[np.int32]  # [T]
    segment_ids: NDArray[np.int32]  # [T]
    position_ids: NDArray[np.int32]  # [T]
    cumulative_lengths: NDArray[np.int32]  # [S + 2]: where each sequence starts; the tail is a sequence of its own
    masked_positions: NDArray[np.int32]  # [M], into the tokens
    masked_ids: NDArray[np.int32]  # [M]: what stood there
    masked_weights: NDArray[np.float32]  # [M]
    next_labels: NDArray[np.int32]  # [S]: 0 = B follows A, 1 = B is random
    next_weights: NDArray[np.float32]  # [S]


@inlined
def _num_to_predict(length: int, rate: float, most: int) -> Any:
    return min(most, max(1, np.int64(np.rint(length * rate)))) if rate > 0 else 0


@compiled
def count_fitting(
    plan: Any, order: Any, first: int, num_special: int, max_sequences: int, max_tokens: int, max_masked: int,
    rate: float, max_predictions: int,
) -> int:  # fmt: skip
    """Return how many instances from `first` on fit into one batch, taken in order."""
    tokens = masked = count = 0
    while first + count < len(order) and count < max_sequences:
        row = order[first + count]
        length = plan[row, A_LENGTH] + plan[row, B_LENGTH] + num_special
        tokens += length
        masked += _num_to_predict(length, rate, max_predictions)
        if tokens > max_tokens or masked > max_masked:
            break
        count += 1
    return count


@compiled
def fill_batch(
    plan: Any, order: Any, tokens: Any, shard_tokens: Any, special: Any, masking: Any, continues: Any, has_pairs: bool,
    packed: Any,
) -> tuple[int, int]:  # fmt: skip
    """Copy the instances that `order` names into a batch and mask them; returns the tokens and masks used.

    Args:
        plan: planned instances.
        order: which of them to take.
        tokens: the tokens of the shard that the plan is of.
        shard_tokens: the tokens of every shard, for random B.
        special: a Special.
        masking: a Masking.
        continues: by id: whether the piece continues a word.
        has_pairs: whether instances have a B.
        packed: the arrays to fill.
    """
    (ids, segments, positions, starts, masked_positions, masked_ids, masked_weights, labels, label_weights) = packed
    groups = np.empty(len(ids) + 1, np.int32)  # of the instance under way: where each word that can be masked starts
    chosen = np.zeros(len(ids) + 1, np.uint8)
    place, num_masked = 0, 0
    for sequence in range(len(order)):
        row = plan[order[sequence]]
        first = place
        starts[sequence] = first
        ids[place], segments[place] = special.cls, 0
        place += 1
        for index in range(row[A_START], row[A_START] + row[A_LENGTH]):
            ids[place], segments[place] = tokens[index], 0
            place += 1
        ids[place], segments[place] = special.sep, 0
        place += 1
        if has_pairs:
            source = shard_tokens[row[B_SHARD]] if row[IS_RANDOM] else tokens
            for index in range(row[B_START], row[B_START] + row[B_LENGTH]):
                ids[place], segments[place] = source[index], 1
                place += 1
            ids[place], segments[place] = special.sep, 1
            place += 1
            labels[sequence], label_weights[sequence] = row[IS_RANDOM], 1.0
        for index in range(first, place):
            positions[index] = index - first
        if masking.rate > 0:
            separator = first + 1 + row[A_LENGTH]
            num_masked = _mask(ids, first, place, separator, row[MASK_KEY], masking, special.mask, continues,
                               groups, chosen, masked_positions, masked_ids, masked_weights, num_masked)  # fmt: skip
    _pad_tail(packed, len(order), place, num_masked, special.pad)
    return place, num_masked


@inlined
def _mask(ids: Any, first: int, end: int, separator: int, key: Any, masking: Any, mask_id: int, continues: Any,
          groups: Any, chosen: Any, masked_positions: Any, masked_ids: Any, masked_weights: Any,
          num_masked: int) -> int:  # fmt: skip
    """Mask one instance in place, as the original does; returns the number of masks in the batch."""
    wanted = _num_to_predict(end - first, masking.rate, masking.max_predictions)
    num_groups = 0
    for index in range(first + 1, end - 1):
        chosen[index - first] = 0
        if index == separator:
            continue
        # A piece that continues a word joins the group before it, even across the separator, as in the original.
        if not masking.whole_word or num_groups == 0 or not continues[ids[index]]:
            groups[num_groups] = index
            num_groups += 1
    groups[num_groups] = end - 1
    remaining, draws = num_groups, 0
    taken = 0
    while remaining > 0 and taken < wanted:
        pick = _below(key, draws, remaining)
        draws += 1
        remaining -= 1
        group = groups[pick]
        size = 1
        if masking.whole_word:
            while group + size < end - 1 and (group + size == separator or continues[ids[group + size]]):
                size += 1
            size -= group < separator < group + size
        if taken + size <= wanted:
            for offset in range(end - 1 - group):
                index = group + offset
                if size == 0:
                    break
                if index != separator:
                    chosen[index - first] = 1
                    size -= 1
                    taken += 1
        groups[pick] = groups[remaining]
    for index in range(first + 1, end - 1):
        if chosen[index - first]:
            masked_positions[num_masked] = index
            masked_ids[num_masked] = ids[index]
            masked_weights[num_masked] = 1.0
            num_masked += 1
            fate = _uniform(key, draws)
            if fate < masking.mask_share:
                ids[index] = mask_id
            elif fate < masking.mask_share + masking.random_share:
                ids[index] = _below(key, draws + 1, masking.vocab_size)
            draws += 2
    return num_masked


@inlined
def _pad_tail(packed: Any, num_sequences: int, place: int, num_masked: int, pad_id: int) -> None:
    """Make everything that was not filled padding: one dummy sequence at the end, masks and labels of weight 0."""
    (ids, segments, positions, starts, masked_positions, masked_ids, masked_weights, labels, label_weights) = packed
    starts[num_sequences] = place
    starts[num_sequences + 1 :] = len(ids)
    ids[place:] = pad_id
    segments[place:] = 0
    for index in range(place, len(ids)):
        positions[index] = 0
    masked_positions[num_masked:] = 0
    masked_ids[num_masked:] = 0
    masked_weights[num_masked:] = 0.0
    labels[num_sequences:] = 0
    label_weights[num_sequences:] = 0.0
