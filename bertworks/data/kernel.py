"""The compiled part of the loader: randomness, pairs, masks and packing. Results depend only on arguments.

Random numbers are hashes of a key and a counter, so the same numbers can be drawn again without any stored state: a
document's pairs depend on (seed, epoch, document), and an instance's mask also on its index within the document.

Pairs are made as in google-research/bert's create_pretraining_data.py:

- **Chunks.** Whole sentences of a document are collected until they reach the target length, which is normally the
  longest possible. Short sequences would be a poor use of computation: the original pads all of them to one length.
- **Short sequences.** Inputs in fine-tuning are often shorter, such as single sentences. So that pre-training covers
  them too, a document gets, with probability 0.1 (`short_seq_prob`), a random shorter target length.
- **A and B.** A chunk is cut into A and B between two of its sentences. A cut inside a sentence would make the task too
  easy: a broken sentence that continues in B gives the answer away. The position of the cut is random, so A and B vary
  in length and number of sentences.
- **Random next.** With probability 0.5, B is the rest of the chunk, which really follows A. Otherwise B comes from
  another document, starting at a random sentence. With as many positive as negative examples, a constant answer is
  right only half of the time. B must be from another document, because text of the same one might really follow A.
- **Unused sentences.** If B is random, the rest of the chunk after A was not used. These sentences are put back and
  begin the next chunk. Otherwise an epoch would miss a large part of the text.
- **Truncation.** Chunks end at the end of a sentence, so a pair may be too long. Then tokens are removed one by one
  from the longer part, each from its start or its end at random. If they were always removed from one side, the model
  would rarely see that side of long sentences.

Three things differ: a random B never comes from the same document (the original tries ten times and then accepts it);
random numbers are hashes; and every epoch makes new pairs, whereas the original stores ten copies of the text with
different pairs and masks (`dupe_factor`).

A planned instance is two ranges of tokens. Tokens are copied only once, from the shard into the batch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numba.typed import List

from bertworks.text.fast import compiled, inlined

# The columns of a planned instance: the ranges of A and B, whether B is random, and the key of its mask.
A_START, A_LENGTH, B_SHARD, B_START, B_LENGTH, IS_RANDOM, MASK_KEY = range(7)
NUM_COLUMNS = 7

_STEP = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_S1, _S11, _S27, _S30, _S31, _S32 = (np.uint64(shift) for shift in (1, 11, 27, 30, 31, 32))
_TO_UNIT = 1.0 / (1 << 53)


@inlined
def _mixed(value: Any) -> Any:
    value = (value ^ (value >> _S30)) * _MIX_1
    value = (value ^ (value >> _S27)) * _MIX_2
    return value ^ (value >> _S31)


@compiled
def derive_key(key: Any, part: Any) -> Any:
    """Return the key of a part, such as an epoch or a document, from the key of the whole; 63 bits, so a plain int."""
    return np.int64(_mixed(np.uint64(key) ^ _mixed(np.uint64(part) + _STEP)) >> _S1)


@inlined
def _draw(key: Any, counter: int) -> Any:
    return _mixed(np.uint64(key) + np.uint64(counter + 1) * _STEP)


@inlined
def _uniform(key: Any, counter: int) -> float:
    return float(_draw(key, counter) >> _S11) * _TO_UNIT


@inlined
def _below(key: Any, counter: int, limit: int) -> Any:
    """Draw an integer from 0 to limit - 1; the limit must be below 2**32."""
    return np.int64(((_draw(key, counter) >> _S32) * np.uint64(limit)) >> _S32)


@compiled
def order_keys(key: Any, count: int) -> Any:
    """Return a random number for each of `count` items; sorting by them gives a random order."""
    numbers = np.empty(count, np.uint64)
    for index in range(count):
        numbers[index] = _draw(key, index)
    return numbers


@compiled
def _list_of_one(array: Any) -> Any:
    arrays = List()
    arrays.append(array)
    return arrays


@compiled
def _append(arrays: Any, array: Any) -> None:
    arrays.append(array)


def list_of(arrays: Sequence[Any]) -> Any:
    """Return a list of arrays for compiled code; building it from Python would take a second to compile each time."""
    found = _list_of_one(arrays[0])
    for array in arrays[1:]:
        _append(found, array)
    return found


@compiled
def plan_pairs(
    shard: int, shard_sentences: Any, shard_documents: Any, document_ends: Any, epoch_key: Any, max_tokens: int,
    short_rate: float,
) -> Any:  # fmt: skip
    """Plan the sentence pairs of a shard's documents.

    Args:
        shard: the shard's number.
        shard_sentences: the sentence offsets of every shard.
        shard_documents: the document offsets of every shard.
        document_ends: for each shard, the number of documents up to its end, so that documents are numbered across
            shards.
        epoch_key: the key of the epoch.
        max_tokens: the most tokens of A and B together.
        short_rate: the share of documents with a random shorter target length.
    """
    sentences, documents = shard_sentences[shard], shard_documents[shard]
    first_document = document_ends[shard - 1] if shard else 0
    plan = np.empty((len(sentences) - 1, NUM_COLUMNS), np.int64)
    count = 0
    for document in range(len(documents) - 1):
        key = derive_key(epoch_key, first_document + document)
        target = max_tokens if _uniform(key, 0) >= short_rate else 2 + _below(key, 1, max_tokens - 1)
        draws, first_row = 2, count
        start, document_end = np.int64(documents[document]), np.int64(documents[document + 1])
        while start < document_end:
            end = _chunk_end(sentences, start, document_end, target)
            # A gets at least one sentence, and in a chunk of several sentences so does B. A chunk of one sentence has
            # no rest that could follow A, so its B is always random.
            middle = start + 1 + (_below(key, draws, end - start - 1) if end - start > 1 else 0)
            is_random = end - start == 1 or _uniform(key, draws + 1) < 0.5
            a_start, a_end = np.int64(sentences[start]), np.int64(sentences[middle])
            b_shard, b_start, b_end = shard, a_end, np.int64(sentences[end])
            if is_random:
                b_shard, b_start, b_end = _random_next(
                    shard_sentences, shard_documents, document_ends, first_document + document, key, draws + 2,
                    target - (a_end - a_start),
                )  # fmt: skip
                end = middle  # the sentences after A are unused: the next chunk begins with them
            draws += 4
            a_start, a_end, b_start, b_end, draws = _truncate(a_start, a_end, b_start, b_end, max_tokens, key, draws)
            plan[count, A_START], plan[count, A_LENGTH] = a_start, a_end - a_start
            plan[count, B_SHARD], plan[count, B_START], plan[count, B_LENGTH] = b_shard, b_start, b_end - b_start
            plan[count, IS_RANDOM] = is_random
            plan[count, MASK_KEY] = np.int64(_draw(key, -2 - (count - first_row)))
            count += 1
            start = end
    return plan[:count].copy()


@inlined
def _chunk_end(sentences: Any, start: int, document_end: int, target: int) -> int:
    """Return the end of the shortest run of sentences from `start` with the target length, or the document's end."""
    end = start + 1
    while end < document_end and np.int64(sentences[end]) - np.int64(sentences[start]) < target:
        end += 1
    return end


