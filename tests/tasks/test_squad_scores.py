"""N9: exact match, F1 and thresholds as the official scripts of SQuAD and KorQuAD give them.

The stored results of the scripts are on SQuAD's own questions, which are not ours to ship: that comparison is in
tests/parity. Here: literal references on made-up answers.
"""

import pytest
import score_references as slow
from hypothesis import given, settings
from hypothesis import strategies as st

from bertworks.errors import UserError
from bertworks.tasks import TASKS
from bertworks.tasks.metrics import (
    KOREAN,
    is_exact,
    measure_answers,
    normalize_english,
    normalize_korean,
    overlap_f1,
    score_squad1,
    score_squad2,
)
from bertworks.tasks.task import Answer, SpanExample

WORDS = st.lists(
    st.sampled_from(["the", "A", "an", "Alps", "alps,", "Rhine", "—", "!", "１", "the\u00a0Alps", "a-b"]), max_size=4
)
TEXTS = WORDS.map(" ".join)


def question(name, *answers):
    return SpanExample(name, "?", "", tuple(Answer(0, answer) for answer in answers), not answers)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Alps!", "alps"),
        ("a. b", "b"),
        ("an.the", "anthe"),
        ("L'eau", "leau"),
        ("the\u2009Alps", "alps"),
        ("theAlps", "thealps"),
        ("the—Alps", "—alps"),
        ("THE", ""),
        ("İ", "i̇"),
    ],
)
def test_english_answers_are_reduced_as_squad_does(text, normal):
    assert normalize_english(text) == normal


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("《삼국지》", "삼국지"),
        ("'가' 나", "가 나"),
        ("KBS(한국)", "kbs 한국"),
        ("1,000.5", "10005"),
        ("the 책", "the 책"),
    ],
)
def test_korean_answers_are_reduced_as_korquad_does(text, normal):
    assert normalize_korean(text) == normal


def test_korquad_counts_characters():
    assert overlap_f1("1989년 2월", "1989년 2월 15일", KOREAN) == pytest.approx(2 * 7 / (7 + 10))
    assert is_exact("‘임수경’", "임수경", KOREAN)
    assert overlap_f1("1989년2월", "1989년 2월", KOREAN) == 1.0
    assert not is_exact("1989년2월", "1989년 2월", KOREAN)


@given(TEXTS, TEXTS)
def test_f1_is_that_of_the_shared_words(prediction, answer):
    assert overlap_f1(prediction, answer) == pytest.approx(slow.squad_f1(prediction, answer, False), abs=1e-12)


def test_the_best_of_several_answers_counts_and_a_missing_prediction_is_wrong():
    questions = [question("q1", "the Alps", "Rhine"), question("q2", "x"), question("q3", "x y")]
    scores = score_squad1(questions, {"q1": "rhine.", "q3": "x z", "unknown": "x"})
    assert scores == {"exact_match": pytest.approx(100 / 3), "f1": pytest.approx(100 * (1 + 0 + 0.5) / 3)}


def test_a_question_without_any_answer_scores_nothing_in_squad_1():
    assert score_squad1([question("q1")], {"q1": ""}) == {"exact_match": 0, "f1": 0}


# A prediction that normalises to nothing is an answer for the search and none for the score: not drawn here.
QUESTIONS = st.lists(
    st.tuples(
        st.lists(TEXTS.filter(slow.squad_words), max_size=2),
        TEXTS.filter(lambda text: not text or slow.squad_words(text)),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=8,
    unique_by=lambda one: one[2],
)


@settings(max_examples=150, deadline=None)
@given(QUESTIONS, st.floats(-0.1, 1.1))
def test_squad_2_scores_are_those_of_the_definition_and_no_threshold_does_better_than_the_best(drawn, threshold):
    questions = {str(i): answers for i, (answers, _, _) in enumerate(drawn)}
    predictions = {str(i): prediction for i, (_, prediction, _) in enumerate(drawn)}
    odds = {str(i): odd for i, (_, _, odd) in enumerate(drawn)}
    found = score_squad2(
        [question(name, *answers) for name, answers in questions.items()], predictions, odds, threshold
    )

    def exact(prediction, answer):
        return float(slow.squad_words(prediction) == slow.squad_words(answer))

    def f1(prediction, answer):
        return slow.squad_f1(prediction, answer, True)

    for name, score in (("exact", exact), ("f1", f1)):
        assert found[name] == pytest.approx(slow.squad2_score(questions, predictions, odds, threshold, score))
        at_each = [slow.squad2_score(questions, predictions, odds, one, score) for one in (-1.0, *odds.values())]
        assert found[f"best_{name}"] == pytest.approx(max(at_each))


def test_squad_2_tells_questions_with_and_without_an_answer_apart():
    questions = [question("q1", "Alps"), question("q2", "Rhine"), question("q3")]
    found = score_squad2(questions, {"q1": "alps", "q2": "", "q3": ""})
    assert (found["HasAns_exact"], found["HasAns_total"]) == (50, 2)
    assert (found["NoAns_exact"], found["NoAns_total"]) == (100, 1)
    assert (found["exact"], found["total"]) == (pytest.approx(200 / 3), 3)
    assert "best_f1" not in found


def test_the_best_threshold_is_where_the_sum_was_first_highest():
    questions = [question("sure", "Alps"), question("none"), question("wrong", "Rhine"), question("late", "Ruhr")]
    predictions = {"sure": "Alps", "none": "Po", "wrong": "Po", "late": "Ruhr"}
    odds = {"sure": 0.1, "none": 0.7, "wrong": 0.3, "late": 0.5}
    found = score_squad2(questions, predictions, odds)
    assert (found["best_exact"], found["best_exact_thresh"]) == (75, 0.5)
    assert score_squad2(questions, predictions, odds, 0.5)["exact"] == 75


def test_of_equally_good_thresholds_the_first_is_taken():
    questions = [question("right", "Alps"), question("none"), question("right again", "Ruhr")]
    odds = {"right": 0.1, "none": 0.2, "right again": 0.3}
    found = score_squad2(questions, {"right": "Alps", "none": "Po", "right again": "Ruhr"}, odds)
    assert (found["best_exact"], found["best_exact_thresh"]) == (pytest.approx(200 / 3), 0.1)
    nothing = score_squad2([question("none")], {"none": ""}, {"none": 0.4})
    assert (nothing["best_exact"], nothing["best_exact_thresh"]) == (100, 0.0)


def test_a_task_is_measured_by_its_own_rules():
    english, korean = question("q", "the Alps"), question("q", "알프스 산")
    assert measure_answers(TASKS["squad1"], [english], {"q": "Alps"}) == {"exact_match": 100, "f1": 100}
    assert measure_answers(TASKS["korquad"], [korean], {"q": "알프스산"}) == {"exact_match": 0, "f1": 100}
    both = measure_answers(TASKS["squad2"], [english], {"q": "Alps"}, {"q": 0.1}, threshold=0.0)
    assert (both["f1"], both["exact_match"], both["best_f1"]) == (0, 0, 100)


def test_no_questions_are_an_error():
    with pytest.raises(UserError, match="no questions"):
        score_squad1([], {})
    with pytest.raises(UserError, match="no questions"):
        score_squad2([], {})
