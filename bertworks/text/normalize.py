"""Text to words, as google-research/bert's BasicTokenizer does it, with the place of every character kept.

The original works on whole strings: clean, put spaces around CJK, split at white space, lower-case, decompose and drop
accents, split at punctuation. The same words come out of one pass over the characters, because each step but two looks
at a single character. The two exceptions are handled where they arise: the Greek capital sigma, whose lower case
depends on its neighbours, and canonical ordering, which may swap combining characters that are not accents.

One pass gives offsets for free and takes linear time, where `unicodedata.normalize` is quadratic in long runs of
combining marks. The compiled way in `bulk.py` uses the same `Alphabet`, so both follow one statement of the rules.
"""

import re
import unicodedata
from typing import NamedTuple

SIGMA = "Σ"
_RUNS = re.compile(r"[A-Za-z0-9]+|(?s:.)")  # no rule but lower-casing touches ASCII letters and digits: taken as one

SPACE = "space"  # ends a word
DROP = "drop"  # as if it were not there
MARK = "mark"  # an accent that is taken off: belongs to the character before it
ALONE = "alone"  # a CJK character: a word of its own, and white space to its neighbours
LETTERS = "letters"  # everything else

_CJK_BLOCKS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F), (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


class Rules(NamedTuple):
    """What normalisation does; the three settings are independent of each other."""

    lowercase: bool = True
    strip_accents: bool = True
    split_cjk: bool = True


class Letter(NamedTuple):
    """One character after normalisation."""

    text: str
    is_punctuation: bool
    order: int  # canonical combining class if it can move, else 0


class Character(NamedTuple):
    """What the rules make of one character of the input."""

    kind: str
    letters: tuple[Letter, ...] = ()
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
    point = ord(char)
    return any(first <= point <= last for first, last in _CJK_BLOCKS)


def is_dropped(char: str) -> bool:
    """Tell whether cleaning removes a character: NUL, U+FFFD and controls other than tab and line ends."""
    return char in "\0\ufffd" or (unicodedata.category(char) in ("Cc", "Cf") and char not in "\t\n\r")


class Alphabet(dict[str, Character]):
    """Character by character, what the rules make of it; worked out when a character is first met."""

    _MAX_KEPT = 65_536

    def __init__(self, rules: Rules) -> None:
        super().__init__()
        self.rules = rules

    def __missing__(self, char: str) -> Character:
        if len(self) >= self._MAX_KEPT:
            self.clear()
        self[char] = character = self.classify(char)
        return character

    def classify(self, char: str) -> Character:
        """Apply every rule to one character (of a capital sigma, the form inside a word)."""
        if is_dropped(char):
            return Character(DROP)
        if char.isspace():  # U+2028 and U+2029 are not cleaned, but the original's str.split() breaks at them
            return Character(SPACE)
        mapped = "σ" if char == SIGMA and self.rules.lowercase else char.lower() if self.rules.lowercase else char
        pieces = unicodedata.normalize("NFD", mapped) if self.rules.strip_accents else mapped
        letters = tuple(self._letter(c) for c in pieces if not self._is_accent(c))
        if not letters:
            return Character(MARK, stops_reordering=any(not unicodedata.combining(c) for c in pieces))
        return Character(ALONE if self.rules.split_cjk and is_cjk(char) else LETTERS, letters)

    def _is_accent(self, char: str) -> bool:
        return self.rules.strip_accents and unicodedata.category(char) == "Mn"

    def _letter(self, char: str) -> Letter:
        order = unicodedata.combining(char) if self.rules.strip_accents else 0
        return Letter(char, is_punctuation(char), order)


class _WordBuilder:
    """Collects letters into words, and puts runs of combining letters into canonical order."""

    def __init__(self) -> None:
        self.words: list[Word] = []
        self._letters: list[str] = []
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._run_orders: list[int] = []  # of the combining letters at the end of the word

    def add(self, letter: Letter, start: int) -> None:
        if letter.is_punctuation:
            self.finish()
            self.words.append(Word(letter.text, [start], [start + 1]))
            return
        if letter.order:
            self._run_orders.append(letter.order)
        elif self._run_orders:
            self._order_run()
        self._letters.append(letter.text)
        self._starts.append(start)
        self._ends.append(start + 1)

    def add_run(self, run: str, start: int) -> None:
        self._order_run()
        self._letters.append(run)
        self._starts.extend(range(start, start + len(run)))
        self._ends.extend(range(start + 1, start + 1 + len(run)))

    def add_mark(self, start: int, stops_reordering: bool) -> None:
        if stops_reordering:
            self._order_run()
        ends = self._ends or (self.words[-1].ends if self.words else [])
        if ends and ends[-1] == start:
            ends[-1] = start + 1

    def finish(self) -> None:
        if self._letters:
            self._order_run()
            self.words.append(Word("".join(self._letters), self._starts, self._ends))
            self._letters, self._starts, self._ends = [], [], []

    def _order_run(self) -> None:
        """Sort the run by combining class. Only letters move: places stay, so that offsets never run backwards."""
        if len(self._run_orders) > 1:
            first = len(self._letters) - len(self._run_orders)
            run = sorted(zip(self._run_orders, self._letters[first:], strict=True), key=lambda pair: pair[0])
            self._letters[first:] = [text for _, text in run]
        self._run_orders = []


def split_words(text: str, alphabet: Alphabet) -> list[Word]:
    """Return the normalised words of a text."""
    builder = _WordBuilder()
    lowercase = alphabet.rules.lowercase
    for match in _RUNS.finditer(text):
        char, index = match.group(), match.start()
        if len(char) > 1:
            builder.add_run(char.lower() if lowercase else char, index)
            continue
        kind, letters, stops_reordering = alphabet[char]
        if kind is DROP:
            continue
        if kind is MARK:
            builder.add_mark(index, stops_reordering)
            continue
        if kind is not LETTERS:
            builder.finish()
        if char == SIGMA and lowercase and ends_word(text, index, alphabet):
            letters = (Letter("ς", False, 0),)
        for letter in letters:
            builder.add(letter, index)
        if kind is ALONE:
            builder.finish()
    builder.finish()
    return builder.words


def ends_word(text: str, index: int, alphabet: Alphabet) -> bool:
    """Tell whether the capital sigma at an index is lower-cased to ς: a letter before it, and none after.

    Characters that have no case of their own (apostrophes, full stops, accents) are looked through. Every sigma stops
    the search of its neighbours, so all searches of a text together take linear time.
    """
    return _meets_cased(text, range(index - 1, -1, -1), alphabet) and not _meets_cased(
        text, range(index + 1, len(text)), alphabet
    )


def _meets_cased(text: str, indices: range, alphabet: Alphabet) -> bool:
    for index in indices:
        char = text[index]
        kind = alphabet[char].kind
        if kind is SPACE or kind is ALONE:
            return False
        if kind is not DROP and not is_case_ignorable(char):
            return is_cased(char)
    return False


def is_cased(char: str) -> bool:
    """Tell whether a character alone makes the sigma after it final, by asking Python's own tables."""
    return (char + SIGMA).lower()[-1] == "ς"


def is_case_ignorable(char: str) -> bool:
    """Tell whether the search for a cased neighbour of a sigma looks through a character."""
    return not is_cased(char) and ("A" + char + SIGMA).lower()[-1] == "ς"
