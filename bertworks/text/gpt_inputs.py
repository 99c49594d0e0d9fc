"""Texts and pairs of texts as GPT-1 is fine-tuned on them: `_start_` a `_delimiter_` b `_classify_`.

To a task it looks like BERT's tokenizer: what a task calls [CLS] is the start and what it calls [SEP] the delimiter.
The three pieces are at the end of the vocabulary; where it does not have them, `with_special_pieces` puts them there.
Of a pair that is too long, and of which both texts are long, both keep as much: so a pair is cut alike in either order.
"""

import itertools
import os
from collections.abc import Sequence

from bertworks.errors import UserError, counted
from bertworks.text.encoding import NO_WORD, Encoding, Encodings, ListColumns
from bertworks.text.gpt_bpe import CLASSIFY, DELIMITER, FINE_TUNING_TOKENS, START, GptTokenizer
from bertworks.text.vocabulary import CLS, SEP

_NAMES = {CLS: START, SEP: DELIMITER}


def with_special_pieces(tokenizer: GptTokenizer) -> GptTokenizer:
    """Return a tokenizer whose vocabulary has the pieces that fine-tuning needs, those that were missing at its end."""
    missing = [piece for piece in FINE_TUNING_TOKENS if piece not in tokenizer.pieces]
    if not missing:
        return tokenizer
    return GptTokenizer([*tokenizer.pieces, *missing], tokenizer.merges, tokenizer.rules)


class GptInputs:
    """Makes the inputs of a task for GPT-1.

    Args:
        tokenizer: with the three special pieces.
    """

    def __init__(self, tokenizer: GptTokenizer) -> None:
        self.tokenizer, self.pieces = tokenizer, tokenizer.pieces
        self._start, self._delimiter, self._end = (tokenizer.id_of(piece) for piece in FINE_TUNING_TOKENS)
        assert (START, DELIMITER, CLASSIFY) == FINE_TUNING_TOKENS

    def __len__(self) -> int:
        return len(self.tokenizer)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the tokenizer's files."""
        self.tokenizer.save(folder)

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that must be in the vocabulary; [CLS] and [SEP] are start and delimiter."""
        return self.tokenizer.id_of(_NAMES.get(piece, piece))

    def encode(self, text: str) -> Encoding:
        """Encode one text."""
        return self.encode_batch([text])[0]

    def encode_batch(
        self, texts: Sequence[str], pairs: Sequence[str] | None = None, max_length: int | None = None
    ) -> Encodings:
        """Encode texts, or pairs of them, in at most `max_length` tokens, the special ones included."""
        smallest = 2 if pairs is None else 3
        if max_length is not None and max_length < smallest:
            raise UserError(f"max_length={max_length} is too small: the special pieces alone take {smallest}")
        if pairs is not None and len(pairs) != len(texts):
            raise UserError(f"{counted(len(texts), 'text')} but {counted(len(pairs), 'pair')}; give one for each")
        columns, bounds = ListColumns([], [], [], [], []), [0]
        for text, pair in zip(texts, pairs or itertools.repeat(None, len(texts)), strict=True):
            self._add(columns, text, pair, None if max_length is None else max_length - smallest)
            bounds.append(len(columns.ids))
        encodings = Encodings(self.pieces)
        encodings.add(columns, bounds)
        return encodings

    def _add(self, columns: ListColumns, text: str, pair: str | None, room: int | None) -> None:
        first = self.tokenizer.encode(text)
        second = None if pair is None else self.tokenizer.encode(pair)
        total = len(first) + len(second or ())
        kept = _kept(len(first), len(second or ()), total if room is None else room)
        _special(columns, self._start, 0)
        _extend(columns, first.cut(kept[0]), 0)
        if second is not None:
            _special(columns, self._delimiter, 0)
            _extend(columns, second.cut(kept[1]), 1)
        _special(columns, self._end, 0 if second is None else 1)


def _kept(first: int, second: int, room: int) -> tuple[int, int]:
    """Return how many pieces of each text stay; of an odd room for two long texts one place stays empty."""
    if first + second <= room:
        return first, second
    half = room // 2
    if min(first, second) > half:
        return half, half
    return (first, room - first) if first < second else (room - second, second)


def _special(columns: ListColumns, id: int, segment_id: int) -> None:
    for column, value in zip(columns, (id, segment_id, 0, 0, NO_WORD), strict=True):
        column.append(value)


def _extend(columns: ListColumns, encoding: Encoding, segment_id: int) -> None:
    columns.ids.extend(encoding.ids)
    columns.segment_ids.extend([segment_id] * len(encoding))
    for start, end in encoding.offsets:
        columns.starts.append(start)
        columns.ends.append(end)
    columns.word_ids.extend(NO_WORD if word is None else word for word in encoding.word_ids)