@inlined
def _random_next(
    shard_sentences: Any, shard_documents: Any, document_ends: Any, not_document: int, key: Any, draw: int, wanted: int
) -> Any:
    """Return (shard, start, end) of sentences of another document: from a random sentence on, of the wanted length.

    The other shard may not have been checked yet, so offsets outside it raise an IndexError.
    """
    document = _below(key, draw, document_ends[-1] - 1)
    document += document >= not_document
    shard = np.searchsorted(document_ends, document, side="right")
    document -= document_ends[shard - 1] if shard else 0
    sentences, documents = shard_sentences[shard], shard_documents[shard]
    first, document_end = np.int64(documents[document]), np.int64(documents[document + 1])
    if not 0 <= first < document_end < len(sentences):
        raise IndexError("document offsets")
    sentence = first + _below(key, draw + 1, document_end - first)
    start, end = np.int64(sentences[sentence]), _chunk_end(sentences, sentence, document_end, wanted)
    if not 0 <= start < np.int64(sentences[end]) <= np.int64(sentences[-1]):
        raise IndexError("sentence offsets")
    return shard, start, np.int64(sentences[end])


@inlined
def _truncate(a_start: int, a_end: int, b_start: int, b_end: int, most: int, key: Any, draws: int) -> Any:
    """Remove tokens from the longer part, each from its start or its end at random, until both fit."""
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
    """Cut every document into spans of `max_tokens`; the first one has a random length, so cuts differ by epoch."""
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
        first_row = count
        while start < end:
            plan[count, A_START], plan[count, A_LENGTH] = start, span_end - start
            plan[count, B_SHARD] = shard
            plan[count, MASK_KEY] = np.int64(_draw(key, -2 - (count - first_row)))
            count += 1
            start = span_end
            span_end = min(start + max_tokens, end)
    return plan[:count].copy()


@inlined
def _num_to_predict(length: int, rate: float, most: int) -> Any:
    return min(most, max(1, np.int64(np.rint(length * rate)))) if rate > 0 else 0


