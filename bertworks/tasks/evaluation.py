"""A network measured on the examples of a split: in batches of similar lengths, each text computed once.

Several models that score the same examples count as one. Their combined scores have the form of one model's scores (as
logarithms of probabilities), so that they are decoded and measured as those of one model:

| kind                   | mean of                                           |
|------------------------|---------------------------------------------------|
| classify, choose, tag  | the probabilities of classes, endings or tags     |
| multilabel             | the probability of each label                     |
| regress                | the scores                                        |
| answer                 | the start and end scores, before any softmax      |

A tagger on frozen layers (the paper's Table 7) reads features of words: some layers of an encoder at the first piece of
each word. A word's features are a row, and rows are numbered in the order of the windows that label words, which is
that of the text. So for such a tagger rows are what token ids are for others: a sentence is the numbers of its words,
and the network looks them up (`WordRows`) where another has its embedding table. The rest is the kind "tag". Windows
overlap as in prediction, for training too: features are computed once, and what is learnt from is then what is seen
later. A sentence, not a window, is read at once by what learns.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.attention import batches, pack
from bertworks.nn.bert import Bert
from bertworks.nn.bilstm import FeatureReader
from bertworks.tasks.heads import KINDS, BatchLayout, Items, TaskBatch, TaskHead, to_batch
from bertworks.tasks.task import Cut, Example, TagExample, Task
from bertworks.tasks.windows import UNKNOWN, TagWindow, TagWindows, decode_tags, encode_tags, unit_labels
from bertworks.text.tokenizer import Tokenizer

_WORDS_AT_ONCE = 8_192  # in prediction: the last four layers of a base model take 100 MB
Layers = Mapping[int, Tensor]  # by their number: [rows, width], perhaps mapped from a file
_Row = NDArray[np.float32]


class Evaluated(NamedTuple):
    """What was predicted for each example, and the metrics: the task's, the main one first, and the loss."""

    predictions: list[Any]
    metrics: dict[str, float]
    rows: list[_Row]  # the scores of every item


class Scored(NamedTuple):
    """The scores of every item, in order, and their mean loss."""

    rows: list[_Row]
    loss: float


@torch.no_grad()
def score_items(
    net: Bert | FeatureReader,
    kind: TaskHead,
    items: Items,
    layout: BatchLayout,
    done: Callable[[float], None] = lambda _: None,
) -> Scored:
    """Let a network in evaluation mode score items; `done` is called with the share of the tokens that are scored."""
    if isinstance(net, Bert) and isinstance(reader := dict(net.heads.items()).get("tag"), FeatureReader):
        return _score_by_features(net, reader, items, layout, done)
    rows: list[_Row] = [np.empty(0, np.float32)] * len(items)
    loss = total = 0.0
    lengths = items.lengths()
    num_tokens, num_scored = max(int(lengths.sum()), 1), 0
    for numbers in batches(lengths.tolist(), layout.device):
        batch = to_batch(items, numbers, layout)
        scores = kind.scores(net, batch)
        sums = kind.sums(scores, batch)
        loss, total = loss + float(sums.loss), total + float(sums.total)
        for number, row in zip(numbers, kind.rows(scores, batch), strict=True):
            rows[number] = row
        num_scored += int(lengths[numbers].sum())
        done(num_scored / num_tokens)
    return Scored(rows, loss / max(total, 1.0))


def _score_by_features(
    net: Bert, reader: FeatureReader, items: Items, layout: BatchLayout, done: Callable[[float], None]
) -> Scored:
    """Score windows by a tagger on frozen layers; its score of a word is at the word's first piece."""
    scored: list[_Row] = []
    loss = total = 0.0
    for encoded in some_at_a_time(items.source):
        rows = WordRows([compute_rows(net, encoded.windows, reader.layers, layout)])
        sentences = sentence_items(encoded)
        found = score_items(reader, feature_kind(rows, reader.layers, lambda _: ()), sentences, layout)
        weight = float(sentences.weights.sum())
        loss, total = loss + found.loss * weight, total + weight
        for window, words in zip(encoded.windows, by_window(encoded, found.rows), strict=True):
            scored.append(np.zeros((len(window.ids), words.shape[1]), np.float32))
            scored[-1][window.positions] = words
        done(len(scored) / max(len(items), 1))
    return Scored(scored, loss / max(total, 1.0))


