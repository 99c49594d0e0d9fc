"""Text to words, as in google-research/bert's BasicTokenizer, with the offset of every character.

- The original works on whole strings: clean, put spaces around CJK, split at white space, lower-case, decompose and
  drop accents, split at punctuation. One pass over the characters gives the same words, because nearly every step looks
  at a single character. The two exceptions are handled where they occur: the lower case of the Greek capital sigma
  depends on its neighbours, and canonical ordering may swap combining characters that are not accents.
- One pass gives offsets for free and takes linear time, whereas `unicodedata.normalize` is quadratic in long runs of
  combining marks. The compiled tokenizer in `fast.py` uses the same `Alphabet`, so the rules are written only once.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

_ASCII_WORDS = re.compile(r"[A-Za-z0-9]+|.")
_RUNS = re.compile(r"[A-Za-z0-9]+|(?s:.)")  # ASCII letters and digits come in runs: only their case changes
_CHARS_AT_ONCE = 4_096

# str.split() splits at these, while BERT drops them and joins the text on both sides.
_DROPPED_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

SPACE = "space"  # ends a word
DROP = "drop"  # ignored
MARK = "mark"  # an accent that is stripped; it belongs to the character before it
ALONE = "alone"  # punctuation or a CJK character: a separate word
SIGMA = "sigma"  # Σ, to be lower-cased to σ or ς
LETTERS = "letters"  # everything else

# What a character implies for a Σ beside it. Σ becomes ς if a letter comes before it and none after.
CASED = "cased"  # a letter
UNCASED = "uncased"  # not a letter
LOOK_THROUGH = "look through"  # the next character decides: apostrophes, full stops, accents
BOUNDARY = "boundary"  # characters after it do not matter: white space, and CJK, which gets spaces around it

_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class Rules(NamedTuple):
    """The settings of normalisation; the three are independent of each other."""

    lowercase: bool = True
    strip_accents: bool = True
    split_cjk: bool = True

    @classmethod
    def of(cls, lowercase: bool = True, strip_accents: bool | None = None, split_cjk: bool = True) -> "Rules":
        """Return rules in which accents follow lower-casing by default, as in the original."""
        return cls(lowercase, lowercase if strip_accents is None else strip_accents, split_cjk)


class Character(NamedTuple):
    """The result of applying the rules to one character of the input."""

    kind: str
    beside_sigma: str
    letters: str = ""
    orders: tuple[int, ...] = ()  # canonical combining classes of the last letters, if they may have to be reordered
    stops_reordering: bool = True


class Word(NamedTuple):
    """A word (or a punctuation mark, or a CJK character) and the offsets of each of its characters in the text."""

    text: str
    starts: list[int]
    ends: list[int]


def is_punctuation(char: str) -> bool:
    """Tell whether BERT splits at a character: Unicode's punctuation and every ASCII symbol, such as $ and ^."""
    if char < "\x80":
        return char.isprintable() and char != " " and not char.isalnum()
    return unicodedata.category(char).startswith("P")


def is_cjk(char: str) -> bool:
    """Tell whether a character is an ideograph of the blocks the original lists; Hangul and kana are not."""
    return any(first <= ord(char) <= last for first, last in _CJK_BLOCKS)


