"""Text to words, as google-research/bert's BasicTokenizer does it, with the place of every character kept.

- The original works on whole strings: clean, put spaces around CJK, split at white space, lower-case, decompose and
  drop accents, split at punctuation. The same words come out of one pass over the characters, because each step but two
  looks at a single character. The two exceptions are handled where they arise: the Greek capital sigma, whose lower
  case depends on its neighbours, and canonical ordering, which may swap combining characters that are not accents.
- One pass gives offsets for free and takes linear time, where `unicodedata.normalize` is quadratic in long runs of
  combining marks. The compiled way in `fast.py` uses the same `Alphabet`, so both follow one statement of the rules.
"""

import re
import unicodedata
from collections.abc import Iterator
from itertools import chain
from operator import itemgetter
from typing import NamedTuple

_ASCII_WORDS = re.compile(r"[A-Za-z0-9]+|.")
_RUNS = re.compile(r"[A-Za-z0-9]+|(?s:.)")  # no rule but lower-casing touches ASCII letters and digits: taken as one
_CHARS_AT_ONCE = 4_096

# str.split() breaks at these, while BERT drops them and joins what is on their sides.
_DROPPED_SPACES = re.compile("[\x0b\x0c\x1c-\x1f\x85]")

SPACE = "space"  # ends a word
DROP = "drop"  # as if it were not there
MARK = "mark"  # an accent that is taken off: belongs to the character before it
ALONE = "alone"  # punctuation or a CJK character: a word of its own
SIGMA = "sigma"  # Σ, to be lower-cased to σ or ς
LETTERS = "letters"  # everything else

# What a character says about a Σ beside it, which becomes ς where a letter comes before it and none after.
CASED = "cased"  # a letter
UNCASED = "uncased"  # no letter
LOOK_THROUGH = "look through"  # ask the next one: apostrophes, full stops, accents
BOUNDARY = "boundary"  # nothing after it counts: white space, and CJK, which gets spaces around it

_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class Rules(NamedTuple):
    """What normalisation does; the three settings are independent of each other."""

    lowercase: bool = True
    strip_accents: bool = True
    split_cjk: bool = True

    @classmethod
    def of(cls, lowercase: bool = True, strip_accents: bool | None = None, split_cjk: bool = True) -> "Rules":
        """Return rules in which accents follow lower-casing by default, as in the original."""
        return cls(lowercase, lowercase if strip_accents is None else strip_accents, split_cjk)


class Character(NamedTuple):
    """What the rules make of one character of the input."""

    kind: str
    beside_sigma: str
    letters: str = ""
    orders: tuple[int, ...] = ()  # canonical combining classes of the last letters, where these may have to move
    stops_reordering: bool = True


class Word(NamedTuple):
    """A word (or one punctuation mark, or one CJK character) and where each of its characters stood in the text."""

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
    """Character by character, what the rules make of it; computed when a character first occurs."""

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
        return Alphabet, (self.rules,)  # a copy starts empty: kinds are told apart by identity, which pickles lose

    def lower(self, text: str) -> str:
        """Lower-case if the rules say so."""
        return text.lower() if self.rules.lowercase else text

    def classify(self, char: str) -> Character:
        """Apply every rule to one character."""
        if is_dropped(char):
            return Character(DROP, LOOK_THROUGH, stops_reordering=False)
        if char.isspace():  # U+2028 and U+2029 are not cleaned, but the original's str.split() breaks at them
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
    """Ask Python's own tables, by what they make of a sigma after the character."""
    if (char + "Σ").lower()[-1] == "ς":
        return CASED
    return LOOK_THROUGH if ("A" + char + "Σ").lower()[-1] == "ς" else UNCASED


def split_spaces(text: str) -> list[str]:
    """Return the parts between white space; the words of a text are those of its parts, each taken alone."""
    return _DROPPED_SPACES.sub("", text).split()


def words_of(part: str, alphabet: Alphabet) -> list[str]:
    """Return the normalised words of a part between white space as plain strings."""
    if part.isascii() and part.isprintable():  # then it is letters, digits, and punctuation, each a word of its own
        return _ASCII_WORDS.findall(alphabet.lower(part))
    return [word.text for word in split_words(part, alphabet)]


def split_words(text: str, alphabet: Alphabet) -> Iterator[Word]:
    """Give the normalised words of a text, each when the next one begins: accents after its end still belong to it.

    Not as a list, whose words the garbage collector would visit again and again, at half the speed.
    """
    letters: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    orders: list[int] = []  # combining classes of the letters at the end of the word that may have to move
    is_closed, end = False, 0
    added_orders: tuple[int, ...]
    # Some characters at a time, for a caller that wants the first words of a long text; a run may be cut in two.
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
        # Every sigma stops the search of its neighbours, so all searches of a text together take linear time.
        if kind is SIGMA and _meets_cased(text, range(start - 1, -1, -1), alphabet):
            added = "σ" if _meets_cased(text, range(end, len(text)), alphabet) else "ς"
        if len(added) == 1:
            letters.append(added)
            starts.append(start)
            ends.append(end)
        elif len(chars) > 1:  # a run of ASCII, each letter with its own place
            letters.append(added)
            starts.extend(range(start, end))
            ends.extend(range(start + 1, end + 1))
        else:  # the letters of one character share its place
            letters.extend(added)
            starts.extend([start] * len(added))
            ends.extend([end] * len(added))
        orders += added_orders
    if letters:
        _order_run(letters, orders)
        yield Word("".join(letters), starts, ends)


def _order_run(letters: list[str], orders: list[int]) -> None:
    """Sort the last letters by combining class. Their places stay, so that offsets never run backwards."""
    if len(orders) > 1:
        run = sorted(zip(orders, letters[-len(orders) :], strict=True), key=itemgetter(0))
        letters[-len(orders) :] = [letter for _, letter in run]
    orders.clear()


def _meets_cased(text: str, indices: range, alphabet: Alphabet) -> bool:
    """Tell whether the first character that says anything about a sigma says that a letter is there."""
    for index in indices:
        beside_sigma = alphabet[text[index]].beside_sigma
        if beside_sigma is not LOOK_THROUGH:
            return beside_sigma is CASED
    return False