def evaluate(
    net: Bert | FeatureReader,
    kind: TaskHead,
    task: Task,
    examples: Sequence[Example],
    items: Items,
    layout: BatchLayout,
) -> Evaluated:
    """Measure a network in evaluation mode on examples whose labels are known."""
    scored = score_items(net, kind, items, layout)
    predictions = kind.decode(examples, items, scored.rows, task)
    return Evaluated(predictions, kind.measure(task, examples, predictions) | {"loss": scored.loss}, scored.rows)


def combine_rows(kind: str, of_models: Sequence[Sequence[_Row]]) -> list[_Row]:
    """Return the scores of all items by several models together.

    Args:
        kind: of the task.
        of_models: for each model the scores of each item.
    """
    if len(of_models) == 1:
        return list(of_models[0])
    found = []
    for rows in zip(*of_models, strict=True):
        # The endings of a choice are padded with -inf to the most of its batch, and each model has its own batches.
        width = min(row.shape[-1] for row in rows)
        scores_M = torch.from_numpy(np.stack([row[..., :width] for row in rows])).double()
        if kind in ("regress", "answer"):
            mean = scores_M.mean(0)
        elif kind == "multilabel":
            likely, unlikely = (torch.nn.functional.logsigmoid(sign * scores_M).logsumexp(0) for sign in (1, -1))
            mean = likely - unlikely
        else:  # logarithms, so that a tiny probability does not become -inf, which means that an ending is not there
            mean = scores_M.log_softmax(-1).logsumexp(0) - math.log(len(scores_M))
        found.append(mean.float().numpy())
    return found


def loss_of_rows(kind: TaskHead, items: Items, rows: Sequence[_Row], layout: BatchLayout) -> float:
    """Return the mean loss of the combined scores of several models."""
    loss = total = 0.0
    for numbers in batches(items.lengths().tolist(), layout.device):
        tensors = [torch.from_numpy(rows[number]) for number in numbers]
        if tensors[0].ndim == 2:  # those of tokens end to end
            scores = torch.cat(tensors)
        else:  # others beside each other, -inf for no ending
            scores = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=-torch.inf)
        sums = kind.sums(scores.to(layout.device), to_batch(items, numbers, layout))
        loss, total = loss + float(sums.loss), total + float(sums.total)
    return loss / max(total, 1.0)


class WordRows:
    """The layers of many words, in parts that may lie in files."""

    def __init__(self, parts: Sequence[Layers] = ()) -> None:
        self._parts: list[Layers] = []
        self._starts = np.zeros(1, np.int64)
        self.extend(parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def extend(self, parts: Sequence[Layers]) -> None:
        """Add more words at the end."""
        self._parts += parts
        lengths = [len(next(iter(part.values()))) for part in parts]
        self._starts = np.append(self._starts, self._starts[-1] + np.cumsum(lengths, dtype=np.int64))

    def layers(self, numbers_T: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        """Return the rows of these numbers, [T, D] for each of the layers, on the numbers' device."""
        numbers = numbers_T.cpu().numpy()
        part_of = np.searchsorted(self._starts, numbers, "right") - 1
        sample = self._parts[0]
        found = [sample[layer].new_empty(len(numbers), sample[layer].shape[1]) for layer in wanted]
        for number in np.unique(part_of):
            positions = torch.from_numpy(np.flatnonzero(part_of == number))
            rows = torch.from_numpy(numbers)[positions] - int(self._starts[number])
            for layer, out in zip(wanted, found, strict=True):
                out[positions] = self._parts[number][layer].index_select(0, rows)
        return [layer.to(numbers_T.device) for layer in found]


@torch.inference_mode()
def compute_rows(
    net: Bert, windows: Sequence[TagWindow], layers: Sequence[int], layout: BatchLayout
) -> dict[int, Tensor]:
    """Return the layers of the words that windows label, by a frozen network in evaluation mode."""
    starts = np.cumsum([0, *(len(window.positions) for window in windows)])
    dtype, width = net.embeddings.norm.weight.dtype, net.config.hidden_size
    found = {layer: torch.empty(int(starts[-1]), width, dtype=dtype) for layer in layers}
    for numbers in batches([len(window.ids) for window in windows], layout.device):
        some = [windows[number] for number in numbers]
        tokens = pack([window.ids.tolist() for window in some], None, layout.device, flash=layout.flash)
        hidden = net.encode(tokens, hidden=True, depth=max(layers)).all_hidden
        begins = tokens.packing.cumulative_lengths.tolist()
        positions = np.concatenate([window.positions + begin for window, begin in zip(some, begins, strict=False)])
        rows = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers])
        for layer, out in found.items():
            chosen = hidden[layer].index_select(0, torch.from_numpy(positions).to(layout.device))
            out[torch.from_numpy(rows)] = chosen.to("cpu", dtype)
    return found


