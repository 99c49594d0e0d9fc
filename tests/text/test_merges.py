"""Every merge is one that a slow reference, which counts everything anew each turn, finds the best."""

import math
import random
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sweeps import examples

from bertworks.text import merges
from bertworks.text.merges import OUTSIDE, Words, learn_pieces

Pair = tuple[str, str]
ALPHABET = "abc"


class Result(NamedTuple):
    """What was learned, and the pairs that were merged on the way."""

    counts: dict[str, int]
    merged: list[Pair]


def letters_of(alphabet: str) -> list[str]:
    return [*alphabet, *("##" + letter for letter in alphabet)]


def pieces_of(word: str) -> list[str]:
    return [word[0], *("##" + letter for letter in word[1:])]


def as_words(text: dict[str, int], letters: list[str]) -> Words:
    symbols = {letter: symbol for symbol, letter in enumerate(letters)}
    flat = [symbols.get(piece, OUTSIDE) for word in text for piece in pieces_of(word)]
    starts = np.cumsum([0, *map(len, text)])
    return Words(np.array(flat, np.int32), starts.astype(np.int64), np.array(list(text.values()), np.int64))


def learn(text: dict[str, int], alphabet: str, num_pieces: int, min_count: int, by_gain: bool) -> Result:
    """Learn, and look on: a piece alone does not tell which of its halves were merged."""
    letters = letters_of(alphabet)
    by_symbol: dict[int, str] = dict(enumerate(letters))
    merged: list[Pair] = []
    merge = merges._merge_pair

    def watched(state: merges._State, pair: int, symbol: int, *settings: object) -> None:
        left, right = (by_symbol[half] for half in state.pairs[pair, :2].tolist())
        merged.append((left, right))
        by_symbol[symbol] = joined(left, right)
        merge(state, pair, symbol, *settings)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(merges, "_merge_pair", watched)
        words = as_words(text, letters)
        counts, merges_made = learn_pieces(words, letters, num_pieces, min_count=min_count, by_gain=by_gain)
    assert merges_made == merged
    return Result(counts, merged)


# --- the reference -------------------------------------------------------------------------------------------------


def joined(left: str, right: str) -> str:
    return left + right.removeprefix("##")


def f(x: int) -> float:
    return x * math.log(x) if x > 0 else 0.0


def gain(pair: Pair, m: int, counts: Counter[str]) -> float:
    """Return how much the log likelihood of the pieces rises when m pairs become one piece each."""
    n, ca, cb = counts.total(), counts[pair[0]], counts[pair[1]]
    if pair[0] == pair[1]:
        return f(ca - 2 * m) + f(m) - f(ca) - f(n - m) + f(n)
    return f(ca - m) + f(cb - m) + f(m) - f(ca) - f(cb) - f(n - m) + f(n)


def merge_in(pieces: list[str], pair: Pair) -> list[str]:
    done: list[str] = []
    while pieces:
        length = 2 if tuple(pieces[:2]) == pair else 1
        done.append(joined(*pair) if length == 2 else pieces[0])
        pieces = pieces[length:]
    return done


