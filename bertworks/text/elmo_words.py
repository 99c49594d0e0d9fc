"""Tokenizers of whole words, and the characters of each word, for ELMo.

- `WordTokenizer` has a list of words: `<S>`, `</S>`, `<UNK>`, then words by frequency. These are the words that the
  model predicts.
- `character_ids` gives the model's input: the UTF-8 bytes (0 to 255) of a word between a begin mark and an end mark,
  padded to 50. Every id is raised by one, so that 0 can be padding after a sentence.
- `SpelledTokenizer` is used for tasks. A task predicts no words, so it needs no fixed list: words are numbered as they
  occur, and `SeenWords` keeps the spelling of each. So a word that was never seen before still differs from all others.
  The numbers mean nothing outside the process; `digest` depends on the words themselves. Words are kept as long as the
  tokenizer: a million different ones take about 250 MB.
"""

import hashlib
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertworks.files import usable_path
from bertworks.text.normalize import Alphabet, Rules, split_words
from bertworks.text.tokenizer import (
    BaseTokenizer,
    Encoding,
    Encodings,
    ListColumns,
    Truncation,
    check_text,
    check_texts,
    check_truncation,
    columns_by_words,
    pair_columns,
)
from bertworks.text.vocabulary import (
    CLS,
    MAX_WORD_LENGTH,
    SEP,
    VOCABULARY_FILE,
    Match,
    join_tokens,
    read_rules,
    read_vocabulary,
    write_word_files,
)

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


BEGIN, END, UNK = "<S>", "</S>", "<UNK>"
SPECIAL_WORDS = (BEGIN, END, UNK)
MAX_CHARACTERS = 50  # of a word, including the marks at both ends
_BEGIN_SENTENCE, _END_SENTENCE, _BEGIN_WORD, _END_WORD, _PADDING = range(256, 261)
NUM_CHARACTERS = _PADDING + 2  # the ids are 1 to 261, and 0 for padding after a sentence


def character_ids(words: Sequence[str]) -> "NDArray[np.uint16]":
    """Return the 50 character ids of each word; `<S>` and `</S>` have ids that no word has."""
    import numpy as np

    table = np.full((len(words), MAX_CHARACTERS), _PADDING, np.uint16)
    for row, word in zip(table, words, strict=True):
        if word in (BEGIN, END):
            inside = [_BEGIN_SENTENCE if word == BEGIN else _END_SENTENCE]
        else:
            inside = list(word.encode("utf-8", "ignore")[: MAX_CHARACTERS - 2])
        row[0], row[len(inside) + 1] = _BEGIN_WORD, _END_WORD
        row[1 : len(inside) + 1] = inside
    return table + np.uint16(1)


class WordTokenizer(BaseTokenizer):
    """Splits text into the words of a list that was learned with `vocab --algorithm words`."""

    kind: Literal["words"] = "words"

    def __init__(self, pieces: Sequence[str], rules: Rules | None = None) -> None:
        """Make a tokenizer from words in the order of their ids; ELMo's rules keep case and accents."""
        super().__init__(pieces, rules or Rules(lowercase=False, strip_accents=False), unknown=UNK)
        self._begin_id, self._end_id, self._unk_id = map(self.id_of, SPECIAL_WORDS)

    @classmethod
    def from_vocab(cls, path: str | os.PathLike[str], rules: Rules | None = None) -> "WordTokenizer":
        """Read a word list, one word per line."""
        return cls(read_vocabulary(path, unknown=UNK), rules)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "WordTokenizer":
        """Open what `save` wrote."""
        rules = read_rules(usable_path(folder), lowercase=False)
        return cls.from_vocab(Path(folder) / VOCABULARY_FILE, rules)

    def save(self, folder: str | os.PathLike[str], *, max_length: int | None = None) -> None:
        """Write vocab.txt and tokenizer_config.json."""
        write_word_files(Path(folder), self.pieces, self.rules, max_length)

    def split(self, word: str) -> list[Match]:
        """Return a word's id in the form in which `WordPiece.split` returns pieces."""
        known = self._unk_id if len(word) > MAX_WORD_LENGTH else self._ids.get(word, self._unk_id)
        return [(known, 0, len(word))]

    def words(self, text: str) -> list[str]:
        """Return the words of a text between `<S>` and `</S>`, including words that are not in the list."""
        check_text(text)
        return [BEGIN, *(word.text for word in split_words(text, self._alphabet)), END]

    def encode(self, text: str) -> Encoding:
        """Encode a text as `<S>` text `</S>`."""
        check_text(text)
        signs = self._begin_id, self._end_id, self._end_id
        columns, (first, last) = pair_columns([text], None, self.columns_of, signs, None, None)
        return Encoding(columns, first, last, self.pieces)

    def decode(self, ids: Iterable[int], *, keep_special: bool = False) -> str:
        """Return readable text for ids, with English and Korean spacing; `<S>`, `</S>` only if `keep_special`."""
        return join_tokens(word for word in self.pieces_of(ids) if keep_special or word not in (BEGIN, END))


