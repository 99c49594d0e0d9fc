"""Where each piece lies in the text that `decode` makes of ids: to mark pieces in what a person reads."""

from collections.abc import Sequence

from bertworks.text.gpt_bpe import END_OF_WORD
from bertworks.text.kinds import AnyTokenizer
from bertworks.text.vocabulary import CONTINUATION


def decoded_places(tokenizer: AnyTokenizer, ids: Sequence[int]) -> tuple[str, list[tuple[int, int]]]:
    """Return a text for ids, none of them special, and the start and end of each piece in it.

    The text is what `decode` gives. Where that has put together letters of two pieces (the parts of a Hangul syllable,
    if accents were stripped) it is plainer: pieces joined to words, and words with spaces between them.
    """
    pieces = [tokenizer.pieces[id] for id in ids]
    is_gpt = tokenizer.kind == "gpt-bpe"
    letters = [_letters(piece, is_gpt) for piece in pieces]
    text = tokenizer.decode(ids)
    places = _found(text, pieces, letters)
    if places is None:
        text = _plain(pieces, letters, is_gpt)
        places = _found(text, pieces, letters)
    assert places is not None, "a plain text has every piece as it is"
    return text, places


def _letters(piece: str, is_gpt: bool) -> str:
    """Return a piece without the mark of its place in a word."""
    return piece.removesuffix(END_OF_WORD) if is_gpt else piece.removeprefix(CONTINUATION) or piece


def _found(text: str, pieces: Sequence[str], letters: Sequence[str]) -> list[tuple[int, int]] | None:
    places, at = [], 0
    for both in zip(pieces, letters, strict=True):
        while text.startswith(" ", at):
            at += 1
        # With its mark where the text begins inside a word.
        shown = next((form for form in both if text.startswith(form, at)), None)
        if shown is None:
            return None
        places.append((at, at + len(shown)))
        at += len(shown)
    return places


def _plain(pieces: Sequence[str], letters: Sequence[str], is_gpt: bool) -> str:
    parts: list[str] = []
    for number, (piece, some) in enumerate(zip(pieces, letters, strict=True)):
        begins = pieces[number - 1].endswith(END_OF_WORD) if is_gpt else not piece.startswith(CONTINUATION)
        parts += [" ", some] if begins and number else [some]
    return "".join(parts)
