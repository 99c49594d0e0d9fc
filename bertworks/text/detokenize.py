"""Tokens to text that reads well: pieces joined to words, punctuation set where English and Korean print it.

WordPiece forgets where the spaces were, so this is typography, not inversion: "don ' t" becomes "don't", "3 . 14"
becomes "3.14", CJK characters close up, and Hangul letters that accent stripping took apart become syllables again.
"""

import unicodedata
from collections.abc import Iterable

from bertworks.text.normalize import is_cjk
from bertworks.text.vocabulary import CONTINUATION, SPECIAL_TOKENS

_NO_SPACE_BEFORE = set(".,!?;:%)]}»”’…、。，！？；：）］｝」』》〉·")
_NO_SPACE_AFTER = set("([{«“‘$£€₩#@¿¡（［｛「『《〈·")
_TIGHT_BETWEEN_WORDS = set("-/_@~–'’&")
_TIGHT_BETWEEN_DIGITS = set(".,:-–/")
_CONTRACTIONS = {"s", "t", "d", "m", "re", "ve", "ll"}


def join_tokens(tokens: Iterable[str]) -> str:
    """Return the text that a sequence of tokens stands for."""
    words = _join_pieces(tokens)
    text = ""
    open_quotes: set[str] = set()
    for index, word in enumerate(words):
        before = words[index - 1] if index else ""
        after = words[index + 1] if index + 1 < len(words) else ""
        if index and _has_space(words, index, open_quotes):
            text += " "
        if word in ('"', "'") and not _is_apostrophe(before, word, after):
            open_quotes ^= {word}
        text += word
    return text


def _join_pieces(tokens: Iterable[str]) -> list[str]:
    words: list[str] = []
    for token in tokens:
        continues = token.startswith(CONTINUATION) and token != CONTINUATION
        if continues and words and words[-1] not in SPECIAL_TOKENS:
            words[-1] += token.removeprefix(CONTINUATION)
        else:
            words.append(token)
    return [unicodedata.normalize("NFC", word) for word in words]


def _has_space(words: list[str], index: int, open_quotes: set[str]) -> bool:
    """Tell whether print has a space between the word at an index and the one before it."""
    before, word = words[index - 1], words[index]
    after = words[index + 1] if index + 1 < len(words) else ""
    earlier = words[index - 2] if index > 1 else ""
    if _is_tight(before, word, after) or _is_tight(earlier, before, word):
        return False
    if word in open_quotes or (before in open_quotes and not _is_apostrophe(earlier, before, word)):
        return False
    if before in _NO_SPACE_AFTER or word in _NO_SPACE_BEFORE:
        return False
    return not (_closes_up(before[-1]) and (_closes_up(word[0]) or _is_hangul(word[0])))


def _is_tight(before: str, mark: str, after: str) -> bool:
    """Tell whether a mark between two words takes no space on either side, as in well-known, 10:30 and don't."""
    if not before[-1:].isalnum() or not after[:1].isalnum():
        return False
    if mark in _TIGHT_BETWEEN_DIGITS and before[-1].isdigit() and after[0].isdigit():
        return mark != "," or len(after) == 3
    return _is_apostrophe(before, mark, after) or (mark in _TIGHT_BETWEEN_WORDS and mark not in "'’&")


def _is_apostrophe(before: str, mark: str, after: str) -> bool:
    return mark in ("'", "’") and before[-1:].isalnum() and after in _CONTRACTIONS


def _closes_up(char: str) -> bool:
    """Tell whether a character is of a script written without spaces: Chinese characters and kana."""
    return is_cjk(char) or "\u3040" <= char <= "\u30ff"


def _is_hangul(char: str) -> bool:
    return "가" <= char <= "힣"
