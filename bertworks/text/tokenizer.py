"""`Tokenizer`: text to ids and back, equal to google-research/bert on every string.

There are two ways through, with the same result. Sentences go through plain Python (`normalize.py`, `wordpiece.py`),
which needs no compiler and starts at once; large batches go through compiled code (`bulk.py`), thirty times faster.
Special tokens written in a text are plain text: nobody can smuggle a [SEP] into a model's input.
"""

import itertools
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, overload

from bertworks.errors import UserError, counted
from bertworks.text.normalize import Alphabet, Rules, split_spaces, split_words, words_of
from bertworks.text.vocabulary import CLS, PAD, SEP, check_pieces, read_vocabulary
from bertworks.text.wordpiece import Match, WordPiece, join_tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertworks.text.fast import BulkTokenizer


# What a text becomes: ids with the tokens, offsets, segments and word numbers behind them.
#
# An `Encoding` is a window on columns that many texts share, and `Encodings` makes these windows when they are
# asked for: a million texts of which only the ids are read cost their ids, not a million objects for the garbage
# collector to visit.


Truncation = Literal["longest_first", "only_second"] | None
TRUNCATIONS = ("longest_first", "only_second", None)
NO_WORD = -1  # the word number of [CLS] and [SEP]


class Columns(Protocol):
    """A column per property and a row per token: lists from the plain way, arrays from the compiled one."""

    @property
    def ids(self) -> Any:
        """The number of each token in the vocabulary."""

    @property
    def segment_ids(self) -> Any:
        """0 for the first text, 1 for the second."""

    @property
    def starts(self) -> Any:
        """Where each token begins in its text."""

    @property
    def ends(self) -> Any:
        """Where each token ends in its text."""

    @property
    def word_ids(self) -> Any:
        """The number of the word each token is part of, NO_WORD for [CLS] and [SEP]."""


class ListColumns(NamedTuple):
    """Columns to append to."""

    ids: list[int]
    segment_ids: list[int]
    starts: list[int]
    ends: list[int]
    word_ids: list[int]


class Encoding:
    """One encoded text, or pair of texts."""

    __slots__ = ("_columns", "_first", "_last", "_pieces")

    def __init__(self, columns: Columns, first: int, last: int, pieces: Sequence[str]) -> None:
        self._columns, self._first, self._last, self._pieces = columns, first, last, pieces

    def __len__(self) -> int:
        return self._last - self._first

    def __repr__(self) -> str:
        return f"Encoding(tokens={self.tokens!r})"

    @property
    def ids(self) -> list[int]:
        """The number of each token in the vocabulary."""
        return self._read(self._columns.ids)

    @property
    def segment_ids(self) -> list[int]:
        """0 for the first text, 1 for the second."""
        return self._read(self._columns.segment_ids)

    @property
    def tokens(self) -> list[str]:
        """The pieces as text, `##` marking those that continue a word."""
        return [self._pieces[id] for id in self.ids]

    @property
    def offsets(self) -> list[tuple[int, int]]:
        """Where each token stands: `text[start:end]` of the text it comes from; (0, 0) for [CLS] and [SEP]."""
        return list(zip(self._read(self._columns.starts), self._read(self._columns.ends), strict=True))

    @property
    def word_ids(self) -> list[int | None]:
        """The number of the word each token is part of, counted from 0 in each text; None for [CLS] and [SEP]."""
        return [None if number == NO_WORD else number for number in self._read(self._columns.word_ids)]

    def cut(self, length: int) -> "Encoding":
        """Return the first tokens, at most so many."""
        return Encoding(self._columns, self._first, min(self._last, self._first + length), self._pieces)

    def _read(self, column: Any) -> list[int]:
        rows = column[self._first : self._last]
        return rows if isinstance(rows, list) else rows.tolist()