BEGIN_ID, END_ID = 0, 1
_SIGNS = {CLS: BEGIN_ID, SEP: END_ID, BEGIN: BEGIN_ID, END: END_ID}
_LETTERS_READ = MAX_CHARACTERS - 2  # the most letters of a word that can matter, as each has at least one byte


class SeenWords:
    """Words, numbered in the order in which they occur; words with the same first letters, as far as read, are one.

    Attributes:
        words: the words in the order of their numbers, `<S>` and `</S>` first.
    """

    def __init__(self) -> None:
        self.words = [BEGIN, END]
        self._ids: dict[str, int] = {}  # without the signs, which cannot occur in a text
        self._characters: NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def id_of(self, word: str) -> int:
        """Return a word's number, a new one for a new word."""
        read = word[:_LETTERS_READ]
        id = self._ids.setdefault(read, len(self.words))
        if id == len(self.words):
            self.words.append(read)
        return id

    def characters(self) -> "NDArray[np.uint16]":
        """Return the character ids of all words, a row for each."""
        import numpy as np

        known = 0 if self._characters is None else len(self._characters)
        if self._characters is None or known < len(self.words):
            added = character_ids(self.words[known:])
            self._characters = added if self._characters is None else np.concatenate([self._characters, added])
        return self._characters

    def digest(self) -> str:
        """Return a checksum of all words in order."""
        return hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass")).hexdigest()


class SpelledTokenizer:
    """Encodes texts and pairs as `<S>` text `</S>` pair `</S>`; [CLS] and [SEP] are accepted as names of the signs.

    Args:
        listed: the tokenizer whose rules split texts into words, and which is saved.

    Attributes:
        met: the words seen so far.
        pieces: the same as a list.
    """

    kind: Literal["words"] = "words"

    def __init__(self, listed: WordTokenizer) -> None:
        self._listed, self.rules, self.save = listed, listed.rules, listed.save
        self.met = SeenWords()
        self.pieces = self.met.words
        self._alphabet = Alphabet(listed.rules)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "SpelledTokenizer":
        """Open what `save` wrote, or the tokenizer of an ELMo."""
        return cls(WordTokenizer.from_folder(folder))

    def __len__(self) -> int:
        return len(self._listed)

    def id_of(self, sign: str) -> int:
        """Return the number of a sign, such as [CLS] or `<S>`."""
        return _SIGNS[sign]

    def encode(self, text: str, pair: str | None = None, max_length: int | None = None) -> Encoding:
        """Encode a text, or two texts; what is too long is cut, of a pair the longer one first."""
        return self.encode_batch([text], None if pair is None else [pair], max_length)[0]

    def encode_batch(
        self,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
        max_length: int | None = None,
        truncation: Truncation = "longest_first",
    ) -> Encodings:
        """Encode many texts, or as many pairs of texts; the arguments are those of `Tokenizer.encode_batch`."""

        def columns_of(text: str) -> ListColumns:
            return columns_by_words(text, self._alphabet, lambda word: [(self.met.id_of(word), 0, len(word))])

        check_texts(texts, pairs)
        check_truncation(max_length, truncation, has_pair=pairs is not None)
        encodings, signs = Encodings(self.pieces), (BEGIN_ID, END_ID, END_ID)
        encodings.add(*pair_columns(texts, pairs, columns_of, signs, max_length, truncation))
        return encodings
