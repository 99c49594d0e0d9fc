"""Tables of scores: at most 100 columns, in line whatever labels are written in, and no label taken for markup."""

import random

import pytest
from rich.cells import cell_len

from bertworks.inference.evaluate import WIDTH, breakdown_text, metrics_text
from bertworks.tasks.metrics import break_down
from bertworks.tasks.task import Task


def text_for(labels, count=500, kind="classify", seed=0):
    rng = random.Random(seed)
    gold = [rng.choice(labels) for _ in range(count)]
    predicted = [label if rng.random() < 0.7 else rng.choice(labels) for label in gold]
    task = Task(name="x", title="x", kind=kind, splits={}, metrics=(), labels=tuple(labels))
    return breakdown_text(break_down(task, gold, predicted))


@pytest.mark.parametrize("labels", [["긍정", "부정적인 글", "neutral"], ["좋다", "나쁘다"], ["ａｂ", "é", "한국어 글"]])
def test_wide_labels_do_not_shift_the_columns(labels):
    """Every row of a table ends in the same cell of the terminal: its last column is right-aligned."""
    tables = text_for(labels).split("\n\n")
    assert len(tables) == 2
    for table in tables:
        rows = table.splitlines()[-len(labels) :]
        assert [row.startswith(label) for row, label in zip(rows, labels, strict=True)] == [True] * len(labels)
        assert len({cell_len(row) for row in rows}) == 1
    header = tables[1].splitlines()[1]
    assert header.endswith(f"  {labels[-1]}")
    assert cell_len(header) == cell_len(tables[1].splitlines()[-1])


@pytest.mark.parametrize("num_labels", [2, 5, 12, 40, 150])
@pytest.mark.parametrize("label", ["c{}", "a class with a long name, number {}", "분류 이름 {}", "x" * 120 + "{}"])
def test_no_line_is_wider_than_the_page(num_labels, label):
    text = text_for([label.format(number) for number in range(num_labels)])
    assert max(map(cell_len, text.splitlines())) <= WIDTH
    assert text.endswith("\n")
    assert not any(line.endswith(" ") for line in text.splitlines())


def test_labels_too_wide_for_a_head_get_numbers():
    text = text_for([f"a class of its own {number}" for number in range(10)])
    assert " 1 a class of its own 0" in text
    assert "10 a class of its own 9" in text


def test_wide_characters_count_as_two_where_it_is_asked_what_fits():
    text = text_for([f"열두 글자로 된 이름 {number}" for number in range(5)])
    assert " 1  " in text
    assert "…" not in text


def test_a_matrix_that_does_not_fit_is_told_by_its_commonest_mistakes():
    text = text_for([f"intent {number}" for number in range(60)], count=3000)
    assert "predicted as" in text
    assert len(text.split("the commonest mistakes")[1].splitlines()) == 17


def test_a_label_is_not_taken_for_markup():
    text = text_for(["[red]x[/red]", ":smile:"])
    assert "[red]x[/red]" in text
    assert ":smile:" in text


def test_counts_of_the_matrix_are_in_it():
    task = Task(name="x", title="x", kind="classify", splits={}, metrics=(), labels=("a", "b"))
    text = breakdown_text(break_down(task, ["a"] * 1200 + ["b"], ["a"] * 1199 + ["b"] * 2))
    assert text.splitlines()[-2:] == ["a  1,199  1", "b      0  1"]


def test_labels_of_their_own_have_their_mistakes_beside_them():
    task = Task(name="x", title="x", kind="multilabel", splits={}, metrics=(), labels=("a",))
    text = breakdown_text(break_down(task, [("a",), ("a",), ()], [("a",), (), ("a",)]))
    assert text.splitlines()[0].split()[-3:] == ["right", "false", "missed"]
    assert text.splitlines()[1].split()[-4:] == ["2", "1", "1", "1"]


def test_metrics_are_a_line_each():
    assert metrics_text({"accuracy": 0.5, "loss": 1.25}) == "accuracy     0.5000\nloss         1.2500\n"
    assert metrics_text({}) == ""
