"""`Tokenizer`: text to ids and back, with the same tokens as google-research/bert for every string.

- There are two implementations with the same results. Sentences go through plain Python (`normalize.py`,
  `vocabulary.py`), which needs no compilation and starts at once; large batches go through compiled code (`fast.py`),
  which is thirty times faster.
- Special tokens typed in a text are plain text, so no text can insert a [SEP] into a model's input.
- An `Encoding` is a view of columns that many texts share, and `Encodings` makes these views on demand. If only the ids
  of a million texts are read, no million objects are made.
- `BaseTokenizer` is the common part of the tokenizers of BERT, GPT-1 (`gpt.py`) and ELMo (`elmo_words.py`).
"""

import itertools
import logging
import os
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, overload

from bertworks.errors import UserError, counted
from bertworks.text.normalize import Alphabet, Rules, split_spaces, split_words, words_of
from bertworks.text.vocabulary import (
    CLS,
    PAD,
    SEP,
    UNK,
    Match,
    WordPiece,
    check_pieces,
    join_tokens,
    read_pieces,
    read_settings,
    read_vocabulary,
    with_added,
    write_tokenizer_files,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bertworks.text.fast import AssembledColumns, BulkTokenizer

    Columns: TypeAlias = "ListColumns | AssembledColumns"

Truncation = Literal["longest_first", "only_second"] | None
TRUNCATIONS = ("longest_first", "only_second", None)
NO_WORD = -1  # the word number of [CLS] and [SEP]


class ListColumns(NamedTuple):
    """The properties of tokens as columns, with a row per token; `AssembledColumns` has the same columns as arrays."""

    ids: list[int]
    segment_ids: list[int]  # 0 for the first text, 1 for the second
    starts: list[int]  # where each token begins in its text
    ends: list[int]
    word_ids: list[int]  # the number of the word each token is part of, NO_WORD for [CLS] and [SEP]


class Encoding:
    """One encoded text, or pair of texts."""

    __slots__ = ("_columns", "_first", "_last", "_pieces")

    def __init__(self, columns: "Columns", first: int, last: int, pieces: Sequence[str]) -> None:
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
        """The position of each token: `text[start:end]` of the text it comes from; (0, 0) for [CLS] and [SEP]."""
        return list(zip(self._read(self._columns.starts), self._read(self._columns.ends), strict=True))

    @property
    def word_ids(self) -> list[int | None]:
        """The number of each token's word, counted from 0 in each text; None for [CLS] and [SEP]."""
        return [None if number == NO_WORD else number for number in self._read(self._columns.word_ids)]

    def cut(self, length: int) -> "Encoding":
        """Return the first tokens, at most `length`."""
        return Encoding(self._columns, self._first, min(self._last, self._first + length), self._pieces)

    def _read(self, column: Any) -> list[int]:
        rows = column[self._first : self._last]
        return rows if isinstance(rows, list) else rows.tolist()


class Encodings(Sequence[Encoding]):
    """The encodings of many texts, in their order; reads like a list."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._pieces = pieces
        self._chunks: list[tuple[Columns, list[int]]] = []  # columns, and the rows at which texts begin and end
        self._first_texts = [0]  # the number of the first text of each chunk, and at the end the number of all texts

    def add(self, columns: "Columns", bounds: list[int]) -> None:
        """Append texts; each takes the rows from one bound to the next."""
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
        row = number - self._first_texts[chunk]
        return Encoding(columns, bounds[row], bounds[row + 1], self._pieces)


def kept_lengths(
    first: int, second: int | None, max_length: int | None, truncation: Truncation
) -> tuple[int, int | None]:
    """Return how many tokens of each text are kept, so that with [CLS] and [SEP] there are at most `max_length`.

    `longest_first` removes tokens from the end of the longer text, of the second if both are equally long, as in the
    original.
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
    """Refuse settings with which no text could be encoded."""
    if truncation not in TRUNCATIONS:
        raise UserError(f"truncation={truncation!r} is not known; use 'longest_first', 'only_second' or None")
    smallest = 3 if has_pair else 2
    if max_length is not None and max_length < smallest:
        raise UserError(f"max_length={max_length} is too small: [CLS] and [SEP] alone take {smallest}")


Split = Callable[[str], list[Match]]

_MAX_REMEMBERED = 1 << 19  # parts; about 100 MB
_MAX_REMEMBERED_IDS = 1 << 23
_LONGEST_REMEMBERED = 64  # characters


def columns_by_words(text: str, alphabet: Alphabet, split: Split, most: int | None = None) -> ListColumns:
    """Return the tokens of a text with their offsets; of a long text at least the first `most` tokens."""
    columns = ids, segment_ids, starts, ends, word_ids = ListColumns([], [], [], [], [])
    for number, (word, letter_starts, letter_ends) in enumerate(split_words(text, alphabet)):
        for id, start, end in split(word):
            ids.append(id)
            starts.append(letter_starts[start])
            ends.append(letter_ends[end - 1])
            word_ids.append(number)
        if most is not None and len(ids) >= most:
            break
    segment_ids.extend([0] * len(ids))
    return columns


def joined_columns(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    columns_of: Callable[[str], ListColumns],
    signs: tuple[int, int, int],
    keep: Callable[[int, int | None], tuple[int, int | None]],
) -> tuple[ListColumns, list[int]]:
    """Return texts, or pairs of them, concatenated, and the rows at which each begins and ends.

    Args:
        texts: the first text of each pair.
        pairs: the second ones.
        columns_of: a function that returns the tokens of a text.
        signs: the ids of the special tokens before the first text, between two texts, and at the end.
        keep: a function from the lengths of two texts to the numbers of tokens to keep; None: there is no second text.
    """
    begin, between, end = signs
    columns, bounds = ListColumns([], [], [], [], []), [0]

    def add_sign(id: int, segment_id: int) -> None:
        for column, value in zip(columns, (id, segment_id, 0, 0, NO_WORD), strict=True):
            column.append(value)

    def add(added: ListColumns, length: int) -> None:
        for column, values in zip(columns, added, strict=True):
            column.extend(values[:length])

    for text, pair in zip(texts, pairs or itertools.repeat(None, len(texts)), strict=True):
        first, second = columns_of(text), None if pair is None else columns_of(pair)
        kept, kept_of_second = keep(len(first.ids), None if second is None else len(second.ids))
        add_sign(begin, 0)
        add(first, kept)
        if second is not None and kept_of_second is not None:
            add_sign(between, 0)
            second.segment_ids[:] = [1] * len(second.ids)
            add(second, kept_of_second)
        add_sign(end, int(kept_of_second is not None))
        bounds.append(len(columns.ids))
    return columns, bounds


def pair_columns(
    texts: Sequence[str],
    pairs: Sequence[str] | None,
    columns_of: Callable[[str], ListColumns],
    signs: tuple[int, int, int],
    max_length: int | None,
    truncation: Truncation,
) -> tuple[ListColumns, list[int]]:
    """Return texts, or pairs, with BERT's special tokens and truncation.

    A second text of which no token is left gets no [SEP] either, as in the original's run_classifier.py.
    """

    def keep(first: int, second: int | None) -> tuple[int, int | None]:
        kept, kept_of_second = kept_lengths(first, second or None, max_length, truncation)
        return kept, kept_of_second or None

    return joined_columns(texts, pairs, columns_of, signs, keep)


def check_text(text: object) -> None:
    """Refuse a text that is not a str."""
    if not isinstance(text, str):
        raise UserError(f"a text must be a str, not {type(text).__name__}: {str(text)[:40]!r}")


def check_texts(texts: Sequence[str], pairs: Sequence[str] | None) -> None:
    """Refuse texts that are not a list of str, and pairs that are not a list of the same length."""
    for given in (texts, () if pairs is None else pairs):
        if isinstance(given, str) or not hasattr(given, "__getitem__"):
            raise UserError(
                f"encode_batch takes a list of texts, not a {type(given).__name__}; for one text use encode"
            )
    for text in (*texts, *(pairs or ())):
        check_text(text)
    if pairs is not None and len(pairs) != len(texts):
        raise UserError(f"{counted(len(texts), 'text')} but {counted(len(pairs), 'pair')}; give one for each")


class BaseTokenizer:
    """The common part of all tokenizers: a vocabulary, rules that split a text into words, and a way to split a word.

    Attributes:
        pieces: the vocabulary, in the order of the ids.
        rules: how text is normalised.
        split: returns the pieces of one normalised word.
    """

    split: Split

    def __init__(self, pieces: Sequence[str], rules: Rules, unknown: str = UNK) -> None:
        self.pieces, self.rules = list(pieces), rules
        check_pieces(self.pieces, "the vocabulary", unknown=unknown)
        self._ids = {piece: id for id, piece in enumerate(self.pieces) if piece}
        self._alphabet = Alphabet(rules)

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}={value}" for name, value in self.rules._asdict().items())
        return f"{type(self).__name__}({len(self):,} pieces, {rules})"

    def id_of(self, piece: str) -> int:
        """Return the id of a piece that must be in the vocabulary, such as "[MASK]"."""
        if piece not in self._ids:
            raise UserError(f"the vocabulary has no {piece!r}")
        return self._ids[piece]

    def columns_of(self, text: str, most: int | None = None) -> ListColumns:
        """Return the tokens of a text with their offsets, without special tokens; `most` stops early."""
        return columns_by_words(text, self._alphabet, self.split, most)

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text as strings, without special tokens."""
        check_text(text)
        return [self.pieces[id] for id in self.columns_of(text).ids]

    def pieces_of(self, ids: Iterable[int]) -> list[str]:
        """Return the pieces that have these ids."""
        found = list(ids)
        for id in found:
            if not 0 <= id < len(self.pieces):
                raise UserError(f"id {id} is not in the vocabulary of {len(self.pieces)} pieces")
        return [self.pieces[id] for id in found]

    @cached_property
    def _bulk(self) -> "IdsByWords":
        return IdsByWords(self.split, self.rules)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of many texts, concatenated, and how many each has, without special tokens."""
        return self._bulk.ids_of(texts)