def feature_kind(rows: WordRows, layers: Sequence[int], find: Callable[[TagWindows], Sequence[Layers]]) -> TaskHead:
    """Return the kind "tag" for a `FeatureReader`, whose items are sentences.

    Args:
        rows: what items are numbers of; `encode` adds the words of its examples to it.
        layers: which the reader reads.
        find: gives the rows of the words that some windows label, in their order.
    """

    def encode(
        examples: Sequence[TagExample], tokenizer: Tokenizer, task: Task, cut: Cut,
        *, is_training: bool = False,  # noqa: ARG001 -- windows overlap in any case, see above
    ) -> Items:  # fmt: skip
        encoded = encode_tags(
            tokenizer, examples, task.labels, max_length=cut.max_length, context=cut.context, stride=cut.stride
        )
        first_row = len(rows)
        rows.extend(find(encoded))
        return sentence_items(encoded, first_row)

    def scores(net: FeatureReader, batch: TaskBatch) -> Tensor:
        scores_TK: Tensor = net(rows.layers(batch.tokens.token_ids, layers), batch.tokens.packing)
        return scores_TK.float()

    def decode(_: Sequence[TagExample], items: Items, scores: Sequence[_Row], task: Task) -> list[list[str]]:
        encoded: TagWindows = items.source
        numbers, _scores = unit_labels(encoded, enumerate(by_window(encoded, scores)))
        return decode_tags(encoded, numbers, task.labels)

    return KINDS["tag"]._replace(encode=encode, scores=scores, decode=decode)


def sentence_items(encoded: TagWindows, first_row: int = 0) -> Items:
    """Make items of sentences, the numbers of their words' rows; a sentence without labelled words is left out."""
    nothing = np.zeros(0, np.int64)
    units = np.concatenate([nothing, *(window.units for window in encoded.windows)])
    targets = np.concatenate([nothing, *(window.targets for window in encoded.windows)])
    assert (np.diff(units) > 0).all(), "rows are in the order of the text"
    bounds = np.unique(np.searchsorted(units, encoded.bounds))
    lengths = np.diff(bounds)
    positions = np.arange(len(units)) - np.repeat(bounds[:-1], lengths)
    padded = np.full((len(lengths), lengths.max(initial=0)), UNKNOWN, np.int64)
    padded[np.repeat(np.arange(len(lengths)), lengths), positions] = targets
    return Items(
        ids=np.arange(first_row, first_row + len(units), dtype=np.int32),
        segment_ids=np.zeros(len(units), np.uint8),
        bounds=bounds,
        firsts=np.arange(len(bounds)),
        targets=padded,
        weights=(padded != UNKNOWN).astype(np.float32),
        source=encoded,
    )


def some_at_a_time(encoded: TagWindows) -> Iterator[TagWindows]:
    """Divide windows between sentences, so that the features of all texts need not be in memory at once."""
    first = num_words = 0
    for number, window in enumerate(encoded.windows, 1):
        num_words += len(window.units)
        ends = number == len(encoded.windows)
        if not ends and num_words >= _WORDS_AT_ONCE:
            around = np.array([window.units[-1], encoded.windows[number].units[0]])
            ends = len(np.unique(np.searchsorted(encoded.bounds, around, "right"))) == len(around)
        if ends:
            yield encoded._replace(windows=encoded.windows[first:number])
            first, num_words = number, 0


def by_window(encoded: TagWindows, rows: Sequence[_Row]) -> Iterator[_Row]:
    """Regroup the rows of words from sentences to the windows that label the words."""
    whole = np.concatenate(rows) if len(rows) else np.zeros((0, 1), np.float32)
    ends = np.cumsum([len(window.units) for window in encoded.windows])
    yield from np.split(whole, ends[:-1]) if len(ends) else ()
