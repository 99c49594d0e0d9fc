"""Question answering: windows, targets by characters, and answers found as by a search over every pair."""

import itertools
import time

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from bertworks.errors import UserError
from bertworks.tasks.metrics import score_squad2
from bertworks.tasks.task import NOT_LOCATED, Answer, Cut, Skipped, SpanExample
from bertworks.tasks.windows import (
    ODDS_WITHOUT_A_SPAN,
    ORIGINAL_CUT,
    Answered,
    Guess,
    answer_pieces,
    best_pairs,
    choose_threshold,
    context_cuts,
    decode_answers,
    encode_answers,
    most_context,
    null_odds_of,
    pieces_of,
    predictions_of,
)
from bertworks.text.tokenizer import Tokenizer
from bertworks.text.vocabulary import SPECIAL_TOKENS

LETTERS = [chr(number) for number in range(97, 123)]
PIECES = [*SPECIAL_TOKENS, *LETTERS, *("##" + letter for letter in LETTERS), *"0123456789.,?-()", "서울", "##은", "비"]
TOKENIZER = Tokenizer(PIECES, strip_accents=False)
SMALL = Cut(max_length=16, doc_stride=4, max_query=5)
TEXTS = st.text(st.sampled_from("ab cd. É😀서울은 \x00\n-("), max_size=60)


def question(context, text=None, start=None, **changes):
    """A question with one answer, or none."""
    answers = () if text is None else (Answer(context.index(text) if start is None else start, text),)
    return SpanExample("q", "what is a?", context, answers, False)._replace(**changes)


def score_windows(encoded, seed=0):
    """Random scores for every window; few different ones, so that some are equal."""
    draw = np.random.default_rng(seed)
    return [
        (number, draw.integers(-20, 20, (len(window.ids), 2)).astype(np.float32) / 4)
        for number, window in enumerate(encoded.windows)
    ]


def search(example, encoded, logits, n_best, max_pieces):
    """Every start and end of every window, in plain Python."""
    pieces, found = encoded.contexts[0], []
    for number, scores in logits:
        window = encoded.windows[number]
        count = len(window.ids) - window.context_start - 1
        for i in range(count):
            for j in range(i, min(i + max_pieces, count)):
                if window.may_start[i]:
                    score = scores[window.context_start + i, 0] + scores[window.context_start + j, 1]
                    found.append((-float(score), i + window.first_piece, j + window.first_piece))
    texts = {}
    for score, first, last in sorted(found):
        start, end = int(pieces.starts[first]), int(pieces.ends[last])
        texts.setdefault(example.context[start:end], (start, end, -score))
    null = min(float(scores[0].sum()) for _, scores in logits)
    return [(text, *place) for text, place in texts.items()][:n_best], null


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS)
def test_windows_have_the_originals_form_and_lose_no_piece(context, asked):
    encoded = encode_answers(TOKENIZER, [question(context, question=asked)], SMALL)
    pieces, asked_ids = encoded.contexts[0], TOKENIZER.encode(asked).ids[1:-1][:5]
    cls, sep = TOKENIZER.id_of("[CLS]"), TOKENIZER.id_of("[SEP]")
    seen = np.zeros(len(pieces.ids), bool)
    may_start = np.zeros(len(pieces.ids), int)
    for window in encoded.windows:
        assert len(window.ids) <= SMALL.max_length
        own = pieces.ids[window.first_piece : window.first_piece + len(window.may_start)].tolist()
        assert window.ids.tolist() == [cls, *asked_ids, sep, *own, sep]
        assert window.segment_ids.tolist() == [0] * (len(asked_ids) + 2) + [1] * (len(own) + 1)
        seen[window.first_piece : window.first_piece + len(own)] = True
        may_start[window.first_piece : window.first_piece + len(own)] += window.may_start
    assert encoded.windows
    assert seen.all()
    assert (may_start == 1).all()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 900), st.integers(1, 300), st.integers(20, 320))
@example(350, 300, 250)  # a short last window loses by its size
def test_most_context_is_the_originals_rule(num_pieces, room, stride):
    cuts = context_cuts(num_pieces, room, stride)
    assert cuts[0][0] == 0
    assert cuts[-1][1] == num_pieces
    assert all(after[0] - before[0] == min(room, stride) for before, after in itertools.pairwise(cuts))
    for piece, window in enumerate(most_context(num_pieces, cuts)):
        scores = {
            number: min(piece - first, last - 1 - piece) + 0.01 * (last - first)
            for number, (first, last) in enumerate(cuts)
            if first <= piece < last
        }
        assert window == max(scores, key=scores.get)