@compiled
def count_fitting(
    plan: Any, order: Any, first: int, num_special: int, max_sequences: int, max_tokens: int, max_masked: int,
    rate: float, max_predictions: int,
) -> int:  # fmt: skip
    """Return how many instances, in order from `first`, fit into one batch."""
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
) -> None:  # fmt: skip
    """Copy the instances that `order` names into a batch and mask them.

    Args:
        plan: planned instances.
        order: the indices of those to copy.
        tokens: the tokens of the plan's shard.
        shard_tokens: the tokens of every shard, for random B.
        special: the ids of special tokens, see `loader.Special`.
        masking: what to mask, see `loader.Masking`.
        continues: for each id, whether the piece continues a word.
        has_pairs: whether instances have a B.
        packed: the arrays to fill, see `loader.Packed`.
    """
    (ids, segments, positions, starts, masked_positions, masked_ids, masked_weights, labels, label_weights) = packed
    groups, chosen = np.empty(len(ids), np.int32), np.empty(len(ids), np.uint8)
    position, num_masked = 0, 0
    for sequence in range(len(order)):
        row = plan[order[sequence]]
        first = position
        starts[sequence] = first
        if special.cls >= 0:
            ids[first], segments[first] = special.cls, 0
            position += 1
        position = _copy(
            tokens, row[A_START], row[A_LENGTH], 0, special.sep, masking.vocab_size, ids, segments, position
        )
        if has_pairs:
            source = shard_tokens[row[B_SHARD]] if row[IS_RANDOM] else tokens
            position = _copy(
                source, row[B_START], row[B_LENGTH], 1, special.sep, masking.vocab_size, ids, segments, position
            )
        labels[sequence], label_weights[sequence] = row[IS_RANDOM], has_pairs
        for index in range(first, position):
            positions[index] = index - first
        if masking.rate > 0:
            num_a, num_pieces = row[A_LENGTH], row[A_LENGTH] + row[B_LENGTH]
            wanted = _num_to_predict(position - first, masking.rate, masking.max_predictions)
            draws = _choose(ids[first + 1 : position], num_a, num_pieces, wanted, row[MASK_KEY], masking.whole_word,
                            continues, groups, chosen)  # fmt: skip
            for piece in range(num_pieces):
                if chosen[piece]:
                    index = first + 1 + piece + (piece >= num_a)
                    masked_positions[num_masked] = index
                    masked_ids[num_masked], masked_weights[num_masked] = ids[index], 1.0
                    num_masked += 1
                    ids[index] = _replaced(ids[index], row[MASK_KEY], draws, masking, special.mask)
                    draws += 2
    _pad_tail(packed, len(order), position, num_masked, special.pad)


@inlined
def _copy(source: Any, start: int, length: int, segment: int, sep_id: int, vocab_size: int, ids: Any, segments: Any,
          position: int) -> int:  # fmt: skip
    """Copy a part, and the separator, if there is one, after it; an id outside the vocabulary raises an IndexError."""
    largest = np.int64(0)
    for index in range(length):
        id = np.int64(source[start + index])
        largest = max(largest, id)
        ids[position + index], segments[position + index] = id, segment
    if largest >= vocab_size:
        raise IndexError("token ids")
    if sep_id < 0:
        return position + length
    ids[position + length], segments[position + length] = sep_id, segment
    return position + length + 1


@inlined
def _choose(
    ids: Any, num_a: int, num_pieces: int, wanted: int, key: Any, whole_word: bool, continues: Any, groups: Any,
    chosen: Any,
) -> int:  # fmt: skip
    """Choose the pieces of A and B to predict, as the original does; returns the number of draws.

    Pieces are counted over A and B without the separator between them (at `num_a`). So a piece that continues a word
    belongs to the group before it even at the start of B, as in the original. `groups` has the start of each group.
    """
    num_groups = 0
    for piece in range(num_pieces):
        chosen[piece] = 0
        if not whole_word or num_groups == 0 or not continues[ids[piece + (piece >= num_a)]]:
            groups[num_groups] = piece
            num_groups += 1
    draws = taken = 0
    while draws < num_groups and taken < wanted:
        pick = _below(key, draws, num_groups - draws)
        draws += 1
        group, size = groups[pick], 1
        groups[pick] = groups[num_groups - draws]
        if whole_word:
            while group + size < num_pieces and continues[ids[group + size + (group + size >= num_a)]]:
                size += 1
        if taken + size <= wanted:
            chosen[group : group + size] = 1
            taken += size
    return draws


@inlined
def _replaced(id: int, key: Any, draw: int, masking: Any, mask_id: int) -> Any:
    """Return what a chosen piece becomes: [MASK], a random piece of the vocabulary, or itself."""
    fate = _uniform(key, draw)
    if fate < masking.mask_share:
        return np.int64(mask_id)
    if fate < masking.mask_share + masking.random_share:
        return _below(key, draw + 1, masking.vocab_size)
    return np.int64(id)


@inlined
def _pad_tail(packed: Any, num_sequences: int, position: int, num_masked: int, pad_id: int) -> None:
    """Turn the unused rest into padding: masks and labels with weight 0, and separate sequences of padding tokens."""
    (ids, segments, positions, starts, masked_positions, masked_ids, masked_weights, labels, label_weights) = packed
    starts[num_sequences : len(labels) + 1] = position
    num_tails = len(starts) - len(labels) - 1
    most = (len(ids) + num_tails - 1) // num_tails
    for tail in range(num_tails):
        starts[len(labels) + 1 + tail] = min(position + (tail + 1) * most, len(ids))
    ids[position:] = pad_id
    segments[position:] = 0
    positions[position:] = 0
    masked_positions[num_masked:] = 0
    masked_ids[num_masked:] = 0
    masked_weights[num_masked:] = 0.0
    labels[num_sequences:] = 0
    label_weights[num_sequences:] = 0.0
