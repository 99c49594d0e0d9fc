"""`SpeltTokenizer`: what tasks use of a tokenizer, for a model that reads words by their characters.

The list of a `WordTokenizer` names what ELMo guesses, and a task guesses no words. So words are numbered here in the
order in which they are met, whether the list has them or not, and `MetWords` keeps how each is spelt: a network looks
the characters of an id up in its table. A word that nobody has met before differs from all others, as ELMo wants it.

A number means nothing outside the process that gave it. The words themselves are what `digest` goes by. They are kept
as long as the tokenizer is: a million different ones take about 250 MB.
"""

import hashlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from bertworks.text.by_words import columns_by_words, pair_columns
from bertworks.text.encoding import Encoding, Encodings, ListColumns, Truncation, check_truncation
from bertworks.text.normalize import Alphabet
from bertworks.text.tokenizer import check_texts
from bertworks.text.vocabulary import CLS, SEP
from bertworks.text.wordpiece import Match
from bertworks.text.words import BEGIN, END, MAX_CHARACTERS, WordTokenizer, character_ids

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

BEGIN_ID, END_ID = 0, 1
_SIGNS = {CLS: BEGIN_ID, SEP: END_ID, BEGIN: BEGIN_ID, END: END_ID}
_LETTERS_READ = MAX_CHARACTERS - 2  # of a word no more bytes are read, and a letter has at least one


class MetWords:
    """Words, numbered in the order in which they are met; those that are spelt alike as far as is read are one.

    Attributes:
        words: by their numbers, `<S>` and `</S>` first.
    """

    def __init__(self) -> None:
        self.words = [BEGIN, END]
        self._ids: dict[str, int] = {}  # without the signs, which no text can spell
        self._characters: NDArray[np.uint16] | None = None

    def __len__(self) -> int:
        return len(self.words)

    def id_of(self, word: str) -> int:
        """Return a word's number, a new one if need be."""
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
        """Return a checksum of all words in their order."""
        return hashlib.sha256("\n".join(self.words).encode("utf-8", "surrogatepass")).hexdigest()


class SpeltTokenizer:
    """Encodes texts and pairs of texts as `<S>` text `</S>` pair `</S>`; [CLS] and [SEP] are other names of the signs.

    Args:
        listed: gives the rules by which texts are words, and is what is saved.

    Attributes:
        met: the words so far.
        pieces: the same as a list.
    """

    kind: Literal["words"] = "words"

    def __init__(self, listed: WordTokenizer) -> None:
        self._listed, self.rules = listed, listed.rules
        self.met = MetWords()
        self.pieces = self.met.words
        self._alphabet = Alphabet(listed.rules)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike[str]) -> "SpeltTokenizer":
        """Open what `save` wrote, or the tokenizer of an ELMo."""
        return cls(WordTokenizer.from_folder(folder))

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the list and the rules."""
        self._listed.save(folder)

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
        check_texts(texts, pairs)
        check_truncation(max_length, truncation, has_pair=pairs is not None)
        encodings = Encodings(self.pieces)
        encodings.add(*pair_columns(texts, pairs, self._columns, (BEGIN_ID, END_ID), max_length, truncation))
        return encodings

    def _columns(self, text: str, segment_id: int) -> ListColumns:
        return columns_by_words(text, self._alphabet, self._number, segment_id=segment_id)

    def _number(self, word: str) -> list[Match]:
        return [(self.met.id_of(word), 0, len(word))]