@settings(max_examples=80, deadline=None)
@given(TEXTS, st.data())
def test_targets_point_at_the_answer_or_at_cls(context, data):
    start = data.draw(st.integers(0, max(len(context) - 1, 0)))
    text = context[start : start + data.draw(st.integers(1, 12))]
    example = question(context, text, start) if text else question(context)
    encoded = encode_answers(TOKENIZER, [example], SMALL)
    pieces = encoded.contexts[0]
    inside = [
        place
        for place, (first, last) in enumerate(zip(pieces.starts, pieces.ends, strict=True))
        if first < start + len(text) and last > start
    ]
    assert answer_pieces(example, pieces) == ((inside[0], inside[-1]) if inside else None)
    for window in encoded.windows:
        own = range(window.first_piece, window.first_piece + len(window.may_start))
        if inside and inside[0] in own and inside[-1] in own:
            assert window.start - window.context_start + window.first_piece == inside[0]
            assert window.end - window.context_start + window.first_piece == inside[-1]
        else:
            assert (window.start, window.end) == (0, 0)


def test_a_window_without_the_whole_answer_points_at_cls():
    context = " ".join(LETTERS)
    answers = [context[2 * first : 2 * last + 1] for first in range(26) for last in range(first, 26)]
    examples = [question(context, text) for text in answers]
    encoded = encode_answers(TOKENIZER, examples, SMALL)
    for window in encoded.windows:
        own = " ".join(LETTERS[window.first_piece :][: len(window.may_start)])
        tokens = [TOKENIZER.pieces[id] for id in window.ids[window.start : window.end + 1]]
        text = answers[window.question]
        assert tokens == (text.split() if text in own else ["[CLS]"])


@pytest.mark.parametrize(
    ("context", "text"),
    [
        ("born (1895-1943).", "1895"),  # the original's example for narrowing an answer down to its pieces
        ("the 서울은 비", "서울"),
        ("a b  c,\nd", "b  c"),
        ("x 😀 y", "😀"),
        ("x Éa y", "Éa"),
    ],
)
def test_the_text_of_the_targets_is_the_answer(context, text):
    encoded = encode_answers(TOKENIZER, [question(context, text)])
    (window,), (pieces,) = encoded.windows, encoded.contexts
    first, last = (place - window.context_start for place in (window.start, window.end))
    assert context[pieces.starts[first] : pieces.ends[last]] == text


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(0, 9), st.integers(1, 20), st.integers(1, 8))
def test_answers_are_those_of_a_search_over_all_pairs(context, seed, n_best, max_pieces):
    """With as many guesses from each window as the search looks at, as texts that come twice take places."""
    example = question(context)
    encoded = encode_answers(TOKENIZER, [example], SMALL)
    logits = score_windows(encoded, seed)
    (found,) = decode_answers([example], encoded, logits, n_best=1_000, max_answer_length=max_pieces)
    expected, null = search(example, encoded, logits, 1_000, max_pieces)
    assert [tuple(guess) for guess in found.guesses] == expected
    assert found.null_score == pytest.approx(null)
    (fewer,) = decode_answers([example], encoded, logits, n_best=n_best, max_answer_length=max_pieces)
    assert fewer.guesses[:1] == found.guesses[:1]
    assert len(fewer.guesses) <= n_best


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3), st.booleans()), max_size=12), st.integers(1, 9))
def test_best_pairs_are_the_best_of_all(rows, n_best):
    starts, ends, may_start = (np.array([row[column] for row in rows]) for column in range(3))
    every = [
        (-float(starts[i] + ends[j]), i, j)
        for i in range(len(rows)) for j in range(i, min(i + 4, len(rows))) if may_start[i]
    ]  # fmt: skip
    found = best_pairs(starts.astype(np.float32), ends.astype(np.float32), may_start.astype(bool), n_best, 4)
    assert found == [(-score, i, j) for score, i, j in sorted(every)[:n_best]]


def test_windows_in_any_order_give_the_same_answers():
    examples = [question("a b c d " * 9, id="1"), question("", id="2"), question("a. b", id="3")]
    encoded = encode_answers(TOKENIZER, examples, SMALL)
    logits = score_windows(encoded)
    assert decode_answers(examples, encoded, logits) == decode_answers(examples, encoded, logits[::-1])