class Encodings(Sequence[Encoding]):
    """The encodings of many texts, in their order; reads like a list."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._chunks: list[tuple[Columns, list[int]]] = []  # with the rows at which texts begin and end
        self._first_texts = [0]  # of each chunk, and the number of all texts

    def add(self, columns: Columns, bounds: list[int]) -> None:
        """Append the texts of which each takes the rows from one bound to the next."""
        self._chunks.append((columns, bounds))
        self._first_texts.append(len(self) + len(bounds) - 1)

    def __len__(self) -> int:
        return self._first_texts[-1]

    def __iter__(self) -> Iterator[Encoding]:
        for columns, bounds in self._chunks:
            for first, last in itertools.pairwise(bounds):
                yield Encoding(columns, first, last, self._pieces)

    @overload
    def __getitem__(self, index: int) -> Encoding: ...
    @overload
    def __getitem__(self, index: slice) -> list[Encoding]: ...
    def __getitem__(self, index: int | slice) -> Encoding | list[Encoding]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        chunk = bisect_right(self._first_texts, number) - 1
        columns, bounds = self._chunks[chunk]
        place = number - self._first_texts[chunk]
        return Encoding(columns, bounds[place], bounds[place + 1], self._pieces)


def kept_lengths(
    first: int, second: int | None, max_length: int | None, truncation: Truncation
) -> tuple[int, int | None]:
    """Return how many tokens of each text stay, so that with [CLS] and [SEP] there are at most `max_length`.

    `longest_first` takes from the end of the longer text, of the second where they are equal, as the original does.
    """
    if max_length is None:
        return first, second
    num_special = 2 if second is None else 3
    room = max_length - num_special
    if first + (second or 0) <= room:
        return first, second
    if truncation is None:
        total = first + (second or 0) + num_special
        raise UserError(
            f"{total} tokens with [CLS] and [SEP], but max_length is {max_length}; "
            'shorten the text or pass truncation="longest_first"'
        )
    if truncation == "longest_first":
        if second is None:
            return room, None
        half = room // 2
        return min(first, max(room - half, room - second)), min(second, max(half, room - first))
    if second is None or first > room:
        what = "there is no second text" if second is None else f"the first text alone has {first} tokens"
        raise UserError(f"truncation='only_second' cannot reach max_length {max_length}: {what}")
    return first, room - first


def check_truncation(max_length: int | None, truncation: Truncation, *, has_pair: bool) -> None:
    """Refuse settings under which no text could be encoded."""
    if truncation not in TRUNCATIONS:
        raise UserError(f"truncation={truncation!r} is not known; use 'longest_first', 'only_second' or None")
    smallest = 3 if has_pair else 2
    if max_length is not None and max_length < smallest:
        raise UserError(f"max_length={max_length} is too small: [CLS] and [SEP] alone take {smallest}")


# From a function that splits a word to the tokens of whole texts: one text with offsets, or many texts as ids
# alone.
#
# Words do not reach over white space, so the ids of a part between white space depend on that part alone.
# `IdsByWords` works each part out once and remembers it: ordinary text then costs a look into a dict for each of
# its words. What it remembers is bounded, and what is long is not remembered.


Split = Callable[[str], list[Match]]

_MAX_REMEMBERED = 1 << 19  # parts; about 100 MB
_MAX_REMEMBERED_IDS = 1 << 23
_LONGEST_REMEMBERED = 64  # characters


def columns_by_words(text: str, alphabet: Alphabet, split: Split, *, segment_id: int = 0) -> ListColumns:
    """Return the tokens of a text with their places in it."""
    columns = ids, segment_ids, starts, ends, word_ids = ListColumns([], [], [], [], [])
    for number, (word, letter_starts, letter_ends) in enumerate(split_words(text, alphabet)):
        for id, start, end in split(word):
            ids.append(id)
            starts.append(letter_starts[start])
            ends.append(letter_ends[end - 1])
            word_ids.append(number)
    segment_ids.extend([segment_id] * len(ids))
    return columns


def pair_columns(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    columns_of: Callable[[str, int], ListColumns],
    signs: tuple[int, int],
    max_length: int | None,
    truncation: Truncation,
) -> tuple[ListColumns, list[int]]:
    """Return texts, or pairs of them, end to end, and the rows at which each begins and ends.

    A second text of which no token is left gets no sign either, as in the original's run_classifier.py.

    Args:
        texts: the first text of each pair.
        pairs: the second ones.
        columns_of: gives the tokens of a text, given its segment.
        signs: the ids that stand before a text, and behind every text.
        max_length: of a pair with its signs.
        truncation: what to shorten.
    """
    begin, end = signs
    columns, bounds = ListColumns([], [], [], [], []), [0]
    for text, pair in zip(texts, pairs or itertools.repeat(None, len(texts)), strict=True):
        first = columns_of(text, 0)
        second = None if pair is None else columns_of(pair, 1)
        kept = kept_lengths(len(first.ids), (second and len(second.ids)) or None, max_length, truncation)
        _add_sign(columns, begin, 0)
        for part, length, segment_id in zip((first, second), kept, (0, 1), strict=True):
            if part is not None and (length or not segment_id):
                for column, added in zip(columns, part, strict=True):
                    column.extend(added[:length])
                _add_sign(columns, end, segment_id)
        bounds.append(len(columns.ids))
    return columns, bounds


def _add_sign(columns: ListColumns, id: int, segment_id: int) -> None:
    for column, value in zip(columns, (id, segment_id, 0, 0, NO_WORD), strict=True):
        column.append(value)


def check_text(text: object) -> None:
    """Refuse what is no text."""
    if not isinstance(text, str):
        raise UserError(f"a text must be a str, not {type(text).__name__}: {str(text)[:40]!r}")


class IdsByWords:
    """Gives the ids of many texts at once, for one way of splitting words."""

    def __init__(self, split: Split, rules: Rules) -> None:
        self._split, self._alphabet = split, Alphabet(rules)
        self._parts = _Parts(self._work_out)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of all texts end to end, and how many each text has."""
        import numpy as np

        if len(self._parts) > _MAX_REMEMBERED or len(self._parts.ids) > _MAX_REMEMBERED_IDS:
            self._parts = _Parts(self._work_out)
        numbers: list[int] = []
        text_ends = [0]
        for text in texts:
            numbers.extend(map(self._parts.__getitem__, split_spaces(text)))
            text_ends.append(len(numbers))
        parts = np.array(numbers, np.int64)
        bounds = np.array(self._parts.bounds, np.int64)
        lengths = bounds[parts + 1] - bounds[parts]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        places = np.arange(ends[-1]) + np.repeat(bounds[parts] - ends[:-1], lengths)
        return np.frombuffer(self._parts.ids, np.int32)[places], np.diff(ends[text_ends])

    def _work_out(self, part: str) -> list[int]:
        return [id for word in words_of(part, self._alphabet) for id, _, _ in self._split(word)]


class _Parts(dict[str, int]):
    """By part: its number. The ids of part i are `ids[bounds[i] : bounds[i + 1]]`."""

    def __init__(self, work_out: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._work_out = work_out
        self.ids, self.bounds = array("i"), array("q", [0])

    def __missing__(self, part: str) -> int:
        number = len(self.bounds) - 1
        self.ids.extend(self._work_out(part))
        self.bounds.append(len(self.ids))
        if len(part) <= _LONGEST_REMEMBERED:
            self[part] = number
        return number


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
        from bertworks.text.tokenizer_files import read_pieces, read_settings, with_added

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
            from bertworks.text.fast import BulkTokenizer

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
        from bertworks.text.fast import AssembledColumns

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
