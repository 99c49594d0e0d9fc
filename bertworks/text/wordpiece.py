"""A word to pieces and back: the longest piece that fits, again and again, as in google-research/bert.

- A word of more than 200 characters, or one with a part that no piece fits, becomes a single [UNK]. The search for the
  longest fit starts at the longest piece that begins with the same three characters, not at the end of the word, which
  gives the same pieces in time that grows with the word instead of its square.
- Back: WordPiece forgets where the spaces were, so `join_tokens` is typography, not inversion. It joins pieces to words
  and sets punctuation as English and Korean print it: "don ' t" becomes "don't", "3 . 14" becomes "3.14", CJK
  characters close up, and Hangul letters that accent stripping took apart become syllables again. Where print is
  divided (a dash between words, a bracket after a word), the more frequent form in Wikipedia is taken.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping

from bertworks.text.normalize import is_cjk
from bertworks.text.vocabulary import CONTINUATION, MAX_WORD_LENGTH, SPECIAL_TOKENS, UNK

_NUM_LOOKED_UP = 3  # characters by which the longest piece is looked up

# A piece's id, and the start and end of the characters of the word that it covers. A tuple without names is made in a
# fifth of the time, and the garbage collector does not visit those that are remembered.
Match = tuple[int, int, int]


class WordPiece:
    """Splits words into pieces of one vocabulary, and remembers the words it split last."""

    _MAX_REMEMBERED = 50_000

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.unk_id = ids[UNK]
        self._first = ids
        self._rest = {piece[2:]: id for piece, id in ids.items() if piece.startswith(CONTINUATION)}
        self._first_reach = _reach(self._first)
        self._rest_reach = _reach(self._rest)
        self._remembered: dict[str, list[Match]] = {}

    def split(self, word: str) -> list[Match]:
        """Return the pieces of one normalised word."""
        matches = self._remembered.get(word)
        if matches is None:
            matches = self._match(word)
            if len(self._remembered) >= self._MAX_REMEMBERED:
                self._remembered.clear()
            if len(word) <= MAX_WORD_LENGTH:
                self._remembered[word] = matches
        return matches

    def split_rest(self, rest: str) -> list[Match]:
        """Return the pieces of the rest of a word whose beginning has been split off."""
        return self._match(rest, is_rest=True)

    def _match(self, word: str, *, is_rest: bool = False) -> list[Match]:
        unknown = [(self.unk_id, 0, len(word))]
        if len(word) + is_rest > MAX_WORD_LENGTH:  # a rest has a letter before it
            return unknown
        matches: list[Match] = []
        start = 0
        ids, reach = (self._rest, self._rest_reach) if is_rest else (self._first, self._first_reach)
        while start < len(word):
            piece = word[start : start + reach.get(word[start : start + _NUM_LOOKED_UP], _NUM_LOOKED_UP - 1)]
            while piece and piece not in ids:
                piece = piece[:-1]
            if not piece:
                return unknown
            end = start + len(piece)
            matches.append((ids[piece], start, end))
            start, ids, reach = end, self._rest, self._rest_reach
        return matches


def _reach(pieces: Iterable[str]) -> dict[str, int]:
    """Map the first characters of pieces to the length of the longest piece that begins with them."""
    reach: dict[str, int] = {}
    for piece in pieces:
        beginning = piece[:_NUM_LOOKED_UP]
        if len(piece) > reach.get(beginning, 0):
            reach[beginning] = len(piece)
    return reach


_HYPHEN = "-"
_NO_SPACE_BEFORE = set(".,!?;:%)]}»”’…、。，！？；：）］｝」』》〉·—") | {"--"}
_NO_SPACE_AFTER = set("([{«“‘$£€₩#@¿¡（［｛「『《〈·—") | {"--"}
_WIDE_MARKS = set("、。，！？；：（）［］｛｝「」『』《》〈〉")
_TIGHT_BETWEEN_WORDS = set("-/_@")
_TIGHT_BETWEEN_DIGITS = set(".,:-–/~")
_CONTRACTIONS = {"s", "t", "d", "m", "re", "ve", "ll"}  # of is, not, would, am, are, have, will
_ELISIONS = {"o", "d", "l"}  # as in o'clock, d'Arc, l'homme
_BEFORE_PARTICLES = set(")]）］》〉」』”’\"'%")
# Korean sets particles and forms of 이다 tight, also after a bracket or a quotation mark; other words get a space.
_PARTICLE = re.compile(
    "[은는이가을를의도만고며나인]|(?:와|과|에|에게|에서|으?로|까지|부터|처럼|보다)(?:[는도만의]|서|서의|써|부터)?"
    "|이?(?:라|란|다|며|고|나|자|지만|라는|라고|라고도|라며)|이?[었였].*"
)


def join_tokens(tokens: Iterable[str]) -> str:
    """Return the text of a sequence of tokens."""
    spelt: list[list[str]] = []
    for token in filter(None, tokens):
        continues = token.startswith(CONTINUATION) and token != CONTINUATION
        if continues and spelt and spelt[-1][0] not in SPECIAL_TOKENS:
            spelt[-1].append(token.removeprefix(CONTINUATION))
        elif spelt and spelt[-1] == [token] == [_HYPHEN]:  # a dash, as typewriters write it
            spelt[-1].append(token)
        else:
            spelt.append([token])
    # Letters and accents come together; not in words longer than any text gives, where it takes the square of time.
    whole = map("".join, spelt)
    words = [unicodedata.normalize("NFC", word) if len(word) <= MAX_WORD_LENGTH else word for word in whole]
    parts: list[str] = []
    before, is_tight_after = "", True
    for word, (is_tight_before, tight_after) in zip(words, _tight_sides(words), strict=True):
        if not (is_tight_after or is_tight_before or _closes_up(before, word)):
            parts.append(" ")
        parts.append(word)
        before, is_tight_after = word, tight_after
    return "".join(parts)


def _tight_sides(words: list[str]) -> Iterator[tuple[bool, bool]]:
    """Say of each word whether it is set tight against the one before it, and against the one after it."""
    around = list(zip(["", *words], words, [*words[1:], ""], [*words[2:], "", ""], strict=False))
    num_quotes = sum(word == "'" and not _is_tight(before, word, after, later) for before, word, after, later in around)
    is_open = {'"': False, "'": False}
    for before, word, after, later in around:
        if _is_tight(before, word, after, later):
            yield True, True
        elif word not in is_open:
            yield word in _NO_SPACE_BEFORE, word in _NO_SPACE_AFTER
        elif word == "'" and num_quotes % 2 and before.endswith("s") and not is_open["'"]:
            num_quotes -= 1  # no pair of quotation marks: it is the plural's, as in the others' words
            yield True, False
        else:
            yield is_open[word], not is_open[word]
            is_open[word] = not is_open[word]


def _is_tight(before: str, mark: str, after: str, later: str) -> bool:
    """Tell whether a mark between two words takes no space on either side, as in well-known, 10:30, U.S. and don't."""
    if not before[-1:].isalnum() or not after[:1].isalnum():
        return False
    if mark in _TIGHT_BETWEEN_DIGITS and before[-1].isdigit() and after[0].isdigit():
        return mark != "," or (len(before) <= 3 and len(after) == 3)
    if mark in ("'", "’"):
        return after in _CONTRACTIONS or before.lower() in _ELISIONS
    if mark == ".":
        return len(before) == len(after) == 1 and later == "."
    return mark in _TIGHT_BETWEEN_WORDS or (mark == "&" and 1 in (len(before), len(after)))


def _closes_up(before: str, word: str) -> bool:
    """Tell whether two words stand without a space because of their script."""
    if _is_hangul(word[0]):
        return _is_spaceless(before[-1]) or (before in _BEFORE_PARTICLES and _PARTICLE.fullmatch(word) is not None)
    if word in ("(", "[", "（", "［"):
        return _is_hangul(before[-1]) or _is_spaceless(before[-1]) or before in ("》", "〉", "」", "』")
    is_spaceless_before = _is_spaceless(before[-1]) or before in _WIDE_MARKS
    return is_spaceless_before and (_is_spaceless(word[0]) or word in _WIDE_MARKS)


def _is_spaceless(char: str) -> bool:
    """Tell whether a character is of a script written without spaces: Chinese characters and kana."""
    return is_cjk(char) or "\u3040" <= char <= "\u30ff"


def _is_hangul(char: str) -> bool:
    return "가" <= char <= "힣"
