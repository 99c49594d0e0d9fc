"""`Tokenizer`: text to ids and back, equal to google-research/bert on every string.

There are two ways through, with the same result. Sentences go through plain Python (`normalize.py`, `wordpiece.py`),
which needs no compiler and starts at once; large batches go through compiled code (`bulk.py`), thirty times faster.
Special tokens written in a text are plain text: nobody can smuggle a [SEP] into a model's input.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertworks.errors import UserError, counted
from bertworks.text.by_words import check_text, columns_by_words, pair_columns
from bertworks.text.detokenize import join_tokens
from bertworks.text.encoding import Encoding, Encodings, ListColumns, Truncation, check_truncation
from bertworks.text.normalize import Alphabet, Rules, split_words
from bertworks.text.vocabulary import CLS, PAD, SEP, check_pieces, read_vocabulary
from bertworks.text.wordpiece import WordPiece

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertworks.text.bulk import BulkTokenizer

_log = logging.getLogger(__name__)
# Loading the compiled code takes as long as splitting about a million characters in Python; once it is loaded, a call
# of it costs as much as a few thousand.
_BULK_FROM_CHARS = 1_000_000
_BULK_FROM_CHARS_ONCE_LOADED = 4_000
_CHUNK_CHARS = 1 << 18  # compiled code works in memory that fits a cache, and is asked for again and again
_SOME_LETTER = "a"  # one that no rule changes


class Tokenizer:
    """Splits text into the pieces of a vocabulary."""

    kind: Literal["wordpiece"] = "wordpiece"

    def __init__(
        self,
        pieces: Sequence[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
    ) -> None:
        """Make a tokenizer from pieces in the order of their ids.

        Args:
            pieces: the vocabulary; [UNK] must be in it.
            lowercase: lower-case the text, as the uncased models do.
            strip_accents: take accents off (and split Hangul syllables into their letters); None follows `lowercase`.
            split_cjk: make every Chinese character a word.
        """
        self.pieces = list(pieces)
        check_pieces(self.pieces, "the vocabulary")
        self.rules = Rules(lowercase, lowercase if strip_accents is None else strip_accents, split_cjk)
        self._ids = {piece: id for id, piece in enumerate(self.pieces) if piece}
        self._alphabet = Alphabet(self.rules)
        self._wordpiece = WordPiece(self._ids)
        self._bulk: BulkTokenizer | None = None

    @classmethod
    def from_vocab(
        cls,
        path: str | os.PathLike[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
    ) -> "Tokenizer":
        """Read a vocabulary file, one piece a line; the settings are those of the class."""
        return cls(read_vocabulary(path), lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Open what `save` wrote, or the tokenizer files of any BERT folder in Hugging Face's form."""
        from bertworks.files import usable_path
        from bertworks.text.foreign_files import with_added
        from bertworks.text.tokenizer_files import read_pieces, read_settings

        pieces, unlike = with_added(read_pieces(usable_path(folder)), Path(folder))
        for line in unlike:
            _log.warning("%s", line)
        return cls(pieces, **read_settings(Path(folder)))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, which transformers and tokenizers open."""
        from bertworks.text.tokenizer_files import write_tokenizer_files

        write_tokenizer_files(Path(folder), self.pieces, self.rules)

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}={value}" for name, value in self.rules._asdict().items())
        return f"Tokenizer({len(self):,} pieces, {rules})"

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that must be in the vocabulary, such as "[MASK]"."""
        if piece not in self._ids:
            raise UserError(f"the vocabulary has no {piece!r}")
        return self._ids[piece]

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text as strings, without [CLS] and [SEP]."""
        check_texts([text], None)
        if self._is_bulk(len(text)):
            ids = self._load_bulk().tokenize([text]).rows[:, 0].tolist()
        else:
            ids = self._plain_columns(text, segment_id=0).ids
        return [self.pieces[id] for id in ids]

    def encode(
        self,
        text: str,
        pair: str | None = None,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ) -> Encoding:
        """Encode a text, or two texts, as [CLS] text [SEP] pair [SEP].

        Args:
            text: the first text.
            pair: the second text, whose tokens have segment id 1; one without tokens is no second text, as in the
                original's run_classifier.py.
            max_length: the most tokens to give, [CLS] and [SEP] included.
            truncation: what to shorten: the longer text, only the second, or (None) nothing: too long is an error.
        """
        return self.encode_batch([text], None if pair is None else [pair], max_length, truncation)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ) -> Encodings:
        """Encode many texts, or as many pairs of texts; the arguments are those of `encode`."""
        check_texts(texts, pairs)
        check_truncation(max_length, truncation, has_pair=pairs is not None)
        num_chars = sum(map(len, texts)) + sum(map(len, pairs or ()))
        add_chunk = self._encode_bulk if self._is_bulk(num_chars) else self._encode_plain
        encodings = Encodings(self.pieces)
        for rows in _chunks(texts, pairs):
            add_chunk(encodings, texts[rows], pairs and pairs[rows], max_length, truncation)
        return encodings

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of many texts end to end, and how many each has, without [CLS] and [SEP]: compiled."""
        rows, counts = self._load_bulk().tokenize(texts)
        return rows[:, 0], counts

    def ids_behind(self, text: str) -> list[int]:
        """Return the ids of what stands right behind a piece: letters without a space between go on with its word.

        Where no pieces go on with them they begin a word, as they would behind a space.
        """
        check_texts([text], None)
        words = [word.text for word in split_words(_SOME_LETTER + text, self._alphabet)]
        rest = self._wordpiece.split_rest(words[0][len(_SOME_LETTER) :])
        if any(id == self._wordpiece.unk_id for id, _, _ in rest):
            return self._plain_columns(text, segment_id=0).ids
        return [id for matches in (rest, *map(self._wordpiece.split, words[1:])) for id, _, _ in matches]

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids: pieces joined to words, and words set as in English and Korean print.

        [CLS], [SEP] and [PAD] are left out unless `keep_special`; [UNK] and [MASK] stand for text and stay.
        """
        tokens = [self._piece(id) for id in ids]
        return join_tokens(token for token in tokens if keep_special or token not in (CLS, SEP, PAD))

    def _piece(self, id: int) -> str:
        if not 0 <= id < len(self.pieces):
            raise UserError(f"id {id} is not in the vocabulary of {len(self.pieces)} pieces")
        return self.pieces[id]

    def _is_bulk(self, num_chars: int) -> bool:
        return num_chars >= (_BULK_FROM_CHARS if self._bulk is None else _BULK_FROM_CHARS_ONCE_LOADED)

    def _load_bulk(self) -> "BulkTokenizer":
        if self._bulk is None:
            from bertworks.text.bulk import BulkTokenizer

            self._bulk = BulkTokenizer(self.pieces, self.rules)
        return self._bulk

    def _encode_bulk(
        self,
        encodings: Encodings,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        max_length: int | None,
        truncation: Truncation,
    ) -> None:
        from bertworks.text.assemble import AssembledColumns

        bulk = self._load_bulk()
        parts = [bulk.tokenize(texts)] + ([bulk.tokenize(pairs)] if pairs is not None else [])
        special_ids = self.id_of(CLS), self.id_of(SEP)
        columns = AssembledColumns(parts, max_length, truncation, special_ids, bulk.shared_ints)
        encodings.add(columns, columns.bounds)

    def _encode_plain(
        self,
        encodings: Encodings,
        texts: Sequence[str],
        pairs: Sequence[str] | None,
        max_length: int | None,
        truncation: Truncation,
    ) -> None:
        signs = self.id_of(CLS), self.id_of(SEP)
        columns, bounds = pair_columns(texts, pairs, self._plain_columns, signs, max_length, truncation)
        encodings.add(columns, bounds)

    def _plain_columns(self, text: str, segment_id: int) -> ListColumns:
        return columns_by_words(text, self._alphabet, self._wordpiece.split, segment_id=segment_id)


def check_texts(texts: Sequence[str], pairs: Sequence[str] | None) -> None:
    """Refuse what is not a list of texts, or as many pairs."""
    for given in (texts, () if pairs is None else pairs):
        if isinstance(given, str) or not hasattr(given, "__getitem__"):
            raise UserError(
                f"encode_batch takes a list of texts, not a {type(given).__name__}; for one text use encode"
            )
    for text in (*texts, *(pairs or ())):
        check_text(text)
    if pairs is not None and len(pairs) != len(texts):
        raise UserError(f"{counted(len(texts), 'text')} but {counted(len(pairs), 'pair')}; give one for each")


def _chunks(texts: Sequence[str], pairs: Sequence[str] | None) -> Iterator[slice]:
    """Cut a batch into runs of whole texts of about `_CHUNK_CHARS` characters."""
    first = num_chars = 0
    for index, text in enumerate(texts):
        num_chars += len(text) + (len(pairs[index]) if pairs else 0)
        if num_chars >= _CHUNK_CHARS:
            yield slice(first, index + 1)
            first, num_chars = index + 1, 0
    if first < len(texts):
        yield slice(first, len(texts))
