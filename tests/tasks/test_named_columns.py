"""Columns named on the command line."""

import pytest

from bertworks.errors import UserError
from bertworks.tasks.own_files import named_columns
from bertworks.tasks.task import Columns


def test_columns_by_their_role():
    assert named_columns("classify", ["label=stars", "text=what = it says"]) == Columns(
        label=("stars",), text="what = it says"
    )
    assert named_columns("answer", ["question=q", "context=c", "answer=a", "answer_start=s", "id=n"]) == Columns(
        question="q", context="c", answer="a", answer_start="s", id="n"
    )
    assert named_columns("tag", ["words=w", "tags=t"]) == Columns(words="w", tags="t")


def test_labels_and_endings_may_be_several_columns():
    assert named_columns("multilabel", ["label=a", "label=b"]) == Columns(label=("a", "b"))
    assert named_columns("choose", ["endings=x", "endings=y"]) == Columns(endings=("x", "y"))


def test_nothing_named_is_nothing_given():
    assert named_columns("classify", []) is None
    assert named_columns("sst2", []) is None


@pytest.mark.parametrize(
    ("kind", "named", "said"),
    [
        ("classify", ["stars"], "is not role=column"),
        ("classify", ["label="], "is not role=column"),
        ("classify", ["lable=stars"], "did you mean 'label'"),
        ("classify", ["words=w"], "allowed: text, pair, label, id"),
        ("classify", ["text=a", "text=b"], "text is 'a' already"),
        ("sst2", ["label=stars"], "your own files alone"),
    ],
)
def test_mistakes_are_told(kind, named, said):
    with pytest.raises(UserError, match=said):
        named_columns(kind, named)