def is_dropped(char: str) -> bool:
    """Tell whether cleaning removes a character: NUL, U+FFFD and controls other than tab and line ends."""
    return char in "\0\ufffd" or (unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r")


class Alphabet(dict[str, Character]):
    """For each character the result of applying the rules; computed when a character first occurs."""

    _MAX_KEPT = 65_536

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def __missing__(self, char: str) -> Character:
        if len(self) >= self._MAX_KEPT:
            self.clear()
        self[char] = character = self.classify(char)
        return character

    def __reduce__(self) -> tuple[type["Alphabet"], tuple[Rules]]:
        return Alphabet, (self.rules,)  # a copy starts empty: kinds are compared by identity, which pickling loses

    def lower(self, text: str) -> str:
        """Lower-case if the rules say so."""
        return text.lower() if self.rules.lowercase else text

    def classify(self, char: str) -> Character:
        """Apply every rule to one character."""
        if is_dropped(char):
            return Character(DROP, LOOK_THROUGH, stops_reordering=False)
        if char.isspace():  # U+2028 and U+2029 are not cleaned, but the original's str.split() splits at them
            return Character(SPACE, BOUNDARY)
        if char == "Σ" and self.rules.lowercase:
            return Character(SIGMA, CASED, "σ")
        beside_sigma = BOUNDARY if self.rules.split_cjk and is_cjk(char) else _beside_sigma(char)
        letters = pieces = self.lower(char)
        if self.rules.strip_accents:
            pieces = unicodedata.normalize("NFD", letters)
            letters = "".join([piece for piece in pieces if unicodedata.category(piece) != "Mn"])
        if not letters:
            stops_reordering = not all(map(unicodedata.combining, pieces))
            return Character(MARK, beside_sigma, stops_reordering=stops_reordering)
        if beside_sigma is BOUNDARY or is_punctuation(letters[0]):
            return Character(ALONE, beside_sigma, letters)
        orders = tuple(filter(None, map(unicodedata.combining, letters))) if self.rules.strip_accents else ()
        return Character(LETTERS, beside_sigma, letters, orders, stops_reordering=len(orders) < len(letters))


def _beside_sigma(char: str) -> str:
    """Use Python's own tables: see how it lower-cases a sigma after the character."""
    if (char + "Σ").lower()[-1] == "ς":
        return CASED
    return LOOK_THROUGH if ("A" + char + "Σ").lower()[-1] == "ς" else UNCASED


def split_spaces(text: str) -> list[str]:
    """Return the parts between white space; the words of a text are the words of its parts."""
    return _DROPPED_SPACES.sub("", text).split()


def words_of(part: str, alphabet: Alphabet) -> list[str]:
    """Return the normalised words of a part between white space as plain strings."""
    if part.isascii() and part.isprintable():  # only letters, digits, and punctuation, each mark a separate word
        return _ASCII_WORDS.findall(alphabet.lower(part))
    return [word.text for word in split_words(part, alphabet)]


def split_words(text: str, alphabet: Alphabet) -> Iterator[Word]:
    """Yield the normalised words of a text; each is yielded when the next begins, as accents after it belong to it.

    A list instead would be half as fast, because the garbage collector would visit its words again and again.
    """
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    orders: list[int] = []  # combining classes of the letters at the end of the word that may have to be reordered
    is_closed, end = False, 0
    added_orders: tuple[int, ...]
    # A few thousand characters at a time, as a caller may need only the first words; this may cut a run in two.
    starts_at = range(0, len(text), _CHARS_AT_ONCE)
    for chars in chain.from_iterable(_RUNS.findall(text, at, at + _CHARS_AT_ONCE) for at in starts_at):
        start, end = end, end + len(chars)
        if len(chars) > 1:
            kind, added, added_orders, stops_reordering = LETTERS, alphabet.lower(chars), (), True
        else:
            kind, _, added, added_orders, stops_reordering = alphabet[chars]
        if orders and stops_reordering:
            _order_run(letters, orders)
        if not added:
            if kind is SPACE:
                is_closed = True
            elif kind is MARK and ends and ends[-1] == start:
                ends[-1] = end
            continue
        if is_closed or kind is ALONE:
            if letters:
                yield Word("".join(letters), starts, ends)
                letters, starts, ends, orders = [], [], [], []
            is_closed = kind is ALONE
        # A search ends at the next sigma, so all searches in a text together take linear time.
        if kind is SIGMA and _meets_cased(text, range(start - 1, -1, -1), alphabet):
            added = "σ" if _meets_cased(text, range(end, len(text)), alphabet) else "ς"
        if len(added) == 1:
            letters.append(added)
            starts.append(start)
            ends.append(end)
        elif len(chars) > 1:  # a run of ASCII: each letter has its own offsets
            letters.append(added)
            starts.extend(range(start, end))
            ends.extend(range(start + 1, end + 1))
        else:  # several letters from one character share its offsets
            letters.extend(added)
            starts.extend([start] * len(added))
            ends.extend([end] * len(added))
        orders += added_orders
    if letters:
        _order_run(letters, orders)
        yield Word("".join(letters), starts, ends)


def _order_run(letters: list[str], orders: list[int]) -> None:
    """Sort the last letters by combining class. Their offsets are not moved, so that offsets never decrease."""
    if len(orders) > 1:
        run = sorted(zip(orders, letters[-len(orders) :], strict=True), key=itemgetter(0))
        letters[-len(orders) :] = [letter for _, letter in run]
    orders.clear()


def _meets_cased(text: str, indices: range, alphabet: Alphabet) -> bool:
    """Tell whether the first character that matters for a sigma is a letter."""
    for index in indices:
        beside_sigma = alphabet[text[index]].beside_sigma
        if beside_sigma is not LOOK_THROUGH:
            return beside_sigma is CASED
    return False