def test_an_impossible_question_points_at_cls_whatever_its_answers_say():
    """SQuAD 2.0 gives impossible questions plausible answers."""
    encoded = encode_answers(TOKENIZER, [question("a b c", "b", is_impossible=True)], is_training=True)
    assert [(window.start, window.end) for window in encoded.windows] == [(0, 0)]


def test_training_leaves_out_and_counts_answers_without_pieces():
    examples = [
        question("a b"),
        question("a \x00 b", "\x00", id="control"),
        question("a b", answers=(Answer(NOT_LOCATED, "z"), Answer(2, "b"))),
    ]
    skipped = Skipped()
    encoded = encode_answers(TOKENIZER, examples, is_training=True, skipped=skipped)
    assert [window.question for window in encoded.windows] == [2]
    assert skipped.counts == {"questions whose answer has no pieces": 2}
    assert len({window.question for window in encode_answers(TOKENIZER, examples).windows}) == 3


def test_an_empty_context_has_no_answer():
    """T9"""
    example = question("", id="1")
    encoded = encode_answers(TOKENIZER, [example])
    (found,) = decode_answers([example], encoded, score_windows(encoded))
    assert found.guesses == []
    assert predictions_of([example], [found]) == {"1": ""}
    assert null_odds_of([example], [found]) == {"1": ODDS_WITHOUT_A_SPAN}
    assert found.probabilities(with_null=True) == [1.0]
    assert found.probabilities(with_null=False) == []


def test_a_question_longer_than_the_window_leaves_half_of_it_to_the_context():
    encoded = encode_answers(TOKENIZER, [question("a b c d", "d", question="why " * 99)], Cut(max_length=9))
    assert {window.context_start for window in encoded.windows} == {5}
    assert any(window.start for window in encoded.windows)


@pytest.mark.parametrize("changes", [{"max_length": 4}, {"doc_stride": 0}, {"max_query": 0}])
def test_settings_that_cannot_be_meant_are_refused(changes):
    with pytest.raises(UserError, match="or more"):
        encode_answers(TOKENIZER, [question("a")], ORIGINAL_CUT._replace(**changes))


def test_probabilities_are_shares_of_all_that_may_win():
    answered = Answered([Guess("a", 0, 1, 2.0), Guess("b", 2, 3, 1.0)], 3.0)
    weights = np.exp([2.0, 1.0, 3.0])
    np.testing.assert_allclose(answered.probabilities(with_null=True), weights / weights.sum())
    np.testing.assert_allclose(answered.probabilities(with_null=False), weights[:2] / weights[:2].sum())
    assert answered.null_odds == 1.0


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.booleans(), st.integers(-50, 50)), min_size=1, max_size=9, unique=True))
def test_no_other_threshold_has_a_better_f1(rows):
    examples = [
        question("x y", "x" if has_answer else None, id=str(number)) for number, (has_answer, _, _) in enumerate(rows)
    ]
    # A thousandth for each question keeps odds apart: the official script may promise a threshold between equal ones.
    answered = [
        Answered([Guess("x" if is_right else "y", 0, 1, 0.0)], odds + number / 1000)
        for number, (_, is_right, odds) in enumerate(rows)
    ]
    predictions, odds = predictions_of(examples, answered), null_odds_of(examples, answered)
    chosen = choose_threshold(examples, answered)
    best = max(score_squad2(examples, predictions, odds, tau)["f1"] for tau in [-1e3, *odds.values()])
    assert score_squad2(examples, predictions, odds, chosen)["f1"] == pytest.approx(best)


def test_ten_megabytes_are_cut_and_answered_in_linear_time():
    """T9"""
    context = "a bc de. " * 1_150_000
    began = time.perf_counter()
    cuts = context_cuts(len(context) // 2, 317, 128)
    assert (np.bincount(most_context(len(context) // 2, cuts), minlength=len(cuts)) > 0).all()
    assert time.perf_counter() - began < 10
    example = question(context[:1_000_000])
    encoded = encode_answers(TOKENIZER, [example])
    assert time.perf_counter() - began < 20
    assert sum(int(window.may_start.sum()) for window in encoded.windows) == len(encoded.contexts[0].ids)


def test_a_shared_context_is_split_once():
    examples = [question("a b c", id=str(number)) for number in range(3)]
    encoded = encode_answers(TOKENIZER, examples)
    assert encoded.contexts[0] is encoded.contexts[2]
    expected = next(pieces_of(TOKENIZER, ["a b c"]))
    assert all((mine == own).all() for mine, own in zip(encoded.contexts[0], expected, strict=True))