class IdsByWords:
    """Computes the ids of many texts at once; remembers the ids of each part between white space."""

    def __init__(self, split: Split, rules: Rules) -> None:
        self._split, self._alphabet = split, Alphabet(rules)
        self._parts = _Parts(self._work_out)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of all texts, concatenated, and how many each text has."""
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
        indices = np.arange(ends[-1]) + np.repeat(bounds[parts] - ends[:-1], lengths)
        return np.frombuffer(self._parts.ids, np.int32)[indices], np.diff(ends[text_ends])

    def _work_out(self, part: str) -> list[int]:
        return [id for word in words_of(part, self._alphabet) for id, _, _ in self._split(word)]


class _Parts(dict[str, int]):
    """Maps each part of a text to its number. The ids of part i are `ids[bounds[i] : bounds[i + 1]]`."""

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
# Loading the compiled code takes as long as splitting about a million characters in Python. Once it is loaded, a call
# has the overhead of a few thousand characters.
_BULK_FROM_CHARS = 1_000_000
_BULK_FROM_CHARS_ONCE_LOADED = 4_000
_MOSTLY_CUT = 100  # characters per kept token; plain Python is thirty times slower, but stops early
_CHUNK_CHARS = 1 << 18  # compiled code is called for chunks whose memory fits into a cache
_SOME_LETTER = "a"  # a letter that no rule changes


class Tokenizer(BaseTokenizer):
    """Splits text into the pieces of a BERT vocabulary.

    >>> import bertworks as bw
    >>> tokenizer = bw.Tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing"])
    >>> tokenizer.encode("Playing").tokens
    ['[CLS]', 'play', '##ing', '[SEP]']
    """

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
            strip_accents: strip accents (this also splits Hangul syllables into letters); None follows `lowercase`.
            split_cjk: make every Chinese character a separate word.
        """
        super().__init__(pieces, Rules.of(lowercase, strip_accents, split_cjk))
        self._wordpiece = WordPiece(self._ids)
        self.split = self._wordpiece.split
        self._compiled: BulkTokenizer | None = None

    @classmethod
    def from_vocab(
        cls,
        path: str | os.PathLike[str],
        *,
        lowercase: bool = True,
        strip_accents: bool | None = None,
        split_cjk: bool = True,
    ) -> "Tokenizer":
        """Read a vocabulary file, one piece per line; the settings are those of the class."""
        return cls(read_vocabulary(path), lowercase=lowercase, strip_accents=strip_accents, split_cjk=split_cjk)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "Tokenizer":
        """Open what `save` wrote, or the tokenizer files of any BERT folder in Hugging Face's form."""
        from bertworks.files import usable_path

        pieces, unlike = with_added(read_pieces(usable_path(folder)), Path(folder))
        for line in unlike:
            _log.warning("%s", line)
        return cls(pieces, **read_settings(Path(folder)))

    def save(self, folder: str | os.PathLike[str], *, max_length: int | None = None) -> None:
        """Write vocab.txt, tokenizer.json and tokenizer_config.json, which transformers and tokenizers open."""
        write_tokenizer_files(Path(folder), self.pieces, self.rules, max_length)

    def tokenize(self, text: str) -> list[str]:
        """Return the pieces of a text as strings, without [CLS] and [SEP]."""
        check_text(text)
        if not self._is_bulk(len(text)):
            return super().tokenize(text)
        return [self.pieces[id] for id in self._load_bulk().tokenize([text])[0][:, 0].tolist()]

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
            pair: the second text, whose tokens have segment id 1; if it has no tokens it is ignored, as in the
                original's run_classifier.py.
            max_length: the most tokens to return, including [CLS] and [SEP].
            truncation: `longest_first` shortens the longer text, `only_second` the second one; None: a text that is too
                long is an error.
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
        is_cut = max_length is not None and truncation == "longest_first"
        # If most of each text is cut away, plain Python is faster: it stops early, while compiled code reads
        # everything.
        is_bulk = self._is_bulk(num_chars) and not (is_cut and num_chars > _MOSTLY_CUT * (max_length or 0) * len(texts))
        columns_of = partial(self.columns_of, most=max_length) if is_cut else self.columns_of
        signs = self.id_of(CLS), self.id_of(SEP), self.id_of(SEP)
        encodings = Encodings(self.pieces)
        for rows in _chunks(texts, pairs):
            some, their_pairs = texts[rows], pairs and pairs[rows]
            if is_bulk:
                columns = self._load_bulk().encode(some, their_pairs, signs[:2], max_length, truncation)
                encodings.add(columns, columns.bounds)
            else:
                encodings.add(*pair_columns(some, their_pairs, columns_of, signs, max_length, truncation))
        return encodings

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of many texts, concatenated, and how many each has, without [CLS] and [SEP]; compiled."""
        rows, counts = self._load_bulk().tokenize(texts)
        return rows[:, 0], counts

    def ids_behind(self, text: str, most: int | None = None) -> list[int]:
        """Return the ids of a text that follows a piece without a space, so that its first letters continue a word.

        If no continuation pieces match them, they begin a new word, as after a space. `most` stops early.
        """
        check_text(text)
        # Each word has a token or more.
        words = [word.text for word in itertools.islice(split_words(_SOME_LETTER + text, self._alphabet), most)]
        rest = self._wordpiece.split_rest(words[0][len(_SOME_LETTER) :])
        if any(id == self._wordpiece.unk_id for id, _, _ in rest):
            return self.columns_of(text, most).ids
        return [id for matches in (rest, *map(self.split, words[1:])) for id, _, _ in matches]

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids: pieces joined to words, and words with English and Korean spacing.

        [CLS], [SEP] and [PAD] are left out unless `keep_special`; [UNK] and [MASK] stand for text and are kept.
        """
        return join_tokens(token for token in self.pieces_of(ids) if keep_special or token not in (CLS, SEP, PAD))

    def _is_bulk(self, num_chars: int) -> bool:
        return num_chars >= (_BULK_FROM_CHARS if self._compiled is None else _BULK_FROM_CHARS_ONCE_LOADED)

    def _load_bulk(self) -> "BulkTokenizer":
        if self._compiled is None:
            from bertworks.text.fast import BulkTokenizer

            self._compiled = BulkTokenizer(self.pieces, self.rules)
        return self._compiled


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
