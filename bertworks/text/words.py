"""`WordTokenizer`: whole words, as ELMo reads them, and each word as characters.

The vocabulary is a list of words, the most frequent ones first behind `<S>`, `</S>` and `<UNK>`; it names what the
model predicts. What the model reads are characters: UTF-8 bytes (0 to 255) between marks for the beginning and the end
of a word, 50 in all. Every number is raised by one, so that 0 is left for padding behind a sentence.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertworks.errors import UserError
from bertworks.files import usable_path
from bertworks.text.by_words import IdsByWords, check_text, columns_by_words
from bertworks.text.detokenize import join_tokens
from bertworks.text.encoding import NO_WORD, Encoding
from bertworks.text.normalize import Alphabet, Rules, split_words
from bertworks.text.vocabulary import check_pieces, read_vocabulary
from bertworks.text.wordpiece import MAX_WORD_LENGTH, Match

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BEGIN, END, UNK = "<S>", "</S>", "<UNK>"
SPECIAL_WORDS = (BEGIN, END, UNK)
MAX_CHARACTERS = 50  # of a word, with the marks at its ends
_BEGIN_SENTENCE, _END_SENTENCE, _BEGIN_WORD, _END_WORD, _PADDING = range(256, 261)
NUM_CHARACTERS = _PADDING + 2  # the ids are 1 to 261, and 0 where there is no word


def character_ids(words: Sequence[str]) -> "NDArray[np.uint16]":
    """Return the 50 character ids of each word; `<S>` and `</S>` have characters that no word has."""
    import numpy as np

    table = np.full((len(words), MAX_CHARACTERS), _PADDING, np.uint16)
    for row, word in zip(table, words, strict=True):
        inside = _characters_of(word)
        row[0], row[len(inside) + 1] = _BEGIN_WORD, _END_WORD
        row[1 : len(inside) + 1] = inside
    return table + np.uint16(1)


def _characters_of(word: str) -> list[int]:
    if word in (BEGIN, END):
        return [_BEGIN_SENTENCE if word == BEGIN else _END_SENTENCE]
    return list(word.encode("utf-8", "ignore")[: MAX_CHARACTERS - 2])


class WordTokenizer:
    """Splits text into the words of a list that was learned with `vocab --algorithm words`."""

    kind: Literal["words"] = "words"

    def __init__(self, pieces: Sequence[str], rules: Rules | None = None) -> None:
        """Make a tokenizer from words in the order of their ids."""
        self.pieces, self.rules = list(pieces), rules or Rules(lowercase=False, strip_accents=False)
        check_pieces(self.pieces, "the word list", unknown=UNK)
        self._ids = {word: id for id, word in enumerate(self.pieces) if word}
        self._begin_id, self._end_id, self._unk_id = map(self.id_of, SPECIAL_WORDS)
        self._alphabet = Alphabet(self.rules)
        self._bulk = IdsByWords(self._split, self.rules)

    @classmethod
    def from_vocab(cls, path: str | os.PathLike[str], rules: Rules | None = None) -> "WordTokenizer":
        """Read a word list, one word a line; ELMo's rules keep case and accents."""
        return cls(read_vocabulary(path, unknown=UNK), rules)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "WordTokenizer":
        """Open what `save` wrote."""
        from bertworks.text.tokenizer_files import VOCABULARY_FILE, read_settings

        settings = read_settings(usable_path(folder), lowercase=False)
        if settings["strip_accents"] is None:
            settings["strip_accents"] = settings["lowercase"]
        return cls.from_vocab(Path(folder) / VOCABULARY_FILE, Rules(**settings))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write vocab.txt and tokenizer_config.json."""
        from bertworks.text.tokenizer_files import write_word_files

        write_word_files(Path(folder), self.pieces, self.rules)

    def __len__(self) -> int:
        return len(self.pieces)

    def __repr__(self) -> str:
        rules = ", ".join(f"{name}={value}" for name, value in self.rules._asdict().items())
        return f"WordTokenizer({len(self):,} words, {rules})"

    def id_of(self, piece: str) -> int:
        """Return the id of a word that must be in the list, such as "<S>"."""
        if piece not in self._ids:
            raise UserError(f"the word list has no {piece!r}")
        return self._ids[piece]

    def tokenize(self, text: str) -> list[str]:
        """Return the words of a text as they are in the list, without `<S>` and `</S>`."""
        return self.encode(text).tokens[1:-1]

    def words(self, text: str) -> list[str]:
        """Return a text's words as they are read, also those that are not in the list, between `<S>` and `</S>`."""
        check_text(text)
        return [BEGIN, *(word.text for word in split_words(text, self._alphabet)), END]

    def encode(self, text: str) -> Encoding:
        """Encode a text as `<S>` text `</S>`."""
        check_text(text)
        columns = columns_by_words(text, self._alphabet, self._split)
        for column, first, last in zip(
            columns, (self._begin_id, 0, 0, 0, NO_WORD), (self._end_id, 0, 0, 0, NO_WORD), strict=True
        ):
            column.insert(0, first)
            column.append(last)
        return Encoding(columns, 0, len(columns.ids), self.pieces)

    def ids_of(self, texts: Sequence[str]) -> "tuple[NDArray[np.int32], NDArray[np.int64]]":
        """Return the ids of many texts end to end, and how many each has, without `<S>` and `</S>`."""
        return self._bulk.ids_of(texts)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids, set as in English and Korean print; `<S>` and `</S>` only if `keep_special`."""
        words = [self._word(id) for id in ids]
        return join_tokens(word for word in words if keep_special or word not in (BEGIN, END))

    def _word(self, id: int) -> str:
        if not 0 <= id < len(self.pieces):
            raise UserError(f"id {id} is not in the list of {len(self.pieces)} words")
        return self.pieces[id]

    def _split(self, word: str) -> list[Match]:
        known = self._unk_id if len(word) > MAX_WORD_LENGTH else self._ids.get(word, self._unk_id)
        return [(known, 0, len(word))]
