"""Features of words: some layers of a frozen encoder at the first piece of each word, and a tagger that reads them.

A word's features are a row, and rows are numbered in the order of the windows that label words, which is that of the
text. So for a tagger on frozen layers rows are what token ids are for others: a sentence is the numbers of its words,
and the network looks them up (`WordRows`) where another has its embedding table. The rest is the kind "tag".

Windows overlap as in prediction, for training too: features are computed once, and what is learnt from is then what
is seen later. A sentence, not a window, is read at once by what learns (nn/feature_reader.py).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from bertworks.nn.bert import Bert
from bertworks.nn.feature_reader import FeatureReader
from bertworks.nn.hidden_states import batches
from bertworks.nn.packing import pack
from bertworks.tasks.cut import Cut
from bertworks.tasks.examples import TagExample
from bertworks.tasks.items import Items, Laying, TaskBatch
from bertworks.tasks.kinds import KINDS, Kind
from bertworks.tasks.tag_windows import UNKNOWN, TagWindow, TagWindows, decode_tags, encode_tags, unit_labels
from bertworks.tasks.task import Task
from bertworks.text.tokenizer import Tokenizer

_WORDS_AT_ONCE = 8_192  # in prediction: of a base model's last four layers 100 MB
Layers = Mapping[int, Tensor]  # by their number: [rows, width], perhaps mapped from a file


class WordRows:
    """The layers of many words, in parts that may lie in files."""

    def __init__(self, parts: Sequence[Layers] = ()) -> None:
        self._parts: list[Layers] = []
        self._starts = np.zeros(1, np.int64)
        self.extend(parts)

    def __len__(self) -> int:
        return int(self._starts[-1])

    def extend(self, parts: Sequence[Layers]) -> None:
        """Put more words behind those that are there."""
        self._parts += parts
        lengths = [len(next(iter(part.values()))) for part in parts]
        self._starts = np.append(self._starts, self._starts[-1] + np.cumsum(lengths, dtype=np.int64))

    def layers(self, numbers_T: Tensor, wanted: Sequence[int]) -> list[Tensor]:
        """Return the rows of these numbers, [T, D] of each layer that is wanted, where the numbers are."""
        numbers = numbers_T.cpu().numpy()
        part_of = np.searchsorted(self._starts, numbers, "right") - 1
        sample = self._parts[0]
        found = [sample[layer].new_empty(len(numbers), sample[layer].shape[1]) for layer in wanted]
        for number in np.unique(part_of):
            places = torch.from_numpy(np.flatnonzero(part_of == number))
            rows = torch.from_numpy(numbers)[places] - int(self._starts[number])
            for layer, out in zip(wanted, found, strict=True):
                out[places] = self._parts[number][layer].index_select(0, rows)
        return [layer.to(numbers_T.device) for layer in found]


@torch.inference_mode()
def compute_rows(net: Bert, windows: Sequence[TagWindow], layers: Sequence[int], laying: Laying) -> dict[int, Tensor]:
    """Let a frozen network in evaluation mode read windows; returns the layers of the words that they label."""
    starts = np.cumsum([0, *(len(window.places) for window in windows)])
    dtype, width = net.embeddings.norm.weight.dtype, net.config.hidden_size
    found = {layer: torch.empty(int(starts[-1]), width, dtype=dtype) for layer in layers}
    for numbers in batches([len(window.ids) for window in windows], laying.device):
        some = [windows[number] for number in numbers]
        tokens = pack([window.ids.tolist() for window in some], None, laying.device, flash=laying.flash)
        hidden = net.encode(tokens, hidden=True, depth=max(layers)).all_hidden
        begins = tokens.packing.cumulative_lengths.tolist()
        places = np.concatenate([window.places + begin for window, begin in zip(some, begins, strict=False)])
        rows = np.concatenate([np.arange(starts[number], starts[number + 1]) for number in numbers])
        for layer, out in found.items():
            chosen = hidden[layer].index_select(0, torch.from_numpy(places).to(laying.device))
            out[torch.from_numpy(rows)] = chosen.to("cpu", dtype)
    return found


def feature_kind(rows: WordRows, layers: Sequence[int], find: Callable[[TagWindows], Sequence[Layers]]) -> Kind:
    """Return the kind "tag" for a `FeatureReader`, whose items are sentences.

    Args:
        rows: what items are numbers of; `encode` puts the words of its examples behind it.
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

    return KINDS["tag"]._replace(encode=encode, scores=scores, decode=_decode)


def sentence_items(encoded: TagWindows, first_row: int = 0) -> Items:
    """Lay out sentences, each as the numbers of its words' rows; one without any words that are read is left out."""
    units = _joined([window.units for window in encoded.windows])
    targets = _joined([window.targets for window in encoded.windows])
    assert (np.diff(units) > 0).all(), "rows are in the order of the text"
    bounds = np.unique(np.searchsorted(units, encoded.bounds))
    lengths = np.diff(bounds)
    places = np.arange(len(units)) - np.repeat(bounds[:-1], lengths)
    padded = np.full((len(lengths), lengths.max(initial=0)), UNKNOWN, np.int64)
    padded[np.repeat(np.arange(len(lengths)), lengths), places] = targets
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
    """Divide windows between sentences, so that the features of a long text or of many need not be there together."""
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


def _joined(arrays: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.zeros(0, np.int64), *arrays])


def by_window(encoded: TagWindows, rows: Sequence[NDArray[np.float32]]) -> Iterator[NDArray[np.float32]]:
    """Yield what sentences have for each word as what windows have for each word that they label."""
    whole = np.concatenate(rows) if len(rows) else np.zeros((0, 1), np.float32)
    ends = np.cumsum([len(window.units) for window in encoded.windows])
    yield from np.split(whole, ends[:-1]) if len(ends) else ()


def _decode(_: Sequence[TagExample], items: Items, rows: Sequence[NDArray[np.float32]], task: Task) -> list[list[str]]:
    return decode_tags(items.source, unit_labels(items.source, enumerate(by_window(items.source, rows))), task.labels)
