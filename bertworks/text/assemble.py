"""[CLS] and [SEP] around the tokens of many texts at once, and truncation: the compiled end of `encode_batch`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertworks.text.bulk import Tokens
from bertworks.text.encoding import NO_WORD, Columns, Truncation, kept_lengths
from bertworks.text.kernel import compiled


def assemble(
    parts: Sequence[Tokens], max_length: int | None, truncation: Truncation, cls_id: int, sep_id: int
) -> tuple[Columns, NDArray[np.int64]]:
    """Lay texts, or pairs of them, end to end as model inputs; returns the columns and where each input ends."""
    kept = np.stack([part.counts for part in parts])
    if max_length is not None:
        seconds = parts[1].counts.tolist() if len(parts) == 2 else [None] * kept.shape[1]
        lengths = zip(parts[0].counts.tolist(), seconds, strict=True)
        kept = np.array([kept_lengths(*both, max_length, truncation)[: len(parts)] for both in lengths]).T
    ends = np.cumsum(kept.sum(axis=0) + len(parts) + 1)
    columns = Columns(*np.zeros((5, ends[-1]), np.int32))
    starts = np.concatenate([[0], ends[:-1]])
    columns.ids[starts] = cls_id
    columns.word_ids[starts] = NO_WORD
    places = starts + 1
    for segment_id, part in enumerate(parts):
        _place(part.rows, part.counts, kept[segment_id], places, segment_id, sep_id, *columns)
        places = places + kept[segment_id] + 1
    return columns, ends


@compiled
def _place(rows: Any, counts: Any, kept: Any, places: Any, segment_id: int, sep_id: int,
           ids: Any, segment_ids: Any, starts: Any, ends: Any, word_ids: Any) -> None:  # fmt: skip
    """Copy the kept tokens of each text to its place, and a [SEP] behind them."""
    first = 0
    for text in range(len(counts)):
        place = places[text]
        for row in range(first, first + kept[text]):
            ids[place] = rows[row, 0]
            segment_ids[place] = segment_id
            starts[place] = rows[row, 1]
            ends[place] = rows[row, 2]
            word_ids[place] = rows[row, 3]
            place += 1
        ids[place] = sep_id
        segment_ids[place] = segment_id
        word_ids[place] = NO_WORD
        first += counts[text]
