"""What was predicted wrongly: nothing that is right, the surest first."""

from dataclasses import replace

import numpy as np
import pytest

from bertworks.tasks.squad import SQUAD1, SQUAD2
from bertworks.tasks.submission import wrong_columns, wrong_examples
from bertworks.tasks.task import Answer, ChoiceExample, SpanExample, Task, TextExample, words_example
from bertworks.tasks.windows import Answered, Guess


def task_of(kind, labels=()):
    return Task(name=kind, title=kind, kind=kind, splits={}, metrics=(), labels=tuple(labels))


def test_classes_come_with_the_probability_of_what_was_said():
    examples = [TextExample(str(number), f"t{number}", None, "a") for number in range(3)]
    rows = [np.log(np.float32([0.4, 0.6])), np.log(np.float32([0.9, 0.1])), np.log(np.float32([0.1, 0.9]))]
    found = wrong_examples(task_of("classify", "ab"), examples, ["b", "a", "b"], rows)
    assert [one["id"] for one in found] == ["2", "0"]
    assert [one["score"] for one in found] == pytest.approx([0.9, 0.6])
    assert found[0] == {"id": "2", "text": "t2", "gold": "a", "predicted": "b", "score": found[0]["score"]}


def test_pairs_have_both_texts():
    found = wrong_examples(task_of("classify", "ab"), [TextExample("0", "한", "둘", "a")], ["b"], [np.float32([0, 1])])
    assert (found[0]["text"], found[0]["pair"]) == ("한", "둘")
    assert wrong_columns(TextExample("0", "한", "둘", "a")) == [*found[0]]


def test_of_several_labels_the_surest_wrong_one_counts_not_a_right_one():
    examples = [TextExample(name, "t", None, ("x",)) for name in ("all right", "missed", "false")]
    rows = [np.float32([5, -9]), np.float32([-1, -9]), np.float32([9, 2])]
    found = wrong_examples(task_of("multilabel", "xy"), examples, [("x",), (), ("x", "y")], rows)
    assert [one["id"] for one in found] == ["false", "missed"]
    assert [one["score"] for one in found] == pytest.approx([1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1))])
    assert (found[0]["gold"], found[0]["predicted"]) == (["x"], ["x", "y"])


def test_the_order_of_labels_is_no_mistake():
    found = wrong_examples(
        task_of("multilabel", "xy"), [TextExample("0", "t", None, ("y", "x"))], [("x", "y")], [np.float32([1, 1])]
    )
    assert found == []


def test_choices_have_their_endings_also_where_some_are_missing():
    example = ChoiceExample("0", "then", ("he ran", "he sat"), 0)
    found = wrong_examples(task_of("choose"), [example], [1], [np.float32([0, 0, -np.inf])])
    assert found == [
        {"id": "0", "context": "then", "endings": ["he ran", "he sat"], "gold": 0, "predicted": 1, "score": 0.5}
    ]
    assert wrong_columns(example) == [*found[0]]


def test_of_scores_the_tenth_with_the_largest_errors_is_given():
    examples = [TextExample(str(number), "t", None, float(number)) for number in range(20)]
    found = wrong_examples(task_of("regress"), examples, [5.0] * 20, [np.float32([5.0])] * 20)
    assert [one["error"] for one in found] == [14.0, 13.0]
    assert len(wrong_examples(task_of("regress"), examples[:1], [5.0], [np.float32([5.0])])) == 1


def test_sentences_come_by_their_share_of_wrong_tags():
    examples = [words_example(str(number), ["a", "b"], ("O", "O"), number) for number in range(3)]
    tags = [["O", "B-X"], ["O", "O"], ["B-X", "I-X"]]
    found = wrong_examples(task_of("tag"), examples, tags, [])
    assert [(one["id"], one["score"]) for one in found] == [("2", 1.0), ("0", 0.5)]
    assert (found[0]["gold"], found[0]["predicted"]) == (["O", "O"], ["B-X", "I-X"])


def asked(name, *answers):
    return SpanExample(name, "who?", "Ada and Bo", tuple(Answer(0, text) for text in answers), not answers)


def test_answers_are_compared_as_the_official_script_does():
    examples = [asked("right", "the Ada."), asked("wrong", "Bo", "Bo", "Bob")]
    answered = [Answered([Guess("Ada", 0, 3, 2.0)], 0.0), Answered([Guess("Ada", 0, 3, 2.0), Guess("x", 0, 1, 1.0)], 9)]
    found = wrong_examples(SQUAD1, examples, answered, [])
    assert found == [
        {"id": "wrong", "question": "who?", "context": "Ada and Bo", "gold": ["Bo", "Bob"], "predicted": "Ada",
         "score": pytest.approx(1 / (1 + np.exp(-1)))}
    ]  # fmt: skip


def test_no_answer_is_an_answer_where_there_may_be_none():
    examples = [asked("rightly none"), asked("wrongly none", "Ada"), asked("wrongly one"), asked("no text", "Ada")]
    none, some = Answered([Guess("Ada", 0, 3, 1.0)], 3.0), Answered([Guess("Ada", 0, 3, 1.0)], 0.0)
    found = wrong_examples(replace(SQUAD2, threshold=0.0), examples, [none, none, some, Answered([], 0.0)], [])
    assert [(one["id"], one["predicted"]) for one in found] == [
        ("no text", ""), ("wrongly none", ""), ("wrongly one", "Ada"),
    ]  # fmt: skip
    assert [one["score"] for one in found] == pytest.approx([1, 1 / (1 + np.exp(-2)), 1 / (1 + np.exp(-1))])