class Reference:
    """The words in pieces; all counts and values are worked out from them whenever they are asked for."""

    def __init__(self, text: dict[str, int], alphabet: str, min_count: int, by_gain: bool) -> None:
        known = letters_of(alphabet)
        self.words = [([p if p in known else "" for p in pieces_of(word)], count) for word, count in text.items()]
        self.min_count = min_count
        self.by_gain = by_gain

    def piece_counts(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for pieces, count in self.words:
            for piece in filter(None, pieces):
                counts[piece] += count
        return counts

    def values(self) -> dict[Pair, float]:
        """Return what every pair that may be merged is worth."""
        pair_counts: Counter[Pair] = Counter()
        for pieces, count in self.words:
            for pair in pairwise(pieces):
                pair_counts[pair] += count if all(pair) else 0
        often = {pair: m for pair, m in pair_counts.items() if m >= max(self.min_count, 1)}
        counts = self.piece_counts()
        return {pair: gain(pair, m, counts) if self.by_gain else float(m) for pair, m in often.items()}

    def rounding(self) -> float:
        return 1e-14 * f(self.piece_counts().total()) + 1e-9

    def merge(self, pair: Pair) -> None:
        self.words = [(merge_in(pieces, pair), count) for pieces, count in self.words]


def check_every_turn(text: dict[str, int], alphabet: str, num_pieces: int, min_count: int, by_gain: bool) -> Result:
    """Learn, and assert that each merge was of a best pair (ties may go either way) and that none was left out."""
    result = learn(text, alphabet, num_pieces, min_count, by_gain)
    reference = Reference(text, alphabet, min_count, by_gain)
    expected = dict.fromkeys(letters_of(alphabet), 0)
    for pair in result.merged:
        assert len(expected) < num_pieces
        values = reference.values()
        assert values[pair] >= max(values.values()) - reference.rounding()
        assert values[pair] > -reference.rounding()
        reference.merge(pair)
        expected.setdefault(joined(*pair), 0)
    assert len(expected) == len(letters_of(alphabet)) + len(result.merged), "a piece was made twice"
    assert list(result.counts) == list(expected)
    assert result.counts == {**expected, **reference.piece_counts()}
    if len(expected) < num_pieces:
        assert max(reference.values().values(), default=0.0) <= reference.rounding()
    return result


TEXTS = st.dictionaries(st.text("abcz", min_size=1, max_size=9), st.integers(1, 40), max_size=12)
NUM_PIECES = st.integers(0, 40)


@pytest.mark.parametrize("by_gain", [True, False])
@pytest.mark.parametrize("min_count", [1, 2, 5])
@given(text=TEXTS, num_pieces=NUM_PIECES)
@example(text={"aaaa": 3, "aaaaa": 2, "aaa": 1}, num_pieces=40)
@example(text={"abab": 1, "ababab": 7, "ba": 2, "cabababab": 5}, num_pieces=40)
@settings(max_examples=examples(150), deadline=None)
def test_every_merge_is_the_best_of_its_turn(
    text: dict[str, int], num_pieces: int, min_count: int, by_gain: bool
) -> None:
    check_every_turn(text, ALPHABET, num_pieces, min_count, by_gain)


@pytest.mark.parametrize("by_gain", [True, False])
@pytest.mark.parametrize("most", [30, 10**12])
def test_every_merge_is_the_best_of_its_turn_in_a_larger_text(by_gain: bool, most: int) -> None:
    """Hundreds of turns, in which pieces grow rare, pairs come back, and counts go beyond 32 bits."""
    draw = random.Random(0)
    syllables = ["".join(draw.choices("abcdefgh", k=draw.randint(1, 3))) for _ in range(30)]
    text = {"".join(draw.choices(syllables, k=draw.randint(1, 4))): draw.randint(1, most) for _ in range(250)}
    result = check_every_turn(text, "abcdefgh", 250, 2, by_gain)
    assert len(result.counts) == 250


# --- single traits, worked out by hand -----------------------------------------------------------------------------


def test_bpe_takes_the_most_frequent_pair() -> None:
    result = learn({"ab": 3, "cb": 2, "ac": 2}, ALPHABET, 7, 1, by_gain=False)
    assert result.merged == [("a", "##b")]
    assert result.counts == {"a": 2, "b": 0, "c": 2, "##a": 0, "##b": 2, "##c": 2, "ab": 3}


def test_wordpiece_prefers_letters_that_stand_together_to_letters_that_are_frequent() -> None:
    """ "xy" is rarer than "ab", but a and b are all over the place, x and y are never apart."""
    text = {"ab": 10, "aa": 10, "ba": 10, "bb": 10, "xy": 9}
    assert learn(text, "abxy", 9, 1, by_gain=False).merged[0][0] in "ab"
    assert learn(text, "abxy", 9, 1, by_gain=True).merged == [("x", "##y")]


def test_wordpiece_stops_where_no_merge_raises_the_likelihood() -> None:
    """Chance would put a and b side by side 500 times; once is no reason to merge them."""
    text = {"a": 1000, "zb": 1000, "ab": 1}
    assert learn(text, "ab", 10, 1, by_gain=False).merged == [("a", "##b")]
    assert learn(text, "ab", 10, 1, by_gain=True).merged == []


@pytest.mark.parametrize("by_gain", [True, False])
@pytest.mark.parametrize(("word", "second"), [("zaaa", ("##aa", "##a")), ("zaaaa", ("##aa", "##aa"))])
def test_a_pair_that_overlaps_itself_is_merged_from_the_left(word: str, second: Pair, by_gain: bool) -> None:
    result = learn({word: 5, "b": 1000}, "ab", 6, 1, by_gain)
    assert result.merged == [("##a", "##a"), second]
    assert result.counts == {"a": 0, "b": 1000, "##a": 0, "##b": 0, "##aa": 0, joined(*second): 5}


def test_a_letter_outside_the_alphabet_keeps_its_neighbours_apart() -> None:
    result = learn({"azb": 100, "zab": 3, "abz": 2}, "ab", 10, 1, by_gain=False)
    assert result.merged == [("##a", "##b"), ("a", "##b")]
    assert result.counts == {"a": 100, "b": 0, "##a": 0, "##b": 100, "##ab": 3, "ab": 2}


@pytest.mark.parametrize("by_gain", [True, False])
def test_pairs_below_the_least_count_are_not_merged(by_gain: bool) -> None:
    assert learn({"ab": 4}, "ab", 10, 5, by_gain).merged == []
    assert learn({"ab": 5}, "ab", 10, 5, by_gain).merged == [("a", "##b")]


@pytest.mark.parametrize("by_gain", [True, False])
def test_learning_ends_when_every_word_is_a_piece(by_gain: bool) -> None:
    counts = learn({"abc": 5, "cab": 4}, ALPHABET, 1_000, 1, by_gain).counts
    assert {piece: count for piece, count in counts.items() if count} == {"abc": 5, "cab": 4}
    assert len(counts) < 12


@pytest.mark.parametrize("text", [{}, {"a": 5}, {"z": 5, "zz": 2}])
def test_text_without_pairs_leaves_the_letters(text: dict[str, int]) -> None:
    assert list(learn(text, ALPHABET, 40, 1, by_gain=True).counts) == letters_of(ALPHABET)


def test_fewer_pieces_than_letters_leaves_the_letters() -> None:
    assert list(learn({"ab": 5}, ALPHABET, 2, 1, by_gain=True).counts) == letters_of(ALPHABET)


# --- tables that grow ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("by_gain", [True, False])
def test_tables_that_grow_every_few_turns_lose_nothing(monkeypatch: pytest.MonkeyPatch, by_gain: bool) -> None:
    draw = random.Random(1)
    text = {"".join(draw.choices("abcdefgh", k=8)): draw.randint(1, 9) for _ in range(300)}
    usual = learn(text, "abcdefgh", 400, 1, by_gain)
    sizes: list[int] = []

    def with_just_enough_room(state: merges._State) -> merges._State:
        needed = int(state.numbers[merges._NUM_PAIRS]) + 2 * len(state.symbol_counts)
        if needed <= len(state.pairs):
            return state
        sizes.append(needed)
        return merges._grown(state, needed)

    monkeypatch.setattr(merges, "_with_room", with_just_enough_room)
    assert learn(text, "abcdefgh", 400, 1, by_gain) == usual
    assert len(sizes) > 100


def test_progress_is_told_how_many_pieces_there_are() -> None:
    draw = random.Random(2)
    letters = letters_of("abcdefgh")
    text = {"".join(draw.choices("abcdefgh", k=6)): 1 for _ in range(200)}
    told: list[tuple[str, float, float | None]] = []
    learn_pieces(
        as_words(text, letters), letters, 200, min_count=1, by_gain=False, progress=lambda *now: told.append(now)
    )
    assert told == [("learning pieces", done, 200) for done in (64, 128, 192)]
