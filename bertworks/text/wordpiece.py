"""A word to pieces: the longest piece of the vocabulary that fits, again and again, as in google-research/bert.

A word of more than 200 characters, or one with a part that no piece fits, becomes a single [UNK]. The search for the
longest fit starts at the longest piece that begins with the same three characters, not at the end of the word, which
gives the same pieces in time that grows with the word instead of its square.
"""

from collections.abc import Iterable, Mapping

from bertworks.text.vocabulary import CONTINUATION, UNK

MAX_WORD_LENGTH = 200
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
