"""A network measured on the examples of a split: in batches of similar lengths, each text computed once."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from bertworks.nn.bert import Bert
from bertworks.nn.feature_reader import FeatureReader, reader_of
from bertworks.nn.hidden_states import batches
from bertworks.tasks.examples import Example
from bertworks.tasks.items import Items, Laying, lay
from bertworks.tasks.kinds import Kind
from bertworks.tasks.task import Task
from bertworks.tasks.word_features import (
    WordRows,
    by_window,
    compute_rows,
    feature_kind,
    sentence_items,
    some_at_a_time,
)


class Evaluated(NamedTuple):
    """What was predicted for each example, and the metrics: the task's, the main one first, and the loss."""

    predictions: list[Any]
    metrics: dict[str, float]
    rows: list[NDArray[np.float32]]  # the scores of every item


class Scored(NamedTuple):
    """The scores of every item, in order, and their mean loss."""

    rows: list[NDArray[np.float32]]
    loss: float


@torch.no_grad()
def score_items(
    net: Bert | FeatureReader,
    kind: Kind,
    items: Items,
    laying: Laying,
    done: Callable[[float], None] = lambda _: None,
) -> Scored:
    """Let a network in evaluation mode score items; `done` is called with the share of the tokens that are scored."""
    if isinstance(net, Bert) and (reader := reader_of(net)):
        return _score_by_features(net, reader, items, laying, done)
    rows: list[NDArray[np.float32]] = [np.empty(0, np.float32)] * len(items)
    loss = total = 0.0
    lengths = items.lengths()
    num_tokens, num_scored = max(int(lengths.sum()), 1), 0
    for numbers in batches(lengths.tolist(), laying.device):
        batch = lay(items, numbers, laying)
        scores = kind.scores(net, batch)
        sums = kind.sums(scores, batch)
        loss, total = loss + float(sums.loss), total + float(sums.total)
        for number, row in zip(numbers, kind.rows(scores, batch), strict=True):
            rows[number] = row
        num_scored += int(lengths[numbers].sum())
        done(num_scored / num_tokens)
    return Scored(rows, loss / max(total, 1.0))


def _score_by_features(
    net: Bert, reader: FeatureReader, items: Items, laying: Laying, done: Callable[[float], None]
) -> Scored:
    """Score windows by a tagger on frozen layers; what it says of a word stands at the word's first piece."""
    scored: list[NDArray[np.float32]] = []
    loss = total = 0.0
    for encoded in some_at_a_time(items.source):
        rows = WordRows([compute_rows(net, encoded.windows, reader.layers, laying)])
        sentences = sentence_items(encoded)
        found = score_items(reader, feature_kind(rows, reader.layers, lambda _: ()), sentences, laying)
        weight = float(sentences.weights.sum())
        loss, total = loss + found.loss * weight, total + weight
        for window, words in zip(encoded.windows, by_window(encoded, found.rows), strict=True):
            scored.append(np.zeros((len(window.ids), words.shape[1]), np.float32))
            scored[-1][window.places] = words
        done(len(scored) / max(len(items), 1))
    return Scored(scored, loss / max(total, 1.0))


def evaluate(
    net: Bert | FeatureReader, kind: Kind, task: Task, examples: Sequence[Example], items: Items, laying: Laying
) -> Evaluated:
    """Measure a network in evaluation mode on examples whose labels are known."""
    scored = score_items(net, kind, items, laying)
    predictions = kind.decode(examples, items, scored.rows, task)
    return Evaluated(predictions, kind.measure(task, examples, predictions) | {"loss": scored.loss}, scored.rows)
