"""Masks that a model fills, and pairs that it judges: asked, told, and as parts of the report."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from bertworks.demo.asked import NUM_GUESSES, PAIRS
from bertworks.demo.page_parts import cards, shares, text
from bertworks.demo.telling import bar, percent, tell


class Filled(NamedTuple):
    """A text with a mask, and the likeliest pieces there with their probabilities."""

    text: str
    guesses: list[tuple[str, float]]


class Judged(NamedTuple):
    """Two sentences, and how likely the model finds that the second follows."""

    first: str
    second: str
    probability: float


def fill_all(model: Any, texts: Sequence[str]) -> list[Filled]:
    """Have a model fill the mask of each text."""
    return [
        Filled(one, [(guess["token"], guess["score"]) for guess in model.fill(one, top_k=NUM_GUESSES)[0]])
        for one in texts
    ]


def judge_pairs(model: Any) -> list[Judged]:
    """Ask a model which sentences follow each other."""
    return [Judged(first, second, model.nsp(first, second)) for first, second in PAIRS]


def tell_filled(filled: Sequence[Filled]) -> None:
    """Write what was guessed, two lines a text."""
    for one in filled:
        tell(f"{one.text}\n  {'   '.join(f'{piece} {percent(share)}' for piece, share in one.guesses)}")


def tell_judged(judged: Sequence[Judged]) -> None:
    """Write how likely each pair is one, two lines a pair."""
    for one in judged:
        drawn = f"{bar(one.probability)} {one.probability:4.0%}  "
        tell(f"{drawn}{one.first}\n{' ' * len(drawn)}{one.second}")


def filled_html(filled: Sequence[Filled]) -> str:
    """Return cards with the guesses as bars."""
    return cards(text(one.text) + shares(one.guesses) for one in filled)


def judged_html(judged: Sequence[Judged]) -> str:
    """Return cards with both sentences and the judgement as a bar."""
    return cards(
        text(one.first) + text(one.second) + shares([("follows", one.probability)], is_first_best=False)
        for one in judged
    )
